"""How fresh parameters are filled."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.devices import resolve_device

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


def require_initializer(config: Any) -> None:
    """Refuse a configuration whose `initializer` is neither an Initializer nor None."""
    config.require(isinstance(config.initializer, Initializer | None), "initializer", "an Initializer such as Normal()")


class Constant(Initializer):
    """Every number is `value`.

    >>> Constant(2.0).fill((2,), 1, 1, rt.Cpu()).numpy()
    array([2., 2.], dtype=float32)
    """

    value: float

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.value), "value", "a finite number")
        return rt.full(shape, float(self.value), device=device)


class Ones(Initializer):
    """Every number is 1.

    >>> Ones().fill((2,), 1, 1, rt.Cpu()).numpy()
    array([1., 1.], dtype=float32)
    """

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        return rt.ones(shape, device=device)


class Zeros(Initializer):
    """Every number is 0.

    >>> Zeros().fill((2,), 1, 1, rt.Cpu()).numpy()
    array([0., 0.], dtype=float32)
    """

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        return rt.zeros(shape, device=device)


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
        bound = math.sqrt(3.0) * _scale(self, fan_out if self.fan_out_only else fan_in)
        return rt.random.uniform(shape, low=-bound, high=bound, device=device)


class KaimingNormal(Initializer):
    """N(0, std^2) with std = gain / sqrt(fan) (He et al. 2015, eq. 10); fan is fan_in, or fan_out.

    >>> KaimingNormal(gain=math.sqrt(2.0)).fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    gain: float = 1.0
    fan_out_only: bool = False

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        return rt.random.normal(shape, std=_scale(self, fan_out if self.fan_out_only else fan_in), device=device)


class XavierUniform(Initializer):
    """U(-a, a) with a = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16).

    >>> XavierUniform().fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    gain: float = 1.0

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        bound = math.sqrt(6.0) * _scale(self, fan_in + fan_out)
        return rt.random.uniform(shape, low=-bound, high=bound, device=device)


class XavierNormal(Initializer):
    """N(0, std^2) with std = gain sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 12, as a normal).

    >>> XavierNormal().fill((3, 2), 3, 2, rt.Cpu()).shape
    (3, 2)
    """

    gain: float = 1.0

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        std = math.sqrt(2.0) * _scale(self, fan_in + fan_out)
        return rt.random.normal(shape, std=std, device=device)


class Orthogonal(Initializer):
    """gain times a random matrix of orthonormal rows or columns, whichever are fewer (Saxe et al. 2014, section 3).

    A shape (n, ...) is taken as a matrix of n rows. It is Q of a QR decomposition of normal numbers, each column times
    the sign of R's diagonal, which makes all orthogonal matrices equally likely (Mezzadri 2007, section 5). Computed in
    float64 on the host, so that every device gets the same.

    Errors: ValueError for a shape of fewer than two axes, such as that of a bias.

    >>> q = Orthogonal().fill((2, 3), 3, 2, rt.Cpu())
    >>> (q @ rt.matrix_transpose(q)).numpy().round(6) + 0.0
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    """

    gain: float = 1.0

    def fill(self, shape: tuple[int, ...], fan_in: int, fan_out: int, device: Any) -> rt.Tensor:
        self.require(is_number(self.gain) and self.gain > 0.0, "gain", "a number > 0")
        if len(shape) < 2:
            raise ValueError(
                f"Orthogonal: a shape {tuple(shape)} has no rows and columns; it is for weights: give the layer bias=False, or "
                "replace its weight alone: dataclasses.replace(layer, weight=Param(Orthogonal().fill(shape, 1, 1, device)))"
            )
        rows, columns = shape[0], math.prod(shape[1:])
        place = resolve_device(device)
        drawn = rt.random.normal((max(rows, columns), min(rows, columns)), dtype=rt.float64, device=rt.Cpu()).numpy()
        q, r = np.linalg.qr(drawn)
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        q = (q if rows >= columns else q.T).reshape(shape)
        return rt.tensor(q * self.gain, dtype=place.float_dtype, device=place)


def _scale(initializer: Any, fan: int) -> float:
    """gain / sqrt(fan), after checking both."""
    initializer.require_bools()
    initializer.require(is_number(initializer.gain) and initializer.gain > 0.0, "gain", "a number > 0")
    if fan < 1:
        raise ValueError(
            f"{type(initializer).__name__}: needs the number of inputs and outputs of the layer, got a fan of {fan}; "
            "give both to fill, or use Normal(0.0, 0.02)"
        )
    return initializer.gain / math.sqrt(fan)
