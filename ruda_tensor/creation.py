"""Creating tensors: from values, from other libraries' arrays, and filled or ranged."""
from __future__ import annotations

import sys
from array import array as NumberArray
from typing import Any

import numpy as np

from . import backend
from .devices import Cpu, Cuda, Device, resolve_device
from .dtypes import ALL, BFLOAT16, BOOL, as_dtype, weak_result
from .ops._common import as_tensor, cast, full_scalar, resolve_dtype, scalar_of, value_of
from .ranges import arange, diag, eye, linspace, meshgrid, tril, triu
from .tensor import Tensor

__all__ = [
    "arange", "asarray", "diag", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "linspace",
    "meshgrid", "ones", "ones_like", "tensor", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


def _host_array(values: Any, dtype: np.dtype | None, device: Device) -> np.ndarray:
    """Nested lists and numbers as a NumPy array: Python numbers get the device's default dtypes, arrays keep theirs."""
    held = _types(values)
    if any(issubclass(kind, Tensor) for kind in held):
        raise TypeError("tensor: the list holds tensors; join them on the tape: rt.stack([x, y])")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"tensor: the nested lists do not form a rectangle ({error})") from None
    if dtype is None and not any(map(_is_array, held)):
        if array.dtype.kind == "f":
            dtype = device.float_dtype
        elif array.dtype.kind in "iu":
            dtype = device.int_dtype
        if array.size == 0:
            dtype = device.float_dtype
    target = array.dtype if dtype is None else dtype
    if target.newbyteorder("=") not in ALL:
        raise TypeError(f"tensor: values of dtype {array.dtype} are not supported; give numbers or bools, or dtype=")
    if dtype is not None and dtype.kind in "iu" and array.dtype.kind == "f" and isinstance(values, (list, tuple, float)):
        array = _whole(values, dtype)
    if dtype is not None and dtype.kind in "iu" and array.dtype.kind in "iu" and array.size:
        info, low, high = np.iinfo(dtype), int(array.min()), int(array.max())
        if low < info.min or high > info.max:
            wide = "int64" if high < 2**63 else "uint64" if low >= 0 else "float64"
            raise OverflowError(f"tensor: values from {low} to {high} do not fit {dtype}; give dtype=rt.{wide}")
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range of a float type is inf, as in `full`
        return array.astype(as_dtype(target))  # always a copy: a tensor's memory is nobody else's


def _whole(values: Any, dtype: np.dtype) -> np.ndarray:
    """Numbers as integers, exactly: NumPy alone holds [2**63, 1] and [2**64 - 1, 0] as floats."""
    try:
        return np.asarray(values, dtype)
    except (ValueError, OverflowError) as error:
        raise type(error)(f"tensor: {error}; give numbers that {dtype} holds") from None


def _types(values: Any) -> set[type]:
    """The types of what nested lists and tuples hold, or of what is no list."""
    if not isinstance(values, (list, tuple)):
        return {type(values)}
    found = set(map(type, values))
    nested = {kind for kind in found if issubclass(kind, (list, tuple))}
    return found.difference(nested).union(*[_types(v) for v in values if type(v) in nested]) if nested else found


def _is_array(kind: type) -> bool:
    """True for arrays of any library, which have a dtype of their own; NumPy's scalars count as Python's numbers."""
    return hasattr(kind, "__array__") and not issubclass(kind, np.generic) or issubclass(kind, (memoryview, NumberArray))


