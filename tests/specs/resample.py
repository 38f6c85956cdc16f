"""Rows for ruda_tensor/ops/resample.py."""
from __future__ import annotations

import itertools

import numpy as np

import ruda_tensor as rt

from ._spec import Spec
from .reduce import normal


def columns(x, kernel, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """unfold by its definition: one window at a time."""
    x = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    starts = [range(0, n - r + 1, s) for n, r, s in zip(x.shape[2:], reach, stride)]
    found = [
        x[:, :, u : u + reach[0] : dilation[0], v : v + reach[1] : dilation[1]].reshape(x.shape[0], -1)
        for u, v in itertools.product(*starts)
    ]
    return np.stack(found, axis=-1)


def folded(x, size, kernel, **settings):
    """fold as the transpose of unfold, read off the unfolded basis."""
    n, c = x.shape[0], x.shape[1] // int(np.prod(kernel))
    basis = np.eye(c * size[0] * size[1]).reshape(-1, c, *size)
    matrix = columns(basis, kernel, **settings).reshape(len(basis), -1)
    return (x.reshape(n, -1) @ matrix.T).reshape(n, c, *size)


def along(x, axis, count, weight):
    """Resize one axis by the definition: output o is the sum over inputs i of weight(o, i) x[i]."""
    matrix = np.array([[weight(o, i, x.shape[axis], count) for i in range(x.shape[axis])] for o in range(count)])
    return np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)


def nearest(o, i, size, count):
    return float(i == o * size // count)


def linear(o, i, size, count):
    at = np.clip((o + 0.5) * size / count - 0.5, 0, size - 1)
    return max(0.0, 1 - abs(at - i))


def corners(o, i, size, count):
    return max(0.0, 1 - abs(o * (size - 1) / (count - 1) - i))


def cubic(o, i, size, count):
    """Keys' piecewise cubic, a = -3/4, with the border element standing for all beyond it."""
    at, total = (o + 0.5) * size / count - 0.5, 0.0
    for j in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
        t = abs(at - j)
        w = 1.25 * t**3 - 2.25 * t**2 + 1 if t <= 1 else -0.75 * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0
        total += w * (i == min(max(j, 0), size - 1))
    return total


def both(x, size, weight):
    return along(along(x, 2, size[0], weight), 3, size[1], weight)


ROWS: list[Spec] = [
    Spec("unfold", lambda x: rt.unfold(x, (2, 3)), normal(2, 2, 3, 4), lambda x: columns(x, (2, 3)), linear=True),
    Spec(
        "unfold", lambda x: rt.unfold(x, 2, stride=(1, 2), padding=(1, 0), dilation=(2, 1)), normal(1, 2, 3, 5),
        lambda x: columns(x, (2, 2), (1, 2), (1, 0), (2, 1)), linear=True, tag="settings",
    ),
    Spec(
        "fold", lambda x: rt.fold(x, (3, 4), (2, 3)), normal(2, 12, 4), lambda x: folded(x, (3, 4), (2, 3)), linear=True
    ),
    Spec(
        "fold", lambda x: rt.fold(x, (3, 5), 2, stride=(1, 2), padding=(1, 0), dilation=(2, 1)), normal(1, 4, 6),
        lambda x: folded(x, (3, 5), (2, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)), linear=True,
        tag="settings",
    ),
    Spec(
        "interpolate", lambda x: rt.interpolate(x, size=(5, 2)), normal(1, 2, 3, 4),
        lambda x: both(x, (5, 2), nearest), linear=True,
    ),
    Spec(
        "interpolate", lambda x: rt.interpolate(x, scale_factor=(2.0, 1.5)), normal(2, 1, 2, 4),
        lambda x: both(x, (4, 6), nearest), linear=True, tag="factor",
    ),
    Spec(
        "interpolate", lambda x: rt.interpolate(x, size=(5, 3), mode="bilinear"), normal(1, 2, 3, 4),
        lambda x: both(x, (5, 3), linear), linear=True, tag="bilinear",
    ),
    Spec(
        "interpolate", lambda x: rt.interpolate(x, size=(4, 3), mode="bilinear", align_corners=True), normal(1, 1, 3, 5),
        lambda x: both(x, (4, 3), corners), linear=True, tag="corners",
    ),
    Spec(
        "interpolate", lambda x: rt.interpolate(x, size=(7, 3), mode="bicubic"), normal(1, 1, 4, 4),
        lambda x: both(x, (7, 3), cubic), linear=True, tag="bicubic",
    ),
    Spec(
        "interpolate", lambda x: rt.interpolate(x, size=7, mode="linear"), normal(2, 1, 3),
        lambda x: along(x, 2, 7, linear), linear=True, tag="linear",
    ),
]  # fmt: skip
