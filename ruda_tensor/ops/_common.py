"""What the rooms share: turning arguments into tensors of the right dtype, and checking axes."""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .. import backend
from ..devices import Device
from ..dtypes import FLOAT32, FLOATING, HALF, as_dtype, promote_types, weak_result
from ..kernels import copies
from ..live import Live
from ..operation import Primitive, apply
from ..recording import CaptureError
from ..tensor import Tensor


def _cast_forward(xp: Any, x: Any, *, dtype: np.dtype) -> Any:
    found = copies.cast(xp, x, dtype)
    return x.astype(dtype) if found is None else found


_cast = Primitive("astype", _cast_forward, half="storage", poles=True, dx=lambda g, x_dtype: cast(g, x_dtype))


def cast(x: Tensor, dtype: np.dtype) -> Tensor:
    """Return `x` in `dtype`, itself if it is that already; differentiable between floats."""
    if x.dtype == dtype:
        return x
    if x.dtype in FLOATING and dtype not in FLOATING:
        x = x.detach()  # integers carry no gradient
    return apply(_cast, (x,), {"dtype": dtype})


def scalar_of(x: Any) -> Any:
    """A Python number for Python and NumPy scalars and 0-d NumPy arrays, which all are weak; None for anything else."""
    if isinstance(x, (bool, int, float)) and not isinstance(x, np.generic):
        return x
    if isinstance(x, np.generic) or (isinstance(x, np.ndarray) and x.ndim == 0):
        value = x.item()
        return value if isinstance(value, (bool, int, float)) else None
    return None


def full_scalar(value: Any, dtype: np.dtype, device: Device) -> Tensor:
    """A 0-d tensor of a Python number, refusing integers that the dtype cannot hold."""
    if isinstance(value, int) and not isinstance(value, bool) and np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        if not info.min <= value <= info.max:
            raise OverflowError(f"{value} does not fit {dtype}; convert the tensor first: x.astype(rt.int64)")
    with np.errstate(over="ignore"):  # beyond the range of a float type is inf
        return Tensor._wrap(device.number(np.asarray(value, dtype)), device)


def value_of(x: Any, name: str) -> Any:
    """The Python number of a number or of a 0-d tensor, None for anything else.

    A tracked tensor is refused where operations are recorded, since its gradient would be lost unseen.
    """
    if not isinstance(x, Tensor) or x.ndim:
        return scalar_of(x)
    from ..fusion.trace import recording

    if x.is_require_grad() and recording():
        raise TypeError(
            f"{name}: takes numbers, and {x!r} would lose its gradient; x.item() gives its value alone, and "
            "rt.broadcast_to(x, shape) spreads it, differentiable"
        )
    return x.item()


def setting(value: Any, name: str, what: str) -> float:
    """A number that an operation takes as a constant: a tensor is refused, since its gradient would be lost unseen."""
    if isinstance(value, Tensor):
        raise TypeError(f"{name}: {what} is a constant number, got {value!r}; where no gradient is wanted: {what}=x.item()")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {what} must be a number, got {value!r}") from None


def as_tensor(x: Any, like: Tensor | None = None, name: str = "operation") -> Tensor:
    """Return `x` as a tensor: itself, or a NumPy array or list on the device of `like` (weak numbers take its dtype)."""
    if isinstance(x, Tensor):
        return x
    value = scalar_of(x)
    if value is not None and like is not None:
        device = like.device
        return full_scalar(value, weak_result(like.dtype, value, device.float_dtype, device.int_dtype), device)
    if isinstance(x, (np.ndarray, list, tuple)) or value is not None or backend.is_cupy_array(x):
        from ..creation import asarray

        if like is not None and isinstance(x, np.ndarray) and like.device.kind != "cpu":
            raise ValueError(f"{name}: a NumPy array cannot meet a tensor on {like.device}; rt.tensor(array, device=x.device)")
        return asarray(x, device=None if like is None else like.device)
    if isinstance(x, Live):
        raise CaptureError(
            f"{name}: a number that changes from replay to replay goes to optimizer.step alone; what tensors meet is given to "
            "the step as a 0-d tensor: graph.replay(..., rt.asarray(0.5))"
        )
    raise TypeError(f"{name}: expected a tensor or a number, got {type(x).__name__}; rt.tensor(values) makes a tensor")


def floating(x: Any, name: str) -> Tensor:
    """Return `x` as a tensor of a floating dtype: integers and bools become the device's default float."""
    x = as_tensor(x, None, name)
    return x if x.dtype in FLOATING else cast(x, x.device.float_dtype)


