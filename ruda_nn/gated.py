"""Gated activations: one half of the features decides how much of the other half passes."""
from __future__ import annotations

from typing import Any

import ruda_tensor as rt
from ruda_tensor.dtypes import HALF
from ruda_tensor.ops._common import floating

from ._axes import positive
from .config import Config, is_whole
from .initializers import Initializer
from .linear import Linear, LinearConfig
from .module import Module


def silu_mul(gate: rt.Tensor, up: rt.Tensor) -> rt.Tensor:
    """Return silu(gate) * up, elementwise, for two floating tensors of one shape, dtype and device.

    For half types silu(gate) is rounded to the storage dtype *before* the product, and the product is rounded again:
    the numbers of the two operations one after the other, whichever body runs.

    Errors: ValueError for unlike shapes (nothing broadcasts), dtypes or devices; TypeError for what is not floating.

    >>> x = rt.tensor([-1.0, 1.0], dtype=rt.float64, device=rt.Cpu())
    >>> silu_mul(x, x * 2.0).numpy()
    array([0.53788284, 1.46211716])
    """
    for name, x in (("gate", gate), ("up", up)):
        if not isinstance(x, rt.Tensor) or not rt.isdtype(x.dtype, "real floating"):
            kind = x.dtype if isinstance(x, rt.Tensor) else type(x).__name__
            raise TypeError(f"silu_mul: {name} must be a floating tensor, got {kind}; convert it: {name}.astype(rt.float32)")
    if (gate.shape, gate.dtype, gate.device) != (up.shape, up.dtype, up.device):
        raise ValueError(
            f"silu_mul: gate is {gate.shape} {gate.dtype} on {gate.device}, and up {up.shape} {up.dtype} on {up.device}; "
            "they must be alike: silu_mul(gate, up.astype(gate.dtype))"
        )
    return rt.silu(gate) * up


class Glu(Module):
    """a sigmoid(b) for the two halves a, b of x along `axis` (-1) (Dauphin et al. 2017, eq. 1).

    Errors: ValueError for an axis of odd size.

    >>> Glu()(rt.tensor([4.0, 0.0], device=rt.Cpu())).tolist()
    [2.0]
    """

    axis: int = -1

    def __post_init__(self) -> None:
        if not is_whole(self.axis):
            raise ValueError(f"Glu: axis={self.axis!r} is not allowed; give an integer")

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        x = floating(x, "Glu")
        if not -x.ndim <= self.axis < x.ndim or x.shape[self.axis] % 2:
            raise ValueError(f"Glu: axis {self.axis} of x with shape {x.shape} must be there and of even size; Glu(axis=1)")
        half, axis = x.shape[self.axis] // 2, self.axis % x.ndim
        before = (slice(None),) * axis
        wide = x.astype(rt.float32) if x.dtype in HALF else x
        return (wide[(*before, slice(half))] * rt.sigmoid(wide[(*before, slice(half, None))])).astype(x.dtype)


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
        positive(self, "d_in", "d_out")
        self.require_bools()
        linear = LinearConfig(self.d_in, self.d_out, bias=self.bias, initializer=self.initializer)
        return SwiGlu(gate=linear.init(device), up=linear.init(device))
