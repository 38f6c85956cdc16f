"""The largest number of each window over the last two axes, and its derivative: the bindings of pool.cu."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .gate import CTYPES, ceil_div, contiguous, opened, vector_of
from .launch import Kernel

THREADS = 256
MOST_TAPS = 255  # a tap is a byte, and 255 is none
_MOST_WRITTEN_OUT = 64
_MOST = 1 << 31  # threads, numbered by 32 bits


@functools.cache
def _kernel(name: str, dtype: np.dtype, vector: int, windows: tuple) -> Kernel:
    (kh, sh, dh, ph), (kw, sw, dw, pw) = windows
    taps = {"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw, "PH": ph, "PW": pw}
    return Kernel("pool.cu", name, "P P P I i i i i", {"STORAGE": CTYPES[dtype], "VECTOR": vector, **taps})


def _takes(xp: Any, x: Any, windows: tuple) -> bool:
    return opened(xp, x) is not None and x.size < _MOST and windows[0][0] * windows[1][0] <= _MOST_WRITTEN_OUT


def max_forward(xp: Any, x: Any, *, windows: tuple, counts: tuple, size: tuple) -> Any:
    """(largest numbers, taps that won) as the plain body keeps them; None where the gate is shut.

    `windows` has (kernel, stride, dilation, padding before) of rows and of columns, `size` the sizes of these axes of x.
    """
    threads = int(np.prod(x.shape[:-2], dtype=np.int64)) * counts[0] * counts[1]
    if not _takes(xp, x, windows) or not 0 < threads < _MOST:
        return None
    (x,) = contiguous(xp, x)
    shape = (*x.shape[:-2], *counts)
    out, taps = xp.empty(shape, x.dtype), xp.empty(shape, np.uint8)
    kernel = _kernel("max_pool_forward", x.dtype, 1, windows)
    kernel((ceil_div(threads, THREADS), 1), (THREADS, 1), x, out, taps, threads, *size, *counts)
    return out, taps


def max_backward(xp: Any, g: Any, taps: Any, *, needs: tuple, windows: tuple, counts: tuple, size: tuple) -> Any:
    """(dx,): each gradient where its window's winner stood; None where the gate is shut."""
    shape = (*g.shape[:-2], *size)
    if not _takes(xp, g, windows) or int(np.prod(shape, dtype=np.int64)) >= _MOST:
        return None
    g, taps = contiguous(xp, g, taps)
    dx = xp.empty(shape, g.dtype)
    vector = vector_of(xp, size[1], dx)
    threads = dx.size // vector
    kernel = _kernel("max_pool_backward", g.dtype, vector, windows)
    kernel((ceil_div(threads, THREADS), 1), (THREADS, 1), g, taps, dx, threads, *size, *counts)
    return (dx,)
