"""Muon: the Newton-Schulz iteration, momentum modes, rates by shape, and what it refuses."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_optim import Fp32MasterOptimizer, MuonConfig, orthogonalize

from ._helpers import Pair, give, param, point

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def newton_schulz(g, steps=5, eps=1e-7):
    """The iteration on the singular values alone: an independent route to the same matrix."""
    u, s, vt = np.linalg.svd(g, full_matrices=False)
    s = s / max(np.sqrt((s**2).sum()), eps)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ np.diag(s) @ vt


def muon(p, gradients, lr, momentum=0.95, dampening=0.0, nesterov=True, weight_decay=0.0, mode="sgd", ratio=1.0):
    v = None
    for g in gradients:
        if mode == "ema":
            v = (1 - momentum) * g + momentum * (np.zeros_like(p) if v is None else v)
            u = (1 - momentum) * g + momentum * v if nesterov else v
        else:
            v = g if v is None else momentum * v + (1 - dampening) * g
            u = g + momentum * v if nesterov else v
        p = p * (1 - lr * weight_decay) - lr * ratio * newton_schulz(u)
    return p


def test_golden_newton_schulz():
    g = np.array([[1.0, 2.0, 3.0], [-2.0, 1.0, 4.0]])
    expected = [[0.670921, 0.534254, 0.397588], [-0.668852, -0.069368, 0.530117]]
    got = orthogonalize(np, g, COEFFICIENTS, 5, 1e-7)
    np.testing.assert_allclose(got, expected, atol=6e-7)
    np.testing.assert_allclose(np.linalg.svd(got, compute_uv=False), [1.048769, 0.725892], atol=6e-7)
    np.testing.assert_allclose(orthogonalize(np, g.T, COEFFICIENTS, 5, 1e-7), got.T, rtol=1e-14)
    np.testing.assert_allclose(orthogonalize(np, g.astype(np.float32), COEFFICIENTS, 5, 1e-7, True), expected, atol=2e-6)


OPTIONS = [
    {},
    {"nesterov": False},
    {"nesterov": False, "dampening": 0.3},
    {"mode": "ema"},
    {"mode": "ema", "nesterov": False, "weight_decay": 0.2},
    {"momentum": 0.0, "nesterov": False},
    {"weight_decay": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [(3, 5), (6, 2), (1, 4), (4, 1), (1, 1), (3, 3)])
def test_fifteen_steps_equal_the_float64_reference(options, shape, device):
    rng = np.random.default_rng(0)
    p, gradients = rng.standard_normal(shape), [rng.standard_normal(shape) for _ in range(15)]
    ratio = np.sqrt(max(1.0, shape[0] / shape[1]))
    expected = muon(p, gradients, 1e-2, ratio=ratio, **options)
    for dtype, tolerance in ((rt.float64, 1e-9), (rt.float32, 2e-5)):
        model, optimizer = point(p, dtype, device), MuonConfig(**options).init()
        for g in gradients:
            model = optimizer.step(1e-2, model, give((model.x, g)))
        np.testing.assert_allclose(model.x.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_the_buffers_of_both_modes_differ_in_scale_alone():
    rng = np.random.default_rng(0)
    gradients = [rng.standard_normal((3, 4)) for _ in range(5)]
    models = [point(np.ones((3, 4)), rt.float64) for _ in range(2)]
    optimizers = [MuonConfig(mode=mode).init() for mode in ("sgd", "ema")]
    for g in gradients:
        models = [o.step(0.1, m, give((m.x, g))) for o, m in zip(optimizers, models)]
    np.testing.assert_allclose(models[0].x.numpy(), models[1].x.numpy(), rtol=1e-10)
    buffers = [o.states[m.x.id]["velocity"] for o, m in zip(optimizers, models)]
    np.testing.assert_allclose(buffers[1], buffers[0] * 0.05, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "shape", "ratio"),
    [
        ({}, (8, 2), 2.0),
        ({}, (2, 8), 1.0),
        ({"matrix_layout": "input_output"}, (8, 2), 1.0),
        ({"matrix_layout": "input_output"}, (2, 8), 2.0),
        ({"adjust_lr": "match_rms_adamw"}, (4, 25), 1.0),
        ({"adjust_lr": "match_rms_adamw", "matrix_layout": "input_output"}, (4, 25), 1.0),
    ],
)
def test_the_layout_and_the_adjustment_change_the_ratio_alone(options, shape, ratio):
    assert MuonConfig(**options).build().ratio(shape) == pytest.approx(ratio, rel=1e-15)
    rng = np.random.default_rng(0)
    p, g = rng.standard_normal(shape), rng.standard_normal(shape)
    model = point(p, rt.float64)
    model = MuonConfig(weight_decay=0.5, **options).init().step(0.1, model, give((model.x, g)))
    np.testing.assert_allclose(model.x.numpy(), muon(p, [g], 0.1, weight_decay=0.5, ratio=ratio), rtol=1e-9)


def test_contract_26_eps_is_a_floor_on_the_norm_and_the_result_is_not_orthogonal():
    g = np.array([[3e-9, 0.0], [0.0, 4e-9]])
    assert np.allclose(orthogonalize(np, g, COEFFICIENTS, 0, 1e-7), g / 1e-7)  # not g / (|g| + 1e-7)
    rng = np.random.default_rng(0)
    singular = np.linalg.svd(orthogonalize(np, rng.standard_normal((32, 64)), COEFFICIENTS, 5, 1e-7), compute_uv=False)
    assert 0.6 < singular.min() < 0.95 and 1.05 < singular.max() < 1.3


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_stable_normalization_keeps_tiny_and_huge_gradients(scale, device):
    g = np.array([[1.0, 2.0, 3.0], [-2.0, 1.0, 4.0]])
    expected = newton_schulz(g)

    def direction(config, g):
        model = point(np.zeros((2, 3)), rt.float32, device)
        return -config.init().step(1.0, model, give((model.x, g))).x.numpy()

    stable = MuonConfig(stable_normalization=True, eps=1e-37, nesterov=False)
    np.testing.assert_allclose(direction(stable, g * scale), expected, atol=1e-5)
    assert not np.allclose(direction(stable.with_stable_normalization(False), g * scale), expected, atol=1e-2)
    assert direction(MuonConfig(stable_normalization=True), g * 0.0).any() == np.False_


@pytest.mark.parametrize(
    ("shape", "dtype", "config", "kind", "message"),
    [
        ((3,), rt.float32, MuonConfig(), ValueError, r"shape \(3,\).*AdamW"),
        ((2, 2, 2), rt.float32, MuonConfig(), ValueError, "matrices"),
        ((0, 2), rt.float32, MuonConfig(), ValueError, "matrices"),
        ((), rt.float32, MuonConfig(), ValueError, "matrices"),
        ((2, 2), rt.float64, MuonConfig(stable_normalization=True), TypeError, "float32"),
        ((2, 2), rt.bfloat16, MuonConfig(stable_normalization=True), TypeError, "float32"),
    ],
)
def test_contract_27_what_it_cannot_take_is_refused_before_anything_changes(shape, dtype, config, kind, message):
    model, optimizer = Pair(param(np.ones((2, 2))), param(np.ones(shape), dtype)), config.init()
    gradients = give((model.a, np.ones((2, 2))), (model.b, np.ones(shape)))
    with pytest.raises(kind, match=message):
        optimizer.step(0.1, model, gradients)
    assert not optimizer.states and model.a.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_contract_27_a_gradient_of_another_dtype_or_an_infinite_rate_is_refused():
    model, optimizer = point(np.ones((8, 2)), rt.bfloat16), MuonConfig().init()
    with pytest.raises(TypeError, match="Fp32MasterOptimizer"):
        optimizer.step(0.1, model, give((model.x, np.ones((8, 2))), dtype=rt.float32))
    with pytest.raises(ValueError, match="not finite"):
        optimizer.step(3e38, model, give((model.x, np.ones((8, 2)))))
    assert not optimizer.states


def test_parameters_without_a_gradient_are_left_to_another_optimizer():
    model, optimizer = Pair(param(np.ones((2, 2))), param(np.ones(2))), MuonConfig().init()
    new = optimizer.step(0.1, model, give((model.a, np.eye(2))))
    assert new.b is model.b and new.b.tolist() == [1.0, 1.0] and list(optimizer.states) == [model.a.id]


def test_muon_under_float32_masters(device):
    rng = np.random.default_rng(0)
    p = rt.tensor(rng.standard_normal((4, 3)), dtype=rt.bfloat16).numpy()
    half, full = point(p, rt.bfloat16, device), point(p.astype(np.float32), rt.float32, device)
    masters, plain = Fp32MasterOptimizer(MuonConfig().build()).init(), MuonConfig().init()
    for _ in range(10):
        g = rng.standard_normal((4, 3)).astype(np.float32)
        half = masters.step(1e-2, half, give((half.x, g), dtype=rt.float32))
        full = plain.step(1e-2, full, give((full.x, g)))
    assert half.x.numpy().tobytes() == full.x.numpy().astype(p.dtype).tobytes()
