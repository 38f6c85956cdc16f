"""Muon: momentum whose update is orthogonalized, for weights that are matrices."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ruda_tensor.dtypes import FLOAT32

from .rules import Rule


def orthogonalize(
    xp: Any, g: Any, coefficients: tuple[float, float, float], steps: int, eps: float, stable: bool = False
) -> Any:
    """Return a matrix near U V^T, where g = U S V^T, by a quintic Newton-Schulz iteration (Jordan et al. 2024).

    X = g / max(|g|, eps) in the Frobenius norm, as a wide matrix; then X <- a X + (b A + c A^2) X with A = X X^T.
    The singular values come near 1 (about 0.7 to 1.2), not to it. `stable` divides by the largest entry first, so that
    the norm can neither overflow nor underflow.

    >>> import numpy as np
    >>> g = np.array([[1.0, 2.0, 3.0], [-2.0, 1.0, 4.0]])
    >>> np.linalg.svd(orthogonalize(np, g, (3.4445, -4.775, 2.0315), 5, 1e-7), compute_uv=False).round(6).tolist()
    [1.048769, 0.725892]
    """
    a, b, c = coefficients
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g
    if stable:
        scale = xp.maximum(xp.max(xp.abs(x)), np.finfo(np.float32).tiny)
        x, floor = x / scale, xp.asarray(eps, x.dtype) / scale
    else:
        floor = xp.asarray(eps, x.dtype)
    x = x / xp.maximum(xp.sqrt(xp.sum(x * x)), floor)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.T if tall else x


class Muon(Rule):
    """p <- p (1 - lr weight_decay) - lr ratio O with O the orthogonalized momentum (Jordan et al. 2024).

    Ratio: sqrt(max(1, rows / columns)) for `adjust_lr="original"`, 0.2 sqrt(max(rows, columns)) for
    `"match_rms_adamw"`. The decay uses the unadjusted lr. Matrices only; see `MuonConfig`.

    >>> from ruda_optim import MuonConfig
    >>> MuonConfig().build().ratio((8, 2))
    2.0
    """

    arrays = ("velocity",)

    def ratio(self, shape: tuple[int, int]) -> float:
        """Return the factor on the learning rate of a matrix of this stored shape."""
        rows, columns = shape if self.config.matrix_layout == "as_stored" else shape[::-1]
        if self.config.adjust_lr == "original":
            return math.sqrt(max(1.0, rows / columns))
        return 0.2 * math.sqrt(max(rows, columns))

    def check(self, lr: float, shape: tuple[int, ...], dtype: np.dtype, grad_dtype: np.dtype) -> None:
        """Refuse what is not a matrix of numbers with a gradient of its own dtype."""
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"Muon updates matrices, and one parameter has shape {shape}; give only matrices gradients here, "
                "and update the others with another optimizer such as AdamW"
            )
        if grad_dtype != dtype:
            raise TypeError(
                f"Muon: a gradient is {grad_dtype} and its parameter {dtype}; cast it, or keep float32 masters: "
                "Fp32MasterOptimizer(MuonConfig().build()).init()"
            )
        if self.config.stable_normalization and dtype != FLOAT32:
            raise TypeError(f"Muon: stable_normalization needs float32, and a parameter is {dtype}")
        if lr * self.ratio((shape[0], shape[1])) > float(np.finfo(np.float32).max):
            raise ValueError(f"Muon: the learning rate {lr} is not finite in float32 once adjusted to the shape {shape}")

    def update(self, xp: Any, lr: float, p: Any, g: Any, state: dict[str, Any]) -> None:
        """Advance the momentum and change `p` in place."""
        c, v = self.config, state["velocity"]
        state["time"] += 1
        fresh = 1.0 - c.momentum if c.mode == "ema" else 1.0
        keep = fresh if state["time"] == 1 else fresh * (1.0 - c.dampening)
        xp.multiply(v, c.momentum, out=v)
        xp.add(v, g if keep == 1.0 else g * keep, out=v)
        moved = (g if fresh == 1.0 else g * fresh) + c.momentum * v if c.nesterov else v
        direction = orthogonalize(xp, moved, c.ns_coefficients, c.ns_steps, c.eps, c.stable_normalization)
        if c.weight_decay:
            xp.multiply(p, 1.0 - lr * c.weight_decay, out=p)
        xp.subtract(p, direction * (lr * self.ratio(p.shape)), out=p)
