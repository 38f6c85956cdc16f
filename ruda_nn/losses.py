"""Losses as configured objects; the mathematics is in the functions of ruda_tensor."""
from __future__ import annotations

import ruda_tensor as rt

from .config import Config, is_number, is_whole
from .module import Module


class CrossEntropyLoss(Module):
    """The mean over the rows that are not ignored of -log softmax(logits)[target].

    >>> loss = CrossEntropyLossConfig().init()
    >>> round(loss(rt.zeros((2, 4), device=rt.Cpu()), rt.tensor([0, 3], device=rt.Cpu())).item(), 6)
    1.386294
    """

    ignore_index: int
    label_smoothing: float
    reduction: str

    def forward(self, logits: rt.Tensor, targets: rt.Tensor) -> rt.Tensor:
        return rt.cross_entropy(
            logits,
            targets,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )


class CrossEntropyLossConfig(Config):
    """Settings of `CrossEntropyLoss`: `ignore_index` (-100), `label_smoothing` (0), `reduction` ("mean").

    >>> CrossEntropyLossConfig(reduction="sum").init().reduction
    'sum'
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"

    def init(self) -> CrossEntropyLoss:
        """Return the loss."""
        self.require(is_whole(self.ignore_index), "ignore_index", "an integer")
        smoothing = self.label_smoothing
        self.require(is_number(smoothing) and 0.0 <= smoothing <= 1.0, "label_smoothing", "a number in [0, 1]")
        self.require(self.reduction in ("mean", "sum", "none"), "reduction", "'mean', 'sum' or 'none'")
        return CrossEntropyLoss(self.ignore_index, self.label_smoothing, self.reduction)
