"""Activation functions, all elementwise, in the floating dtype of their argument.

At a kink each takes one slope, written in its docstring; relu, relu6 and hardtanh are limits as `clip` is, and all
have the slope 0 at their bounds. NaN stays NaN.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import FLOATING
from ..fusion.function import generate
from ..kernels import pointwise as kernels
from ..operation import Composite, Fused, Primitive, apply, call
from ..tensor import Tensor
from ._common import cast, floating, setting
from ._gelu import gelu_body, gelu_tanh_body, silu_body
from ._numerics import single
from ._pointwise import pointwise
from ._select import choose, drop, keep, keep_positive, keep_positive_forward
from .arithmetic import numeric
from .compare import clip, minimum
from .transcendental import erfc, exp

__all__ = [
    "elu", "gelu", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu", "relu6", "sigmoid", "silu", "softplus",
]  # fmt: skip


def _sigmoid_forward(xp: Any, x: Any) -> Any:
    e = xp.exp(-x)  # overflows to inf, which gives the right 0
    e += 1.0
    return xp.true_divide(1.0, e)


_sigmoid = Primitive("sigmoid", _sigmoid_forward, poles=True, dx=lambda g, out: g * (out * (1.0 - out)))
_logsigmoid = Primitive(
    "logsigmoid",
    lambda xp, x: xp.minimum(x, 0.0) - xp.log1p(xp.exp(-xp.abs(x))),
    dx=lambda g, x: g * sigmoid(-x),
)
_softplus = Primitive(
    "softplus",
    lambda xp, x, *, beta: xp.maximum(x, 0.0) + xp.log1p(xp.exp(xp.abs(x) * -beta)) * (1.0 / beta),
    dx=lambda g, x, beta: g * sigmoid(x * beta),
)


def sigmoid(x: Any, /) -> Tensor:
    """Return 1 / (1 + exp(-x)) elementwise, without overflow.

    >>> import ruda_tensor as rt
    >>> rt.sigmoid(rt.tensor([-1000.0, 0.0, 1000.0], device=rt.Cpu())).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return generate(_sigmoid, (floating(x, "sigmoid"),))


def logsigmoid(x: Any, /) -> Tensor:
    """Return log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|)) elementwise, without overflow.

    >>> import ruda_tensor as rt
    >>> rt.logsigmoid(rt.tensor([-300.0, 0.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-300.        ,   -0.69314718])
    """
    return generate(_logsigmoid, (floating(x, "logsigmoid"),))


def softplus(x: Any, /, beta: float = 1.0) -> Tensor:
    """Return log(1 + exp(beta x)) / beta = max(x, 0) + log(1 + exp(-beta |x|)) / beta, without overflow.

    Errors: ValueError unless beta > 0.

    >>> import ruda_tensor as rt
    >>> rt.softplus(rt.tensor([-300.0, 0.0, 25.0], dtype=rt.float64, device=rt.Cpu()), beta=5.0).numpy()
    array([ 0.        ,  0.13862944, 25.        ])
    """
    return generate(_softplus, (floating(x, "softplus"),), {"beta": _positive(beta, "softplus", "beta")})


def _positive(value: Any, name: str, what: str) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0.0 < float(value) < math.inf:
        raise ValueError(f"{name}: {what} must be a positive number, got {value!r}; the usual one is 1.0")
    return float(value)


def _leaky_forward(xp: Any, x: Any, *, slope: float) -> Any:
    return xp.maximum(x, x * slope) if 0.0 < slope <= 1.0 else choose(xp, x > 0, x, x * slope)


_relu = Primitive("relu", lambda xp, x: xp.maximum(x, 0), dx=lambda g, out: keep_positive(g, out))


def _kernels(kind: str) -> Fused:
    def backward(xp: Any, g: Any, x: Any, *, needs: tuple) -> tuple | None:
        dx = kernels.activation_backward(xp, kind, g, x)
        return None if dx is None else (dx,)

    return Fused("activation.cu", lambda xp, x: kernels.activation_forward(xp, kind, x), backward)


# The same where there are kernels, which read half types as they are; the result says as well as x where the slope is 1.
_relu_stored = Composite(
    "relu",
    lambda x: apply(_relu, (x,)),
    lambda xp, x: xp.maximum(x, 0),
    lambda xp, g, out, needs: (keep_positive_forward(xp, g, out),),
    keeps="out",
    fused=_kernels("relu"),
)
_leaky_relu = Primitive(
    "leaky_relu",
    _leaky_forward,
    poles=True,
    dx=lambda g, x, slope: keep(g, x > 0) + drop(g * slope, x > 0),
)
_elu = Primitive(
    "elu",
    lambda xp, x, *, alpha: choose(xp, x > 0, x, xp.expm1(xp.minimum(x, 0.0)) * alpha),
    dx=lambda g, x, alpha: keep(g, x > 0) + drop(g * (exp(minimum(x, 0.0)) * alpha), x > 0),
)


def relu(x: Any, /) -> Tensor:
    """Return max(x, 0) elementwise; the slope at 0 is 0.

    >>> import ruda_tensor as rt
    >>> rt.relu(rt.tensor([-1.0, 2.0], device=rt.Cpu())).numpy()
    array([0., 2.], dtype=float32)
    """
    x = numeric(x, "relu")
    return call(_relu_stored, (x,)) if x.device.launches and x._data.dtype in FLOATING else apply(_relu, (x,))


def relu6(x: Any, /) -> Tensor:
    """Return min(max(x, 0), 6) elementwise; the slopes at 0 and 6 are 0.

    >>> import ruda_tensor as rt
    >>> rt.relu6(rt.tensor([-1.0, 2.0, 7.0], device=rt.Cpu())).numpy()
    array([0., 2., 6.], dtype=float32)
    """
    return clip(numeric(x, "relu6"), 0, 6)


