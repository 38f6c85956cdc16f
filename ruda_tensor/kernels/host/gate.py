"""The gated activations and their slopes: the compiled body of one block, or a refusal."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import FLOAT32, address, function


def gate(symbol: str, xp: Any, x: Any, out: Any, slope: Any) -> bool:
    """Fill the values and slopes of a flat block, and return True; or decline. An element's are the same in any block."""
    if xp is not np or x.dtype is not FLOAT32 or not x.flags.c_contiguous:
        return False
    call = function("gate", symbol, "pppn")
    if call is None:
        return False
    call(address(x), address(out), address(slope), x.size)
    return True
