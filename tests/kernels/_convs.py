"""Convolutions, normalized channels and pooled windows in float64 by their formulas, and checks of the kernels against them."""
from __future__ import annotations

from typing import Any

import numpy as np

from ruda_tensor import backend
from ruda_tensor.kernels import batch_norm, conv, pool
from ruda_tensor.kernels.gate import real_of

from ._cases import close, draw, put

# (x, (outputs, rows, columns of the kernel), stride, padding, dilation, groups)
CONVS = {
    "3x3": ((3, 4, 8, 8), (8, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "one channel": ((2, 1, 9, 7), (5, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "three channels in, fewer out": ((5, 3, 8, 16), (2, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "stride 2": ((2, 3, 9, 11), (4, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    "dilation": ((2, 3, 11, 12), (4, 3, 2), (1, 2), (2, 0), (2, 3), 1),
    "groups": ((3, 4, 6, 8), (6, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    "depthwise": ((2, 6, 5, 8), (6, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    "1x1": ((3, 5, 4, 6), (7, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1, fewer out": ((3, 6, 4, 5), (2, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "1x1 in groups": ((3, 6, 4, 5), (9, 1, 1), (1, 1), (0, 0), (1, 1), 3),
    "1x1, stride 2": ((3, 5, 5, 6), (2, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    "much padding": ((2, 3, 3, 4), (2, 2, 2), (1, 1), (3, 2), (1, 1), 1),
    "many rows of columns": ((4, 8, 4, 4), (3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "a signal": ((3, 4, 1, 13), (5, 1, 5), (1, 1), (0, 2), (1, 1), 1),
}  # fmt: skip


def count_of(size: tuple, kernel: tuple, stride: tuple, padding: tuple, dilation: tuple) -> tuple:
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, kernel, stride, padding, dilation))


class Reference:
    """A convolution tap by tap, over padded images in float64; `size` and `count` of the unpadded ends."""

    def __init__(self, size: tuple, count: tuple, kernel: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int) -> None:
        self.size, self.count, self.kernel, self.groups, self.low = size, count, kernel, groups, low
        self.reach = tuple((c - 1) * s + (k - 1) * d + 1 for c, s, k, d in zip(count, stride, kernel, dilation))
        self.padded = tuple(max(r, n + p) for r, n, p in zip(self.reach, size, low))
        self.taps = []
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                places = zip((i, j), count, stride, dilation)
                self.taps.append((i, j, *[slice(t * d, t * d + (c - 1) * s + 1, s) for t, c, s, d in places]))

    def pad(self, x: np.ndarray) -> np.ndarray:
        (top, left), (h, w) = self.low, self.size
        out = np.zeros((*x.shape[:2], *self.padded))
        out[:, :, top : top + h, left : left + w] = x
        return out.reshape(len(x), self.groups, -1, *self.padded)

    def forward(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        x, w = self.pad(x), w.reshape(self.groups, -1, *w.shape[1:])
        parts = [np.einsum("ngcuv,goc->ngouv", x[..., a, b], w[..., i, j]) for i, j, a, b in self.taps]
        return np.sum(parts, axis=0).reshape(len(x), -1, *self.count)

    def pull(self, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        y, w = y.reshape(len(y), self.groups, -1, *self.count), w.reshape(self.groups, -1, *w.shape[1:])
        x = np.zeros((len(y), self.groups, w.shape[2], *self.padded))
        for i, j, a, b in self.taps:
            x[..., a, b] += np.einsum("ngouv,goc->ngcuv", y, w[..., i, j])
        (top, left), (h, v) = self.low, self.size
        return x.reshape(len(y), -1, *self.padded)[:, :, top : top + h, left : left + v]

    def weigh(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = self.pad(x), y.reshape(len(y), self.groups, -1, *self.count)
        parts = [np.einsum("ngcuv,ngouv->goc", x[..., a, b], y) for _, _, a, b in self.taps]
        return np.stack(parts, -1).reshape(-1, x.shape[2], *self.kernel)


def convolution(xp: Any, rng: Any, dtype: np.dtype, case: tuple, *, shift: int = 0, bias: bool = True, unit: float = 1) -> list:
    """The three convolutions of a case against the formula; `unit` is how much coarser products are than their dtype."""
    shape, (o, *kernel), stride, low, dilation, groups = case
    kernel, size = tuple(kernel), shape[2:]
    count = count_of(size, kernel, stride, low, dilation)
    x, w, b = draw(rng, shape, dtype), draw(rng, (o, shape[1] // groups, *kernel), dtype), draw(rng, o, dtype)
    y, back = draw(rng, (shape[0], o, *count), dtype), draw(rng, shape[1], dtype)
    exact = Reference(size, count, kernel, stride, low, dilation, groups)
    X, W, B, Y, BACK = (a.astype(float) for a in (x, w, b, y, back))
    x, w, b, y, back = (put(xp, a, shift) for a in (x, w, b, y, back))
    settings = {"stride": stride, "low": low, "dilation": dilation, "groups": groups}
    b, back = (b, back) if bias else (None, None)
    found = [
        conv.convolve(xp, x, w, b, count=count, **settings),
        conv.transpose(xp, y, w, back, size=size, **settings),
        conv.weigh(xp, x, y, kernel=kernel, **settings),
    ]
    level = (B.reshape(-1, 1, 1), BACK.reshape(-1, 1, 1)) if bias else (0.0, 0.0)
    expected = [exact.forward(X, W) + level[0], exact.pull(Y, W) + level[1], exact.weigh(X, Y)]
    for name, a, e in zip(("y", "x", "w"), found, expected, strict=True):
        assert a.dtype == dtype
        close(a, e, slack=32 * unit, scale=8 * np.sqrt(np.abs(e).mean() ** 2 + 64), name=name)
    return found


def batch_reference(x: np.ndarray, w: Any, b: Any, g: np.ndarray, eps: float) -> tuple:
    """(out, mean, variance, dx, dweight, dbias)."""
    over = (0, 2)
    mean, var = x.mean(over, keepdims=True), x.var(over, keepdims=True)
    r = 1 / np.sqrt(var + eps)
    y = (x - mean) * r
    column = 1.0 if w is None else w.reshape(1, -1, 1)
    h = g * column
    dx = r * (h - h.mean(over, keepdims=True) - y * (h * y).mean(over, keepdims=True))
    return y * column + (0 if b is None else b.reshape(1, -1, 1)), mean, var, dx, (g * y).sum(over), g.sum(over)


def batch(xp: Any, rng: Any, dtype: np.dtype, shape: tuple, *, weights: str = "same", offset: float = 1.0, shift: int = 0,
          needs: bool = True) -> list:  # fmt: skip
    """batch_norm in training, forward and backward."""
    kind = {"same": dtype, "real": real_of(dtype), "none": None}[weights]
    x, g, c = draw(rng, shape, dtype, offset), draw(rng, shape, dtype), shape[1]
    w, b = (None if kind is None else draw(rng, c, kind) for _ in range(2))
    W, B = (None if v is None else v.astype(float) for v in (w, b))
    out, mean, var, dx, dw, db = batch_reference(x.astype(float), W, B, g.astype(float), 1e-5)
    x, g = put(xp, x, shift), put(xp, g, shift)
    w, b = (None if v is None else put(xp, v) for v in (w, b))
    m, shift, variance = moments = batch_norm.moments(xp, x)
    close(m + shift, mean, name="mean", slack=4)
    close(variance, var, slack=64, scale=var.max() + 1e-3, name="variance")
    found = batch_norm.forward(xp, x, w, b, m, shift, variance, eps=1e-5)
    flags = (needs, kind is not None, kind is not None, False, False, False)
    grads = batch_norm.backward(xp, g, x, w, m, shift, found[1], needs=flags, eps=1e-5)
    close(found[0], out, slack=64, scale=8 + np.abs(out).max(), name="out")
    assert (grads[0] is not None) == needs
    if needs:
        close(grads[0], dx, slack=128, scale=8 * max(1.0, np.abs(dx).max()), name="dx")
    count = np.sqrt(shape[0] * shape[2])
    if kind is not None:
        close(grads[1], dw, slack=64, scale=8 * count, name="dweight")
        close(grads[2], db, slack=64, scale=8 * count, name="dbias")
    close(batch_norm.channel_sums(xp, g), db, slack=64, scale=8 * count, name="sums")
    return [*moments, *found, *grads[:3]]


def pooled(x: np.ndarray, windows: tuple, counts: tuple) -> tuple[np.ndarray, np.ndarray]:
    """(largest numbers, flat places in their image that won; -1 for none), window by window."""
    (kh, sh, dh, ph), (kw, sw, dw, pw) = windows
    planes = x.reshape(-1, *x.shape[-2:])
    out, places = np.full((len(planes), *counts), -np.inf), np.full((len(planes), *counts), -1)
    for n, plane in enumerate(planes):
        for u, v in np.ndindex(*counts):
            at = [(u * sh - ph + i * dh, v * sw - pw + j * dw) for i in range(kh) for j in range(kw)]
            inside = [(h, w) for h, w in at if 0 <= h < plane.shape[0] and 0 <= w < plane.shape[1]]
            if inside:
                h, w = inside[int(np.argmax([plane[p] for p in inside]))]  # the first of the largest, or of the NaN
                out[n, u, v], places[n, u, v] = plane[h, w], h * plane.shape[1] + w
    return out.reshape(*x.shape[:-2], *counts), places


def pool_case(xp: Any, x: np.ndarray, g: np.ndarray, windows: tuple, counts: tuple, shift: int = 0) -> list:
    """The largest numbers of windows and their derivative."""
    with np.errstate(invalid="ignore"):
        out, places = pooled(x.astype(float), windows, counts)
    static = {"windows": windows, "counts": counts, "size": x.shape[-2:]}
    found, taps = pool.max_forward(xp, put(xp, x, shift), **static)
    assert np.array_equal(backend.to_host(found).astype(float), out, equal_nan=True)
    (dx,) = pool.max_backward(xp, put(xp, g, shift), taps, needs=(True,), **static)
    expected = np.zeros((len(places), x.shape[-2] * x.shape[-1]))
    incoming = g.astype(float).reshape(len(places), -1)
    for row, where, values in zip(expected, places.reshape(len(places), -1), incoming):
        np.add.at(row, where[where >= 0], values[where >= 0])
    close(dx, expected.reshape(x.shape), slack=8, name="dx")
    return [found, taps, dx]


def means(xp: Any, x: np.ndarray, g: np.ndarray, windows: tuple, counts: tuple, include: bool, shift: int) -> list:
    """The means of windows and their derivative, by the matrix of each axis; what lies beyond the padding does not count."""
    matrices = []
    for (kernel, stride, _, low), size, count in zip(windows, x.shape[-2:], counts):
        matrix = np.zeros((count, size))
        for i in range(count):
            places = np.arange(i * stride - low, min(i * stride - low + kernel, size + low))
            inside = places[(places >= 0) & (places < size)]
            matrix[i, inside] = 1 / (len(places) if include else len(inside))
        matrices.append(matrix)
    down, across = matrices
    static = {"windows": windows, "counts": counts, "size": x.shape[-2:], "include": include}
    out = pool.avg_forward(xp, put(xp, x, shift), **static)
    close(out, down @ x.astype(float) @ across.T, slack=16, scale=8, name="out")
    (dx,) = pool.avg_backward(xp, put(xp, g, shift), needs=(True,), **static)
    close(dx, down.T @ g.astype(float) @ across, slack=16, scale=8, name="dx")
    return [out, dx]


def each(xp: Any, rng: Any, dtype: np.dtype, names: tuple = ("3x3", "stride 2", "groups", "many rows of columns")) -> list:
    """Every kernel once or more; returns what was computed."""
    found = [a for name in names for a in convolution(xp, rng, dtype, CONVS[name])]
    found += batch(xp, rng, dtype, (5, 9, 1200)) + batch(xp, rng, dtype, (2, 3, 17))
    shape, counts, windows = (2, 9, 11), (5, 6), ((3, 2, 1, 1), (3, 2, 1, 1))
    x, g = draw(rng, shape, dtype), draw(rng, (shape[0], *counts), dtype)
    found += pool_case(xp, x, g, windows, counts)
    return found + means(xp, x, g, windows, counts, False, 0)
