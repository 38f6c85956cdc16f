"""check_vjp on NumPy functions: right rules pass, and each kind of mistake is named for what it is."""
from __future__ import annotations

import numpy as np
import pytest

from ruda_autodiff.testing import (
    GradientDtypeMismatch,
    GradientMismatch,
    GradientShapeMismatch,
    Inconclusive,
    KinkNearby,
    LowPrecision,
    MissingGradient,
    NonFinite,
    NotDeterministic,
    check_vjp,
)

from ._rules import affine, affine_vjp, scaled_at, several, several_vjp, softmax, softmax_vjp, spoiled, tanh, tanh_vjp


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4))


@pytest.fixture
def args(rng):
    return rng.standard_normal((3, 4)), rng.standard_normal((4, 5)), rng.standard_normal((3, 1))


# right rules
def test_right_rules_pass_and_say_how_well(x, args):
    one = [(tanh, tanh_vjp, (x,)), (softmax, softmax_vjp, (x,)), (several, several_vjp, (x,))]
    for f, vjp, inputs in [*one, (affine, affine_vjp, args)]:
        report = check_vjp(f, vjp, *inputs)
        assert report.max_error < 1e-9 and report.resolution < 1e-7
        assert report.directions == 2 and report.entries > 0 and report.evaluations > 10
        assert "agrees" in str(report)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (1, 1, 1), (2, 1, 3)])
def test_every_shape_passes(shape, rng):
    check_vjp(tanh, tanh_vjp, rng.standard_normal(shape))


def test_one_call_of_a_large_function_takes_few_evaluations(rng):
    report = check_vjp(tanh, tanh_vjp, rng.standard_normal((200, 300)))
    assert report.entries == 0 and report.evaluations < 60 and report.resolution < 1e-9


def test_integers_pass_through_and_wrt_chooses(rng):
    a, ids = rng.standard_normal((5, 3)), np.array([0, 2, 2, 4])

    def pick_vjp(g, a, ids):
        out = np.zeros_like(a)
        np.add.at(out, ids, g)
        return out, None

    check_vjp(lambda a, ids: a[ids], pick_vjp, a, ids)
    product = lambda x, y: x * y
    check_vjp(product, lambda g, x, y: (None, g * x), a, a + 1.0, wrt="y")
    check_vjp(product, lambda g, x, y: (None, g * x), a, a + 1.0, wrt=(1,))
    with pytest.raises(MissingGradient):
        check_vjp(product, lambda g, x, y: (None, g * x), a, a + 1.0)


def test_float32_inputs_are_checked_in_float64():
    check_vjp(tanh, tanh_vjp, np.array([0.5, 1.0], np.float32))


# wrong rules
FACTORS = [1.01, 1.001, 0.99, 1.0001, 1.0 + 1e-6]


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_is_caught_and_named(factor, x):
    with pytest.raises(GradientMismatch) as caught:
        check_vjp(tanh, spoiled(tanh_vjp, lambda g: g * factor), x)
    error = caught.value
    if abs(factor - 1) > 1e-5:
        assert f"off by a factor of {factor:.6g}" in error.hint
    assert error.input == "x" and error.output == "output" and error.index == error.output_index
    assert error.relative_error == pytest.approx(abs(factor - 1), rel=0.05)
    assert error.analytic == pytest.approx(factor * error.numerical) and error.estimate < 1e-9


@pytest.mark.parametrize("factor", [1.01, -1.0, 0.0, np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 3)])
def test_one_wrong_entry_is_caught_and_located(factor, place, x):
    with pytest.raises(GradientMismatch) as caught, np.errstate(all="ignore"):
        check_vjp(tanh, spoiled(tanh_vjp, scaled_at(place, factor)), x)
    assert caught.value.index == place


@pytest.mark.parametrize("k", [0, 1, 2])
def test_the_wrong_input_of_several_is_named(k, args):
    with pytest.raises(GradientMismatch) as caught:
        check_vjp(affine, spoiled(affine_vjp, lambda g: g * 1.01, k), *args)
    assert caught.value.input == ("a", "x", "b")[k]


