"""Creating tensors: from values, from other libraries' arrays, and filled or ranged."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import backend
from .devices import Cpu, Cuda, Device, resolve_device
from .dtypes import ALL, FLOATING, as_dtype
from .ops._common import as_tensor, cast, full_scalar, resolve_dtype, scalar_of
from .tensor import Tensor

__all__ = [
    "arange", "asarray", "empty", "empty_like", "full", "full_like", "ones", "ones_like", "tensor", "zeros", "zeros_like",
]  # fmt: skip


def _host_array(values: Any, dtype: np.dtype | None, device: Device) -> np.ndarray:
    """Nested lists and numbers as a NumPy array: Python numbers get the device's default dtypes, arrays keep theirs."""
    if _holds(values, Tensor):
        raise TypeError("tensor: the list holds tensors; join them on the tape: rt.stack([x, y])")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"tensor: the nested lists do not form a rectangle ({error})") from None
    if dtype is None and not isinstance(values, np.ndarray) and not _holds(values, np.ndarray):
        if array.dtype.kind == "f":
            dtype = device.float_dtype
        elif array.dtype.kind in "iu":
            dtype = device.int_dtype
        if array.size == 0:
            dtype = device.float_dtype
    target = array.dtype if dtype is None else dtype
    if target.newbyteorder("=") not in ALL:
        raise TypeError(f"tensor: values of dtype {array.dtype} are not supported; give numbers or bools, or dtype=")
    if dtype is not None and dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
        info, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
        if low < info.min or high > info.max:
            raise OverflowError(f"tensor: values from {low} to {high} do not fit {dtype}; give dtype=rt.int64")
    return array.astype(as_dtype(target))  # always a copy: a tensor's memory is nobody else's


def _holds(values: Any, kind: type) -> bool:
    return isinstance(values, (list, tuple)) and any(isinstance(v, kind) or _holds(v, kind) for v in values)


def _place(array: Any, device: Device) -> Tensor:
    with device.guard():
        return Tensor._wrap(array if isinstance(device, Cpu) else device.xp.asarray(array), device)


