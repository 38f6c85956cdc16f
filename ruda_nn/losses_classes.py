"""Losses between scores or probabilities of classes and classes: cross-entropies and relative entropy."""
from __future__ import annotations

import math
from typing import Any

import ruda_tensor as rt
from ruda_tensor.devices import resolve_device
from ruda_tensor.ops._common import floating

from ._wide import wide
from .config import Config, is_whole
from .losses import REDUCTIONS, operands, reduced, require_reduction
from .module import Module

LEAST = math.sqrt(2.0**-126)  # 1.08e-19: what a probability is taken to be at least, before its logarithm


def _constant(config: Any, field: str, device: Any) -> rt.Tensor | None:
    """A setting of weights (a tensor, an array or nested lists) as an untracked tensor, or None."""
    value = getattr(config, field)
    if value is None:
        return None
    allowed = "finite numbers >= 0, such as [1.0, 2.0], or None"
    try:
        weights = rt.asarray(value, device=resolve_device(device)).detach()
    except (TypeError, ValueError):
        return config.require(False, field, allowed)
    good = weights.dtype != rt.bool and weights.ndim > 0 and bool(rt.all(rt.isfinite(weights) & (weights >= 0)))
    config.require(good, field, allowed)
    return weights if rt.isdtype(weights.dtype, "real floating") else rt.astype(weights, weights.device.float_dtype)


class CrossEntropyLoss(Module):
    """-log p[target], where p = softmax(logits) along `axis`, or with `logits=False` what is given.

    Scores are [..., classes] (or hold the classes at `axis`), targets class ids of that shape without the classes, or
    probabilities of the shape of the scores. A row of class t costs, with label smoothing s over C classes and class
    weights w, (1 - s) w[t] (-log p[t]) + s/C sum_c w[c] (-log p[c]); a row whose id is `ignore_index` costs nothing.

    "mean" divides by the weights w[t] of the rows that count: without weights, by how many rows are not ignored. So
    padding does not dilute the loss; where no row counts it is 0. For probabilities it divides by the number of rows. (The
    reference system divides by all rows, padding too: that is "sum" divided by their number.)
    With `logits=False` a probability counts as at least 1.08e-19 (the root of the smallest normal float32), and its
    gradient below that is 0.

    Errors: ValueError for shapes that do not belong together, IndexError for an id that is no class, TypeError for
    bool targets and for scores that are no floats. The function is `rt.cross_entropy`.
    Source: Szegedy et al., Rethinking the Inception Architecture (2016), section 7, for label smoothing.

    >>> loss = CrossEntropyLossConfig().init()
    >>> round(loss(rt.zeros((2, 4), device=rt.Cpu()), rt.tensor([0, 3], device=rt.Cpu())).item(), 6)
    1.386294
    """

    ignore_index: int
    label_smoothing: float
    reduction: str
    weight: rt.Tensor | None = None
    axis: int = -1
    logits: bool = True

    def forward(self, scores: rt.Tensor, targets: Any) -> rt.Tensor:
        if not rt.isdtype(getattr(scores, "dtype", rt.float32), "real floating"):
            raise TypeError(
                f"CrossEntropyLoss: scores must be floating, got {scores.dtype}; they come first: loss(scores, targets)"
            )
        how: dict[str, Any] = {
            "axis": self.axis,
            "weight": self.weight,
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
            "reduction": self.reduction,
        }
        if self.logits:
            return rt.cross_entropy(scores, targets, **how)
        return _of_probabilities(scores, targets, **how)


