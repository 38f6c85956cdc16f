"""Cache-sized row blocks, so that a chain of NumPy calls with `out=` runs in the cache and not in memory."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

BLOCK_BYTES = 256 * 1024  # a quarter of a typical L2 cache: a few such arrays are live at once


def row_blocks(xp: Any, rows: int, row_bytes: int) -> Iterator[slice]:
    """Yield slices of rows of about BLOCK_BYTES each under NumPy, and one slice of all rows under CuPy."""
    if xp is not np or rows * row_bytes <= 2 * BLOCK_BYTES:
        yield slice(0, rows)
        return
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))
