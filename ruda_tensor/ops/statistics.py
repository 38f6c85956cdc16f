"""Variance, standard deviation, norms, and what is made of norms: normalize and cosine_similarity.

Where a root has its corner (a norm of zeros, a deviation of equal numbers) the gradient is the zero subgradient.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import cast, floating, normalize_axes, normalize_axis, pair, scalar_of
from ._numerics import safe_divide, single
from ._sums import total
from .arithmetic import abs as magnitude
from .arithmetic import divide, multiply, pow, sign
from .compare import maximum
from .reduce import check_not_empty, count, spread
from .reduce import max as largest
from .reduce import min as smallest
from .reduce import sum as add_up
from .shape import broadcast_to

__all__ = ["cosine_similarity", "norm", "normalize", "std", "var"]


def _center_forward(xp: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    first = x[tuple(slice(0, 1) if i in axis else slice(None) for i in range(x.ndim))]
    shifted = xp.asarray(x - first)  # equal numbers then deviate by exactly zero, whatever their sum rounds to
    return xp.asarray(shifted - total(xp, shifted, axis, True) / (count(x.shape, axis) or 1))


# x minus its mean: a linear operation that is its own adjoint.
_center = Primitive("center", _center_forward, dx=lambda g, axis: center(g, axis))


def center(x: Tensor, axis: tuple[int, ...]) -> Tensor:
    return apply(_center, (x,), {"axis": axis})


def _freedom(shape: tuple[int, ...], axis: tuple[int, ...], correction: float) -> float:
    """What the sum of squares is divided by; NaN where no degree of freedom is left."""
    left = count(shape, axis) - correction
    return left if left > 0 else math.nan


def _var_forward(xp: Any, x: Any, *, axis: tuple[int, ...], correction: float, keepdims: bool) -> Any:
    deviation = _center_forward(xp, x, axis=axis)
    xp.multiply(deviation, deviation, out=deviation)
    return total(xp, deviation, axis, keepdims) / _freedom(x.shape, axis, correction)


def _var_rule(g: Tensor, x: Tensor, axis: tuple[int, ...], correction: float, keepdims: bool) -> Tensor:
    slope = multiply(center(x, axis), 2.0 / _freedom(x.shape, axis, correction))
    return multiply(spread(g, x.shape, axis, keepdims), slope)


def _std_rule(g: Tensor, x: Tensor, out: Tensor, axis: tuple[int, ...], correction: float, keepdims: bool) -> Tensor:
    slope = multiply(center(x, axis), 1.0 / _freedom(x.shape, axis, correction))
    return multiply(spread(safe_divide(g, out), x.shape, axis, keepdims), slope)


_var = Primitive("var", _var_forward, dx=_var_rule)
_std = Primitive(
    "std",
    lambda xp, x, *, axis, correction, keepdims: xp.sqrt(
        _var_forward(xp, x, axis=axis, correction=correction, keepdims=keepdims)
    ),
    dx=_std_rule,
)


def _statistic(op: Primitive, x: Any, axis: Any, correction: Any, keepdims: bool) -> Tensor:
    x = floating(x, op.name)
    if isinstance(correction, bool) or not isinstance(correction, (int, float, np.number)):
        raise TypeError(f"{op.name}: correction must be a number, got {correction!r}; 1 for the unbiased variance")
    axes = normalize_axes(axis, x.ndim, op.name)
    return apply(op, (x,), {"axis": axes, "correction": float(correction), "keepdims": bool(keepdims)})


def var(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Return sum((x - mean)^2) / (n - correction) over the n elements of `axis` (all by default).

    `correction=1` gives the unbiased variance. Value and gradient are NaN where n - correction is not positive.

    >>> import ruda_tensor as rt
    >>> rt.var(rt.tensor([1.0, 2.0, 3.0], device=rt.Cpu()), correction=1).item()
    1.0
    """
    return _statistic(_var, x, axis, correction, keepdims)


