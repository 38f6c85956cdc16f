"""Rows for ruda_tensor/ops/feed_forward.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def reference(x, w1, b1, w2, b2, residual=0.0):
    h = x @ w1 + b1
    return h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2 @ w2 + b2 + residual


def inputs(*shapes):
    return lambda rng: tuple(rng.standard_normal(shape) * 0.7 for shape in shapes)


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
]  # fmt: skip
