"""The gated activations and relu: values, slopes and what backward makes of them, or a refusal."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import BLOCK_BYTES, each_block
from . import FLOAT32, SMALL, address, function, library
from .pool import cut, run


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
    if 4 * x.size <= BLOCK_BYTES:
        call(source, chosen, target, x.size)
        return out

    def body(block: slice) -> None:
        at = 4 * block.start
        call(source + at, chosen + at, target + at, block.stop - block.start)

    each_block(np, x.size, 4, body)
    return out


def compiled(size: int) -> bool:
    """Whether there are compiled bodies, and work for them."""
    return size >= SMALL and library("gate") is not None


def activation(xp: Any, name: str, x: Any) -> Any:
    """The values of an activation, or None."""
    if xp is not np or x.dtype is not FLOAT32 or not x.flags.c_contiguous or not compiled(x.size):
        return None
    out, call = np.empty(x.shape, FLOAT32), function("gate", f"{name}_alone", "ppn")
    starts = cut(x.size, 4)
    at = 4 * starts[:-1]
    run(call, address(x) + at, address(out) + at, np.diff(starts))
    return out


def activation_again(xp: Any, name: str, x: Any, g: Any, wanted: tuple[bool, bool]) -> tuple[Any, Any] | None:
    """Multiply `g`, in place, by the slopes of an activation at x; and return its values and the sums of g over the rows.

    `wanted` says which of the two are; the others are None, and so is the whole where there is no such body.
    """
    if xp is not np or not x.dtype is FLOAT32 is g.dtype or x.shape != g.shape or not compiled(x.size):
        return None
    if not (x.flags.c_contiguous and g.flags.c_contiguous):
        return None
    call, n = function("gate", f"{name}_again", "ppppnn"), x.shape[-1]
    starts = cut(x.size // n, 8 * n)
    at, parts = 4 * n * starts[:-1], np.zeros((len(starts) - 1, n), FLOAT32) if wanted[1] else None
    values = np.empty(x.shape, FLOAT32) if wanted[0] else None
    run(
        call, address(x) + at, address(g) + at, address(values) + at if wanted[0] else 0,
        0 if parts is None else address(parts) + 4 * n * np.arange(len(parts)), np.diff(starts), n,
    )  # fmt: skip
    return values, None if parts is None else parts.sum(axis=0)
