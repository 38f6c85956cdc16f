"""The adjoint test."""
from __future__ import annotations

import pytest

import ruda_tensor as rt
from ruda_autodiff import custom_gradient
from ruda_autodiff.testing import GradientMismatch, MissingGradient, NotLinear, check_adjoint


def t(*shape):
    return rt.zeros(shape, dtype=rt.float64, device=rt.Cpu())


def test_linear_operations_pass():
    for f, inputs in (
        (lambda x: rt.sum(x, axis=1), (t(3, 4),)),
        (lambda x: rt.cumulative_sum(x, axis=0), (t(3, 4),)),
        (lambda x: x[::-1, 1:], (t(3, 4),)),
        (lambda x, y: x - 2.0 * y, (t(3, 4), t(4))),
        (lambda x: rt.broadcast_to(x, (5, 3)), (t(3),)),
        (lambda d: {"a": d["x"] * 3.0, "b": rt.flip(d["x"])}, ({"x": t(2, 2)},)),
    ):
        assert check_adjoint(f, *inputs).max_error < 1e-14


def test_a_product_is_linear_in_one_factor():
    a, b = rt.ones((3, 4), dtype=rt.float64, device=rt.Cpu()), rt.ones((4, 2), dtype=rt.float64, device=rt.Cpu())
    check_adjoint(lambda a, b: a @ b, a, b, wrt="a")
    check_adjoint(lambda a, b: a @ b, a, b, wrt="b")
    with pytest.raises(NotLinear, match="wrt="):
        check_adjoint(lambda a, b: a @ b, a, b)


def test_what_is_not_linear_is_named():
    with pytest.raises(NotLinear, match=r"f\(0\) is not 0"):
        check_adjoint(lambda x: x + 1.0, t(3))
    with pytest.raises(NotLinear, match="a f"):
        check_adjoint(rt.sin, t(3))


@custom_gradient
def running_sum(x):
    return rt.cumulative_sum(x, axis=0), lambda g: rt.cumulative_sum(g, axis=0)  # its adjoint runs backwards


def test_a_rule_that_is_not_the_adjoint_is_caught():
    with pytest.raises(GradientMismatch, match="not the adjoint"):
        check_adjoint(running_sum, t(5))

    @custom_gradient
    def slightly(x):
        return x * 2.0, lambda g: g * (2.0 + 1e-12)

    with pytest.raises(GradientMismatch):
        check_adjoint(slightly, t(4))


def test_a_gradient_that_depends_on_the_point_is_caught():
    @custom_gradient
    def moody(x):
        return x * 2.0, lambda g: g * 2.0 + (g * x - g * x.sum() / x.size) * 0.0 + x * (g - g)

    check_adjoint(moody, t(4))

    @custom_gradient
    def moodier(x):
        # orthogonal to x, so that the dot products agree, and wrong all the same
        return x * 2.0, lambda g: g * 2.0 + rt.flip(x, axis=0) * rt.tensor([1.0, -1.0], dtype=x.dtype, device=x.device)

    with pytest.raises(GradientMismatch, match="must not depend on its point"):
        check_adjoint(moodier, t(2))


def test_a_missing_gradient_is_named():
    with pytest.raises(MissingGradient, match="'x'"):
        check_adjoint(lambda x: x.detach() * 2.0, t(3))


def test_directions_are_checked():
    with pytest.raises(ValueError, match="directions"):
        check_adjoint(lambda x: x, t(3), directions=0)
