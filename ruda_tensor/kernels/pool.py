"""The largest number or the mean of each window over the last two axes, and their derivatives: the bindings of pool.cu."""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .gate import CTYPES, ceil_div, contiguous, opened, vector_of
from .launch import Kernel

THREADS = 256
MOST_TAPS = 255  # a tap is a byte, and 255 is none
_MOST_WRITTEN_OUT = 64
_MOST = 1 << 31  # threads, numbered by 32 bits


_SIGNATURES = {"max": "P P P I i i i i", "avg": "P P I i i i i"}


@functools.cache
def _kernel(name: str, dtype: np.dtype, vector: int, windows: tuple, include: bool = True) -> Kernel:
    (kh, sh, dh, ph), (kw, sw, dw, pw) = windows
    taps = {"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw, "PH": ph, "PW": pw}
    defines = {"STORAGE": CTYPES[dtype], "VECTOR": vector, **taps, "INCLUDE": int(include)}
    return Kernel("pool.cu", name, _SIGNATURES[name[:3]], defines)


def _takes(xp: Any, x: Any, windows: tuple, shape: tuple) -> bool:
    """True where the kernels make an array of this shape from x."""
    few = windows[0][0] * windows[1][0] <= _MOST_WRITTEN_OUT
    return few and opened(xp, x) is not None and x.size < _MOST and 0 < math.prod(shape) < _MOST


def _run(kernel: Kernel, threads: int, *arguments: Any) -> None:
    kernel((ceil_div(threads, THREADS), 1), (THREADS, 1), *arguments)


def max_forward(xp: Any, x: Any, *, windows: tuple, counts: tuple, size: tuple) -> Any:
    """(largest numbers, taps that won) as the plain body keeps them; None where the gate is shut.

    `windows` has (kernel, stride, dilation, padding before) of rows and of columns, `size` the sizes of these axes of x.
    """
    shape = (*x.shape[:-2], *counts)
    if not _takes(xp, x, windows, shape):
        return None
    (x,) = contiguous(xp, x)
    out, taps = xp.empty(shape, x.dtype), xp.empty(shape, np.uint8)
    _run(_kernel("max_pool_forward", x.dtype, 1, windows), out.size, x, out, taps, out.size, *size, *counts)
    return out, taps


def max_backward(xp: Any, g: Any, taps: Any, *, needs: tuple, windows: tuple, counts: tuple, size: tuple) -> Any:
    """(dx,): each gradient where its window's winner stood; None where the gate is shut."""
    shape = (*g.shape[:-2], *size)
    if not _takes(xp, g, windows, shape):
        return None
    g, taps = contiguous(xp, g, taps)
    dx = xp.empty(shape, g.dtype)
    vector = vector_of(xp, size[1], dx)
    threads = dx.size // vector
    _run(_kernel("max_pool_backward", g.dtype, vector, windows), threads, g, taps, dx, threads, *size, *counts)
    return (dx,)


def avg_forward(xp: Any, x: Any, *, windows: tuple, counts: tuple, size: tuple, include: bool) -> Any:
    """The means of windows; `include`: padding counts as zeros. None where the gate is shut."""
    shape = (*x.shape[:-2], *counts)
    if not _takes(xp, x, windows, shape):
        return None
    (x,) = contiguous(xp, x)
    out = xp.empty(shape, x.dtype)
    _run(_kernel("avg_pool_forward", x.dtype, 1, windows, include), out.size, x, out, out.size, *size, *counts)
    return out


def avg_backward(xp: Any, g: Any, *, needs: tuple, windows: tuple, counts: tuple, size: tuple, include: bool) -> Any:
    """(dx,): of each gradient its share for every number of its window; None where the gate is shut."""
    shape = (*g.shape[:-2], *size)
    if not _takes(xp, g, windows, shape):
        return None
    (g,) = contiguous(xp, g)
    dx = xp.empty(shape, g.dtype)
    vector = vector_of(xp, size[1], dx)
    threads = dx.size // vector
    _run(_kernel("avg_pool_backward", g.dtype, vector, windows, include), threads, g, dx, threads, *size, *counts)
    return (dx,)
