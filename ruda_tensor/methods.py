"""Operators and methods of tensors: each is the function of the same name."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .tensor import Tensor

_F: Any = None  # the namespace of ruda_tensor, set by ruda_tensor/__init__.py once every room has been imported

_FOREIGN = (str, bytes, dict, set, type(None))  # operands for which Python should try the other side, then say TypeError


class Methods:
    """What `Tensor` can do; see the functions for their documentation."""

    __slots__ = ()

    # arithmetic
    def __add__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.subtract(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.subtract(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.multiply(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.multiply(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.divide(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.floor_divide(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.remainder(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.remainder(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.pow(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.matmul(other, self)

    def __neg__(self) -> Tensor:
        return _F.negative(self)

    def __pos__(self) -> Tensor:
        return _F.positive(self)

    def __abs__(self) -> Tensor:
        return _F.abs(self)

    # comparison
    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if isinstance(other, _FOREIGN) else _F.equal(self, other)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if isinstance(other, _FOREIGN) else _F.not_equal(self, other)

    def __lt__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.greater_equal(self, other)

    # bits
    def __and__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_and(other, self)

    def __or__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_or(other, self)

    def __xor__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_left_shift(other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return NotImplemented if isinstance(other, _FOREIGN) else _F.bitwise_right_shift(other, self)

    def __invert__(self) -> Tensor:
        return _F.bitwise_invert(self)

    # pieces and shape
    def __getitem__(self, key: Any) -> Tensor:
        return _F.getitem(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("a tensor is immutable; y = rt.slice_assign(x, key, value) returns the changed copy, differentiable")

    def __contains__(self, value: Any) -> bool:
        return bool(_F.any(_F.equal(self, value)))

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix."""
        if self.ndim != 2:  # type: ignore[attr-defined]
            shape = self.shape  # type: ignore[attr-defined]
            raise ValueError(f"T: needs 2 axes, and the shape is {shape}; use x.mT, or rt.permute_dims(x, axes)")
        return _F.matrix_transpose(self)

    @property
    def mT(self) -> Tensor:
        """The transpose of the last two axes."""
        return _F.matrix_transpose(self)

    def reshape(self, *shape: Any) -> Tensor:
        return _F.reshape(self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: Any) -> Tensor:
        return _F.astype(self, dtype)

    def slice_assign(self, key: Any, value: Any) -> Tensor:
        return _F.slice_assign(self, key, value)


def _method(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(_F, name)(self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"The same as `ruda_tensor.{name}` of this tensor."
    return method


METHODS = (
    "abs all any argmax argmin argsort broadcast_to clip concat cumsum cumprod exp expand_dims flip gather log "
    "log_softmax matmul max mean min norm permute_dims pow prod relu rsqrt scatter scatter_add sigmoid sin cos softmax "
    "sqrt square squeeze std sum swap_dims take tanh transpose var"
).split()  # the method forms that the specification and common habit use
for _name in METHODS:
    setattr(Methods, _name, _method(_name))
