"""Clipping by value and by norm, parameter by parameter."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_optim import AdanConfig, Fp32MasterOptimizer, GradientClippingConfig, GradientsParams, MuonConfig, SgdConfig

from ._helpers import Pair, give, param, point


def clipped(clipping, g, dtype=rt.float32, device=None):
    """The gradient that a rule gets to see: what a step of size 1 takes off a zero."""
    model = point(np.zeros(np.shape(g)), dtype, device)
    return -SgdConfig(grad_clipping=clipping).init().step(1.0, model, give((model.x, g))).x.numpy()


def test_by_value(device):
    got = clipped(GradientClippingConfig.value(0.5), [-2.0, -0.5, 0.25, 0.0, 7.0, np.inf, np.nan], device=device)
    np.testing.assert_array_equal(got, np.float32([-0.5, -0.5, 0.25, 0.0, 0.5, 0.5, np.nan]))


def test_by_norm(device):
    np.testing.assert_allclose(clipped(GradientClippingConfig.norm(1.0), [3.0, 4.0], device=device), [0.6, 0.8], rtol=1e-6)
    assert clipped(GradientClippingConfig.norm(1.0), [], device=device).shape == (0,)
    assert clipped(GradientClippingConfig.norm(1.0), 3.0, device=device).tolist() == 1.0
    assert clipped(GradientClippingConfig.norm(1.0), [0.0, 0.0], device=device).tolist() == [0.0, 0.0]


def test_contract_20_what_is_under_the_norm_is_bit_unchanged(device):
    g = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    got = clipped(GradientClippingConfig.norm(float(np.linalg.norm(g)) * 1.001), g, device=device)
    assert got.tobytes() == g.tobytes()


def test_contract_20_clipping_looks_at_each_parameter_alone(device):
    model = Pair(param([0.0, 0.0], device=device), param([0.0], device=device))
    gradients = give((model.a, [3.0, 4.0]), (model.b, [0.5]))
    model = SgdConfig(grad_clipping=GradientClippingConfig.norm(1.0)).init().step(1.0, model, gradients)
    np.testing.assert_allclose(model.a.numpy(), [-0.6, -0.8], rtol=1e-6)
    assert model.b.tolist() == [-0.5]


@pytest.mark.parametrize("size", [1e30, 1e38, 1e-30, 1e-34])
def test_the_norm_neither_overflows_nor_underflows(size, device):
    g = np.float32([3.0, -4.0]) * np.float32(size / 4)
    unit = g.astype(np.float64) / np.linalg.norm(g.astype(np.float64))
    np.testing.assert_allclose(clipped(GradientClippingConfig.norm(size / 100), g, device=device) / (size / 100), unit, rtol=1e-5)


def test_OPTIM_11_a_gradient_that_is_not_finite_is_left_as_it_is_and_alone(device):
    model = Pair(param([0.0, 0.0], device=device), param([0.0], device=device))
    gradients = give((model.a, [np.inf, 2.0]), (model.b, [5.0]))
    model = SgdConfig(grad_clipping=GradientClippingConfig.norm(1.0)).init().step(1.0, model, gradients)
    assert model.a.tolist() == [-np.inf, -2.0] and model.b.tolist() == [-1.0]
    got = clipped(GradientClippingConfig.norm(1.0), [np.nan, 2.0], device=device)
    assert np.isnan(got[0]) and got[1] == 2.0


def test_clipping_comes_before_decay_and_momentum(device):
    model = point([2.0], rt.float64, device)
    config = SgdConfig(weight_decay=0.5, grad_clipping=GradientClippingConfig.value(1.0))
    assert config.init().step(1.0, model, give((model.x, [10.0]))).x.tolist() == [0.0]  # 2 - (1 + 0.5 * 2)


def test_every_rule_takes_it_and_the_gradient_itself_is_not_changed(device):
    for config in (AdanConfig(), MuonConfig()):
        model = point(np.ones((2, 2)), device=device)
        g = rt.full((2, 2), 100.0, device=device)
        config.with_grad_clipping(GradientClippingConfig.value(1.0)).init().step(0.1, model, GradientsParams({model.x: g}))
        assert (g.numpy() == 100.0).all()


def test_contract_31_masters_are_unscaled_before_they_are_clipped(device):
    masters = Fp32MasterOptimizer(SgdConfig().build()).with_grad_clipping(GradientClippingConfig.norm(1.0))
    masters = masters.with_gradient_scale(8.0)
    model = point([0.0, 0.0], rt.bfloat16, device)
    got = masters.init().step(1.0, model, give((model.x, [1.5, 2.0]), dtype=rt.float32)).x.astype(rt.float32).numpy()
    np.testing.assert_allclose(got, [-1.5 / 8, -2.0 / 8], rtol=1e-6)  # the unscaled norm is under 1: nothing to clip
    model = point([0.0, 0.0], rt.float32, device)
    got = masters.init().step(1.0, model, give((model.x, [24.0, 32.0]))).x.numpy()
    np.testing.assert_allclose(got, [-0.6, -0.8], rtol=1e-6)


WRONG = [("value", 0.0, "limit"), ("norm", float("inf"), "limit"), ("both", 1.0, "kind")]


@pytest.mark.parametrize(("kind", "limit", "field"), WRONG)
def test_wrong_settings_are_refused(kind, limit, field):
    clipping = GradientClippingConfig(kind, limit)
    with pytest.raises(ValueError, match=f"{field}=.*give"):
        SgdConfig(grad_clipping=clipping).init()
    with pytest.raises(ValueError, match=f"{field}=.*give"):
        Fp32MasterOptimizer(SgdConfig().build(), grad_clipping=clipping)


def test_it_is_part_of_the_configuration_that_a_restore_compares():
    model = point([1.0])
    record = SgdConfig(grad_clipping=GradientClippingConfig.value(1.0)).init().to_record()
    SgdConfig(grad_clipping=GradientClippingConfig.value(1)).init().load_record(record, model)
    with pytest.raises(ValueError, match="grad_clipping"):
        SgdConfig().init().load_record(record, model)
