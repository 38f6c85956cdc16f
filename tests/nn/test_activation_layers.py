"""Activations as layers: against torch, against closed forms, at kinks and infinities, in half types."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_nn as nn
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn import PReluConfig

from ._layers import agrees_with_torch, behaves_like_a_layer, drawn, host, rounds_halves_once, run

# layer, name in torch, its arguments, and the definition in float64
TABLE = [
    (nn.Relu(), "ReLU", (), lambda x: max(x, 0.0)),
    (nn.Relu6(), "ReLU6", (), lambda x: min(max(x, 0.0), 6.0)),
    (nn.HardTanh(), "Hardtanh", (), lambda x: min(max(x, -1.0), 1.0)),
    (nn.LeakyRelu(), "LeakyReLU", (), lambda x: x if x > 0 else 0.01 * x),
    (nn.LeakyRelu(0.3), "LeakyReLU", (0.3,), lambda x: x if x > 0 else 0.3 * x),
    (nn.Elu(1.5), "ELU", (1.5,), lambda x: x if x > 0 else 1.5 * math.expm1(x)),
    (nn.Celu(0.7), "CELU", (0.7,), lambda x: x if x > 0 else 0.7 * math.expm1(x / 0.7)),
    (nn.Selu(), "SELU", (), lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x))),
    (nn.Gelu(), "GELU", (), lambda x: x * math.erfc(-x / math.sqrt(2)) / 2),
    (nn.Gelu("tanh"), "GELU", ("tanh",), lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2),
    (nn.Silu(), "SiLU", (), lambda x: x / (1 + math.exp(-x))),
    (nn.Mish(), "Mish", (), lambda x: x * math.tanh(math.log1p(math.exp(x)))),
    (nn.Sigmoid(), "Sigmoid", (), lambda x: 1 / (1 + math.exp(-x))),
    (nn.LogSigmoid(), "LogSigmoid", (), lambda x: -math.log1p(math.exp(-x))),
    (nn.Tanh(), "Tanh", (), math.tanh),
    (nn.Softplus(2.0), "Softplus", (2.0,), lambda x: math.log1p(math.exp(2.0 * x)) / 2.0),
    (nn.Softsign(), "Softsign", (), lambda x: x / (1 + abs(x))),
    (nn.HardSigmoid(), "Hardsigmoid", (), lambda x: min(max(x / 6 + 0.5, 0.0), 1.0)),
    (nn.HardSigmoid(0.2, 0.5), "", (), lambda x: min(max(0.2 * x + 0.5, 0.0), 1.0)),
    (nn.HardSwish(), "Hardswish", (), lambda x: x * min(max(x + 3, 0.0), 6.0) / 6),
    (nn.HardShrink(0.3), "Hardshrink", (0.3,), lambda x: x if abs(x) > 0.3 else 0.0),
    (nn.SoftShrink(), "Softshrink", (), lambda x: math.copysign(max(abs(x) - 0.5, 0.0), x)),
    (nn.ThresholdedRelu(0.4), "Threshold", (0.4, 0.0), lambda x: x if x > 0.4 else 0.0),
]
IDS = [f"{type(layer).__name__}-{i}" for i, (layer, *_) in enumerate(TABLE)]
ELEMENTWISE = pytest.mark.parametrize("layer,name,args,f", TABLE, ids=IDS)
AT = np.concatenate([np.linspace(-7.3, 7.1, 61), [-30.0, -0.01, 0.01, 30.0]])


@ELEMENTWISE
def test_values_are_those_of_the_definition(layer, name, args, f, device):
    expected = [f(v) for v in AT]
    found = layer(rt.tensor(AT, dtype=rt.float64, device=device))
    np.testing.assert_allclose(host(found), expected, rtol=1e-12, atol=1e-15)
    single = AT.astype(np.float32)
    found = layer(rt.tensor(single, device=device))
    assert found.dtype == rt.float32
    np.testing.assert_allclose(host(found), [f(float(v)) for v in single], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layer,name,args", [row[:3] for row in TABLE if row[1]])
def test_values_and_gradients_agree_with_torch(layer, name, args):
    for shape in ((3, 5), (2, 0), (1,), (4, 3, 7)):
        agrees_with_torch(layer, name, 3.0 * drawn(shape), *args)


@ELEMENTWISE
def test_gradients(layer, name, args, f):
    x = rt.tensor(np.array([-4.2, -2.1, -0.77, -0.21, 0.19, 0.83, 2.2, 7.4]), device=rt.Cpu())
    check_gradients(layer, x, order=2)


@ELEMENTWISE
def test_half_types_are_rounded_once(layer, name, args, f, device):
    x = rt.tensor(3.0 * drawn((400,)), device=device)
    for dtype in (rt.bfloat16, rt.float16):
        half = x.astype(dtype)
        y = layer(half)
        assert y.dtype == dtype
        wide = layer(half.astype(rt.float32)).astype(dtype)
        assert np.array_equal(host(y), host(wide)), "another number than the float32 result rounded"
    rounds_halves_once(layer, x)


@ELEMENTWISE
def test_extremes_give_no_nan_in_values_or_gradients(layer, name, args, f, device):
    x = rt.tensor([-1e30, -1e4, -0.0, 0.0, 1e4, 1e30], device=device)
    with np.errstate(all="ignore"):
        y, dx, _ = run(layer, x)
    assert not np.isnan(y).any() and not np.isnan(dx).any()
    nan = layer(rt.tensor([np.nan], device=device))
    assert np.isnan(host(nan)).all()


def test_slopes_at_kinks(device):
    def slope(layer, at):
        return run(layer, rt.tensor([at], device=device), np.ones(1, np.float32))[1].tolist()

    assert slope(nn.Celu(2.0), 0.0) == [1.0] and slope(nn.Relu(), 0.0) == [0.0] and slope(nn.LeakyRelu(0.25), 0.0) == [0.25]
    assert slope(nn.HardShrink(), 0.5) == [0.0] == slope(nn.SoftShrink(), -0.5) and slope(nn.ThresholdedRelu(), 1.0) == [0.0]
    assert slope(nn.HardSigmoid(0.25, 0.5), 2.0) == [0.0] == slope(nn.HardSwish(), -3.0)
    assert slope(PReluConfig().init(device), 0.0) == [0.25]


def test_the_slope_of_softsign_keeps_its_digits_far_out(device):
    x = rt.tensor([1e5, -1e5], device=device)
    np.testing.assert_allclose(run(nn.Softsign(), x, np.ones(2, np.float32))[1], [(1 + 1e5) ** -2] * 2, rtol=1e-6)


@pytest.mark.parametrize("shape,n", [((4, 3), 3), ((4, 3, 5), 3), ((2, 3, 4, 5), 1), ((7,), 1), ((0, 3), 3)])
def test_prelu_agrees_with_torch(shape, n):
    layer = PReluConfig(n).init(Autodiff(rt.Cpu()))
    layer = layer.map(lambda p: p.like(rt.tensor(0.1 + np.arange(n), dtype=rt.float32, device=rt.Cpu())._data))
    agrees_with_torch(layer, "PReLU", drawn(shape), n)


def test_prelu_by_hand_and_at_infinity(device):
    layer = PReluConfig(2).init(Autodiff(device))
    x = rt.tensor([[-2.0, np.inf], [4.0, -8.0]], device=device)
    y, dx, gradients = run(layer, x, np.ones((2, 2), np.float32))
    assert y.tolist() == [[-0.5, np.inf], [4.0, -2.0]] and dx.tolist() == [[0.25, 1.0], [1.0, 0.25]]
    assert gradients["weight"].tolist() == [-2.0, -8.0]
    with pytest.raises(ValueError, match=r"2 channels on axis 1"):
        layer(rt.ones((2, 3), device=device))


def test_prelu_behaves_like_a_layer(device):
    behaves_like_a_layer(PReluConfig(3), drawn((4, 3)), device)
    double = PReluConfig(3).init(Autodiff(device)).to_dtype(rt.float64)
    check_gradients(lambda m, x: m(x), double, rt.tensor(drawn((4, 3), dtype=np.float64), device=device), order=2)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_and_log_softmax(axis, device):
    x = drawn((3, 4, 5))
    e = np.exp(x.astype(np.float64))
    p = e / e.sum(axis, keepdims=True)
    np.testing.assert_allclose(host(nn.Softmax(axis)(rt.tensor(x, device=device))), p, rtol=1e-5)
    np.testing.assert_allclose(host(nn.LogSoftmax(axis)(rt.tensor(x, device=device))), np.log(p), rtol=1e-5, atol=1e-6)
    agrees_with_torch(nn.Softmax(axis), "Softmax", x, axis)
    agrees_with_torch(nn.LogSoftmax(axis), "LogSoftmax", x, axis)


@pytest.mark.parametrize("make,field", [
    (lambda: nn.LeakyRelu("1"), "negative_slope"), (lambda: nn.Elu(float("inf")), "alpha"), (lambda: nn.Celu(0.0), "alpha"),
    (lambda: nn.Gelu("erf"), "approximate"), (lambda: nn.Softplus(-1.0), "beta"), (lambda: nn.HardSigmoid(beta=None), "beta"),
    (lambda: nn.HardShrink(-0.5), "lambd"), (lambda: nn.SoftShrink(-0.5), "lambd"), (lambda: nn.ThresholdedRelu(True), "alpha"),
    (lambda: PReluConfig(0).init(), "num_parameters"), (lambda: PReluConfig(init_value="x").init(), "init_value"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(make, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        make()


def test_they_are_modules_without_parameters():
    for layer, *_ in TABLE:
        assert layer.paths() == [] and layer.num_params() == 0 and layer.valid().to_record() == {"places": {}, "params": []}
        assert type(layer).__name__ in repr(layer)
