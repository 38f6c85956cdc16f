"""The linear layer."""
from __future__ import annotations

from typing import Any

import ruda_tensor as rt

from .config import Config
from .creation import Creation
from .initializers import Initializer, KaimingUniform, require_initializer
from .module import Module
from .param import Param


class Linear(Module):
    """y = x W + b with W of shape [d_in, d_out]: x is [..., d_in], y is [..., d_out]. A residual like y may be added.

    >>> layer = LinearConfig(3, 2).init(rt.Cpu())
    >>> layer(rt.ones((5, 3), device=rt.Cpu())).shape
    (5, 2)
    """

    weight: Param
    bias: Param | None = None

    transposed_in_torch = ("weight",)

    def forward(self, x: rt.Tensor, residual: rt.Tensor | None = None) -> rt.Tensor:
        return rt.linear(x, self.weight, self.bias, residual=residual)


def added(layer: Module, x: rt.Tensor, residual: rt.Tensor | None) -> rt.Tensor:
    """residual + layer(x), in one product where the layer is a plain `Linear`; without a residual layer(x)."""
    if residual is None:
        return layer(x)
    return layer(x, residual) if type(layer) is Linear else residual + layer(x)


class LinearConfig(Config):
    """Settings of `Linear`: sizes, `bias` (True), `initializer` (U(-k, k) with k = 1/sqrt(d_in), bias included).

    >>> from ruda_autodiff import Autodiff
    >>> LinearConfig(2, 1).init(Autodiff(rt.Cpu())).weight.is_require_grad()
    True
    """

    d_in: int
    d_out: int
    bias: bool = True
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> Linear:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        self.require_count("d_in", "d_out")
        self.require_bools()
        require_initializer(self)
        make, initializer = Creation(device), self.initializer or KaimingUniform()
        weight = make.param(initializer, (self.d_in, self.d_out), self.d_in, self.d_out)
        bias = make.param(initializer, (self.d_out,), self.d_in, self.d_out) if self.bias else None
        return Linear(weight=weight, bias=bias)
