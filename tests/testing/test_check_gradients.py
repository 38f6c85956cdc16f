"""check_gradients on tensors: structures and modules, both orders, layouts, and what the tape can get wrong."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import HigherDerivativeUnsupported, custom_gradient, grad
from ruda_autodiff.testing import (
    GradientMismatch,
    KinkNearby,
    LowPrecision,
    MissingGradient,
    NonFinite,
    NotDeterministic,
    check_gradients,
)
from ruda_nn import LinearConfig, Module


def t(values, dtype=rt.float64):
    return rt.tensor(values, dtype=dtype, device=rt.Cpu())


@pytest.fixture
def x(rng):
    return t(rng.standard_normal((2, 3)))


@custom_gradient
def wrong(x):
    y = rt.exp(x)
    return y, lambda g: g * y * 1.01


def test_a_planted_error_is_caught_and_a_right_rule_is_not():
    a, b = rt.ones((2, 3), dtype=rt.float64), rt.ones((3, 2), dtype=rt.float64)
    check_gradients(lambda a, b: rt.tanh(a @ b), a, b, order=2)
    with pytest.raises(GradientMismatch, match="off by a factor of 1.01"):
        check_gradients(wrong, t([0.1, 0.2]))


def test_a_planted_error_is_caught_behind_other_operations(x):
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(lambda x, y: (wrong(rt.sin(x)) @ y).sum(), x, x.mT)
    assert caught.value.input == "x"


# structures
class Pair(NamedTuple):
    left: rt.Tensor
    right: rt.Tensor


def test_nested_inputs_and_outputs_have_their_paths_in_messages(x):
    inputs = {"w": [x, t(2.0)], "pair": Pair(t([1.0, 2.0, 3.0]), t([1, 2], rt.int32)), "scale": 3.0}

    def f(d):
        return {"a": rt.sin(d["w"][0]) * d["pair"].left, "b": (d["w"][1] * d["scale"], d["pair"].right)}

    check_gradients(f, inputs, order=2)
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(lambda d: f({**d, "pair": Pair(wrong(d["pair"].left), d["pair"].right)}), inputs)
    assert caught.value.input == "d['pair'].left" and caught.value.output == "output['a']"


class Net(Module):
    first: Module
    layers: list
    settings: dict

    def forward(self, x):
        for layer in [self.first, *self.layers]:
            x = rt.tanh(layer(x))
        return x * self.settings["scale"]


def test_the_parameters_of_a_module_are_inputs(rng):
    device = rt.Cpu()
    net = Net(LinearConfig(3, 4).init(device), [LinearConfig(4, 4).init(device), LinearConfig(4, 2).init(device)], {"scale": 2.0})
    x = t(rng.standard_normal((5, 3)), rt.float32)
    report = check_gradients(lambda net, x: net(x), net, x, order=2)
    assert report.max_error < 1e-7
    with pytest.raises(GradientMismatch) as caught:
        check_gradients(lambda net: wrong(net.layers[1].weight).sum(), net)
    assert caught.value.input == "net.layers.1.weight"


def test_tied_parameters_are_one_input():
    one = LinearConfig(3, 3).init(rt.Cpu())
    net = Net(one, [one], {"scale": 1.0})
    report = check_gradients(lambda net: net(t([[0.3, -0.2, 0.5]])), net, full=True)
    assert report.entries == 3 * (9 + 3)


def test_wrt_chooses_arguments_by_name_and_number(x):
    f = lambda a, b: wrong(a) * b
    check_gradients(f, x, x, wrt="b")
    check_gradients(f, x, x, wrt=1)
    for wrt in ("a", 0, ("a", "b"), [0, 1], None):
        with pytest.raises(GradientMismatch):
            check_gradients(f, x, x, wrt=wrt)
    for wrt in ("c", 2, (), ("a", "c")):
        with pytest.raises(ValueError, match=r"0 \(a\), 1 \(b\)"):
            check_gradients(f, x, x, wrt=wrt)


def test_integers_bools_and_other_values_pass_through(x):
    check_gradients(lambda x, ids, mask, axis: rt.where(mask, rt.take(x, ids, axis=axis), 0.0), x, t([0, 1, 1], rt.int32),
                    t([True, False, True], rt.bool), 1, order=2)  # fmt: skip


@pytest.mark.parametrize("dtype", [rt.float32, rt.float16, rt.bfloat16])
def test_narrow_inputs_are_checked_in_float64(dtype, x):
    report = check_gradients(lambda x, y: rt.sin(x) * y, x.astype(dtype), x.astype(dtype), wrt="x")
    assert report.max_error < 1e-9


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (1, 1)])
def test_shapes_without_or_with_one_element(shape, rng):
    check_gradients(rt.sin, t(rng.standard_normal(shape)), order=2)


def test_a_function_that_returns_its_input_or_a_constant(x):
    check_gradients(lambda x: x, x, order=2)
    check_gradients(lambda x: (x, rt.ones((2,), dtype=rt.float64, device=rt.Cpu())), x, order=2)
    check_gradients(lambda x: rt.floor(x), x, order=2)


def test_functions_that_differentiate_inside(x):
    check_gradients(grad(lambda x: (rt.sin(x) * x).sum()), x, order=2)


def test_layouts_reach_the_function():
    seen = []

    def f(x):
        seen.append(x._data.strides)
        return x * x

    base = np.arange(12.0).reshape(3, 4)
    for view in (base.T, base[::-1, ::-2], base[:, ::2], np.broadcast_to(base[:, :1], (3, 4))):
        seen.clear()
        check_gradients(f, rt.Tensor._wrap(view, rt.Cpu()))
        assert set(seen) == ({view.strides} if 0 not in view.strides else {(32, 8)})


# second order
@custom_gradient
def right_once(x):
    return x * x * x, lambda g: g * 3.0 * (x * x).detach()


def test_a_second_derivative_that_is_cut_is_caught(x):
    check_gradients(right_once, x)
    with pytest.raises(MissingGradient, match="no second-order gradient arrived at 'x'") as caught:
        check_gradients(right_once, x, order=2)
    assert caught.value.order == 2


def test_a_second_derivative_off_by_a_factor_is_caught(x):
    @custom_gradient
    def inner(x):
        return 3.0 * x * x, lambda g: g * 6.06 * x

    @custom_gradient
    def cube(x):
        return x * x * x, lambda g: g * inner(x)

    check_gradients(cube, x)
    with pytest.raises(GradientMismatch, match="second derivative is wrong") as caught:
        check_gradients(cube, x, order=2)
    assert caught.value.order == 2 and caught.value.output == "d/dx" and caught.value.input == "x"


def test_a_composite_whose_expression_is_another_function_is_caught(x):
    from ruda_tensor.operation import Composite, call

    backward = lambda xp, g, x, *, needs: (2.0 * g * x,)
    square = Composite("square", lambda x: x * x * 1.001, lambda xp, x: x * x, backward, keeps="x")
    f = lambda x: call(square, (x,))
    check_gradients(f, x)
    with pytest.raises(GradientMismatch, match="order=2 changes the first derivative"):
        check_gradients(f, x, order=2)


def test_a_forward_outside_of_the_tape_has_no_second_derivative(x):
    @custom_gradient
    def outside(x):
        y = rt.tensor(np.exp(x.detach().numpy()), device=rt.Cpu())
        return y, lambda g: g * y

    check_gradients(outside, x)
    with pytest.raises(HigherDerivativeUnsupported):
        check_gradients(outside, x, order=2)


# what is no wrong rule
def test_a_path_that_is_cut_is_a_missing_gradient(x):
    with pytest.raises(MissingGradient, match="'y'.*\n.*detach"):
        check_gradients(lambda x, y: x * y.detach(), x, x + 1.0)
    with pytest.raises(MissingGradient, match="'x'"):
        check_gradients(lambda x: rt.tensor(x.numpy() ** 2, device=rt.Cpu()), x)


def test_kinks_noise_edges_and_chance_have_their_own_errors(x):
    with pytest.raises(KinkNearby):
        check_gradients(rt.relu, t([1.0, 0.0]))
    assert check_gradients(rt.relu, t([1.0, 0.0]), order=2, kinks="ignore").kinks >= 1
    with pytest.raises(LowPrecision, match="float32"):
        check_gradients(lambda x: rt.sin(x.astype(rt.float32)), x)
    with pytest.raises(LowPrecision, match="digits"):
        check_gradients(lambda x: rt.sin(x.astype(rt.float32)).astype(rt.float64), x)
    with pytest.raises(NonFinite, match="at the point"):
        check_gradients(rt.log, t([-1.0]))
    with pytest.raises(NonFinite, match="both sides"):
        check_gradients(rt.sqrt, t([0.0]))
    with pytest.raises(NotDeterministic, match="seed"):
        check_gradients(lambda x: x * rt.random.normal(x.shape, device=rt.Cpu()), x)


def test_arguments_are_checked_first(x):
    with pytest.raises(ValueError, match="order"):
        check_gradients(rt.sin, x, order=3)
    with pytest.raises(TypeError, match="check_vjp"):
        check_gradients(rt.sin, np.ones(3))
    with pytest.raises(TypeError, match="floating"):
        check_gradients(rt.sin, t([1, 2], rt.int32))
    with pytest.raises(TypeError, match="returned no tensor"):
        check_gradients(lambda x: x.sum().item(), x)


def test_infinities_on_the_way_warn_of_nothing():
    x = t([0.5, 2.0])
    check_gradients(lambda x: rt.exp(x) + 1.0 / (1.0 / (0.0 * x.detach())), x, order=2)


def test_the_result_does_not_depend_on_the_tape_s_state(x):
    from ruda_autodiff import no_grad

    with no_grad():
        check_gradients(rt.sin, x, order=2)
    check_gradients(rt.sin, x.require_grad(), order=2)


def test_seeds_choose_directions_and_reports_add_up(x):
    first, again, other = (check_gradients(rt.sin, x, seed=s, full=False) for s in (0, 0, 1))
    assert first == again and first.max_error != other.max_error
    second = check_gradients(rt.sin, x, order=2)
    assert second.order == 2 and second.evaluations > first.evaluations


@pytest.mark.gpu
def test_functions_on_a_gpu(rng):
    x = rt.tensor(rng.standard_normal((3, 4)), device=rt.Cuda(0))
    check_gradients(lambda x: rt.softmax(x @ x.mT), x, order=2)
    with pytest.raises(GradientMismatch):
        check_gradients(wrong, x)
