"""Arithmetic between tensors and numbers: the operators, and what the array API adds to them.

Functions that are constant in pieces (sign, floor, round, floor_divide ...) have the gradient zero, not none.
"""
from __future__ import annotations

from typing import Any

from ..dtypes import BOOL, FLOAT32, FLOATING, HALF, INTEGER, UNSIGNED, promote_types
from ..operation import Primitive, apply, binary
from ..recording import capturing
from ..tensor import Tensor
from . import transcendental
from ._common import as_tensor, beside_half, cast, floating, operands, pair, ready, scalar_of
from ._numbers import neighbour, rest, sign_or_nan, whole_quotient
from .compare import signbit, where

__all__ = [
    "abs", "add", "ceil", "copysign", "divide", "floor", "floor_divide", "lerp", "multiply", "negative", "nextafter",
    "positive", "pow", "reciprocal", "remainder", "round", "sign", "square", "subtract", "trunc",
]  # fmt: skip

_add = Primitive("add", lambda xp, x, y: xp.add(x, y), dx=lambda g: g, dy=lambda g: g)
_subtract = Primitive("subtract", lambda xp, x, y: xp.subtract(x, y), dx=lambda g: g, dy=lambda g: -g)
_multiply = Primitive("multiply", lambda xp, x, y: xp.multiply(x, y), dx=lambda g, y: g * y, dy=lambda g, x: g * x)
_divide = Primitive(
    "divide", lambda xp, x, y: xp.true_divide(x, y), poles=True, dx=lambda g, y: g / y, dy=lambda g, y, out: -(g * out / y)
)
_divide_by_number = Primitive(  # a number has no gradient, and is no pole, so no care is taken for one
    "divide", lambda xp, x, y: xp.true_divide(x, y), dx=lambda g, y: g / y
)


def add(x: Any, y: Any) -> Tensor:
    """Return x + y elementwise, broadcasting.

    >>> import ruda_tensor as rt
    >>> rt.add(rt.tensor([1.0, 2.0], device=rt.Cpu()), 10.0).numpy()
    array([11., 12.], dtype=float32)
    """
    if not ready(x, y):
        x, y = operands(x, y, "add")
    return binary(_add, x, y)


def subtract(x: Any, y: Any) -> Tensor:
    """Return x - y elementwise, broadcasting. Errors: TypeError for two bools, whose difference is x ^ y.

    >>> import ruda_tensor as rt
    >>> rt.subtract(rt.tensor([1.0, 2.0], device=rt.Cpu()), 10.0).numpy()
    array([-9., -8.], dtype=float32)
    """
    if not ready(x, y):
        x, y = operands(x, y, "subtract")
    if isinstance(x, Tensor) and x._data.dtype is BOOL:
        numeric(x, "subtract")
    return binary(_subtract, x, y)


def multiply(x: Any, y: Any) -> Tensor:
    """Return x * y elementwise, broadcasting.

    >>> import ruda_tensor as rt
    >>> rt.multiply(rt.tensor([1.0, 2.0], device=rt.Cpu()), 10.0).numpy()
    array([10., 20.], dtype=float32)
    """
    if not ready(x, y):
        x, y = operands(x, y, "multiply")
    return binary(_multiply, x, y)


def divide(x: Any, y: Any) -> Tensor:
    """Return x / y elementwise, broadcasting; integers are divided as floats.

    >>> import ruda_tensor as rt
    >>> rt.divide(rt.tensor([1, 2], device=rt.Cpu()), 4).numpy()
    array([0.25, 0.5 ], dtype=float32)
    """
    if not ready(x, y):
        x, y = operands(x, y, "divide")
    if isinstance(x, Tensor) and isinstance(y, Tensor) and x._data.dtype not in FLOATING:
        x, y = cast(x, x.device.float_dtype), cast(y, y.device.float_dtype)
    return binary(_divide if isinstance(y, Tensor) or y == 0 else _divide_by_number, x, y)


_negative = Primitive("negative", lambda xp, x: xp.negative(x), dx=lambda g: -g)


def negative(x: Any, /) -> Tensor:
    """Return -x elementwise.

    >>> import ruda_tensor as rt
    >>> rt.negative(rt.tensor([1.0, -2.0], device=rt.Cpu())).numpy()
    array([-1.,  2.], dtype=float32)
    """
    return apply(_negative, (numeric(x, "negative"),))


