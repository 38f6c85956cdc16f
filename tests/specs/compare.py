"""Rows for ruda_tensor/ops/compare.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import apart, away, draws, flags, integers, levels, uniform
from ._spec import Spec

ties = draws(levels(3, 4), levels(3, 4))
cross = draws(levels(4), levels(3, 1))
near = uniform(-2.0, 2.0, 3, 4)
SPECIAL = np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf])


def special(rng):
    return (rng.permutation(SPECIAL),)


def comparison(name):
    reference = getattr(np, name)

    def call(x, y):
        return getattr(rt, name)(x, y)

    return [
        Spec(name, call, ties, reference, order=0),
        Spec(name, call, cross, reference, order=0, tag="broadcast"),
        Spec(name, lambda x: call(x, 1), draws(levels(9)), lambda x: reference(x, 1), order=0, tag="number"),
        Spec(name, call, draws(integers(-2, 3, 9), integers(-2, 3, 9)), reference, order=0, tag="integers"),
    ]


NAMES = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
ASKED = ("isnan", "isinf", "isfinite", "signbit")

QUESTIONS = [row for name in NAMES for row in comparison(name)] + [
    Spec(name, lambda x, name=name: getattr(rt, name)(x), special, getattr(np, name), order=0) for name in ASKED
]

CHOICES = [
    Spec("where", lambda c, x, y: rt.where(c, x, y), draws(flags(3, 4), near, near), np.where, linear=True),
    Spec(
        "where", lambda c, x, y: rt.where(c, x, y), draws(flags(3, 1), uniform(-2.0, 2.0, 4), uniform(-2.0, 2.0)),
        np.where, linear=True, tag="broadcast",
    ),
    Spec(
        "where", lambda c, x: rt.where(c, x, 0.0), draws(flags(3, 4), near), lambda c, x: np.where(c, x, 0.0),
        linear=True, tag="zero",
    ),
    Spec(
        "where", lambda c, x: rt.where(c, 1.5, x), draws(flags(3, 4), near), lambda c, x: np.where(c, 1.5, x),
        tag="number",
    ),
    Spec(
        "where_safe", lambda x: rt.where_safe(x > 0, rt.sqrt, x, lambda x: 3.0 * x), draws(away((0.0,), 3, 4)),
        lambda x: np.where(x > 0, np.sqrt(np.abs(x)), 3.0 * x),
    ),
    Spec("maximum", lambda x, y: rt.maximum(x, y), apart(0.1, 3, 4), np.maximum),
    Spec("maximum", lambda x: rt.maximum(x, 0.5), draws(away((0.5,), 9)), lambda x: np.maximum(x, 0.5), tag="number"),
    Spec("minimum", lambda x, y: rt.minimum(x, y), apart(0.1, 3, 4), np.minimum),
    Spec("minimum", lambda x: rt.minimum(0.5, x), draws(away((0.5,), 9)), lambda x: np.minimum(x, 0.5), tag="number"),
    Spec("clip", lambda x: rt.clip(x, -1, 1.5), draws(away((-1.0, 1.5), 3, 4)), lambda x: np.clip(x, -1, 1.5)),
    Spec("clip", lambda x: rt.clip(x, min=-1), draws(away((-1.0,), 9)), lambda x: np.maximum(x, -1), tag="min"),
    Spec("clip", lambda x: rt.clip(x, max=1), draws(away((1.0,), 9)), lambda x: np.minimum(x, 1), tag="max"),
    Spec(
        "clip", lambda x, low, high: rt.clip(x, low, high),
        draws(away((-1.0, 1.0), 3, 4), uniform(-1.1, -0.9, 4), uniform(0.9, 1.1, 3, 1)), np.clip, tag="tensors",
    ),
    Spec(
        "clip", lambda x: rt.clip(x, -1, 300), draws(integers(-9, 10, 9)), lambda x: np.clip(x, -1, 300), order=0,
        tag="integers",
    ),
]

ROWS = QUESTIONS + CHOICES
