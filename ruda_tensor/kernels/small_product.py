"""float32 products that are too small to fill a GPU: the bindings of small_product.cu.

cuBLASLt takes a tile of 64 or 128 rows, or splits the inner dimension and adds in a second launch; with 64 rows of a batch
most multiprocessors then have nothing to do.
"""
from __future__ import annotations

import functools
from typing import Any

from ..dtypes import FLOAT32
from .gate import ceil_div, fused, processors
from .launch import Kernel, runtime

MOST_NUMBERS, MOST_STEPS, MOST_PRODUCTS = 1 << 18, 1 << 11, 1 << 24  # of the result, along k, and in all
FARTHEST = 1 << 31  # elements that a 32-bit stride may lead to
CHUNK = 64  # steps of k that are fetched together


@functools.cache
def _kernel(tile: int, x_dense: bool, y_dense: bool) -> Kernel:
    defines = {"TILE": tile, "CHUNK": CHUNK, "X_DENSE": int(x_dense), "Y_DENSE": int(y_dense)}
    return Kernel("small_product.cu", "small_product", "P P P P i i i i i i i", defines)


@functools.cache
def _backward(tile: int) -> Kernel:
    defines = {"TILE": tile, "CHUNK": CHUNK, "X_DENSE": 1, "Y_DENSE": 0}
    return Kernel("small_product.cu", "small_linear_backward", "P P P P P P i i i i", defines)


@functools.lru_cache(maxsize=4096)
def _planned(x: tuple, x_strides: tuple, y: tuple, y_strides: tuple, count: int) -> tuple[Kernel, tuple, tuple] | None:
    """The kernel for matrices of these shapes and strides in bytes, its grid and its numbers; None where they are large."""
    (m, k), n = x, y[1]
    if not 0 < m * n <= MOST_NUMBERS or not 0 < k <= MOST_STEPS or m * n * k > MOST_PRODUCTS:
        return None
    steps = [s // 4 for s in (*x_strides, *y_strides[::-1])]
    if max(m * steps[0] + k * steps[1], n * steps[2] + k * steps[3]) >= FARTHEST:
        return None
    tile = 16 if ceil_div(m, 32) * ceil_div(n, 32) < count else 32
    return _kernel(tile, steps[1] == 1, steps[3] == 1), (ceil_div(n, tile), ceil_div(m, tile)), (m, n, k, *steps)


def product(xp: Any, x: Any, y: Any, bias: Any = None) -> Any:
    """x @ y + bias of two float32 matrices, or None where they are large, or kernels are off."""
    if x.ndim != 2 or y.ndim != 2 or x.dtype != FLOAT32 or y.dtype != FLOAT32 or not fused() or runtime(xp) is None:
        return None
    if bias is not None and (bias.dtype != FLOAT32 or not bias.flags.c_contiguous):
        return None
    count, x_strides, y_strides = processors(xp), x.strides, y.strides
    plan = _planned(x.shape, x_strides, y.shape, y_strides, count)
    if plan is not None and min(*x_strides, *y_strides) < 0:  # copied, so that they give the bits of a copy
        x, y = xp.ascontiguousarray(x), xp.ascontiguousarray(y)
        plan = _planned(x.shape, x.strides, y.shape, y.strides, count)
    if plan is None:
        return None
    kernel, grid, numbers = plan
    out = xp.empty(numbers[:2], FLOAT32)
    kernel(grid, (256, 1), x, y, bias, out, *numbers)
    return out


@functools.lru_cache(maxsize=4096)
def _backward_planned(m: int, k: int, n: int, needs: tuple[bool, bool, bool], count: int) -> tuple[Kernel, tuple, int]:
    """The kernel, its grid, and how many blocks of it make dx."""
    rows = k * needs[1] + needs[2]

    def blocks(tile: int) -> tuple[int, int]:
        first = ceil_div(m, tile) * ceil_div(k, tile) if needs[0] else 0
        return first, first + ceil_div(rows, tile) * ceil_div(n, tile)

    tile = 16 if blocks(32)[1] < count else 32
    first, both = blocks(tile)
    return _backward(tile), (both, 1), first


def fits(m: int, k: int, n: int) -> bool:
    """True where a layer of these sizes, x (m, k) and w (k, n), makes small products alone, forward and backward."""
    small = 0 < min(m, k, n) and max(m, k, n) <= MOST_STEPS and m * k * n <= MOST_PRODUCTS
    return small and max(m * k, m * n, k * n) <= MOST_NUMBERS


def linear_backward(xp: Any, g: Any, x: Any, w: Any, needs: tuple[bool, bool, bool]) -> tuple | None:
    """(g w^T, x^T g, column sums of g), None for what is not needed, in one launch; or None, as `product`.

    x and w are in row-major order and `fits` takes their sizes. The sums over rows of g are those of a product with ones.
    """
    if not fused() or runtime(xp) is None or not (x.flags.c_contiguous and w.flags.c_contiguous):
        return None
    (m, k), n = x.shape, w.shape[1]
    kernel, grid, first = _backward_planned(m, k, n, needs, processors(xp))
    dx = xp.empty((m, k), FLOAT32) if needs[0] else None
    dw = xp.empty((k, n), FLOAT32) if needs[1] else None
    db = xp.empty(n, FLOAT32) if needs[2] else None
    kernel(grid, (256, 1), g if g.flags.c_contiguous else xp.ascontiguousarray(g), x, w, dx, dw, db, m, k, n, first)
    return dx, dw, db
