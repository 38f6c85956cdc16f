"""Running a pointwise body over large CPU arrays: blocks that stay in the cache, on as many threads as there are cores.

A chain of NumPy calls with `out=` on blocks gains the cache; two threads gain the second core. The result does not
depend on the number of threads.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._parallel import each_block


def pointwise(xp: Any, body: Callable, inputs: tuple, outs: int = 1) -> Any:
    """Run `body(xp, *inputs, *outs)` on flat blocks of arrays of one shape and dtype; returns the outs it filled.

    Under CuPy, and for small arrays, there is one block. Overflow inside the body is its own affair: no warnings.
    """
    shape, dtype = inputs[0].shape, inputs[0].dtype
    flat = [a.reshape(-1) for a in inputs]
    size = flat[0].size
    results = [xp.empty(size, dtype) for _ in range(outs)]
    arrays = flat + results
    with np.errstate(all="ignore"):
        each_block(xp, size, dtype.itemsize, lambda block: body(xp, *[a[block] for a in arrays]))
    found = [r.reshape(shape) for r in results]
    return found[0] if outs == 1 else tuple(found)
