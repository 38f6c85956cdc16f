"""Running a pointwise body over large CPU arrays: blocks that stay in the cache, on as many threads as there are cores.

NumPy's functions use one core and release the interpreter's lock. A chain of them with `out=` on blocks gains the
cache; two threads on two halves gain the second core. The result does not depend on the number of threads.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

BLOCK = 1 << 18  # elements: below this, handing the interpreter's lock from thread to thread costs more than it gains
MOST_THREADS = 8


@functools.cache
def cores() -> int:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, MOST_THREADS)


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="ruda-pointwise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)  # threads do not live on in a forked child


def pointwise(xp: Any, body: Callable, inputs: tuple, outs: int = 1) -> Any:
    """Run `body(xp, *inputs, *outs)` on flat blocks of arrays of one shape and dtype; returns the outs it filled.

    Under CuPy, and for small arrays, there is one block. Overflow inside the body is its own affair: no warnings.
    """
    shape, dtype = inputs[0].shape, inputs[0].dtype
    flat = [a.reshape(-1) for a in inputs]
    size = flat[0].size
    results = [xp.empty(size, dtype) for _ in range(outs)]
    arrays = flat + results

    def run(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):
            for at in range(start, stop, BLOCK):
                body(xp, *[a[at : min(at + BLOCK, stop)] for a in arrays])

    threads = min(cores(), size // BLOCK)
    if xp is not np:
        body(xp, *arrays)
    elif threads <= 1:
        run(0, size)
    else:
        step = -(-size // threads)
        waiting = [_helpers().submit(run, at, min(at + step, size)) for at in range(step, size, step)]
        run(0, step)
        for part in waiting:
            part.result()
    found = [r.reshape(shape) for r in results]
    return found[0] if outs == 1 else tuple(found)