def tensor(values: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor that copies `values`: a number, nested lists, a NumPy or CuPy array, or a tensor.

    Python numbers become the device's default dtypes (float32, int32); arrays keep the dtype they came with.

    >>> import ruda_tensor as rt
    >>> rt.tensor([[1, 2], [3, 4]], dtype=rt.float64, device=rt.Cpu()).dtype
    dtype('float64')
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(values, Tensor):
        out = values if device is None else values.to_device(resolve_device(device))
        out = out if wanted is None else cast(out, wanted)
        return out.copy() if out is values or out._data is values._data else out
    if backend.is_cupy_array(values):
        place = Cuda(backend.cuda_index(values)) if device is None else resolve_device(device)
        if isinstance(place, Cpu):
            return tensor(backend.to_host(values), dtype=dtype, device=place)
        with place.guard():
            return Tensor._wrap(values.astype(as_dtype(values.dtype if wanted is None else wanted), copy=True), place)
    place = resolve_device(device)
    return _place(_host_array(values, wanted, place), place)


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return `obj` as a tensor; a tensor that fits already is returned itself unless `copy=True`.

    Errors: ValueError where `copy=False` and a copy is needed.

    >>> import ruda_tensor as rt
    >>> x = rt.ones(2, device=rt.Cpu())
    >>> rt.asarray(x) is x
    True
    """
    if isinstance(obj, Tensor):
        wanted = obj.dtype if dtype is None else as_dtype(dtype)
        place = obj.device if device is None else resolve_device(device)
        if wanted == obj.dtype and place == obj.device:
            return obj.copy() if copy else obj
    if copy is False:
        raise ValueError("asarray: this needs a copy, and copy=False forbids it; leave copy out")
    return tensor(obj, dtype=dtype, device=device)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of `shape` filled with one number.

    >>> import ruda_tensor as rt
    >>> rt.full((2,), 7, device=rt.Cpu()).numpy()
    array([7, 7], dtype=int32)
    """
    place, value = resolve_device(device), scalar_of(fill_value)
    if isinstance(fill_value, Tensor) and fill_value.ndim == 0:
        value, dtype = fill_value.item(), fill_value.dtype if dtype is None else dtype
    if value is None:
        raise TypeError(f"full: the fill value must be a number, got {type(fill_value).__name__}")
    kind = np.dtype("bool") if isinstance(value, bool) else place.int_dtype if isinstance(value, int) else place.float_dtype
    dtype = resolve_dtype(dtype, kind)
    scalar = full_scalar(value, dtype, place)
    with place.guard():
        data = place.xp.empty(_shape(shape, "full"), dtype)
        data[...] = scalar._data
        return Tensor._wrap(data, place)


def _shape(shape: Any, name: str) -> tuple[int, ...]:
    try:
        sizes = (shape.__index__(),) if hasattr(shape, "__index__") else tuple(n.__index__() for n in shape)
    except (AttributeError, TypeError):
        raise TypeError(f"{name}: a shape is an integer or several, got {shape!r}") from None
    if any(n < 0 for n in sizes):
        raise ValueError(f"{name}: the shape {sizes} has a negative size")
    return sizes


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of zeros.

    >>> import ruda_tensor as rt
    >>> rt.zeros((2,), device=rt.Cpu()).numpy()
    array([0., 0.], dtype=float32)
    """
    place = resolve_device(device)
    with place.guard():
        return Tensor._wrap(place.xp.zeros(_shape(shape, "zeros"), resolve_dtype(dtype, place.float_dtype)), place)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of ones.

    >>> import ruda_tensor as rt
    >>> rt.ones((2,), device=rt.Cpu()).numpy()
    array([1., 1.], dtype=float32)
    """
    place = resolve_device(device)
    with place.guard():
        return Tensor._wrap(place.xp.ones(_shape(shape, "ones"), resolve_dtype(dtype, place.float_dtype)), place)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor whose values are whatever the memory held.

    >>> import ruda_tensor as rt
    >>> rt.empty((2, 3), device=rt.Cpu()).shape
    (2, 3)
    """
    place = resolve_device(device)
    with place.guard():
        return Tensor._wrap(place.xp.empty(_shape(shape, "empty"), resolve_dtype(dtype, place.float_dtype)), place)


def _like(x: Any, dtype: Any, device: Any, name: str) -> dict[str, Any]:
    x = as_tensor(x, None, name)
    return {"dtype": x.dtype if dtype is None else dtype, "device": x.device if device is None else device}


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of the shape, dtype and device of `x`.

    >>> import ruda_tensor as rt
    >>> rt.zeros_like(rt.tensor([1, 2], device=rt.Cpu())).numpy()
    array([0, 0], dtype=int32)
    """
    return zeros(x.shape, **_like(x, dtype, device, "zeros_like"))


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones of the shape, dtype and device of `x`.

    >>> import ruda_tensor as rt
    >>> rt.ones_like(rt.tensor([1, 2], device=rt.Cpu())).numpy()
    array([1, 1], dtype=int32)
    """
    return ones(x.shape, **_like(x, dtype, device, "ones_like"))


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of the shape, dtype and device of `x` whose values are whatever the memory held.

    >>> import ruda_tensor as rt
    >>> rt.empty_like(rt.tensor([1, 2], device=rt.Cpu())).dtype
    dtype('int32')
    """
    return empty(x.shape, **_like(x, dtype, device, "empty_like"))


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of the shape, dtype and device of `x`, filled with one number.

    >>> import ruda_tensor as rt
    >>> rt.full_like(rt.tensor([1, 2], device=rt.Cpu()), 7).numpy()
    array([7, 7], dtype=int32)
    """
    return full(x.shape, fill_value, **_like(x, dtype, device, "full_like"))


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return start, start + step, ... up to but without stop (from 0 where only stop is given).

    Whole numbers give the device's default integer dtype, others its float. Each value is start + i * step, formed
    in float64 and rounded once.

    >>> import ruda_tensor as rt
    >>> rt.arange(2, 8, 3, device=rt.Cpu()).numpy()
    array([2, 5], dtype=int32)
    """
    place = resolve_device(device)
    if stop is None:
        start, stop = 0, start
    first, last, by = (_number(v, "arange") for v in (start, stop, step))
    if by == 0:
        raise ValueError("arange: the step is 0; give a positive or negative one")
    whole = all(isinstance(v, int) for v in (first, last, by))
    wanted = resolve_dtype(dtype, place.int_dtype if whole else place.float_dtype)
    count = max(0, -((first - last) // by)) if whole else max(0, math.ceil((last - first) / by))
    with place.guard():
        if whole and wanted not in FLOATING:
            for value in (first, first + max(0, count - 1) * by) if count else ():
                full_scalar(value, wanted, place)  # refuses a value that the dtype cannot hold
            kind = np.dtype("uint64") if wanted == np.dtype("uint64") else np.dtype("int64")
            data = place.xp.arange(count, dtype=kind) * by + first if count else place.xp.empty(0, kind)
        else:
            data = place.xp.arange(count, dtype=np.dtype("float64")) * by + first
        return Tensor._wrap(data.astype(wanted), place)


def _number(value: Any, name: str) -> Any:
    found = value.item() if isinstance(value, Tensor) and value.ndim == 0 else scalar_of(value)
    if found is None or isinstance(found, bool):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return found
