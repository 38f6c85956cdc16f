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
_CHUNKS = {16: 128, 32: 64}  # steps of k that are fetched together, by the side of a tile


@functools.cache
def _kernel(tile: int, x_dense: bool, y_dense: bool) -> Kernel:
    signature = "P P P P i i i i i i i"
    defines = {"TILE": tile, "CHUNK": _CHUNKS[tile], "X_DENSE": int(x_dense), "Y_DENSE": int(y_dense)}
    return Kernel("small_product.cu", "small_product", signature, defines)


def product(xp: Any, x: Any, y: Any, bias: Any = None) -> Any:
    """x @ y + bias of two float32 matrices, or None where they are large, or kernels are off."""
    if x.ndim != 2 or y.ndim != 2 or x.dtype != FLOAT32 or y.dtype != FLOAT32 or not fused() or runtime(xp) is None:
        return None
    (m, k), n = x.shape, y.shape[1]
    if not 0 < m * n <= MOST_NUMBERS or not 0 < k <= MOST_STEPS or m * n * k > MOST_PRODUCTS:
        return None
    if min(*x.strides, *y.strides) < 0:  # copied, so that they give the bits of a copy
        x, y = xp.ascontiguousarray(x), xp.ascontiguousarray(y)
    steps = [s // 4 for s in (*x.strides, *y.strides[::-1])]
    if max(m * steps[0] + k * steps[1], n * steps[2] + k * steps[3]) >= FARTHEST:
        return None
    if bias is not None and (bias.dtype != FLOAT32 or not bias.flags.c_contiguous):
        return None
    tile = 16 if ceil_div(m, 32) * ceil_div(n, 32) < processors(xp) else 32
    out = xp.empty((m, n), FLOAT32)
    kernel = _kernel(tile, steps[1] == 1, steps[3] == 1)
    kernel((ceil_div(n, tile), ceil_div(m, tile)), (256, 1), x, y, bias, out, m, n, k, *steps)
    return out
