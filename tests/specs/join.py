"""Rows for ruda_tensor/ops/join.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def normal(*shapes):
    return lambda rng: tuple(rng.standard_normal(shape) for shape in shapes)


def row(name, call, shape, reference, tag="", **kwargs):
    return Spec(name, call, normal(shape), reference, linear=True, tag=tag, **kwargs)


def with_counts(rng):
    return rng.standard_normal((2, 3)), np.array([2, 0, 3])


ROWS = [
    Spec(
        "concat", lambda x, y, z: rt.concat([x, y, z], axis=-1), normal((2, 1), (2, 3), (2, 2)),
        lambda x, y, z: np.concatenate([x, y, z], -1),
    ),
    Spec(
        "concat", lambda x, y: rt.concat([x, y], axis=None), normal((2, 2), (3,)),
        lambda x, y: np.concatenate([x, y], None), tag="flat",
    ),
    Spec(
        "concat", lambda x, y: rt.concat([x, x, y]), normal((2, 2), (0, 2)),
        lambda x, y: np.concatenate([x, x, y]), tag="twice-and-empty",
    ),
    Spec("stack", lambda x, y: rt.stack([x, y]), normal((2, 3), (2, 3)), lambda x, y: np.stack([x, y])),
    Spec(
        "stack", lambda x, y: rt.stack([x, y], axis=-1), normal((2, 3), (2, 3)),
        lambda x, y: np.stack([x, y], -1), tag="last",
    ),
    Spec("stack", lambda x, y: rt.stack([x, y, x]), normal((), ()), lambda x, y: np.stack([x, y, x]), tag="0-d"),
    row("unstack", lambda x: rt.unstack(x, axis=1), (2, 3), lambda x: tuple(np.moveaxis(x, 1, 0))),
    row("split", lambda x: rt.split(x, [1, 0, 3], axis=1), (2, 4), lambda x: tuple(np.split(x, [1, 1], 1))),
    row("split", lambda x: rt.split(x, 2), (5, 2), lambda x: tuple(np.split(x, [2, 4])), "equal"),
    row("chunk", lambda x: rt.chunk(x, 3, axis=-1), (2, 7), lambda x: tuple(np.array_split(x, 3, -1))),
    row("repeat", lambda x: rt.repeat(x, 3, axis=1), (2, 3), lambda x: np.repeat(x, 3, 1)),
    row("repeat", lambda x: rt.repeat(x, 2), (2, 3), lambda x: np.repeat(x, 2), "flat"),
    Spec(
        "repeat", lambda x, n: rt.repeat(x, n, axis=1), with_counts,
        lambda x, n: np.repeat(x, n, 1), tag="counts",
    ),
    row("tile", lambda x: rt.tile(x, (2, 3)), (2, 2), lambda x: np.tile(x, (2, 3))),
    row("tile", lambda x: rt.tile(x, 2), (2, 3), lambda x: np.tile(x, 2), "fewer"),
    row("tile", lambda x: rt.tile(x, (2, 1, 2)), (3,), lambda x: np.tile(x, (2, 1, 2)), "more"),
    row("pad", lambda x: rt.pad(x, ((1, 0), (2, 3))), (2, 3), lambda x: np.pad(x, ((1, 0), (2, 3)))),
    Spec(
        "pad", lambda x: rt.pad(x, 1, value=2.5), normal((2, 3)),
        lambda x: np.pad(x, 1, constant_values=2.5), tag="value",
    ),
    row("pad", lambda x: rt.pad(x, (2, 3), mode="edge"), (2, 3), lambda x: np.pad(x, (2, 3), "edge"), "edge"),
    row("pad", lambda x: rt.pad(x, (2, 1), mode="reflect"), (3, 4), lambda x: np.pad(x, (2, 1), "reflect"), "reflect"),
    row("pad", lambda x: rt.pad(x, (2, 1), mode="wrap"), (3, 4), lambda x: np.pad(x, (2, 1), "wrap"), "wrap"),
]  # fmt: skip
