"""cuBLASLt through ctypes: handles, workspaces, and plans of products that are prepared once and started cheaply.

A `Plan` holds what cuBLASLt needs for one kind of product: descriptors, the algorithm, and the argument list of the call.
The algorithm is the first that the library's heuristic names; it is never chosen by timing, and partial sums of a split
product are kept and added in the compute type, in a fixed order. So the same product gives the same bits in every run.
"""
from __future__ import annotations

import contextlib
import contextvars
import ctypes
import operator
import threading
from collections.abc import Callable, Iterator
from ctypes import addressof, byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import backend
from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from .launch import KernelError

# Values of library_types.h, cublas_api.h and cublasLt.h, the same in CUDA 12 and 13.
CUDA_TYPES = {FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, BFLOAT16: 14}  # cudaDataType_t
COMPUTE_32F, COMPUTE_64F, COMPUTE_TF32 = 68, 70, 77  # cublasComputeType_t
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS, _AUX, _AUX_LEAD = 3, 4, 7, 8, 11, 12  # cublasLtMatmulDescAttributes_t
_BATCH_COUNT, _BATCH_STRIDE = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MOST_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
_IN_COMPUTE_TYPE = 2  # cublasLtReductionScheme_t; products that are not split are always among the candidates
EPILOGUES = {"none": 1, "bias": 4, "gelu_aux": 160, "gelu_aux_bias": 164}  # cublasLtEpilogue_t
WORKSPACE = 32 << 20  # what cuBLAS itself takes on Hopper; with less, some of its kernels are out of reach
MOST_PLANS = 4096

_P, _REF = c_void_p, c_void_p
FUNCTIONS = {  # name: argument types; all return a cublasStatus_t
    "cublasLtCreate": (_REF,),
    "cublasLtMatmulDescCreate": (_REF, c_int, c_int),
    "cublasLtMatmulDescSetAttribute": (_P, c_int, _REF, c_size_t),
    "cublasLtMatmulDescDestroy": (_P,),
    "cublasLtMatrixLayoutCreate": (_REF, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutSetAttribute": (_P, c_int, _REF, c_size_t),
    "cublasLtMatrixLayoutDestroy": (_P,),
    "cublasLtMatmulPreferenceCreate": (_REF,),
    "cublasLtMatmulPreferenceSetAttribute": (_P, c_int, _REF, c_size_t),
    "cublasLtMatmulPreferenceDestroy": (_P,),
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, _P, _P, _P, _P, _P, c_int, _REF, _REF),
    "cublasLtMatmul": (_P, _P, _REF, _P, _P, _P, _P, _REF, _P, _P, _P, _P, _REF, _P, c_size_t, _P),
}
STATUS = {
    1: "not initialized", 3: "out of memory", 7: "invalid value", 8: "not for this GPU", 11: "mapping error",
    13: "execution failed", 14: "internal error", 15: "not supported",
}  # fmt: skip


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float), ("reserved", c_int * 4)
    ]  # fmt: skip


class Machine(Protocol):
    """A device's memory, streams and cuBLASLt: CUDA, or in tests a stand-in on the CPU."""

    functions: dict[str, Callable[..., int]]

    def serves(self, xp: Any) -> bool:
        """True for the array module whose arrays it multiplies."""
        ...

    def device(self) -> int:
        """The current device."""
        ...

    def stream(self) -> int:
        """The current stream's address."""
        ...

    def address(self, array: Any, /) -> int:
        """Where an array's data begins."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array in row-major order."""
        ...


class CudaMachine:
    """CUDA through CuPy, and the cuBLASLt that CuPy's cuBLAS has loaded."""

    address = staticmethod(operator.attrgetter("data.ptr"))

    def __init__(self) -> None:
        cp = backend.cupy()
        self.device = cp.cuda.runtime.getDevice
        self.current = cp.cuda.get_current_stream
        self.empty = cp.ndarray  # cupy.empty, without its checks
        self.functions = load(cp)

    def serves(self, xp: Any) -> bool:
        return xp.__name__ == "cupy"

    def stream(self) -> int:
        return self.current().ptr


def load(cp: Any) -> dict[str, Callable[..., int]]:
    """The library's functions. Errors: KernelError where it is not found or lacks one of them.

    cuBLAS brings its cuBLASLt along, and the loader then knows that by its name, wherever CuPy found it.
    """
    cp.cuda.device.get_cublas_handle()
    major = cp.cuda.runtime.runtimeGetVersion() // 1000
    name = f"libcublasLt.so.{major}"
    try:
        library = ctypes.PyDLL(name)  # keeps the interpreter's lock: a call is shorter than giving it away
        found = {f: getattr(library, f) for f in FUNCTIONS}
    except (OSError, AttributeError) as error:
        advice = f"pip install 'cupy-cuda{major}x[ctk]'"
        raise KernelError(f"cuBLASLt cannot be used: {name}: {error}; it comes with {advice}") from error
    for f, arguments in FUNCTIONS.items():
        if f != "cublasLtMatmul":  # its arguments are made once, as ctypes objects, and need no conversion
            found[f].argtypes = arguments
    return found


