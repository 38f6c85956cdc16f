"""Sequential, Flatten, Identity, Dropout and gated layers."""
from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, checkpoint
from ruda_autodiff.testing import check_gradients
from ruda_nn import (
    BatchNormConfig,
    Dropout,
    DropoutConfig,
    Flatten,
    Glu,
    Identity,
    LinearConfig,
    Module,
    Relu,
    Sequential,
    SequentialConfig,
    SwiGluConfig,
    silu_mul,
)

from ._layers import agrees_with_torch, behaves_like_a_layer, drawn, host

CONFIG = SequentialConfig((LinearConfig(3, 4), BatchNormConfig(4), Relu(), DropoutConfig(0.5), LinearConfig(4, 2)))


# sequential
def test_layers_run_in_order_and_are_reached_by_place(device):
    a, b = LinearConfig(3, 4).init(device), LinearConfig(4, 2).init(device)
    model, x = Sequential(a, rt.tanh, b), rt.tensor(drawn((5, 3)), device=device)
    assert np.array_equal(host(model(x)), host(b(rt.tanh(a(x)))))
    assert len(model) == 3 and list(model) == [a, rt.tanh, b] and model[0] is a and model[-1] is b
    assert type(model[1:]) is Sequential and list(model[1:]) == [rt.tanh, b] and model[:2](x).shape == (5, 4)
    assert model.paths() == ["layers.0.weight", "layers.0.bias", "layers.2.weight", "layers.2.bias"]
    assert list(Sequential([a, b])) == [a, b] == list(Sequential(layers=(a, b))) and len(Sequential()) == 0
    assert Sequential()(3) == 3
    with pytest.raises(IndexError):
        model[3]


def test_a_config_initializes_every_layer(device):
    model = CONFIG.init(Autodiff(device))
    assert model[3].training and model[1].training and all(p.is_require_grad() for p in model.params())
    assert not model.valid()[1].training and not model.valid()[3].training
    assert [type(layer).__name__ for layer in model] == ["Linear", "BatchNorm", "Relu", "Dropout", "Linear"]
    assert not CONFIG.init(device)[3].training