@pytest.mark.parametrize("seed", range(8))
def test_one_wrong_entry_of_a_large_gradient_is_always_caught(seed):
    """The promise of the random direction: its weights are at least 1/2, so no single entry can hide."""
    rng = np.random.default_rng(seed)
    shape = (100, 200)
    place = tuple(int(rng.integers(n)) for n in shape)
    wrong = spoiled(tanh_vjp, scaled_at(place, 1.01))
    with pytest.raises(GradientMismatch) as caught:
        check_vjp(tanh, wrong, 0.5 * rng.standard_normal(shape), directions=1, seed=seed)
    assert caught.value.index == place


@pytest.mark.parametrize("seed", range(5))
def test_one_wrong_entry_of_the_gradient_of_a_loss_is_caught(seed):
    rng = np.random.default_rng(seed)
    place = int(rng.integers(50_000))
    vjp = lambda g, x: (g * 2.0 * x,)
    with pytest.raises(GradientMismatch) as caught:
        x = rng.standard_normal(50_000) + 3.0
        check_vjp(lambda x: (x * x).sum(), spoiled(vjp, scaled_at(place, 1.01)), x, directions=1, seed=seed)
    assert caught.value.index == (place,)


def test_two_opposite_errors_do_not_cancel(x):
    def change(g):
        g = np.array(g)
        g[0, 0] += 0.1
        g[0, 1] -= 0.1
        return g

    wrong = spoiled(lambda g, x: tanh_vjp(g, x), change)
    for seed in range(20):
        with pytest.raises(GradientMismatch):
            check_vjp(lambda x: np.tanh(x).sum(), wrong, x, full=False, directions=1, seed=seed)


HINTS = [
    (lambda g: -g, "sign"),
    (lambda g: g.T, "transpose"),
    (lambda g: np.flip(g, 0).copy(), "flipped along axis 0"),
    (lambda g: np.roll(g, 1, 1), "shifted by 1 along axis 1"),
    (lambda g: g * 0.0, "zero everywhere"),
    (lambda g: g / 3.0, "axis 0 has 3 elements"),
    (lambda g: g.astype(np.float32).astype(np.float64), "float32"),
    (lambda g: g + 0.25, "same amount 0.25"),
    (lambda g: np.where(np.eye(3) > 0, np.nan, g), "3 of 9 elements are NaN"),
    (lambda g: np.where(np.eye(3) > 0, 0.0, g), "3 of 9 elements are wrong, the first at (0, 0), and they are all zero"),
    (lambda g: np.sort(g, axis=None).reshape(3, 3), "wrong order"),
]


@pytest.mark.parametrize(("change", "text"), HINTS, ids=[text for _, text in HINTS])
def test_hints(change, text, rng):
    with pytest.raises(GradientMismatch) as caught:
        check_vjp(lambda x: np.tanh(x).sum(), spoiled(lambda g, x: tanh_vjp(g, x), change), rng.standard_normal((3, 3)))
    assert text in caught.value.hint and text in str(caught.value)


def test_swapped_rules_are_named(rng):
    x, y = rng.standard_normal((2, 3)), rng.standard_normal((2, 3))
    with pytest.raises(GradientMismatch, match="swapped"):
        check_vjp(lambda x, y: x * y, lambda g, x, y: (g * x, g * y), x, y)


def test_a_rule_that_is_not_linear_in_the_incoming_gradient(x):
    with pytest.raises(GradientMismatch, match="not linear in g"):
        check_vjp(tanh, lambda g, x: tanh_vjp(g * np.abs(g), x), x)


def test_a_mixed_up_pair_of_results(x):
    with pytest.raises(GradientMismatch):
        check_vjp(several, lambda g, x: (g[0].sum() * np.cos(x) + g[1],), x)


