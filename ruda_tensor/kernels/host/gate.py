"""The gated activations and their slopes, and that of relu: the compiled body of one block, or a refusal."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import each_block
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


def keep_positive(xp: Any, x: Any, y: Any) -> Any:
    """`x` where y > 0 and 0 elsewhere, or None: the bits of the NumPy body."""
    if xp is not np or not x.dtype is FLOAT32 is y.dtype or x.shape != y.shape:
        return None
    if not (x.flags.c_contiguous and y.flags.c_contiguous) or (call := function("gate", "keep_positive", "pppn")) is None:
        return None
    out = np.empty(x.shape, FLOAT32)
    source, chosen, target = address(x), address(y), address(out)

    def body(block: slice) -> None:
        at = 4 * block.start
        call(source + at, chosen + at, target + at, block.stop - block.start)

    each_block(np, x.size, 4, body)
    return out
