"""A module's fields are checked where it is made."""
from __future__ import annotations

import pytest

import ruda_tensor as rt
from ruda_nn import Linear, Module, Param


class Scale(Module):
    factor: Param

    def forward(self, x):
        return x * self.factor


def test_a_tracked_tensor_is_no_parameter():
    with pytest.raises(TypeError, match="no optimizer would find.*Param"):
        Scale(factor=rt.ones(2, device=rt.Cpu()).require_grad())  # type: ignore[arg-type]
    assert Scale(factor=Param(rt.ones(2, device=rt.Cpu()))).num_params() == 2


def test_settings_are_not_layers():
    with pytest.raises(TypeError, match="LinearConfig"):
        Linear(2, 1)  # type: ignore[arg-type]
