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

    # arithmetic; the first four are the hottest, and leave it to the function to refuse a foreign operand
    def __add__(self, other: Any) -> Tensor:
        return _F.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return _F.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return _F.subtract(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return _F.subtract(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return _F.multiply(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return _F.multiply(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return _F.divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _F.divide(other, self)

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

    # the forms that the specification and common habit use, each the function of that name
    def abs(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.abs(self, *args, **kwargs)

    def all(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.all(self, axis=axis, **kwargs)

    def any(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.any(self, axis=axis, **kwargs)

    def argmax(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.argmax(self, axis=axis, **kwargs)

    def argmin(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.argmin(self, axis=axis, **kwargs)

    def argsort(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.argsort(self, *args, **kwargs)

    def broadcast_to(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.broadcast_to(self, *args, **kwargs)

    def clip(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.clip(self, *args, **kwargs)

    def cos(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.cos(self, *args, **kwargs)

    def cumprod(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.cumprod(self, *args, **kwargs)

    def cumsum(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.cumsum(self, *args, **kwargs)

    def exp(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.exp(self, *args, **kwargs)

    def expand_dims(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.expand_dims(self, *args, **kwargs)

    def flip(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.flip(self, *args, **kwargs)

    def gather(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.gather(self, *args, **kwargs)

    def log(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.log(self, *args, **kwargs)

    def log_softmax(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.log_softmax(self, *args, **kwargs)

    def matmul(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.matmul(self, *args, **kwargs)

    def max(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.max(self, axis=axis, **kwargs)

    def mean(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.mean(self, axis=axis, **kwargs)

    def min(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.min(self, axis=axis, **kwargs)

    def norm(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.norm(self, *args, **kwargs)

    def permute_dims(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.permute_dims(self, *args, **kwargs)

    def pow(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.pow(self, *args, **kwargs)

    def prod(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.prod(self, axis=axis, **kwargs)

    def relu(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.relu(self, *args, **kwargs)

    def rsqrt(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.rsqrt(self, *args, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.scatter(self, *args, **kwargs)

    def scatter_add(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.scatter_add(self, *args, **kwargs)

    def sigmoid(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.sigmoid(self, *args, **kwargs)

    def sin(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.sin(self, *args, **kwargs)

    def softmax(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.softmax(self, *args, **kwargs)

    def sqrt(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.sqrt(self, *args, **kwargs)

    def square(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.square(self, *args, **kwargs)

    def squeeze(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.squeeze(self, *args, **kwargs)

    def std(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.std(self, axis=axis, **kwargs)

    def sum(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.sum(self, axis=axis, **kwargs)

    def swap_dims(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.swap_dims(self, *args, **kwargs)

    def take(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.take(self, *args, **kwargs)

    def tanh(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.tanh(self, *args, **kwargs)

    def transpose(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.transpose(self, *args, **kwargs)

    def var(self, axis: Any = None, **kwargs: Any) -> Tensor:
        return _F.var(self, axis=axis, **kwargs)

    def ceil(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.ceil(self, *args, **kwargs)

    def erf(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.erf(self, *args, **kwargs)

    def flatten(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.flatten(self, *args, **kwargs)

    def floor(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.floor(self, *args, **kwargs)

    def gelu(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.gelu(self, *args, **kwargs)

    def log1p(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.log1p(self, *args, **kwargs)

    def logsumexp(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.logsumexp(self, *args, **kwargs)

    def round(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.round(self, *args, **kwargs)

    def sign(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.sign(self, *args, **kwargs)

    def silu(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.silu(self, *args, **kwargs)

    def sort(self, *args: Any, **kwargs: Any) -> Tensor:
        return _F.sort(self, *args, **kwargs)
