"""Bits of integers, and truth values."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import BOOL, INTEGER
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, pair

__all__ = [
    "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "logical_and", "logical_not", "logical_or", "logical_xor",
]  # fmt: skip

_and = Primitive("bitwise_and", lambda xp, x, y: xp.bitwise_and(x, y))
_or = Primitive("bitwise_or", lambda xp, x, y: xp.bitwise_or(x, y))
_xor = Primitive("bitwise_xor", lambda xp, x, y: xp.bitwise_xor(x, y))
_invert = Primitive("bitwise_invert", lambda xp, x: xp.invert(x))
_logical_and = Primitive("logical_and", lambda xp, x, y: xp.logical_and(x, y))
_logical_or = Primitive("logical_or", lambda xp, x, y: xp.logical_or(x, y))
_logical_xor = Primitive("logical_xor", lambda xp, x, y: xp.logical_xor(x, y))
_logical_not = Primitive("logical_not", lambda xp, x: xp.logical_not(x))


def _left(xp: Any, x: Any, y: Any) -> Any:
    # Shifting by the width or more is undefined in C, so CuPy's result would be: shift in two halves that are not.
    return xp.where(y < 8 * x.itemsize, xp.left_shift(x, xp.minimum(y, 8 * x.itemsize - 1)), x.dtype.type(0))


def _right(xp: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind == "u":
        return xp.where(y < 8 * x.itemsize, xp.right_shift(x, xp.minimum(y, 8 * x.itemsize - 1)), x.dtype.type(0))
    return xp.right_shift(x, xp.minimum(y, 8 * x.itemsize - 1))  # the sign fills up


_left_shift = Primitive("bitwise_left_shift", _left)
_right_shift = Primitive("bitwise_right_shift", _right)


def _bits(x: Tensor, name: str, bools: bool) -> Tensor:
    if x.dtype not in INTEGER and not (bools and x.dtype == BOOL):
        what = "integers or bools" if bools else "integers"
        raise TypeError(f"{name}: needs {what}, got {x.dtype}; convert first: x.astype(rt.int32)")
    return x


def _binary(op: Primitive, x: Any, y: Any, bools: bool = True) -> Tensor:
    for operand in (x, y):
        if isinstance(operand, Tensor):
            _bits(operand, op.name, bools)
    x, y = pair(x, y, op.name)
    return apply(op, (_bits(x, op.name, bools), y))


def bitwise_and(x: Any, y: Any, /) -> Tensor:
    """Return x & y elementwise, for integers or bools.

    >>> import ruda_tensor as rt
    >>> rt.bitwise_and(rt.tensor([12, 10], device=rt.Cpu()), 6).numpy()
    array([4, 2], dtype=int32)
    """
    return _binary(_and, x, y)


def bitwise_or(x: Any, y: Any, /) -> Tensor:
    """Return x | y elementwise, for integers or bools.

    >>> import ruda_tensor as rt
    >>> rt.bitwise_or(rt.tensor([12, 10], device=rt.Cpu()), 6).numpy()
    array([14, 14], dtype=int32)
    """
    return _binary(_or, x, y)


def bitwise_xor(x: Any, y: Any, /) -> Tensor:
    """Return x ^ y elementwise, for integers or bools.

    >>> import ruda_tensor as rt
    >>> rt.bitwise_xor(rt.tensor([12, 10], device=rt.Cpu()), 6).numpy()
    array([10, 12], dtype=int32)
    """
    return _binary(_xor, x, y)


def bitwise_invert(x: Any, /) -> Tensor:
    """Return ~x elementwise: every bit of an integer, or the truth of a bool, turned over.

    >>> import ruda_tensor as rt
    >>> rt.bitwise_invert(rt.tensor([0, 5], device=rt.Cpu())).numpy()
    array([-1, -6], dtype=int32)
    """
    return apply(_invert, (_bits(as_tensor(x, None, "bitwise_invert"), "bitwise_invert", True),))


def bitwise_left_shift(x: Any, y: Any, /) -> Tensor:
    """Return x * 2^y elementwise by moving bits; those that leave the width of the dtype are lost.

    >>> import ruda_tensor as rt
    >>> rt.bitwise_left_shift(rt.tensor([1, 3], device=rt.Cpu()), 2).numpy()
    array([ 4, 12], dtype=int32)
    """
    return _shift(_left_shift, x, y)


def bitwise_right_shift(x: Any, y: Any, /) -> Tensor:
    """Return floor(x / 2^y) elementwise by moving bits; the sign stays.

    >>> import ruda_tensor as rt
    >>> rt.bitwise_right_shift(rt.tensor([12, -3], device=rt.Cpu()), 1).numpy()
    array([ 6, -2], dtype=int32)
    """
    return _shift(_right_shift, x, y)


def _shift(op: Primitive, x: Any, y: Any) -> Tensor:
    if isinstance(y, (int, np.integer)) and y < 0:
        raise ValueError(f"{op.name}: the shift {y} is negative; shift the other way by {-y}")
    return _binary(op, x, y, bools=False)




def logical_and(x: Any, y: Any, /) -> Tensor:
    """Return whether both x and y are true (not zero) elementwise.

    >>> import ruda_tensor as rt
    >>> rt.logical_and(rt.tensor([True, False], device=rt.Cpu()), True).numpy()
    array([ True, False])
    """
    return apply(_logical_and, pair(x, y, "logical_and"))


def logical_or(x: Any, y: Any, /) -> Tensor:
    """Return whether x or y or both are true (not zero) elementwise.

    >>> import ruda_tensor as rt
    >>> rt.logical_or(rt.tensor([True, False], device=rt.Cpu()), False).numpy()
    array([ True, False])
    """
    return apply(_logical_or, pair(x, y, "logical_or"))


def logical_xor(x: Any, y: Any, /) -> Tensor:
    """Return whether exactly one of x and y is true (not zero) elementwise.

    >>> import ruda_tensor as rt
    >>> rt.logical_xor(rt.tensor([True, False], device=rt.Cpu()), True).numpy()
    array([False,  True])
    """
    return apply(_logical_xor, pair(x, y, "logical_xor"))


def logical_not(x: Any, /) -> Tensor:
    """Return whether x is false (zero) elementwise.

    >>> import ruda_tensor as rt
    >>> rt.logical_not(rt.tensor([True, False], device=rt.Cpu())).numpy()
    array([False,  True])
    """
    return apply(_logical_not, (as_tensor(x, None, "logical_not"),))
