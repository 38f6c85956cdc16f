"""Adding rows by index on a GPU without atomics, so that the same input gives the same bits."""
from __future__ import annotations

import functools
from typing import Any

from .. import backend

PIECE = 512  # rows that one thread adds where segments are long


def available(xp: Any) -> bool:
    """True for CuPy."""
    return xp.__name__ == "cupy"


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
    """Add rows[i] to out[index[i]] and return `out`; shapes (n, width), (n,), (size, width), `out` contiguous.

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