def numeric(x: Any, name: str) -> Tensor:
    """Return `x` as a tensor of numbers; bools are refused, for their arithmetic is not that of numbers."""
    x = as_tensor(x, None, name)
    if x._data.dtype == BOOL:
        raise TypeError(f"{name}: needs numbers, got bool; convert first: x.astype(rt.int32)")
    return x


def positive(x: Any, /) -> Tensor:
    """Return +x, which is x itself.

    >>> import ruda_tensor as rt
    >>> rt.positive(rt.tensor([1.0, -2.0], device=rt.Cpu())).numpy()
    array([ 1., -2.], dtype=float32)
    """
    return numeric(x, "positive")


_abs = Primitive("abs", lambda xp, x: xp.abs(x), dx=lambda g, x: g * sign(x))


def abs(x: Any, /) -> Tensor:
    """Return |x| elementwise; the slope at 0 is 0.

    >>> import ruda_tensor as rt
    >>> rt.abs(rt.tensor([1.0, -2.0], device=rt.Cpu())).numpy()
    array([1., 2.], dtype=float32)
    """
    return apply(_abs, (numeric(x, "abs"),))


_square = Primitive("square", lambda xp, x: xp.multiply(x, x), dx=lambda g, x: g * (x * 2.0))


def square(x: Any, /) -> Tensor:
    """Return x * x elementwise.

    >>> import ruda_tensor as rt
    >>> rt.square(rt.tensor([3, -2], device=rt.Cpu())).numpy()
    array([9, 4], dtype=int32)
    """
    return apply(_square, (numeric(x, "square"),))


_reciprocal = Primitive("reciprocal", lambda xp, x: xp.true_divide(1.0, x), poles=True, dx=lambda g, out: -(g * out * out))


def reciprocal(x: Any, /) -> Tensor:
    """Return 1 / x elementwise, as a float.

    >>> import ruda_tensor as rt
    >>> rt.reciprocal(rt.tensor([2, 4], device=rt.Cpu())).numpy()
    array([0.5 , 0.25], dtype=float32)
    """
    return apply(_reciprocal, (floating(x, "reciprocal"),))


def _by_squaring(xp: Any, x: Any, *, n: int) -> Any:
    """x**n by repeated multiplication, exact where the product is; NumPy's own power takes a logarithm."""
    if n <= 0 or (n > 64 and x.dtype.kind == "f"):
        return xp.ones_like(x) if n == 0 else xp.power(x, float(n))
    out, factor = None, x
    while n:
        if n & 1:
            out = factor if out is None else out * factor
        n >>= 1
        if n:
            factor = factor * factor
    return out.copy() if out is x else out  # type: ignore[union-attr]


_power_int = Primitive(
    "pow",
    _by_squaring,
    poles=True,
    dx=lambda g, x, n: zeros_of(g) if n == 0 else g * (apply(_power_int, (x,), {"n": n - 1}) * float(n)),
)
_power_number = Primitive(
    "pow",
    lambda xp, x, *, p: xp.power(x, p),
    poles=True,
    dx=lambda g, x, p: g * (apply(_power_number, (x,), {"p": p - 1.0}) * p),
)
_power = Primitive(
    "pow",
    lambda xp, x, y: xp.power(x, y),
    poles=True,
    # 0 * 0**-1 is NaN: where base and exponent are both zero the slope is that of the constant x**0
    dx=lambda g, x, y: g * (y * pow(x, where(_both_zero(x, y), 1.0, y - 1.0))),
    # x**y has no derivative by y for a negative base, and 0**y log(0) is the limit 0 of 0**y for y > 0
    dy=lambda g, x, y, out: g * where(x <= 0, 0.0, out * transcendental.log(where(x <= 0, 1.0, x))),
)


def _both_zero(x: Tensor, y: Tensor) -> Tensor:
    return (x == 0) & (y == 0)


def zeros_of(g: Tensor) -> Tensor:
    """The zero gradient of a function that is constant in pieces."""
    from ..creation import zeros_like

    return zeros_like(g)


