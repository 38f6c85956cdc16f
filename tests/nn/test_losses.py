"""Losses of a prediction and a target: values, gradients, extremes, half types, settings and errors."""
from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_autodiff.testing import check_gradients
from ruda_nn import (
    CosineEmbeddingLossConfig,
    HuberLossConfig,
    L1LossConfig,
    Module,
    MseLossConfig,
    PoissonNllLossConfig,
    SmoothL1LossConfig,
)

CPU = rt.Cpu()
REDUCE = {"mean": np.mean, "sum": np.sum, "none": np.asarray}


def smooth(d, beta):
    return np.where(np.abs(d) < beta, d * d / (2 * beta), np.abs(d) - beta / 2)


def stirling(t):
    safe = np.where(t > 1, t, 2.0)
    return np.where(t > 1, safe * np.log(safe) - safe + 0.5 * np.log(2 * np.pi * safe), 0.0)


PAIRS = {
    "mse": (MseLossConfig(), lambda x, t: (x - t) ** 2),
    "l1": (L1LossConfig(), lambda x, t: np.abs(x - t)),
    "huber": (HuberLossConfig(), lambda x, t: smooth(x - t, 1.0)),
    "huber-0.3": (HuberLossConfig(delta=0.3), lambda x, t: 0.3 * smooth(x - t, 0.3)),
    "smooth-l1": (SmoothL1LossConfig(), lambda x, t: smooth(x - t, 1.0)),
    "smooth-l1-0.3": (SmoothL1LossConfig(beta=0.3), lambda x, t: smooth(x - t, 0.3)),
    "poisson": (PoissonNllLossConfig(), lambda x, t: np.exp(x) - t * x),
    "poisson-full": (PoissonNllLossConfig(full=True), lambda x, t: np.exp(x) - t * x + stirling(t)),
    "poisson-rate": (PoissonNllLossConfig(log_input=False), lambda x, t: x - t * np.log(x + 1e-8)),
    "poisson-eps": (PoissonNllLossConfig(log_input=False, eps=0.5), lambda x, t: x - t * np.log(x + 0.5)),
}


