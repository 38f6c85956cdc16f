"""What stands between square brackets: from a key to slices, and to one array of checked, non-negative indices."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import BOOL, INT64, INTEGER, UINT64
from ..kernels.ids import look
from ..recording import capturing, refuse_while_capturing
from ..tensor import Tensor

NOWHERE = -(2**63)  # the index, in a captured step, of what is no element: picking gives NaN, and nothing is added there
PLAIN = frozenset((int, slice, type(None), type(Ellipsis)))


def is_plain(key: Any) -> bool:
    """True for a key of exact ints, slices, None and an ellipsis, which needs no preparation: a view."""
    kind = type(key)
    return all(type(k) in PLAIN for k in key) if kind is tuple else kind in PLAIN


def checked(index: Any, size: int, name: str, device: Any) -> Any:
    """Return integer indices into an axis of `size` as non-negative int64, or raise IndexError.

    CuPy would read foreign memory, so values are looked at on every device; on a GPU this waits for it. In a step that
    is being captured nothing can wait, and what is out of range becomes `NOWHERE` (see `nowhere`).
    """
    if index.dtype not in INTEGER:
        raise TypeError(f"{name}: indices must be integers, got {index.dtype}; convert them: i.astype(rt.int64)")
    xp = device.xp
    if index.size and device.launches and capturing():
        signed = index.astype(INT64, copy=False)
        signed = xp.where(signed < 0, signed + size, signed)
        return xp.where((signed < 0) | (signed >= size), NOWHERE, signed)
    if index.size:
        seen = look(xp, index, size) if device.launches else None
        if seen is not None and not seen.outside:
            return seen.ids
        signed = index.astype(INT64, copy=False)
        if int(signed.view(UINT64).max()) < size:  # what is negative is a huge number there
            return signed
        low, high = int(index.min()), int(index.max())
        if low < -size or high >= size:
            wrong = high if high >= size else low
            allowed = f"valid ones are {-size} to {size - 1}" if size else "the axis is empty, so there is no valid one"
            raise IndexError(f"{name}: index {wrong} is out of range for an axis of size {size}; {allowed}")
        index = index.astype(INT64, copy=False)
        return xp.where(index < 0, index + size, index) if low < 0 else index
    return index.astype(INT64, copy=False)


def nowhere(total: Any, device: Any, *indices: Any) -> Any:
    """Return indices computed from others, with NOWHERE for those of which one is: arithmetic does not keep it."""
    if device.launches and capturing():
        for index in indices:
            total = device.xp.where(index == NOWHERE, NOWHERE, total)
    return total


def _refuse_mask(device: Any, name: str) -> None:
    """Raise in a captured step, whose shapes are fixed."""
    if device.launches:
        refuse_while_capturing(
            f"{name} by a mask, which the host must read to know how much it picks,",
            "rt.where(mask, x, other) keeps the shape; or find the places before the step, and give them as an input",
        )


def index_array(value: Any, device: Any, name: str) -> Any:
    """Return indices or a mask, given as a tensor, an array or a list, as an array on `device`; not yet checked.

    In a captured step a list of numbers is one of its constants, as a slice is.
    """
    if isinstance(value, Tensor):
        if value.device != device:
            place = f"indices on {value.device} for a tensor on {device}"
            raise ValueError(f"{name}: {place}; move them: i.to_device({device!r})")
        return value._data
    if backend.is_cupy_array(value):
        return device.xp.array(value)
    if isinstance(value, (list, tuple, range)) and any(isinstance(v, Tensor) for v in value):
        value = [v.__index__() if isinstance(v, Tensor) and v.ndim == 0 else v for v in value]
    try:
        array = np.array(value)  # a copy: the caller may change an array of his own before backward
    except ValueError:
        raise TypeError(f"{name}: indices must form a rectangle of integers, got {value!r}") from None
    if isinstance(value, np.ndarray):
        if array.dtype == BOOL:
            _refuse_mask(device, name)
        return device.put(array)
    return device.constant(array.astype(INT64) if array.size == 0 else array)


@dataclass(frozen=True)
class Selection:
    """A key with arrays, taken apart: `slices` first (None where they take everything), then `index` into some axes.

    The axes `axes` of what the slices leave are picked by `index`, whose entries point into those axes merged into
    one (row-major). The result has the axes of `index` at `where`. `distinct`: no element is picked twice.
    """

    slices: tuple | None
    axes: tuple[int, ...]
    index: Any
    where: int
    distinct: bool

    def order(self, ndim: int) -> tuple[int, ...]:
        """The order of axes that brings the picked ones together, starting at `where`."""
        rest = [a for a in range(ndim) if a not in self.axes]
        return (*rest[: self.where], *self.axes, *rest[self.where :])


def _item(k: Any, device: Any, name: str) -> Any:
    """One element of a key: an int, slice, None, Ellipsis, or an array of integers or bools."""
    if type(k) in PLAIN:
        return k
    if isinstance(k, (bool, np.bool_)):
        return device.number(np.asarray(k))
    if isinstance(k, (Tensor, np.ndarray, list, tuple, range)) or backend.is_cupy_array(k):
        array = index_array(k, device, name)
        if array.dtype not in INTEGER and array.dtype != BOOL:
            raise TypeError(f"{name}: an index is integers or bools, not {array.dtype}; convert: i.astype(rt.int64)")
        return int(array) if array.ndim == 0 and array.dtype != BOOL else array
    if hasattr(k, "__index__"):
        return k.__index__()
    raise TypeError(
        f"{name}: {k!r} ({type(k).__name__}) is no index; use integers, slices, ..., None, bools or integer arrays: "
        "x[0, 1:, [2, 3]]"
    )


def _expanded(key: Any, shape: tuple[int, ...], device: Any, name: str) -> list:
    """The key's elements, one for each axis of `shape` (masks: one for all of theirs) besides the None ones.

    A `...` that stands for no axis is kept: between two arrays it separates them all the same.
    """
    items = [_item(k, device, name) for k in (key if isinstance(key, tuple) else (key,))]
    used = sum([0 if k is None or k is Ellipsis else k.ndim if getattr(k, "dtype", None) == BOOL else 1 for k in items])
    dots = [i for i, k in enumerate(items) if k is Ellipsis]
    if used > len(shape):
        raise IndexError(f"{name}: {used} indices for a tensor of shape {shape}, which has {len(shape)} axes")
    if len(dots) > 1:
        raise IndexError(f"{name}: only one ... may stand in an index")
    at = dots[0] if dots else len(items)
    free = len(shape) - used
    return items[:at] + ([slice(None)] * free or [Ellipsis] * bool(dots)) + items[at + 1 :]


def select(key: Any, shape: tuple[int, ...], device: Any, name: str = "getitem") -> Selection | tuple:
    """Take a key apart: a tuple of plain elements where it holds no array, else a Selection."""
    with device.guard():
        items = _expanded(key, shape, device, name)
        return tuple(items) if all(type(k) in PLAIN for k in items) else _selection(items, shape, device, name)


def _selection(items: list, shape: tuple[int, ...], device: Any, name: str) -> Selection:
    slices: list = []
    found: list[tuple[int, int, Any]] = []  # (axis after slicing, its size, indices)
    distinct, axis, apart = True, 0, False
    for i, k in enumerate(items):
        at = len(slices)
        if k is Ellipsis:
            apart = bool(found) and any(type(j) is not slice and j is not None for j in items[i + 1 :])
        elif k is None:
            slices.append(None)
        elif type(k) is slice:
            slices.append(k)
            axis += 1
        elif type(k) is int:
            found.append((at, shape[axis], device.number(np.asarray(k, INT64))))
            slices.append(slice(None))
            axis += 1
        elif k.dtype == BOOL:
            if k.shape != shape[axis : axis + k.ndim]:
                axes = f"axes {axis} to {axis + k.ndim - 1} of {shape}"
                raise IndexError(f"{name}: a mask of shape {k.shape} does not fit {axes}; the sizes must be equal")
            _refuse_mask(device, name)
            if k.ndim == 0:  # a new axis of which one or no element is taken
                found.append((at, 1, device.xp.zeros(1 if k else 0, INT64)))
                slices.append(None)
            for j, one in enumerate(device.xp.nonzero(k) if k.ndim else ()):
                found.append((at + j, k.shape[j], one))
                slices.append(slice(None))
            axis += k.ndim
        else:
            found.append((at, shape[axis], k))
            slices.append(slice(None))
            axis += 1
            distinct = distinct and k.size == 1
    axes = tuple([a for a, _, _ in found])
    together = axes[-1] - axes[0] == len(axes) - 1 and not apart
    trivial = all(type(s) is slice and s == slice(None) for s in slices)
    index = _merged(found, device, name)
    return Selection(None if trivial else tuple(slices), axes, index, axes[0] if together else 0, distinct)


def _merged(found: list[tuple[int, int, Any]], device: Any, name: str) -> Any:
    """The indices into several axes as one array into their merged axis, checked."""
    arrays = [checked(one, size, name, device) for _, size, one in found]
    if len(arrays) == 1:
        return arrays[0]
    total = None
    for k, one in enumerate(arrays):
        part = one * math.prod([size for _, size, _ in found[k + 1 :]])
        try:
            total = part if total is None else total + part
        except ValueError:
            shapes = ", ".join(str(a.shape) for a in arrays)
            raise IndexError(f"{name}: index arrays of {shapes} do not broadcast; sizes must be equal or 1") from None
    return nowhere(total, device, *arrays)
