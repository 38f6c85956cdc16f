"""Rows for ruda_tensor/ops/scan.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec
from .reduce import away_from_zero, normal, zeros_among


def led(scan, first, axis):
    """The reference of a scan with its value for no elements in front."""

    def reference(x):
        shape = list(x.shape)
        shape[axis] = 1
        return np.concatenate([np.full(shape, first), scan(x, axis=axis)], axis=axis)

    return reference


def logcumsumexp(x, axis=-1):
    return np.logaddexp.accumulate(x, axis=axis)


ROWS: list[Spec] = [
    Spec("cumulative_sum", lambda x: rt.cumulative_sum(x), normal(6), np.cumsum, linear=True),
    Spec(
        "cumulative_sum", lambda x: rt.cumulative_sum(x, axis=1), normal(2, 4, 3),
        lambda x: x.cumsum(1), linear=True, tag="axis",
    ),
    Spec(
        "cumulative_sum", lambda x: rt.cumulative_sum(x, axis=0, include_initial=True), normal(3, 2),
        led(np.cumsum, 0.0, 0), linear=True, tag="initial",
    ),
    Spec("cumsum", lambda x: rt.cumsum(x, axis=-1), normal(3, 4), lambda x: x.cumsum(-1), linear=True),
    Spec("cumulative_prod", lambda x: rt.cumulative_prod(x), away_from_zero(5), np.cumprod),
    Spec(
        "cumulative_prod", lambda x: rt.cumulative_prod(x, axis=1), zeros_among(2, 4, 2),
        lambda x: x.cumprod(1), tag="zeros",
    ),
    Spec(
        "cumulative_prod", lambda x: rt.cumulative_prod(x, axis=-1, include_initial=True), away_from_zero(2, 4),
        led(np.cumprod, 1.0, -1), tag="initial",
    ),
    Spec("cumprod", lambda x: rt.cumprod(x, axis=0), away_from_zero(4, 3), lambda x: x.cumprod(0)),
    Spec("logcumsumexp", lambda x: rt.logcumsumexp(x), normal(7), logcumsumexp),
    Spec("logcumsumexp", lambda x: rt.logcumsumexp(x, axis=0), lambda rng: (3 * rng.standard_normal((5, 2)),),
         lambda x: logcumsumexp(x, 0), tag="axis"),
    Spec("diff", lambda x: rt.diff(x), normal(3, 5), np.diff, linear=True),
    Spec(
        "diff", lambda x: rt.diff(x, axis=0, n=2), normal(5, 2),
        lambda x: np.diff(x, n=2, axis=0), half=False, linear=True, tag="n",
    ),
    Spec(
        "diff", lambda x, y: rt.diff(x, axis=1, prepend=y, append=x),
        lambda rng: (rng.standard_normal((2, 3)), rng.standard_normal((2, 2))),
        lambda x, y: np.diff(x, axis=1, prepend=y, append=x), linear=True, tag="ends",
    ),
]  # fmt: skip
