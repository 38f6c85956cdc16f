"""What a learning rate may be."""
from __future__ import annotations

import math
from typing import Any

from ruda_tensor.live import Live


def check_lr(lr: Any) -> Any:
    """Return the learning rate as a Python float, or raise; a captured step's is read anew at every replay."""
    if isinstance(lr, Live):
        check_lr(lr.read())
        return lr
    try:
        value = float(lr)
    except (TypeError, ValueError):
        advice = "step(lr.step(), model, gradients)" if hasattr(lr, "peek") else "step(lr, model, gradients)"
        raise TypeError(f"step: the learning rate comes first and is a number, got {type(lr).__name__}; {advice}") from None
    if not math.isfinite(value) or value < 0.0:
        raise ValueError(f"step: the learning rate must be finite and >= 0, got {lr!r}")
    return value
