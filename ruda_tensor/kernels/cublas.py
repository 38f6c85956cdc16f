"""Matrix products by cuBLAS's older interface, through CuPy: where cuBLASLt is missing or has no algorithm."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import FLOAT32, FLOAT64
from .blaslt import COMPUTE_TF32, CUDA_TYPES, Problem

_DEFAULT_ALGORITHM = -1
_DEFAULT_MATH, _NO_REDUCED_PRECISION_REDUCTION = 0, 16  # cublasMath_t: partial sums of split products stay float32
_ONE_AND_ZERO = {d: (np.ones(1, d), np.zeros(1, d)) for d in (FLOAT32, FLOAT64)}


def multiply(xp: Any, problem: Problem, x: Any, y: Any, out: Any) -> None:
    """Write x @ y to `out`, arrays that lie in memory as the problem says."""
    from cupy_backends.cuda.libs import cublas

    p = problem
    one, zero = _ONE_AND_ZERO[FLOAT64 if p.dtype == FLOAT64 else FLOAT32]
    kind, out_kind = CUDA_TYPES[p.dtype], CUDA_TYPES[p.out_dtype]
    handle = xp.cuda.device.get_cublas_handle()
    mode = _DEFAULT_MATH if p.compute == COMPUTE_TF32 else _NO_REDUCED_PRECISION_REDUCTION
    cublas.setMathMode(handle, mode)
    try:  # cuBLAS is column-major: out.T = y.T @ x.T
        cublas.gemmStridedBatchedEx(
            handle, int(p.y.transposed), int(p.x.transposed), p.n, p.m, p.k, one.ctypes.data, y.data.ptr, kind, p.y.lead,
            p.y.stride, x.data.ptr, kind, p.x.lead, p.x.stride, zero.ctypes.data, out.data.ptr, out_kind, p.n, p.m * p.n,
            p.batch, p.compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
    finally:
        cublas.setMathMode(handle, _DEFAULT_MATH)
