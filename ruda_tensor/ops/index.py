"""Indexing: picking elements by slices, masks and integers, and writing or adding them back."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..creation import asarray, tensor
from ..dtypes import BOOL, FLOATING, INT64, INTEGER, as_dtype, promote_types, weak_result
from ..operation import apply
from ..recording import capturing
from ..tensor import Tensor
from ._common import as_tensor, cast, full_scalar, integer, normalize_axis, scalar_of
from ._keys import Selection, checked, index_array, is_plain, nowhere, select
from ._picking import accumulate_index, assign_key, poisoned, put_index, scatter_add_flat, slice_key, take_index
from .compare import where
from .shape import broadcast_shapes, broadcast_to, permute_dims, reshape

__all__ = [
    "gather", "getitem", "one_hot", "scatter", "scatter_add", "segment_sum", "slice_assign", "take", "take_along_axis",
]  # fmt: skip


def _constant(array: Any, like: Tensor) -> Tensor:
    return Tensor._wrap(array, like.device)


def getitem(x: Tensor, key: Any, /) -> Tensor:
    """Return `x[key]` by NumPy's rules: integers, slices, `...`, None, boolean masks and integer arrays, mixed freely.

    Integers, slices, `...` and None give views. Arrays (tensors, NumPy arrays, lists) broadcast together and pick
    copies; where they are separated by a slice their axes come first in the result. The gradient adds up what was
    picked more than once. A mask, and the check of integer arrays, make a GPU's result wait for the host.

    Errors: IndexError for an index out of range, too many of them, or a mask of another shape; TypeError for floats.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1, 2, 3], [4, 5, 6]], device=rt.Cpu())
    >>> x[1, ::-1].tolist(), x[:, [0, 0]].tolist(), x[x > 4].tolist()
    ([6, 5, 4], [[1, 1], [4, 4]], [5, 6])
    """
    if is_plain(key):
        try:
            return apply(slice_key, (x,), {"key": key})
        except IndexError as error:
            raise IndexError(f"getitem: {error}; the shape is {x.shape}, and the key {key}") from None
    chosen = select(key, x.shape, x.device)
    if isinstance(chosen, tuple):
        return getitem(x, chosen)
    merged = _merge(x, chosen)
    return apply(take_index, (merged, _constant(chosen.index, x)), {"axis": chosen.where, "distinct": chosen.distinct})


def _merge(x: Tensor, chosen: Selection) -> Tensor:
    """Slice, bring the axes to pick from together, and merge them into the axis `chosen.where`."""
    if chosen.slices is not None:
        x = getitem(x, chosen.slices)
    order = chosen.order(x.ndim)
    if order != tuple(range(x.ndim)):
        x = permute_dims(x, order)
    if len(chosen.axes) > 1:
        end = chosen.where + len(chosen.axes)
        size = int(np.prod(x.shape[chosen.where : end]))
        x = reshape(x, (*x.shape[: chosen.where], size, *x.shape[end:]))
    return x


def take(x: Tensor, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """Return the elements of `x` at `indices` along `axis`; `axis` may be left out for a 1-D tensor.

    The axis is replaced by those of `indices`, which may have any shape: a table [n, d] and ids [b, t] give [b, t, d].
    The gradient of an element taken more than once is the sum. On a GPU checking the indices waits for the device.

    Errors: IndexError for an index out of range.

    >>> import ruda_tensor as rt
    >>> rt.take(rt.tensor([10, 20, 30], device=rt.Cpu()), rt.tensor([2, 0, -1], device=rt.Cpu())).tolist()
    [30, 10, 30]
    """
    x = as_tensor(x, None, "take")
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: a tensor of shape {x.shape} needs an axis: rt.take(x, indices, axis=0)")
        axis = 0
    axis = normalize_axis(axis, x.ndim, "take")
    with x.device.guard():
        index = checked(index_array(indices, x.device, "take"), x.shape[axis], "take", x.device)
    return apply(take_index, (x, _constant(index, x)), {"axis": axis, "distinct": False})


def _flat_index(index: Any, shape: tuple[int, ...], axis: int, device: Any) -> Any:
    """Indices along one axis as indices into the flattened tensor; an axis of size 1 of `shape` stretches."""
    strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
    total, xp = index * strides[axis], device.xp
    for d, n in enumerate(index.shape):
        if d != axis and shape[d] != 1:
            total = total + (xp.arange(n) * strides[d]).reshape((1,) * d + (n,) + (1,) * (len(shape) - d - 1))
    return nowhere(total, device, index)


def take_along_axis(x: Tensor, indices: Any, /, *, axis: int = -1) -> Tensor:
    """Return `out[i, j, k] = x[i, indices[i, j, k], k]` (for axis 1): one element along `axis` per index.

    The other axes broadcast. Undoes an argsort: `rt.take_along_axis(x, rt.argsort(x))` is sorted.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[3, 1, 2], [4, 6, 5]], device=rt.Cpu())
    >>> rt.take_along_axis(x, rt.tensor([[1], [0]], device=rt.Cpu())).tolist()
    [[1], [4]]
    """
    x, index, axis = _along(x, indices, axis, "take_along_axis")
    xp = x.device.xp
    rest = [shape[:axis] + (1,) + shape[axis + 1 :] for shape in (x.shape, index.shape)]
    wanted = list(broadcast_shapes(*rest, name="take_along_axis"))
    wanted[axis] = index.shape[axis]
    with x.device.guard():
        flat = _flat_index(xp.broadcast_to(index, tuple(wanted)), x.shape, axis, x.device)
    return apply(take_index, (reshape(x, (x.size,)), _constant(flat, x)), {"axis": 0, "distinct": False})


def _along(x: Any, indices: Any, axis: Any, name: str) -> tuple[Tensor, Any, int]:
    """The tensor, its checked indices (of as many axes) and the axis."""
    x = as_tensor(x, None, name)
    axis = normalize_axis(axis, x.ndim, name)
    with x.device.guard():
        index = index_array(indices, x.device, name)
    if index.ndim != x.ndim:
        raise ValueError(
            f"{name}: indices {index.shape} must have as many axes as the tensor, {x.shape}; "
            "to pick whole slices: rt.take(x, indices, axis=axis)"
        )
    with x.device.guard():
        return x, checked(index, x.shape[axis], name, x.device), axis


def _within(x: Any, indices: Any, axis: Any, name: str) -> tuple[Tensor, Any]:
    """The tensor, and for `gather` and `scatter` the indices into it flattened: they may be shorter on other axes."""
    x, index, axis = _along(x, indices, axis, name)
    if any(n > m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != axis):
        raise ValueError(
            f"{name}: indices of shape {index.shape} reach beyond the tensor, {x.shape}, beside axis {axis}; "
            "cut them to its size"
        )
    with x.device.guard():
        return x, _flat_index(index, x.shape, axis, x.device)


def gather(x: Tensor, indices: Any, /, axis: int = -1) -> Tensor:
    """Return `out[i, j, k] = x[i, indices[i, j, k], k]` (for axis 1), of the shape of `indices`.

    Nothing broadcasts: `indices` has as many axes as `x` and may be shorter on the other axes, which reads their
    first elements. The adjoint of `scatter_add`.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1, 2], [3, 4]], device=rt.Cpu())
    >>> rt.gather(x, rt.tensor([[0, 0], [1, 0]], device=rt.Cpu()), axis=1).tolist()
    [[1, 1], [4, 3]]
    """
    x, flat = _within(x, indices, axis, "gather")
    return apply(take_index, (reshape(x, (x.size,)), _constant(flat, x)), {"axis": 0, "distinct": False})


def scatter_add(x: Tensor, indices: Any, values: Any, /, axis: int = -1) -> Tensor:
    """Return `x` with `out[i, indices[i, j, k], k] += values[i, j, k]` (for axis 1); repeated places add up.

    `values` broadcasts to the shape of `indices`. Half types are summed in float32 and rounded once. No atomics: the
    sum is formed in the same order every time.

    >>> import ruda_tensor as rt
    >>> x = rt.zeros(3, device=rt.Cpu())
    >>> rt.scatter_add(x, rt.tensor([0, 2, 0], device=rt.Cpu()), rt.tensor([1.0, 2.0, 3.0], device=rt.Cpu())).tolist()
    [4.0, 0.0, 2.0]
    """
    x, flat = _within(x, indices, axis, "scatter_add")
    if x.dtype not in FLOATING and x.dtype not in INTEGER:
        raise TypeError("scatter_add: bools cannot be added; convert first: x.astype(rt.int32)")
    y = _fit(_value(values, x, "scatter_add"), flat.shape, "scatter_add")
    y = reshape(broadcast_to(y, flat.shape), (flat.size,))
    return apply(scatter_add_flat, (x, y, _constant(flat.reshape(-1), x)))


def scatter(x: Tensor, indices: Any, values: Any, /, axis: int = -1) -> Tensor:
    """Return `x` with `out[i, indices[i, j, k], k] = values[i, j, k]` (for axis 1); of repeated places the last wins.

    `values` broadcasts to the shape of `indices`. Only the values that remain get gradient.

    >>> import ruda_tensor as rt
    >>> x = rt.zeros(3, device=rt.Cpu())
    >>> rt.scatter(x, rt.tensor([0, 2, 0], device=rt.Cpu()), rt.tensor([1.0, 2.0, 3.0], device=rt.Cpu())).tolist()
    [3.0, 0.0, 2.0]
    """
    x, flat = _within(x, indices, axis, "scatter")
    y = _fit(_value(values, x, "scatter"), flat.shape, "scatter")
    return reshape(_write(reshape(x, (x.size,)), broadcast_to(y, flat.shape), flat, 0, distinct=False), x.shape)


def _value(value: Any, x: Tensor, name: str) -> Tensor:
    """What is written into `x`, in its dtype; refuses what would lose more than precision."""
    number = scalar_of(value)
    if number is not None:
        dtype = weak_result(x.dtype, number, x.device.float_dtype, x.device.int_dtype)
    else:
        tensor_value = as_tensor(value, x, name)
        dtype = promote_types(tensor_value.dtype, x.dtype)
        if isinstance(value, (list, tuple)):  # Python numbers are weak: read again, without the detour over float32
            dtype = x.dtype if (dtype in FLOATING) == (x.dtype in FLOATING) and x.dtype != BOOL else dtype
            value = tensor(value, dtype=dtype, device=x.device)
        else:
            value = tensor_value
    if dtype != x.dtype and not (dtype in FLOATING and x.dtype in FLOATING):
        given = type(number).__name__ if number is not None else value.dtype
        raise TypeError(f"{name}: {given} values do not fit a tensor of {x.dtype}; convert it: x.astype(rt.{dtype})")
    return full_scalar(number, x.dtype, x.device) if number is not None else cast(value, x.dtype)


def _fit(y: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """The values where they broadcast to the selected shape; axes of size 1 too many in front are dropped."""
    extra = y.ndim - len(shape)
    if extra > 0 and set(y.shape[:extra]) == {1}:
        y = reshape(y, y.shape[extra:])
    if y.ndim > len(shape) or any(n not in (1, m) for n, m in zip(y.shape[::-1], shape[::-1])):
        raise ValueError(f"{name}: values of shape {y.shape} do not broadcast to the selected shape {shape}")
    return y


def _last_of_each(xp: Any, index: Any) -> Any:
    """The positions of the last occurrence of each value in a 1-D index, or None where all are distinct."""
    order = xp.argsort(index, kind="stable")
    ordered = index[order]
    last = xp.ones(index.shape, bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    kept = order[last]
    return None if kept.size == index.size else kept


def _write(x: Tensor, y: Tensor, index: Any, axis: int, distinct: bool) -> Tensor:
    """Return `x` with `y` written at `index` along `axis`; `y` has the axes of `index` in the place of `axis`."""
    y = reshape(y, (*x.shape[:axis], index.size, *x.shape[axis + 1 :]))
    index = index.reshape(-1)
    if x.device.launches and capturing():
        return _write_unseen(x, y, index, axis)
    with x.device.guard():
        kept = None if distinct else _last_of_each(x.device.xp, index)
        index = index if kept is None else index[kept]
    if kept is not None:
        y = apply(take_index, (y, _constant(kept, x)), {"axis": axis, "distinct": True})
    return apply(put_index, (x, y, _constant(index, x)), {"axis": axis})


def _write_unseen(x: Tensor, y: Tensor, index: Any, axis: int) -> Tensor:
    """`_write` where nobody can look at the indices: what is written over, or has no place, goes to a row more."""
    from .join import pad

    size, xp = x.shape[axis], x.device.xp
    with x.device.guard():
        order = xp.argsort(index, kind="stable")
        ordered = index[order]
        is_last, last = xp.empty(index.shape, bool), xp.ones(index.shape, bool)
        last[:-1] = ordered[1:] != ordered[:-1]
        is_last[order] = last
        index = xp.where(is_last & (index >= 0), index, size)
    longer = pad(x, [(0, int(a == axis)) for a in range(x.ndim)])
    longer = apply(put_index, (longer, y, _constant(index, x)), {"axis": axis})
    return getitem(longer, (slice(None),) * axis + (slice(0, size),))


def _write_where(x: Tensor, key: Any, value: Tensor) -> Tensor | None:
    """`slice_assign` of the same to all that one mask picks, which need not be found; None for other keys and values."""
    if not isinstance(key, Tensor) or key.dtype != BOOL or key.shape != x.shape[: key.ndim] or value._node is not None:
        return None
    rest = x.shape[key.ndim :]
    if value.ndim > len(rest):
        return None
    return where(reshape(key, key.shape + (1,) * len(rest)), _fit(value, rest, "slice_assign"), x)


def slice_assign(x: Tensor, key: Any, value: Any, /) -> Tensor:
    """Return `x` with `x[key] = value` done: the functional form of assignment, for any key that `x[key]` takes.

    `value` broadcasts to the shape of `x[key]` and is converted to the dtype of `x`. Where a place is written more
    than once the last value wins, on every device, and only it gets gradient; the gradient of what is overwritten is 0.

    Errors: as `x[key]`; ValueError for a value of another shape; TypeError for floats into integers.

    >>> import ruda_tensor as rt
    >>> rt.slice_assign(rt.zeros((2, 2), device=rt.Cpu()), (slice(None), 0), 7.0).tolist()
    [[7.0, 0.0], [7.0, 0.0]]
    """
    x = as_tensor(x, None, "slice_assign")
    value = _value(value, x, "slice_assign")
    if x.device.launches and capturing():
        found = _write_where(x, key, value)
        if found is not None:
            return found
    chosen = key if is_plain(key) else select(key, x.shape, x.device, "slice_assign")
    if not isinstance(chosen, Selection):
        try:
            shape = x._data[chosen].shape
        except IndexError as error:
            raise IndexError(f"slice_assign: {error}; the shape is {x.shape}, and the key {key}") from None
        return apply(assign_key, (x, _fit(value, shape, "slice_assign")), {"key": chosen})
    part = x if chosen.slices is None else getitem(x, chosen.slices)
    order = chosen.order(part.ndim)
    merged = _merge(x, chosen)
    shape = (*merged.shape[: chosen.where], *chosen.index.shape, *merged.shape[chosen.where + 1 :])
    value = broadcast_to(_fit(value, shape, "slice_assign"), shape)
    out = _write(merged, value, chosen.index, chosen.where, chosen.distinct)
    out = permute_dims(reshape(out, tuple([part.shape[a] for a in order])), np.argsort(order).tolist())
    return out if chosen.slices is None else apply(assign_key, (x, out), {"key": chosen.slices})


def one_hot(ids: Any, count: int, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor with a last axis of `count` that is 1 at the position given by each id and 0 elsewhere.

    The default dtype is the device's float. Not differentiable: ids are integers.

    Errors: IndexError for an id outside 0 to count - 1.

    >>> import ruda_tensor as rt
    >>> rt.one_hot(rt.tensor([0, 2], device=rt.Cpu()), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    ids = as_tensor(ids, None, "one_hot") if device is None else asarray(ids, device=device)
    place = ids.device
    with place.guard():
        index = ids._data
        if index.dtype not in INTEGER:
            raise TypeError(f"one_hot: ids must be integers, got {index.dtype}; convert them: ids.astype(rt.int64)")
        unchecked = place.launches and capturing()
        count = integer(count, "one_hot", "count", 0)
        if index.size and not unchecked and not 0 <= int(index.min()) <= int(index.max()) < count:
            raise IndexError(f"one_hot: ids from {index.min()} to {index.max()} must lie in 0 to {count - 1}")
        dtype = place.float_dtype if dtype is None else as_dtype(dtype)
        hot = (index[..., None] == place.xp.arange(count)).astype(dtype)
        if unchecked and dtype in FLOATING:
            hot = poisoned(place.xp, hot, ((index < 0) | (index >= count))[..., None])
        return Tensor._wrap(hot, place)


def segment_sum(x: Tensor, ids: Any, count: int, /) -> Tensor:
    """Return `out[s]`, the sum of the rows `x[i]` with `ids[i] == s`, for s from 0 to count - 1.

    `ids` (1-D, any order) has one entry per row; a negative id drops its row, in the value and in the gradient. An
    empty segment is 0. Half types are summed in float32, in a fixed order, without atomics.

    Errors: IndexError for an id of `count` or more.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0, 2.0, 4.0], device=rt.Cpu())
    >>> rt.segment_sum(x, rt.tensor([0, -1, 0], device=rt.Cpu()), 2).tolist()
    [5.0, 0.0]
    """
    x, count = as_tensor(x, None, "segment_sum"), integer(count, "segment_sum", "count", 0)
    with x.device.guard():
        index = index_array(ids, x.device, "segment_sum")
        if x.ndim == 0 or index.shape != x.shape[:1]:
            raise ValueError(f"segment_sum: needs one id for each row of {x.shape}, got ids of shape {index.shape}")
        if index.dtype not in INTEGER:
            raise TypeError(f"segment_sum: ids must be integers, got {index.dtype}; convert them: ids.astype(rt.int64)")
        unchecked = x.device.launches and capturing()
        if index.size and not unchecked and int(index.max()) >= count:
            raise IndexError(f"segment_sum: id {index.max()} is out of range for {count} segments (0 to {count - 1})")
        wrong = index >= count
        index = index.astype(INT64, copy=False)
        index = x.device.xp.where((index < 0) | wrong, count, index)  # one segment more, for what is dropped
    out = apply(accumulate_index, (x, _constant(index, x)), {"size": count + 1, "axis": 0, "distinct": False})
    out = getitem(out, slice(0, count))
    if unchecked and x.dtype in FLOATING:
        out = where(_constant(wrong.any(), x), float("nan"), out)
    return out
