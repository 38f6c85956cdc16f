"""Rows for ruda_tensor/ops/conv.py, against loops that follow the definition."""
from __future__ import annotations

import itertools

import numpy as np

import ruda_tensor as rt

from ._domains import draws
from ._spec import Spec


def normal(*shape):
    return lambda rng: rng.standard_normal(shape)


def correlate(x, w, b=None, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    """conv2d by its definition, one output position at a time."""
    x = np.pad(x, ((0, 0), (0, 0), *pads))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation)]
    count = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride)]
    y = np.zeros((x.shape[0], w.shape[0], *count))
    per_out, per_in = w.shape[0] // groups, w.shape[1]
    for o, u, v in itertools.product(range(w.shape[0]), range(count[0]), range(count[1])):
        first = o // per_out * per_in
        rows = slice(u * stride[0], u * stride[0] + reach[0], dilation[0])
        columns = slice(v * stride[1], v * stride[1] + reach[1], dilation[1])
        y[:, o, u, v] = np.sum(x[:, first : first + per_in, rows, columns] * w[o], axis=(1, 2, 3))
    return y if b is None else y + b[:, None, None]


def spread(x, w, b=None, stride=(1, 1), padding=(0, 0), extra=(0, 0), dilation=(1, 1), groups=1):
    """conv_transpose2d by its definition, adding one input position at a time."""
    n, c, h, v = x.shape
    kh, kw = w.shape[2:]
    size = [
        (m - 1) * s - 2 * p + d * (k - 1) + e + 1
        for m, s, p, d, k, e in zip((h, v), stride, padding, dilation, (kh, kw), extra)
    ]
    full = np.zeros((n, w.shape[1] * groups, size[0] + 2 * padding[0], size[1] + 2 * padding[1]))
    for i, r, q, a, t in itertools.product(range(c), range(h), range(v), range(kh), range(kw)):
        first = i // (c // groups) * w.shape[1]
        row, column = r * stride[0] + a * dilation[0], q * stride[1] + t * dilation[1]
        full[:, first : first + w.shape[1], row, column] += x[:, i, r, q, None] * w[i, :, a, t]
    y = full[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]
    return y if b is None else y + b[:, None, None]


def correlate1(x, w, b=None, stride=1, pads=(0, 0), dilation=1, groups=1):
    y = correlate(x[:, :, None], w[:, :, None], b, (1, stride), ((0, 0), pads), (1, dilation), groups)
    return y[:, :, 0]


ROWS: list[Spec] = [
    Spec("conv2d", rt.conv2d, draws(normal(2, 2, 4, 5), normal(3, 2, 2, 3)), correlate),
    Spec(
        "conv2d", lambda x, w, b: rt.conv2d(x, w, b, padding=1), draws(normal(1, 1, 3, 4), normal(2, 1, 3, 3), normal(2)),
        lambda x, w, b: correlate(x, w, b, pads=((1, 1), (1, 1))), tag="bias-padding",
    ),
    Spec(
        "conv2d", lambda x, w: rt.conv2d(x, w, padding=1), draws(normal(1, 4, 3, 3), normal(1, 4, 3, 2)),
        lambda x, w: correlate(x, w, pads=((1, 1), (1, 1))), tag="many-channels",
    ),
    Spec(
        "conv2d", lambda x, w: rt.conv2d(x, w, stride=(2, 3), padding=(1, 0), dilation=(1, 2)),
        draws(normal(2, 1, 5, 8), normal(2, 1, 3, 2)),
        lambda x, w: correlate(x, w, None, (2, 3), ((1, 1), (0, 0)), (1, 2)), tag="stride-dilation",
    ),
    Spec(
        "conv2d", lambda x, w, b: rt.conv2d(x, w, b, padding="same", groups=2),
        draws(normal(1, 4, 3, 3), normal(2, 2, 2, 3), normal(2)),
        lambda x, w, b: correlate(x, w, b, pads=((0, 1), (1, 1)), groups=2), tag="groups-same",
    ),
    Spec(
        "conv2d", lambda x, w: rt.conv2d(x, w, padding="valid", groups=3), draws(normal(1, 3, 3, 3), normal(3, 1, 2, 2)),
        lambda x, w: correlate(x, w, groups=3), tag="depthwise",
    ),
    Spec(
        "conv2d", lambda x, w, b: rt.conv2d(x, w, b), draws(normal(2, 3, 2, 2), normal(2, 3, 1, 1), normal(2)),
        correlate, tag="1x1",
    ),
    Spec(
        "conv2d", lambda x, w: rt.conv2d(x, w, padding=3), draws(normal(1, 1, 2, 2), normal(1, 1, 2, 2)),
        lambda x, w: correlate(x, w, pads=((3, 3), (3, 3))), tag="wide-padding",
    ),
    Spec("conv1d", rt.conv1d, draws(normal(2, 2, 6), normal(3, 2, 3)), correlate1),
    Spec(
        "conv1d", lambda x, w, b: rt.conv1d(x, w, b, stride=2, padding=2, dilation=2),
        draws(normal(1, 1, 7), normal(2, 1, 3), normal(2)),
        lambda x, w, b: correlate1(x, w, b, 2, (2, 2), 2), tag="stride-dilation",
    ),
    Spec("conv_transpose2d", rt.conv_transpose2d, draws(normal(2, 2, 2, 3), normal(2, 3, 2, 2)), spread),
    Spec(
        "conv_transpose2d",
        lambda x, w, b: rt.conv_transpose2d(x, w, b, stride=(2, 3), padding=1, output_padding=(1, 2)),
        draws(normal(1, 2, 2, 2), normal(2, 1, 3, 3), normal(1)),
        lambda x, w, b: spread(x, w, b, (2, 3), (1, 1), (1, 2)), tag="stride",
    ),
    Spec(
        "conv_transpose2d", lambda x, w, b: rt.conv_transpose2d(x, w, b, dilation=2, groups=2, padding=(0, 1)),
        draws(normal(1, 2, 2, 3), normal(2, 2, 2, 2), normal(4)),
        lambda x, w, b: spread(x, w, b, padding=(0, 1), dilation=(2, 2), groups=2), tag="dilation-groups",
    ),
]  # fmt: skip
