"""Picking rows by number, and adding rows by number without atomics: the same input gives the same bits."""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import backend
from .gate import CTYPES, MOST_BLOCKS, ceil_div, contiguous, fused, opened, vector_of
from .launch import Kernel, runtime

PIECE = 512  # rows that one thread of the CuPy body adds where segments are long
THREADS, TALL, BATCH = 256, 8, 4  # as in segments.cu and take_rows.cu
_ONE, _FEW, _MANY = (8, 4), (8, 2), (8, 8)  # (warps, keys per lane) of one block, of few and of many blocks
_FEWEST = 64  # more blocks than these have their totals added by a launch of its own
_RADIX, _DIGIT = 256, 8
_SORTS = {
    "sort_ids_block": "P P P q q i",
    "sort_ids_count": "P P P q q i",
    "sort_ids_scan": "P P q",
    "sort_ids_scatter": "P P P P P q q i",
}


@functools.cache
def _sort(name: str, shape: tuple[int, int]) -> Kernel:
    return Kernel("sort_ids.cu", name, _SORTS[name], {"WARPS": shape[0], "ITEMS": shape[1]})


@functools.cache
def _sum(name: str, dtype: np.dtype, vector: int) -> Kernel:
    signature = "P P P P q q q i i" if name == "segments_sum" else "P P P q q q i i"
    return Kernel("segments.cu", name, signature, {"STORAGE": CTYPES[dtype], "VECTOR": vector})


@functools.cache
def _take(unit: int) -> Kernel:
    return Kernel("take_rows.cu", "take_rows", "P P P q q q", {"UNIT": unit})


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()


def sort_ids(xp: Any, ids: Any, size: int) -> Any:
    """The n ids of rows ascending and, behind them, their places, ascending among equal ones: 2 n numbers, uint32.

    Ids are int64, contiguous; negative ones count from the end, and those that are none of `size` rows become `size`.
    """
    n, passes = ids.size, ceil_div(max(1, size.bit_length()), _DIGIT)
    one, two = xp.empty(2 * n, np.uint32), xp.empty(2 * n if passes > 1 else 2, np.uint32)
    if n <= _room(_ONE):
        _sort("sort_ids_block", _ONE)((1, 1), (32 * _ONE[0], 1), ids, one, two, n, size, passes)
        return one if passes & 1 else two
    shape = _FEW if n <= _FEWEST * _room(_FEW) else _MANY
    block, blocks = (32 * shape[0], 1), ceil_div(n, _room(shape))
    totals, sums = xp.empty(_RADIX * blocks, np.uint32), xp.empty(_RADIX, np.uint32) if blocks > _FEWEST else None
    source, target = two, one
    for at in range(passes):
        first, shift = None if at else ids, at * _DIGIT
        _sort("sort_ids_count", shape)((blocks, 1), block, first, source, totals, n, size, shift)
        if sums is not None:
            _sort("sort_ids_scan", shape)((_RADIX, 1), block, totals, sums, blocks)
        _sort("sort_ids_scatter", shape)((blocks, 1), block, first, source, target, totals, sums, n, size, shift)
        source, target = target, source
    return source


def _room(shape: tuple[int, int]) -> int:
    """The keys of one block."""
    return 32 * shape[0] * shape[1]


