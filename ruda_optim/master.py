"""FP32 master weights for parameters that are stored in half precision."""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ruda_nn.config import is_number
from ruda_tensor.dtypes import FLOAT32, FLOAT64

from .clipping import GradientClippingConfig, scaled
from .groups import ParamGroup
from .optimizer import Optimizer
from .rules import Rule
from .together import Parts, each_clipping, parts_of


class Fp32MasterOptimizer:
    """A rule that keeps an authoritative FP32 copy of each parameter and returns it rounded to the stored dtype.

    The stored value is read once, at the first step; later edits of it are ignored. Gradients may be in the stored
    dtype or float32; they are divided by the gradient scale in float32, then clipped, then given to the inner rule.
    Nothing is scaled or skipped by itself.

    >>> from ruda_optim import AdamWConfig
    >>> Fp32MasterOptimizer(AdamWConfig().build()).with_gradient_scale(1024.0).init()
    Optimizer(Fp32MasterOptimizer(AdamW, gradient_scale=1024.0), 0 states)
    """

    def __init__(
        self, inner: Rule, *, gradient_scale: float = 1.0, grad_clipping: GradientClippingConfig | None = None
    ) -> None:
        if not isinstance(inner, Rule):
            raise TypeError(
                f"Fp32MasterOptimizer wraps a rule, and got {type(inner).__name__}; "
                "build one: Fp32MasterOptimizer(AdamWConfig().build()).init()"
            )
        if grad_clipping is not None:
            if not isinstance(grad_clipping, GradientClippingConfig):
                raise TypeError(
                    f"Fp32MasterOptimizer: grad_clipping is a configuration, got {type(grad_clipping).__name__}; "
                    "grad_clipping=GradientClippingConfig.norm(1.0)"
                )
            grad_clipping.check()
            if inner.global_limit() is not None:
                raise ValueError("Fp32MasterOptimizer: the inner rule clips the global norm already; clip in one place")
        self.inner, self.gradient_scale, self.clipping = inner, check_scale(gradient_scale), grad_clipping

    def with_gradient_scale(self, scale: float) -> Fp32MasterOptimizer:
        """Return the rule dividing every gradient by the loss scale that the caller multiplied into the loss.

        Errors: ValueError unless the scale and its reciprocal are finite and > 0 in float32.
        """
        return Fp32MasterOptimizer(self.inner, gradient_scale=scale, grad_clipping=self.clipping)

    def with_grad_clipping(self, clipping: GradientClippingConfig) -> Fp32MasterOptimizer:
        """Return the rule clipping gradients after the division by the scale: each by itself, or by their global norm."""
        return Fp32MasterOptimizer(self.inner, gradient_scale=self.gradient_scale, grad_clipping=clipping)

    def init(self, groups: Iterable[ParamGroup] = ()) -> Optimizer:
        """Return an optimizer with this rule and no state yet; groups change settings of the inner rule."""
        return Optimizer(self, groups)

    @property
    def elementwise(self) -> bool:
        """Whether each number is updated by itself, so that several parameters can be updated as one."""
        return self.inner.elementwise and (self.clipping is None or self.clipping.kind != "norm")

    def global_limit(self) -> float | None:
        """The limit on the norm of all unscaled gradients together; the optimizer sees to it."""
        own = self.clipping is not None and self.clipping.kind == "global_norm"
        return self.clipping.limit if own else self.inner.global_limit()  # type: ignore[union-attr]

    def with_settings(self, settings: dict[str, Any]) -> Fp32MasterOptimizer:
        """Return the rule with other settings of the inner rule, as a parameter group asks for."""
        inner = self.inner.with_settings(settings)
        return Fp32MasterOptimizer(inner, gradient_scale=self.gradient_scale, grad_clipping=self.clipping)

    def describe(self) -> dict[str, Any]:
        """The configuration as plain data, which a restore compares."""
        clipping = None if self.clipping is None else self.clipping.describe()
        own = {"rule": "Fp32MasterOptimizer", "gradient_scale": self.gradient_scale, "grad_clipping": clipping}
        return {**own, "inner": self.inner.describe()}

    def check(self, lr: float, shape: tuple[int, ...], dtype: np.dtype, grad_dtype: np.dtype) -> None:
        """Refuse what FP32 masters cannot hold, and what the inner rule refuses."""
        if dtype == FLOAT64:
            raise TypeError("Fp32MasterOptimizer: a float64 parameter would lose precision; use the inner rule by itself")
        if grad_dtype not in (dtype, FLOAT32):
            raise TypeError(f"Fp32MasterOptimizer: the gradient of a parameter of {dtype} is {grad_dtype}; give float32")
        self.inner.check(lr, shape, FLOAT32, FLOAT32)

    def start(self, xp: Any, p: Any) -> dict[str, Any]:
        """The master of a parameter before its first update, and the inner rule's state."""
        master = p.astype(FLOAT32)
        return {"master": master, "inner": self.inner.start(xp, master)}

    def counter(self, state: dict[str, Any]) -> dict[str, Any]:
        """The part of a state whose `time` says how often its parameter was updated."""
        return self.inner.counter(state["inner"])

    def parts(self) -> Parts | None:
        """How the rule comes apart for the kernel that updates many parameters in one launch; None where it does not."""
        inner = parts_of(self.inner)
        if inner is None:
            return None
        clip = inner.clip if self.clipping is None else each_clipping(self)
        alone = self.clipping is None or inner.clip is None  # or one of both clippings would be lost
        if not alone or (clip is not None and self.gradient_scale != 1.0):
            return None
        return inner._replace(inner="inner", master="master", unscale=self.gradient_scale, clip=clip)

    def step(
        self, xp: Any, lr: float, p: Any, g: Any, state: dict[str, Any] | None, factor: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Update the master in float32 and return it in the dtype of `p`; see `Rule.step`."""
        if state is None:
            state = self.start(xp, p)
        g = g.astype(FLOAT32, copy=False)
        if self.gradient_scale != 1.0:
            g = g / xp.asarray(self.gradient_scale, FLOAT32)
        if factor is not None:
            g = scaled(xp, g, factor)
        if self.clipping is not None:
            g = self.clipping.clip(xp, g)
        state["master"], state["inner"] = self.inner.step(xp, lr, state["master"], g, state["inner"])
        return state["master"].astype(p.dtype), state

    def __repr__(self) -> str:
        scale = "" if self.gradient_scale == 1.0 else f", gradient_scale={self.gradient_scale}"
        return f"Fp32MasterOptimizer({self.inner!r}{scale})"


def check_scale(scale: Any) -> float:
    """Return a loss scale as a number that float32 can divide by, or raise ValueError."""
    with np.errstate(all="ignore"):
        value = np.float32(scale) if is_number(scale) else np.float32(0.0)
        reciprocal = np.float32(1.0) / value
    if not (math.isfinite(value) and value > 0.0 and math.isfinite(reciprocal) and reciprocal > 0.0):
        raise ValueError(f"the gradient scale must be > 0 and finite in float32, and so its reciprocal; got {scale!r}")
    return float(scale)
