"""Roots, exponentials, logarithms, trigonometric and hyperbolic functions, and the error function.

Integers and bools become the default float. Outside its domain a function gives NaN or inf, as NumPy's does.
"""
from __future__ import annotations

import math
from typing import Any

from ..fusion.function import generate
from ..operation import Primitive, apply
from ..tensor import Tensor
from . import activation
from ._common import beside_half, floating, pair
from ._erf import erf_body, erfc_body
from ._pointwise import pointwise
from .compare import where

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc", "exp", "expm1", "hypot",
    "log", "log10", "log1p", "log2", "logaddexp", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh",
]  # fmt: skip

_sqrt = Primitive("sqrt", lambda xp, x: xp.sqrt(x), poles=True, dx=lambda g, out: g * 0.5 / out)
_rsqrt = Primitive("rsqrt", lambda xp, x: 1.0 / xp.sqrt(x), poles=True, dx=lambda g, out: g * (out * out * out * -0.5))
_exp = Primitive("exp", lambda xp, x: xp.exp(x), poles=True, dx=lambda g, out: g * out)
_expm1 = Primitive("expm1", lambda xp, x: xp.expm1(x), poles=True, dx=lambda g, x: g * exp(x))
_log = Primitive("log", lambda xp, x: xp.log(x), poles=True, dx=lambda g, x: g / x)
_log1p = Primitive("log1p", lambda xp, x: xp.log1p(x), poles=True, dx=lambda g, x: g / (x + 1.0))
_log2 = Primitive("log2", lambda xp, x: xp.log2(x), poles=True, dx=lambda g, x: g / (x * math.log(2.0)))
_log10 = Primitive("log10", lambda xp, x: xp.log10(x), poles=True, dx=lambda g, x: g / (x * math.log(10.0)))


def sqrt(x: Any, /) -> Tensor:
    """Return the square root elementwise; d/dx = 1 / (2 sqrt(x)), inf at 0 (see where_safe).

    >>> import ruda_tensor as rt
    >>> rt.sqrt(rt.tensor([4.0, 9.0], device=rt.Cpu())).numpy()
    array([2., 3.], dtype=float32)
    """
    return apply(_sqrt, (floating(x, "sqrt"),))


def rsqrt(x: Any, /) -> Tensor:
    """Return 1 / sqrt(x) elementwise; inf at 0.

    >>> import ruda_tensor as rt
    >>> rt.rsqrt(rt.tensor([4.0, 0.25], device=rt.Cpu())).numpy()
    array([0.5, 2. ], dtype=float32)
    """
    return generate(_rsqrt, (floating(x, "rsqrt"),))


def exp(x: Any, /) -> Tensor:
    """Return e to the power x elementwise.

    >>> import ruda_tensor as rt
    >>> rt.exp(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([1.        , 2.71828183])
    """
    return apply(_exp, (floating(x, "exp"),))


def expm1(x: Any, /) -> Tensor:
    """Return exp(x) - 1 elementwise, accurate near 0.

    >>> import ruda_tensor as rt
    >>> rt.expm1(rt.tensor([0.0, 1e-12], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.e+00, 1.e-12])
    """
    return apply(_expm1, (floating(x, "expm1"),))


def log(x: Any, /) -> Tensor:
    """Return the natural logarithm elementwise; -inf at 0, NaN below.

    >>> import ruda_tensor as rt
    >>> rt.log(rt.tensor([1.0, rt.e], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 1.])
    """
    return apply(_log, (floating(x, "log"),))


def log1p(x: Any, /) -> Tensor:
    """Return log(1 + x) elementwise, accurate near 0.

    >>> import ruda_tensor as rt
    >>> rt.log1p(rt.tensor([0.0, 1e-12], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.e+00, 1.e-12])
    """
    return apply(_log1p, (floating(x, "log1p"),))


def log2(x: Any, /) -> Tensor:
    """Return the logarithm to base 2 elementwise.

    >>> import ruda_tensor as rt
    >>> rt.log2(rt.tensor([1.0, 8.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 3.])
    """
    return apply(_log2, (floating(x, "log2"),))


def log10(x: Any, /) -> Tensor:
    """Return the logarithm to base 10 elementwise.

    >>> import ruda_tensor as rt
    >>> rt.log10(rt.tensor([1.0, 100.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 2.])
    """
    return apply(_log10, (floating(x, "log10"),))


def _log_add(xp: Any, x: Any, y: Any) -> Any:
    # Not xp.logaddexp: CuPy's gives NaN for two equal infinities, where x - y is.
    apart = xp.where(x == y, 0, xp.abs(x - y))
    return xp.maximum(x, y) + xp.log1p(xp.exp(-apart))


_logaddexp = Primitive(
    "logaddexp",
    _log_add,
    poles=True,
    dx=lambda g, x, y: g * activation.sigmoid(_apart(x, y)),
    dy=lambda g, x, y: g * activation.sigmoid(-_apart(x, y)),
)


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """x - y, and 0 for two equal infinities, which share the gradient of logaddexp in halves."""
    return where(apply(_same_infinity, (x, y)), 0.0, x - y)


