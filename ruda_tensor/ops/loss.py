"""Losses between a prediction and a target: squared and absolute errors, binary cross-entropy, relative entropy.

All are formed in float32 or wider and rounded once, after the reduction; integers become floats before anything is
subtracted. Shapes must be equal, for a target of (n,) against a prediction of (n, 1) would broadcast to (n, n).
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import FLOAT32, HALF
from ..fusion.function import fuse
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, cast, check_broadcast, floating, normalize_axis, pair, scalar_of, setting
from ._numerics import safe_divide, single
from .activation import sigmoid, softplus
from .arithmetic import abs as magnitude
from .arithmetic import add, divide, multiply, negative, sign, subtract
from .compare import clip, maximum, not_equal
from .cross_entropy import check_reduction
from .reduce import mean
from .reduce import sum as add_up

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber", "kl_div", "mae", "mse", "smooth_l1",
]  # fmt: skip


def _operands(x: Any, y: Any, name: str) -> tuple[Tensor, Tensor]:
    """A prediction and a target of one float dtype and one shape; a number is a target for every element."""
    x = floating(x, name)
    number = None if isinstance(y, Tensor) else scalar_of(y)
    if number is not None:
        return x, as_tensor(number, single(x), name)  # not rounded to a half type, since it is met in float32
    x, y = pair(x, y, name)
    if x.shape != y.shape and y.ndim:
        raise ValueError(
            f"{name}: prediction and target must have one shape, got {x.shape} and {y.shape}; "
            "for example rt.reshape(target, prediction.shape)"
        )
    return x, y


def _reduced(losses: Tensor, reduction: str, dtype: np.dtype) -> Tensor:
    if reduction == "mean":
        losses = mean(losses)
    elif reduction == "sum":
        losses = add_up(losses)
    return cast(losses, dtype)


def _pointwise(name: str, loss: Callable[..., Tensor], x: Any, y: Any, reduction: str, *settings: Any) -> Tensor:
    check_reduction(reduction, name)
    x, y = _operands(x, y, name)
    return _reduced(loss(x, y, *settings), reduction, x.dtype)


def _squared_forward(xp: Any, x: Any, y: Any) -> Any:
    error = x - y
    return error * error


def _squared_rule(g: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return multiply(g, multiply(subtract(x, y), 2.0))


_squared_error = Primitive(
    "squared_error", _squared_forward, dx=_squared_rule, dy=lambda g, x, y: negative(_squared_rule(g, x, y))
)


@fuse
def _squared_errors(x: Tensor, y: Tensor) -> Tensor:
    return apply(_squared_error, (single(x), single(y)))


def mse(prediction: Tensor, target: Any, /, *, reduction: str = "mean") -> Tensor:
    """Return the mean (or sum, or each) of (prediction - target)^2.

    Errors: ValueError where the shapes differ; a number is a target for every element.

    >>> import ruda_tensor as rt
    >>> rt.mse(rt.tensor([1.0, 2.0], device=rt.Cpu()), rt.tensor([1.0, 4.0], device=rt.Cpu())).item()
    2.0
    """
    return _pointwise("mse", _squared_errors, prediction, target, reduction)


@fuse
def _distances(x: Tensor, y: Tensor) -> Tensor:
    return magnitude(subtract(single(x), single(y)))


def mae(prediction: Tensor, target: Any, /, *, reduction: str = "mean") -> Tensor:
    """Return the mean (or sum, or each) of |prediction - target|; the gradient is 0 where the two are equal.

    Errors: ValueError where the shapes differ; a number is a target for every element.

    >>> import ruda_tensor as rt
    >>> rt.mae(rt.tensor([1.0, 2.0], device=rt.Cpu()), rt.tensor([1.0, 4.0], device=rt.Cpu())).item()
    1.0
    """
    return _pointwise("mae", _distances, prediction, target, reduction)


def _smooth_forward(xp: Any, x: Any, y: Any, *, beta: float) -> Any:
    size = xp.abs(x - y)
    if beta == 0:
        return size
    inside = xp.minimum(size, x.dtype.type(beta))  # what is beyond would be squared, and might overflow, for nothing
    return xp.where(size < beta, inside * inside * (0.5 / beta), size - 0.5 * beta)


def _smooth_rule(g: Tensor, x: Tensor, y: Tensor, beta: float) -> Tensor:
    error = subtract(x, y)
    return multiply(g, sign(error) if beta == 0 else clip(divide(error, beta), -1.0, 1.0))


_smooth_l1 = Primitive(
    "smooth_l1", _smooth_forward, dx=_smooth_rule, dy=lambda g, x, y, beta: negative(_smooth_rule(g, x, y, beta))
)


@fuse
def _smooth_errors(x: Tensor, y: Tensor, beta: float) -> Tensor:
    return apply(_smooth_l1, (single(x), single(y)), {"beta": beta})


def smooth_l1(prediction: Tensor, target: Any, /, *, beta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Return the mean (or sum, or each) of d^2 / (2 beta) where |d| < beta, else |d| - beta/2; d = prediction - target.

    `beta=0` gives |d|, with gradient 0 at d = 0.

    Errors: ValueError where the shapes differ or beta is negative.

    Source: Girshick, Fast R-CNN (2015), equation 3.

    >>> import ruda_tensor as rt
    >>> rt.smooth_l1(rt.tensor([0.5, 3.0], device=rt.Cpu()), 0.0, reduction="none").numpy()
    array([0.125, 2.5  ], dtype=float32)
    """
    beta = setting(beta, "smooth_l1", "beta")
    if not 0 <= beta < math.inf:
        raise ValueError(f"smooth_l1: beta must be a finite number >= 0, got {beta!r}; beta=0 gives the absolute error")
    return _pointwise("smooth_l1", _smooth_errors, prediction, target, reduction, beta)


