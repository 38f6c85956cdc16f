"""Activations: overflow, kinks, hand-derived bodies against their expressions, and PyTorch as oracle."""
from __future__ import annotations

import numpy as np
import pytest
import scipy.special as sp

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf
ALL = "relu relu6 hardtanh leaky_relu elu gelu silu mish sigmoid softplus logsigmoid".split()
COMPOSITES = {
    "gelu": rt.gelu,
    "gelu-tanh": lambda x: rt.gelu(x, approximate="tanh"),
    "silu": rt.silu,
}


def test_GRAD_16_softplus_logsigmoid_and_sigmoid_do_not_overflow(device):
    x = [-30.0, 0.0, 25.0, 200.0]
    close(rt.softplus(rt.tensor(x, device=device), beta=5.0), [0, 0.13862944, 25, 200], rtol=1e-6)
    close(gradient(lambda x: rt.softplus(x, beta=5.0), x, device), [0, 0.5, 1, 1])
    assert rt.logsigmoid(rt.tensor(-300.0, device=device)).item() == -300
    close(gradient(rt.logsigmoid, [-300.0, 300.0], device), [1, 0])
    assert rt.sigmoid(rt.tensor([-1000.0, 1000.0], device=device)).numpy().tolist() == [0, 1]
    close(gradient(rt.sigmoid, [-1000.0, 1000.0], device), [0, 0])
    for f, low, high in ((rt.softplus, 0, inf), (rt.logsigmoid, -inf, 0), (rt.sigmoid, 0, 1)):
        for dtype in (rt.float16, rt.bfloat16, rt.float32, rt.float64):
            y = f(rt.tensor([-inf, inf, nan], dtype=dtype, device=device)).astype(rt.float64).numpy()
            assert y[0] == low and y[1] == high and np.isnan(y[2])
    for f in (rt.softplus, rt.logsigmoid, rt.sigmoid):
        x = rt.tensor([-1000.0, -90.0, 90.0, 1000.0], device=device)
        assert np.isfinite(ra.grad(ra.grad(lambda x, f=f: rt.sum(f(x))))(x[0]).item())
        assert np.isfinite(gradient(f, x.numpy(), device)).all()


def test_sigmoid_keeps_its_relative_accuracy_in_the_lower_tail(device):
    x = np.linspace(-80, 80, 401)
    rounded = x.astype(np.float32)
    close(rt.sigmoid(rt.tensor(rounded, device=device)), sp.expit(rounded.astype(np.float64)), 1e-5, 0)
    close(rt.sigmoid(rt.tensor(x, device=device)), sp.expit(x), 1e-14, 0)
    close(rt.softplus(rt.tensor(x, device=device)), np.logaddexp(0, x), 1e-14, 0)
    close(rt.logsigmoid(rt.tensor(x, device=device)), -np.logaddexp(0, -x), 1e-14, 0)


def test_TIE_05_relu_at_zero(device):
    close(gradient(rt.relu, [-0.0, 0.0, -2.0, 3.0], device), [0, 0, 0, 1])
    for dtype in (rt.float16, rt.bfloat16, rt.float64):
        close(gradient(rt.relu, [-0.0, 0.0, -2.0, 3.0], device, dtype), [0, 0, 0, 1])


def test_TIE_06_nan_survives_every_activation(device):
    for name in ALL:
        y = getattr(rt, name)(rt.tensor([nan, 1.0], device=device)).numpy()
        assert np.isnan(y[0]) and np.isfinite(y[1]), name
    assert np.isnan(rt.gelu(rt.tensor([nan], device=device), approximate="tanh").item())


def test_kinks_take_the_documented_slope(device):
    close(gradient(lambda x: rt.leaky_relu(x, 0.3), [0.0, -0.0], device), [0.3, 0.3])
    close(gradient(lambda x: rt.elu(x, 2.0), [0.0, -0.0], device), [2, 2])
    close(gradient(rt.hardtanh, [-1.0, 1.0], device), [0, 0])
    close(gradient(lambda x: rt.leaky_relu(x, 0.0), [-1.0, inf], device), [0, 1])
    assert rt.leaky_relu(rt.tensor([inf], device=device), 0.0).item() == inf
    close(gradient(rt.elu, [-1000.0, 1000.0], device), [0, 1])


