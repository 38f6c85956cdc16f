"""The bodies of convolutions over raw arrays.

Each is a chain of three linear steps over a block of images that stays in the cache. *Spread* lays shifted copies of x
side by side, one for each column tap; *mix* is one matrix product that holds all the arithmetic; *gather* adds up the
results of the row taps, each shifted by its rows. The row taps may be spread instead, whichever moves less memory: for
few input channels, and for strides. The adjoints run the same steps backwards.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..kernels.host import convolve as host
from ._windows import meet

HOST_BLOCK = 2 << 20  # both buffers of a block: long matrix products are faster, until they leave the cache
DEVICE_BLOCK = 256 << 20


class _Block:
    """The geometry of a convolution over `n` images, with the spread images (`xs`) and the unsummed results (`zs`).

    xs: (groups, row taps or 1, column taps, channels, n, rows, v) and zs: (groups, row taps or 1, outputs, n, rows, v).
    `x` and `y` below are blocks of images (n, channels, height, width) at either end.
    """

    def __init__(self, xp: Any, dtype: Any, n: int, ends: tuple, kernel: tuple, settings: dict) -> None:
        (c, h, w), (o, u, v) = ends
        (kh, kw), g = kernel, settings["groups"]
        (sh, sw), (dh, dw), (top, left) = settings["stride"], settings["dilation"], settings["low"]
        self.n, self.groups, self.kernel, self.c, self.o = n, g, kernel, c // g, o // g
        beyond = (kh - 1) * dh  # rows that gathering computes and does not use: each costs products, at 1/20 of a move
        self.rows_spread = sh > 1 or kh * kw * c <= kw * c + kh * o + 0.05 * kh * kw * c * o * beyond / max(1, u)
        rows = u if self.rows_spread else u + beyond
        self.columns = [meet(w, v, j * dw - left, sw) for j in range(kw)]
        self.rows = [meet(h, u, i * dh - top, sh) for i in range(kh)] if self.rows_spread else [meet(h, rows, -top, 1)]
        self.places = [slice(i * dh, i * dh + (u - 1) * sh + 1, sh) for i in range(kh)]
        self.xs_shape = (g, len(self.rows), kw, c // g, n, rows, v)
        self.zs_shape = (g, 1 if self.rows_spread else kh, o // g, n, rows, v)
        self.xp, self.dtype = xp, dtype
        self.length = n * rows * v

    def _grouped(self, x: Any) -> Any:
        """View images (n, channels, height, width) as (groups, channels, n, height, width)."""
        n, c, h, w = x.shape
        return x.reshape(n, self.groups, c // self.groups, h, w).transpose(1, 2, 0, 3, 4)

    def matrix(self, a: Any) -> Any:
        """View xs or zs as one matrix per group: taps and channels by positions."""
        return a.reshape(self.groups, -1, self.length)

    def empty(self, shape: tuple) -> Any:
        return self.xp.empty(shape, self.dtype)

    def zeros(self, shape: tuple) -> Any:
        return self.xp.zeros(shape, self.dtype)

    def spread(self, x: Any, xs: Any) -> None:
        """Write the shifted copies of x; what meets padding keeps the zeros that `xs` starts with."""
        x = self._grouped(x)
        for i, (to_rows, rows) in enumerate(self.rows):
            for j, (to_columns, columns) in enumerate(self.columns):
                xs[:, i, j, ..., to_rows, to_columns] = x[..., rows, columns]

    def fold(self, xs: Any, x: Any, bias: Any) -> None:
        """The adjoint of `spread`: add the shifted copies up into x, and the bias."""
        x = self._grouped(x)
        x[...] = 0 if bias is None else bias.reshape(self.groups, -1, 1, 1, 1)
        for i, (to_rows, rows) in enumerate(self.rows):
            for j, (to_columns, columns) in enumerate(self.columns):
                x[..., rows, columns] += xs[:, i, j, ..., to_rows, to_columns]

    def gather(self, zs: Any, y: Any, bias: Any) -> None:
        """Sum the row taps into y, and add the bias."""
        y = self._grouped(y)
        taps = [zs[:, 0]] if self.rows_spread else [zs[:, i, ..., place, :] for i, place in enumerate(self.places)]
        if bias is not None:
            taps[0] += bias.reshape(self.groups, -1, 1, 1, 1)
        if len(taps) == 1:
            y[...] = taps[0]
        else:
            self.xp.add(taps[0], taps[1], out=y)
        for tap in taps[2:]:
            y += tap

    def scatter(self, y: Any, zs: Any) -> None:
        """The adjoint of `gather`: write y once for each row tap, into zeros."""
        y = self._grouped(y)
        if self.rows_spread:
            zs[:, 0] = y
            return
        for i, place in enumerate(self.places):
            zs[:, i, ..., place, :] = y

    def weight(self, w: Any) -> Any:
        """The weight as the matrix of `mix`."""
        w = w.reshape(self.groups, self.o, self.c, *self.kernel)
        order = (0, 1, 3, 4, 2) if self.rows_spread else (0, 3, 1, 4, 2)
        rows = self.zs_shape[1] * self.o
        return self.xp.ascontiguousarray(w.transpose(order)).reshape(self.groups, rows, math.prod(self.xs_shape[1:4]))

    def unweight(self, m: Any) -> Any:
        """The adjoint and inverse of `weight`."""
        kh, kw = self.kernel
        if self.rows_spread:
            m = m.reshape(self.groups, self.o, kh, kw, self.c).transpose(0, 1, 4, 2, 3)
        else:
            m = m.reshape(self.groups, kh, self.o, kw, self.c).transpose(0, 2, 4, 1, 3)
        return self.xp.ascontiguousarray(m).reshape(self.groups * self.o, self.c, kh, kw)


def _blocks(
    xp: Any, dtype: Any, count: int, ends: tuple, kernel: tuple, settings: dict
) -> Iterator[tuple[slice, _Block]]:
    """Cut `count` images into blocks that fit the cache; equal blocks share their `_Block`."""
    block = _Block(xp, dtype, 1, ends, kernel, settings)
    each = (math.prod(block.xs_shape) + math.prod(block.zs_shape)) * dtype.itemsize
    step = max(1, min(count, (HOST_BLOCK if xp is np else DEVICE_BLOCK) // max(1, each)))
    for start in range(0, count, step):
        n = min(step, count - start)
        if block.n != n:
            block = _Block(xp, dtype, n, ends, kernel, settings)
        yield slice(start, start + n), block


def convolve(
    xp: Any, x: Any, w: Any, b: Any, *, count: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    """y of `count` rows and columns from images x, a weight and a bias or None."""
    settings = {"stride": stride, "low": low, "dilation": dilation, "groups": groups}
    y = xp.empty((x.shape[0], w.shape[0], *count), x.dtype)
    if y.size == 0 or host.convolve(xp, x, w, b, y, settings):
        return y
    last = xs = zs = m = None
    for part, block in _blocks(xp, x.dtype, x.shape[0], (x.shape[1:], y.shape[1:]), w.shape[2:], settings):
        if block is not last:
            last, xs, zs, m = block, block.zeros(block.xs_shape), block.empty(block.zs_shape), block.weight(w)
        block.spread(x[part], xs)
        xp.matmul(m, block.matrix(xs), out=block.matrix(zs))
        block.gather(zs, y[part], b)
    return y


def transpose(
    xp: Any, y: Any, w: Any, b: Any, *, size: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    """The adjoint of `convolve` in x, whose images have `size` rows and columns; and a bias or None."""
    settings = {"stride": stride, "low": low, "dilation": dilation, "groups": groups}
    if stride == (1, 1):  # then it is itself a convolution, by the weight turned round, and needs no slow `fold`
        o, c, *kernel = w.shape[0] // groups, *w.shape[1:]
        w = w.reshape(groups, o, c, *kernel).swapaxes(1, 2)[..., ::-1, ::-1].reshape(groups * c, o, *kernel)
        settings["low"] = tuple((k - 1) * d - p for k, d, p in zip(kernel, dilation, low))
        return convolve(xp, y, w, b, count=size, **settings)
    x = xp.empty((y.shape[0], w.shape[1] * groups, *size), y.dtype)
    last = xs = zs = m = None
    for part, block in _blocks(xp, y.dtype, y.shape[0], (x.shape[1:], y.shape[1:]), w.shape[2:], settings):
        if block is not last:
            last, xs, zs = block, block.empty(block.xs_shape), block.zeros(block.zs_shape)
            m = block.weight(w).swapaxes(1, 2)
        block.scatter(y[part], zs)
        xp.matmul(m, block.matrix(zs), out=block.matrix(xs))
        block.fold(xs, x[part], b)
    return x


def weigh(xp: Any, x: Any, y: Any, *, kernel: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int) -> Any:
    """The adjoint of `convolve` in w, which has a `kernel` of rows and columns."""
    settings = {"stride": stride, "low": low, "dilation": dilation, "groups": groups}
    found = host.weigh(xp, x, y, kernel, settings)
    if found is not None:
        return found
    total = last = xs = zs = None
    for part, block in _blocks(xp, x.dtype, x.shape[0], (x.shape[1:], y.shape[1:]), kernel, settings):
        if block is not last:
            last, xs, zs = block, block.zeros(block.xs_shape), block.zeros(block.zs_shape)
        block.spread(x[part], xs)
        block.scatter(y[part], zs)
        a, b = block.matrix(xs), block.matrix(zs)
        if a.shape[1] > b.shape[1]:  # the taller matrix first is up to half again as fast
            product = xp.matmul(a, b.swapaxes(1, 2)).swapaxes(1, 2)
        else:
            product = xp.matmul(b, a.swapaxes(1, 2))
        total = product if total is None else total + product
    if last is None or total is None:
        return xp.zeros((y.shape[1], x.shape[1] // groups, *kernel), x.dtype)
    return last.unweight(total)
