"""Products, quotients and exponentials that stay finite where the plain ones give 0 * inf or inf - inf."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import FLOAT32, HALF
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import cast
from .arithmetic import multiply, negative


def single(x: Tensor) -> Tensor:
    """Return a half tensor in float32, so that an expression over several operations is rounded once, at its end."""
    return cast(x, FLOAT32) if x.dtype in HALF else x


_weigh = Primitive(
    "weigh",
    lambda xp, x, y: x * xp.where(x == 0, x.dtype.type(0), y),
    dx=lambda g, y: multiply(g, y),
    dy=lambda g, x: multiply(g, x),
)


def weigh(x: Tensor, y: Tensor) -> Tensor:
    """x y, but 0 where x is, whatever y: a class of probability 0 costs nothing, though its log-probability be -inf."""
    return apply(_weigh, (x, y))


def _safe_divide_forward(xp: Any, x: Any, y: Any) -> Any:
    nothing = y == 0
    return xp.where(nothing, x.dtype.type(0), x / xp.where(nothing, y.dtype.type(1), y))


_safe_divide = Primitive(
    "safe_divide",
    _safe_divide_forward,
    dx=lambda g, y: safe_divide(g, y),
    dy=lambda g, y, out: negative(multiply(safe_divide(g, y), out)),
)


def safe_divide(x: Tensor, y: Tensor) -> Tensor:
    """x / y, and zero with zero gradients where y is zero: the subgradient at the corner of a root."""
    return apply(_safe_divide, (x, y))


def share_forward(xp: Any, x: Any, whole: Any) -> Any:
    with np.errstate(invalid="ignore"):
        ratio = xp.exp(x - whole)
    ratio = xp.where(x == whole, x.dtype.type(1), ratio)
    return xp.where(whole == -math.inf, x.dtype.type(0), ratio)


_share = Primitive(
    "share", share_forward, dx=lambda g, out: multiply(g, out), dwhole=lambda g, out: negative(multiply(g, out))
)


def share(x: Tensor, whole: Tensor) -> Tensor:
    """exp(x - whole), the share of exp(x) in exp(whole): 0 of nothing (-inf), and 1 where both are inf."""
    return apply(_share, (x, whole))
