"""Sums, means and extremes over the leading axes or over the last ones, which read half types as they are; sums of channels."""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..dtypes import FLOATING, HALF
from .batch_norm import channel_sums, long_enough
from .columns import OPERATIONS, reduce_columns
from .gate import CTYPES, LONGEST, MOST_BLOCKS, ceil_div, contiguous, opened, vector_of
from .launch import Kernel, runtime

NARROW, SHORT, FEW = 32, 32, 256  # columns, numbers per row, and rows: fewer leave most threads idle
_BATCH = 4
_WIDEST = 256  # threads on one row


def takes(x: Any, axis: tuple[int, ...], kind: str) -> bool:
    """True where the kernels are the quicker way: over leading axes, half types over the last ones, sums of channels.

    CuPy's own reductions are as fast as a copy over the last axes in float32 alone.
    """
    if not 0 < len(axis) < x.ndim or x.dtype not in FLOATING:
        return False
    if _all_but_channels(x, axis):
        return kind == "sum" and long_enough(x)
    if axis == tuple(range(len(axis))):
        return math.prod(x.shape[len(axis) :]) >= NARROW
    if x.dtype not in HALF or axis != tuple(range(x.ndim - len(axis), x.ndim)):
        return False
    n = math.prod(x.shape[x.ndim - len(axis) :])
    return SHORT <= n <= LONGEST and x.size >= FEW * n


def _all_but_channels(x: Any, axis: tuple[int, ...]) -> bool:
    return x.ndim > 2 and axis == (0, *range(2, x.ndim))


def reduce(xp: Any, x: Any, axis: tuple[int, ...], kind: str) -> Any:
    """The "sum", "mean", "max" or "min" over `axis`, without that; None where the gate is shut or these are other axes."""
    if runtime(xp) is None or not takes(x, axis, kind):
        return None
    if _all_but_channels(x, axis):
        return channel_sums(xp, x)
    leading = axis[0] == 0
    rest = x.shape[len(axis) :] if leading else x.shape[: x.ndim - len(axis)]
    kept = math.prod(rest)
    operation, divisor = ("sum", x.size / kept) if kind == "mean" and kept else (kind, 1.0)
    if leading:
        out = reduce_columns(xp, x, kept, x.dtype, operation, divisor)
    else:
        out = _reduce_rows(xp, x, kept, operation, divisor)
    return None if out is None else out.reshape(rest)


@functools.cache
def _kernel(dtype: np.dtype, vector: int, group: int, rows: int, op: int) -> Kernel:
    defines = {"STORAGE": CTYPES[dtype], "VECTOR": vector, "GROUP": group, "ROWS": rows, "ITEMS": 0, "EXACT": 0}
    return Kernel("row_reduce.cu", "row_reduce", "P P q i f", defines | {"BATCH": _BATCH, "OP": op})


def _reduce_rows(xp: Any, x: Any, rows: int, operation: str, divisor: float) -> Any:
    if opened(xp, x) is None:
        return None
    (x,) = contiguous(xp, x)
    n, out = x.size // rows, xp.empty(rows, x.dtype)
    vector = vector_of(xp, n, x)
    vectors = ceil_div(n, vector)
    group, per_block = (32, 8) if vectors <= 32 * _BATCH else (min(_WIDEST, 32 * ceil_div(vectors, 32 * _BATCH)), 1)
    blocks = ceil_div(rows, per_block)
    if blocks > MOST_BLOCKS:
        return None
    _kernel(x.dtype, vector, group, per_block, OPERATIONS[operation])((blocks, 1), (group, per_block), x, out, rows, n, divisor)
    return out
