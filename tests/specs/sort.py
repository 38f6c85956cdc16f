"""Rows for ruda_tensor/ops/sort.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec
from .reduce import apart, counts


def largest(x, k, axis):
    order = np.flip(np.argsort(x, axis=axis), axis)
    order = np.take(order, range(k), axis=axis)
    return np.take_along_axis(x, order, axis), order


ROWS: list[Spec] = [
    Spec("sort", lambda x: rt.sort(x), apart(3, 5), lambda x: np.sort(x)),
    Spec(
        "sort", lambda x: rt.sort(x, axis=0, descending=True), apart(4, 3),
        lambda x: np.sort(x, 0)[::-1], tag="descending",
    ),
    Spec("sort", lambda x: rt.sort(x, descending=True), counts(9), lambda x: np.sort(x)[::-1], order=0, tag="integers"),
    Spec("argsort", lambda x: rt.argsort(x), apart(3, 5), np.argsort, order=0),
    Spec(
        "argsort", lambda x: rt.argsort(x, axis=0), counts(9, 2),
        lambda x: np.argsort(x, 0, kind="stable"), order=0, tag="ties",
    ),
    Spec(
        "argsort", lambda x: rt.argsort(x, axis=0, descending=True), apart(4, 3),
        lambda x: np.argsort(-x, 0), order=0, tag="descending",
    ),
    Spec("topk", lambda x: rt.topk(x, 3), apart(2, 6), lambda x: largest(x, 3, -1)),
    Spec("topk", lambda x: tuple(rt.topk(x, 2, axis=0)), apart(4, 3), lambda x: largest(x, 2, 0), tag="axis"),
    Spec(
        "topk", lambda x: rt.topk(x, 2, largest=False).values, apart(2, 6), lambda x: np.sort(x)[:, :2], tag="smallest"
    ),
    Spec(
        "searchsorted", lambda x: rt.searchsorted(rt.sort(rt.reshape(x, (-1,))), x), apart(3, 4),
        lambda x: np.searchsorted(np.sort(x.ravel()), x), order=0,
    ),
    Spec(
        "searchsorted", lambda x, y: rt.searchsorted(x, y, side="right", sorter=rt.argsort(x)),
        lambda rng: (rng.integers(0, 9, 7), rng.integers(0, 9, (2, 3))),
        lambda x, y: np.searchsorted(np.sort(x), y, side="right"), order=0, tag="sorter",
    ),
]  # fmt: skip
