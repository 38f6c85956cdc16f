"""Looking at ids before they are used: one launch and one wait, where CuPy needs five launches and a copy to the host."""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import INT64
from .gate import ceil_div, contiguous, fused, processors
from .launch import Kernel, runtime

THREADS, EACH = 256, 4  # as in ids.cu; ids of a thread, unless they are many
_LARGEST = 1 << 63
_CTYPES = {
    np.dtype(name): ctype
    for name, ctype in {
        "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long", "uint8": "unsigned char",
        "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
    }.items()
}  # fmt: skip


class Seen(NamedTuple):
    """The ids as int64, whether one is outside 0 to count - 1, and whether such a one is not the ignored id either."""

    ids: Any
    outside: bool
    wrong: bool


@functools.cache
def _kernel(dtype: np.dtype) -> Kernel:
    return Kernel("ids.cu", "check_ids", "P P Q q Q q", {"SOURCE": _CTYPES[dtype]})


def look(xp: Any, ids: Any, count: int, ignore: int = -1) -> Seen | None:
    """What is to be known of integers as ids of `count` things, after waiting for them; None where the gate is shut."""
    machine = runtime(xp)
    if machine is None or not fused() or ids.size == 0 or ids.dtype not in _CTYPES or not -_LARGEST <= ignore < _LARGEST:
        return None
    board = machine.board()
    if board is None:
        return None
    (seen, place), (ids,) = board, contiguous(xp, ids)
    out = None if ids.dtype == INT64 else xp.empty(ids.shape, INT64)
    seen[:] = 0
    blocks = min(ceil_div(ids.size, THREADS * EACH), 8 * processors(xp))
    _kernel(ids.dtype)((blocks, 1), (THREADS, 1), ids, out, place, ids.size, count, ignore)
    machine.wait()
    outside, wrong = seen.tolist()
    return Seen(ids if out is None else out, bool(outside), bool(wrong))
