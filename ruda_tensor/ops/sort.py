"""Sorting, the k largest, and searching a sorted list. NaN comes last, whichever way the order runs."""
from __future__ import annotations

from typing import Any, NamedTuple

from ..dtypes import FLOATING, INT64, INTEGER, promote_types
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, cast, integer, normalize_axis

__all__ = ["TopK", "argsort", "searchsorted", "sort", "topk"]


def _falling(xp: Any, x: Any) -> Any:
    """Numbers whose rising order is the falling order of x, equal where x is equal; -x would overflow in integers."""
    return xp.negative(x) if x.dtype in FLOATING else xp.invert(x)


def _sort_forward(xp: Any, x: Any, *, axis: int, descending: bool) -> Any:
    if not descending:
        return xp.sort(x, axis=axis, kind="stable")
    return _falling(xp, xp.sort(_falling(xp, x), axis=axis, kind="stable"))


def _argsort_forward(xp: Any, x: Any, *, axis: int, descending: bool) -> Any:
    return xp.argsort(_falling(xp, x) if descending else x, axis=axis, kind="stable").astype(INT64, copy=False)


def _pick_forward(xp: Any, x: Any, positions: Any, *, axis: int) -> Any:
    return xp.take_along_axis(x, positions, axis)


def _place_forward(xp: Any, x: Any, positions: Any, *, axis: int, size: int) -> Any:
    out = xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
    index = [xp.arange(n).reshape([n if i == j else 1 for j in range(x.ndim)]) for i, n in enumerate(x.shape)]
    index[axis] = positions
    out[tuple(index)] = x
    return out


def _place(g: Tensor, positions: Tensor, axis: int, size: int) -> Tensor:
    return apply(_place_op, (g, positions), {"axis": axis, "size": size})


# Taking elements at distinct positions of each line, and putting them back there among zeros: each other's adjoint.
_pick = Primitive(
    "pick",
    _pick_forward,
    half="storage",
    dx=lambda g, positions, x_shape, axis: _place(g, positions, axis, x_shape[axis]),
)
_place_op = Primitive(
    "place",
    _place_forward,
    half="storage",
    dx=lambda g, positions, axis: apply(_pick, (g, positions), {"axis": axis}),
)


def _sort_rule(g: Tensor, x: Tensor, axis: int, descending: bool) -> Tensor:
    """The gradient goes back to where each element came from: the inverse permutation."""
    positions = apply(_argsort, (x,), {"axis": axis, "descending": descending})
    return _place(g, positions, axis, x.shape[axis])


_argsort = Primitive("argsort", _argsort_forward, memory_bound=False)
_sort = Primitive("sort", _sort_forward, memory_bound=False, dx=_sort_rule)


def _ordered(op: Primitive, x: Any, axis: int, descending: bool) -> Tensor:
    x = as_tensor(x, None, op.name)
    return apply(op, (x,), {"axis": normalize_axis(axis, x.ndim, op.name), "descending": bool(descending)})


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the elements of each line along `axis` in order; NaN last. Always stable.

    The gradient of each element goes back to where it came from.

    >>> import ruda_tensor as rt
    >>> rt.sort(rt.tensor([2.0, 3.0, 1.0], device=rt.Cpu()), descending=True).numpy()
    array([3., 2., 1.], dtype=float32)
    """
    return _ordered(_sort, x, axis, descending)


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Return the int64 positions that sort each line along `axis`; NaN last, equal elements in their order (stable).

    Not differentiable.

    >>> import ruda_tensor as rt
    >>> rt.argsort(rt.tensor([2.0, 3.0, 2.0], device=rt.Cpu()), descending=True).numpy()
    array([1, 0, 2])
    """
    return _ordered(_argsort, x, axis, descending)


class TopK(NamedTuple):
    """What `topk` returns: the elements, and their int64 positions along the axis.

    >>> import ruda_tensor as rt
    >>> rt.topk(rt.tensor([2.0, 3.0, 1.0], device=rt.Cpu()), 1).indices.tolist()
    [1]
    """

    values: Tensor
    indices: Tensor


_topk = Primitive("topk_positions", lambda xp, x, *, axis, k, largest: _topk_forward(xp, x, axis, k, largest))


def _topk_forward(xp: Any, x: Any, axis: int, k: int, largest: bool) -> Any:
    order = _argsort_forward(xp, x, axis=axis, descending=largest)
    return xp.ascontiguousarray(order[(slice(None),) * axis + (slice(0, k),)])


def topk(x: Tensor, k: int, /, *, axis: int = -1, largest: bool = True) -> TopK:
    """Return the k largest (or smallest) elements along `axis` in order, and their positions.

    Of equal elements the earlier one comes first, and NaN comes after every number. The values are differentiable.

    Errors: ValueError where k is negative or more than the axis has.

    >>> import ruda_tensor as rt
    >>> values, indices = rt.topk(rt.tensor([2.0, 3.0, 1.0], device=rt.Cpu()), 2)
    >>> values.numpy(), indices.numpy()
    (array([3., 2.], dtype=float32), array([1, 0]))
    """
    x = as_tensor(x, None, "topk")
    axis = normalize_axis(axis, x.ndim, "topk")
    k = integer(k, "topk", "k")
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"topk: k must be from 0 to {x.shape[axis]}, the size of axis {axis}, got {k!r}")
    positions = apply(_topk, (x,), {"axis": axis, "k": k, "largest": bool(largest)})
    return TopK(apply(_pick, (x, positions), {"axis": axis}), positions)


def _searchsorted_forward(xp: Any, x1: Any, x2: Any, *, side: str) -> Any:
    return xp.asarray(xp.searchsorted(x1, x2, side=side)).astype(INT64, copy=False)


_searchsorted = Primitive("searchsorted", _searchsorted_forward)


def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Return where each element of `x2` would go into the sorted 1-d `x1`, as int64. Not differentiable.

    Before the elements that equal it if `side` is "left", after them if "right". `sorter` holds the positions that
    sort `x1` where it is not sorted itself.

    Errors: ValueError where x1 is not 1-d or `side` is another word.

    >>> import ruda_tensor as rt
    >>> rt.searchsorted(rt.tensor([1.0, 2.0, 2.0, 5.0], device=rt.Cpu()), 2.0, side="right").item()
    3
    """
    x1 = as_tensor(x1, None, "searchsorted")
    x2 = as_tensor(x2, x1, "searchsorted")
    if x1.ndim != 1:
        raise ValueError(f"searchsorted: x1 must have 1 axis, got the shape {x1.shape}; rt.reshape(x1, (-1,))")
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if sorter is not None:
        if sorter.dtype not in INTEGER or sorter.shape != x1.shape:
            raise ValueError(
                f"searchsorted: sorter must be {x1.shape} integers, got {sorter.shape} {sorter.dtype}; rt.argsort(x1)"
            )
        x1 = apply(_pick, (x1, sorter), {"axis": 0})
    dtype = promote_types(x1.dtype, x2.dtype)
    return apply(_searchsorted, (cast(x1, dtype), cast(x2, dtype)), {"side": side})
