"""@check_operation: passes right rules, and gives the smallest failing input as code that fails again."""
from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_autodiff import custom_gradient
from ruda_autodiff.testing import (
    GradientMismatch,
    Inconclusive,
    NonFinite,
    arrays,
    away_from_ties,
    axes,
    between,
    broadcastable_to,
    check_operation,
    layouts,
    nonzero,
    positive,
    reals,
    shapes,
    tensors,
)
from ruda_autodiff.testing.decorator import as_code


# What a user writes: these are collected by pytest as tests, and pass.
@check_operation(x=tensors(shapes(max_dims=3), domain=positive), order=2, max_examples=15)
def test_a_right_operation(x):
    """A docstring stays."""
    return rt.log(x) * x


@check_operation(
    x=tensors(shapes(min_dims=1), domain=nonzero), y=lambda x: tensors(broadcastable_to(x.shape)), axis=lambda x: axes(x.ndim),
    keepdims=st.booleans(), power=3.0, max_examples=15,
)  # fmt: skip
def test_arguments_that_depend_on_each_other(x, y, axis, keepdims, power):
    return rt.sum(y / x, axis=axis, keepdims=keepdims) ** 3 * power


@check_operation(x=tensors(shapes(min_side=0), layout=layouts()), max_examples=15)
def test_empty_and_strided_inputs(x):
    return rt.sin(x)


@check_operation(x=tensors(shapes(max_dims=2)), max_examples=15)
def test_kinks_are_left_out(x):
    return rt.relu(x)


@check_operation(x=tensors(shapes(min_dims=1), domain=away_from_ties), axis=lambda x: axes(x.ndim), max_examples=15)
def test_a_domain_of_whole_arrays(x, axis):
    return rt.max(x, axis=axis)


@custom_gradient
def cube(x):
    return x * x * x, lambda g: -3.0 * x * x * g


def failure(test, kind=GradientMismatch):
    with pytest.raises(kind) as caught:
        test()
    return caught.value


def program(error):
    """The code in a message, without its indentation."""
    lines = str(error).split("as code:\n\n")[1].splitlines()
    return "\n".join(line.removeprefix("    ") for line in lines)


@check_operation(x=tensors(shapes(max_dims=3)))
def wrong_cube(x):
    return cube(x)


def test_the_smallest_failure_is_found_and_its_code_fails_again():
    error = failure(wrong_cube)
    assert error.hint == "the sign is wrong" and error.index == ()
    code = program(error)
    assert f"from {__name__} import wrong_cube" in code
    assert "x = rt.tensor(0.015625, dtype=rt.float64, device=rt.Cpu())" in code  # at 0 the rule is right
    with pytest.raises(GradientMismatch, match="the sign is wrong"):
        exec(compile(code, "<reproduction>", "exec"), {"__name__": "elsewhere", "sys": sys})


def test_a_failure_that_needs_a_shape_is_shrunk_to_it():
    @custom_gradient
    def f(x):
        wide = x.ndim == 2 and x.shape[1] > 2
        return x * 2.0, lambda g: g * (2.02 if wide else 2.0)

    @check_operation(x=tensors(shapes(max_dims=3)))
    def test(x):
        return f(x)

    error = failure(test)
    assert "x = rt.tensor([[0.0, 0.0, 0.0]]" in str(error) and "test is the function" not in program(error).splitlines()[0]


def test_a_failure_at_one_value_is_shrunk_to_it():
    @custom_gradient
    def f(x):
        return x * x, lambda g: g * rt.where(x > 5.0, 0.0, 2.0 * x)

    @check_operation(x=tensors(shapes(max_dims=2)), max_examples=200)
    def test(x):
        return f(x)

    assert "x = rt.tensor(5.015625," in str(failure(test))


def test_inputs_outside_of_the_domain_are_named_and_errors_keep_their_kind():
    @check_operation(x=tensors(shapes(max_dims=1)))
    def logarithm(x):
        return rt.log(x)

    assert "x = rt.tensor(0.0," in str(failure(logarithm, NonFinite))

    @check_operation(x=tensors(shapes(max_dims=1)))
    def broken(x):
        return x + rt.ones((7,), device=rt.Cpu(), dtype=x.dtype) if x.ndim else x

    error = failure(broken, ValueError)
    assert "x = rt.tensor([0.0, 0.0]" in "".join(error.__notes__)

    @check_operation(x=tensors(shapes(max_dims=1), domain=between(0.0, 1.0)), kinks="raise")
    def kinked(x):
        return rt.relu(x)

    assert "kink" in str(failure(kinked, Inconclusive))


def test_a_function_of_nothing_but_kinks_says_so():
    @check_operation(x=tensors((3,)).map(lambda x: x * 0.0), max_examples=5, kinks="ignore")
    def f(x):
        return rt.abs(x)

    f()  # every entry is left out: nothing is wrong


def test_second_order_and_options_reach_the_check():
    @custom_gradient
    def once(x):
        return x * x, lambda g: g * (2.0 * x).detach()

    @check_operation(x=tensors(()), order=2, options={"directions": 1})
    def f(x):
        return once(x)

    error = failure(f)
    assert error.order == 2 and "order=2, directions=1)" in str(error)


def test_the_test_is_a_plain_function_without_arguments():
    assert test_a_right_operation.__name__ == "test_a_right_operation" and test_a_right_operation.__doc__ == "A docstring stays."
    assert not inspect.signature(test_a_right_operation).parameters
    assert test_a_right_operation.operation(rt.ones((), dtype=rt.float64, device=rt.Cpu())).item() == 0.0


def test_wrong_names_are_refused_when_the_test_is_made():
    with pytest.raises(TypeError, match="name the arguments"):
        check_operation()
    with pytest.raises(TypeError, match=r"missing \['y'\], unknown \['z'\]"):
        check_operation(x=tensors(), z=1)(lambda x, y: x)


def test_values_as_code():
    names = {"rt": rt, "np": np}
    for value in (
        rt.tensor([[1.5, float("nan")], [float("inf"), -float("inf")]], dtype=rt.float64, device=rt.Cpu()),
        rt.zeros((0, 3), dtype=rt.float32, device=rt.Cpu()),
        rt.tensor([1, 2], dtype=rt.int8, device=rt.Cpu()),
        rt.tensor([True], device=rt.Cpu()),
        rt.tensor([0.5], dtype=rt.bfloat16, device=rt.Cpu()),
    ):
        again = eval(as_code(value), names)
        assert again.dtype == value.dtype and again.shape == value.shape
        assert np.array_equal(again.astype(rt.float64).numpy(), value.astype(rt.float64).numpy(), equal_nan=True)
    nested = {"a": [rt.ones((), device=rt.Cpu())], "b": (np.arange(2),), "c": None}
    assert eval(as_code(nested), names)["b"][0].tolist() == [0, 1]
    turned = rt.Tensor._wrap(np.asfortranarray(np.ones((2, 2))), rt.Cpu())
    assert as_code(turned).endswith("# strides (8, 16)")


def test_strategies_name_their_domain():
    assert repr(reals) == "<domain reals>" and "between(0.0, 1.0)" in repr(between(0.0, 1.0))
    assert arrays((2,)) is not None
