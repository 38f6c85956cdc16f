"""Rows for ruda_tensor/ops/pool.py, against loops over windows."""
from __future__ import annotations

import itertools

import numpy as np

import ruda_tensor as rt

from ._spec import Spec
from .reduce import apart, normal


def windows(size, kernel, stride, padding, dilation=1, ceil=False):
    """The places that each window holds, those in the padding left out, and its extent within the padded axis."""
    reach = (kernel - 1) * dilation + 1
    found = []
    for start in itertools.count(-padding, stride):
        beyond = start + reach > size + padding
        if beyond and (not ceil or start >= size):
            return found
        places = [start + t * dilation for t in range(kernel)]
        extent = min(start + reach, size + padding) - start
        found.append(([p for p in places if 0 <= p < size], extent))
        if beyond:
            return found


def pool(x, function, rows, columns, include=None):
    """Apply `function` to each window of the last two axes; with `include`, sum and divide as avg_pool2d."""
    y = np.empty((*x.shape[:-2], len(rows), len(columns)), x.dtype)
    for (u, (r, tall)), (v, (c, wide)) in itertools.product(enumerate(rows), enumerate(columns)):
        part = x[..., r, :][..., c]
        count = 1 if include is None else tall * wide if include else len(r) * len(c)
        y[..., u, v] = function(part, axis=(-2, -1)) / count
    return y


def alone(*shape):
    """Values that no two of are near, so that every winner is clear."""
    return apart(*shape)


ROWS: list[Spec] = [
    Spec(
        "max_pool2d", lambda x: rt.max_pool2d(x, 2), alone(1, 2, 4, 5),
        lambda x: pool(x, np.max, windows(4, 2, 2, 0), windows(5, 2, 2, 0)),
    ),
    Spec(
        "max_pool2d", lambda x: rt.max_pool2d(x, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(1, 2)), alone(2, 4, 6),
        lambda x: pool(x, np.max, windows(4, 3, 1, 1), windows(6, 2, 2, 0, 2)), tag="settings",
    ),
    Spec(
        "max_pool2d", lambda x: rt.max_pool2d(x, 2, stride=2, padding=1, ceil_mode=True), alone(4, 3),
        lambda x: pool(x, np.max, windows(4, 2, 2, 1, 1, True), windows(3, 2, 2, 1, 1, True)), tag="ceil",
    ),
    Spec(
        "max_pool1d", lambda x: rt.max_pool1d(x, 3, stride=2, padding=1), alone(2, 7),
        lambda x: pool(x[..., None, :], np.max, [([0], 1)], windows(7, 3, 2, 1))[..., 0, :],
    ),
    Spec(
        "avg_pool2d", lambda x: rt.avg_pool2d(x, 2), normal(1, 2, 4, 5),
        lambda x: pool(x, np.sum, windows(4, 2, 2, 0), windows(5, 2, 2, 0), True), linear=True,
    ),
    Spec(
        "avg_pool2d", lambda x: rt.avg_pool2d(x, (3, 2), stride=2, padding=1, count_include_pad=False), normal(2, 5, 4),
        lambda x: pool(x, np.sum, windows(5, 3, 2, 1), windows(4, 2, 2, 1), False), linear=True, tag="without-padding",
    ),
    Spec(
        "avg_pool2d", lambda x: rt.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True), normal(4, 6),
        lambda x: pool(x, np.sum, windows(4, 3, 2, 1, 1, True), windows(6, 3, 2, 1, 1, True), True), linear=True,
        tag="ceil",
    ),
    Spec(
        "avg_pool1d", lambda x: rt.avg_pool1d(x, 3, stride=1), normal(3, 5),
        lambda x: pool(x[..., None, :], np.sum, [([0], 1)], windows(5, 3, 1, 0), True)[..., 0, :], linear=True,
    ),
]  # fmt: skip
