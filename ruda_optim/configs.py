"""Configurations of optimizers: `build()` gives the bare rule, `init()` the optimizer."""
from __future__ import annotations

from typing import Any

from ruda_nn import Config

from .optimizer import Optimizer
from .rules import Adam, AdamW, Rule, Sgd


class OptimizerConfig(Config):
    """Base of optimizer configurations: `build()` gives the bare rule, `init()` the optimizer.

    >>> issubclass(SgdConfig, OptimizerConfig)
    True
    """

    def build(self) -> Rule:
        """Return the bare rule, which wrappers such as `Fp32MasterOptimizer` take."""
        raise TypeError(f"{type(self).__name__} has no rule of its own")

    def init(self) -> Optimizer:
        """Return an optimizer with this rule and no state yet."""
        return Optimizer(self.build())


def _fraction(x: Any) -> bool:
    return isinstance(x, (int, float)) and 0.0 <= x < 1.0


class SgdConfig(OptimizerConfig):
    """Stochastic gradient descent: `momentum` (0), `dampening` (0), `nesterov` (False), coupled `weight_decay` (0).

    >>> SgdConfig(momentum=0.9).init().rule.arrays
    ('velocity',)
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def build(self) -> Sgd:
        self.require(_fraction(self.momentum), "momentum", "a number in [0, 1)")
        self.require(0.0 <= self.dampening <= 1.0, "dampening", "a number in [0, 1]")
        self.require(not self.nesterov or (self.momentum > 0 and self.dampening == 0), "nesterov", "it with momentum > 0 and dampening 0")
        self.require(self.weight_decay >= 0.0, "weight_decay", "a number >= 0")
        return Sgd(self)


class AdamConfig(OptimizerConfig):
    """Adam: `betas` (0.9, 0.999), `eps` (1e-8), coupled `weight_decay` (0), `amsgrad` (False).

    >>> AdamConfig().with_eps(1e-6).build().config.eps
    1e-06
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require(len(self.betas) == 2 and all(_fraction(b) for b in self.betas), "betas", "two numbers in [0, 1)")
        self.require(self.eps > 0.0, "eps", "a number > 0")
        self.require(self.weight_decay >= 0.0, "weight_decay", "a number >= 0")

    def build(self) -> Adam:
        self.check()
        return Adam(self)


class AdamWConfig(AdamConfig):
    """AdamW: as Adam, with decoupled `weight_decay` (1e-2).

    >>> AdamWConfig().build().config.weight_decay
    0.01
    """

    weight_decay: float = 1e-2

    def build(self) -> AdamW:
        self.check()
        return AdamW(self)
