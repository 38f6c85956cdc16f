"""Sums over the rows of a matrix, in two stages and one fixed order, and the activations of x + bias."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .gate import CTYPES, LONGEST, ceil_div, contiguous, opened, processors, vector_of
from .launch import Kernel

ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "gelu": 2, "silu": 3}
TALL = 8  # as in columns.cu
_SIGNATURES = {
    "columns_sum": "P P q i",
    "bias_activation_forward": "P P P q i",
    "bias_activation_backward": "P P P P P q i",
    "activation_again": "P P P P P q i",
    "columns_norm": "P P P P P P P q i",
}


@functools.cache
def _kernel(name: str, dtype: np.dtype, weights: np.dtype, vector: int, kind: int) -> Kernel:
    defines = {"STORAGE": CTYPES[dtype], "AFFINE": CTYPES[weights], "VECTOR": vector, "KIND": kind}
    return Kernel("columns.cu", name, _SIGNATURES[name], defines)


@functools.cache
def _finish(dtype: np.dtype) -> Kernel:
    return Kernel("columns_finish.cu", "columns_finish", "P P i i", {"STORAGE": CTYPES[dtype]})


def finish(xp: Any, partial: Any, dtype: np.dtype) -> Any:
    """Add the rows of partial sums (parts, n), and round once to `dtype`."""
    parts, n = partial.shape
    out = xp.empty(n, dtype)
    _finish(dtype)((ceil_div(n, 32), 1), (32, 32), partial, out, parts, n)
    return out


def tiles(xp: Any, rows: int, n: int, vector: int, per_processor: int = 4) -> tuple[int, int]:
    """The grid of columns.cu: tiles of columns, and blocks that share the rows, about four blocks per multiprocessor."""
    across = ceil_div(n, 32 * vector)
    down = ceil_div(per_processor * processors(xp), across)
    return across, max(1, min(down, ceil_div(rows, 4 * TALL), 65535))


def _matrix(xp: Any, x: Any, n: int) -> Any:
    return contiguous(xp, x)[0].reshape(x.size // n, n)


def sum_columns(xp: Any, g: Any, n: int, dtype: np.dtype) -> Any:
    """The sum of g, seen as rows of n, over its rows: a bias gradient in `dtype`; None where the gate is shut."""
    real = opened(xp, g)
    if real is None or n > LONGEST or CTYPES.get(dtype) is None or (dtype.itemsize == 8) != (real.itemsize == 8):
        return None
    g = _matrix(xp, g, n)
    rows, vector = g.shape[0], vector_of(xp, n, g)
    grid = tiles(xp, rows, n, vector)
    partial = xp.empty((grid[1], n), real)
    _kernel("columns_sum", g.dtype, g.dtype, vector, -1)(grid, (32, TALL), g, partial, rows, n)
    return finish(xp, partial, dtype)


def bias_activation_forward(xp: Any, kind: str, x: Any, bias: Any) -> Any:
    """f(x + bias) along the last axis, computed in float32 and rounded once; None where the gate is shut."""
    if opened(xp, x, bias) is None or not 0 < bias.size <= LONGEST:
        return None
    n = bias.size
    source, bias = _matrix(xp, x, n), contiguous(xp, bias)[0]
    out = xp.empty(source.shape, x.dtype)
    rows, vector = source.shape[0], vector_of(xp, n, source, bias, out)
    kernel = _kernel("bias_activation_forward", x.dtype, bias.dtype, vector, ACTIVATIONS[kind])
    kernel(tiles(xp, rows, n, vector, 8), (32, TALL), source, bias, out, rows, n)
    return out.reshape(x.shape)


def bias_activation_backward(xp: Any, kind: str, g: Any, x: Any, bias: Any, needs: tuple[bool, bool]) -> Any:
    """(dx, dbias) of f(x + bias), each None where it is not needed; None where the gate is shut."""
    real = opened(xp, x, bias)
    if real is None or g.dtype != x.dtype or not 0 < bias.size <= LONGEST:
        return None
    n = bias.size
    g, source, bias = _matrix(xp, g, n), _matrix(xp, x, n), contiguous(xp, bias)[0]
    dx = xp.empty(source.shape, x.dtype) if needs[0] else None
    rows, vector = source.shape[0], vector_of(xp, n, g, source, bias, dx)
    grid = tiles(xp, rows, n, vector)
    partial = xp.empty((grid[1], n), real) if needs[1] else None
    kernel = _kernel("bias_activation_backward", x.dtype, bias.dtype, vector, ACTIVATIONS[kind])
    kernel(grid, (32, TALL), g, source, bias, dx, partial, rows, n)
    return None if dx is None else dx.reshape(x.shape), None if partial is None else finish(xp, partial, bias.dtype)


def activation_again(xp: Any, kind: str, g: Any, x: Any, needs: tuple[bool, bool]) -> Any:
    """(f(x), dx, sums of dx over rows), the first and the last None where not needed; None where the gate is shut.

    g is given away: dx is written over it.
    """
    real = opened(xp, x)
    n = x.shape[-1] if x.ndim else 0
    if real is None or g.dtype != x.dtype or not 0 < n <= LONGEST or not g.flags.c_contiguous:
        return None
    x = contiguous(xp, x)[0]
    rows, vector = x.size // n, vector_of(xp, n, g, x)
    out = xp.empty(x.shape, x.dtype) if needs[0] else None
    grid = tiles(xp, rows, n, vector)
    partial = xp.empty((grid[1], n), real) if needs[1] else None
    kernel = _kernel("activation_again", x.dtype, x.dtype, vector, ACTIVATIONS[kind])
    kernel(grid, (32, TALL), g, x, out, g, partial, rows, n)
    return out, g, None if partial is None else finish(xp, partial, x.dtype)


def norm_columns(
    xp: Any, g: Any, x: Any, mean: Any, shift: Any, scale: Any, needs: tuple[bool, bool], dtype: np.dtype
) -> tuple[Any, Any]:
    """The weight and bias gradients of a norm over rows (rows, n), each None where it is not needed."""
    (rows, n), vector = x.shape, vector_of(xp, x.shape[1], x, g)
    grid = tiles(xp, rows, n, vector)
    parts = [xp.empty((grid[1], n), scale.dtype) if need else None for need in needs]
    kernel = _kernel("columns_norm", x.dtype, x.dtype, vector, -2)
    kernel(grid, (32, TALL), g, x, mean, shift, scale, *parts, rows, n)
    dw, db = (None if part is None else finish(xp, part, dtype) for part in parts)
    return dw, db