# wrong shapes and types
def test_a_broadcast_that_is_not_undone_is_named(args):
    a, x, b = args
    with pytest.raises(GradientShapeMismatch, match=r"'b' has shape \(3, 5\).*\n.*sum it over axis \(1,\)"):
        check_vjp(affine, spoiled(affine_vjp, lambda g: np.broadcast_to(g, (3, 5)), 2), a, x, b)
    with pytest.raises(GradientShapeMismatch, match="transposed"):
        check_vjp(affine, spoiled(affine_vjp, lambda g: g.T, 0), a, x, b)


def test_a_gradient_of_another_dtype_is_named(x):
    with pytest.raises(GradientDtypeMismatch, match="float32"):
        check_vjp(tanh, spoiled(tanh_vjp, lambda g: g.astype(np.float32)), x)


def test_a_missing_gradient_is_right_only_where_nothing_depends_on_it(x):
    with pytest.raises(MissingGradient, match="'x'"):
        check_vjp(tanh, lambda g, x: (None,), x)
    check_vjp(lambda x, y: np.tanh(x) + 0.0 * y, lambda g, x, y: (*tanh_vjp(g, x), None), x, x)


def test_the_wrong_number_of_gradients(args):
    with pytest.raises(ValueError, match="2 gradients for 3 arguments"):
        check_vjp(affine, lambda g, a, x, b: affine_vjp(g, a, x, b)[:2], *args)


def test_functions_that_change_their_arguments(x):
    def scribble(x):
        x *= 2.0
        return x

    with pytest.raises(RuntimeError, match="f changed its argument 0"):
        check_vjp(scribble, lambda g, x: (2.0 * g,), x)
    with pytest.raises(RuntimeError, match="vjp changed its argument 0"):
        check_vjp(tanh, lambda g, x: (tanh_vjp(g, scribble(x) / 2.0)[0],), x)


def test_arguments_are_checked_first(x):
    with pytest.raises(TypeError, match="floating"):
        check_vjp(tanh, tanh_vjp, np.arange(3))
    with pytest.raises(TypeError, match="two functions"):
        check_vjp(tanh, x, x)
    with pytest.raises(TypeError, match="no floating array"):
        check_vjp(lambda x: np.argmax(x), tanh_vjp, x)
    with pytest.raises(ValueError, match="there are"):
        check_vjp(tanh, tanh_vjp, x, wrt=("x", "y"))
    with pytest.raises(ValueError, match="directions"):
        check_vjp(tanh, tanh_vjp, x, directions=0)
    with pytest.raises(ValueError, match="kinks"):
        check_vjp(tanh, tanh_vjp, x, kinks="maybe")
    with pytest.raises(ValueError, match="rtol"):
        check_vjp(tanh, tanh_vjp, x, rtol=-1.0)
    with pytest.raises(TypeError, match="convert="):
        check_vjp(tanh, tanh_vjp, "text")


# points at which nothing can be said
def relu(x):
    return np.maximum(x, 0.0)


def relu_vjp(g, x):
    return (g * (x > 0),)


def test_a_kink_is_no_wrong_rule():
    for near, where in ((0.0, r".* x\[1\] = 0.0"), (1e-13, ""), (-1e-10, "")):
        with pytest.raises(KinkNearby, match=r"output\[1\] has a kink" + where):
            check_vjp(relu, relu_vjp, np.array([1.0, near, -2.0]))
    report = check_vjp(relu, relu_vjp, np.array([1.0, 0.0, -2.0]), kinks="ignore")
    assert report.kinks == 1
    check_vjp(relu, relu_vjp, np.array([1.0, 1e-5, -1e-5]))  # far enough to see both sides


def test_a_wrong_rule_beside_a_kink_is_wrong():
    x = np.array([1.0, 0.0, -2.0, 0.0])
    with pytest.raises(GradientMismatch) as caught:
        check_vjp(relu, spoiled(relu_vjp, lambda g: 1.01 * g), x)
    assert caught.value.index == (0,)
    with pytest.raises(GradientMismatch) as caught:  # a slope that is not between the two sides
        check_vjp(relu, lambda g, x: (g * np.where(x == 0, 2.0, x > 0),), x)
    assert caught.value.index in ((1,), (3,))


