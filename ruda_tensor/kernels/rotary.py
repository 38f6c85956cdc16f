"""Rotary positions of strided heads in one launch each way."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .gate import CTYPES, MOST_BLOCKS, aligned, ceil_div, contiguous, opened, real_of
from .launch import Kernel

HEADS, THREADS = 4, 256  # as in rotary.cu


@functools.cache
def _kernel(dtype: np.dtype, vector: int) -> Kernel:
    return Kernel("rotary.cu", "rotary", "P P P P q q q i i i i i i", {"STORAGE": CTYPES[dtype], "VECTOR": vector})


def _heads(xp: Any, x: Any) -> Any:
    """x as (outer, heads, length, width), a copy only where its last axis is strided or its leading axes do not merge."""
    if x.strides[-1] != x.dtype.itemsize or x.ndim > 4:
        (x,) = contiguous(xp, x)
    while x.ndim < 4:
        x = x[None]
    return x if x.ndim == 4 else x.reshape(1, -1, *x.shape[-2:])


def rotary(xp: Any, x: Any, cosines: Any, sines: Any, turn: int) -> Any:
    """x (..., length, width) turned by the tables (length, half), or with `turn` -1 backwards; None where the gate is shut."""
    length, half = cosines.shape
    if opened(xp, x) is None or {cosines.dtype, sines.dtype} != {real_of(x.dtype)} or half == 0:
        return None
    source, (cosines, sines) = _heads(xp, x), contiguous(xp, cosines, sines)
    out, width = xp.empty(x.shape, x.dtype), x.shape[-1]
    strides = [s // x.dtype.itemsize for s in source.strides[:3]]
    vector = 16 // x.dtype.itemsize
    straight = half % vector == 0 and width % vector == 0 and not any(s % vector for s in strides)
    vector = vector if straight and aligned(xp, source, cosines, sines, out) else 1
    across = min(32, 1 << (ceil_div(width - half, vector) - 1).bit_length())
    outer, heads = source.shape[:2]
    blocks = ceil_div(length, THREADS // across)
    grid = blocks * outer * ceil_div(heads, HEADS)
    if grid > MOST_BLOCKS:
        return None
    _kernel(x.dtype, vector)(
        (grid, 1), (across, THREADS // across), source, cosines, sines, out, *strides, heads, length, width, half, blocks, turn
    )
    return out
