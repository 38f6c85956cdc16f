"""Rows for ruda_tensor/ops/feed_forward.py."""
from __future__ import annotations

import numpy as np
from scipy import special

import ruda_tensor as rt

from ._spec import Spec


def reference(x, w1, b1, w2, b2, residual=0.0):
    h = x @ w1 + b1
    return h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2 @ w2 + b2 + residual


def erf_gelu(h):
    return h * special.ndtr(h)


def inputs(*shapes):
    return lambda rng: tuple(rng.standard_normal(shape) * 0.7 for shape in shapes)


def off_the_kink(rng):
    """Inputs whose x w1 + b1 are not near 0, where relu has no slope."""
    while True:
        x, w1, *rest = inputs((4, 3), *SHAPES)(rng)
        if np.abs(x @ w1 + rest[0]).min() > 0.02:
            return x, w1, *rest


SHAPES = (3, 4), (4,), (4, 2), (2,)
ROWS = [
    Spec("feed_forward", lambda *a: rt.feed_forward(*a), inputs((4, 3), *SHAPES), reference),
    Spec(
        "feed_forward", lambda *a: rt.feed_forward(*a[:5], residual=a[5]), inputs((2, 2, 3), *SHAPES, (2, 2, 2)), reference,
        tag="residual",
    ),
    Spec(
        "feed_forward", lambda x, w1, w2: rt.feed_forward(x, w1, None, w2, None), inputs((4, 3), (3, 4), (4, 2)),
        lambda x, w1, w2: reference(x, w1, 0.0, w2, 0.0), tag="no-bias",
    ),
    Spec("feed_forward", lambda *a: rt.feed_forward(*a), inputs((3,), *SHAPES), reference, tag="row"),
    Spec(
        "feed_forward", lambda *a: rt.feed_forward(*a, activation="gelu"), inputs((4, 3), *SHAPES),
        lambda x, w1, b1, w2, b2: erf_gelu(x @ w1 + b1) @ w2 + b2, tag="gelu",
    ),
    Spec(
        "feed_forward", lambda *a: rt.feed_forward(*a, activation="silu"), inputs((4, 3), *SHAPES),
        lambda x, w1, b1, w2, b2: (h := x @ w1 + b1) * special.expit(h) @ w2 + b2, tag="silu",
    ),
    Spec(
        "feed_forward", lambda *a: rt.feed_forward(*a, activation="relu"), off_the_kink,
        lambda x, w1, b1, w2, b2: np.maximum(x @ w1 + b1, 0) @ w2 + b2, tag="relu",
    ),
]  # fmt: skip
