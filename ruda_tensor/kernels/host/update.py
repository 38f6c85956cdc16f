"""The updates of optimizers: a compiled body gives the bits of the NumPy rule, so a step may use either."""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import FLOAT32, SMALL, address, function, loaded
from .pool import WIDTH, share

FLOAT64 = np.dtype(np.float64)
SUFFIX = {FLOAT32: "float", FLOAT64: "double"}
BLOCK = 1 << 15  # numbers, so that a matrix of some size is work for all cores
KINDS = {"adam": "pppppnpn", "sgd": "pppnpn"}


def update(name: str, xp: Any, arrays: Sequence[Any], constants: Any, flags: int = 0) -> bool:
    """Run a compiled update over flat arrays (p, g and states; None for a state that there is not), or decline.

    `constants` is a float64 array, in the order that update.c has them.
    """
    p = arrays[0]
    if xp is not np or (p.size < SMALL and not loaded("update")):
        return False
    dtype = p.dtype
    if dtype not in SUFFIX:
        return False
    for a in arrays:
        if a is not None and (a.dtype != dtype or not a.flags.c_contiguous):
            return False
    call = function("update", f"{name}_{SUFFIX[dtype]}", KINDS[name])
    if call is None:
        return False
    places = [address(a) for a in arrays]
    parts = _parts(p.size, p.itemsize, tuple([at != 0 for at in places]))
    rest = [0] * (WIDTH - len(places) - 3)
    share(call, parts + np.array([*places, 0, address(constants), flags, *rest]))
    return True


def available(largest: int) -> bool:
    """Whether there are compiled updates, and for a parameter so large a reason to wait for the compiler."""
    return (largest >= SMALL or loaded("update")) and function("update", "adam_float", KINDS["adam"]) is not None


def update_all(name: str, entries: Sequence[Sequence[Any]], constants: Any, flags: int) -> None:
    """Run a compiled update, which is `available`, over many such lists of arrays, of one dtype and all contiguous, at once."""
    p = entries[0][0]
    places = np.array([[address(a) for a in arrays] for arrays in entries])
    count = places.shape[1]
    table, which = _layout(tuple([arrays[0].size for arrays in entries]), p.itemsize, tuple([a is not None for a in entries[0]]))
    parts = table.copy()
    parts[:, :count] += places[which]
    parts[:, count + 1] = address(constants)
    parts[:, count + 2] = flags
    share(function("update", f"{name}_{SUFFIX[p.dtype]}", KINDS[name]), parts)


@functools.lru_cache(maxsize=64)
def _layout(sizes: tuple[int, ...], itemsize: int, present: tuple[bool, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The parts of all arrays one after the other, and whose each part is."""
    parts = [_parts(size, itemsize, present) for size in sizes]
    return np.concatenate(parts), np.repeat(np.arange(len(parts)), [len(part) for part in parts])


@functools.lru_cache(maxsize=1024)
def _parts(size: int, itemsize: int, present: tuple[bool, ...]) -> np.ndarray:
    """How far on each block begins in the arrays that there are, and how many numbers it has, as rows for `share`."""
    first = np.arange(0, max(1, size), BLOCK)
    table = np.zeros((len(first), WIDTH), np.int64)
    table[:, : len(present)] = np.outer(first * itemsize, present)
    table[:, len(present)] = np.minimum(size - first, BLOCK)
    return table
