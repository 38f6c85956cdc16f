"""Compiling a kernel once and launching it with little overhead: the packed arguments go to the driver in one call.

The arguments are packed by the declared signature into the layout of a C struct, which is that of a kernel's parameters, and
handed to `cuLaunchKernel` as one buffer.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from .. import backend
from .sources import cuda_source

HITS: Counter[str] = Counter()  # launches by the kernel's name, since the process began or `HITS.clear()`
_CODES = {"P", "q", "Q", "i", "I", "f", "d"}  # pointer, 64-bit, 32-bit, float, double: as in the module struct
_SHARED_BY_DEFAULT = 48 << 10  # bytes that every kernel may ask for
_MOST_CALLS = 4096
_UNIFIED_ADDRESSING = 41  # cudaDevAttrUnifiedAddressing: pinned memory of the host has the same address on the device
_BUFFER_POINTER, _BUFFER_SIZE, _BUFFER_END = 1, 2, 0  # CU_LAUNCH_PARAM_*


class KernelError(RuntimeError):
    """A kernel could not be compiled or launched; the message names it."""


class Runtime(Protocol):
    """What compiles and launches: CUDA, or in tests a machine that runs the same sources on the CPU."""

    def serves(self, xp: Any) -> bool:
        """True for the array module whose arrays it reads."""
        ...

    def device(self) -> int:
        """The current device."""
        ...

    def processors(self) -> int:
        """How many multiprocessors the current device has."""
        ...

    def address(self, array: Any, /) -> int:
        """Where an array's data begins."""
        ...

    def capability(self) -> int:
        """The current device's compute capability: 90 for 9.0."""
        ...

    def load(self, text: str, name: str, options: tuple[str, ...], shared: int) -> Any:
        """Compile a source and return its kernel `name`, which is launched with so many bytes of dynamic shared memory."""
        ...

    def launch(self, handle: Any, grid: tuple[int, int], block: tuple[int, int], arguments: bytes) -> str | None:
        """Start a kernel; returns what went wrong."""
        ...

    def free(self) -> None:
        """Give back unused memory, after a launch found none."""
        ...

    def board(self) -> tuple[Any, int] | None:
        """Two uint32 in host memory, this thread's own, and where kernels write to them; None where they cannot."""
        ...

    def wait(self) -> None:
        """Return when what was launched on the current stream is done."""
        ...


class _Scratch(threading.local):
    """The buffer that a thread's launches pass to the driver, which copies it before it returns.

    `calls` keeps the other arguments of a launch as ctypes passes them, by kernel, grid, block and stream: converting
    eleven numbers takes as long as the rest of it.
    """

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(1 << 15)
        self.view = memoryview(self.buffer).cast("B")
        self.size = ctypes.c_size_t(0)
        self.extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(self.buffer), _BUFFER_SIZE, ctypes.addressof(self.size), _BUFFER_END
        )
        self.calls: dict[tuple, tuple] = {}
        self.boards: dict[int, tuple[Any, int] | None] = {}  # by device

    def call(self, handle: Any, grid: tuple[int, int], block: tuple[int, int], stream: int) -> tuple:
        """The arguments of cuLaunchKernel, kept for the next time."""
        pointer, number = ctypes.c_void_p.from_param, ctypes.c_uint.from_param
        numbers = [number(n) for n in (*grid, 1, *block, 1, handle[1])]
        if len(self.calls) >= _MOST_CALLS:
            self.calls.clear()
        made = pointer(handle[0]), *numbers, pointer(stream), None, pointer(ctypes.addressof(self.extra))
        self.calls[handle[0], handle[1], grid, block, stream] = made
        return made


