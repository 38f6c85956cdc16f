"""Matrix products of half types on a GPU: tensor cores, float32 accumulation, one rounding, any batch.

CuPy multiplies batches of float16 at the float32 rate and refuses batches of bfloat16, so cuBLAS is called here. Views
cost nothing: a transposed matrix is passed as a flag, a broadcast batch as a stride of 0.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import BFLOAT16, FLOAT16, FLOAT32

_CUDA_TYPES = {FLOAT32: 0, FLOAT16: 2, BFLOAT16: 14}  # cudaDataType_t
_COMPUTE_32F = 68  # cublasComputeType_t
_DEFAULT_ALGORITHM = -1
_DEFAULT_MATH, _NO_REDUCED_PRECISION_REDUCTION = 0, 16  # cublasMath_t: partial sums of split products stay float32
_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)


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
    wide = xp.broadcast_to(a, (*batch, *a.shape[-2:])) if a.ndim > 2 else a
    strides = tuple([s // a.itemsize for s in wide.strides])
    found = layout(strides[-2:], a.shape[-2:])
    stride = batch_stride(strides[:-2], wide.shape[:-2])
    if found is None or stride is None:
        wide = xp.ascontiguousarray(wide)
        found, stride = (False, max(a.shape[-1], 1)), a.shape[-2] * a.shape[-1]
    return wide, int(found[0]), found[1], stride


def matmul(x: Any, y: Any, dtype: Any = None) -> Any:
    """Return x @ y for float16 or bfloat16 CuPy arrays of at least 2 axes, in `dtype` (theirs, or float32)."""
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
    handle = xp.cuda.device.get_cublas_handle()
    kind, out_kind = _CUDA_TYPES[x.dtype], _CUDA_TYPES[out.dtype]
    cublas.setMathMode(handle, _NO_REDUCED_PRECISION_REDUCTION)
    try:  # cuBLAS is column-major: out.T = y.T @ x.T
        cublas.gemmStridedBatchedEx(
            handle, y_flag, x_flag, n, m, k, _ONE.ctypes.data, y.data.ptr, kind, y_lead, y_stride,
            x.data.ptr, kind, x_lead, x_stride, _ZERO.ctypes.data, out.data.ptr, out_kind, n, m * n,
            math.prod(batch), _COMPUTE_32F, _DEFAULT_ALGORITHM,
        )  # fmt: skip
    finally:
        cublas.setMathMode(handle, _DEFAULT_MATH)
    return out
