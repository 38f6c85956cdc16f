"""Configurations of optimizers: `build()` gives the bare rule, `init()` the optimizer.

"The reference system" in these docstrings is the one that `docs/decisions/0003-training-and-state.md` names.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY
from typing import Any

from ruda_nn import Config
from ruda_nn.config import is_number, is_whole

from .clipping import GradientClippingConfig
from .fused_adamw import FusedAdamW, check_options, describe_options
from .groups import ParamGroup
from .muon import Muon
from .optimizer import Optimizer
from .rules import Adam, AdamW, Rule, Sgd
from .rules_adaptive import AdaGrad, Adan, RmsProp


class OptimizerConfig(Config):
    """Base of optimizer configurations: `build()` gives the bare rule, `init(groups=[...])` the optimizer.

    Defaults are PyTorch's, where a configuration does not say otherwise. All take `grad_clipping` (None), a
    `GradientClippingConfig`. Errors: ValueError for a setting outside its range, by `build` and `init`.

    >>> issubclass(SgdConfig, OptimizerConfig)
    True
    """

    def build(self) -> Rule:
        """Return the bare rule, which wrappers such as `Fp32MasterOptimizer` take."""
        raise TypeError(f"{type(self).__name__} has no rule of its own")

    def init(self, groups: Iterable[ParamGroup] = ()) -> Optimizer:
        """Return an optimizer with this rule and no state yet; `groups` have other settings, see `ParamGroup`."""
        return Optimizer(self.build(), groups)

    def require_fraction(self, field: str) -> None:
        """Refuse anything but a number in [0, 1)."""
        self.require(is_fraction(getattr(self, field)), field, "a number in [0, 1)")

    def require_clipping(self) -> None:
        """Refuse anything but None or a valid clipping in `grad_clipping`."""
        clipping: Any = getattr(self, "grad_clipping", None)
        self.require(isinstance(clipping, GradientClippingConfig | None), "grad_clipping", "GradientClippingConfig.norm(1.0)")
        if clipping is not None:
            clipping.check()


def is_fraction(x: Any) -> bool:
    """Return whether a setting is a number in [0, 1)."""
    return is_number(x) and 0.0 <= x < 1.0


class SgdConfig(OptimizerConfig):
    """Stochastic gradient descent: `momentum` (0), `dampening` (0), `nesterov` (False), coupled `weight_decay` (0).

    The first step ignores the dampening. In the reference system momentum comes with dampening 0.1.

    >>> SgdConfig(momentum=0.9).init().rule.arrays
    ('velocity',)
    """

    _: KW_ONLY
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    grad_clipping: GradientClippingConfig | None = None

    def build(self) -> Sgd:
        """Return the rule."""
        self.require_fraction("momentum")
        self.require_within("dampening", 1.0, zero=True)
        self.require_bools()
        self.require(not self.nesterov or self.momentum > 0, "nesterov", "it with momentum > 0")
        self.require_number("weight_decay")
        self.require_clipping()
        return Sgd(self)


class AdamConfig(OptimizerConfig):
    """Adam: `betas` (0.9, 0.999), `eps` (1e-8), coupled `weight_decay` (0), `amsgrad` (False).

    The reference system has eps 1e-5.

    >>> AdamConfig().with_eps(1e-6).build().config.eps
    1e-06
    """

    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False
    grad_clipping: GradientClippingConfig | None = None

    def check(self) -> None:
        """Refuse settings outside their range."""
        check_betas(self, 2)
        self.require_number("eps", open=True)
        self.require_number("weight_decay")
        self.require_bools("amsgrad")
        self.require_clipping()

    def build(self) -> Adam:
        """Return the rule."""
        self.check()
        return Adam(self)


def check_betas(config: Any, count: int) -> None:
    """Refuse anything but `count` numbers in [0, 1) in `config.betas`."""
    betas = config.betas
    ok = isinstance(betas, (tuple, list)) and len(betas) == count and all(is_fraction(b) for b in betas)
    config.require(ok, "betas", f"{count} numbers in [0, 1)")


class AdamWConfig(AdamConfig):
    """AdamW: as Adam, with decoupled `weight_decay` (1e-2), and `cautious_weight_decay` (False).

    The reference system has eps 1e-5 and weight_decay 1e-4, and in its fused step the values that are the defaults here.

    `fused_step` (False) makes `init()` return a `FusedAdamW`, which looks at all gradients before it changes anything:
    it keeps float32 masters, skips steps that are not finite, clips the global norm to `max_grad_norm` (None), and adds
    squares in stages with `hierarchical_stats` (False).

    >>> AdamWConfig().build().config.weight_decay
    0.01
    """

    _: KW_ONLY
    weight_decay: float = 1e-2
    cautious_weight_decay: bool = False
    fused_step: bool = False
    max_grad_norm: float | None = None
    hierarchical_stats: bool = False

    def check(self) -> None:
        """Refuse settings outside their range."""
        super().check()
        self.require_bools("cautious_weight_decay")
        check_options(self)

    def build(self) -> AdamW:
        """Return the rule; fused_step is not a matter of one parameter, and needs `init()`."""
        self.check()
        self.require(not self.fused_step, "fused_step", "False to build(), or call init(), which keeps its own masters")
        return AdamW(self)

    def init(self, groups: Iterable[ParamGroup] = ()) -> Optimizer:
        """Return an optimizer with no state yet: a `FusedAdamW` with fused_step."""
        self.check()
        return FusedAdamW(self, groups) if self.fused_step else super().init(groups)

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data, with the step options apart."""
        return describe_options(super().describe())