def test_copies_records_and_changes(device):
    model, x = CONFIG.init(Autodiff(device)), rt.tensor(drawn((5, 3)), device=device)
    model(x)
    expected = host(model.valid()(x))
    for other in (
        copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model.clone(), model.map(lambda p: p),
        dataclasses.replace(model), CONFIG.init(device).load_record(model.to_record()), Sequential(*model),
    ):  # fmt: skip
        assert np.array_equal(host(other.valid()(x)), expected) and other.paths() == model.paths()
    assert model.to_dtype(rt.bfloat16)(x.astype(rt.bfloat16)).dtype == rt.bfloat16
    assert "layers=[\n    Linear(" in repr(model) and "\n    Relu(),\n    Dropout(p=0.5, training=True),\n" in repr(model)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match=r"LinearConfig\(\.\.\.\)\.init\(device\)"):
        Sequential(LinearConfig(1, 1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="3 cannot be called; give a module or a function"):
        Sequential(rt.relu, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layers=.* is not allowed"):
        SequentialConfig(LinearConfig(1, 1)).init()


def test_it_is_frozen_and_nests():
    model = Sequential(Sequential(Identity()), Flatten())
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.layers = []
    assert model(rt.ones((2, 3, 4))).shape == (2, 12) and Flatten(0, 1)(rt.ones((2, 3, 4))).shape == (6, 4)
    assert Flatten()(rt.ones((0, 3, 4))).shape == (0, 12) and Identity()("x") == "x"


# dropout
def test_dropout_is_inert_outside_training_and_scales_what_it_keeps(device):
    x = rt.ones((40, 50), device=device)
    assert DropoutConfig(0.3).init(device)(x) is x
    layer = DropoutConfig(0.25).init(Autodiff(device))
    rt.random.seed(0)
    y = host(layer(x))
    assert set(y.ravel().tolist()) == {0.0, float(np.float32(1 / 0.75))} and abs((y == 0).mean() - 0.25) < 0.05
    assert not np.array_equal(host(layer(x)), y) and layer.valid()(x) is x
    assert repr(layer.valid().train()) == repr(Dropout(p=0.25, training=True)) == "Dropout(p=0.25, training=True)"
    rt.random.seed(0)
    assert np.array_equal(host(layer(x)), y)


def test_dropout_draws_the_same_mask_under_checkpoint(device):
    layer, x = DropoutConfig(0.5).init(Autodiff(device)), rt.ones(200, device=device).require_grad()
    y = checkpoint(layer)(x)
    assert x.grad(y.sum().backward()).tolist() == y.tolist()


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_dropout_refuses_what_is_no_probability(p):
    with pytest.raises(ValueError, match="p=.* is not allowed; give a number in"):
        DropoutConfig(p).init()


# gated layers
def test_contract_72_silu_mul_rounds_before_the_product(device):
    """round(round(silu(gate)) up) in NumPy, and that it differs from round(silu(gate) up)."""
    gate, up = (rt.tensor(drawn(4000, seed), device=device).astype(rt.float16) for seed in (0, 1))
    found = silu_mul(gate, up)
    g, u = gate.numpy().astype(np.float64), up.numpy().astype(np.float64)
    silu = g / (1 + np.exp(-g))
    after = (silu * u).astype(np.float16)
    before = (silu.astype(np.float16).astype(np.float32) * u.astype(np.float32)).astype(np.float16)
    assert found.dtype == rt.float16 and (before != after).mean() > 0.1
    assert (found.numpy() == before).mean() > 0.999  # the rest is silu in float32 on the border of two float16 numbers
    assert np.array_equal(found.numpy(), (rt.silu(gate) * up).numpy())


def test_silu_mul_takes_like_tensors_only(device):
    x = rt.ones((2, 3), device=device)
    for other in (rt.ones(3, device=device), rt.ones((2, 1), device=device), x.astype(rt.float16)):
        with pytest.raises(ValueError, match="gate is .*they must be alike"):
            silu_mul(x, other)
    for wrong in (1.0, rt.ones((2, 3), dtype=rt.int32, device=device), np.ones((2, 3))):
        with pytest.raises(TypeError, match=r"up must be a floating tensor.*astype"):
            silu_mul(x, wrong)
    y = rt.tensor(drawn((2, 3), dtype=np.float64), device=device)
    check_gradients(silu_mul, y, y * 2.0 + 1.0, order=2)
    assert silu_mul(rt.ones((0, 3), device=device), rt.ones((0, 3), device=device)).shape == (0, 3)


@pytest.mark.parametrize("axis,shape", [(-1, (3, 4)), (1, (2, 6, 3)), (0, (4,)), (-2, (0, 2, 3))])
def test_glu_agrees_with_torch(axis, shape, device):
    x = drawn(shape)
    a, b = np.split(x.astype(np.float64), 2, axis)
    np.testing.assert_allclose(host(Glu(axis)(rt.tensor(x, device=device))), a / (1 + np.exp(-b)), rtol=1e-5, atol=1e-7)
    agrees_with_torch(Glu(axis), "GLU", x, axis)


def test_glu_needs_an_even_axis_and_rounds_once(device):
    for axis in (0, 2):
        with pytest.raises(ValueError, match=rf"Glu: axis {axis} of x"):
            Glu(axis)(rt.ones((3, 4), device=device))
    half = rt.tensor(drawn((300, 2)), device=device).astype(rt.bfloat16)
    assert np.array_equal(host(Glu()(half)), host(Glu()(half.astype(rt.float32)).astype(rt.bfloat16)))


def test_swiglu_is_the_product_of_two_linear_layers(device):
    layer = SwiGluConfig(3, 5).init(Autodiff(device))
    assert layer.paths() == ["gate.weight", "up.weight"]
    assert not np.array_equal(layer.gate.weight.numpy(), layer.up.weight.numpy())
    x = drawn((2, 4, 3))
    g, u = (x.astype(np.float64) @ host(w.weight) for w in (layer.gate, layer.up))
    np.testing.assert_allclose(host(layer(rt.tensor(x, device=device))), g / (1 + np.exp(-g)) * u, rtol=1e-5, atol=1e-6)
    assert SwiGluConfig(3, 5, bias=True).init(device).paths()[1] == "gate.bias"
    double = layer.to_dtype(rt.float64)
    check_gradients(lambda m, x: m(x), double, rt.tensor(x.astype(np.float64), device=device), order=2)
    for field, wrong in (("d_in", 0), ("d_out", 2.0), ("initializer", 3)):
        with pytest.raises(ValueError, match=f"{field}="):
            SwiGluConfig(**{"d_in": 1, "d_out": 1, field: wrong}).init()


@pytest.mark.parametrize("config,shape", [(DropoutConfig(), (4, 3)), (SequentialConfig((LinearConfig(3, 2), Relu())), (4, 3))])
def test_they_behave_like_layers(config, shape, device):
    behaves_like_a_layer(config, drawn(shape), device, training=isinstance(config, DropoutConfig))


def test_modes_reach_layers_inside_containers():
    class Wrapped(Module):
        inner: dict

    model = Wrapped({"a": [DropoutConfig().init(Autodiff(rt.Cpu()))]})
    assert model.inner["a"][0].training and not model.valid().inner["a"][0].training
