"""How the threads of a block share a row, by its length: the numbers that kernels over rows are compiled for."""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

from .gate import MOST_BLOCKS, ceil_div

LONG_GROUP = 512  # threads on a row that is too long for registers


class Plan(NamedTuple):
    """`group` threads per row, `rows` rows per block, `items` vectors per thread in registers (0: rows are read again)."""

    vector: int
    group: int
    rows: int
    items: int

    def defines(self) -> dict[str, Any]:
        return {"VECTOR": self.vector, "GROUP": self.group, "ROWS": self.rows, "ITEMS": self.items}

    def block(self) -> tuple[int, int]:
        return self.group, self.rows

    def grid(self, rows: int) -> tuple[int, int]:
        """One block per group of rows."""
        return min(ceil_div(rows, self.rows), MOST_BLOCKS), 1


def _warps(threads: int) -> int:
    """The next multiple of 32."""
    return ceil_div(threads, 32) * 32


@functools.cache
def row_plan(n: int, vector: int, kept: int) -> Plan:
    """For kernels that hold one row, and let a thread hold `kept` numbers: a warp for short rows, else a block."""
    vectors, most = ceil_div(n, vector), max(1, min(8, kept // vector))
    if vectors <= 32 * min(4, most):
        return Plan(vector, 32, 4, ceil_div(vectors, 32))
    for items, widest in ((2, 256), (4, 256), (4, 1024), (8, 1024)):
        group = _warps(ceil_div(vectors, items))
        if items <= most and group <= widest:
            return Plan(vector, group, 1, items)
    return Plan(vector, LONG_GROUP, 1, 0)


@functools.cache
def sums_plan(n: int, vector: int) -> tuple[Plan, int]:
    """For the backward of a norm, which also holds a thread's column sums; and the threads a multiprocessor shall hold."""
    vectors = ceil_div(n, vector)
    if vectors <= 64:
        items = ceil_div(vectors, 32)
        return Plan(vector, 32, 8, items), 1024 if items == 1 else 512
    for items, widest, resident in ((1, 512, 1024), (2, 512, 512), (4, 512 if vector <= 4 else 0, 512)):
        group = _warps(ceil_div(vectors, items))
        if group <= widest:
            return Plan(vector, group, 1, items), max(resident, group)
    if vector == 1 and vectors <= 8192:
        group = _warps(ceil_div(vectors, 8))
        return Plan(vector, group, 1, 8), group
    return Plan(vector, LONG_GROUP, 1, 0), 1024