def pow(x: Any, y: Any, /) -> Tensor:
    """Return x to the power y elementwise, broadcasting.

    d/dx = y x^(y-1), which is 0 for y = 0 even at x = 0; d/dy = x^y log x, and 0 where x <= 0. A Python exponent
    that is a whole number is raised by repeated multiplication: x**2 and x**4 cost one and two.

    Errors: ValueError for integers to a negative power (checking a tensor of exponents on a GPU waits for it; in a
    captured step nothing can wait, and the result there means nothing).

    >>> import ruda_tensor as rt
    >>> rt.pow(rt.tensor([-2.0, 3.0], device=rt.Cpu()), 3).numpy()
    array([-8., 27.], dtype=float32)
    """
    number = scalar_of(y) if isinstance(x, Tensor) and not isinstance(y, Tensor) else None
    if number is not None:
        return _power_of_number(x, number)
    x, y = pair(x, y, "pow")
    numeric(x, "pow")
    looks = x.dtype in INTEGER and x.dtype not in UNSIGNED and not (x.device.launches and capturing())
    if looks and bool((y._data < 0).any()):
        raise ValueError(_NEGATIVE_POWER)
    return apply(_power, (x, y))


_NEGATIVE_POWER = "pow: integers have no negative integer powers; convert first: x.astype(rt.float32) ** y"


def _power_of_number(x: Tensor, number: Any) -> Tensor:
    if x._data.dtype not in FLOATING:
        x = floating(x, "pow") if isinstance(number, float) else cast(x, x.device.int_dtype) if x.dtype == BOOL else x
        if number < 0 and x.dtype in INTEGER:
            raise ValueError(_NEGATIVE_POWER)
    if number == 2:
        return apply(_square, (x,))
    if x.dtype in INTEGER or (-1024 <= number <= 1024 and float(number).is_integer()):
        return apply(_power_int, (x,), {"n": int(number)})
    return apply(_power_number, (x,), {"p": float(number)})


_floor_divide = Primitive("floor_divide", whole_quotient, poles=True, dx=lambda g: zeros_of(g), dy=lambda g: zeros_of(g))
_remainder = Primitive(
    "remainder", rest, poles=True, dx=lambda g: g, dy=lambda g, x, y: -(g * floor_divide(x, y))
)


def floor_divide(x: Any, y: Any, /) -> Tensor:
    """Return floor(x / y) elementwise, broadcasting; the gradient is zero.

    >>> import ruda_tensor as rt
    >>> rt.floor_divide(rt.tensor([7, -7], device=rt.Cpu()), 2).numpy()
    array([ 3, -4], dtype=int32)
    """
    if (found := beside_half(floor_divide, x, y)) is not None:
        return found
    x, y = pair(x, y, "floor_divide")
    return apply(_floor_divide, (numeric(x, "floor_divide"), y))


def remainder(x: Any, y: Any, /) -> Tensor:
    """Return x - floor(x / y) * y elementwise, with the sign of y; d/dx = 1, d/dy = -floor(x / y).

    >>> import ruda_tensor as rt
    >>> rt.remainder(rt.tensor([7, -7], device=rt.Cpu()), 4).numpy()
    array([3, 1], dtype=int32)
    """
    if (found := beside_half(remainder, x, y)) is not None:
        return found
    x, y = pair(x, y, "remainder")
    return apply(_remainder, (numeric(x, "remainder"), y))


_sign = Primitive("sign", sign_or_nan, dx=lambda g: zeros_of(g))
_floor = Primitive("floor", lambda xp, x: xp.floor(x), dx=lambda g: zeros_of(g))
_ceil = Primitive("ceil", lambda xp, x: xp.ceil(x), dx=lambda g: zeros_of(g))
_trunc = Primitive("trunc", lambda xp, x: xp.trunc(x), dx=lambda g: zeros_of(g))
_round = Primitive("round", lambda xp, x: xp.rint(x), dx=lambda g: zeros_of(g))


def sign(x: Any, /) -> Tensor:
    """Return -1, 0 or 1 elementwise, and NaN for NaN; the gradient is zero.

    >>> import ruda_tensor as rt
    >>> rt.sign(rt.tensor([-3.0, 0.0, 2.0], device=rt.Cpu())).numpy()
    array([-1.,  0.,  1.], dtype=float32)
    """
    return apply(_sign, (numeric(x, "sign"),))


