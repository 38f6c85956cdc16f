"""Rows for ruda_tensor/ops/dropout.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec
from .reduce import normal


def dropped(x, p, seed):
    keep = rt.random.bernoulli(x.shape, p=1 - p, seed=seed, device=rt.Cpu()).numpy()
    return np.where(keep, x / (1 - p), 0.0)


ROWS: list[Spec] = [
    Spec(
        "dropout", lambda x: rt.dropout(x, 0.25, training=True, seed=7), normal(3, 5),
        lambda x: dropped(x, 0.25, 7), linear=True,
    ),
    Spec(
        "dropout", lambda x: rt.dropout(x, 0.9, training=True, key=rt.random.key(1)), normal(2, 3, 4),
        lambda x: dropped(x, 0.9, 1), linear=True, tag="key",
    ),
    Spec("dropout", lambda x: rt.dropout(x, 0.5, training=False), normal(4), lambda x: x, linear=True, tag="off"),
    Spec(
        "dropout", lambda x: rt.dropout(x, 1.0, training=True), normal(4), np.zeros_like, linear=True, tag="everything"
    ),
]  # fmt: skip
