"""Asking about dtypes, changing them, and what this namespace can do (array API 2024.12)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from . import backend
from .devices import Cpu, Cuda, Device, default_device, resolve_device
from .dtypes import (
    BOOL,
    BY_NAME,
    FLOATING,
    INTEGER,
    SIGNED,
    TABLE,
    UNSIGNED,
    as_dtype,
    promote_types,
    weak_result,
)  # fmt: skip
from .ops._common import as_tensor, cast, scalar_of
from .tensor import Tensor

__all__ = ["__array_namespace_info__", "astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """Return `x` in another dtype, and on another device if one is named; differentiable between floats.

    Floats become integers by truncation, and then carry no gradient. Tensors are immutable, so a tensor that has the
    dtype already is returned itself.

    >>> import ruda_tensor as rt
    >>> rt.astype(rt.tensor([1.7, -1.7], device=rt.Cpu()), rt.int32).numpy()
    array([ 1, -1], dtype=int32)
    """
    x = as_tensor(x, None, "astype")
    wanted = as_dtype(dtype)
    if device is not None:
        x = x.to_device(resolve_device(device))
    return cast(x, wanted)


def _dtype_of(x: Any) -> np.dtype:
    return x.dtype if isinstance(x, (Tensor, np.ndarray)) else as_dtype(x)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Return whether promotion may take a tensor's or given dtype to `to`: whether `to` holds both.

    >>> import ruda_tensor as rt
    >>> rt.can_cast(rt.int32, rt.float32), rt.can_cast(rt.float32, rt.bfloat16)
    (True, False)
    """
    target = as_dtype(to)
    return TABLE[_dtype_of(from_), target] == target


def result_type(*operands: Any) -> np.dtype:
    """Return the dtype in which tensors, dtypes and Python numbers meet; numbers count by kind, not by width.

    Errors: TypeError where no dtype holds all, as for uint64 with a signed one.

    >>> import ruda_tensor as rt
    >>> rt.result_type(rt.float16, rt.bfloat16), rt.result_type(rt.int8, 2.5), rt.result_type(rt.float16, 2.5)
    (dtype('float32'), dtype('float32'), dtype('float16'))
    """
    if not operands:
        raise ValueError("result_type: give at least one tensor, dtype or number")
    found, numbers = None, []
    for x in operands:
        value = None if isinstance(x, type) else scalar_of(x)
        if value is not None:
            numbers.append(value)
        else:
            found = _dtype_of(x) if found is None else promote_types(found, _dtype_of(x))
    device = next((x.device for x in operands if isinstance(x, Tensor)), Cpu())
    found = BOOL if found is None else found
    for value in numbers:
        found = weak_result(found, value, device.float_dtype, device.int_dtype)
    return found


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating dtype, as Python floats.

    >>> import ruda_tensor as rt
    >>> rt.finfo(rt.bfloat16).eps
    0.0078125
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: np.dtype


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype.

    >>> import ruda_tensor as rt
    >>> rt.iinfo(rt.int8).max
    127
    """

    bits: int
    max: int
    min: int
    dtype: np.dtype


def finfo(type: Any, /) -> FloatInfo:
    """Return bits, eps, max, min and smallest_normal of a floating dtype or a tensor's.

    >>> import ruda_tensor as rt
    >>> rt.finfo(rt.float16).max
    65504.0
    """
    dtype = _dtype_of(type)
    if dtype not in FLOATING:
        raise TypeError(f"finfo: {dtype} is not a floating dtype; for integers: rt.iinfo({str(dtype)!r})")
    info = ml_dtypes.finfo(dtype)
    return FloatInfo(
        int(info.bits), float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), dtype
    )


def iinfo(type: Any, /) -> IntegerInfo:
    """Return bits, max and min of an integer dtype or a tensor's.

    >>> import ruda_tensor as rt
    >>> rt.iinfo(rt.uint8).max
    255
    """
    dtype = _dtype_of(type)
    if dtype not in INTEGER:
        raise TypeError(f"iinfo: {dtype} is not an integer dtype; for floats: rt.finfo({str(dtype)!r})")
    info = np.iinfo(dtype)
    return IntegerInfo(int(info.bits), int(info.max), int(info.min), dtype)


KINDS = {
    "bool": frozenset((BOOL,)),
    "signed integer": frozenset(SIGNED),
    "unsigned integer": frozenset(UNSIGNED),
    "integral": INTEGER,
    "real floating": FLOATING,
    "complex floating": frozenset(),
    "numeric": INTEGER | FLOATING,
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Return whether a dtype is of a kind: another dtype, a name such as "integral", or a tuple of these.

    The names are bool, signed integer, unsigned integer, integral, real floating, complex floating and numeric.

    >>> import ruda_tensor as rt
    >>> rt.isdtype(rt.bfloat16, "real floating"), rt.isdtype(rt.int8, ("bool", rt.int16))
    (True, False)
    """
    dtype = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dtype in KINDS[kind]
    try:
        return dtype == as_dtype(kind)
    except TypeError:
        raise TypeError(f"isdtype: unknown kind {kind!r}; the names are {', '.join(KINDS)}, or give a dtype") from None


class NamespaceInfo:
    """What this namespace can do: the inspection interface of the array API.

    >>> import ruda_tensor as rt
    >>> rt.__array_namespace_info__().capabilities()["boolean indexing"]
    True
    """

    def capabilities(self) -> dict[str, Any]:
        """Return which optional parts exist: boolean masks, shapes that depend on data, and the most axes."""
        # CuPy's kernels take 25 axes; NumPy takes 64
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 25}

    def default_device(self) -> Device:
        """Return the device used where none is named."""
        return default_device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Return the dtypes that Python numbers get on a device; indices are int64."""
        place = resolve_device(device)
        return {"real floating": place.float_dtype, "integral": place.int_dtype, "indexing": np.dtype("int64")}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """Return the supported dtypes by name, all or those of a kind (see isdtype)."""
        resolve_device(device)
        return {name: dtype for name, dtype in BY_NAME.items() if kind is None or isdtype(dtype, kind)}

    def devices(self) -> list[Device]:
        """Return the devices that can be used in this process."""
        return [Cpu(), *(Cuda(i) for i in range(_gpu_count()))]


def _gpu_count() -> int:
    return 0 if backend.gpu_problem() is not None else backend.cupy().cuda.runtime.getDeviceCount()


def __array_namespace_info__() -> NamespaceInfo:
    """Return the inspection interface of the array API: capabilities, devices and dtypes.

    >>> import ruda_tensor as rt
    >>> rt.__array_namespace_info__().default_dtypes(device=rt.Cpu())["integral"]
    dtype('int32')
    """
    return NamespaceInfo()
