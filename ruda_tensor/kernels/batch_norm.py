"""Normalization of channels over images and their area, (N, C, L), as they lie: the bindings of batch_norm.cu."""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .columns import finish
from .gate import CTYPES, LONGEST, ceil_div, contiguous, opened, vector_of
from .launch import Kernel

THREADS = 256
SHORTEST = 16  # numbers in a row of a channel: less than that, and most of what is fetched belongs to other channels
_HELD = 32  # numbers of a thread
_MOST_CHANNELS = 65535
_SIGNATURES = {
    "batch_moments": "P P q i i",
    "batch_moments_finish": "P P P P q i i",
    "batch_running": "P P P P P P P i {real} {real}",
    "batch_norm_forward": "P P P P P P P P q i i {real}",
    "batch_sums": "P P P P P q i i",
    "batch_norm_backward": "P P P P P P P P P P q i i",
}


@functools.cache
def _kernel(name: str, dtype: np.dtype, weights: np.dtype, vector: int, dots: int = 0) -> Kernel:
    real = "d" if dtype == np.float64 else "f"
    items = _HELD // max(vector, 4)
    defines = {"STORAGE": CTYPES[dtype], "AFFINE": CTYPES[weights], "VECTOR": vector, "ITEMS": items, "DOTS": dots}
    return Kernel("batch_norm.cu", name, _SIGNATURES[name].format(real=real), defines)


class _Channels:
    """(N, C, L) in parts of channels."""

    def __init__(self, xp: Any, first: Any, *others: Any) -> None:
        n, self.c, self.length = first.shape[0], first.shape[1], math.prod(first.shape[2:])
        self.size = n * self.length
        self.vector = vector_of(xp, self.length, first, *others)
        self.parts = ceil_div(self.size, THREADS * self.vector * (_HELD // max(self.vector, 4)))
        self.grid = (self.parts, self.c)
        self.sizes = (self.size, self.c, self.length)


def long_enough(x: Any) -> bool:
    """True where the rows of the channels of (N, C, ...) are worth the kernels."""
    return x.ndim > 2 and 0 < x.shape[1] <= _MOST_CHANNELS and SHORTEST <= math.prod(x.shape[2:]) <= LONGEST


def _takes(xp: Any, x: Any, *weights: Any) -> np.dtype | None:
    """The dtype of statistics where the kernels take (N, C, ...), else None."""
    return opened(xp, x, *weights) if long_enough(x) and x.shape[0] <= LONGEST else None


def moments(xp: Any, x: Any) -> Any:
    """(m, shift, variance) of the channels of (N, C, L), each (1, C, 1): the mean is m + shift. None where the gate is shut."""
    real = _takes(xp, x)
    if real is None:
        return None
    (x,) = contiguous(xp, x)
    at = _Channels(xp, x)
    parts = xp.empty((at.parts, at.c, 3), real)
    _kernel("batch_moments", x.dtype, x.dtype, at.vector)(at.grid, (THREADS, 1), x, parts, *at.sizes)
    found = tuple([xp.empty((1, at.c, 1), real) for _ in range(3)])
    last = _kernel("batch_moments_finish", x.dtype, x.dtype, at.vector)
    last((ceil_div(at.c, THREADS // 32), 1), (THREADS, 1), parts, *found, at.size, at.parts, at.c)
    return found


def running(xp: Any, m: Any, shift: Any, variance: Any, old: tuple, momentum: float, unbiased: float) -> Any:
    """The running mean and variance after one more batch, of which `unbiased` times the variance; None where the gate is shut."""
    real = opened(xp, m)
    arrays = (m, shift, variance, *old)
    if real is None or any(a.dtype != real or not a.flags.c_contiguous for a in arrays):
        return None
    found = tuple([xp.empty(a.shape, real) for a in old])
    kernel = _kernel("batch_running", m.dtype, m.dtype, 4)
    kernel((ceil_div(m.size, THREADS), 1), (THREADS, 1), *arrays, *found, m.size, momentum, unbiased)
    return found


def forward(xp: Any, x: Any, weight: Any, bias: Any, m: Any, shift: Any, variance: Any, *, eps: float) -> Any:
    """(out, r) as the plain body keeps them; None where the gate is shut."""
    real = _takes(xp, x, weight, bias)
    if real is None or not m.dtype == shift.dtype == variance.dtype == real:
        return None
    x, weight, bias, m, shift, variance = contiguous(xp, x, weight, bias, m, shift, variance)
    out, r = xp.empty(x.shape, x.dtype), xp.empty(variance.shape, real)
    at, weights = _Channels(xp, x, out), next((w.dtype for w in (weight, bias) if w is not None), x.dtype)
    kernel = _kernel("batch_norm_forward", x.dtype, weights, at.vector)
    kernel(at.grid, (THREADS, 1), x, weight, bias, m, shift, variance, out, r, *at.sizes, eps)
    return out, r


def _summed(xp: Any, at: _Channels, g: Any, x: Any, m: Any, shift: Any, dtype: np.dtype) -> Any:
    """The sums of g over each channel and, with an x, those of g (x - m - shift) after them, in `dtype`."""
    dots = int(x is not None)
    parts = xp.empty((at.parts, (1 + dots) * at.c), np.float64 if g.dtype == np.float64 else np.float32)
    _kernel("batch_sums", g.dtype, g.dtype, at.vector, dots)(at.grid, (THREADS, 1), g, x, m, shift, parts, *at.sizes)
    return finish(xp, parts, dtype)


def backward(
    xp: Any, g: Any, x: Any, weight: Any, m: Any, shift: Any, r: Any, *, needs: tuple, eps: float
) -> Any:
    """(dx, dweight, dbias, None, None, None), dx None where it is not needed; None where the gate is shut."""
    real = _takes(xp, x, weight)
    if real is None or g.dtype != x.dtype or r.dtype != real:
        return None
    if weight is None and needs[2] and x.dtype != real:
        return None  # the bias may be float32, and only the dtype of the weight says so
    g, x, weight, m, shift, r = contiguous(xp, g, x, weight, m, shift, r)
    dx = xp.empty(x.shape, x.dtype) if needs[0] else None
    at, weights = _Channels(xp, x, g, dx), x.dtype if weight is None else weight.dtype
    sums = _summed(xp, at, g, x, m, shift, real)
    dw, db = xp.empty(at.c, weights), xp.empty(at.c, weights)
    kernel = _kernel("batch_norm_backward", x.dtype, weights, at.vector)
    grid = at.grid if needs[0] else (1, at.c)
    kernel(grid, (THREADS, 1), g, x, weight, m, shift, r, sums, dx, dw, db, *at.sizes)
    return dx, dw, db, None, None, None


def channel_sums(xp: Any, g: Any) -> Any:
    """The sum of g (N, C, ...) over all axes but the channels', rounded once; None where the gate is shut."""
    if _takes(xp, g) is None:
        return None
    (g,) = contiguous(xp, g)
    return _summed(xp, _Channels(xp, g), g, None, None, None, g.dtype)