class CudaRuntime:
    """CUDA through CuPy's compiler and cache and the driver's own launch."""

    address = staticmethod(operator.attrgetter("data.ptr"))

    def __init__(self) -> None:
        cp = backend.cupy()
        self.cp = cp
        self.device = cp.cuda.runtime.getDevice
        self.stream = cp.cuda.get_current_stream
        self.scratch = _Scratch()
        driver = ctypes.PyDLL("libcuda.so.1")  # keeps the interpreter's lock: a launch is shorter than giving it away
        self.start = driver.cuLaunchKernel  # without argtypes: see `_Scratch.call`
        self.explain = driver.cuGetErrorName
        self.parameter = getattr(driver, "cuFuncGetParamInfo", None)  # since CUDA 12.4
        self._processors: dict[int, int] = {}
        self._capabilities: dict[int, int] = {}

    def serves(self, xp: Any) -> bool:
        return xp.__name__ == "cupy"

    def processors(self) -> int:
        device = self.device()
        if device not in self._processors:
            self._processors[device] = self.cp.cuda.runtime.getDeviceProperties(device)["multiProcessorCount"]
        return self._processors[device]

    def capability(self) -> int:
        device = self.device()
        if device not in self._capabilities:
            self._capabilities[device] = int(self.cp.cuda.Device(device).compute_capability)
        return self._capabilities[device]

    def load(self, text: str, name: str, options: tuple[str, ...], shared: int) -> Any:
        from cupy.cuda.compiler import CompileException
        from cupy_backends.cuda.api.driver import CUDADriverError

        try:
            module = self.cp.RawModule(code=text, options=("-std=c++17", *options))
            kernel = module.get_function(name)
            if shared > _SHARED_BY_DEFAULT:
                kernel.max_dynamic_shared_size_bytes = shared
            return kernel.kernel.ptr, shared, self.lead(kernel.kernel.ptr), kernel, module  # the two keep the code loaded
        except CompileException as error:
            raise KernelError(f"the kernel {name} does not compile: {first_error(str(error))}") from error
        except CUDADriverError as error:
            raise KernelError(f"the kernel {name} cannot be loaded: {first_error(str(error))}") from error

    def free(self) -> None:
        """Give the driver the pool's unused memory back: loading code, or a kernel's stacks, may need it."""
        self.cp.get_default_memory_pool().free_all_blocks()

    def board(self) -> tuple[Any, int] | None:
        scratch, device = self.scratch, self.device()
        if device not in scratch.boards:
            cuda = self.cp.cuda
            shared = cuda.runtime.deviceGetAttribute(_UNIFIED_ADDRESSING, device)
            memory = cuda.alloc_pinned_memory(8) if shared else None
            scratch.boards[device] = None if memory is None else (np.frombuffer(memory, np.uint32, 2), memory.ptr)
        return scratch.boards[device]

    def wait(self) -> None:
        self.stream().synchronize()

    def lead(self, function: int) -> int:
        """Bytes before the first parameter: where they begin is no multiple of 64, but a tensor map must begin at one."""
        offset, size = ctypes.c_size_t(0), ctypes.c_size_t(0)
        if self.parameter is not None:
            self.parameter(ctypes.c_void_p(function), ctypes.c_size_t(0), ctypes.byref(offset), ctypes.byref(size))
        return offset.value

    def launch(self, handle: Any, grid: tuple[int, int], block: tuple[int, int], arguments: bytes) -> str | None:
        scratch, lead, stream = self.scratch, handle[2], self.stream().ptr
        end = lead + len(arguments)
        scratch.view[lead:end] = arguments
        scratch.size.value = end
        call = scratch.calls.get((handle[0], handle[1], grid, block, stream)) or scratch.call(handle, grid, block, stream)
        status = self.start(*call)
        if status == 0:
            return None
        text = ctypes.c_char_p()
        self.explain(status, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} ({status})"


