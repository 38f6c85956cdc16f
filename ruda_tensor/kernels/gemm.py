"""Matrix products on a GPU: tensor cores for half types, float32 accumulation, one rounding, any batch.

CuPy multiplies batches of float16 at the float32 rate, refuses batches of bfloat16, and copies transposed or broadcast
batches, so cuBLAS is called here. Views cost nothing: a transposed matrix is passed as a flag, a batch that shares one
matrix as a stride of 0. float32 is computed in full float32, not in TF32.
"""
from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

_CUDA_TYPES = {FLOAT32: 0, FLOAT64: 1, FLOAT16: 2, BFLOAT16: 14}  # cudaDataType_t
_COMPUTE_32F, _COMPUTE_64F = 68, 70  # cublasComputeType_t
_DEFAULT_ALGORITHM = -1
_DEFAULT_MATH, _NO_REDUCED_PRECISION_REDUCTION = 0, 16  # cublasMath_t: partial sums of split products stay float32
_ONE_AND_ZERO = {d: (np.ones(1, d), np.zeros(1, d)) for d in (FLOAT32, FLOAT64)}


def available(xp: Any) -> bool:
    """True for CuPy."""
    return xp.__name__ == "cupy"


def layout(strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[bool, int] | None:
    """Return (transposed, leading dimension) of a matrix by its strides in elements, or None if BLAS cannot read it."""
    (r, c), (s, t) = shape, strides
    if (t == 1 or c == 1) and (s >= c or r == 1):
        return False, max(s if r > 1 else c, c, 1)
    if (s == 1 or r == 1) and (t >= r or c == 1):
        return True, max(t if c > 1 else r, r, 1)
    return None


def batch_stride(strides: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return the one stride that walks through a batch in row-major order, or None where there is none."""
    stride, expected = 0, None
    for s, n in zip(strides[::-1], shape[::-1]):
        if n == 1:
            continue
        if expected is None:
            stride, expected = s, s * n
        elif s != expected:
            return None
        else:
            expected = s * n
    return stride if stride >= 0 else None


def _operand(xp: Any, a: Any, batch: tuple[int, ...]) -> tuple[Any, int, int, int]:
    """The array to read (a copy where BLAS cannot read the view), its transpose flag, leading dimension and stride."""
    found = layout(_steps(a)[-2:], a.shape[-2:])
    if found is None:
        a, found = xp.ascontiguousarray(a), (False, max(a.shape[-1], 1))
    if a.ndim == 2:
        return a, int(found[0]), found[1], 0
    wide = xp.broadcast_to(a, (*batch, *a.shape[-2:]))
    stride = batch_stride(_steps(wide)[:-2], batch)
    if stride is None:
        wide, found = xp.ascontiguousarray(wide), (False, max(a.shape[-1], 1))
        stride = a.shape[-2] * a.shape[-1]
    return wide, int(found[0]), found[1], stride


def _steps(a: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple([s // a.itemsize for s in a.strides])


class Workspace:
    """Memory that products use."""

    def __init__(self, memory):
        self.memory, self.nbytes = memory, memory.nbytes


@contextlib.contextmanager
def private_workspace(xp: Any):
    yield Workspace(xp.empty(1 << 25, np.uint8))


def matmul(x: Any, y: Any, dtype: Any = None) -> Any:
    """Return x @ y of CuPy arrays, floating and with at least 2 axes, in `dtype`: theirs, or float32 of halves."""
    xp = backend.cupy()
    from cupy_backends.cuda.libs import cublas

    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
    out = xp.empty((*batch, m, n), x.dtype if dtype is None else dtype)
    if out.size == 0 or k == 0:
        out.fill(0)
        return out
    x, x_flag, x_lead, x_stride = _operand(xp, x, batch)
    y, y_flag, y_lead, y_stride = _operand(xp, y, batch)
    one, zero = _ONE_AND_ZERO[FLOAT64 if x.dtype == FLOAT64 else FLOAT32]
    compute = _COMPUTE_64F if x.dtype == FLOAT64 else _COMPUTE_32F
    kind, out_kind = _CUDA_TYPES[x.dtype], _CUDA_TYPES[out.dtype]
    handle = xp.cuda.device.get_cublas_handle()
    cublas.setMathMode(handle, _NO_REDUCED_PRECISION_REDUCTION)
    try:  # cuBLAS is column-major: out.T = y.T @ x.T
        cublas.gemmStridedBatchedEx(
            handle, y_flag, x_flag, n, m, k, one.ctypes.data, y.data.ptr, kind, y_lead, y_stride,
            x.data.ptr, kind, x_lead, x_stride, zero.ctypes.data, out.data.ptr, out_kind, n, m * n,
            math.prod(batch), compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
    finally:
        cublas.setMathMode(handle, _DEFAULT_MATH)
    return out