@pytest.mark.parametrize("name", COMPOSITES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (600, 1000)])
def test_hand_derived_body_agrees_with_its_expression(name, shape):
    rng = np.random.default_rng(0)
    values, f = 3 * rng.standard_normal(shape), COMPOSITES[name]

    def run(order):
        x = rt.tensor(values, dtype=rt.float64, device=CPU).require_grad()
        with ra.record(order=order):
            y = f(x)
        return y.numpy(), x.grad(rt.sum(y * y).backward()).numpy()

    for hand, plain in zip(run(1), run(2), strict=True):
        np.testing.assert_allclose(hand, plain, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("name", COMPOSITES)
def test_values_and_slopes_in_float32(name, device):
    x = np.linspace(-8, 8, 2001).astype(np.float32)
    wide = rt.tensor(x, dtype=rt.float64, device=device).require_grad()
    narrow = rt.tensor(x, device=device).require_grad()
    y, z = COMPOSITES[name](wide), COMPOSITES[name](narrow)
    np.testing.assert_allclose(z.numpy(), y.numpy(), rtol=1e-5, atol=0)  # relative, in the lower tail too
    np.testing.assert_allclose(narrow.grad(z.backward()).numpy(), wide.grad(y.backward()).numpy(), rtol=1e-5, atol=2e-6)


def test_gelu_far_out(device):
    x = [1e4, -1e4, 1e10, -1e10, 1e30, -1e30, 3e38, -3e38]
    for f in COMPOSITES.values():
        y = f(rt.tensor(x, device=device)).numpy()
        np.testing.assert_array_equal(y, np.maximum(np.float32(x), 0))
    for f in (rt.gelu, rt.silu, COMPOSITES["gelu-tanh"]):
        close(gradient(f, x, device), [1, 0] * 4)


def test_second_derivatives_of_composites(device):
    x = rt.tensor(0.0, dtype=rt.float64, device=device)
    close(ra.grad(ra.grad(rt.gelu))(x), 2 / np.sqrt(2 * np.pi), rtol=1e-12)
    close(ra.grad(ra.grad(rt.silu))(x), 0.5, rtol=1e-12)
    close(ra.grad(ra.grad(COMPOSITES["gelu-tanh"]))(x), np.sqrt(2 / np.pi), rtol=1e-12)


def test_wrong_arguments_are_named():
    x = rt.ones(2, device=CPU)
    with pytest.raises(ValueError, match="gelu: approximate must be 'none' or 'tanh', got 'erf'"):
        rt.gelu(x, approximate="erf")
    for beta in (0.0, -1.0, inf, nan, "1"):
        with pytest.raises(ValueError, match="softplus: beta must be a positive number"):
            rt.softplus(x, beta=beta)  # type: ignore[arg-type]


def test_integers_become_floats_except_in_relu():
    x = rt.tensor([-1, 0, 7], device=CPU)
    assert rt.relu(x).numpy().tolist() == [0, 0, 7] and rt.relu(x).dtype == rt.int32
    assert rt.relu6(x).numpy().tolist() == [0, 0, 6] and rt.relu6(x).dtype == rt.int32
    for f in (rt.gelu, rt.silu, rt.sigmoid, rt.softplus, rt.elu, rt.leaky_relu, rt.hardtanh, rt.mish, rt.logsigmoid):
        assert f(x).dtype == rt.float32


@pytest.mark.parametrize("name", ALL)
def test_values_and_gradients_agree_with_pytorch(name):
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(1).standard_normal((7, 9)) * 4
    x, t = rt.tensor(values, device=CPU).require_grad(), torch.tensor(values, requires_grad=True)
    y, u = getattr(rt, name)(x), getattr(torch.nn.functional, name)(t)
    close(y, u.detach().numpy(), rtol=1e-9, atol=1e-12)
    (u**2).sum().backward()
    close(x.grad(rt.sum(y**2).backward()), t.grad.numpy(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("dtype", [rt.float32, rt.float64], ids=str)
def test_slopes_far_out_are_those_of_the_limits(dtype, device):
    """What is left of a term that vanishes must not be multiplied by a huge x."""
    top = float(rt.finfo(dtype).max)
    for name in ALL:
        x = rt.tensor([-top, -1e20, 1e12, 1e20, top], dtype=dtype, device=device).require_grad()
        slopes = x.grad(getattr(rt, name)(x).backward()).numpy()
        left = 0.01 if name == "leaky_relu" else 1.0 if name == "logsigmoid" else 0.0
        right = 0.0 if name in ("relu6", "hardtanh", "sigmoid", "logsigmoid") else 1.0
        np.testing.assert_allclose(slopes, [left, left, right, right, right], rtol=1e-6, atol=1e-12, err_msg=name)
