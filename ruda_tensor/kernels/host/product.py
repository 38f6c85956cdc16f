"""Products of two matrices in float32: the compiled body, or None where BLAS is to do it.

Each number is summed up in the same order wherever it stands, so a product may be cut for any number of cores.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import threads
from .. import host
from . import FLOAT32, address, function
from .pool import WIDTH, share

LEAST, MOST = 100**3 + 1, 1 << 29  # multiplications; OpenBLAS has kernels of its own below, and is as fast above
BIASED = 1 << 17  # and at the least with a bias, which would take another pass
ROWS, STEPS, COLUMNS = 8, 8, 9  # the fewest
# A first matrix that is read across its rows needs so many columns, or NARROW if it has HUGE many numbers. Where it has
# LARGE many and its rows are so many floats APART, they fall out of the caches.
ACROSS, NARROW, HUGE, LARGE, APART = 32, 128, 1 << 19, 1 << 17, 900
SHARED = 1 << 21  # multiplications that are work for more cores than one
VECTOR = 16  # columns of a vector
REST = (0,) * (WIDTH - 6)
PLANS = 1024
_plans: dict[tuple, Any] = {}


def product(x: Any, y: Any, bias: Any = None, residual: Any = None) -> Any:
    """x @ y of NumPy arrays of one dtype, plus a row where there is a bias, plus a residual of its shape; or None."""
    if not host._enabled or x.dtype is not FLOAT32:
        return None
    layouts = x.shape, x.strides, y.shape, y.strides, bias is None
    plan = _plans.get(layouts, _plans)
    if plan is _plans:
        plan = _planned(layouts)
    if plan is None:
        return None
    call, struct, table, shape, _ = plan
    if bias is not None:
        bias = np.ascontiguousarray(bias)
    if residual is not None:
        residual = np.ascontiguousarray(residual)
    a, b, c, d = address(x), address(y), address(bias), address(residual)
    if (a | b | c | d) & 3:
        return None
    out = np.empty(shape, FLOAT32)
    if table is None:
        call(struct, a, b, c, address(out), d)
    else:
        parts = table + np.array((0, a, b, c, address(out), d, *REST))
        if not d:
            parts[:, 5] = 0
        share(call, parts)
    return out


def _planned(layouts: tuple) -> tuple | None:
    """The function, its struct, or a table of its parts, the result's shape, and what owns the structs; kept for the next.

    A row of the table is where the part's struct is, and how far on its pieces of a, b, the bias, the result and the residual
    are.
    """
    x_shape, x, y_shape, y, alone = layouts
    plan = None
    if len(x_shape) == 2 == len(y_shape) and x_shape[1] == y_shape[0]:
        sizes = _sizes(x_shape[0], x_shape[1], y_shape[1], x, y, LEAST if alone else BIASED)
        if sizes is not None and (usable := function("product", "usable", ">n")) is not None and usable():
            held = [np.array(part, np.int64) for part in _cut(*sizes)]
            parts = [(address(h) + 32, *(4 * h[:4]).tolist(), 4 * int(h[3])) for h in held]
            if alone:
                parts = [(at, a, b, 0, *out) for at, a, b, _, *out in parts]
            table = None if len(parts) == 1 else np.array([(*part, *REST) for part in parts])
            plan = function("product", "product", "pppppp"), parts[0][0], table, (sizes[0], sizes[1]), held
    if len(_plans) >= PLANS:
        _plans.clear()
    _plans[layouts] = plan
    return plan


def _cut(m: int, n: int, k: int, a_row: int, a_step: int, b_step: int, b_column: int) -> list[list[int]]:
    """Parts for all cores: how many floats on they begin in a, b, bias and out, and their struct."""
    cores = threads() if m * n * k >= SHARED else 1
    down = m >= n
    along, least = (m, ROWS) if down else (n, VECTOR)
    step = -(-along // (cores * least)) * least
    found = []
    for i in range(0, along, step):
        some = min(step, along - i)
        size = (some, n) if down else (m, some)
        on = (i * a_row, 0, 0, i * n) if down else (0, i * b_column, i, i)
        found.append([*on, *size, k, a_row, a_step, b_step, b_column, n])
    return found


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
