"""The bodies of the normalizations over raw arrays: two passes, cache-sized blocks, all cores under NumPy.

The mean is kept as m + shift, the second being the mean of what the first leaves: one float32 cannot hold the mean of
numbers far from 0, and constant rows then come out as exactly 0. Where a mean is no larger than the deviation its
rounding is lost in that of the numbers, and the passes for the shift are saved.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..kernels.host import rows as host
from ._parallel import each_block
from ._sums import total
from .softmax import row_dots, row_sums

ALONE = 1 << 18  # a matrix product of so many multiplications OpenBLAS does in the thread that asks for it
SHORT = 16  # inner loops shorter than this cost more than what they compute


class _Parts:
    """Sums over rows, gathered by block and added in the order of the blocks: the same bits on any number of cores."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.parts: dict[int, Any] = {}

    def add(self, block: slice, part: Any) -> None:
        self.parts[block.start] = part

    def zeros(self, *shape: int) -> Callable[[slice], Any]:
        """What makes the part of a block, for a kernel to add to."""

        def part(block: slice) -> Any:
            return self.parts.setdefault(block.start, np.zeros(shape, np.float32))

        return part

    def sum(self, shape: tuple[int, ...], dtype: Any) -> Any:
        if not self.parts:
            return self.xp.zeros(shape, dtype)
        parts = self.xp.stack([self.parts[k] for k in sorted(self.parts)])
        return total(self.xp, parts, (0,), False).reshape(shape)