_current: list[Machine] = []  # put here by `substitute`
_found: dict[str, Machine | None] = {}
problems: list[str] = []  # why cuBLASLt is not used, if it is not


def machine(xp: Any) -> Machine | None:
    """The machine that multiplies arrays of `xp`; None for NumPy, and where cuBLASLt was not found."""
    if _current:
        return _current[-1] if _current[-1].serves(xp) else None
    name = xp.__name__
    try:
        return _found[name]
    except KeyError:
        _found[name] = None
        if name == "cupy":
            try:
                _found[name] = CudaMachine()
            except KernelError as error:
                problems.append(str(error))
        return _found[name]


@contextlib.contextmanager
def substitute(other: Machine) -> Iterator[None]:
    """Let another machine multiply inside."""
    _current.append(other)
    try:
        yield
    finally:
        _current.remove(other)


class Workspace:
    """Memory of a device that products use while they run, one after another on one stream."""

    __slots__ = ("array", "address", "nbytes", "device")

    def __init__(self, owner: Machine | None) -> None:
        self.nbytes = 0 if owner is None else WORKSPACE
        self.array = None if owner is None else owner.empty((WORKSPACE,), np.uint8)
        self.address = 0 if owner is None else owner.address(self.array)
        self.device = -1 if owner is None else owner.device()


_private: contextvars.ContextVar[Workspace | None] = contextvars.ContextVar("ruda_workspace", default=None)
_shared: dict[tuple[int, int, int], Workspace] = {}


@contextlib.contextmanager
def private_workspace(xp: Any) -> Iterator[Workspace]:
    """Let all products on the current device use a workspace of their own inside, and return it.

    A captured graph's products write to the workspace of their capture whenever it is replayed: keep the object as long
    as the graph. `nbytes` is its size, 0 where products need none.

    >>> import numpy
    >>> with private_workspace(numpy) as workspace:
    ...     workspace.nbytes
    0
    """
    workspace = Workspace(machine(xp))
    token = _private.set(workspace)
    try:
        yield workspace
    finally:
        _private.reset(token)


def workspace_of(owner: Machine, device: int, stream: int) -> int:
    """The address of the workspace for a product on this stream."""
    private = _private.get()
    if private is not None and private.device == device:
        return private.address
    key = (id(owner), device, stream)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Workspace(owner)
    return found.address


_handles: dict[tuple[int, int], c_void_p] = {}
_lock = threading.Lock()


def handle_of(owner: Machine) -> c_void_p:
    """The library's handle for the current device."""
    key = (id(owner), owner.device())
    with _lock:
        if key not in _handles:
            handle = c_void_p()
            check(owner.functions["cublasLtCreate"](byref(handle)), "cublasLtCreate")
            _handles[key] = handle
        return _handles[key]


def check(status: int, what: str) -> None:
    """Raise KernelError unless a call went well."""
    if status:
        raise KernelError(f"{what} failed: {STATUS.get(status, 'unknown error')} ({status})")


class Operand(NamedTuple):
    """A matrix in memory, row by row: stored transposed or not, elements from row to row, and from one of a batch to the next."""

    transposed: bool
    lead: int
    stride: int


class Problem(NamedTuple):
    """`batch` products x @ y of m rows, n columns, over k, in row-major order.

    `added`: whether matrices are added to them, or "shared" where it is one that all of the batch share.
    """

    m: int
    n: int
    k: int
    batch: int
    x: Operand
    y: Operand
    dtype: np.dtype
    out_dtype: np.dtype
    compute: int
    epilogue: str
    added: bool | str
    alignment: int


