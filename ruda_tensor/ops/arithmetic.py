"""Arithmetic between tensors and numbers: the operators, and what the array API adds to them."""
from __future__ import annotations

from typing import Any

from ..dtypes import FLOATING
from ..operation import Primitive, apply, binary
from ..tensor import Tensor
from ._common import cast, pair

__all__ = ["add", "divide", "multiply", "negative", "subtract"]

_add = Primitive("add", lambda xp, x, y: xp.add(x, y), dx=lambda g: g, dy=lambda g: g)
_subtract = Primitive("subtract", lambda xp, x, y: xp.subtract(x, y), dx=lambda g: g, dy=lambda g: -g)
_multiply = Primitive("multiply", lambda xp, x, y: xp.multiply(x, y), dx=lambda g, y: g * y, dy=lambda g, x: g * x)
_divide = Primitive(
    "divide", lambda xp, x, y: xp.true_divide(x, y), dx=lambda g, y: g / y, dy=lambda g, y, out: -(g * out / y)
)
_negative = Primitive("negative", lambda xp, x: xp.negative(x), dx=lambda g: -g)


def _ready(x: Any, y: Any) -> bool:
    """True where two operands need no preparation: equal shapes and dtypes, or a Python number with a float tensor."""
    if isinstance(x, Tensor):
        if isinstance(y, Tensor):
            return x._data.dtype is y._data.dtype and x._data.shape == y._data.shape
        return (type(y) is float or type(y) is int) and x._data.dtype in FLOATING
    return (type(x) is float or type(x) is int) and isinstance(y, Tensor) and y._data.dtype in FLOATING


def add(x: Any, y: Any) -> Tensor:
    """Return x + y elementwise, broadcasting.

    >>> import ruda_tensor as rt
    >>> rt.add(rt.tensor([1.0, 2.0], device=rt.Cpu()), 10.0).numpy()
    array([11., 12.], dtype=float32)
    """
    if not _ready(x, y):
        x, y = pair(x, y, "add")
    return binary(_add, x, y)


def subtract(x: Any, y: Any) -> Tensor:
    """Return x - y elementwise, broadcasting.

    >>> import ruda_tensor as rt
    >>> rt.subtract(rt.tensor([1.0, 2.0], device=rt.Cpu()), 10.0).numpy()
    array([-9., -8.], dtype=float32)
    """
    if not _ready(x, y):
        x, y = pair(x, y, "subtract")
    return binary(_subtract, x, y)


def multiply(x: Any, y: Any) -> Tensor:
    """Return x * y elementwise, broadcasting.

    >>> import ruda_tensor as rt
    >>> rt.multiply(rt.tensor([1.0, 2.0], device=rt.Cpu()), 10.0).numpy()
    array([10., 20.], dtype=float32)
    """
    if not _ready(x, y):
        x, y = pair(x, y, "multiply")
    return binary(_multiply, x, y)


def divide(x: Any, y: Any) -> Tensor:
    """Return x / y elementwise, broadcasting; integers are divided as floats.

    >>> import ruda_tensor as rt
    >>> rt.divide(rt.tensor([1, 2], device=rt.Cpu()), 4).numpy()
    array([0.25, 0.5 ], dtype=float32)
    """
    if not _ready(x, y):
        x, y = pair(x, y, "divide")
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x._data.dtype not in FLOATING:
        x, y = cast(x, x.device.float_dtype), cast(y, y.device.float_dtype)
    return binary(_divide, x, y)


def negative(x: Tensor) -> Tensor:
    """Return -x elementwise.

    >>> import ruda_tensor as rt
    >>> rt.negative(rt.tensor([1.0, -2.0], device=rt.Cpu())).numpy()
    array([-1.,  2.], dtype=float32)
    """
    return apply(_negative, (x,))