def _piece(n: int) -> int:
    """Places of the sorted order per tile: few enough to fill the GPU, and at most 4096 tiles."""
    return max(32, _power(n // 2048))


def _adds(xp: Any, rows: Any, size: int) -> bool:
    """Whether the kernels add these rows (n, width) into `size` rows."""
    return opened(xp, rows) is not None and 0 < size < 2**31 and len(rows) < 2**31


def _add(xp: Any, rows: Any, ids: Any, out: Any, adding: bool) -> Any:
    rows, ids = contiguous(xp, rows, ids)
    (n, width), size = rows.shape, len(out)
    keys = sort_ids(xp, ids, size)
    vector, piece = vector_of(xp, width, rows, out), _piece(n)
    lanes, tiles = ceil_div(width, vector), ceil_div(n, piece)
    partial = xp.empty((2 * tiles, width), np.float64 if rows.dtype == np.float64 else np.float32)
    across = min(32, _power(lanes))
    grid, block = (ceil_div(lanes, across), ceil_div(tiles, THREADS // across)), (across, THREADS // across)
    _sum("segments_sum", rows.dtype, vector)(grid, block, rows, keys, out, partial, n, width, size, piece, int(adding))
    if tiles > 1:
        kernel = _sum("segments_finish", rows.dtype, vector)
        kernel((ceil_div(lanes, 32), tiles), (32, TALL), keys, out, partial, n, width, size, piece, int(adding))
    return out


def accumulate(xp: Any, rows: Any, ids: Any, size: int) -> Any:
    """Rows (size, width) of which number s is the sum of rows[i] with ids[i] == s; None where the gate is shut.

    Summed in float32 or wider in the order of i, in two stages, and rounded once. Ids that are no row add nothing.
    """
    if not _adds(xp, rows, size):
        return None
    return _add(xp, rows, ids, xp.zeros((size, rows.shape[1]), rows.dtype), False)


def add(xp: Any, rows: Any, ids: Any, out: Any) -> Any:
    """Add such sums to the rows of `out`, contiguous and of the same dtype, and return it; None where the gate is shut."""
    if not _adds(xp, rows, len(out)) or rows.dtype != out.dtype:
        return None
    return _add(xp, rows, ids, out, True)


def take(xp: Any, x: Any, ids: Any, axis: int) -> Any:
    """x.take(ids, axis) for the first of its axes that is not 1, a contiguous x; None where the gate is shut.

    An id that is none of the axis gives bits of 1: NaN in floats, -1 in integers.
    """
    machine = runtime(xp) if fused() else None
    if machine is None or ids.dtype != np.int64 or not x.flags.c_contiguous:
        return None
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if any(n != 1 for n in before) or x.size == 0 or ids.size == 0:
        return None
    (ids,) = contiguous(xp, ids)
    out = xp.empty((*before, *ids.shape, *after), x.dtype)
    row = x.size // size * x.dtype.itemsize
    unit = math.gcd(16, row, machine.address(x), machine.address(out))
    units, n = row // unit, ids.size
    across = min(THREADS, _power(units))
    grid = min(ceil_div(n, BATCH * (THREADS // across)), MOST_BLOCKS)
    _take(unit)((grid, 1), (across, THREADS // across), x, ids, out, n, units, size)
    return out


@functools.cache
def _kernel() -> Any:
    """out[s, column] += the sum of rows[order[r], column] for r from start[s] to start[s + 1], in this order."""
    return backend.cupy().ElementwiseKernel(
        "raw T rows, raw int64 order, raw int64 start, int64 width",
        "T out",
        """
        long long segment = i / width, column = i - segment * width;
        T total = out;
        for (long long r = start[segment]; r < start[segment + 1]; ++r) total += rows[order[r] * width + column];
        out = total;
        """,
        "ruda_add_rows",
    )


def add_rows(rows: Any, index: Any, out: Any) -> Any:
    """Add rows[i] to out[index[i]] and return `out`, by CuPy; shapes (n, width), (n,), (size, width), `out` contiguous.

    A stable sort brings equal indices together in their first order; one thread then adds the rows of one segment in
    one column. Long segments are cut into pieces whose sums are added in a second pass.
    """
    xp = backend.cupy()
    (n, width), size = rows.shape, len(out)
    rows = xp.ascontiguousarray(rows)
    order = xp.argsort(index)  # CuPy's sort is stable
    start = xp.searchsorted(index[order], xp.arange(size + 1))
    if n > PIECE * size:
        cuts = xp.sort(xp.concatenate([start, xp.arange(0, n, PIECE)]))
        pieces = xp.zeros((len(cuts) - 1, width), out.dtype)
        _kernel()(rows, order, cuts, width, pieces)
        rows, order, start = pieces, xp.arange(len(pieces)), xp.searchsorted(cuts, start)
    _kernel()(rows, order, start, width, out)
    return out