@fuse
def _huber_errors(x: Tensor, y: Tensor, delta: float) -> Tensor:
    return multiply(apply(_smooth_l1, (single(x), single(y)), {"beta": delta}), delta)


def huber(prediction: Tensor, target: Any, /, *, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """Return the mean (or sum, or each) of d^2 / 2 where |d| < delta, else delta (|d| - delta/2).

    Errors: ValueError where the shapes differ or delta is not positive.

    Source: Huber, Robust Estimation of a Location Parameter (1964).

    >>> import ruda_tensor as rt
    >>> rt.huber(rt.tensor([0.5, 3.0], device=rt.Cpu()), 0.0, delta=2.0, reduction="none").numpy()
    array([0.125, 4.   ], dtype=float32)
    """
    delta = setting(delta, "huber", "delta")
    if not 0 < delta < math.inf:
        raise ValueError(f"huber: delta must be a finite number > 0, got {delta!r}; rt.mae gives the absolute error")
    return _pointwise("huber", _huber_errors, prediction, target, reduction, delta)


def _binary_forward(xp: Any, x: Any, y: Any, positive: Any) -> Any:
    """y softplus(-x) + (1 - y) softplus(x), each exact for large |x|; an infinite x costs a target it agrees with 0."""
    common = xp.log1p(xp.exp(-xp.abs(x)))
    zero, rest = x.dtype.type(0), 1 - y
    miss = y * xp.where(y == 0, zero, xp.maximum(-x, zero) + common)
    if positive is not None:
        miss = miss * positive
    return miss + rest * xp.where(rest == 0, zero, xp.maximum(x, zero) + common)


def _binary_dx(g: Tensor, x: Tensor, y: Tensor, positive: Tensor | None) -> Tensor:
    miss = multiply(y, sigmoid(negative(x)))
    miss = miss if positive is None else multiply(miss, positive)
    return multiply(g, subtract(multiply(subtract(1.0, y), sigmoid(x)), miss))


def _binary_dy(g: Tensor, x: Tensor, positive: Tensor | None) -> Tensor:
    miss = softplus(negative(x))
    miss = miss if positive is None else multiply(miss, positive)
    return multiply(g, subtract(miss, softplus(x)))


_binary = Primitive("binary_cross_entropy_with_logits", _binary_forward, dx=_binary_dx, dy=_binary_dy)


@fuse
def _binary_losses(x: Tensor, y: Tensor, positive: Tensor | None) -> Tensor:
    return apply(_binary, (single(x), single(y), positive))


def binary_cross_entropy_with_logits(
    logits: Tensor, target: Any, /, *, pos_weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Return the mean (or sum, or each) of -t log p - (1 - t) log(1 - p), where p = sigmoid(logit).

    Exact for logits of any size, and so is the gradient p - t. `pos_weight` multiplies the first term; it is a
    constant that broadcasts to the logits.

    Errors: ValueError where the shapes differ; a number is a target for every element.

    >>> import ruda_tensor as rt
    >>> rt.binary_cross_entropy_with_logits(rt.tensor([-40.0, 0.0], device=rt.Cpu()), 1.0, reduction="none").numpy()
    array([40.       ,  0.6931472], dtype=float32)
    """
    name = "binary_cross_entropy_with_logits"
    if pos_weight is not None:
        logits = floating(logits, name)
        pos_weight = cast(as_tensor(pos_weight, logits, name).detach(), FLOAT32 if logits.dtype in HALF else logits.dtype)
        check_broadcast(logits.shape, pos_weight.shape, name)
    return _pointwise(name, _binary_losses, logits, target, reduction, pos_weight)


LEAST = 1e-12  # what a probability is divided by at least, so that the gradient is finite


def _floor_log_forward(xp: Any, x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return xp.maximum(xp.log(x), x.dtype.type(-100))


def _floor_log1m_forward(xp: Any, x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return xp.maximum(xp.log1p(-x), x.dtype.type(-100))


# log(x) and log(1 - x), both at least -100.
_floor_log = Primitive("floor_log", _floor_log_forward, dx=lambda g, x: divide(g, maximum(x, LEAST)))
_floor_log1m = Primitive(
    "floor_log1m", _floor_log1m_forward, dx=lambda g, x: negative(divide(g, maximum(subtract(1.0, x), LEAST)))
)


@fuse
def _probability_losses(p: Tensor, t: Tensor) -> Tensor:
    p, t = single(p), single(t)
    hit, miss = apply(_floor_log, (p,)), apply(_floor_log1m, (p,))
    return negative(add(multiply(t, hit), multiply(subtract(1.0, t), miss)))


def binary_cross_entropy(probability: Tensor, target: Any, /, *, reduction: str = "mean") -> Tensor:
    """Return the mean (or sum, or each) of -t log p - (1 - t) log(1 - p) for probabilities p from 0 to 1.

    Logarithms are at least -100 and their derivatives divide by at least 1e-12, so a certain and wrong prediction
    costs 100 and has a finite gradient. `binary_cross_entropy_with_logits` needs no such limits.

    Errors: ValueError where the shapes differ; a number is a target for every element.

    >>> import ruda_tensor as rt
    >>> rt.binary_cross_entropy(rt.tensor([0.0, 0.5], device=rt.Cpu()), 1.0, reduction="none").numpy()
    array([100.       ,   0.6931472], dtype=float32)
    """
    return _pointwise("binary_cross_entropy", _probability_losses, probability, target, reduction)


def _relative_entropy_forward(xp: Any, log_q: Any, p: Any) -> Any:
    return p * _log_ratio_forward(xp, log_q, p)


def _log_ratio_forward(xp: Any, log_q: Any, p: Any) -> Any:
    none = p == 0
    one, zero = p.dtype.type(1), p.dtype.type(0)
    return xp.where(none, zero, xp.log(xp.where(none, one, p)) - xp.where(none, zero, log_q))


# log p - log q, and 0 with zero derivatives where p is 0.
_log_ratio = Primitive(
    "log_ratio",
    _log_ratio_forward,
    poles=True,
    dlog_q=lambda g, p: negative(multiply(g, cast(not_equal(p, 0.0), g.dtype))),
    dp=lambda g, p: safe_divide(g, p),
)
_relative_entropy = Primitive(
    "relative_entropy",
    _relative_entropy_forward,
    poles=True,
    dlog_q=lambda g, p: negative(multiply(g, p)),
    dp=lambda g, log_q, p: multiply(g, add(apply(_log_ratio, (log_q, p)), cast(not_equal(p, 0.0), g.dtype))),
)


@fuse
def _relative_entropies(log_q: Tensor, p: Tensor) -> Tensor:
    return apply(_relative_entropy, (single(log_q), single(p)))


def kl_div(log_prediction: Tensor, target: Any, /, *, axis: int = -1, reduction: str = "mean") -> Tensor:
    """Return the relative entropy sum p (log p - log q) along `axis` of targets p from predictions log q.

    The mean (or sum) is over the rows that are left, so one row gives its divergence. Where p is 0 the term is 0,
    whatever log q, and so is the gradient by p (its limit is -inf); the gradient by log q is -p.

    Errors: ValueError where the shapes differ.

    >>> import ruda_tensor as rt
    >>> log_q = rt.log(rt.tensor([0.5, 0.5], device=rt.Cpu()))
    >>> rt.kl_div(log_q, rt.tensor([1.0, 0.0], device=rt.Cpu())).item()
    0.6931471824645996
    """
    check_reduction(reduction, "kl_div")
    log_q, p = _operands(log_prediction, target, "kl_div")
    axis = normalize_axis(axis, log_q.ndim, "kl_div")
    terms = _relative_entropies(log_q, p)
    return _reduced(add_up(terms, axis=axis), reduction, log_q.dtype)
