"""Losses of a prediction and a target of one shape, as configured objects; most of the mathematics is in ruda_tensor.

Every loss has `reduction`: "mean" over the elements (the default), "sum", or "none" for one loss each. Half types are
computed in float32 and rounded once, after the reduction. A loss has no parameters: a model may hold one as a field.
Losses between class scores and classes are in `losses_classes.py`, of label sequences in `losses_sequences.py`.
"""
from __future__ import annotations

import math
import numbers
from typing import Any

import ruda_tensor as rt
from ruda_tensor.dtypes import HALF

from .config import Config, is_number
from .module import Module

REDUCTIONS = ("mean", "sum", "none")


def require_reduction(config: Any) -> None:
    """Refuse a configuration whose `reduction` is unknown."""
    config.require(config.reduction in REDUCTIONS, "reduction", "'mean', 'sum' or 'none'")


def reduced(losses: rt.Tensor, reduction: str, dtype: Any) -> rt.Tensor:
    """Return the mean or sum of the losses, or themselves, rounded to `dtype`."""
    if reduction == "mean":
        losses = rt.mean(losses)
    elif reduction == "sum":
        losses = rt.sum(losses)
    return rt.astype(losses, dtype)


def operands(name: str, prediction: Any, target: Any) -> tuple[rt.Tensor, rt.Tensor, Any]:
    """Return prediction and target in the one float dtype to compute in, and the dtype of the result.

    Their shapes must be equal, but a number is a target for every element.
    """
    x = prediction if isinstance(prediction, rt.Tensor) else rt.asarray(prediction)
    x = x if rt.isdtype(x.dtype, "real floating") else rt.astype(x, x.device.float_dtype)
    t = target if isinstance(target, rt.Tensor) else rt.asarray(target, device=x.device)
    if x.shape != t.shape and t.ndim:
        raise ValueError(
            f"{name}: prediction and target must have one shape, got {x.shape} and {t.shape}; "
            "for example rt.reshape(target, prediction.shape)"
        )
    dtype = x.dtype if isinstance(target, numbers.Number) else rt.result_type(x, t)
    common = rt.float32 if dtype in HALF else dtype
    return rt.astype(x, common), rt.astype(t, common), dtype


class MseLoss(Module):
    """The squared error (prediction - target)^2; the function is `rt.mse`.

    Any shape, the same for both (a number is a target for every element). Errors: ValueError where the shapes differ.

    >>> loss = MseLossConfig().init()
    >>> loss(rt.tensor([1.0, 2.0], device=rt.Cpu()), rt.tensor([1.0, 4.0], device=rt.Cpu())).item()
    2.0
    """

    reduction: str

    def forward(self, prediction: rt.Tensor, target: Any) -> rt.Tensor:
        return rt.mse(prediction, target, reduction=self.reduction)


class MseLossConfig(Config):
    """Settings of `MseLoss`: `reduction` ("mean").

    >>> MseLossConfig(reduction="sum").init().reduction
    'sum'
    """

    reduction: str = "mean"

    def init(self, device: Any = None) -> MseLoss:
        """Return the loss; it holds nothing that has a device."""
        require_reduction(self)
        return MseLoss(self.reduction)


class L1Loss(Module):
    """The absolute error |prediction - target|, with gradient 0 where the two are equal; the function is `rt.mae`.

    Any shape, the same for both (a number is a target for every element). Errors: ValueError where the shapes differ.

    >>> loss = L1LossConfig().init()
    >>> loss(rt.tensor([1.0, 2.0], device=rt.Cpu()), rt.tensor([1.0, 4.0], device=rt.Cpu())).item()
    1.0
    """

    reduction: str

    def forward(self, prediction: rt.Tensor, target: Any) -> rt.Tensor:
        return rt.mae(prediction, target, reduction=self.reduction)


class L1LossConfig(Config):
    """Settings of `L1Loss`: `reduction` ("mean").

    >>> L1LossConfig().init().reduction
    'mean'
    """

    reduction: str = "mean"

    def init(self, device: Any = None) -> L1Loss:
        """Return the loss; it holds nothing that has a device."""
        require_reduction(self)
        return L1Loss(self.reduction)


class HuberLoss(Module):
    """d^2 / 2 where |d| < delta, else delta (|d| - delta/2), with d = prediction - target; the function is `rt.huber`.

    Any shape, the same for both (a number is a target for every element). Errors: ValueError where the shapes differ.
    Source: Huber, Robust Estimation of a Location Parameter (1964).

    >>> loss = HuberLossConfig(delta=2.0, reduction="none").init()
    >>> loss(rt.tensor([0.5, 3.0], device=rt.Cpu()), 0.0).tolist()
    [0.125, 4.0]
    """

    delta: float
    reduction: str

    def forward(self, prediction: rt.Tensor, target: Any) -> rt.Tensor:
        return rt.huber(prediction, target, delta=self.delta, reduction=self.reduction)


class HuberLossConfig(Config):
    """Settings of `HuberLoss`: `delta` (1.0, above 0), `reduction` ("mean").

    >>> HuberLossConfig(delta=0.5).init().delta
    0.5
    """

    delta: float = 1.0
    reduction: str = "mean"

    def init(self, device: Any = None) -> HuberLoss:
        """Return the loss; it holds nothing that has a device."""
        self.require_number("delta", open=True)
        require_reduction(self)
        return HuberLoss(self.delta, self.reduction)