_same_infinity = Primitive("same_infinity", lambda xp, x, y: xp.isinf(x) & (x == y))


def logaddexp(x: Any, y: Any, /) -> Tensor:
    """Return log(exp(x) + exp(y)) elementwise without overflow; the shares of the gradient are sigmoid(+-(x - y)).

    Two equal infinities give that infinity and a share of one half each.

    >>> import ruda_tensor as rt
    >>> rt.logaddexp(rt.tensor([0.0, 1000.0], dtype=rt.float64, device=rt.Cpu()), 0.0).numpy()
    array([6.93147181e-01, 1.00000000e+03])
    """
    if (found := beside_half(logaddexp, x, y)) is not None:
        return found
    x, y = pair(x, y, "logaddexp")
    return generate(_logaddexp, (floating(x, "logaddexp"), floating(y, "logaddexp")))


def _nonzero(r: Tensor) -> Tensor:
    return where(r == 0, 1.0, r)


_hypot = Primitive(
    "hypot",
    lambda xp, x, y: xp.hypot(x, y),
    poles=True,
    dx=lambda g, x, out: g * (x / _nonzero(out)),
    dy=lambda g, y, out: g * (y / _nonzero(out)),
)
_atan2 = Primitive(
    "atan2",
    lambda xp, x, y: xp.arctan2(x, y),
    dx=lambda g, x, y: g * _over_square(y, x, y),
    dy=lambda g, x, y: -(g * _over_square(x, x, y)),
)


