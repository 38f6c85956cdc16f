"""Convolution and its gradient in the weight: the compiled body, or None where it declines."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import FLOAT32, address, function
from .pool import run

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


def _cut(units: int, least: int) -> np.ndarray:
    """Where blocks of strips start, and `units`: the same on any number of cores."""
    return np.append(np.arange(0, units, max(least, -(-units // PARTS))), units)


def convolve(xp: Any, x: Any, w: Any, b: Any, y: Any, settings: dict) -> bool:
    """Fill y, which is contiguous, and return True; or decline."""
    if not _takes(xp, x, y, w.shape, w, b) or (call := function("convolve", "convolve", "pppppnnp")) is None:
        return False
    shape, units = _units(x.shape, y.shape[2:], w.shape[2:], w.shape[0], settings)
    x, w, b = np.ascontiguousarray(x), np.ascontiguousarray(w), None if b is None else np.ascontiguousarray(b)
    size, arrange = function("convolve", "arranged_size", "p>n"), function("convolve", "arrange", "ppp")
    at = address(shape)
    arranged = np.empty(size(at), FLOAT32)
    arrange(at, address(w), address(arranged))
    cuts = _cut(units, 1)
    done = np.zeros(len(cuts) - 1, np.int64)
    run(call, at, address(x), address(arranged), address(b), address(y), cuts[:-1], cuts[1:], _each(done))
    return bool(done.all())


def weigh(xp: Any, x: Any, y: Any, kernel: tuple, settings: dict) -> Any:
    """The gradient of the weight, or None: also for a few outputs per group, which would leave most lanes idle."""
    groups = settings["groups"]
    shape = (y.shape[1], x.shape[1] // groups, *kernel)
    if y.shape[1] < OUTPUTS * groups or not _takes(xp, x, y, shape):
        return None
    if (call := function("convolve", "weigh", "ppppnnp")) is None:
        return None
    geometry, units = _units(x.shape, y.shape[2:], kernel, y.shape[1], settings)
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    cuts = _cut(units, FEW)
    done, parts = np.zeros(len(cuts) - 1, np.int64), np.zeros((len(cuts) - 1, *shape), FLOAT32)
    run(call, address(geometry), address(x), address(y), _each(parts), cuts[:-1], cuts[1:], _each(done))
    return parts.sum(axis=0) if done.all() else None


def _each(parts: np.ndarray) -> np.ndarray:
    """Where each of the first axis begins."""
    return address(parts) + parts.strides[0] * np.arange(len(parts))
