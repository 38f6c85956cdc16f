"""Rows for ruda_tensor/ops/index.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def picked(tag, key, shape=(3, 4)):
    """One key that tensors and NumPy arrays understand alike."""
    return Spec(
        "getitem", lambda x: x[key], lambda rng: (rng.standard_normal(shape),), lambda x: np.asarray(x[key]),
        linear=True, tag=tag,
    )  # fmt: skip


def assigned(tag, key, value_shape, shape=(3, 4)):
    def reference(x, y):
        out = x.copy()
        out[key] = y
        return out

    return Spec(
        "slice_assign", lambda x, y: rt.slice_assign(x, key, y),
        lambda rng: (rng.standard_normal(shape), rng.standard_normal(value_shape)), reference, tag=tag,
    )  # fmt: skip


def with_ids(shape, ids):
    return lambda rng: (rng.standard_normal(shape), np.array(ids))


def scatter_reference(x, i, y):
    out = x.copy()
    for row, column in np.ndindex(i.shape):
        out[row, i[row, column]] = y[row, column]
    return out


def scatter_add_reference(x, i, y):
    out = x.copy()
    for row, column in np.ndindex(i.shape):
        out[row, i[row, column]] += y[row, column]
    return out


def values_at(x, i):
    return np.stack([x[row][i[row]] for row in range(len(i))])


def segment_reference(x, i):
    return np.stack([x[i == s].sum(0) for s in range(4)])


MASK = np.array([[True, False, False, True], [False, False, False, False], [True, True, True, False]])
REPEATED = [[0, 2, 2], [3, 3, 0]]

ROWS = [
    picked("integer", 1),
    picked("0-d", (1, -2)),
    picked("slices", (slice(None, None, -1), slice(3, 0, -2))),
    picked("new-axes", (None, ..., 2, None)),
    picked("list", [2, 0, 2]),
    picked("pairs", ([0, 2, 0], [1, 3, 1])),
    picked("grid", ([[0], [2]], [[1, 1, 3]])),
    picked("mixed", (slice(1, None), [3, 3, -4])),
    picked("separated", ([0, 1], slice(None, None, -1), [2, 2]), (2, 2, 3)),
    picked("integer-counts-as-array", (0, slice(None), [2, 0]), (2, 3, 3)),
    picked("mask", MASK),
    picked("mask-of-rows", (np.array([True, False, True]), slice(1, 3))),
    picked("mask-and-array", (slice(None), np.array([True, False, True]), [1, 0]), (2, 3, 2)),
    picked("no-element", (slice(0, 0), [1])),
    Spec("take", lambda x, i: rt.take(x, i, axis=0), with_ids((4, 3), [3, 0, 3, -1]), lambda x, i: x[i]),
    Spec("take", lambda x, i: rt.take(x, i, axis=1), with_ids((2, 4), REPEATED), lambda x, i: x[:, i], tag="grid"),
    Spec("take", lambda x, i: rt.take(x, i), with_ids((3,), 1), lambda x, i: x[i], tag="0-d-id"),
    Spec(
        "take_along_axis", lambda x, i: rt.take_along_axis(x, i), with_ids((2, 4), REPEATED),
        lambda x, i: np.take_along_axis(x, i, -1),
    ),
    Spec(
        "take_along_axis", lambda x, i: rt.take_along_axis(x, i, axis=0), with_ids((4, 3), [[1], [1]]),
        lambda x, i: np.take_along_axis(x, i, 0), tag="ids-broadcast",
    ),
    Spec(
        "take_along_axis", lambda x, i: rt.take_along_axis(x, i, axis=1), with_ids((1, 4), REPEATED),
        lambda x, i: np.take_along_axis(x, i, 1), tag="values-broadcast",
    ),
    Spec("gather", lambda x, i: rt.gather(x, i, axis=1), with_ids((2, 4), REPEATED), values_at),
    Spec("gather", lambda x, i: rt.gather(x, i), with_ids((3, 4), REPEATED), values_at, tag="fewer-rows"),
    Spec(
        "scatter", lambda x, i, y: rt.scatter(x, i, y, axis=1),
        lambda rng: (rng.standard_normal((2, 4)), np.array(REPEATED), rng.standard_normal((2, 3))), scatter_reference,
    ),
    Spec(
        "scatter_add", lambda x, i, y: rt.scatter_add(x, i, y, axis=1),
        lambda rng: (rng.standard_normal((3, 4)), np.array(REPEATED), rng.standard_normal((2, 3))),
        scatter_add_reference,
    ),
    assigned("slice", (slice(None, None, 2), slice(1, 3)), (2, 2)),
    assigned("broadcast", (..., 1), (1,)),
    assigned("0-d", (1, 2), ()),
    assigned("repeated", [0, 0, 2], (3, 4)),
    assigned("pairs-repeated", ([0, 2, 0], [1, 3, 1]), (3,)),
    assigned("mask", MASK, (5,)),
    assigned("sliced-and-separated", (slice(1, None), [0, 0], slice(None), [1, 1]), (2, 2, 1), (3, 2, 2, 2)),
    Spec(
        "one_hot", lambda i: rt.one_hot(i, 4), lambda rng: (np.array([[0, 3], [1, 1]]),),
        lambda i: np.eye(4)[i], order=0, half=False,
    ),
    Spec(
        "segment_sum", lambda x, i: rt.segment_sum(x, i, 4), with_ids((6, 2), [3, 0, -1, 3, 0, 3]), segment_reference
    ),
    Spec(
        "segment_sum", lambda x, i: rt.segment_sum(x, i, 4), with_ids((5,), [1, 1, 0, 2, 1]), segment_reference,
        tag="1-d",
    ),
]  # fmt: skip