class SmoothL1Loss(Module):
    """d^2 / (2 beta) where |d| < beta, else |d| - beta/2, with d = prediction - target; the function is `rt.smooth_l1`.

    It is the Huber loss of delta = beta, divided by beta. `beta=0` is the absolute error.

    Any shape, the same for both (a number is a target for every element). Errors: ValueError where the shapes differ.
    Source: Girshick, Fast R-CNN (2015), equation 3.

    >>> loss = SmoothL1LossConfig(reduction="none").init()
    >>> loss(rt.tensor([0.5, 3.0], device=rt.Cpu()), 0.0).tolist()
    [0.125, 2.5]
    """

    beta: float
    reduction: str

    def forward(self, prediction: rt.Tensor, target: Any) -> rt.Tensor:
        return rt.smooth_l1(prediction, target, beta=self.beta, reduction=self.reduction)


class SmoothL1LossConfig(Config):
    """Settings of `SmoothL1Loss`: `beta` (1.0, at least 0), `reduction` ("mean").

    >>> SmoothL1LossConfig(beta=0.0).init()(rt.tensor([-3.0], device=rt.Cpu()), 0.0).item()
    3.0
    """

    beta: float = 1.0
    reduction: str = "mean"

    def init(self, device: Any = None) -> SmoothL1Loss:
        """Return the loss; it holds nothing that has a device."""
        self.require_number("beta")
        require_reduction(self)
        return SmoothL1Loss(self.beta, self.reduction)


class PoissonNllLoss(Module):
    """-log of the Poisson probability of a count, up to a term that depends on the count alone.

    With `log_input` the prediction x is the logarithm of the rate and the loss is exp(x) - t x; else x is the rate,
    and the loss x - t log(x + eps). `full` adds Stirling's approximation of log t! where t > 1: t log t - t +
    log(2 pi t)/2.

    Any shape, the same for both. Errors: ValueError where the shapes differ.

    >>> loss = PoissonNllLossConfig().init()
    >>> loss(rt.tensor([0.0, 0.0], device=rt.Cpu()), rt.tensor([3, 0], device=rt.Cpu())).item()
    1.0
    """

    log_input: bool
    full: bool
    eps: float
    reduction: str

    def forward(self, prediction: rt.Tensor, target: rt.Tensor) -> rt.Tensor:
        x, t, dtype = operands("PoissonNllLoss", prediction, target)
        losses = rt.exp(x) - t * x if self.log_input else x - t * rt.log(x + self.eps)
        if self.full:
            losses = losses + rt.where_safe(t > 1, _log_factorial, t)
        return reduced(losses, self.reduction, dtype)


def _log_factorial(t: rt.Tensor) -> rt.Tensor:
    return t * rt.log(t) - t + 0.5 * rt.log(2 * math.pi * t)


class PoissonNllLossConfig(Config):
    """Settings of `PoissonNllLoss`: `log_input` (True), `full` (False), `eps` (1e-8), `reduction` ("mean").

    >>> PoissonNllLossConfig(log_input=False).init().eps
    1e-08
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"

    def init(self, device: Any = None) -> PoissonNllLoss:
        """Return the loss; it holds nothing that has a device."""
        self.require_bools()
        self.require_number("eps")
        require_reduction(self)
        return PoissonNllLoss(self.log_input, self.full, self.eps, self.reduction)


class CosineEmbeddingLoss(Module):
    """1 - cos(x1, x2) for pairs that belong together (target 1), max(0, cos - margin) for others (target -1).

    cos = x1 . x2 / sqrt((x1 . x1 + 1e-12) (x2 . x2 + 1e-12)) over the last axis: x1 and x2 are [..., d], the target
    [...]. Vectors of zeros have the cosine 0 and a finite gradient.

    Errors: ValueError where the shapes do not belong together, or for a target other than 1 and -1 (reading the
    targets waits for a GPU).

    >>> loss = CosineEmbeddingLossConfig(reduction="none").init()
    >>> x = rt.tensor([[1.0, 0.0], [1.0, 0.0]], device=rt.Cpu())
    >>> loss(x, 2.0 * x, rt.tensor([1, -1], device=rt.Cpu())).tolist()
    [0.0, 1.0]
    """

    margin: float
    reduction: str

    def forward(self, x1: rt.Tensor, x2: rt.Tensor, target: Any) -> rt.Tensor:
        x, y, dtype = operands("CosineEmbeddingLoss", x1, x2)
        t = target if isinstance(target, rt.Tensor) else rt.asarray(target, device=x.device)
        if not x.ndim or t.shape != x.shape[:-1]:
            raise ValueError(
                f"CosineEmbeddingLoss: vectors {x.shape} need a target of shape {x.shape[:-1]}, one number for each, "
                f"got {t.shape}"
            )
        if not bool(rt.all((t == 1) | (t == -1))):
            raise ValueError("CosineEmbeddingLoss: targets must be 1 or -1; from bools: rt.where(same, 1, -1)")
        lengths = [rt.sqrt(rt.sum(v * v, axis=-1) + 1e-12) for v in (x, y)]
        cosine = rt.sum(x * y, axis=-1) / (lengths[0] * lengths[1])
        return reduced(rt.where(t == 1, 1.0 - cosine, rt.relu(cosine - self.margin)), self.reduction, dtype)


class CosineEmbeddingLossConfig(Config):
    """Settings of `CosineEmbeddingLoss`: `margin` (0.0, from -1 to 1), `reduction` ("mean").

    >>> CosineEmbeddingLossConfig(margin=0.5).init().margin
    0.5
    """

    margin: float = 0.0
    reduction: str = "mean"

    def init(self, device: Any = None) -> CosineEmbeddingLoss:
        """Return the loss; it holds nothing that has a device."""
        self.require(is_number(self.margin) and -1 <= self.margin <= 1, "margin", "a number from -1 to 1")
        require_reduction(self)
        return CosineEmbeddingLoss(self.margin, self.reduction)
