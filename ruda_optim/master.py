"""FP32 master weights for parameters that are stored in half precision."""
from __future__ import annotations

import math
from typing import Any

from ruda_tensor.dtypes import FLOAT32, FLOAT64

from .optimizer import Optimizer
from .rules import Rule


class Fp32MasterOptimizer:
    """A rule that keeps an authoritative FP32 copy of each parameter and returns it rounded to the stored dtype.

    The stored value is read once, at the first step; later edits of it are ignored. Gradients may be in the stored
    dtype or float32, and are divided by the gradient scale in float32 first.

    >>> from ruda_optim import AdamWConfig
    >>> optimizer = Fp32MasterOptimizer(AdamWConfig().build()).with_gradient_scale(1024.0).init()
    """

    def __init__(self, inner: Rule, *, gradient_scale: float = 1.0) -> None:
        if isinstance(inner, Optimizer) or not isinstance(inner, Rule):
            raise TypeError(
                f"Fp32MasterOptimizer wraps a rule, and got {type(inner).__name__}; "
                "build one: Fp32MasterOptimizer(AdamWConfig().build()).init()"
            )
        scale = float(gradient_scale)
        if not (math.isfinite(scale) and scale > 0.0 and math.isfinite(1.0 / scale)):
            raise ValueError(f"the gradient scale must be finite and > 0, with a finite reciprocal, got {gradient_scale!r}")
        self.inner, self.gradient_scale = inner, scale

    def with_gradient_scale(self, scale: float) -> Fp32MasterOptimizer:
        """Return the rule dividing every gradient by the loss scale that the caller multiplied into the loss."""
        return Fp32MasterOptimizer(self.inner, gradient_scale=scale)

    def init(self) -> Optimizer:
        """Return an optimizer with this rule and no state yet."""
        return Optimizer(self)

    def describe(self) -> dict[str, Any]:
        """The configuration as plain data, which a restore compares."""
        return {"rule": "Fp32MasterOptimizer", "gradient_scale": self.gradient_scale, "inner": self.inner.describe()}

    def step(self, xp: Any, lr: float, p: Any, g: Any, state: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Update the master in float32 and return it in the dtype of `p`."""
        if p.dtype == FLOAT64:
            raise TypeError("Fp32MasterOptimizer: a float64 parameter would lose precision; use the inner rule itself")
        if state is None:
            state = {"master": p.astype(FLOAT32), "inner": None}
        g = g.astype(FLOAT32, copy=False)
        if self.gradient_scale != 1.0:
            g = g * xp.asarray(1.0 / self.gradient_scale, FLOAT32)
        state["master"], state["inner"] = self.inner.step(xp, lr, state["master"], g, state["inner"])
        return state["master"].astype(p.dtype), state
