"""Rows for ruda_tensor/ops/softmax.py."""
from __future__ import annotations

import numpy as np
import scipy.special

import ruda_tensor as rt

from ._spec import Spec
from .reduce import normal


def masked(rng):
    mask = np.array([[True, False, True, True], [True, True, True, False], [True, False, False, False]])
    return rng.standard_normal((3, 4)), mask


def masked_reference(x, mask):
    return scipy.special.logsumexp(np.where(mask, x, -np.inf), axis=1)


ROWS: list[Spec] = [
    Spec("softmax", lambda x: rt.softmax(x), normal(3, 5), lambda x: scipy.special.softmax(x, axis=-1)),
    Spec(
        "softmax", lambda x: rt.softmax(x, axis=1), normal(2, 3, 4),
        lambda x: scipy.special.softmax(x, axis=1), tag="middle",
    ),
    Spec("softmax", lambda x: rt.softmax(x, axis=0), normal(4), lambda x: scipy.special.softmax(x), tag="1-d"),
    Spec("log_softmax", lambda x: rt.log_softmax(x), normal(3, 5), lambda x: scipy.special.log_softmax(x, axis=-1)),
    Spec(
        "log_softmax", lambda x: rt.log_softmax(x, axis=0), normal(3, 2, 2),
        lambda x: scipy.special.log_softmax(x, axis=0), tag="first",
    ),
    Spec("logsumexp", lambda x: rt.logsumexp(x), normal(3, 5), scipy.special.logsumexp),
    Spec(
        "logsumexp", lambda x: rt.logsumexp(x, axis=(0, 2), keepdims=True), normal(2, 3, 4),
        lambda x: scipy.special.logsumexp(x, axis=(0, 2), keepdims=True), tag="axes",
    ),
    Spec("logsumexp", lambda x, mask: rt.logsumexp(x, axis=1, where=mask), masked, masked_reference, tag="where"),
]  # fmt: skip