def ready(x: Any, y: Any) -> bool:
    """True where two operands need no `pair`: equal shapes and dtypes, or a Python number with a float tensor."""
    if isinstance(x, Tensor):
        if isinstance(y, Tensor):
            return x._data.dtype is y._data.dtype and x._data.shape == y._data.shape
        return (type(y) is float or type(y) is int) and x._data.dtype in FLOATING
    return (type(x) is float or type(x) is int) and isinstance(y, Tensor) and y._data.dtype in FLOATING


def pair(x: Any, y: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors of one dtype, by the promotion table; numbers are weak; checks broadcasting."""
    if not isinstance(x, Tensor):
        if not isinstance(y, Tensor):
            x = as_tensor(x, None, name)
        else:
            value = scalar_of(x)
            x = as_tensor(x, y, name) if value is None or value is x else as_tensor(value, y, name)
    if not isinstance(y, Tensor):
        y = as_tensor(y, x, name)
    if x.dtype is not y.dtype:
        dtype = promote_types(x.dtype, y.dtype)
        x, y = cast(x, dtype), cast(y, dtype)
    if x._data.shape != y._data.shape:
        check_broadcast(x.shape, y.shape, name)
    return x, y


def operands(x: Any, y: Any, name: str) -> tuple[Any, Any]:
    """As `pair`; but any library's number beside a floating tensor is a Python number, which half types meet in float32."""
    a, b = scalar_of(x), scalar_of(y)
    a, b = x if a is None else a, y if b is None else b
    return (a, b) if ready(a, b) else pair(x, y, name)


def beside_half(f: Callable[[Any, Any], Tensor], x: Any, y: Any) -> Tensor | None:
    """f of a half tensor and a number, computed in float32 and rounded once; None for other operands."""
    for tensor, other in ((x, y), (y, x)):
        if isinstance(tensor, Tensor) and tensor.dtype in HALF and not isinstance(other, Tensor):
            number = scalar_of(other)
            if number is not None:
                wide = cast(tensor, FLOAT32)
                return cast(f(wide, number) if tensor is x else f(number, wide), tensor.dtype)
    return None


def check_broadcast(a: tuple[int, ...], b: tuple[int, ...], name: str) -> None:
    """Raise ValueError where two shapes do not broadcast, naming the first axis that disagrees."""
    for k, (m, n) in enumerate(zip(a[::-1], b[::-1], strict=False), 1):
        if m != n and m != 1 and n != 1:
            raise ValueError(
                f"{name}: shapes {a} and {b} do not broadcast: axis -{k} is {m} and {n}; "
                "sizes must be equal or 1 (insert axes with rt.expand_dims(x, axis=...))"
            )


def integer(value: Any, name: str, what: str, low: int | None = None) -> int:
    """Return the Python integer that an argument is (any library's will do), of at least `low`."""
    try:
        found = operator.index(value)
    except TypeError:  # also a tensor of several elements, or of floats
        raise TypeError(f"{name}: {what} must be an integer, got {value!r}") from None
    if low is not None and found < low:
        raise ValueError(f"{name}: {what} must be at least {low}, got {found}")
    return found


def several(values: Any, name: str, what: str) -> tuple:
    """Return the items of a list, tuple, range or 1-D array, and one by itself as a tuple of one."""
    if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) and getattr(values, "ndim", 1) != 0:
        return tuple(values)
    if hasattr(values, "__index__"):  # 0-d arrays and tensors are one number
        return (values,)
    raise TypeError(f"{name}: {what} must be an integer or several, got {values!r}")


def normalize_axis(axis: Any, ndim: int, name: str) -> int:
    """Return a non-negative axis, or raise IndexError naming the operation and the range."""
    value = axis if type(axis) is int else integer(axis, name, "axis")
    if not -ndim <= value < ndim:
        has = f"axes {-ndim} to {ndim - 1}" if ndim else "no axes (it is 0-d)"
        raise IndexError(f"{name}: axis {value} is out of range; the tensor has {has}")
    return value % ndim


def normalize_axes(axis: Any, ndim: int, name: str) -> tuple[int, ...]:
    """Return the non-negative axes that `axis` (None for all, an integer, or several) means; refuses repeats."""
    if axis is None:
        return tuple(range(ndim))
    axes = axis if type(axis) is tuple else (axis,) if type(axis) is int else several(axis, name, "axis")
    found = tuple(normalize_axis(a, ndim, name) for a in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"{name}: axis {axes} names one axis twice")
    return found


def resolve_dtype(dtype: Any, default: np.dtype) -> np.dtype:
    return default if dtype is None else as_dtype(dtype)
