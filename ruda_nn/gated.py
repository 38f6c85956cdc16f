"""Gated activations: one half of the features decides how much of the other half passes."""
from __future__ import annotations

from typing import Any

import ruda_tensor as rt
from ruda_tensor import silu_mul
from ruda_tensor.ops._common import floating

from ._wide import wide
from .config import Config, is_whole, require
from .initializers import Initializer
from .linear import Linear, LinearConfig
from .module import Module


class Glu(Module):
    """a sigmoid(b) for the two halves a, b of x along `axis` (-1) (Dauphin et al. 2017, eq. 1).

    Errors: ValueError for an axis of odd size.

    >>> Glu()(rt.tensor([4.0, 0.0], device=rt.Cpu())).tolist()
    [2.0]
    """

    axis: int = -1

    def __post_init__(self) -> None:
        require(is_whole(self.axis), "Glu", "axis", self.axis, "an integer")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        x = floating(x, "Glu")
        if not -x.ndim <= self.axis < x.ndim or x.shape[self.axis] % 2:
            raise ValueError(f"Glu: axis {self.axis} of x with shape {x.shape} must be there and of even size; Glu(axis=1)")
        half, axis = x.shape[self.axis] // 2, self.axis % x.ndim
        before = (slice(None),) * axis
        y = wide(x)
        return rt.astype(y[(*before, slice(half))] * rt.sigmoid(y[(*before, slice(half, None))]), x.dtype)


class SwiGlu(Module):
    """silu(x Wg + bg) * (x Wu + bu): x (..., d_in), y (..., d_out) (Shazeer 2020, eq. 6, without its last projection).

    >>> SwiGluConfig(3, 8).init(rt.Cpu())(rt.ones((5, 3), device=rt.Cpu())).shape
    (5, 8)
    """

    gate: Linear
    up: Linear

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return silu_mul(self.gate(x), self.up(x))


class SwiGluConfig(Config):
    """Settings of `SwiGlu`: sizes, `bias` (False), and `initializer` of both linear layers (see `LinearConfig`).

    >>> SwiGluConfig(3, 8).init(rt.Cpu()).paths()
    ['gate.weight', 'up.weight']
    """

    d_in: int
    d_out: int
    bias: bool = False
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> SwiGlu:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        self.require_count("d_in", "d_out")
        self.require_bools()
        linear = LinearConfig(self.d_in, self.d_out, bias=self.bias, initializer=self.initializer)
        return SwiGlu(gate=linear.init(device), up=linear.init(device))