def _whole(op: Primitive, x: Any) -> Tensor:
    """Round floats; integers are whole already."""
    x = numeric(x, op.name)
    return apply(op, (x,)) if x._data.dtype in FLOATING else x


def floor(x: Any, /) -> Tensor:
    """Return the largest whole number <= x elementwise; the gradient is zero.

    >>> import ruda_tensor as rt
    >>> rt.floor(rt.tensor([-1.5, 1.5], device=rt.Cpu())).numpy()
    array([-2.,  1.], dtype=float32)
    """
    return _whole(_floor, x)


def ceil(x: Any, /) -> Tensor:
    """Return the smallest whole number >= x elementwise; the gradient is zero.

    >>> import ruda_tensor as rt
    >>> rt.ceil(rt.tensor([-1.5, 1.5], device=rt.Cpu())).numpy()
    array([-1.,  2.], dtype=float32)
    """
    return _whole(_ceil, x)


def trunc(x: Any, /) -> Tensor:
    """Return x without its fraction elementwise; the gradient is zero.

    >>> import ruda_tensor as rt
    >>> rt.trunc(rt.tensor([-1.5, 1.5], device=rt.Cpu())).numpy()
    array([-1.,  1.], dtype=float32)
    """
    return _whole(_trunc, x)


def round(x: Any, /) -> Tensor:
    """Return the nearest whole number elementwise, halves to the even one; the gradient is zero.

    >>> import ruda_tensor as rt
    >>> rt.round(rt.tensor([0.5, 1.5, -2.7], device=rt.Cpu())).numpy()
    array([ 0.,  2., -3.], dtype=float32)
    """
    return _whole(_round, x)


_copysign = Primitive(
    "copysign",
    lambda xp, x, y: xp.copysign(x, y),
    dx=lambda g, x, y: g * sign(x) * where(signbit(y), -1.0, 1.0),
    dy=lambda g: zeros_of(g),
)


def copysign(x: Any, y: Any, /) -> Tensor:
    """Return |x| with the sign of y elementwise; d/dx = +-1 (0 at x = 0), d/dy = 0.

    >>> import ruda_tensor as rt
    >>> rt.copysign(rt.tensor([1.0, -2.0], device=rt.Cpu()), -1.0).numpy()
    array([-1., -2.], dtype=float32)
    """
    x, y = pair(x, y, "copysign")
    return apply(_copysign, (floating(x, "copysign"), floating(y, "copysign")))


_nextafter = Primitive("nextafter", neighbour, half="storage", dx=lambda g: g, dy=lambda g: zeros_of(g))


def nextafter(x: Any, y: Any, /) -> Tensor:
    """Return the next float of the dtype after x towards y; d/dx = 1, d/dy = 0.

    >>> import ruda_tensor as rt
    >>> rt.nextafter(rt.tensor([1.0], device=rt.Cpu()), 2.0).item() - 1.0 == rt.finfo(rt.float32).eps
    True
    """
    x, y = pair(x, y, "nextafter")
    return apply(_nextafter, (floating(x, "nextafter"), floating(y, "nextafter")))


def lerp(x: Any, y: Any, weight: Any, /) -> Tensor:
    """Return x + weight (y - x) elementwise, the point between x (weight 0) and y (weight 1).

    >>> import ruda_tensor as rt
    >>> rt.lerp(rt.tensor([0.0, 10.0], device=rt.Cpu()), rt.tensor([1.0, 20.0], device=rt.Cpu()), 0.5).numpy()
    array([ 0.5, 15. ], dtype=float32)
    """
    x, y = pair(x, y, "lerp")
    x, y = floating(x, "lerp"), floating(y, "lerp")  # differences of unsigned integers would wrap
    dtype = x.dtype if scalar_of(weight) is not None else promote_types(x.dtype, as_tensor(weight, x, "lerp").dtype)
    x, y = (cast(v, FLOAT32) if v.dtype in HALF else v for v in (x, y))
    weight = as_tensor(weight, x, "lerp")  # a number is not rounded to a half type, since it is met in float32
    weight = cast(weight, FLOAT32) if weight.dtype in HALF else weight
    return cast(add(x, multiply(weight, subtract(y, x))), dtype)
