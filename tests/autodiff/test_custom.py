"""custom_gradient: what a user's own operation may do, and what it is told when it is wrong."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import AnomalyError, HigherDerivativeUnsupported, anomaly_mode, custom_gradient, grad, no_grad
from ruda_autodiff.backward import backward


def leaf(values):
    return rt.tensor(np.asarray(values, np.float64), device=rt.Cpu()).require_grad()


@custom_gradient
def product_and_sum(x, y, scale=1.0):
    def rule(g_product, g_sum):
        return g_product * y * scale + g_sum, g_product * x * scale + g_sum

    return (x * y * scale, x + y), rule


def test_several_results_and_arguments():
    x, y = leaf([2.0, 3.0]), leaf([5.0, 7.0])
    p, s = product_and_sum(x, y, scale=10.0)
    g = (p.sum() + (s * 100.0).sum()).backward()
    assert g[x].numpy().tolist() == [150.0, 170.0] and g[y].numpy().tolist() == [120.0, 130.0]


def test_an_unused_result_counts_as_zero():
    x, y = leaf([2.0]), leaf([5.0])
    _, s = product_and_sum(x, y)
    assert s.sum().backward()[x].item() == 1.0


def test_anomaly_mode_looks_at_the_gradients_of_all_results():
    @custom_gradient
    def halves(x):
        return (x * 0.5, x * 0.5), lambda g, h: (g + h) * rt.sqrt(x - 2.0)

    x = leaf([1.0])
    with anomaly_mode():
        a, b = halves(x)
        with pytest.raises(AnomalyError, match="'halves' made the first NaN"):
            (a.sum() + b.sum()).backward()
        a, b = halves(x)
        assert np.isnan(backward(a, seed=rt.full_like(a, float("nan")))[x].item()), "it came in"


def test_second_order_of_a_rule_written_in_operations():
    cube = custom_gradient(lambda x: (x * x * x, lambda g: g * (3.0 * x * x)))
    assert grad(grad(lambda x: cube(x)))(rt.tensor(2.0, dtype=rt.float64, device=rt.Cpu())).item() == 12.0


def test_a_forward_of_another_library_has_a_first_derivative_only():
    @custom_gradient
    def numpy_exp(x):
        y = rt.asarray(np.exp(np.asarray(x)), device=rt.Cpu())
        return y, lambda g: g * y

    x = leaf([0.5])
    np.testing.assert_allclose(numpy_exp(x).backward()[x].item(), np.exp(0.5))
    with pytest.raises(TypeError, match="NumPy"):
        grad(grad(lambda x: numpy_exp(x).sum()))(x.detach())  # np.asarray refuses the tracked tensor

    @custom_gradient
    def host_exp(x):
        y = rt.asarray(np.exp(x.numpy()), device=rt.Cpu())
        return y, lambda g: g * y

    with pytest.raises(HigherDerivativeUnsupported, match="host_exp"):
        grad(lambda x: grad(lambda u: host_exp(u))(x))(x.detach().sum())


def test_untracked_calls_do_not_record():
    x = rt.ones(2, device=rt.Cpu())
    assert not product_and_sum(x, x)[0].is_require_grad()
    with no_grad():
        assert not product_and_sum(leaf([1.0]), leaf([1.0]))[0].is_require_grad()


@pytest.mark.parametrize(
    "rule, error, words",
    [
        (lambda g: (g, g), ValueError, "2 gradients for 1"),
        (lambda g: g.sum().reshape((1, 1)).reshape(()) if False else rt.ones((5,), device=rt.Cpu()), ValueError, "shape"),
        (lambda g: rt.ones((1, 1, 1), device=rt.Cpu()), ValueError, "named.*shape"),
        (lambda g: rt.ones((5, 1), device=rt.Cpu()), ValueError, "named.*shape"),
        (lambda g: 3.0, TypeError, "tensors"),
    ],
)
def test_wrong_rules_are_named(rule, error, words):
    @custom_gradient
    def named(x):
        return x * 1.0, rule

    with pytest.raises(error, match=words):
        named(leaf([1.0, 2.0])).sum().backward()


def test_a_function_that_returns_no_rule():
    with pytest.raises(TypeError, match="return y, lambda g"):
        custom_gradient(lambda x: x * 2.0)(leaf([1.0]))


def test_an_operation_without_results_is_named():
    @custom_gradient
    def nothing(x):
        return (), lambda: x

    with pytest.raises(TypeError, match="nothing: the results must be tensors, got none"):
        nothing(leaf([1.0]))


@pytest.mark.parametrize("results", [1, 2])
def test_anomaly_mode_finds_a_rule_that_makes_nan(results):
    @custom_gradient
    def spoilt(x):
        return tuple(x * 1.0 for _ in range(results)), lambda *g: g[0] * float("nan")

    with anomaly_mode(), pytest.raises(AnomalyError, match="'spoilt' made the first NaN"):
        spoilt(leaf([1.0]))[0].sum().backward()


def test_anomaly_mode_leaves_a_rule_alone_that_passes_nan_on():
    @custom_gradient
    def passing(x):
        return (x * 1.0, x * 2.0), lambda g, h: g + 2.0 * h

    with anomaly_mode(), pytest.raises(AnomalyError, match="'sqrt'"):  # its NaN reaches `passing` as one of two gradients
        x = leaf([0.0])
        (rt.sqrt(passing(x)[0]) * 0.0).sum().backward()


def test_none_means_no_gradient():
    @custom_gradient
    def one_sided(x, y):
        return x * y, lambda g: (g * y, None)

    x, y = leaf([2.0]), leaf([3.0])
    g = one_sided(x, y).backward()
    assert g[x].item() == 3.0 and y.grad(g) is None
