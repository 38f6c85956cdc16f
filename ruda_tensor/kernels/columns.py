"""Sums over the rows of a matrix, in two stages and one fixed order, and the activations of x + bias."""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from .gate import CTYPES, LONGEST, ceil_div, contiguous, opened, processors, vector_of
from .launch import Kernel

ACTIVATIONS = {"relu": 0, "gelu_tanh": 1, "gelu": 2, "silu": 3}


class Tile(NamedTuple):
    """A block of `wide` x `tall` threads takes `batch` rows at a time; a multiprocessor gets about `share` blocks."""

    wide: int
    tall: int
    batch: int
    share: int

    def defines(self) -> dict[str, int]:
        return {"WIDE": self.wide, "TALL": self.tall, "BATCH": self.batch}

    def block(self) -> tuple[int, int]:
        return self.wide, self.tall

    def grid(self, rows: int, n: int, vector: int, processors: int) -> tuple[int, int]:
        """Tiles of columns, and blocks that share the rows."""
        across = ceil_div(n, self.wide * vector)
        down = ceil_div(self.share * processors, across)
        return across, max(1, min(down, ceil_div(rows, self.batch * self.tall), 65535))


OPERATIONS = {"sum": 0, "max": 1, "min": 2}  # as in math.cuh
_TILES = {
    "columns_reduce": Tile(32, 8, 4, 4),
    "bias_activation_forward": Tile(32, 8, 4, 32),
    "bias_activation_backward": Tile(32, 8, 4, 8),
    "activation_again": Tile(32, 8, 4, 8),
    "columns_norm": Tile(32, 8, 4, 4),
}
FEW = 256  # rows that are added in one launch, as if they were partial sums
NARROW = 2048  # columns; up to these, tiles of 32 would leave most multiprocessors without a block
_SIGNATURES = {
    "columns_reduce": "P P q i",
    "bias_activation_forward": "P P P q i",
    "bias_activation_backward": "P P P P P q i",
    "activation_again": "P P P P P q i",
    "columns_norm": "P P P P P P P q i",
}


def tile_of(name: str, n: int, vector: int) -> Tile:
    """The tile of a kernel over rows of n: as measured on an H200 by benchmarks/gpu_sweep.py."""
    if name == "bias_activation_forward" and vector == 8 and n % (128 * vector) == 0:
        return Tile(128, 2, 2, 32)
    tile = _TILES[name]
    more = (name == "bias_activation_backward" and vector == 4) or (name == "columns_reduce" and vector == 8)
    return tile._replace(batch=8) if more else tile


@functools.cache
def _kernel(name: str, dtype: np.dtype, weights: np.dtype, vector: int, kind: int, tile: Tile, op: int = 0) -> Kernel:
    defines = {"STORAGE": CTYPES[dtype], "AFFINE": CTYPES[weights], "VECTOR": vector, "KIND": kind, "OP": op}
    return Kernel("columns.cu", name, _SIGNATURES[name], defines | tile.defines())


@functools.cache
def _finish(dtype: np.dtype, wide: int, op: int = 0) -> Kernel:
    real = "d" if dtype == np.float64 else "f"
    return Kernel("columns_finish.cu", "columns_finish", f"P P i i {real}", {"STORAGE": CTYPES[dtype], "WIDE": wide, "OP": op})


