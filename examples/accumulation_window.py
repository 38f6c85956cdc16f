"""Accumulation: gradients of several micro-batches, then one update under a learning-rate schedule.

    python examples/accumulation_window.py
"""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig
from ruda_optim import AdamConfig, GradientsAccumulator, GradientsParams, Optimizer, StepLrScheduler, StepLrSchedulerConfig

Batches = list[tuple[rt.Tensor, rt.Tensor]]


def train_window(model: Linear, optimizer: Optimizer, scheduler: StepLrScheduler, batches: Batches) -> Linear:
    """Return the model after one update by the mean over micro-batches of equal size.

    `accumulate` adds and never averages, hence the division; the schedule advances once per update. Micro-batches of
    different sizes need the *sum* of their losses divided by the number of rows of the whole window instead.
    """
    if not batches:
        return model
    accumulator = GradientsAccumulator()
    for x, y in batches:
        loss = (model(x) - y).square().mean() / len(batches)
        accumulator.accumulate(model, GradientsParams.from_grads(loss.backward(), model))
    return optimizer.step(scheduler.step(), model, accumulator.grads())


def main() -> None:
    device = rt.default_device()
    rt.random.seed(0)
    model = LinearConfig(2, 1).init(Autodiff(device))
    whole, both = AdamConfig().init(), AdamConfig().init()
    schedules = [StepLrSchedulerConfig(5e-2, 100).with_gamma(0.5).init() for _ in range(2)]
    twin = model.clone()
    true_weight = rt.tensor([[1.5], [-2.0]], device=device)
    for _ in range(300):
        x = rt.random.normal((32, 2), device=device)
        y = x @ true_weight + 0.5
        model = train_window(model, both, schedules[0], [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)])
        twin = train_window(twin, whole, schedules[1], [(x, y)])
    apart = float(np.abs(model.weight.numpy() - twin.weight.numpy()).max())
    print(f"four micro-batches of 8: weight {model.weight.numpy().ravel().round(3)}")
    print(f"one batch of 32:         weight {twin.weight.numpy().ravel().round(3)}, apart by {apart:.1e}")
    print(f"learning rate after {schedules[0].calls} updates: {schedules[0].step():g}")


if __name__ == "__main__":
    main()
