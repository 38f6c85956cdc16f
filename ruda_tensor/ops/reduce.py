"""Reductions: sums, products, means, extremes and truth over axes.

Half types are accumulated in float32 and rounded once. Over no elements a sum is 0, a product 1, a mean NaN, `all`
true and `any` false; an extreme of no elements does not exist and raises.
"""
from __future__ import annotations

from typing import Any

from ..dtypes import FLOATING, INT32, INT64, INTEGER, UINT32, UNSIGNED, as_dtype
from ..kernels import reductions
from ..operation import Primitive, apply, round_to, widen
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, normalize_axes, normalize_axis
from ._sums import total
from .shape import broadcast_to, expand_dims, reshape

__all__ = ["all", "any", "argmax", "argmin", "count_nonzero", "max", "mean", "min", "prod", "sum"]


def spread(g: Tensor, x_shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> Tensor:
    """Spread the gradient of a reduction over the axes that it removed."""
    return broadcast_to(g if keepdims else expand_dims(g, axis=axis), x_shape)


def count(shape: tuple[int, ...], axis: tuple[int, ...]) -> int:
    """The number of elements that a reduction over `axis` joins into one."""
    product = 1
    for a in axis:
        product *= shape[a]
    return product


def accumulator(x: Tensor) -> Any:
    """The dtype in which an integer sum or product is formed: at least the default integer width."""
    if x.dtype in FLOATING or (x.dtype in INTEGER and x.dtype.itemsize >= 4):
        return x.dtype
    return UINT32 if x.dtype in UNSIGNED else INT32


def _reduce(op: Primitive, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return apply(op, (x,), {"axis": normalize_axes(axis, x.ndim, op.name), "keepdims": bool(keepdims)})


_sum = Primitive(
    "sum",
    lambda xp, x, *, axis, keepdims: total(xp, x, axis, keepdims),
    dx=lambda g, x_shape, axis, keepdims: spread(g, x_shape, axis, keepdims),
)



def _stored(plain: Primitive) -> Primitive:
    """The same reduction where there are kernels, which read half types as they are."""

    def forward(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        out = reductions.reduce(xp, x, axis, plain.name)
        if out is not None:
            return out.reshape([1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis])
        (wide,), dtype = widen([x])
        out = plain.forward(xp, wide, axis=axis, keepdims=keepdims)
        return out if dtype is None else round_to(xp.asarray(out), dtype)

    return Primitive(plain.name, forward, half="storage", dx=plain.rules["x"])


def _chosen(plain: Primitive, stored: Primitive, x: Tensor, axes: tuple[int, ...]) -> Primitive:
    return stored if x.device.launches and reductions.takes(x, axes, plain.name) else plain


_stored_sum = _stored(_sum)


def sum(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Return the sum over `axis` (all by default); small integers and bools are summed in the default integer dtype.

    >>> import ruda_tensor as rt
    >>> rt.sum(rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu()), axis=0).numpy()
    array([4., 6.], dtype=float32)
    """
    x = as_tensor(x, None, "sum")
    x = cast(x, accumulator(x) if dtype is None else as_dtype(dtype))
    axes = normalize_axes(axis, x.ndim, "sum")
    return apply(_chosen(_sum, _stored_sum, x, axes), (x,), {"axis": axes, "keepdims": bool(keepdims)})


def _mean_forward(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    n = count(x.shape, axis)
    return total(xp, x, axis, keepdims) / (n if n else x.dtype.type("nan"))


_mean = Primitive(
    "mean",
    _mean_forward,
    dx=lambda g, x_shape, axis, keepdims: spread(g / (count(x_shape, axis) or 1), x_shape, axis, keepdims),
)


_stored_mean = _stored(_mean)


def mean(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the mean over `axis` (all by default), accumulated in float32 or wider; NaN over no elements.

    >>> import ruda_tensor as rt
    >>> rt.mean(rt.tensor([1, 2], device=rt.Cpu())).item()
    1.5
    """
    x = floating(x, "mean")
    axes = normalize_axes(axis, x.ndim, "mean")
    return apply(_chosen(_mean, _stored_mean, x, axes), (x,), {"axis": axes, "keepdims": bool(keepdims)})


def _prod_rule(g: Tensor, x: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    """Each element's gradient is the product of all the others: of those before it times those after it.

    Dividing the product by the element would be NaN at a zero; and the products before and after are differentiable
    again, so the second derivative is right at zeros too.
    """
    from .scan import others_product

    return spread(g, x.shape, axis, keepdims) * others_product(x, axis)


_prod = Primitive(
    "prod", lambda xp, x, *, axis, keepdims: xp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype), dx=_prod_rule
)


def prod(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Return the product over `axis` (all by default); its derivatives are right at zeros.

    Small integers and bools are multiplied in the default integer dtype.

    >>> import ruda_tensor as rt
    >>> rt.prod(rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu()), axis=1).numpy()
    array([ 2., 12.], dtype=float32)
    """
    x = as_tensor(x, None, "prod")
    return _reduce(_prod, cast(x, accumulator(x) if dtype is None else as_dtype(dtype)), axis, keepdims)


def _tie_shares_forward(xp: Any, x: Any, extreme: Any, *, axis: tuple[int, ...]) -> Any:
    tied = (x == extreme) | (x != x)  # a NaN equals nothing, and where there is one the extreme is NaN
    return tied / xp.sum(tied, axis=axis, keepdims=True, dtype=x.dtype)


# 1/count where an element equals the extreme of its group, else 0: locally constant, so without rules.
_tie_shares = Primitive("tie_shares", _tie_shares_forward)


def _extreme_rule(g: Tensor, x: Tensor, out: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    extreme = spread(out, x.shape, axis, keepdims)
    return spread(g, x.shape, axis, keepdims) * apply(_tie_shares, (x, extreme), {"axis": axis})


_max = Primitive("max", lambda xp, x, *, axis, keepdims: xp.max(x, axis=axis, keepdims=keepdims), dx=_extreme_rule)
_min = Primitive("min", lambda xp, x, *, axis, keepdims: xp.min(x, axis=axis, keepdims=keepdims), dx=_extreme_rule)
_stored_extremes = {op.name: _stored(op) for op in (_max, _min)}


def check_not_empty(shape: tuple[int, ...], axis: tuple[int, ...], name: str) -> None:
    """Raise where an axis to be searched has no elements."""
    for a in axis:
        if shape[a] == 0:
            raise ValueError(
                f"{name}: axis {a} of the shape {shape} has no elements, so there is none to choose; "
                f"reduce another axis, or guard: rt.{name}(x, axis={a}) if x.shape[{a}] else ..."
            )


def _extreme(op: Primitive, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    x = as_tensor(x, None, op.name)
    axes = normalize_axes(axis, x.ndim, op.name)
    check_not_empty(x.shape, axes, op.name)
    op = _chosen(op, _stored_extremes[op.name], x, axes)
    return apply(op, (x,), {"axis": axes, "keepdims": bool(keepdims)})


def max(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over `axis` (all by default); NaN where there is one.

    Elements that tie for it share the gradient equally (each of k gets 1/k), the minimum-norm subgradient.

    Errors: ValueError where a reduced axis has no elements.

    >>> import ruda_tensor as rt
    >>> rt.max(rt.tensor([[1.0, 5.0], [3.0, 4.0]], device=rt.Cpu()), axis=1).numpy()
    array([5., 4.], dtype=float32)
    """
    return _extreme(_max, x, axis, keepdims)


def min(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over `axis` (all by default); NaN where there is one.

    Elements that tie for it share the gradient equally (each of k gets 1/k), the minimum-norm subgradient.

    Errors: ValueError where a reduced axis has no elements.

    >>> import ruda_tensor as rt
    >>> rt.min(rt.tensor([[1.0, 5.0], [3.0, 4.0]], device=rt.Cpu()), axis=1).numpy()
    array([1., 3.], dtype=float32)
    """
    return _extreme(_min, x, axis, keepdims)


_argmax = Primitive("argmax", lambda xp, x, *, axis: xp.argmax(x, axis=axis).astype(INT64, copy=False))
_argmin = Primitive("argmin", lambda xp, x, *, axis: xp.argmin(x, axis=axis).astype(INT64, copy=False))


def _position(op: Primitive, x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    x = as_tensor(x, None, op.name)
    if axis is None:
        check_not_empty(x.shape, tuple(range(x.ndim)), op.name)
        out = apply(op, (reshape(x, (-1,)),), {"axis": 0})
        return reshape(out, (1,) * x.ndim) if keepdims else out
    axis = normalize_axis(axis, x.ndim, op.name)
    check_not_empty(x.shape, (axis,), op.name)
    out = apply(op, (x,), {"axis": axis})
    return expand_dims(out, axis=axis) if keepdims else out


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 position of the largest element along `axis`, in row-major order of all without it.

    The first of equal ones is taken, and the first NaN where there is one. Not differentiable.

    Errors: ValueError where the axis has no elements.

    >>> import ruda_tensor as rt
    >>> rt.argmax(rt.tensor([[1.0, 5.0], [3.0, 4.0]], device=rt.Cpu()), axis=0).numpy()
    array([1, 0])
    """
    return _position(_argmax, x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the int64 position of the smallest element along `axis`, in row-major order of all without it.

    The first of equal ones is taken, and the first NaN where there is one. Not differentiable.

    Errors: ValueError where the axis has no elements.

    >>> import ruda_tensor as rt
    >>> rt.argmin(rt.tensor([[1.0, 5.0], [3.0, 4.0]], device=rt.Cpu()), axis=0).numpy()
    array([0, 1])
    """
    return _position(_argmin, x, axis, keepdims)


_all = Primitive("all", lambda xp, x, *, axis, keepdims: xp.all(x, axis=axis, keepdims=keepdims))
_any = Primitive("any", lambda xp, x, *, axis, keepdims: xp.any(x, axis=axis, keepdims=keepdims))
_count_nonzero = Primitive(
    "count_nonzero", lambda xp, x, *, axis, keepdims: xp.sum(x != 0, axis=axis, keepdims=keepdims, dtype=INT64)
)


def all(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return whether every element over `axis` (all by default) is true: nonzero, or NaN. True over no elements.

    >>> import ruda_tensor as rt
    >>> rt.all(rt.tensor([[True, False], [True, True]], device=rt.Cpu()), axis=1).numpy()
    array([False,  True])
    """
    return _reduce(_all, as_tensor(x, None, "all"), axis, keepdims)


def any(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return whether some element over `axis` (all by default) is true: nonzero, or NaN. False over no elements.

    >>> import ruda_tensor as rt
    >>> rt.any(rt.tensor([[True, False], [False, False]], device=rt.Cpu()), axis=1).numpy()
    array([ True, False])
    """
    return _reduce(_any, as_tensor(x, None, "any"), axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return how many elements over `axis` (all by default) are not zero, as int64; NaN is not zero.

    >>> import ruda_tensor as rt
    >>> rt.count_nonzero(rt.tensor([[0, 1], [2, 3]], device=rt.Cpu()), axis=0).numpy()
    array([1, 2])
    """
    return _reduce(_count_nonzero, as_tensor(x, None, "count_nonzero"), axis, keepdims)
