"""Activation functions."""
from __future__ import annotations

from typing import Any

from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import floating
from .arithmetic import numeric
from .compare import where

__all__ = ["relu", "sigmoid"]


def _sigmoid_forward(xp: Any, x: Any) -> Any:
    # 1 / (1 + e^-x) = (1 + tanh(x / 2)) / 2, which never overflows
    return xp.tanh(x * 0.5) * 0.5 + 0.5


_sigmoid = Primitive("sigmoid", _sigmoid_forward, dx=lambda g, out: g * (out * (1.0 - out)))
_relu = Primitive("relu", lambda xp, x: xp.maximum(x, 0), dx=lambda g, out: where(out > 0, g, 0.0))


def sigmoid(x: Any, /) -> Tensor:
    """Return 1 / (1 + exp(-x)) elementwise.

    >>> import ruda_tensor as rt
    >>> rt.sigmoid(rt.tensor([-1000.0, 0.0, 1000.0], device=rt.Cpu())).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    return apply(_sigmoid, (floating(x, "sigmoid"),))


def relu(x: Any, /) -> Tensor:
    """Return max(x, 0) elementwise; the slope at 0 is 0, and NaN stays NaN.

    >>> import ruda_tensor as rt
    >>> rt.relu(rt.tensor([-1.0, 2.0], device=rt.Cpu())).numpy()
    array([0., 2.], dtype=float32)
    """
    return apply(_relu, (numeric(x, "relu"),))
