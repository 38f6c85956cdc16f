"""Positions of nonzero elements and distinct values: results whose size depends on the numbers.

None of these is differentiable, and each waits for the GPU where the tensor is on one, to learn the size.
"""
from __future__ import annotations

from typing import Any, NamedTuple

from ..dtypes import FLOAT32, HALF, INT64
from ..recording import refuse_while_capturing
from ..tensor import Tensor
from ._common import as_tensor

__all__ = ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]


def _refuse(x: Tensor, name: str, instead: str) -> None:
    """Raise in a captured step, whose shapes are fixed."""
    if x.device.launches:
        refuse_while_capturing(f"{name}, whose result has a size that only the values know,", instead)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Return the positions of the nonzero elements, one int64 tensor per axis, in row-major order; NaN is not zero.

    Errors: ValueError for a 0-d tensor, which has no axis.

    >>> import ruda_tensor as rt
    >>> rows, columns = rt.nonzero(rt.tensor([[0, 7], [8, 0]], device=rt.Cpu()))
    >>> rows.numpy(), columns.numpy()
    (array([0, 1]), array([1, 0]))
    """
    x = as_tensor(x, None, "nonzero")
    if x.ndim == 0:
        raise ValueError("nonzero: a 0-d tensor has no axis to give positions along; write x != 0")
    _refuse(x, "nonzero", "rt.where(x != 0, a, b) keeps the shape; or find the places before the step, and give them as an input")
    device = x.device
    with device.guard():
        found = device.xp.nonzero(_comparable(x._data) != 0)
        return tuple(Tensor._wrap(i.astype(INT64, copy=False), device) for i in found)


class UniqueAll(NamedTuple):
    """What `unique_all` returns; see there."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns; see `unique_all`."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns; see `unique_all`."""

    values: Tensor
    inverse_indices: Tensor


def _unique(xp: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Sort, keep each element that differs from the one before it (as every NaN does), and count in between."""
    flat = _comparable(x).reshape(-1)
    order = xp.argsort(flat, kind="stable").astype(INT64, copy=False)
    ordered = flat[order]
    new = xp.ones(flat.shape, bool)
    new[1:] = ordered[1:] != ordered[:-1]
    starts = xp.nonzero(new)[0].astype(INT64, copy=False)
    inverse = xp.empty(flat.shape, INT64)
    inverse[order] = xp.cumsum(new, dtype=INT64) - 1
    counts = xp.diff(xp.concatenate([starts, xp.full((1,), flat.size, INT64)]))
    return x.reshape(-1)[order[starts]], order[starts], inverse.reshape(x.shape), counts


def _distinct(x: Any, name: str) -> UniqueAll:
    x = as_tensor(x, None, name)
    _refuse(x, name, "find the values before the step, and give them as an input; rt.sort(x) keeps the shape")
    device = x.device
    with device.guard():
        return UniqueAll(*(Tensor._wrap(part, device) for part in _unique(device.xp, x._data)))


def _comparable(x: Any) -> Any:
    return x.astype(FLOAT32) if x.dtype in HALF else x


def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the distinct values in rising order, where each first occurs, which one each element is, and their counts.

    `indices` are positions among the elements in row-major order; `inverse_indices` has the shape of x, and
    `values[inverse_indices]` is x again. Every NaN is distinct; -0.0 equals 0.0. Not differentiable.

    >>> import ruda_tensor as rt
    >>> found = rt.unique_all(rt.tensor([3, 1, 3], device=rt.Cpu()))
    >>> [part.numpy().tolist() for part in found]
    [[1, 3], [1, 0], [1, 0, 1], [1, 2]]
    """
    return _distinct(x, "unique_all")


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the distinct values in rising order and how often each occurs; see `unique_all`.

    >>> import ruda_tensor as rt
    >>> rt.unique_counts(rt.tensor([3, 1, 3], device=rt.Cpu())).counts.numpy()
    array([1, 2])
    """
    found = _distinct(x, "unique_counts")
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the distinct values in rising order and which of them each element is; see `unique_all`.

    >>> import ruda_tensor as rt
    >>> rt.unique_inverse(rt.tensor([3, 1, 3], device=rt.Cpu())).inverse_indices.numpy()
    array([1, 0, 1])
    """
    found = _distinct(x, "unique_inverse")
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Tensor, /) -> Tensor:
    """Return the distinct values in rising order; see `unique_all`.

    >>> import ruda_tensor as rt
    >>> rt.unique_values(rt.tensor([3, 1, 3], device=rt.Cpu())).numpy()
    array([1, 3], dtype=int32)
    """
    return _distinct(x, "unique_values").values
