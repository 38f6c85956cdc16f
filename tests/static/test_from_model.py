"""A model as a function that is one graph per shape."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig, Module
from ruda_tensor.devices import Device


class Counted(Module):
    """A layer with dropout, which says how often it ran."""

    layer: Module
    calls: list
    training: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        self.calls.append(x.shape)
        return rt.dropout(self.layer(x), 0.5, training=self.training)


def test_it_gives_what_inference_gives_for_every_shape(device: Device) -> None:
    model = Counted(LinearConfig(3, 2).init(Autodiff(device)), [], True)
    run, rng = rt.StaticGraph.from_model(model), np.random.default_rng(0)
    results = []
    for n in (4, 1, 4, 7, 4, 1, 4):
        x = rt.asarray(rng.normal(size=(n, 3)).astype(np.float32), device=device)
        y = run(x)
        assert not y.is_require_grad()
        results.append((y, model.valid()(x)))
    assert all(np.array_equal(y.numpy(), e.numpy()) for y, e in results)  # each in memory of its own


def test_the_model_is_taken_as_it_is(device: Device) -> None:
    model = LinearConfig(3, 2).init(Autodiff(device))
    x = rt.ones((2, 3), device=device)
    run, before = rt.StaticGraph.from_model(model), model(x).numpy()
    model.weight.consume()
    for _ in range(3):
        assert np.array_equal(run(x).numpy(), before)


def test_few_graphs_are_kept_and_errors_are_the_models(device: Device) -> None:
    run = rt.StaticGraph.from_model(lambda x: x @ rt.ones((3, 1), device=device), most=2)
    for n in (1, 2, 3, 4, 1, 1):
        assert run(rt.ones((n, 3), device=device)).shape == (n, 1)
    with pytest.raises(ValueError, match="matmul"):
        run(rt.ones((2, 4), device=device))
    with pytest.raises(TypeError, match="from_model"):
        rt.StaticGraph.from_model(3)  # type: ignore[arg-type]