def make(name, seed=0, shape=(3, 5)):
    """A prediction (above 0 where it is a rate) and a target, some of which is below and some above 1."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.2, 3.0, shape) if name.startswith("poisson-") else rng.standard_normal(shape)
    return x, rng.uniform(0.1, 4.0, shape)


SIZES = [(shape, reduction) for shape in [(3, 5), (1,), ()] for reduction in REDUCE]


@pytest.mark.parametrize(("shape", "reduction"), [*SIZES, ((2, 0), "sum"), ((2, 0), "none")])
@pytest.mark.parametrize("name", PAIRS)
def test_values_are_those_of_the_formula(name, shape, reduction, device):
    config, formula = PAIRS[name]
    x, t = make(name, shape=shape)
    loss = config.with_reduction(reduction).init(device)
    found = loss(rt.tensor(x, dtype=rt.float64, device=device), rt.tensor(t, dtype=rt.float64, device=device))
    expected = REDUCE[reduction](formula(x, t))
    assert found.shape == expected.shape and found.dtype == rt.float64
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_the_mean_of_no_elements_is_nan(name):
    loss = PAIRS[name][0].init()
    assert math.isnan(loss(rt.zeros((0,), device=CPU), rt.zeros((0,), device=CPU)).item())


@pytest.mark.parametrize("name", PAIRS)
def test_gradients_by_prediction_and_target(name):
    x, t = (rt.tensor(v, device=CPU) for v in make(name))
    check_gradients(PAIRS[name][0].init(), x, t, order=2)


@pytest.mark.parametrize("reduction", list(REDUCE))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PAIRS)
def test_half_types_are_computed_in_float32_and_rounded_once(name, dtype, reduction, device):
    half = getattr(rt, dtype)
    x, t = (rt.tensor(v, dtype=half, device=device) for v in make(name))
    loss = PAIRS[name][0].with_reduction(reduction).init()
    found, exact = loss(x, t), loss(x.astype(rt.float32), t.astype(rt.float32))
    assert found.dtype == half and exact.dtype == rt.float32
    assert found.tolist() == exact.astype(half).tolist()
    y = x.require_grad()
    g = y.grad(rt.sum(loss(y, t)).backward())
    assert g.dtype == half and g.shape == x.shape


@pytest.mark.parametrize("name", PAIRS)
def test_a_number_is_a_target_for_every_element_and_integers_become_floats(name):
    x, _ = make(name)
    loss = PAIRS[name][0].init()
    for dtype in (rt.float32, rt.float64, rt.bfloat16):
        x_ = rt.tensor(x, dtype=dtype, device=CPU)
        number, filled = loss(x_, 2.0), loss(x_, rt.full(x.shape, 2, dtype=rt.int64, device=CPU))
        assert number.dtype == filled.dtype == dtype and number.item() == filled.item()
    assert loss(rt.tensor([3, 2], device=CPU), rt.tensor([1, 2], device=CPU)).dtype == rt.float32


@pytest.mark.parametrize("name", PAIRS)
def test_shapes_must_be_equal(name):
    with pytest.raises(ValueError, match=r"must have one shape, got \(3, 1\) and \(3,\); .*reshape"):
        PAIRS[name][0].init()(rt.ones((3, 1), device=CPU), rt.ones((3,), device=CPU))


def test_LOSS_08_smooth_l1_without_a_smooth_part(device):
    d = [0.0, 1e-8, -3.0, 0.5]
    for beta, value, gradient in ((0.0, 3.50000001, [0, 1, -1, 1]), (1.0, 2.625, [0, 1e-8, -1, 0.5])):
        x = rt.tensor(d, dtype=rt.float64, device=device).require_grad()
        found = SmoothL1LossConfig(beta=beta, reduction="sum").init()(x, 0.0)
        assert found.item() == pytest.approx(value, rel=1e-12)
        assert x.grad(found.backward()).tolist() == gradient


def test_a_poisson_rate_of_zero_is_finite(device):
    x = rt.tensor([0.0, 0.0], device=device).require_grad()
    loss = PoissonNllLossConfig(log_input=False, full=True, reduction="sum").init()(x, rt.tensor([0, 1], device=device))
    assert loss.item() == pytest.approx(-math.log(1e-8), rel=1e-6)
    assert x.grad(loss.backward()).tolist() == pytest.approx([1.0, 1.0 - 1e8], rel=1e-6)


@given(seed=st.integers(0, 2**32 - 1))
def test_the_full_poisson_loss_is_near_the_exact_probability(seed):
    rng = np.random.default_rng(seed)
    x, t = rng.uniform(-1, 3, 6), rng.integers(2, 60, 6)
    exact = np.exp(x) - t * x + [math.lgamma(n + 1.0) for n in t]
    found = PoissonNllLossConfig(full=True, reduction="none").init()(rt.tensor(x, device=CPU), rt.tensor(t, device=CPU))
    assert np.all(np.abs(found.numpy() - exact) < 1 / (12 * t))  # Stirling's series: the next term


# cosine embedding


def cosine(x, y, t, margin):
    c = (x * y).sum(-1) / np.sqrt(((x * x).sum(-1) + 1e-12) * ((y * y).sum(-1) + 1e-12))
    return np.where(t == 1, 1 - c, np.maximum(0, c - margin))


@pytest.mark.parametrize("reduction", list(REDUCE))
@pytest.mark.parametrize("shape", [(6, 3), (4,), (2, 3, 5), (5, 1)])
def test_cosine_embedding_is_its_formula(shape, reduction, device):
    rng = np.random.default_rng(0)
    x, y, t = rng.standard_normal(shape), rng.standard_normal(shape), rng.choice([-1, 1], shape[:-1])
    loss = CosineEmbeddingLossConfig(margin=0.1, reduction=reduction).init()
    found = loss(rt.tensor(x, device=device), rt.tensor(y, device=device), rt.tensor(np.asarray(t), device=device))
    np.testing.assert_allclose(found.numpy(), REDUCE[reduction](cosine(x, y, t, 0.1)), rtol=1e-12, atol=1e-15)


def test_cosine_embedding_gradients():
    rng = np.random.default_rng(1)
    x, y = (rt.tensor(rng.standard_normal((4, 3)), device=CPU) for _ in range(2))
    t = rt.tensor([1, -1, -1, 1], device=CPU)
    loss = CosineEmbeddingLossConfig(margin=-0.9).init()
    check_gradients(lambda x, y: loss(x, y, t), x, y, order=2)


def test_cosine_embedding_extremes(device):
    x = rt.tensor([[0.0, 0.0], [1e12, 0.0], [3.0, 4.0]], device=device).require_grad()
    y = rt.tensor([[1.0, 0.0], [1e12, 1e12], [-3.0, -4.0]], device=device)
    found = CosineEmbeddingLossConfig(reduction="none").init()(x, y, rt.tensor([1, 1, -1], device=device))
    np.testing.assert_allclose(found.numpy(), [1.0, 1 - math.sqrt(0.5), 0.0], rtol=1e-6)
    assert np.isfinite(x.grad(rt.sum(found).backward()).numpy()).all()


def test_cosine_embedding_in_half_precision(device):
    rng = np.random.default_rng(2)
    x, y = (rt.tensor(rng.standard_normal((5, 40)), dtype=rt.bfloat16, device=device) for _ in range(2))
    t = rt.tensor([1, -1, 1, -1, 1], device=device)
    loss = CosineEmbeddingLossConfig().init()
    exact = loss(x.astype(rt.float32), y.astype(rt.float32), t)
    assert loss(x, y, t).dtype == rt.bfloat16 and loss(x, y, t).item() == exact.astype(rt.bfloat16).item()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([1, 0], "targets must be 1 or -1"),
        ([1, -1, 1], r"need a target of shape \(2,\).*got \(3,\)"),
        ([[1], [1]], r"got \(2, 1\)"),
    ],
)
def test_cosine_embedding_refuses_other_targets(target, message):
    x = rt.ones((2, 3), device=CPU)
    with pytest.raises(ValueError, match=message):
        CosineEmbeddingLossConfig().init()(x, x, rt.tensor(target, device=CPU))
    with pytest.raises(ValueError, match="must have one shape"):
        CosineEmbeddingLossConfig().init()(x, x[:, :2], rt.tensor([1, 1], device=CPU))


# against PyTorch


@pytest.mark.parametrize("reduction", list(REDUCE))
@pytest.mark.parametrize("name", [*PAIRS, "cosine"])
def test_values_and_gradients_are_those_of_torch(name, reduction):
    torch = pytest.importorskip("torch")
    theirs = {
        "mse": torch.nn.MSELoss, "l1": torch.nn.L1Loss, "huber": torch.nn.HuberLoss, "smooth": torch.nn.SmoothL1Loss,
        "poisson": torch.nn.PoissonNLLLoss, "cosine": torch.nn.CosineEmbeddingLoss,
    }[name.split("-")[0]]  # fmt: skip
    config = CosineEmbeddingLossConfig() if name == "cosine" else PAIRS[name][0]
    settings = {k: v for k, v in config.describe().items() if k != "reduction"}
    rng = np.random.default_rng(3)
    arrays = make(name) if name != "cosine" else (rng.standard_normal((3, 5)), rng.standard_normal((3, 5)))
    extra = () if name != "cosine" else (np.array([1.0, -1.0, 1.0]),)
    for dtype, rtol in ((np.float64, 1e-10), (np.float32, 2e-6)):
        a, *rest = (v.astype(dtype) for v in (*arrays, *extra))
        x, y = rt.tensor(a, device=CPU).require_grad(), torch.tensor(a, requires_grad=True)
        found = config.with_reduction(reduction).init()(x, *(rt.tensor(v, device=CPU) for v in rest))
        expected = theirs(reduction=reduction, **settings)(y, *(torch.tensor(v) for v in rest))
        expected.sum().backward()
        np.testing.assert_allclose(found.numpy(), expected.detach().numpy(), rtol=rtol, atol=rtol)
        np.testing.assert_allclose(x.grad(rt.sum(found).backward()).numpy(), y.grad.numpy(), rtol=rtol, atol=rtol)


def test_the_defaults_are_those_of_torch():
    assert MseLossConfig().reduction == L1LossConfig().reduction == "mean"
    assert HuberLossConfig().delta == SmoothL1LossConfig().beta == 1.0
    assert PoissonNllLossConfig().describe() == {"log_input": True, "full": False, "eps": 1e-8, "reduction": "mean"}
    assert CosineEmbeddingLossConfig().margin == 0.0


# settings


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (MseLossConfig(reduction="max"), "reduction"),
        (L1LossConfig(reduction=None), "reduction"),
        (HuberLossConfig(delta=0.0), "delta"),
        (HuberLossConfig(delta=math.inf), "delta"),
        (HuberLossConfig(reduction=1), "reduction"),
        (SmoothL1LossConfig(beta=-0.1), "beta"),
        (SmoothL1LossConfig(reduction=""), "reduction"),
        (PoissonNllLossConfig(eps=-1.0), "eps"),
        (PoissonNllLossConfig(full=1), "full"),
        (PoissonNllLossConfig(log_input=None), "log_input"),
        (PoissonNllLossConfig(reduction="batchmean"), "reduction"),
        (CosineEmbeddingLossConfig(margin=1.5), "margin"),
        (CosineEmbeddingLossConfig(margin=math.nan), "margin"),
        (CosineEmbeddingLossConfig(reduction="max"), "reduction"),
    ],
)
def test_a_wrong_setting_is_refused(config, field):
    with pytest.raises(ValueError, match=rf"{type(config).__name__}: {field}=.* is not allowed; give "):
        config.init()


@pytest.mark.parametrize("name", PAIRS)
def test_a_loss_is_a_field_like_any_other(name):
    loss = PAIRS[name][0].init()

    class Model(Module):
        loss: Module

    model = Model(loss)
    x, t = (rt.tensor(v, device=CPU) for v in make(name))
    assert model.params() == [] and model.map(lambda p: p).loss(x, t).item() == loss(x, t).item()
    assert pickle.loads(pickle.dumps(loss))(x, t).item() == loss(x, t).item()
    assert model.valid().load_record(model.to_record()).loss(x, t).item() == loss(x, t).item()
    assert loss.to_dtype(rt.float16)(x, t).dtype == rt.float64