def first_error(log: str) -> str:
    """The compiler's first line with an error, or its first line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


_current: list[Runtime] = []  # at most one: chosen on first use, or put here by `substitute`


def current() -> Runtime:
    """The runtime in use: CUDA unless another was put in its place."""
    if not _current:
        _current.append(CudaRuntime())
    return _current[-1]


def runtime(xp: Any) -> Runtime | None:
    """The runtime that reads arrays of `xp`, or None."""
    if not _current:
        if xp.__name__ != "cupy":
            return None
        current()
    found = _current[-1]
    return found if found.serves(xp) else None


@contextlib.contextmanager
def substitute(other: Runtime) -> Iterator[None]:
    """Let another runtime compile and launch inside; kernels compiled by the one stay unknown to the other."""
    _current.append(other)
    try:
        yield
    finally:
        _current.remove(other)


def program(source: str, defines: dict[str, Any], text: str = "") -> str:
    """The text to compile: the definitions, then the source with its headers, then what was generated."""
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return head + _source(source) + text


@functools.cache
def _source(name: str) -> str:
    return cuda_source(name)


class Kernel:
    """One kernel of a source under some definitions, compiled when it is first launched on a device.

    `signature` has one code of the module `struct` per parameter, or a number of bytes for a struct passed by value:
    `"P P q i f"`. Arguments for P are arrays or None. A grid without blocks is not launched. `shared` is the dynamic
    shared memory of a block, in bytes. `text` is a generated kernel, which stands behind the source.
    """

    __slots__ = ("source", "name", "defines", "options", "shared", "text", "packer", "first", "pointers", "bound")

    def __init__(
        self, source: str, name: str, signature: str, defines: dict[str, Any], options: tuple[str, ...] = (), shared: int = 0,
        text: str = "",
    ) -> None:
        codes = signature.split()
        wrong = [c for c in codes if c not in _CODES and not c.rstrip("s").isdigit()]
        if wrong:
            raise ValueError(f"{name}: the signature has {wrong}; known are {', '.join(sorted(_CODES))} and sizes as '64s'")
        self.source, self.name, self.defines, self.options = source, name, defines, options
        self.shared, self.text = shared, text
        self.packer = struct.Struct("@" + "".join(codes)).pack
        # Most kernels have their pointers first; `pointers` are those behind other arguments.
        self.first = next((i for i, code in enumerate(codes) if code != "P"), len(codes))
        self.pointers = tuple(i for i, code in enumerate(codes) if code == "P" and i > self.first)
        self.bound: dict[tuple[int, int], Any] = {}

    def __call__(self, grid: tuple[int, int], block: tuple[int, int], *arguments: Any) -> None:
        """Launch. Errors: KernelError where it does not compile or start, with the grid and the arrays' shapes."""
        if grid[0] == 0 or grid[1] == 0:
            return
        machine = _current[-1] if _current else current()
        handle = self.bound.get((id(machine), machine.device()))
        if handle is None:
            handle = self.compile(machine)
        address = machine.address
        values = [0 if a is None else address(a) for a in arguments[: self.first]]
        values += arguments[self.first :]
        for i in self.pointers:
            values[i] = 0 if values[i] is None else address(values[i])
        packed = self.packer(*values)
        problem = machine.launch(handle, grid, block, packed)
        if problem is not None and "OUT_OF_MEMORY" in problem:
            machine.free()
            problem = machine.launch(handle, grid, block, packed)
        if problem is not None:
            shapes = ", ".join(f"{a.dtype}{a.shape}" if hasattr(a, "shape") else repr(a)[:40] for a in arguments)
            raise KernelError(f"the launch of {self.name} with grid {grid}, block {block} failed: {problem}; given {shapes}")
        HITS[self.name] += 1

    def compile(self, machine: Runtime) -> Any:
        """Compile for the current device and keep the result."""
        handle = machine.load(program(self.source, self.defines, self.text), self.name, self.options, self.shared)
        self.bound[id(machine), machine.device()] = handle
        return handle

    def __repr__(self) -> str:
        return f"<Kernel {self.name} of {self.source} {self.defines}>"