def test_ties_of_a_maximum_are_kinks():
    largest = lambda x: x.max()
    vjp = lambda g, x: (g * (x == x.max()) / (x == x.max()).sum(),)
    with pytest.raises(KinkNearby):
        check_vjp(largest, lambda g, x: (g * (np.arange(x.size) == np.argmax(x)),), np.array([1.0, 3.0, 3.0]))
    check_vjp(largest, vjp, np.array([1.0, 3.0, 3.0]), kinks="ignore")
    check_vjp(largest, vjp, np.array([1.0, 3.0, 3.1]))


def test_many_kinks_of_a_large_function_leave_the_rest_checked(rng):
    x = rng.standard_normal(20_000)
    assert check_vjp(relu, relu_vjp, x, full=False).resolution < 1e-6
    assert check_vjp(lambda x: relu(x).sum(), relu_vjp, x, full=False).resolution < 1e-3


def test_a_jump_is_named():
    with pytest.raises(KinkNearby, match="jumps"):
        check_vjp(np.floor, lambda g, x: (0.0 * g,), np.array([0.5, 3.0]))
    check_vjp(np.floor, lambda g, x: (0.0 * g,), np.array([0.5, 1000.25]))


def test_points_outside_and_at_the_edge_of_the_domain():
    inverse_root = lambda g, x: (g / (2.0 * np.sqrt(x)),)
    with pytest.raises(NonFinite, match=r"output\[1\] is nan at the point"):
        check_vjp(np.sqrt, inverse_root, np.array([1.0, -1.0]))
    with pytest.raises(NonFinite, match=r"not on both sides of x\[1\] = 0.0"):
        check_vjp(np.sqrt, inverse_root, np.array([1.0, 0.0]))
    with pytest.raises(NonFinite, match="'x' holds NaN"):
        check_vjp(np.sqrt, inverse_root, np.array([1.0, np.nan]))
    check_vjp(np.log, lambda g, x: (g / x,), np.array([1e-6, 1.0, 1e6]))


def test_functions_that_are_not_deterministic(rng, x):
    with pytest.raises(NotDeterministic, match="two evaluations"):
        check_vjp(lambda x: x * rng.standard_normal(x.shape), lambda g, x: (g,), x)
    with pytest.raises(NotDeterministic, match="derivative rule"):
        check_vjp(tanh, lambda g, x: (tanh_vjp(g, x)[0] * rng.standard_normal(x.shape),), x)


def test_single_precision_inside_is_named_and_can_be_accepted(x):
    single = lambda x: np.tanh(x.astype(np.float32)).astype(np.float64)
    with pytest.raises(LowPrecision, match="digits only.*float32"):
        check_vjp(single, tanh_vjp, x)
    check_vjp(single, tanh_vjp, x, precision=1e-5)
    with pytest.raises(GradientMismatch):
        check_vjp(single, spoiled(tanh_vjp, lambda g: g * 1.01), x, precision=1e-5)


def test_half_precision_inside_is_never_a_wrong_rule(x):
    with pytest.raises(Inconclusive):
        check_vjp(lambda x: np.tanh(x.astype(np.float16)).astype(np.float64), tanh_vjp, x)


def test_a_function_that_is_too_rough_is_inconclusive_not_wrong():
    rough = lambda x: np.sin(1e13 * x)
    with pytest.raises(Inconclusive):
        check_vjp(rough, lambda g, x: (g * 1e13 * np.cos(1e13 * x),), np.array([0.3, 0.7]))


def test_a_first_step_finds_what_lies_between_large_steps():
    spike = lambda x: np.exp(-(((x - 0.5) * 1e6) ** 2))
    vjp = lambda g, x: (g * spike(x) * -2e12 * (x - 0.5),)
    check_vjp(spike, vjp, np.array([0.5 + 5e-7]), step=1e-6)
