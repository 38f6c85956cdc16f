"""How the threads of a block share a row, by its length: the numbers that kernels over rows are compiled for."""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

from .gate import MOST_BLOCKS, ceil_div

LONG_GROUP = 512  # threads on a row that is too long for registers


class Plan(NamedTuple):
    """`group` threads per row, `rows` rows per block, `items` vectors per thread in registers (0: rows are read again).

    `exact`: rows are as long as the threads together hold, so that no thread has to look where they end.
    """

    vector: int
    group: int
    rows: int
    items: int
    exact: bool = False

    def defines(self) -> dict[str, Any]:
        fields = {"VECTOR": self.vector, "GROUP": self.group, "ROWS": self.rows, "ITEMS": self.items}
        return fields | {"EXACT": int(self.exact)}

    def block(self) -> tuple[int, int]:
        return self.group, self.rows

    def grid(self, rows: int) -> tuple[int, int]:
        """One block per group of rows."""
        return min(ceil_div(rows, self.rows), MOST_BLOCKS), 1


class Stay(NamedTuple):
    """A plan whose blocks go from row to row: a multiprocessor holds `resident` threads at once.

    `stages`: 1 where they fetch the next row into registers while they work on the present one, k > 1 where k rows lie in
    shared memory, 0 where there is a block per group of rows and nothing to fetch ahead.
    """

    plan: Plan
    resident: int
    stages: int = 1

    def defines(self) -> dict[str, Any]:
        return {**self.plan.defines(), "RESIDENT": self.resident, "STAGES": self.stages}

    def grid(self, rows: int, processors: int, least: int = 1) -> tuple[int, int]:
        """As many blocks as the GPU holds at once, each with at least `least` groups of rows."""
        if not self.stages:
            return self.plan.grid(rows)
        share = max(1, self.resident // (self.plan.group * self.plan.rows)) * processors
        return max(1, min(share, ceil_div(rows, self.plan.rows * least))), 1


def _warps(threads: int) -> int:
    """The next multiple of 32."""
    return ceil_div(threads, 32) * 32


def row(n: int, vector: int, items: int, rows: int = 1) -> Plan:
    """A plan with so many vectors per thread; `rows` above 1 is a warp per row."""
    group = 32 if rows > 1 else _warps(ceil_div(ceil_div(n, vector), items))
    return Plan(vector, group, rows, items, n == group * items * vector)


@functools.cache
def row_plan(n: int, vector: int, kept: int) -> Plan:
    """For kernels that hold one row, and let a thread hold `kept` numbers: a warp for short rows, else a block."""
    vectors, most = ceil_div(n, vector), max(1, min(8, kept // vector))
    if vectors <= 32 * min(4, most):
        return row(n, vector, ceil_div(vectors, 32), 4)
    for items, widest in ((2, 256), (4, 256), (4, 1024), (8, 1024)):
        plan = row(n, vector, items)
        if items <= most and plan.group <= widest:
            return plan
    return Plan(vector, LONG_GROUP, 1, 0)


STATIC_SHARED = 40_000  # bytes of shared memory that a plan may ask for: 48 KiB are there without asking, less the scratch


def _stages(plan: Plan, arrays: int, width: int) -> int:
    """Two rows of `arrays` arrays in shared memory where halves and they fit, else the next one in registers."""
    bytes_each = plan.items * plan.group * plan.rows * plan.vector * width
    return 2 if width == 2 and plan.vector == 8 and 2 * arrays * bytes_each <= STATIC_SHARED else 1


@functools.cache
def norm_plan(n: int, vector: int, width: int, wider: bool = False, add: bool = False, rms: bool = False) -> Stay:
    """For the forward of a norm, which also holds a thread's weights and biases; numbers of `width` bytes.

    `wider`: the weights take more bytes than the numbers; `add`: of a sum of two arrays. Few resident threads leave each
    of them the registers it needs: on an H200 one size too many costs a factor of two, by spills.
    """
    vectors, most = ceil_div(n, vector), max(1, 24 // vector)
    if vectors <= 32 * most:
        items = ceil_div(vectors, 32)
        plan, resident = row(n, vector, items, 4), 1024 if items * vector <= 8 else 768 if width == 2 else 512
    else:
        plan = row_plan(n, vector, 16 if width == 2 else 32)
        if plan.rows > 1 or not plan.items:
            plan = row_plan(n, vector, 32)
        resident = 768
        if rms and width == 2 and plan.items == 2 and not (wider or add):  # few sums: a thread holds one vector and the next
            return Stay(row(n, vector, 1), 1536)
    if wider or add:
        resident = resident * 2 // 3
    resident = max(resident, plan.group * plan.rows)
    stages = _stages(plan, 1 + add, width) if width == 2 else 0
    return Stay(plan, resident, stages if plan.items else 0)


@functools.cache
def sums_plan(n: int, vector: int, width: int) -> Stay:
    """For the backward of a norm, which also holds a thread's column sums; numbers of `width` bytes."""
    vectors = ceil_div(n, vector)
    if vectors <= 32 * (3 if vector == 8 else 2 if vector > 1 else 4):
        plan = row(n, vector, ceil_div(vectors, 32), 4)
        return Stay(plan, 384 if plan.items * vector > 8 else 768, _stages(plan, 2, width))
    for items, widest, resident in ((2, 256, 512), (1, 1024, 1024), (2, 512, 512)):
        plan = row(n, vector, items)
        if plan.group <= widest:
            return Stay(plan, max(resident, plan.group), _stages(plan, 2, width))
    if vector < 8 and vectors <= (2048 if vector > 1 else 8192):
        plan = row(n, vector, 4 if vector > 1 else 8)
        return Stay(plan, plan.group)
    return Stay(Plan(vector, LONG_GROUP, 1, 0), 1024)
