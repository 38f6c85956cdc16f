"""Data types, their classes, and the one promotion table that both backends share.

A dtype is a NumPy dtype object: `float32`, `bfloat16` (from ml_dtypes) and so on. NumPy and CuPy would choose other
result types for half precision and for scalars, and choose differently between versions, so nothing here asks them.
"""
from __future__ import annotations

from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np

BOOL = np.dtype("bool")
INT8, INT16, INT32, INT64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
UINT8, UINT16, UINT32, UINT64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
FLOAT16, FLOAT32, FLOAT64 = (np.dtype(f"float{n}") for n in (16, 32, 64))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

SIGNED = (INT8, INT16, INT32, INT64)
UNSIGNED = (UINT8, UINT16, UINT32, UINT64)
FLOATING = frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64))
INTEGER = frozenset(SIGNED + UNSIGNED)
HALF = frozenset((FLOAT16, BFLOAT16))
ALL = frozenset((BOOL, *INTEGER, *FLOATING))
_CANONICAL = {d: d for d in ALL}  # equal dtype objects -> the one that arrays hold, which hot paths compare by `is`
BY_NAME = {str(d): d for d in sorted(ALL, key=str)}


class FloatDType(Enum):
    """The float storage types by short name; `.dtype` is the dtype object.

    >>> FloatDType.BF16.dtype
    dtype(bfloat16)
    """

    F16 = "float16"
    BF16 = "bfloat16"
    F32 = "float32"
    F64 = "float64"

    @property
    def dtype(self) -> np.dtype:
        return BY_NAME[self.value]


def as_dtype(dtype: Any) -> np.dtype:
    """Return the supported dtype that a dtype object, name, Python type or FloatDType means, or raise TypeError."""
    if type(dtype) is type(FLOAT32) and dtype in _CANONICAL:
        return _CANONICAL[dtype]
    if isinstance(dtype, FloatDType):
        return dtype.dtype
    if dtype is float:
        return FLOAT32
    if dtype is int:
        return INT32
    if dtype is complex:
        raise TypeError("complex dtypes are not supported; hold the real and imaginary parts in two tensors")
    try:
        found = BY_NAME[dtype] if isinstance(dtype, str) else np.dtype(dtype).newbyteorder("=")
    except (TypeError, KeyError):
        found = None
    if found not in ALL:
        raise TypeError(f"unknown dtype {dtype!r}; supported: {', '.join(BY_NAME)}")
    return BY_NAME[str(found)]


def is_floating(dtype: np.dtype) -> bool:
    return dtype in FLOATING


def is_integer(dtype: np.dtype) -> bool:
    return dtype in INTEGER


def _promote(a: np.dtype, b: np.dtype) -> np.dtype | None:
    """The array API table (2024.12, type promotion), with bool below ints, ints below floats, and the half types."""
    if a == b or b == BOOL:
        return a
    if a == BOOL:
        return b
    if a in FLOATING and b in FLOATING:
        if {a, b} == {FLOAT16, BFLOAT16}:
            return FLOAT32  # neither holds the other
        return a if a.itemsize > b.itemsize else b
    if a in FLOATING:
        return a
    if b in FLOATING:
        return b
    if (a in SIGNED) == (b in SIGNED):
        return a if a.itemsize > b.itemsize else b
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return None if unsigned == UINT64 else SIGNED[UNSIGNED.index(unsigned) + 1]


TABLE = {(a, b): _promote(a, b) for a in ALL for b in ALL}


def promote_types(a: np.dtype, b: np.dtype) -> np.dtype:
    """Return the dtype that holds a result of the two; TypeError for uint64 with a signed integer, which none holds."""
    found = TABLE[a, b]
    if found is None:
        raise TypeError(f"no integer dtype holds both {a} and {b}; cast one first: x.astype(rt.int64)")
    return found


def weak_result(dtype: np.dtype, scalar: Any, float_dtype: np.dtype = FLOAT32, int_dtype: np.dtype = INT32) -> np.dtype:
    """The result dtype of a tensor of `dtype` with a Python scalar: the scalar's kind counts, its width does not."""
    if isinstance(scalar, bool):
        return dtype
    if isinstance(scalar, int):
        return int_dtype if dtype == BOOL else dtype
    if isinstance(scalar, float):
        return dtype if dtype in FLOATING else float_dtype
    raise TypeError(f"cannot combine a tensor of {dtype} with {type(scalar).__name__} {scalar!r}; give a number or tensor")