def std(x: Tensor, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Return the square root of `var`; the gradient is zero where all elements are equal.

    >>> import ruda_tensor as rt
    >>> rt.std(rt.tensor([1.0, 3.0], device=rt.Cpu())).item()
    1.0
    """
    return _statistic(_std, x, axis, correction, keepdims)


def _norm_forward(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool, order: float) -> Any:
    """Powers of x divided by the largest magnitude, which neither overflow nor vanish."""
    if count(x.shape, axis) == 0:
        return total(xp, x, axis, keepdims)
    size = xp.asarray(xp.abs(x))
    top = xp.max(size, axis=axis, keepdims=True)
    scale = xp.where((top == 0) | xp.isinf(top), x.dtype.type(1), top)
    xp.divide(size, scale, out=size)
    xp.multiply(size, size, out=size) if order == 2.0 else xp.power(size, order, out=size)  # inf only beside an inf
    powers = total(xp, size, axis, True)
    out = (xp.sqrt(powers) if order == 2.0 else powers ** (1.0 / order)) * scale
    return out if keepdims else xp.squeeze(out, axis=axis)


def _norm_rule(g: Tensor, x: Tensor, out: Tensor, axis: tuple[int, ...], keepdims: bool, order: float) -> Tensor:
    """d|x|/dx = sign(x) (|x| / norm)^(p-1), which for p = 2 is x / norm: the direction of x."""
    length = spread(out, x.shape, axis, keepdims)
    slope = safe_divide(x, length)
    if order != 2.0:
        slope = multiply(sign(x), pow(magnitude(slope), order - 1.0))
    return multiply(spread(g, x.shape, axis, keepdims), slope)


_norm = Primitive("norm", _norm_forward, poles=True, dx=_norm_rule)


def norm(x: Tensor, /, ord: float = 2, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    """Return the p-norm (sum |x|^p)^(1/p) of all elements, or of the vectors along `axis`; p = `ord`.

    `ord` is a number of at least 1, inf for the largest magnitude or -inf for the smallest. Nothing overflows or
    vanishes on the way, so norms of 1e30 or 1e-30 are right in float32. The gradient at a zero vector is zero.

    Errors: ValueError for another `ord`, or where `ord` is infinite and the axis has no elements.

    >>> import ruda_tensor as rt
    >>> rt.norm(rt.tensor([3.0, 4.0], device=rt.Cpu())).item()
    5.0
    """
    x = floating(x, "norm")
    order = scalar_of(ord)
    if order is None or isinstance(order, bool) or not (abs(order) == math.inf or order >= 1):
        raise ValueError(f"norm: ord must be a number >= 1, inf or -inf, got {ord!r}; rt.norm(x, ord=2) is Euclid's")
    axes = normalize_axes(axis, x.ndim, "norm")
    if abs(order) == math.inf:
        check_not_empty(x.shape, axes, "norm")
        return (largest if order > 0 else smallest)(magnitude(x), axis=axes, keepdims=keepdims)
    if order == 1:
        return add_up(magnitude(x), axis=axes, keepdims=keepdims)
    return apply(_norm, (x,), {"axis": axes, "keepdims": bool(keepdims), "order": float(order)})


def normalize(x: Tensor, /, *, axis: Any = -1, ord: float = 2, eps: float = 1e-12) -> Tensor:
    """Return x / max(norm(x), eps) along `axis`; at a zero vector the value is zero and the derivative 1/eps.

    >>> import ruda_tensor as rt
    >>> rt.normalize(rt.tensor([3.0, 4.0], device=rt.Cpu())).numpy()
    array([0.6, 0.8], dtype=float32)
    """
    x = floating(x, "normalize")
    wide = single(x)
    return cast(divide(wide, maximum(norm(wide, ord, axis, keepdims=True), eps)), x.dtype)


def cosine_similarity(x: Tensor, y: Tensor, /, *, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between vectors along `axis`: x.y / (max(|x|, eps) max(|y|, eps)).

    The vectors are normalized one by one, for the product of two small lengths would vanish. Zero vectors give 0.

    >>> import ruda_tensor as rt
    >>> rt.cosine_similarity(rt.tensor([1.0, 0.0], device=rt.Cpu()), rt.tensor([1.0, 1.0], device=rt.Cpu())).item()
    0.7071067690849304
    """
    x, y = pair(floating(x, "cosine_similarity"), floating(y, "cosine_similarity"), "cosine_similarity")
    shape = np.broadcast_shapes(x.shape, y.shape)
    axis = normalize_axis(axis, len(shape), "cosine_similarity")
    a, b = (normalize(single(broadcast_to(v, shape)), axis=axis, eps=eps) for v in (x, y))
    return cast(add_up(multiply(a, b), axis=axis), x.dtype)
