"""Comparisons and what is chosen by them: where, maximum, minimum and clip.

Comparisons give bool and have no derivative. Where a choice ties, the shares of the gradient sum to one: `maximum` and
`minimum` give each side half, and `clip` gives a bound everything.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import BOOL, FLOATING, HALF, INTEGER, weak_result
from ..fusion.function import generate
from ..operation import Primitive, apply, binary
from ..tensor import Tensor
from ._common import as_tensor, cast, check_broadcast, floating, full_scalar, operands, pair, ready, scalar_of
from ._select import drop, keep, select

__all__ = [
    "clip", "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "maximum",
    "minimum", "not_equal", "signbit", "where", "where_safe",
]  # fmt: skip

_equal = Primitive("equal", lambda xp, x, y: xp.equal(x, y))
_not_equal = Primitive("not_equal", lambda xp, x, y: xp.not_equal(x, y))
_less = Primitive("less", lambda xp, x, y: xp.less(x, y))
_less_equal = Primitive("less_equal", lambda xp, x, y: xp.less_equal(x, y))
_greater = Primitive("greater", lambda xp, x, y: xp.greater(x, y))
_greater_equal = Primitive("greater_equal", lambda xp, x, y: xp.greater_equal(x, y))
_isnan = Primitive("isnan", lambda xp, x: xp.isnan(x))
_isinf = Primitive("isinf", lambda xp, x: xp.isinf(x))
_isfinite = Primitive("isfinite", lambda xp, x: xp.isfinite(x))
_signbit = Primitive("signbit", lambda xp, x: xp.signbit(x))

# op: (the same question with the operands exchanged, how a fractional number is made an integer that asks the same)
_EXCHANGED = {
    _equal: (_equal, math.floor), _not_equal: (_not_equal, math.floor), _less: (_greater, math.ceil),
    _less_equal: (_greater_equal, math.floor), _greater: (_less, math.floor), _greater_equal: (_less_equal, math.ceil),
}  # fmt: skip


def _compare(op: Primitive, x: Any, y: Any) -> Tensor:
    """Compare two operands; integers meet a Python number exactly, whatever its size or fraction."""
    if isinstance(x, Tensor) and x._data.dtype not in HALF and ready(x, y):  # next to a half type a number is rounded
        return binary(op, x, y)
    if not isinstance(x, Tensor) and isinstance(y, Tensor) and y._data.dtype in INTEGER and scalar_of(x) is not None:
        return _compare(_EXCHANGED[op][0], y, x)
    if isinstance(x, Tensor) and not isinstance(y, Tensor) and x._data.dtype in INTEGER:
        value = scalar_of(y)
        if value is not None:
            return _compare_integer(op, x, value)
    return apply(op, pair(x, y, op.name))


def _compare_integer(op: Primitive, x: Tensor, value: Any) -> Tensor:
    if isinstance(value, float) and math.isfinite(value):
        if value != math.floor(value) and op in (_equal, _not_equal):
            value = math.inf  # no integer equals a fraction
        else:
            value = _EXCHANGED[op][1](value)
    info = np.iinfo(x.dtype)
    if isinstance(value, float) or not info.min <= value <= info.max:
        answer = bool(op.forward(np, 0.0, float(value) if isinstance(value, float) else math.copysign(math.inf, value)))
        return _filled(x, answer)
    return apply(op, (x, full_scalar(int(value), x.dtype, x.device)))


def _filled(x: Tensor, answer: bool) -> Tensor:
    with x.device.guard():
        return Tensor._wrap(x.device.xp.full(x.shape, answer), x.device)


def equal(x: Any, y: Any, /) -> Tensor:
    """Return x == y elementwise, as bool.

    >>> import ruda_tensor as rt
    >>> rt.equal(rt.tensor([1, 2], device=rt.Cpu()), 2).numpy()
    array([False,  True])
    """
    return _compare(_equal, x, y)


def not_equal(x: Any, y: Any, /) -> Tensor:
    """Return x != y elementwise, as bool; NaN differs from everything.

    >>> import ruda_tensor as rt
    >>> rt.not_equal(rt.tensor([1, 2], device=rt.Cpu()), 2).numpy()
    array([ True, False])
    """
    return _compare(_not_equal, x, y)


def less(x: Any, y: Any, /) -> Tensor:
    """Return x < y elementwise, as bool.

    >>> import ruda_tensor as rt
    >>> rt.less(rt.tensor([1, 2], device=rt.Cpu()), 1.5).numpy()
    array([ True, False])
    """
    return _compare(_less, x, y)


def less_equal(x: Any, y: Any, /) -> Tensor:
    """Return x <= y elementwise, as bool.

    >>> import ruda_tensor as rt
    >>> rt.less_equal(rt.tensor([1, 2], device=rt.Cpu()), 1).numpy()
    array([ True, False])
    """
    return _compare(_less_equal, x, y)


def greater(x: Any, y: Any, /) -> Tensor:
    """Return x > y elementwise, as bool.

    >>> import ruda_tensor as rt
    >>> rt.greater(rt.tensor([1, 2], dtype=rt.uint8, device=rt.Cpu()), -1).numpy()
    array([ True,  True])
    """
    return _compare(_greater, x, y)


def greater_equal(x: Any, y: Any, /) -> Tensor:
    """Return x >= y elementwise, as bool.

    >>> import ruda_tensor as rt
    >>> rt.greater_equal(rt.tensor([1, 2], device=rt.Cpu()), 2).numpy()
    array([False,  True])
    """
    return _compare(_greater_equal, x, y)


def isnan(x: Any, /) -> Tensor:
    """Return whether each element is NaN (never for integers).

    >>> import ruda_tensor as rt
    >>> rt.isnan(rt.tensor([1.0, rt.nan], device=rt.Cpu())).numpy()
    array([False,  True])
    """
    return apply(_isnan, (floating(x, "isnan"),))


def isinf(x: Any, /) -> Tensor:
    """Return whether each element is +inf or -inf.

    >>> import ruda_tensor as rt
    >>> rt.isinf(rt.tensor([1.0, -rt.inf], device=rt.Cpu())).numpy()
    array([False,  True])
    """
    return apply(_isinf, (floating(x, "isinf"),))


def isfinite(x: Any, /) -> Tensor:
    """Return whether each element is neither NaN nor infinite.

    >>> import ruda_tensor as rt
    >>> rt.isfinite(rt.tensor([1.0, rt.inf, rt.nan], device=rt.Cpu())).numpy()
    array([ True, False, False])
    """
    return apply(_isfinite, (floating(x, "isfinite"),))


def signbit(x: Any, /) -> Tensor:
    """Return whether the sign bit of each float is set: it is for -0.0.

    >>> import ruda_tensor as rt
    >>> rt.signbit(rt.tensor([0.0, -0.0, -2.0], device=rt.Cpu())).numpy()
    array([False,  True,  True])
    """
    return apply(_signbit, (floating(x, "signbit"),))


def where(condition: Any, x: Any, y: Any, /) -> Tensor:
    """Return x where the condition holds and y elsewhere, all three broadcast.

    The gradient of the operand that was not chosen is zero. A zero gradient that then meets an infinite slope
    upstream is 0 * inf = NaN: `where(x > 0, sqrt(x), 0)` has a NaN gradient at x = 0. Use `where_safe` there.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([-1.0, 2.0], device=rt.Cpu())
    >>> rt.where(x > 0, x, 0.0).numpy()
    array([0., 2.], dtype=float32)
    """
    if not isinstance(condition, Tensor):
        operand = next((t for t in (x, y) if isinstance(t, Tensor)), None)
        if operand is not None and isinstance(scalar_of(condition), bool):
            condition = full_scalar(condition, BOOL, operand.device)
        condition = as_tensor(condition, operand, "where")
    if condition._data.dtype != BOOL:
        raise TypeError(f"where: the condition must be bool, got {condition.dtype}; write rt.where(c != 0, x, y)")
    for tensor, number, choose_one in ((x, y, keep), (y, x, drop)):
        if isinstance(tensor, Tensor) and _is_zero(number, tensor):
            check_broadcast(condition.shape, tensor.shape, "where")
            return choose_one(tensor, condition)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        x = _number_or_tensor(x, condition)
    x, y = pair(x, y, "where")
    if condition.shape != x.shape or condition.shape != y.shape:
        check_broadcast(condition.shape, x.shape, "where")
        check_broadcast(condition.shape, y.shape, "where")
    return apply(select, (condition, x, y))


def _is_zero(y: Any, x: Tensor) -> bool:
    """True for the number +0 next to a tensor whose dtype it would take."""
    if type(y) is float:
        return y == 0.0 and math.copysign(1.0, y) > 0.0 and x._data.dtype in FLOATING
    return type(y) is int and y == 0 and x._data.dtype is not BOOL


def _number_or_tensor(x: Any, like: Tensor) -> Tensor:
    """A number as a 0-d tensor of its default dtype on the device of `like`."""
    value = scalar_of(x)
    if value is None:
        return as_tensor(x, like, "where")
    return full_scalar(value, weak_result(BOOL, value, like.device.float_dtype, like.device.int_dtype), like.device)


def where_safe(
    condition: Any, f: Callable[[Tensor], Tensor], x: Tensor, otherwise: Any = 0.0, *, harmless: Any = 1.0
) -> Tensor:
    """Return f(x) where the condition holds and `otherwise` elsewhere, with no NaN or inf from where it does not.

    f is evaluated at `harmless` (1 by default, a smooth point of most functions) instead of x where the condition does
    not hold, so both its value and its slope are finite there and the gradient is exact everywhere. `otherwise` is a
    number, a tensor, or a function of x.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([-1.0, 0.0, 4.0], device=rt.Cpu())
    >>> rt.where_safe(x > 0, rt.sqrt, x, lambda x: 3.0 * x).numpy()
    array([-3.,  0.,  2.], dtype=float32)
    """
    other = otherwise(x) if callable(otherwise) else otherwise
    return where(condition, f(where(condition, x, harmless)), other)


def _tie_share(g: Tensor, larger: Tensor, tie: Tensor) -> Tensor:
    """The gradient of one side of a maximum or minimum: all where it wins, half on a tie."""
    return keep(g, larger) + keep(g * 0.5, tie)


_maximum = Primitive(
    "maximum",
    lambda xp, x, y: xp.maximum(x, y),
    dx=lambda g, x, y: _tie_share(g, greater(x, y), equal(x, y)),
    dy=lambda g, x, y: _tie_share(g, less(x, y), equal(x, y)),
)
_minimum = Primitive(
    "minimum",
    lambda xp, x, y: xp.minimum(x, y),
    dx=lambda g, x, y: _tie_share(g, less(x, y), equal(x, y)),
    dy=lambda g, x, y: _tie_share(g, greater(x, y), equal(x, y)),
)


def maximum(x: Any, y: Any, /) -> Tensor:
    """Return the larger of x and y elementwise; NaN if either is. On a tie each side gets half of the gradient.

    >>> import ruda_tensor as rt
    >>> rt.maximum(rt.tensor([1.0, 5.0], device=rt.Cpu()), 3.0).numpy()
    array([3., 5.], dtype=float32)
    """
    return binary(_maximum, *(x, y) if ready(x, y) else operands(x, y, "maximum"))


def minimum(x: Any, y: Any, /) -> Tensor:
    """Return the smaller of x and y elementwise; NaN if either is. On a tie each side gets half of the gradient.

    >>> import ruda_tensor as rt
    >>> rt.minimum(rt.tensor([1.0, 5.0], device=rt.Cpu()), 3.0).numpy()
    array([1., 3.], dtype=float32)
    """
    return binary(_minimum, *(x, y) if ready(x, y) else operands(x, y, "minimum"))


def _clip_forward(xp: Any, x: Any, low: Any, high: Any) -> Any:
    # Not xp.clip: CuPy's returns low where low > high.
    raised = x if low is None else xp.maximum(x, low)
    return raised if high is None else xp.minimum(raised, high)


def _inside(x: Tensor, low: Any, high: Any) -> Tensor:
    """Where clip passes x on: strictly between the bounds."""
    if low is None or high is None:
        return less(x, high) if low is None else greater(x, low)
    return apply(_both, (greater(x, low), less(x, high)))


_both = Primitive("both", lambda xp, x, y: xp.logical_and(x, y))


def _at_low(x: Tensor, low: Any, high: Any) -> Tensor:
    at = less_equal(x, low)
    return at if high is None else apply(_both, (at, less(low, high)))


def _at_high(x: Tensor, low: Any, high: Any) -> Tensor:
    return greater_equal(x if low is None else maximum(x, low), high)


_clip = Primitive(
    "clip",
    _clip_forward,
    dx=lambda g, x, low, high: keep(g, _inside(x, low, high)),
    dlow=lambda g, x, low, high: keep(g, _at_low(x, low, high)),
    dhigh=lambda g, x, low, high: keep(g, _at_high(x, low, high)),
)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Tensor:
    """Return x limited to [min, max]; None is no limit, min > max gives max, NaN stays NaN.

    The slope by x is 1 strictly between the bounds and 0 at and beyond them, where a tracked bound gets the gradient.

    >>> import ruda_tensor as rt
    >>> rt.clip(rt.tensor([-2.0, 0.5, 9.0], device=rt.Cpu()), 0.0, 1.0).numpy()
    array([0. , 0.5, 1. ], dtype=float32)
    """
    x = as_tensor(x, next((t for t in (min, max) if isinstance(t, Tensor)), None), "clip")
    if x.dtype in INTEGER:
        min, max = _reachable(x.dtype, min, False), _reachable(x.dtype, max, True)
    if min is None and max is None:
        return x
    x, low = _bound(x, min)
    x, high = _bound(x, max)
    if isinstance(low, Tensor):
        low = cast(low, x.dtype)
        if isinstance(high, Tensor):
            check_broadcast(low.shape, high.shape, "clip")
    return generate(_clip, (x, low, high))


def _bound(x: Tensor, bound: Any) -> tuple[Tensor, Any]:
    """`x` and a bound of one dtype; a plain number next to floats stays one."""
    if bound is None or ((type(bound) is float or type(bound) is int) and x._data.dtype in FLOATING):
        return x, bound
    return pair(x, bound, "clip")


def _reachable(dtype: np.dtype, bound: Any, upper: bool) -> Any:
    """None for a bound that no integer of the dtype can pass."""
    value = scalar_of(bound)
    if value is None or isinstance(value, float):
        return bound
    info = np.iinfo(dtype)
    return None if (value >= info.max if upper else value <= info.min) else value
