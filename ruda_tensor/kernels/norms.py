"""layer_norm and rms_norm over the last axes: the bindings of norm_forward.cu and norm_backward.cu."""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .columns import finish, norm_columns
from .gate import CTYPES, LONGEST, ceil_div, contiguous, opened, processors, vector_of
from .launch import Kernel
from .plans import Stay, norm_plan, sums_plan

_STAY = 16  # rows that a block of the backward takes at least, so that its column sums are worth writing


@functools.cache
def _forward(dtype: np.dtype, weights: np.dtype, stay: Stay, rms: int, add: int = 0) -> Kernel:
    real = "d" if dtype == np.float64 else "f"
    defines = {"STORAGE": CTYPES[dtype], "AFFINE": CTYPES[weights], **stay.defines()}
    signature = f"P P P P P P P P P q i {real} {real}"
    return Kernel("norm_forward.cu", "norm_forward", signature, defines | {"RMS": rms, "ADD": add})


@functools.cache
def _backward(
    dtype: np.dtype, weights: np.dtype, stay: Stay, rms: int, needs: tuple, added: np.dtype | None = None
) -> Kernel:
    real = "d" if dtype == np.float64 else "f"
    defines = {"STORAGE": CTYPES[dtype], "AFFINE": CTYPES[weights], **stay.defines(), "RMS": rms}
    defines |= {"ADD": int(added is not None), "ADDED": CTYPES[dtype if added is None else added]}
    flags = {"DX": int(needs[0]), "WEIGHT": int(needs[1]), "BIAS": int(needs[2])}
    return Kernel("norm_backward.cu", "norm_backward", f"P P P P P P P P P q i {real}", defines | flags)


def _weights(x: Any, *vectors: Any) -> np.dtype:
    return next((v.dtype for v in vectors if v is not None), x.dtype)


def _row_length(x: Any, axes: int) -> int:
    n = math.prod(x.shape[x.ndim - axes :])
    return n if n <= LONGEST else 0


def _run_forward(
    xp: Any, x: Any, weight: Any, bias: Any, axes: int, eps: float, rms: int, other: Any = None
) -> Any:
    real, n = opened(xp, x, weight, bias), _row_length(x, axes)
    if real is None or not n or (other is not None and (other.dtype != x.dtype or other.shape != x.shape)):
        return None
    x, other, weight, bias = contiguous(xp, x, other, weight, bias)
    rows, out = x.size // n, xp.empty(x.shape, x.dtype)
    total = None if other is None else xp.empty(x.shape, x.dtype)
    vector, width, weights = vector_of(xp, n, x, out, weight, bias, other, total), x.dtype.itemsize, _weights(x, weight, bias)
    stay = norm_plan(n, vector, width, weights.itemsize > width, other is not None, bool(rms))
    mean, shift = (None, None) if rms else (xp.empty((rows, 1), real), xp.empty((rows, 1), real))
    scale = xp.empty((rows, 1), real)
    kernel = _forward(x.dtype, weights, stay, rms, int(other is not None))
    arrays = (x, other, weight, bias, total, out, mean, shift, scale)
    kernel(stay.grid(rows, processors(xp)), stay.plan.block(), *arrays, rows, n, 1 / n, eps)
    return total, out, mean, shift, scale


def layer_forward(xp: Any, x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """(out, mean, shift, scale) as the plain body keeps them; None where the gate is shut."""
    found = _run_forward(xp, x, weight, bias, axes, eps, 0)
    return found if found is None else found[1:]


def rms_forward(xp: Any, x: Any, weight: Any, *, axes: int, eps: float) -> Any:
    """(out, scale) as the plain body keeps them; None where the gate is shut."""
    found = _run_forward(xp, x, weight, None, axes, eps, 1)
    return found if found is None else (found[1], found[4])


def layer_forward_add(xp: Any, x: Any, other: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> Any:
    """(x + other rounded to its dtype, and of that out, mean, shift, scale) in one pass; None where the gate is shut."""
    return _run_forward(xp, x, weight, bias, axes, eps, 0, other)


def rms_forward_add(xp: Any, x: Any, other: Any, weight: Any, *, axes: int, eps: float) -> Any:
    """(x + other rounded to its dtype, and of that out, scale) in one pass; None where the gate is shut."""
    found = _run_forward(xp, x, weight, None, axes, eps, 1, other)
    return found if found is None else (found[0], found[1], found[4])


def _run_backward(
    xp: Any, g: Any, x: Any, weight: Any, mean: Any, shift: Any, scale: Any, needs: tuple, axes: int, rms: int,
    add: Any = None,
) -> Any:
    real, n = opened(xp, x, weight), _row_length(x, axes)
    if real is None or not n or g.dtype != x.dtype or scale.dtype != real:
        return None
    if weight is None and needs[2] and x.dtype != real:
        return None  # the bias may be float32, and only the dtype of the weight says so
    if add is not None and (add.dtype not in (x.dtype, real) or add.shape != x.shape or not needs[0]):
        return None
    shape, sizes = x.shape, x.shape[x.ndim - axes :]
    g, x, weight, mean, shift, scale, add = contiguous(xp, g, x, weight, mean, shift, scale, add)
    rows, dtype = x.size // n, _weights(x, weight)
    g, x = g.reshape(rows, n), x.reshape(rows, n)
    dx = xp.empty((rows, n), x.dtype) if needs[0] else None
    stay = sums_plan(n, vector_of(xp, n, x, g, weight, dx, add), x.dtype.itemsize)
    fused = stay.plan.items > 0
    columns = needs[1] + needs[2]
    partial = None
    if needs[0] or (fused and columns):
        flags = (bool(needs[0]), fused and bool(needs[1]), fused and bool(needs[2]))
        grid = stay.grid(rows, processors(xp), ceil_div(_STAY, stay.plan.rows) if columns else 1)
        partial = xp.empty((grid[0], columns * n), real) if fused and columns else None
        kernel = _backward(x.dtype, dtype, stay, rms, flags, None if add is None else add.dtype)
        arrays = (g, x, weight, mean, shift, scale, add, dx, partial)
        kernel(grid, stay.plan.block(), *arrays, rows, n, 1 / n)
    dw = db = None
    if partial is not None:
        sums = finish(xp, partial, dtype)
        dw, db = sums[:n] if needs[1] else None, sums[-n:] if needs[2] else None
    elif columns:
        dw, db = norm_columns(xp, g, x, mean, shift, scale, (needs[1], needs[2]), dtype)
    return tuple(
        None if a is None else a.reshape(s) for a, s in ((dx, shape), (dw, sizes), (db, sizes))
    )


def layer_backward(
    xp: Any, g: Any, x: Any, weight: Any, mean: Any, shift: Any, scale: Any, *, needs: tuple, axes: int, eps: float,
    add: Any = None,
) -> Any:
    """(dx, dweight, dbias), each None where it is not needed; None where the gate is shut.

    `add`, a gradient that reaches x on another way, is added to dx before that is rounded; it may be float32 beside halves.
    """
    return _run_backward(xp, g, x, weight, mean, shift, scale, needs, axes, 0, add)


def rms_backward(
    xp: Any, g: Any, x: Any, weight: Any, scale: Any, *, needs: tuple, axes: int, eps: float, add: Any = None
) -> Any:
    """(dx, dweight), each None where it is not needed; None where the gate is shut. `add`: see `layer_backward`."""
    found = _run_backward(xp, g, x, weight, None, None, scale, (*needs, False), axes, 1, add)
    return found if found is None else found[:2]
