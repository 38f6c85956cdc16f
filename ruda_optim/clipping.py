"""Clipping of gradients, parameter by parameter."""
from __future__ import annotations

from typing import Any

from ruda_nn import Config
from ruda_nn.config import is_number


class GradientClippingConfig(Config):
    """Clips each parameter's gradient by itself; give it to an optimizer's `grad_clipping`.

    `kind="value"`: every number into [-limit, limit]; NaN stays NaN. `kind="norm"`: g <- g min(1, limit / |g|) with the
    Euclidean norm of this one gradient, which neither overflows nor underflows; a gradient under the limit is
    bit-unchanged, and one with an inf or a NaN is left as it is.

    >>> from ruda_optim import SgdConfig
    >>> SgdConfig(grad_clipping=GradientClippingConfig.norm(1.0)).build().clipping
    GradientClippingConfig(kind='norm', limit=1.0)
    """

    kind: str
    limit: float

    @classmethod
    def value(cls, limit: float) -> GradientClippingConfig:
        """Return the clipping of every number into [-limit, limit]."""
        return cls("value", limit)

    @classmethod
    def norm(cls, limit: float) -> GradientClippingConfig:
        """Return the clipping of each parameter's gradient to a Euclidean norm of at most `limit`."""
        return cls("norm", limit)

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require(self.kind in ("value", "norm"), "kind", "'value' or 'norm'")
        self.require(is_number(self.limit) and self.limit > 0.0, "limit", "a number > 0")

    def clip(self, xp: Any, g: Any) -> Any:
        """Return the clipped gradient (float32 or float64) in a new array, or `g` itself where it has no numbers."""
        if self.kind == "value":
            return xp.clip(g, -self.limit, self.limit)
        if g.size == 0:
            return g
        # Dividing by the largest first keeps the squares in range; nothing is brought to the host.
        top = xp.max(xp.abs(g))
        scale = xp.where(top > 0, top, xp.ones_like(top))
        root = xp.sqrt(xp.sum(xp.square(g / scale)))
        factor = xp.minimum(self.limit / scale / root, xp.ones_like(root))
        return xp.where(xp.isfinite(top), g * factor, g)
