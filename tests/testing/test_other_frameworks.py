"""check_vjp on functions of other frameworks: PyTorch where it is installed, and anything that speaks DLPack."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff.testing import GradientMismatch, check_vjp
from ruda_autodiff.testing.foreign import to_numpy


def test_a_pytorch_function(rng):
    torch = pytest.importorskip("torch")

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return ctx.factor * x**2 * g, None

    def vjp_with(factor):
        def vjp(g, x):
            x = x.requires_grad_()
            return torch.autograd.grad(Cube.apply(x, factor), x, g)

        return vjp

    x = torch.tensor(rng.standard_normal((3, 2)))
    report = check_vjp(lambda x: x**3, vjp_with(3.0), x)
    assert report.entries == 36
    with pytest.raises(GradientMismatch, match="off by a factor of 1.01"):
        check_vjp(lambda x: x**3, vjp_with(3.03), x)


def test_a_pytorch_result_on_its_tape_and_several_arguments(rng):
    torch = pytest.importorskip("torch")
    linear = torch.nn.functional.linear

    def vjp(g, x, w):
        x, w = x.requires_grad_(), w.requires_grad_()
        return torch.autograd.grad(linear(x, w), (x, w), g)

    x, w = torch.tensor(rng.standard_normal((4, 3))), torch.tensor(rng.standard_normal((2, 3)))
    check_vjp(lambda x, w: linear(x.requires_grad_(), w), vjp, x, w)


def test_functions_of_tensors_of_this_library(rng):
    x = rt.tensor(rng.standard_normal((2, 3)), device=rt.Cpu())
    check_vjp(rt.sin, lambda g, x: (g * rt.cos(x),), x)
    with pytest.raises(GradientMismatch, match="sign"):
        check_vjp(rt.cos, lambda g, x: (g * rt.sin(x),), x)


class Box:
    """The least that a framework can be: a class that gives its memory by DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_anything_with_dlpack_and_a_way_back(rng):
    x = Box(rng.standard_normal(4))
    check_vjp(lambda x: Box(np.sin(x.array)), lambda g, x: (Box(g.array * np.cos(x.array)),), x, convert=Box)
    assert to_numpy(Box(np.arange(3.0))).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="convert="):
        check_vjp(lambda x: x, lambda g, x: (g,), x)