def _mixed(xp: Any, weights: list, rows: Any) -> Any:
    """For each column of weights (None is ones), the sum of the rows times theirs.

    NumPy has matrix products do it, of two columns at least and of few rows: products with one column, and large ones,
    BLAS may split between threads of its own, which ours would wait for.
    """
    if xp is not np or len(rows) < 2:
        return [total(xp, rows if a is None else rows * a, (0,), False) for a in weights]
    columns = np.ones((max(2, len(weights)), len(rows)), rows.dtype)
    for column, a in zip(columns, weights):
        if a is not None:
            column[:] = a[:, 0]
    step = max(2, ALONE // (len(columns) * rows.shape[1]))
    sums = columns[:, :step] @ rows[:step]
    for start in range(step, len(rows), step):
        part = slice(start, start + step)
        sums += columns[:, part] @ rows[part]
    return sums


def _rows(xp: Any, x: Any, axes: int) -> Any:
    """A contiguous view of an array, or of a copy, as rows: the last `axes` axes merged, and those before."""
    n = math.prod(x.shape[x.ndim - axes :])
    return xp.ascontiguousarray(x).reshape(x.size // n if n else 0, n)


def _flat(xp: Any, w: Any) -> Any:
    return None if w is None else xp.ascontiguousarray(w).reshape(-1)


def _none(xp: Any, column: Any) -> Any:
    """A mask of no row. Under CuPy no row's mean is taken for small: to look is to wait."""
    return xp.zeros(column.shape, bool)


def layer_forward(xp: Any, x: Any, weight: Any, bias: Any, *, axes: int, eps: float) -> tuple:
    """out = (x - m) r w + b with r = 1 / sqrt(var + eps)."""
    out = xp.empty(x.shape, x.dtype)
    source, target = _rows(xp, x, axes), _rows(xp, out, axes)
    rows, n = source.shape
    w, b = _flat(xp, weight), _flat(xp, bias)
    m, shift, r = (xp.empty((rows, 1), x.dtype) for _ in range(3))
    if host.layer_forward(xp, source, w, b, target, m, shift, r, eps):
        return out, m, shift, r
    zero = x.dtype.type(0)

    def body(block: slice) -> None:
        x, d = source[block], target[block]
        mean = m[block] = row_sums(xp, x) / n
        xp.subtract(x, mean, out=d)
        shift[block], near, variance = 0, _none(xp, mean), None
        if xp is np:
            variance = row_dots(xp, d, d) / n
            near = mean * mean <= variance
        if variance is None or not near.all():
            rest = shift[block] = xp.where(near, zero, row_sums(xp, d) / n)
            d -= rest
            variance = row_dots(xp, d, d) / n
        scale = r[block] = 1 / xp.sqrt(variance + eps)
        d *= scale
        if w is not None:
            d *= w
        if b is not None:
            d += b

    each_block(xp, rows, 2 * n * x.itemsize, body)
    return out, m, shift, r


def layer_backward(
    xp: Any, g: Any, x: Any, weight: Any, m: Any, shift: Any, r: Any, *, needs: tuple, axes: int, eps: float, add: Any = None
) -> tuple:
    """With y = (x - m) r and h = g w:  dx = r (h - mean(h) - y mean(h y)) + add,  dw = sum(g y),  db = sum(g).

    With y = (c - s) r for a constant s per row, where c is x itself where its mean s is small, else centered and s = 0,
    all sums are of g and of g c, and dx = r (h - (k c + mean(h) - k s)) with k = r mean(h y).
    """
    dx = xp.empty(x.shape, x.dtype)
    source, incoming, target = (_rows(xp, a, axes) for a in (x, g, dx))
    rows, n = source.shape
    w, zero, shape = _flat(xp, weight), x.dtype.type(0), x.shape[x.ndim - axes :]
    both = _Parts(xp)
    columns = both.zeros(2, n) if needs[1] or needs[2] else None
    more = None if add is None else _rows(xp, add, axes)
    if host.layer_backward(xp, incoming, source, w, m, shift, r, more, target if needs[0] else None, columns):
        sums = both.sum((2, *shape), x.dtype) if columns else (None, None)
        return tuple(a if needed else None for a, needed in zip((dx, *sums), needs))
    dw, db = _Parts(xp), _Parts(xp)

    def body(block: slice) -> None:
        g, c, h, s, scale = incoming[block], source[block], target[block], m[block], r[block]
        near = s * scale * s * scale <= 1 if xp is np else _none(xp, s)
        if xp is not np or not near.all():
            c = c - xp.where(near, zero, s)
            c -= xp.where(near, zero, shift[block])
            s = xp.where(near, s, zero)
        product = g * c
        if needs[1] or needs[2]:
            sums = _mixed(xp, [None, s * scale] if xp is np else [None], g)
            db.add(block, sums[0])
        if needs[1]:
            part = _mixed(xp, [scale], product)[0]
            dw.add(block, part - sums[1] if xp is np else part)
        if needs[0]:
            h_sum = row_sums(xp, g) if w is None else row_dots(xp, g, w)
            hc_sum = row_sums(xp, product) if w is None else row_dots(xp, product, w)
            k = scale * (scale * (hc_sum - s * h_sum)) / n
            xp.multiply(c, k, out=product)
            product += h_sum / n - k * s
            if w is None:
                xp.subtract(g, product, out=h)
            else:
                xp.multiply(g, w, out=h)
                h -= product
            h *= scale
            if more is not None:
                h += more[block]

    each_block(xp, rows, 2 * n * x.itemsize, body)
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
    if host.rms_forward(xp, source, w, target, r, eps):
        return out, r

    def body(block: slice) -> None:
        x, y = source[block], target[block]
        r[block] = 1 / xp.sqrt(row_dots(xp, x, x) / n + eps)
        xp.multiply(x, r[block], out=y)
        if w is not None:
            y *= w

    each_block(xp, rows, 2 * n * x.itemsize, body)
    return out, r


def rms_backward(
    xp: Any, g: Any, x: Any, weight: Any, r: Any, *, needs: tuple, axes: int, eps: float, add: Any = None
) -> tuple:
    """With y = x r and h = g w:  dx = r (h - y mean(h y)) + add,  dw = sum(g y)."""
    dx = xp.empty(x.shape, x.dtype)
    source, incoming, target = (_rows(xp, a, axes) for a in (x, g, dx))
    rows, n = source.shape
    w, dw, shape = _flat(xp, weight), _Parts(xp), x.shape[x.ndim - axes :]
    columns = dw.zeros(n) if needs[1] else None
    more = None if add is None else _rows(xp, add, axes)
    if host.rms_backward(xp, incoming, source, w, r, more, target if needs[0] else None, columns):
        return dx if needs[0] else None, dw.sum(shape, x.dtype) if needs[1] else None

    def body(block: slice) -> None:
        g, x, h, scale = incoming[block], source[block], target[block], r[block]
        product = g * x
        if needs[1]:
            dw.add(block, _mixed(xp, [scale], product)[0])
        if needs[0]:
            hx_sum = row_sums(xp, product) if w is None else row_dots(xp, product, w)
            xp.multiply(x, scale * (scale * hx_sum) / n, out=product)
            if w is None:
                xp.subtract(g, product, out=h)
            else:
                xp.multiply(g, w, out=h)
                h -= product
            h *= scale
            if more is not None:
                h += more[block]

    each_block(xp, rows, 2 * n * x.itemsize, body)
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
        body(slice(0, c))
    else:
        each_block(xp, c, 4 * n * length * x.itemsize, body)


@np.errstate(all="ignore")
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
