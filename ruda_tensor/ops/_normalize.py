"""The bodies of the normalizations over raw arrays: two passes, cache-sized blocks, all cores under NumPy.

The mean is kept as m + shift, the second being the mean of what the first leaves: one float32 cannot hold the mean of
numbers far from 0, and constant rows then come out as exactly 0.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ._parallel import each_block
from ._sums import total
from .softmax import row_dots, row_sums

SHORT = 16  # inner loops shorter than this cost more than what they compute


class _Parts:
    """Sums over rows, gathered by block and added in the order of the blocks: the same bits on any number of cores."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.parts: dict[int, Any] = {}

    def add(self, block: slice, rows: Any) -> None:
        self.parts[block.start] = total(self.xp, rows, (0,), False)

    def sum(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if not self.parts:
            return self.xp.zeros(shape, dtype)
        parts = self.xp.stack([self.parts[k] for k in sorted(self.parts)])
        return total(self.xp, parts, (0,), False).reshape(shape)


def _each_block(xp: Any, rows: int, row_bytes: int, body: Callable[[slice], None]) -> None:
    """Run `body` on blocks; rows with an infinity give NaN on purpose."""

    def quiet(block: slice) -> None:
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            body(block)

    each_block(xp, rows, row_bytes, quiet)


def _rows(xp: Any, x: Any, axes: int) -> Any:
    """A contiguous view of an array, or of a copy, as rows: the last `axes` axes merged, and those before."""
    n = math.prod(x.shape[x.ndim - axes :])
    return xp.ascontiguousarray(x).reshape(x.size // n if n else 0, n)


def _flat(xp: Any, w: Any) -> Any:
    return None if w is None else xp.ascontiguousarray(w).reshape(-1)


def layer_forward(xp: Any, x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> tuple:
    """out = (x - m) r w + b with r = 1 / sqrt(var + eps)."""
    out = xp.empty(x.shape, x.dtype)
    source, target = _rows(xp, x, axes), _rows(xp, out, axes)
    rows, n = source.shape
    w, b = _flat(xp, weight), _flat(xp, bias)
    m, shift, r = (xp.empty((rows, 1), x.dtype) for _ in range(3))

    def body(block: slice) -> None:
        x, d = source[block], target[block]
        m[block] = row_sums(xp, x) / n
        xp.subtract(x, m[block], out=d)
        shift[block] = row_sums(xp, d) / n
        d -= shift[block]
        r[block] = 1 / xp.sqrt(row_dots(xp, d, d) / n + eps)
        d *= r[block]
        if w is not None:
            d *= w
        if b is not None:
            d += b

    _each_block(xp, rows, 2 * n * x.itemsize, body)
    return out, m, shift, r


def layer_backward(
    xp: Any, g: Any, x: Any, weight: Any, m: Any, shift: Any, r: Any, *, needs: tuple, axes: int, eps: float
) -> tuple:
    """With y = (x - m) r and h = g w:  dx = r (h - mean(h) - y mean(h y)),  dw = sum(g y),  db = sum(g)."""
    dx = xp.empty(x.shape, x.dtype)
    source, incoming, target = (_rows(xp, a, axes) for a in (x, g, dx))
    rows, n = source.shape
    w = _flat(xp, weight)
    dw, db = _Parts(xp), _Parts(xp)

    def body(block: slice) -> None:
        g, h = incoming[block], target[block]
        if needs[2]:
            db.add(block, g)
        y = source[block] - m[block]
        y -= shift[block]
        y *= r[block]
        if needs[1]:
            dw.add(block, xp.multiply(g, y, out=h))
        if needs[0]:
            if w is None:
                h[...] = g
            else:
                xp.multiply(g, w, out=h)
            y *= row_dots(xp, h, y) / n
            y += row_sums(xp, h) / n
            h -= y
            h *= r[block]

    _each_block(xp, rows, 3 * n * x.itemsize, body)
    shape = x.shape[x.ndim - axes :]
    return (
        dx if needs[0] else None,
        dw.sum(shape, x.dtype) if needs[1] else None,
        db.sum(shape, x.dtype) if needs[2] else None,
    )


def rms_forward(xp: Any, x: Any, weight: Any, *, axes: int, eps: float) -> tuple:
    out = xp.empty(x.shape, x.dtype)
    source, target = _rows(xp, x, axes), _rows(xp, out, axes)
    rows, n = source.shape
    w, r = _flat(xp, weight), xp.empty((rows, 1), x.dtype)

    def body(block: slice) -> None:
        x, y = source[block], target[block]
        r[block] = 1 / xp.sqrt(row_dots(xp, x, x) / n + eps)
        xp.multiply(x, r[block], out=y)
        if w is not None:
            y *= w

    _each_block(xp, rows, 2 * n * x.itemsize, body)
    return out, r


def rms_backward(xp: Any, g: Any, x: Any, weight: Any, r: Any, *, needs: tuple, axes: int, eps: float) -> tuple:
    """With y = x r and h = g w:  dx = r (h - y mean(h y)),  dw = sum(g y)."""
    dx = xp.empty(x.shape, x.dtype)
    source, incoming, target = (_rows(xp, a, axes) for a in (x, g, dx))
    rows, n = source.shape
    w, dw = _flat(xp, weight), _Parts(xp)

    def body(block: slice) -> None:
        g, h = incoming[block], target[block]
        y = source[block] * r[block]
        if needs[1]:
            dw.add(block, xp.multiply(g, y, out=h))
        if needs[0]:
            if w is None:
                h[...] = g
            else:
                xp.multiply(g, w, out=h)
            y *= row_dots(xp, h, y) / n
            h -= y
            h *= r[block]

    _each_block(xp, rows, 3 * n * x.itemsize, body)
    shape = x.shape[x.ndim - axes :]
    return dx if needs[0] else None, dw.sum(shape, x.dtype) if needs[1] else None


def _channel_dots(xp: Any, x: Any, y: Any) -> Any:
    """The sums of x * y over axes 0 and 2 of (N, C, L), kept with size 1; y None is ones."""
    if xp is np and x.shape[2] >= SHORT:  # BLAS dot products are twice as fast as sums
        sums = np.vecdot(x, np.ones(x.shape[2], x.dtype) if y is None else y)[:, :, None]
    else:
        sums = total(xp, x if y is None else x * y, (2,), True)
    return total(xp, sums, (0,), True)


def _each_channel(xp: Any, x: Any, body: Callable[[slice], None]) -> None:
    """Run `body` on blocks of channels of (N, C, L); on all at once where a few channels are too short to loop over."""
    n, c, length = x.shape
    if length < SHORT and c:
        _each_block(xp, 1, 0, lambda _: body(slice(0, c)))
    else:
        _each_block(xp, c, 2 * n * length * x.itemsize, body)


def channel_moments(xp: Any, x: Any) -> tuple:
    """The mean as m + shift, and the biased variance, of the channels of (N, C, L), each (1, C, 1)."""
    x, (n, c, length) = xp.ascontiguousarray(x), x.shape
    count = max(1, n * length)
    m, shift, variance = (xp.empty((1, c, 1), x.dtype) for _ in range(3))

    def body(block: slice) -> None:
        m[:, block] = _channel_dots(xp, x[:, block], None) / count
        d = x[:, block] - m[:, block]
        s = shift[:, block]
        s[...] = _channel_dots(xp, d, None) / count
        variance[:, block] = xp.maximum(_channel_dots(xp, d, d) / count - s * s, 0)

    _each_channel(xp, x, body)
    return m, shift, variance


def _per_channel(w: Any, block: slice, r: Any) -> Any:
    """r times the weight of the channels in a block."""
    return r[:, block] if w is None else r[:, block] * w.reshape(1, -1, 1)[:, block]


def batch_forward(
    xp: Any, x: Any, weight: Any, bias: Any, m: Any, shift: Any, variance: Any, *, eps: float
) -> tuple:
    """As layer_norm, over axes 0 and 2 of (N, C, L); the moments come from `channel_moments` of the same x."""
    out, r = xp.empty(x.shape, x.dtype), xp.empty(variance.shape, x.dtype)

    def body(block: slice) -> None:
        y = out[:, block]
        r[:, block] = 1 / xp.sqrt(variance[:, block] + eps)
        scale = _per_channel(weight, block, r)
        xp.subtract(x[:, block], m[:, block], out=y)
        y *= scale
        offset = shift[:, block] * -scale
        y += offset if bias is None else offset + bias.reshape(1, -1, 1)[:, block]

    _each_channel(xp, x, body)
    return out, r


def batch_backward(
    xp: Any, g: Any, x: Any, weight: Any, m: Any, shift: Any, r: Any, *, needs: tuple, eps: float
) -> tuple:
    """As layer_norm, gathered per channel: with d = x - m and y = (d - shift) r, dx is linear in g, in d and in 1."""
    x, g, (n, c, length) = xp.ascontiguousarray(x), xp.ascontiguousarray(g), x.shape
    count = max(1, n * length)
    dx, dw, db = xp.empty(x.shape, x.dtype), xp.empty((1, c, 1), x.dtype), xp.empty((1, c, 1), x.dtype)

    def body(block: slice) -> None:
        incoming, s = g[:, block], shift[:, block]
        d = x[:, block] - m[:, block]
        db[:, block] = _channel_dots(xp, incoming, None)
        dw[:, block] = r[:, block] * (_channel_dots(xp, incoming, d) - s * db[:, block])
        if needs[0]:
            scale, h = _per_channel(weight, block, r), dx[:, block]
            slope = scale * r[:, block] * dw[:, block] / count
            xp.multiply(incoming, scale, out=h)
            d *= slope
            h -= d
            h += slope * s - scale * db[:, block] / count

    _each_channel(xp, x, body)
    return dx if needs[0] else None, dw.reshape(-1), db.reshape(-1), None, None, None
