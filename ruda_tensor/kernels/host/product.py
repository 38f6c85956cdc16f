"""Products of two matrices in float32 on one thread: the compiled body, or None where BLAS is to do it.

The threads of a BLAS wait for work in a loop and share a product within microseconds, which `each_block` cannot.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import threads
from .. import host
from . import FLOAT32, address, function

LEAST, MOST = 100**3 + 1, 1 << 29  # multiplications; OpenBLAS has kernels of its own below, and is as fast above
BIASED = 1 << 17  # and at the least with a bias, which would take another pass
ROWS, STEPS, COLUMNS = 8, 8, 9  # the fewest
# A first matrix that is read across its rows needs so many columns, or NARROW if it has HUGE many numbers. Where it has
# LARGE many and its rows are so many floats APART, they fall out of the caches.
ACROSS, NARROW, HUGE, LARGE, APART = 32, 128, 1 << 19, 1 << 17, 900
PLANS = 1024
_plans: dict[tuple, Any] = {}


def product(x: Any, y: Any, bias: Any = None) -> Any:
    """x @ y of NumPy arrays of one dtype, plus a row where there is a bias; or None."""
    if not host._enabled or x.dtype is not FLOAT32:
        return None
    layouts = x.shape, x.strides, y.shape, y.strides, bias is None
    plan = _plans.get(layouts, _plans)
    if plan is _plans:
        plan = _planned(layouts)
    if plan is None:
        return None
    call, sizes, shape, _ = plan
    if bias is not None:
        bias = np.ascontiguousarray(bias)
    a, b, c = address(x), address(y), address(bias)
    if (a | b | c) & 3:
        return None
    out = np.empty(shape, FLOAT32)
    call(sizes, a, b, c, address(out))
    return out


def _planned(layouts: tuple) -> tuple | None:
    """The function, the struct's place, the result's shape, and what owns the struct; kept for the next such product."""
    x_shape, x, y_shape, y, alone = layouts
    plan = None
    if threads() == 1 and len(x_shape) == 2 == len(y_shape) and x_shape[1] == y_shape[0]:
        sizes = _sizes(x_shape[0], x_shape[1], y_shape[1], x, y, LEAST if alone else BIASED)
        if sizes is not None and (usable := function("product", "usable", ">n")) is not None and usable():
            held = np.array(sizes, np.int64)
            plan = function("product", "product", "ppppp"), address(held), (sizes[0], sizes[1]), held
    if len(_plans) >= PLANS:
        _plans.clear()
    _plans[layouts] = plan
    return plan


def _sizes(m: int, k: int, n: int, x: tuple, y: tuple, least: int) -> list[int] | None:
    """The struct of product.c by the strides `x` and `y` in bytes; None for layouts and sizes that BLAS is to do."""
    a_row, a_step = (x[0] if m > 1 else 4), (x[1] if k > 1 else 4)
    b_step, b_column = (y[0] if k > 1 else 4), (y[1] if n > 1 else 4)
    if not least <= m * n * k <= MOST or m < ROWS or k < STEPS or n < COLUMNS:
        return None
    if a_step != 4 and (
        a_row != 4
        or n < (NARROW if m * k >= HUGE else ACROSS)
        or (m * k >= LARGE and a_step >= 4 * APART)
        or m * n * k > MOST // 2
    ):
        return None
    if 4 not in (b_step, b_column) or any(s % 4 for s in (a_row, a_step, b_step, b_column)):
        return None
    return [m, n, k, a_row // 4, a_step // 4, b_step // 4, b_column // 4]
