"""Whether a tensor that a list holds is the last one that can see its memory, so that something may be written over it.

Told by reference counts: every view of an array, NumPy's, CuPy's or over DLPack, holds a reference to it.
"""
from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from .backend import is_cupy_array
from .tensor import Tensor

# Memory that a CuPy array may have: its own, from a pool or not. What another library lent is of another type.
_OWN = frozenset({"PooledMemory", "Memory", "MemoryAsync"})


def _counts(items: list, i: int) -> list[int]:
    """The references to tensor i, to its array, to the array that this one is a view of, and to CuPy's memory."""
    found = [sys.getrefcount(items[i]), sys.getrefcount(items[i]._data)]
    owner = items[i]._data
    if owner.base is not None:
        owner = owner.base
        found.append(sys.getrefcount(owner))
    if is_cupy_array(owner):
        found += [sys.getrefcount(owner.data), sys.getrefcount(owner.data.mem)]
    return found


def _owns(array: Any) -> bool:
    """Whether the memory is this library's to write to: not a file's, a string's, or another library's."""
    owner = array if array.base is None else array.base
    if is_cupy_array(owner):
        return owner.base is None and type(owner.data.mem).__name__ in _OWN
    return type(owner) is np.ndarray and owner.flags.owndata and owner.flags.writeable


@functools.cache
def _alone(xp: Any, view: bool) -> list[int]:
    """The counts, on this interpreter, of a tensor that only a list holds, and whose array is a view of a dead one or none."""
    array = xp.empty((2, 2), np.float32)
    items: list[Any] = [None]
    items[0] = Tensor._wrap(array.reshape(4) if view else array, None)  # type: ignore[arg-type]
    del array
    return _counts(items, 0)


def last_holder(items: list, i: int, xp: Any) -> bool:
    """Return whether `items[i]` is a tensor whose memory nobody else can see and which is ours to write to."""
    if not isinstance(items[i], Tensor) or not _owns(items[i]._data):
        return False
    alone = _alone(xp, items[i]._data.base is not None)
    found = _counts(items, i)
    if len(found) != len(alone):
        return False
    for a, b in zip(found, alone):
        if a > b:
            return False
    return True
