"""Activation functions as layers. Each is elementwise, keeps the dtype of x, and rounds half types once.

What `ruda_tensor` has as a function is only wrapped here; the others are expressions over its functions.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ruda_tensor as rt
from ruda_autodiff import custom_gradient
from ruda_tensor.ops._common import floating

from ._wide import wide
from .config import Config, is_number, require
from .creation import Creation
from .initializers import Constant
from .module import Module
from .param import Param


def _once(layer: Module, x: rt.Tensor, f: Callable[[rt.Tensor], rt.Tensor]) -> rt.Tensor:
    """f(x), computed in float32 for half types and rounded once."""
    x = floating(x, type(layer).__name__)
    return rt.astype(f(wide(x)), x.dtype)


def _below(x: rt.Tensor) -> rt.Tensor:
    """min(x, 0) with the slope 1 at 0. Unlike x - relu(x) it is 0 at inf, and its slope there is 0."""
    return rt.where(x > 0, 0.0, x)


class Relu(Module):
    """max(x, 0); the slope at 0 is 0.

    >>> Relu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 2.])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.relu(x)


class Relu6(Module):
    """min(max(x, 0), 6); the slopes at 0 and 6 are 0.

    >>> Relu6()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 2.])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.relu6(x)


class HardTanh(Module):
    """min(max(x, -1), 1); the slopes at the bounds are 0.

    >>> HardTanh()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-1.,  1.])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.hardtanh(x)


class LeakyRelu(Module):
    """x where x > 0, else `negative_slope` (0.01) times x.

    >>> LeakyRelu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.01,  2.  ])
    """

    negative_slope: float = 0.01

    def __post_init__(self) -> None:
        require(is_number(self.negative_slope), "LeakyRelu", "negative_slope", self.negative_slope, "a finite number")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.leaky_relu(x, self.negative_slope)


class Elu(Module):
    """x where x > 0, else `alpha` (1) times (exp(x) - 1); see `rt.elu`.

    >>> Elu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.63212056,  2.        ])
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        require(is_number(self.alpha), "Elu", "alpha", self.alpha, "a finite number")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.elu(x, self.alpha)


class Celu(Module):
    """max(x, 0) + min(0, alpha (exp(x / alpha) - 1)), alpha 1 (Barron 2017, eq. 2). Its slope is continuous: 1 at 0.

    >>> Celu(alpha=2.0)(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.78693868,  2.        ])
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        require(is_number(self.alpha) and self.alpha > 0, "Celu", "alpha", self.alpha, "a number > 0")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: rt.relu(x) + rt.expm1(_below(x) / self.alpha) * self.alpha)


class Selu(Module):
    """1.0507 elu(x, 1.6733): mean 0 and variance 1 are a fixed point (Klambauer et al. 2017, eq. 14).

    >>> Selu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-1.11133074,  2.10140197])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: rt.elu(x, 1.6732632423543772) * 1.0507009873554805)


class Gelu(Module):
    """x P(x) for the standard normal distribution function P; `approximate` "none" or "tanh"; see `rt.gelu`.

    >>> Gelu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.15865525,  1.95449974])
    """

    approximate: str = "none"

    def __post_init__(self) -> None:
        require(self.approximate in ("none", "tanh"), "Gelu", "approximate", self.approximate, "'none' or 'tanh'")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.gelu(x, self.approximate)


class Silu(Module):
    """x sigmoid(x), also named swish.

    >>> Silu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.26894142,  1.76159416])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.silu(x)


class Mish(Module):
    """x tanh(log(1 + exp(x))); see `rt.mish`.

    >>> Mish()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.30340146,  1.94395896])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, rt.mish)


class Sigmoid(Module):
    """1 / (1 + exp(-x)).

    >>> Sigmoid()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.26894142, 0.88079708])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.sigmoid(x)


class LogSigmoid(Module):
    """log(sigmoid(x)), without overflow.

    >>> LogSigmoid()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-1.31326169, -0.12692801])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.logsigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent.

    >>> Tanh()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.76159416,  0.96402758])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.tanh(x)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta with `beta` 1, without overflow and at every x.

    >>> Softplus()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.31326169, 2.12692801])
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        require(is_number(self.beta) and self.beta > 0, "Softplus", "beta", self.beta, "a number > 0")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.softplus(x, self.beta)


@custom_gradient
def _softsign(x: rt.Tensor) -> Any:
    # The slope of x / (1 + |x|) as a difference of two quotients would lose all digits at large x.
    whole = rt.abs(x) + 1.0
    return x / whole, lambda g: g / rt.square(rt.abs(x) + 1.0)


class Softsign(Module):
    """x / (1 + |x|).

    >>> Softsign()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.5       ,  0.66666667])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, _softsign)