def _of_probabilities(
    p: rt.Tensor, targets: Any, axis: int, weight: rt.Tensor | None, ignore_index: int, label_smoothing: float,
    reduction: str,
) -> rt.Tensor:  # fmt: skip
    """The same costs of probabilities: q log p with the weights q that the loss gives to each -log p."""
    rt.cross_entropy(rt.zeros_like(p), targets, axis=axis, weight=weight, ignore_index=ignore_index)  # what it refuses
    x = rt.moveaxis(wide(p), axis, -1)
    logs, classes = rt.log(rt.maximum(x, LEAST)), x.shape[-1]
    w = rt.ones((classes,), dtype=x.dtype, device=x.device) if weight is None else rt.astype(weight, x.dtype)
    targets = targets if isinstance(targets, rt.Tensor) else rt.asarray(targets, device=x.device)
    if rt.isdtype(targets.dtype, "real floating"):
        q = rt.moveaxis(rt.astype(targets, x.dtype), axis, -1) * (1 - label_smoothing) + label_smoothing / classes
        return reduced(-rt.sum(q * w * logs, axis=-1), reduction, p.dtype)
    ids = rt.astype(targets, rt.int64)
    counted = ids != ignore_index
    ids = rt.where(counted, ids, 0)
    own = rt.take(w, ids)
    losses = -(1 - label_smoothing) * own * rt.take_along_axis(logs, rt.expand_dims(ids, axis=-1), axis=-1)[..., 0]
    losses = losses - (label_smoothing / classes) * rt.sum(w * logs, axis=-1)
    losses = rt.where(counted, losses, 0.0)
    if reduction != "mean":
        return reduced(losses, reduction, p.dtype)
    whole = rt.sum(rt.where(counted, own, 0.0))
    return rt.astype(rt.sum(losses) / rt.where(whole == 0, 1.0, whole), p.dtype)


class CrossEntropyLossConfig(Config):
    """Settings of `CrossEntropyLoss`: `ignore_index` (-100), `label_smoothing` (0.0, from 0 to 1), `reduction` ("mean"),
    `weight` (None; a number >= 0 for each class), `axis` of the classes (-1), `logits` (True; False for probabilities).

    >>> loss = CrossEntropyLossConfig(weight=[1.0, 3.0], reduction="sum").init(rt.Cpu())
    >>> round(loss(rt.zeros((2, 2), device=rt.Cpu()), rt.tensor([0, 1], device=rt.Cpu())).item(), 6)
    2.772589
    """

    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: str = "mean"
    weight: Any = None
    axis: int = -1
    logits: bool = True

    def init(self, device: Any = None) -> CrossEntropyLoss:
        """Return the loss, with its class weights on a device."""
        self.require(is_whole(self.ignore_index), "ignore_index", "an integer")
        self.require_within("label_smoothing", 1.0, zero=True)
        require_reduction(self)
        self.require(is_whole(self.axis), "axis", "an integer")
        self.require_bools()
        weight = _constant(self, "weight", device)
        self.require(weight is None or weight.ndim == 1, "weight", "one number >= 0 for each class")
        return CrossEntropyLoss(
            self.ignore_index, self.label_smoothing, self.reduction, weight, self.axis, self.logits
        )


class BinaryCrossEntropyLoss(Module):
    """-t log p - (1 - t) log(1 - p), where p is the prediction, or with `logits=True` its sigmoid.

    Any shape, the same for both (a number is a target for every element); targets are from 0 to 1. `weight`
    multiplies the losses and `pos_weight` (only of logits) the first term; both broadcast to the prediction. "mean"
    divides by the number of elements, whatever the weights.

    Logits may have any size. Of probabilities the logarithms are at least -100 and their derivatives divide by at
    least 1e-12. The functions are `rt.binary_cross_entropy` and `rt.binary_cross_entropy_with_logits`.

    Errors: ValueError where the shapes differ, or weights do not broadcast to them, and for a prediction that is no
    probability (reading them waits for a GPU; logits are not read).

    >>> loss = BinaryCrossEntropyLossConfig(logits=True, reduction="none").init()
    >>> loss(rt.tensor([-10000.0, 10000.0], device=rt.Cpu()), 1.0).tolist()
    [10000.0, 0.0]
    """

    logits: bool
    reduction: str
    weight: rt.Tensor | None = None
    pos_weight: rt.Tensor | None = None

    def forward(self, prediction: rt.Tensor, target: Any) -> rt.Tensor:
        if self.weight is None:
            return self._losses(prediction, target, self.reduction)
        x, t, dtype = operands("BinaryCrossEntropyLoss", prediction, target)
        weight = rt.broadcast_to(rt.astype(self.weight, x.dtype), x.shape)
        return reduced(self._losses(x, t, "none") * weight, self.reduction, dtype)

    def _losses(self, prediction: rt.Tensor, target: Any, reduction: str) -> rt.Tensor:
        if not self.logits:
            prediction = floating(prediction, "BinaryCrossEntropyLoss")
            p = prediction.detach()
            if bool(rt.any((p < 0) | (p > 1))):
                raise ValueError(
                    "BinaryCrossEntropyLoss: predictions must be probabilities, from 0 to 1; "
                    "for any numbers: BinaryCrossEntropyLossConfig(logits=True)"
                )
            return rt.binary_cross_entropy(prediction, target, reduction=reduction)
        return rt.binary_cross_entropy_with_logits(
            prediction, target, pos_weight=self.pos_weight, reduction=reduction
        )


