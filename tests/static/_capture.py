"""A stand-in for CUDA's stream capture: kernels run on the CPU by the shim, and inside a capture they wait for the graph.

What NumPy computes inside a capture happens at once and is not repeated, so steps here do with kernels whatever is new at
each replay.
"""
from __future__ import annotations

import contextlib
import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Buffer, Param
from ruda_optim import Optimizer
from ruda_tensor import backend
from ruda_tensor.kernels.capture import Recording
from ruda_tensor.kernels.launch import substitute
from ruda_tensor.recording import here

from ..kernels._shim import COMPILER, HostRuntime


class DeviceMemory(np.ndarray):
    """An array that says where it lies as CuPy's do."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data)


class Graph:
    def __init__(self, work: list[Callable[[], None]], held: list[Any]) -> None:
        self.work, self.held, self.launches = work, held, 0

    def launch(self) -> None:
        self.launches += 1
        for run in self.work:
            run()


class Stream:
    ptr = 0
    inside: list[Stream] = []  # which are current, the last of them now

    def __init__(self, non_blocking: bool = False) -> None:
        self.capturing = False
        self.work: list[Callable[[], None]] = []
        self.held: list[Any] = []
        self.lasting: dict[int, weakref.ref[Any]] = {}  # weak, for a reference would look like a reader's

    def begin_capture(self, mode: int) -> None:
        self.work, self.held, self.capturing = [], [], True
        known = gc.get_objects()  # asked by type: some objects answer isinstance with a warning
        self.lasting = {id(a): weakref.ref(a) for x in known if issubclass(type(x), Optimizer) for a in _arrays(x.states)}
        self.lasting |= {id(x.value._data): weakref.ref(x.value._data) for x in known if type(x) is Buffer}

    def hold(self, array: Any) -> None:
        """Keep memory that a pool of CUDA's would keep; a parameter or a state must not seem to be shared."""
        known = self.lasting.get(id(array))
        lasts = known is not None and known() is array  # not another one that has its place in memory since
        if not lasts and not any(type(owner) is Param for owner in gc.get_referrers(array)):
            self.held.append(array)

    def end_capture(self) -> Graph:
        self.capturing = False
        return Graph(self.work, self.held)

    def synchronize(self) -> None:
        """What was launched has run."""

    def __enter__(self) -> Stream:
        Stream.inside.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        Stream.inside.pop()


class CapturingRuntime(HostRuntime):
    """The shim, whose launches inside a capture are left for its graph."""

    def address(self, array: Any) -> int:
        if here.recording is not None:
            here.recording.stream.hold(array)
        return array.ctypes.data

    def launch(self, handle: Any, grid: tuple[int, int], block: tuple[int, int], arguments: bytes) -> str | None:
        run = super().launch
        if here.recording is None:
            return run(handle, grid, block, arguments)
        here.recording.stream.work.append(lambda: run(handle, grid, block, arguments))
        return None


def _arrays(state: Any) -> Iterator[np.ndarray]:
    for value in state.values():
        if isinstance(value, dict):
            yield from _arrays(value)
        elif isinstance(value, np.ndarray):
            yield value


class Pool:
    """Memory whose pool can be told: `made` are the arrays that it gave."""

    inside: list[Pool] = []

    def __init__(self) -> None:
        self.made: list[np.ndarray] = []

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        Pool.inside.append(self)
        try:
            yield
        finally:
            Pool.inside.pop()

    def malloc(self, size: int) -> None:
        """CuPy is told which pool by this method."""

    def total_bytes(self) -> int:
        return 0


def _from_host(array: np.ndarray) -> np.ndarray:
    """A copy in memory of the device, which no stream that is captured can make."""
    if Stream.inside and Stream.inside[-1].capturing:
        raise RuntimeError("the current stream is capturing, so synchronous API calls are disallowed")
    Pool.inside[-1].made.append(array.copy().view(DeviceMemory))
    return Pool.inside[-1].made[-1]


def _fake_cupy() -> Any:
    def copied(to: int, source: int, size: int, kind: int, stream: int) -> None:
        ctypes.memmove(to, source, size)

    idle, common = Stream(), Pool()
    cuda = SimpleNamespace(
        Stream=Stream, MemoryPool=Pool, using_allocator=lambda malloc: malloc.__self__.current(),
        get_current_stream=lambda: idle,
        runtime=SimpleNamespace(streamCaptureModeRelaxed=2, memcpyAsync=copied),
    )  # fmt: skip
    return SimpleNamespace(
        cuda=cuda, zeros=lambda n, dtype: np.zeros(n, dtype).view(DeviceMemory), copyto=np.copyto, asarray=_from_host,
        get_default_memory_pool=lambda: common,
    )  # fmt: skip


def _copyto(to: np.ndarray, array: Any, real: Callable = np.copyto, **options: Any) -> None:
    """np.copyto, which inside a capture waits for the graph."""
    if here.recording is None or not isinstance(array, np.ndarray):
        real(to, array, **options)
        return
    if not (to.flags.c_contiguous and array.flags.c_contiguous):
        here.recording.stream.work.append(lambda: real(to, array))
        return
    stream, place, source, size = here.recording.stream, to.ctypes.data, array.ctypes.data, to.nbytes
    stream.hold(array)
    stream.work.append(lambda: ctypes.memmove(place, source, size) and None)


@contextlib.contextmanager
def recording_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The CPU as a device that launches kernels and captures them."""
    if COMPILER is None:
        pytest.skip("no g++ to run the CUDA sources with")
    fake = _fake_cupy()
    monkeypatch.setattr(rt.Cpu, "launches", True)
    monkeypatch.setattr(backend, "cupy", lambda: fake)
    monkeypatch.setattr(backend, "use_device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(backend, "synchronize", lambda index: None)
    monkeypatch.setattr(backend, "release_memory", lambda index: None)
    monkeypatch.setattr(np, "copyto", _copyto)
    monkeypatch.setattr(Recording, "copy", lambda self, to, array: np.copyto(to, array))
    with substitute(CapturingRuntime()):
        yield rt.Cpu()