class AdaGradConfig(OptimizerConfig):
    """AdaGrad: `lr_decay` (0), `eps` (1e-10), coupled `weight_decay` (0).

    The reference system has eps 1e-5.

    >>> AdaGradConfig(lr_decay=0.1).init()
    Optimizer(AdaGrad, 0 states)
    """

    _: KW_ONLY
    lr_decay: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0
    grad_clipping: GradientClippingConfig | None = None

    def build(self) -> AdaGrad:
        """Return the rule."""
        self.require_number("lr_decay")
        self.require_number("eps", open=True)
        self.require_number("weight_decay")
        self.require_clipping()
        return AdaGrad(self)


class RmsPropConfig(OptimizerConfig):
    """RMSprop: `alpha` (0.99), `eps` (1e-8), `momentum` (0), `centered` (False), coupled `weight_decay` (0).

    The reference system has momentum 0.9 and eps 1e-5.

    >>> RmsPropConfig(momentum=0.9).build().arrays
    ('square_avg', 'buffer')
    """

    _: KW_ONLY
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.0
    grad_clipping: GradientClippingConfig | None = None

    def build(self) -> RmsProp:
        """Return the rule."""
        self.require_fraction("alpha")
        self.require_bools()
        self.require_number("eps", open=True)
        self.require_fraction("momentum")
        self.require_number("weight_decay")
        self.require_clipping()
        return RmsProp(self)


class AdanConfig(OptimizerConfig):
    """Adan: `betas` (0.98, 0.92, 0.99), `eps` (1e-8), `weight_decay` (0), proximal unless `no_prox` (False).

    PyTorch has no Adan; these are the paper's averages (Xie et al. 2022) in the reference system's writing.

    >>> AdanConfig(weight_decay=0.1).init()
    Optimizer(Adan, 0 states)
    """

    _: KW_ONLY
    betas: tuple[float, float, float] = (0.98, 0.92, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    no_prox: bool = False
    grad_clipping: GradientClippingConfig | None = None

    def build(self) -> Adan:
        """Return the rule."""
        check_betas(self, 3)
        self.require_bools()
        self.require_number("eps", open=True)
        self.require_number("weight_decay")
        self.require_clipping()
        return Adan(self)


class MuonConfig(OptimizerConfig):
    """Muon, for parameters that are matrices: momentum, orthogonalized by `ns_steps` (5) of Newton-Schulz.

    `momentum` (0.95), `dampening` (0), `nesterov` (True); `mode="ema"` averages gradients instead of adding them up,
    which changes the buffer's scale and not the direction. `eps` (1e-7) is a floor on the norm, `adjust_lr` is
    "original" or "match_rms_adamw", decoupled `weight_decay` is 0 (PyTorch: 0.1). `matrix_layout` says which way
    round a weight is for the adjusted rate alone: "as_stored" takes its rows for outputs; "input_output" is right for
    our `Linear`, whose weight is [d_in, d_out]. `stable_normalization` keeps the norm of huge and tiny gradients in range.

    >>> MuonConfig(weight_decay=0.1).init()
    Optimizer(Muon, 0 states)
    """

    _: KW_ONLY
    momentum: float = 0.95
    dampening: float = 0.0
    nesterov: bool = True
    weight_decay: float = 0.0
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315)
    ns_steps: int = 5
    eps: float = 1e-7
    adjust_lr: str = "original"
    mode: str = "sgd"
    matrix_layout: str = "as_stored"
    stable_normalization: bool = False
    grad_clipping: GradientClippingConfig | None = None

    def build(self) -> Muon:
        """Return the rule."""
        self.require_fraction("momentum")
        self.require_within("dampening", 1.0, zero=True)
        self.require_bools()
        fits = self.momentum > 0 and self.dampening == 0
        self.require(not self.nesterov or fits, "nesterov", "it with momentum > 0 and dampening 0")
        self.require(self.mode in ("sgd", "ema"), "mode", "'sgd' or 'ema'")
        self.require(self.mode == "sgd" or self.dampening == 0, "dampening", "0 where mode is 'ema'")
        self.require_number("weight_decay")
        three = isinstance(self.ns_coefficients, (tuple, list)) and len(self.ns_coefficients) == 3
        self.require(three and all(is_number(c) for c in self.ns_coefficients), "ns_coefficients", "three finite numbers")
        self.require(is_whole(self.ns_steps) and 1 <= self.ns_steps <= 99, "ns_steps", "an integer from 1 to 99")
        self.require_number("eps", open=True)
        self.require(self.adjust_lr in ("original", "match_rms_adamw"), "adjust_lr", "'original' or 'match_rms_adamw'")
        self.require(
            self.matrix_layout in ("as_stored", "input_output"), "matrix_layout", "'as_stored' or 'input_output'"
        )
        self.require_clipping()
        return Muon(self)
