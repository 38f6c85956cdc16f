"""Dropout as a layer."""
from __future__ import annotations

from typing import Any

import ruda_tensor as rt

from .config import Config
from .creation import Creation
from .module import Module


class Dropout(Module):
    """In training mode each element is 0 with probability `p`, and the others are divided by 1 - p; else x itself.

    Masks come from the process's generator (`rt.random.seed`), are never stored, and are drawn again in backward; see
    `rt.dropout`.

    >>> from ruda_autodiff import Autodiff
    >>> layer = DropoutConfig(1.0).init(Autodiff(rt.Cpu()))
    >>> x = rt.ones(3, device=rt.Cpu())
    >>> layer(x).tolist(), layer.valid()(x).tolist()
    ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    """

    p: float
    training: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.dropout(x, self.p, training=self.training)


class DropoutConfig(Config):
    """Settings of `Dropout`: `p` (0.5), the probability that an element becomes 0.

    Errors: ValueError at `init` for p outside [0, 1].

    >>> DropoutConfig(0.1).init(rt.Cpu()).training
    False
    """

    p: float = 0.5

    def init(self, device: Any = None) -> Dropout:
        """Return the layer, which is in training mode if the device records."""
        self.require_within("p", 1.0, zero=True)
        return Dropout(p=float(self.p), training=Creation(device).training)
