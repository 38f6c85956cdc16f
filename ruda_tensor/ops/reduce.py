"""Reductions: sums, products, extremes, statistics and norms."""
from __future__ import annotations

from typing import Any

from ..dtypes import BOOL, FLOATING, INT32, INTEGER, UINT32, UNSIGNED, as_dtype
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, normalize_axes
from .shape import broadcast_to, expand_dims

__all__ = ["mean", "sum"]


def spread(g: Tensor, x_shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> Tensor:
    """Spread the gradient of a reduction over the axes that it removed."""
    return broadcast_to(g if keepdims else expand_dims(g, axis=axis), x_shape)


_sum = Primitive(
    "sum",
    lambda xp, x, *, axis, keepdims: xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype),
    dx=lambda g, x_shape, axis, keepdims: spread(g, x_shape, axis, keepdims),
)


def sum(x: Tensor, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Return the sum over `axis` (all by default); small integers and bools are summed in the default integer dtype.

    >>> import ruda_tensor as rt
    >>> rt.sum(rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu()), axis=0).numpy()
    array([4., 6.], dtype=float32)
    """
    x = as_tensor(x, None, "sum")
    x = cast(x, accumulator(x) if dtype is None else as_dtype(dtype))
    return apply(_sum, (x,), {"axis": normalize_axes(axis, x.ndim, "sum"), "keepdims": keepdims})


def accumulator(x: Tensor) -> Any:
    """The dtype in which an integer sum or product is formed: at least the default integer width."""
    if x.dtype in FLOATING:
        return x.dtype
    if x.dtype in UNSIGNED:
        return x.dtype if x.dtype.itemsize >= 4 else UINT32
    return x.dtype if x.dtype in INTEGER and x.dtype.itemsize >= 4 and x.dtype != BOOL else INT32


def mean(x: Tensor, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """Return the mean over `axis` (all by default), accumulated in float32 or wider.

    >>> import ruda_tensor as rt
    >>> rt.mean(rt.tensor([1, 2], device=rt.Cpu())).item()
    1.5
    """
    x = floating(x, "mean")
    return apply(_mean, (x,), {"axis": normalize_axes(axis, x.ndim, "mean"), "keepdims": keepdims})


def _mean_forward(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    total = xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
    return total * (1.0 / count) if (count := _count(x.shape, axis)) else total * float("nan")


def _count(shape: tuple[int, ...], axis: tuple[int, ...]) -> int:
    count = 1
    for a in axis:
        count *= shape[a]
    return count


_mean = Primitive(
    "mean",
    _mean_forward,
    dx=lambda g, x_shape, axis, keepdims: spread(g / _count(x_shape, axis), x_shape, axis, keepdims),
)
