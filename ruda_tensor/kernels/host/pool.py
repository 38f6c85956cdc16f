"""Calls of a compiled body for many parts of its arrays, on all cores.

The threads are of pool.c and wait for the next call in a loop, as those of a BLAS do: Python's would take longer to wake
than most parts take. Parts are the same on any number of cores, and so are the bits.
"""
from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from ...ops._parallel import threads
from . import address, function

WIDTH = 14  # integers of a row, as in pool.c
BLOCK_BYTES = 1 << 19  # small, since a part costs a microsecond: there is work for two cores in a megabyte


def cut(rows: int, row_bytes: int) -> np.ndarray:
    """Where blocks of rows start, and `rows`."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    return np.append(np.arange(0, rows, step), rows)


def run(call: Any, *columns: Any, number: float = 0.0) -> None:
    """Call a function for each row of its integer arguments, given as columns: arrays (one at least), or numbers for all.

    `number` is the floating argument, behind the integers, of a function that has one.
    """
    count = next(c.size for c in columns if isinstance(c, np.ndarray))
    table = np.zeros((count, WIDTH), np.int64)
    for i, column in enumerate(columns):
        table[:, i] = column
    share(call, table, number)


def share(call: Any, table: np.ndarray, number: float = 0.0) -> None:
    """Call a function for each row of a table, which may have more columns than it has arguments."""
    count = len(table)
    if count > 1 and threads() > 1 and (shared := _shared()) is not None:
        shared(call.place, address(table), count, min(threads(), count) - 1, number)
        return
    floating = call.argtypes[-1] is ctypes.c_float
    given = len(call.argtypes) - floating
    for row in table.tolist():
        call(*row[:given], *([number] if floating else []))


def _shared() -> Any:
    """The function of pool.c, or None."""
    shared = function("pool", "run", "ppnnf")
    return shared if shared is not None and _usable() else None


@functools.cache
def _usable() -> bool:
    return bool(function("pool", "usable", ">n")())
