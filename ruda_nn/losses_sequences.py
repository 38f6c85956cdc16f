"""Losses of label sequences whose alignment with the input is not known."""
from __future__ import annotations

from typing import Any

import ruda_tensor as rt

from .config import Config
from .losses import require_reduction
from .module import Module


class CtcLoss(Module):
    """-log of the probability of the target labels, summed over all their alignments with the frames.

    `log_probs` [frames, n, classes] are log-probabilities, `targets` [n, labels] class ids padded with anything; row i
    has `input_lengths[i]` frames and `target_lengths[i]` labels (all, if None). "mean" divides each loss by its number
    of labels (at least 1) and averages over the rows. A target that needs more frames than there are costs inf, or 0
    with `zero_infinity`, and has gradient 0. The function is `rt.ctc_loss`, which says more.

    Errors: ValueError for shapes and lengths that do not belong together, IndexError for a target that is no label,
    TypeError for targets that are not integers.
    Source: Graves et al., Connectionist Temporal Classification (2006).

    >>> loss = CtcLossConfig().init()
    >>> log_probs = rt.log_softmax(rt.zeros((3, 1, 2), device=rt.Cpu()))
    >>> round(loss(log_probs, rt.tensor([[1]], device=rt.Cpu())).item(), 6)  # 6 of the 8 paths read "1"
    0.287682
    """

    blank: int
    zero_infinity: bool
    reduction: str

    def forward(
        self, log_probs: rt.Tensor, targets: Any, input_lengths: Any = None, target_lengths: Any = None
    ) -> rt.Tensor:
        return rt.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank=self.blank, zero_infinity=self.zero_infinity,
            reduction=self.reduction,
        )  # fmt: skip


class CtcLossConfig(Config):
    """Settings of `CtcLoss`: `blank` (0, the class between labels), `zero_infinity` (False), `reduction` ("mean").

    >>> CtcLossConfig(blank=27).init().blank
    27
    """

    blank: int = 0
    zero_infinity: bool = False
    reduction: str = "mean"

    def init(self, device: Any = None) -> CtcLoss:
        """Return the loss; it holds nothing that has a device."""
        self.require_count("blank", low=0)
        self.require_bools()
        require_reduction(self)
        return CtcLoss(self.blank, self.zero_infinity, self.reduction)
