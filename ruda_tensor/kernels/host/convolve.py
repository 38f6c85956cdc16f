"""Convolution and its gradient in the weight: the compiled body, or None where it declines."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ops._parallel import BLOCK_BYTES, each_block
from . import FLOAT32, address, function

WORK = 1 << 14  # multiplications for one image, whose result is thereby the same bits in any batch
STRIP = 1 << 18  # bytes of x that a strip reads, so that it stays in the second cache
UNITS = 8  # strips at the least, for as many cores
PARTS = 16  # blocks of strips; each gives a part of the gradient of the weight,
FEW = 4  # so that it should have a few
OUTPUTS = 4


def _units(shape: tuple, count: tuple, kernel: tuple, outputs: int, settings: dict) -> tuple[Any, int]:
    """The geometry as the C sources have it, and the number of strips."""
    n, c, h, w = shape
    (kh, kw), (u, v), (sh, sw), groups = kernel, count, settings["stride"], settings["groups"]
    row = 4 * (c // groups) * sh * (w + kw * settings["dilation"][1])
    rows = max(1, min(u, STRIP // max(1, row)))
    if n < UNITS:
        rows = min(rows, -(-u // -(-UNITS // n)))
    strips = -(-u // rows)
    numbers = (c, h, w, outputs, kh, kw, sh, sw, *settings["dilation"], *settings["low"], u, v, groups, rows, strips)
    return np.array(numbers, np.int64), n * strips


def _takes(xp: Any, x: Any, y: Any, w_shape: tuple, *more: Any) -> bool:
    return (
        xp is np
        and math.prod(y.shape[1:]) * w_shape[1] * w_shape[2] * w_shape[3] >= WORK
        and all(a is None or a.dtype is FLOAT32 for a in (x, y, *more))
    )


def convolve(xp: Any, x: Any, w: Any, b: Any, y: Any, settings: dict) -> bool:
    """Fill y, which is contiguous, and return True; or decline."""
    if not _takes(xp, x, y, w.shape, w, b) or (call := function("convolve", "convolve", "pppppnn>n")) is None:
        return False
    shape, units = _units(x.shape, y.shape[2:], w.shape[2:], w.shape[0], settings)
    x, w, b = np.ascontiguousarray(x), np.ascontiguousarray(w), None if b is None else np.ascontiguousarray(b)
    size, arrange = function("convolve", "arranged_size", "p>n"), function("convolve", "arrange", "ppp")
    at = address(shape)
    arranged = np.empty(size(at), FLOAT32)
    arrange(at, address(w), address(arranged))
    places = address(x), address(arranged), address(b), address(y)
    refused = []

    def body(block: slice) -> None:
        if not call(at, *places, block.start, block.stop):
            refused.append(block)

    each_block(np, units, BLOCK_BYTES // -(-units // PARTS), body)
    return not refused


def weigh(xp: Any, x: Any, y: Any, kernel: tuple, settings: dict) -> Any:
    """The gradient of the weight, or None: also for a few outputs per group, which would leave most lanes idle."""
    groups = settings["groups"]
    shape = (y.shape[1], x.shape[1] // groups, *kernel)
    if y.shape[1] < OUTPUTS * groups or not _takes(xp, x, y, shape):
        return None
    if (call := function("convolve", "weigh", "ppppnn>n")) is None:
        return None
    geometry, units = _units(x.shape, y.shape[2:], kernel, y.shape[1], settings)
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    at, places = address(geometry), (address(x), address(y))
    parts: dict[int, Any] = {}
    starts = []

    def body(block: slice) -> None:
        starts.append(block.start)
        part = np.zeros(shape, FLOAT32)
        if call(at, *places, address(part), block.start, block.stop):
            parts[block.start] = part

    each_block(np, units, BLOCK_BYTES // max(FEW, -(-units // PARTS)), body)
    total = np.zeros(shape, FLOAT32)
    for start in sorted(parts):
        total += parts[start]
    return total if len(parts) == len(starts) else None
