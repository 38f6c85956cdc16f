"""How fresh parameters are filled."""
from __future__ import annotations

import math
from typing import Any

import ruda_tensor as rt

from .config import Config, is_number


class Initializer(Config):
    """Base of initializers: `fill(shape, fan_in, fan_out, device)` returns the values of a fresh parameter.

    >>> class Half(Initializer):
    ...     def fill(self, shape, fan_in, fan_out, device):
    ...         return rt.full(shape, 0.5, device=device)
    >>> Half().fill((2,), 1, 1, rt.Cpu()).numpy()
    array([0.5, 0.5], dtype=float32)
    """

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        raise TypeError(f"{type(self).__name__} does not say how to fill; use Uniform, Normal, KaimingUniform ...")


class Constant(Initializer):
    """Every number is `value`.

    >>> Constant(2.0).fill((2,), 1, 1, rt.Cpu()).numpy()
    array([2., 2.], dtype=float32)
    """

    value: float

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.value), "value", "a finite number")
        return rt.full(shape, float(self.value), device=device)


class Uniform(Initializer):
    """U(low, high).

    >>> Uniform(-1.0, 1.0).fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    low: float
    high: float

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.low), "low", "a finite number")
        self.require(is_number(self.high) and self.low < self.high, "high", "a finite number > low")
        return rt.random.uniform(shape, low=self.low, high=self.high, device=device)


class Normal(Initializer):
    """N(mean, std^2).

    >>> Normal(0.0, 0.02).fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    mean: float = 0.0
    std: float = 1.0

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.mean), "mean", "a finite number")
        self.require(is_number(self.std) and self.std >= 0.0, "std", "a number >= 0")
        return rt.random.normal(shape, mean=self.mean, std=self.std, device=device)


class KaimingUniform(Initializer):
    """U(-a, a) with a = sqrt(3) gain / sqrt(fan) (He et al. 2015, eq. 10); fan is fan_in, or fan_out.

    The default gain 1/sqrt(3) gives a = 1/sqrt(fan_in), what linear layers use.

    >>> bool(rt.all(rt.abs(KaimingUniform().fill((100, 2), 100, 2, rt.Cpu())) <= 0.1))
    True
    """

    gain: float = 1.0 / math.sqrt(3.0)
    fan_out_only: bool = False

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.gain) and self.gain > 0.0, "gain", "a number > 0")
        fan = fan_out if self.fan_out_only else fan_in
        bound = math.sqrt(3.0) * self.gain / math.sqrt(fan)
        return rt.random.uniform(shape, low=-bound, high=bound, device=device)


class KaimingNormal(Initializer):
    """N(0, std^2) with std = gain / sqrt(fan) (He et al. 2015, eq. 10); fan is fan_in, or fan_out.

    >>> KaimingNormal(gain=math.sqrt(2.0)).fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    gain: float = 1.0
    fan_out_only: bool = False

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.gain) and self.gain > 0.0, "gain", "a number > 0")
        fan = fan_out if self.fan_out_only else fan_in
        return rt.random.normal(shape, std=self.gain / math.sqrt(fan), device=device)


class XavierUniform(Initializer):
    """U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16).

    >>> XavierUniform().fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    gain: float = 1.0

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.gain) and self.gain > 0.0, "gain", "a number > 0")
        bound = self.gain * math.sqrt(6.0 / (fan_in + fan_out))
        return rt.random.uniform(shape, low=-bound, high=bound, device=device)