class HardSigmoid(Module):
    """min(max(alpha x + beta, 0), 1) with `alpha` 1/6 and `beta` 0.5, PyTorch's; Keras has alpha 0.2.

    >>> HardSigmoid()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0.33333333, 0.83333333])
    """

    alpha: float = 1.0 / 6.0
    beta: float = 0.5

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            require(is_number(value), "HardSigmoid", name, value, "a finite number")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: rt.clip(x * self.alpha + self.beta, 0.0, 1.0))


class HardSwish(Module):
    """x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019, section 5.2).

    >>> HardSwish()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.33333333,  1.66666667])
    """

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: x * (rt.relu6(x + 3.0) / 6.0))


class HardShrink(Module):
    """x where |x| > `lambd` (0.5), else 0.

    >>> HardShrink(lambd=1.0)(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 2.])
    """

    lambd: float = 0.5

    def __post_init__(self) -> None:
        require(is_number(self.lambd) and self.lambd >= 0, "HardShrink", "lambd", self.lambd, "a number >= 0")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: rt.where(rt.abs(x) <= self.lambd, 0.0, x))


class SoftShrink(Module):
    """x moved towards 0 by `lambd` (0.5), and 0 where |x| <= lambd.

    >>> SoftShrink()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([-0.5,  1.5])
    """

    lambd: float = 0.5

    def __post_init__(self) -> None:
        require(is_number(self.lambd) and self.lambd >= 0, "SoftShrink", "lambd", self.lambd, "a number >= 0")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: rt.where(rt.abs(x) <= self.lambd, 0.0, x - rt.sign(x) * self.lambd))


class ThresholdedRelu(Module):
    """x where x > `alpha` (1), else 0.

    >>> ThresholdedRelu()(rt.tensor([-1.0, 2.0], dtype=rt.float64, device=rt.Cpu())).numpy()
    array([0., 2.])
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        require(is_number(self.alpha), "ThresholdedRelu", "alpha", self.alpha, "a finite number")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return _once(self, x, lambda x: rt.where(x <= self.alpha, 0.0, x))


class Softmax(Module):
    """exp(x) / sum exp(x) along `axis` (-1); see `rt.softmax`.

    >>> Softmax()(rt.zeros((1, 2), device=rt.Cpu())).tolist()
    [[0.5, 0.5]]
    """

    axis: int = -1

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.softmax(x, self.axis)


class LogSoftmax(Module):
    """x - log sum exp(x) along `axis` (-1); see `rt.log_softmax`.

    >>> LogSoftmax()(rt.zeros((1, 2), device=rt.Cpu())).numpy().round(4)
    array([[-0.6931, -0.6931]], dtype=float32)
    """

    axis: int = -1

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.log_softmax(x, self.axis)


class PRelu(Module):
    """x where x > 0, else weight times x: one learned slope, or one per channel of x (N, C, ...) (He et al. 2015, eq. 1).

    >>> PReluConfig().init(rt.Cpu())(rt.tensor([-1.0, 2.0], device=rt.Cpu())).tolist()
    [-0.25, 2.0]
    """

    weight: Param

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        n, x = self.weight.size, floating(x, "PRelu")
        if n > 1 and (x.ndim < 2 or x.shape[1] != n):
            raise ValueError(f"PRelu: x has shape {x.shape}, and needs {n} channels on axis 1; PReluConfig() has one for all")
        weight = self.weight if n == 1 else rt.reshape(self.weight, (n,) + (1,) * (x.ndim - 2))
        return _once(self, x, lambda x: rt.relu(x) + _below(x) * weight.astype(x.dtype))


class PReluConfig(Config):
    """Settings of `PRelu`: `num_parameters` (1, or the number of channels), and `init_value` (0.25), where they start.

    >>> PReluConfig(3).init(rt.Cpu()).weight.tolist()
    [0.25, 0.25, 0.25]
    """

    num_parameters: int = 1
    init_value: float = 0.25

    def init(self, device: Any = None) -> PRelu:
        """Return the layer on a device; on a recording device its slopes are tracked."""
        self.require_count("num_parameters")
        self.require(is_number(self.init_value), "init_value", "a finite number")
        return PRelu(weight=Creation(device).param(Constant(self.init_value), (self.num_parameters,)))
