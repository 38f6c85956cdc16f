"""The derivative rules that are operations: their values, and their own derivatives, against the expressions."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_autodiff.testing import check_gradients
from ruda_tensor.static import slopes

CPU = rt.Cpu()
RULES = {
    "silu": slopes.silu_backward,
    "sigmoid": slopes.sigmoid_backward,
    "tanh": slopes.tanh_backward,
    "softmax": lambda g, y: slopes.softmax_backward(g, y, 1),
    "softmax_first": lambda g, y: slopes.softmax_backward(g, y, 0),
    "log_softmax": lambda g, y: slopes.log_softmax_backward(g, y, 1),
    "log_softmax_first": lambda g, y: slopes.log_softmax_backward(g, y, 0),
}


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (70, 40)])
def test_values_and_derivatives_are_those_of_the_expression(name, shape):
    rng = np.random.default_rng(0)
    g, y, weight = (rt.tensor(rng.standard_normal(shape), dtype=rt.float64, device=CPU) for _ in range(3))

    def run(order):
        a, b = g.require_grad(), y.require_grad()
        with ra.record(order=order):
            out = RULES[name](a, b)
        gradients = rt.sum(out * weight).backward()
        return out.numpy(), gradients[a].numpy(), gradients[b].numpy()

    for hand, plain in zip(run(1), run(2), strict=True):
        np.testing.assert_allclose(hand, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", sorted(RULES))
def test_derivatives_are_those_of_finite_differences(name):
    rng = np.random.default_rng(1)
    g, y = (rt.tensor(rng.standard_normal((3, 4)), dtype=rt.float64, device=CPU) for _ in range(2))
    check_gradients(RULES[name], g, y)


@pytest.mark.parametrize("name", ["silu", "softmax", "log_softmax"])
def test_only_what_is_wanted_is_computed(name):
    g, y = (rt.ones((2, 3), dtype=rt.float64, device=CPU) for _ in range(2))
    for a, b in ((g.require_grad(), y), (g, y.require_grad())):
        gradients = rt.sum(RULES[name](a, b)).backward()
        assert (gradients.get(a) is None) != (gradients.get(b) is None)


def test_half_types_are_rounded_once(device):
    rng = np.random.default_rng(2)
    for dtype in (rt.float16, rt.bfloat16):
        g, y = (rt.tensor(rng.standard_normal((8, 9)), dtype=dtype, device=device) for _ in range(2))
        for rule in RULES.values():
            found, wide = rule(g, y), rule(rt.astype(g, rt.float64), rt.astype(y, rt.float64)).numpy()
            assert found.dtype == dtype
            eps = 2.0**-11 if dtype == rt.float16 else 2.0**-8
            error = np.abs(rt.astype(found, rt.float64).numpy() - wide)
            assert np.all(error <= eps * np.abs(wide) + 1e-5 * (1 + np.abs(wide)))
