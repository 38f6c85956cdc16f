"""Small trainings whose step can be replayed, and run step by step beside it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import BatchNormConfig, LinearConfig, Module
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    CosineAnnealingLrSchedulerConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsParams,
    SgdConfig,
)
from ruda_tensor.devices import Device


class Network(Module):
    """Two layers with dropout and, on request, BatchNorm between them."""

    first: Module
    norm: Module | None
    second: Module
    p: float
    training: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        x = self.first(x)
        x = rt.relu(x if self.norm is None else self.norm(x))
        return self.second(rt.dropout(x, self.p, training=self.training))


RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: SgdConfig(momentum=0.9).init(),
    "adam": lambda: AdamConfig().init(),
    "adamw": lambda: AdamWConfig(weight_decay=0.1, grad_clipping=GradientClippingConfig.global_norm(0.5)).init(),
    "by value": lambda: AdamConfig(grad_clipping=GradientClippingConfig.value(0.01)).init(),
    "one by one": lambda: SgdConfig(momentum=0.9, grad_clipping=GradientClippingConfig.norm(0.1)).init(),
    "masters": lambda: Fp32MasterOptimizer(AdamWConfig().build()).init(),
}


class Training:
    """A model, its optimizer and schedule, and one step on a batch."""

    def __init__(self, device: Device, rule: str, *, p: float = 0.0, norm: bool = False, dtype: Any = None) -> None:
        rt.random.seed(11)
        place = Autodiff(device)
        middle = BatchNormConfig(16).init(place) if norm else None
        model = Network(LinearConfig(8, 16).init(place), middle, LinearConfig(16, 4).init(place), p, True)
        self.model: Any = model if dtype is None else model.to_dtype(dtype)
        self.optimizer = RULES[rule]()
        self.schedule = CosineAnnealingLrSchedulerConfig(1e-2, 40).init()

    def step(self, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
        loss = rt.cross_entropy(self.model(x).astype(rt.float32), y)
        gradients = GradientsParams.from_grads(loss.backward(), self.model)
        self.model = self.optimizer.step(self.schedule.step(), self.model, gradients)
        return loss

    def state(self) -> list[np.ndarray]:
        """Everything that training has changed, on the host."""
        arrays = [p.numpy() for p in self.model.params()]
        if self.model.norm is not None:
            arrays += [self.model.norm.running_mean.numpy(), self.model.norm.running_var.numpy()]
        return arrays


def batches(device: Device, count: int, dtype: Any = rt.float32) -> list[tuple[rt.Tensor, rt.Tensor]]:
    rng = np.random.default_rng(3)
    return [
        (
            rt.asarray(rng.normal(size=(6, 8)).astype(np.float32), device=device).astype(dtype),
            rt.asarray(rng.integers(0, 4, 6).astype(np.int32), device=device),
        )
        for _ in range(count)
    ]
