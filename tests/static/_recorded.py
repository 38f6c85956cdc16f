"""A training whose step is all kernels, for the stand-in for CUDA's capture."""
from __future__ import annotations

from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    CosineAnnealingLrSchedulerConfig,
    Fp32MasterOptimizer,
    GradientsParams,
    ParamGroup,
    SgdConfig,
)


class Weights(Module):
    w: Param
    b: Param


RULES = {
    "sgd": lambda: SgdConfig(momentum=0.9).init(),
    "adam": lambda: AdamConfig().init(),
    "groups": lambda: AdamWConfig().init(groups=[ParamGroup("b", lr_scale=0.5, weight_decay=0.0)]),
    "masters": lambda: Fp32MasterOptimizer(AdamWConfig().build()).init(),
}


class Training:
    """A model whose gradients are the step's inputs, so that all that a replay computes is the optimizer's kernel."""

    def __init__(self, device: Any, rule: str = "adam", dtype: Any = rt.float32) -> None:
        rng = np.random.default_rng(5)
        w, b = (rt.asarray(rng.normal(size=s).astype(np.float32), device=device).astype(dtype) for s in ((5, 7), (7,)))
        self.model: Any = Weights(Param(w, id="w"), Param(b, id="b"))
        self.optimizer = RULES[rule]()
        self.schedule = CosineAnnealingLrSchedulerConfig(0.1, 50).init()

    def step(self, g: rt.Tensor, h: rt.Tensor) -> None:
        self.update(self.schedule.step(), g, h)

    def update(self, lr: Any, g: rt.Tensor, h: rt.Tensor) -> None:
        gradients = GradientsParams({self.model.w: g, self.model.b: h})
        self.model = self.optimizer.step(lr, self.model, gradients)

    def state(self) -> tuple:
        def plain(state: Any) -> Any:
            if isinstance(state, dict):
                return {k: plain(v) for k, v in state.items()}
            return state.tobytes() if hasattr(state, "tobytes") else state

        states = {k: plain(v) for k, v in self.optimizer.states.items()}
        return [p.numpy().tobytes() for p in self.model.params()], states, self.schedule.calls, rt.random.get_state()


def gradients(device: Any, count: int, dtype: Any = rt.float32) -> list[tuple[rt.Tensor, rt.Tensor]]:
    rng = np.random.default_rng(8)

    def some(*shape: int) -> rt.Tensor:
        return rt.asarray(rng.normal(size=shape).astype(np.float32), device=device).astype(dtype)

    return [(some(5, 7), some(7)) for _ in range(count)]


def held(training: Training) -> tuple:
    return training.state(), training.optimizer._failed, training.optimizer._grouping.index