class Plan:
    """A product ready to start. cuBLASLt is column-major and sees every matrix transposed: out.T = y.T @ x.T.

    So its A is our y, its B our x, and its D has our n columns as rows: along them a bias runs, and their number is the
    leading dimension of D and of the auxiliary matrix. Belongs to one thread, for the arguments are changed in place.
    """

    def __init__(self, owner: Machine, problem: Problem, bias: int, aux: int) -> None:
        self.problem, self.functions = problem, owner.functions
        self.bias = self.aux = 0
        self.created: list[tuple[str, c_void_p]] = []
        p = problem
        kind, out_kind = CUDA_TYPES[p.dtype], CUDA_TYPES[p.out_dtype]
        scale, number = (FLOAT64, c_double) if p.compute == COMPUTE_64F else (FLOAT32, c_float)
        self.numbers = number(1.0), number(1.0 if p.added else 0.0)
        self.description = self._create("cublasLtMatmulDesc", p.compute, CUDA_TYPES[scale])
        self._describe(_TRANSPOSE_A, c_int32(p.y.transposed))
        self._describe(_TRANSPOSE_B, c_int32(p.x.transposed))
        self._describe(_EPILOGUE, c_uint32(EPILOGUES[p.epilogue]))
        a = self._layout(kind, p.n, p.k, p.y)
        b = self._layout(kind, p.k, p.m, p.x)
        d = self._layout(out_kind, p.n, p.m, Operand(False, p.n, p.m * p.n))
        c = self._layout(out_kind, p.n, p.m, Operand(False, p.n, 0)) if p.added == "shared" else d
        if aux:
            self._describe(_AUX_LEAD, c_int64(p.n))
        self._point(bias, aux)  # the heuristic looks at their alignment
        self.heuristic = Heuristic()
        self.found = self._choose(owner, a, b, c, d)
        self.pointers = tuple([c_void_p() for _ in range(6)])
        x_at, y_at, c_at, d_at, workspace, stream = self.pointers
        one, zero = (c_void_p(addressof(v)) for v in self.numbers)
        algorithm = c_void_p(addressof(self.heuristic))
        self.arguments = (
            handle_of(owner), self.description, one, y_at, a, x_at, b, zero, c_at, c, d_at, d, algorithm, workspace,
            c_size_t(WORKSPACE), stream,
        )  # fmt: skip
        self.start = owner.functions["cublasLtMatmul"]

    def _create(self, kind: str, *arguments: Any) -> c_void_p:
        made = c_void_p()
        check(self.functions[f"{kind}Create"](byref(made), *arguments), f"{kind}Create")
        self.created.append((kind, made))
        return made

    def _set(self, kind: str, thing: c_void_p, attribute: int, value: Any) -> None:
        check(
            self.functions[f"{kind}SetAttribute"](thing, attribute, byref(value), sizeof(value)),
            f"{kind}SetAttribute({attribute})",
        )

    def _describe(self, attribute: int, value: Any) -> None:
        self._set("cublasLtMatmulDesc", self.description, attribute, value)

    def _layout(self, kind: int, rows: int, columns: int, operand: Operand) -> c_void_p:
        size = (columns, rows) if operand.transposed else (rows, columns)
        layout = self._create("cublasLtMatrixLayout", kind, *size, operand.lead)
        if self.problem.batch > 1:
            self._set("cublasLtMatrixLayout", layout, _BATCH_COUNT, c_int32(self.problem.batch))
            self._set("cublasLtMatrixLayout", layout, _BATCH_STRIDE, c_int64(operand.stride))
        return layout

    def _point(self, bias: int, aux: int) -> None:
        if bias != self.bias:
            self._describe(_BIAS, c_uint64(bias))
        if aux != self.aux:
            self._describe(_AUX, c_uint64(aux))
        self.bias, self.aux = bias, aux

    def _choose(self, owner: Machine, a: c_void_p, b: c_void_p, c: c_void_p, d: c_void_p) -> bool:
        """Ask for the best algorithm; False where there is none for this product and epilogue."""
        preference = self._create("cublasLtMatmulPreference")
        wishes = [(_MOST_WORKSPACE, c_uint64(WORKSPACE)), (_REDUCTIONS, c_uint32(_IN_COMPUTE_TYPE))]
        wishes += [(attribute, c_uint32(self.problem.alignment)) for attribute in _ALIGNMENTS]
        for attribute, value in wishes:
            self._set("cublasLtMatmulPreference", preference, attribute, value)
        count = c_int(0)
        status = self.functions["cublasLtMatmulAlgoGetHeuristic"](
            handle_of(owner), self.description, a, b, c, d, preference, 1, byref(self.heuristic), byref(count)
        )
        return status == 0 and count.value > 0 and self.heuristic.state == 0

    def run(self, x: int, y: int, c: int, out: int, workspace: int, stream: int, bias: int = 0, aux: int = 0) -> None:
        """Start the product of matrices at these addresses. Errors: KernelError, with the product."""
        if bias != self.bias or aux != self.aux:
            self._point(bias, aux)
        x_at, y_at, c_at, d_at, workspace_at, stream_at = self.pointers
        x_at.value = x
        y_at.value = y
        c_at.value = c
        d_at.value = out
        workspace_at.value = workspace
        stream_at.value = stream
        status = self.start(*self.arguments)
        if status:
            check(status, f"cublasLtMatmul of {self.problem}")

    def __del__(self) -> None:
        for kind, made in self.created:
            self.functions[f"{kind}Destroy"](made)