def _over_square(z: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """z / (x^2 + y^2) without overflow, and 0 at the origin."""
    r = _nonzero(hypot(x, y))
    return z / r / r


def hypot(x: Any, y: Any, /) -> Tensor:
    """Return sqrt(x^2 + y^2) elementwise without overflow; both slopes at the origin are 0.

    >>> import ruda_tensor as rt
    >>> rt.hypot(rt.tensor([3.0, 0.0], device=rt.Cpu()), rt.tensor([4.0, 0.0], device=rt.Cpu())).numpy()
    array([5., 0.], dtype=float32)
    """
    if (found := beside_half(hypot, x, y)) is not None:
        return found
    x, y = pair(x, y, "hypot")
    return apply(_hypot, (floating(x, "hypot"), floating(y, "hypot")))


def atan2(x: Any, y: Any, /) -> Tensor:
    """Return the angle of the point (y, x), in radians from -pi to pi; both slopes at the origin are 0.

    >>> import ruda_tensor as rt
    >>> rt.atan2(rt.tensor([1.0, -1.0], dtype=rt.float64, device=rt.Cpu()), -1.0).numpy()
    array([ 2.35619449, -2.35619449])
    """
    if (found := beside_half(atan2, x, y)) is not None:
        return found
    x, y = pair(x, y, "atan2")
    return apply(_atan2, (floating(x, "atan2"), floating(y, "atan2")))


_sin = Primitive("sin", lambda xp, x: xp.sin(x), poles=True, dx=lambda g, x: g * cos(x))
_cos = Primitive("cos", lambda xp, x: xp.cos(x), poles=True, dx=lambda g, x: -(g * sin(x)))
_tan = Primitive("tan", lambda xp, x: xp.tan(x), poles=True, dx=lambda g, out: g * (out * out + 1.0))
# (1 - x)(1 + x) keeps the digits that 1 - x^2 loses near its zeros. Its derivative is -2 x; from the factors it would be
# the difference of 1 - x and 1 + x, which loses those of a small x.
_one_minus_square = Primitive(
    "one_minus_square", lambda xp, x: (1.0 - x) * (1.0 + x), dx=lambda g, x: g * (x * -2.0)
)


def _below_one(x: Tensor) -> Tensor:
    return apply(_one_minus_square, (x,))


_asin = Primitive("asin", lambda xp, x: xp.arcsin(x), poles=True, dx=lambda g, x: g / sqrt(_below_one(x)))
_acos = Primitive("acos", lambda xp, x: xp.arccos(x), poles=True, dx=lambda g, x: -g / sqrt(_below_one(x)))
_atan = Primitive("atan", lambda xp, x: xp.arctan(x), dx=lambda g, x: g / (x * x + 1.0))
_sinh = Primitive("sinh", lambda xp, x: xp.sinh(x), poles=True, dx=lambda g, x: g * cosh(x))
_cosh = Primitive("cosh", lambda xp, x: xp.cosh(x), poles=True, dx=lambda g, x: g * sinh(x))
_tanh = Primitive("tanh", lambda xp, x: xp.tanh(x), dx=lambda g, out: g * (1.0 - out * out))
_asinh = Primitive("asinh", lambda xp, x: xp.arcsinh(x), dx=lambda g, x: g / hypot(x, 1.0))
_acosh = Primitive("acosh", lambda xp, x: xp.arccosh(x), poles=True, dx=lambda g, x: g / (sqrt(x - 1.0) * sqrt(x + 1.0)))
_atanh = Primitive("atanh", lambda xp, x: xp.arctanh(x), poles=True, dx=lambda g, x: g / _below_one(x))


def sin(x: Any, /) -> Tensor:
    """Return the sine of x in radians elementwise.

    >>> import ruda_tensor as rt
    >>> rt.sin(rt.tensor([0.0, rt.pi / 2], device=rt.Cpu())).numpy()
    array([0., 1.], dtype=float32)
    """
    return apply(_sin, (floating(x, "sin"),))


def cos(x: Any, /) -> Tensor:
    """Return the cosine of x in radians elementwise.

    >>> import ruda_tensor as rt
    >>> rt.cos(rt.tensor([0.0, rt.pi], device=rt.Cpu())).numpy()
    array([ 1., -1.], dtype=float32)
    """
    return apply(_cos, (floating(x, "cos"),))


def tan(x: Any, /) -> Tensor:
    """Return the tangent of x in radians elementwise.

    >>> import ruda_tensor as rt
    >>> rt.tan(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 1.55740772])
    """
    return apply(_tan, (floating(x, "tan"),))


def asin(x: Any, /) -> Tensor:
    """Return the angle in [-pi/2, pi/2] whose sine is x; the slope at -1 and 1 is inf.

    >>> import ruda_tensor as rt
    >>> rt.asin(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 1.57079633])
    """
    return apply(_asin, (floating(x, "asin"),))


def acos(x: Any, /) -> Tensor:
    """Return the angle in [0, pi] whose cosine is x; the slope at -1 and 1 is -inf.

    >>> import ruda_tensor as rt
    >>> rt.acos(rt.tensor([1.0, 0.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 1.57079633])
    """
    return apply(_acos, (floating(x, "acos"),))


def atan(x: Any, /) -> Tensor:
    """Return the angle in (-pi/2, pi/2) whose tangent is x.

    >>> import ruda_tensor as rt
    >>> rt.atan(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 0.78539816])
    """
    return apply(_atan, (floating(x, "atan"),))


def sinh(x: Any, /) -> Tensor:
    """Return the hyperbolic sine elementwise.

    >>> import ruda_tensor as rt
    >>> rt.sinh(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 1.17520119])
    """
    return apply(_sinh, (floating(x, "sinh"),))


def cosh(x: Any, /) -> Tensor:
    """Return the hyperbolic cosine elementwise.

    >>> import ruda_tensor as rt
    >>> rt.cosh(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([1.        , 1.54308063])
    """
    return apply(_cosh, (floating(x, "cosh"),))


def tanh(x: Any, /) -> Tensor:
    """Return the hyperbolic tangent elementwise.

    >>> import ruda_tensor as rt
    >>> rt.tanh(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 0.76159416])
    """
    return generate(_tanh, (floating(x, "tanh"),))


def asinh(x: Any, /) -> Tensor:
    """Return the number whose hyperbolic sine is x.

    >>> import ruda_tensor as rt
    >>> rt.asinh(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 0.88137359])
    """
    return apply(_asinh, (floating(x, "asinh"),))


def acosh(x: Any, /) -> Tensor:
    """Return the number >= 0 whose hyperbolic cosine is x; NaN below 1, the slope at 1 is inf.

    >>> import ruda_tensor as rt
    >>> rt.acosh(rt.tensor([1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 1.3169579])
    """
    return apply(_acosh, (floating(x, "acosh"),))


def atanh(x: Any, /) -> Tensor:
    """Return the number whose hyperbolic tangent is x; +-inf at +-1.

    >>> import ruda_tensor as rt
    >>> rt.atanh(rt.tensor([0.0, 0.5], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 0.54930614])
    """
    return apply(_atanh, (floating(x, "atanh"),))


_BELL = 2.0 / math.sqrt(math.pi)


def _own(xp: Any, name: str, body: Any, x: Any) -> Any:
    """The array module's own function where it has one, as NumPy and CuPy do not."""
    own = getattr(xp, name, None)
    return pointwise(xp, body, (x,)) if own is None else own(x)


_erf = Primitive(
    "erf", lambda xp, x: _own(xp, "erf", erf_body, x), dx=lambda g, x: g * (exp(-(x * x)) * _BELL)
)
_erfc = Primitive(
    "erfc", lambda xp, x: _own(xp, "erfc", erfc_body, x), dx=lambda g, x: g * (exp(-(x * x)) * -_BELL)
)


def erf(x: Any, /) -> Tensor:
    """Return the error function 2/sqrt(pi) * integral of exp(-t^2) from 0 to x.

    >>> import ruda_tensor as rt
    >>> rt.erf(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.        , 0.84270079])
    """
    return generate(_erf, (floating(x, "erf"),))


def erfc(x: Any, /) -> Tensor:
    """Return 1 - erf(x) without cancellation: its relative error is small however small it gets.

    >>> import ruda_tensor as rt
    >>> rt.erfc(rt.tensor([0.0, 10.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([1.00000000e+00, 2.08848758e-45])
    """
    return generate(_erfc, (floating(x, "erfc"),))
