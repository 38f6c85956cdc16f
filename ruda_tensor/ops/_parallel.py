"""Blocks of rows on all cores: NumPy runs on one, and releases the interpreter lock inside each call.

A row is computed from itself alone and blocks are cut in the same places whatever the number of threads, so results
are the same bits on any machine and in any order of execution.
"""
from __future__ import annotations

import contextvars
import functools
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

BLOCK_BYTES = 2 * 1024 * 1024  # in the cache, and large enough that threads seldom meet at the interpreter lock
PARALLEL_BYTES = 2 * 1024 * 1024  # below this, waking a thread costs as much as it saves


@functools.cache
def threads() -> int:
    """The number of threads to use: RUDA_THREADS, else what BLAS was told, else the cores this process may use."""
    for name in ("RUDA_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value):
            return int(value)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads() - 1, thread_name_prefix="ruda")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def each_block(xp: Any, rows: int, row_bytes: int, body: Callable[[slice], None]) -> None:
    """Call `body(block)` for slices that cover all rows, cache-sized and on all cores under NumPy, one under CuPy.

    Threads that help have the caller's context: its `np.errstate` holds in every block.
    """
    step = max(1, BLOCK_BYTES // max(1, row_bytes)) if xp is np else rows
    if step >= rows:
        if rows:
            body(slice(0, rows))
        return
    blocks = deque(slice(start, min(rows, start + step)) for start in range(0, rows, step))

    def work() -> None:
        while True:
            try:
                block = blocks.popleft()
            except IndexError:
                return
            body(block)

    helpers = min(threads(), len(blocks)) - 1 if rows * row_bytes >= PARALLEL_BYTES else 0
    futures = [_pool().submit(contextvars.copy_context().run, work) for _ in range(helpers)]
    work()
    for future in futures:
        if not future.cancel():
            future.result()