def hardtanh(x: Any, /, min: float = -1.0, max: float = 1.0) -> Tensor:
    """Return min(max(x, min), max) elementwise; the slopes at the bounds are 0.

    >>> import ruda_tensor as rt
    >>> rt.hardtanh(rt.tensor([-3.0, 0.5, 3.0], device=rt.Cpu())).numpy()
    array([-1. ,  0.5,  1. ], dtype=float32)
    """
    return clip(floating(x, "hardtanh"), min, max)


def leaky_relu(x: Any, /, negative_slope: float = 0.01) -> Tensor:
    """Return x where x > 0 and negative_slope * x elsewhere; the slope at 0 is negative_slope.

    >>> import ruda_tensor as rt
    >>> rt.leaky_relu(rt.tensor([-2.0, 3.0], device=rt.Cpu()), 0.5).numpy()
    array([-1.,  3.], dtype=float32)
    """
    slope = setting(negative_slope, "leaky_relu", "negative_slope")
    return generate(_leaky_relu, (floating(x, "leaky_relu"),), {"slope": slope})


def elu(x: Any, /, alpha: float = 1.0) -> Tensor:
    """Return x where x > 0 and alpha (exp(x) - 1) elsewhere; the slope at 0 is alpha.

    Clevert et al. 2016, Fast and accurate deep network learning by exponential linear units, eq. 15.

    >>> import ruda_tensor as rt
    >>> rt.elu(rt.tensor([-1.0, 3.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.63212056,  3.        ])
    """
    return generate(_elu, (floating(x, "elu"),), {"alpha": setting(alpha, "elu", "alpha")})


def _times(xp: Any, x: Any, y: Any, out: Any) -> None:
    xp.multiply(x, y, out=out)


def _gated(name: str, body: Any, expression: Any) -> tuple[Composite, Composite]:
    """x s(x) twice: keeping the slope, so that backward is one product; and for devices with kernels, keeping x.

    A kernel makes the slope again from x in the time it takes to read it, and x is there in any case: a slope in
    float32 would be 4 more bytes per number in memory, and moved twice. The plain body there keeps x too, so that
    either backward goes with either forward.
    """

    def whole(x: Tensor) -> Tensor:
        return cast(expression(single(x)), x.dtype)

    def both(xp: Any, x: Any) -> tuple:
        return pointwise(xp, body, (x,), outs=2)

    def from_slope(xp: Any, g: Any, slope: Any, *, needs: tuple) -> tuple:
        return (pointwise(xp, _times, (g, slope)),)

    def from_x(xp: Any, g: Any, x: Any, *, needs: tuple) -> tuple:
        return from_slope(xp, g, both(xp, x)[1], needs=needs)

    kept_x = Composite(name, whole, lambda xp, x: both(xp, x)[0], from_x, keeps="x", fused=_kernels(name))
    return Composite(name, whole, both, from_slope, keeps=""), kept_x


_ROOT = math.sqrt(2.0 / math.pi)
_gelu = _gated("gelu", gelu_body, lambda x: x * (erfc(x * -math.sqrt(0.5)) * 0.5))


def _gelu_tanh_expression(x: Tensor) -> Tensor:
    z = clip(x, -30.0, 30.0)  # beyond, the sigmoid is 0 or 1 in every float type, and the cube of x may overflow
    return x * sigmoid(z * (z * z * (2.0 * _ROOT * 0.044715) + 2.0 * _ROOT))


_gelu_tanh = _gated("gelu_tanh", gelu_tanh_body, _gelu_tanh_expression)
_silu = _gated("silu", silu_body, lambda x: x * sigmoid(x))


def gelu(x: Any, /, approximate: str = "none") -> Tensor:
    """Return x P(x) for the standard normal distribution function P(x) = (1 + erf(x / sqrt(2))) / 2.

    `approximate="tanh"` gives x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2 instead (Hendrycks and Gimpel 2016,
    Gaussian error linear units, section 2).

    Errors: ValueError for another `approximate`.

    >>> import ruda_tensor as rt
    >>> rt.gelu(rt.tensor([-1.0, 0.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.15865525,  0.        ,  0.84134475])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    x = floating(x, "gelu")
    return call((_gelu if approximate == "none" else _gelu_tanh)[x.device.launches], (x,))


def silu(x: Any, /) -> Tensor:
    """Return x sigmoid(x) elementwise, also named swish.

    >>> import ruda_tensor as rt
    >>> rt.silu(rt.tensor([-1.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.26894142,  0.73105858])
    """
    x = floating(x, "silu")
    return call(_silu[x.device.launches], (x,))


def _mish_forward(xp: Any, x: Any) -> Any:
    """tanh(log(1 + e)) = n / (n + 2) with e = exp(x) and n = e (e + 2): 1 in every float type beyond x = 20."""
    e = xp.exp(xp.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


def _mish_slope(x: Tensor) -> Tensor:
    x = clip(x, None, 20.0)  # in both places: what is left of the second term there, 2e-17, must not meet a huge x
    e = exp(x)
    n = e * (e + 2.0)
    r = 1.0 / (n + 2.0)
    return n * r + x * (e * (e + 1.0) * 4.0 * r * r)


_mish = Primitive("mish", _mish_forward, poles=True, dx=lambda g, x: g * _mish_slope(x))


def mish(x: Any, /) -> Tensor:
    """Return x tanh(softplus(x)) elementwise (Misra 2019, Mish, eq. 1).

    >>> import ruda_tensor as rt
    >>> rt.mish(rt.tensor([-1.0, 1.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.30340146,  0.86509839])
    """
    return generate(_mish, (floating(x, "mish"),))
