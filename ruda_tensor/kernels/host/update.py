"""The updates of optimizers: a compiled body gives the bits of the NumPy rule, so a step may use either."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import FLOAT32, SMALL, address, function, loaded
from .pool import run

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
    if p.dtype not in SUFFIX or not all(
        a is None or (a.dtype is p.dtype and a.flags.c_contiguous) for a in arrays
    ):
        return False
    call = function("update", f"{name}_{SUFFIX[p.dtype]}", KINDS[name])
    if call is None:
        return False
    first = np.arange(0, max(1, p.size), BLOCK)
    count = np.minimum(p.size - first, BLOCK)
    run(call, *[0 if a is None else address(a) + first * p.itemsize for a in arrays], count, address(constants), flags)
    return True