def finish(xp: Any, partial: Any, dtype: np.dtype, op: int = 0, divisor: float = 1.0) -> Any:
    """Add the rows of partial sums (parts, n), divide and round once to `dtype`; `op` as in OPERATIONS."""
    parts, n = partial.shape
    out, wide = xp.empty(n, dtype), 8 if n <= NARROW else 32
    _finish(dtype, wide, op)((ceil_div(n, wide), 1), (wide, 1024 // wide), partial, out, parts, n, divisor)
    return out


def _matrix(xp: Any, x: Any, n: int) -> Any:
    return contiguous(xp, x)[0].reshape(x.size // n, n)


def reduce_columns(xp: Any, g: Any, n: int, dtype: np.dtype, operation: str = "sum", divisor: float = 1.0) -> Any:
    """The sum (or "max", "min") of g, seen as rows of n, over its rows, in `dtype`; None where the gate is shut."""
    real = opened(xp, g)
    if real is None or n > LONGEST or CTYPES.get(dtype) is None or (dtype.itemsize == 8) != (real.itemsize == 8):
        return None
    g, op = _matrix(xp, g, n), OPERATIONS[operation]
    rows, vector = g.shape[0], vector_of(xp, n, g)
    if rows <= FEW and g.dtype == real:
        return finish(xp, g, dtype, op, divisor)
    tile = tile_of("columns_reduce", n, vector)
    grid = tile.grid(rows, n, vector, processors(xp))
    partial = xp.empty((grid[1], n), real)
    _kernel("columns_reduce", g.dtype, g.dtype, vector, -1, tile, op)(grid, tile.block(), g, partial, rows, n)
    return finish(xp, partial, dtype, op, divisor)


def sum_columns(xp: Any, g: Any, n: int, dtype: np.dtype) -> Any:
    """The sum of g over its rows of n: a bias gradient in `dtype`; None where the gate is shut."""
    return reduce_columns(xp, g, n, dtype)


def bias_activation_forward(xp: Any, kind: str, x: Any, bias: Any) -> Any:
    """f(x + bias) along the last axis, computed in float32 and rounded once; None where the gate is shut."""
    if opened(xp, x, bias) is None or not 0 < bias.size <= LONGEST:
        return None
    n = bias.size
    source, bias = _matrix(xp, x, n), contiguous(xp, bias)[0]
    out = xp.empty(source.shape, x.dtype)
    rows, vector = source.shape[0], vector_of(xp, n, source, bias, out)
    tile = tile_of("bias_activation_forward", n, vector)
    kernel = _kernel("bias_activation_forward", x.dtype, bias.dtype, vector, ACTIVATIONS[kind], tile)
    kernel(tile.grid(rows, n, vector, processors(xp)), tile.block(), source, bias, out, rows, n)
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
    tile = tile_of("bias_activation_backward", n, vector)
    grid = tile.grid(rows, n, vector, processors(xp))
    partial = xp.empty((grid[1], n), real) if needs[1] else None
    kernel = _kernel("bias_activation_backward", x.dtype, bias.dtype, vector, ACTIVATIONS[kind], tile)
    kernel(grid, tile.block(), g, source, bias, dx, partial, rows, n)
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
    tile = tile_of("activation_again", n, vector)
    grid = tile.grid(rows, n, vector, processors(xp))
    partial = xp.empty((grid[1], n), real) if needs[1] else None
    kernel = _kernel("activation_again", x.dtype, x.dtype, vector, ACTIVATIONS[kind], tile)
    kernel(grid, tile.block(), g, x, out, g, partial, rows, n)
    return out, g, None if partial is None else finish(xp, partial, x.dtype)


def norm_columns(
    xp: Any, g: Any, x: Any, mean: Any, shift: Any, scale: Any, needs: tuple[bool, bool], dtype: np.dtype
) -> tuple[Any, Any]:
    """The weight and bias gradients of a norm over rows (rows, n), each None where it is not needed."""
    (rows, n), vector = x.shape, vector_of(xp, x.shape[1], x, g)
    tile = tile_of("columns_norm", n, vector)
    grid = tile.grid(rows, n, vector, processors(xp))
    parts = [xp.empty((grid[1], n), scale.dtype) if need else None for need in needs]
    kernel = _kernel("columns_norm", x.dtype, x.dtype, vector, -2, tile)
    kernel(grid, tile.block(), g, x, mean, shift, scale, *parts, rows, n)
    dw, db = (None if part is None else finish(xp, part, dtype) for part in parts)
    return dw, db
