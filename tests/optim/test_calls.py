"""What a small training step costs in Python: counted, since times differ from machine to machine."""
from __future__ import annotations

import sys

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig, Module
from ruda_optim import AdamConfig, GradientsParams
from ruda_tensor.kernels import host


class Mlp(Module):
    first: Linear
    second: Linear
    third: Linear

    def forward(self, x):
        return self.third(rt.relu(self.second(rt.relu(self.first(x)))))


def test_a_step_of_a_small_model_makes_few_calls(rng):
    """526 when this was written; each takes some 0.1 us, and as much again for what it does."""
    if host.status() != "on":
        pytest.skip("NumPy's bodies make more calls than the compiled ones")
    device = Autodiff(rt.Cpu())
    model = Mlp(*[LinearConfig(a, b).init(device) for a, b in ((784, 256), (256, 256), (256, 10))])
    optimizer, calls = AdamConfig().init(), 0
    x = rt.tensor(rng.standard_normal((64, 784)), dtype=rt.float32, device=rt.Cpu())
    classes = rt.tensor(rng.integers(0, 10, 64), dtype=rt.int64, device=rt.Cpu())

    def step():
        loss = rt.cross_entropy(model(x), classes)
        return optimizer.step(1e-3, model, GradientsParams.from_grads(loss.backward(), model))

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    for _ in range(3):
        model = step()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        model = step()
    finally:
        sys.setprofile(before)
    assert np.isfinite(model.third.weight.numpy()).all()
    assert calls <= 560, f"{calls} calls of Python functions in a step"
