"""How a configuration makes the parameters of its layer."""
from __future__ import annotations

from typing import Any

from ruda_autodiff import Autodiff
from ruda_tensor.devices import resolve_device

from .initializers import Initializer
from .param import Param


class Creation:
    """Makes parameters on one device, tracked where it records; `training` is the mode of layers that have one.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Normal
    >>> make = Creation(Autodiff(rt.Cpu()))
    >>> make.param(Normal(), (3, 2), fan_in=3, fan_out=2).shape, make.training
    ((3, 2), True)
    """

    def __init__(self, device: Any = None) -> None:
        self.place = resolve_device(device)
        self.training = isinstance(device, Autodiff)
        self.device = device if self.training else self.place

    def param(self, initializer: Initializer, shape: tuple[int, ...], fan_in: int = 1, fan_out: int = 1) -> Param:
        """Return a parameter of a shape, filled by an initializer for a layer of so many inputs and outputs."""
        return Param(initializer.fill(shape, fan_in, fan_out, self.place), device=self.device)