class BinaryCrossEntropyLossConfig(Config):
    """Settings of `BinaryCrossEntropyLoss`: `logits` (False; True for logits), `reduction` ("mean"), and `weight` and
    `pos_weight` (None; numbers >= 0 that broadcast to the prediction, the second only with `logits=True`).

    >>> loss = BinaryCrossEntropyLossConfig(logits=True, pos_weight=[3.0]).init(rt.Cpu())
    >>> round(loss(rt.zeros((4,), device=rt.Cpu()), 1.0).item(), 6)
    2.079442
    """

    logits: bool = False
    reduction: str = "mean"
    weight: Any = None
    pos_weight: Any = None

    def init(self, device: Any = None) -> BinaryCrossEntropyLoss:
        """Return the loss, with its weights on a device."""
        self.require_bools()
        require_reduction(self)
        self.require(self.pos_weight is None or self.logits, "pos_weight", "None for probabilities, or set logits=True")
        weights = _constant(self, "weight", device), _constant(self, "pos_weight", device)
        return BinaryCrossEntropyLoss(self.logits, self.reduction, *weights)


class KlDivLoss(Module):
    """t (log t - x) for log-probabilities x and target probabilities t: elements of the divergence of x from t.

    With `log_target` the target is log t. Where t is 0 the element is 0. The divergence of one distribution is the
    sum of its elements, so of rows [n, classes] the mean divergence is `reduction="batchmean"`, the sum divided by the
    size of the first axis; "mean" is over all elements, as elsewhere in the field. `rt.kl_div` sums along its axis.

    Any shape, the same for both. Errors: ValueError where the shapes differ.

    >>> loss = KlDivLossConfig(reduction="batchmean").init()
    >>> x = rt.log(rt.tensor([[0.5, 0.5]], device=rt.Cpu()))
    >>> round(loss(x, rt.tensor([[1.0, 0.0]], device=rt.Cpu())).item(), 6)
    0.693147
    """

    log_target: bool
    reduction: str

    def forward(self, log_prediction: rt.Tensor, target: rt.Tensor) -> rt.Tensor:
        x, t, dtype = operands("KlDivLoss", log_prediction, target)
        if self.reduction == "batchmean" and not x.ndim:
            raise ValueError("KlDivLoss: 'batchmean' divides by the size of the first axis, got 0-d; use reduction='sum'")
        x, t = (rt.expand_dims(v, axis=-1) for v in (x, rt.exp(t) if self.log_target else t))
        losses = rt.kl_div(x, t, reduction="none")
        if self.reduction == "batchmean":
            return rt.astype(rt.sum(losses) / losses.shape[0], dtype)
        return reduced(losses, self.reduction, dtype)


class KlDivLossConfig(Config):
    """Settings of `KlDivLoss`: `log_target` (False), `reduction` ("mean"; here "batchmean" as well).

    >>> KlDivLossConfig(reduction="batchmean").init().log_target
    False
    """

    log_target: bool = False
    reduction: str = "mean"

    def init(self, device: Any = None) -> KlDivLoss:
        """Return the loss; it holds nothing that has a device."""
        self.require_bools()
        allowed = self.reduction in (*REDUCTIONS, "batchmean")
        self.require(allowed, "reduction", "'mean', 'batchmean', 'sum' or 'none'")
        return KlDivLoss(self.log_target, self.reduction)