def tensor(values: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor that copies `values`: a number, nested lists, an array of NumPy, CuPy or another library, or a tensor.

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
    if hasattr(values, "__dlpack__") and not isinstance(values, (np.ndarray, np.generic)):
        found = from_dlpack(values)
        if found.device.kind != "cpu":
            return tensor(found, dtype=dtype, device=device)
        values = found._data
    place = resolve_device(device)
    array = _host_array(values, wanted, place)
    return Tensor._wrap(place.put(array) if scalar_of(values) is None else place.number(array), place)


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
    place, value = resolve_device(device), value_of(fill_value, "full")
    if isinstance(fill_value, Tensor) and dtype is None:
        dtype = fill_value.dtype
    if value is None:
        raise TypeError(f"full: the fill value must be a number, got {type(fill_value).__name__}")
    kind = weak_result(BOOL, value, place.float_dtype, place.int_dtype)
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
    return {
        "shape": x.shape, "dtype": x.dtype if dtype is None else dtype, "device": x.device if device is None else device,
    }  # fmt: skip


def zeros_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros of the shape, dtype and device of `x`.

    >>> import ruda_tensor as rt
    >>> rt.zeros_like(rt.tensor([1, 2], device=rt.Cpu())).numpy()
    array([0, 0], dtype=int32)
    """
    return zeros(**_like(x, dtype, device, "zeros_like"))


def ones_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones of the shape, dtype and device of `x`.

    >>> import ruda_tensor as rt
    >>> rt.ones_like(rt.tensor([1, 2], device=rt.Cpu())).numpy()
    array([1, 1], dtype=int32)
    """
    return ones(**_like(x, dtype, device, "ones_like"))


def empty_like(x: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of the shape, dtype and device of `x` whose values are whatever the memory held.

    >>> import ruda_tensor as rt
    >>> rt.empty_like(rt.tensor([1, 2], device=rt.Cpu())).dtype
    dtype('int32')
    """
    return empty(**_like(x, dtype, device, "empty_like"))


def full_like(x: Any, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a tensor of the shape, dtype and device of `x`, filled with one number.

    >>> import ruda_tensor as rt
    >>> rt.full_like(rt.tensor([1, 2], device=rt.Cpu()), 7).numpy()
    array([7, 7], dtype=int32)
    """
    return full(fill_value=fill_value, **_like(x, dtype, device, "full_like"))


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return another library's array (NumPy, CuPy, PyTorch, JAX ...) as a tensor that shares its memory where it can.

    Memory is shared on the device where it is, unless `copy=True`: do not change the array while the tensor is used.

    Errors: BufferError for a tracked tensor; ValueError where `copy=False` and another device is asked for.

    >>> import numpy as np
    >>> import ruda_tensor as rt
    >>> a = np.ones(2)
    >>> x = rt.from_dlpack(a)
    >>> np.shares_memory(np.asarray(x), a)
    True
    """
    data, source = _imported(x)
    dtype = as_dtype(data.dtype)
    if not data.dtype.isnative:
        raise BufferError(f"from_dlpack: {data.dtype} is of the other byte order; copy it: rt.tensor(x)")
    out = Tensor._wrap(data.view(dtype), source)  # an equal dtype may be another object, and hot paths compare by `is`
    target = source if device is None else resolve_device(device)
    if target != source:
        if copy is False:
            raise ValueError(f"from_dlpack: the array is on {source}, and copy=False forbids to copy it to {target}")
        return out.to_device(target)
    return out.copy() if copy else out


def _imported(x: Any) -> tuple[Any, Device]:
    """The array behind a DLPack object, in NumPy or CuPy, and the device it is on."""
    if isinstance(x, Tensor):
        if x.is_require_grad():
            raise BufferError("from_dlpack: a tracked tensor would lose its place on the tape; first: x.detach()")
        return x._data, x.device
    if isinstance(x, np.ndarray):
        return np.asarray(x), Cpu()  # a plain array: matrices and masked arrays have operators of their own
    if backend.is_cupy_array(x):
        return x, Cuda(backend.cuda_index(x))
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise TypeError(f"from_dlpack: {type(x).__name__} does not speak DLPack; copy it instead: rt.tensor(x)")
    kind, index = x.__dlpack_device__()
    if int(kind) in (1, 3):  # host memory, pinned or not
        return _from_host(x), Cpu()
    if int(kind) in (2, 13):  # CUDA memory, managed or not
        place = Cuda(int(index))
        with place.guard():
            return place.xp.from_dlpack(x), place
    raise ValueError(f"from_dlpack: DLPack device {int(kind)} is not host or CUDA memory; copy the array to the host")


def _from_host(x: Any) -> np.ndarray:
    if str(getattr(x, "dtype", "")) == "torch.bfloat16":  # NumPy's DLPack has no bfloat16: pass its bits
        return np.from_dlpack(x.view(sys.modules["torch"].int16)).view(BFLOAT16)
    return np.from_dlpack(x)
