"""The gate before every kernel: whether it may run on these arrays, and how it reads them.

A binding asks `opened` first and returns None where the gate is shut, so that the plain body runs instead:

    real = opened(xp, x, weight)
    if real is None:
        return None
"""
from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, FLOATING, HALF
from .launch import runtime

CTYPES = {FLOAT32: "float", FLOAT64: "double", FLOAT16: "Half", BFLOAT16: "Bfloat"}
LONGEST = 1 << 30  # a column is a 32-bit number in the kernels, with room for the last step beyond a row
MOST_BLOCKS = (1 << 31) - 1
_enabled: contextvars.ContextVar[bool] = contextvars.ContextVar("ruda_fused", default=True)


@contextlib.contextmanager
def use_fused(on: bool) -> Iterator[None]:
    """Turn the kernels, hand-written and generated, on or off inside; off, the plain bodies run.

    >>> with use_fused(False):
    ...     fused()
    False
    """
    token = _enabled.set(bool(on))
    try:
        yield
    finally:
        _enabled.reset(token)


def fused() -> bool:
    """True where the hand-written kernels may be used."""
    return _enabled.get()


def opened(xp: Any, x: Any, *others: Any) -> np.dtype | None:
    """The dtype of computation where kernels can take these arrays, else None.

    x is floating and not empty. Others, None left out, have its dtype, or float32 beside a half x; all others the same.
    """
    if not _enabled.get() or runtime(xp) is None:
        return None
    dtype = x.dtype
    if dtype not in FLOATING or x.size == 0:
        return None
    real = FLOAT32 if dtype in HALF else dtype
    weights = [w.dtype for w in others if w is not None] if others else None
    if weights and (any(w != weights[0] for w in weights) or not (weights[0] == dtype or weights[0] == real)):
        return None
    return real


def real_of(dtype: np.dtype) -> np.dtype:
    """float32 for halves, else the dtype itself."""
    return FLOAT32 if dtype in HALF else dtype


def contiguous(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays, copied where they are not contiguous in row-major order: kernels know no strides."""
    return [a if a is None or a.flags.c_contiguous else _straight(xp, a) for a in arrays]


def _straight(xp: Any, a: Any) -> Any:
    from .copies import straight  # which is launched through this gate

    return straight(xp, a)


def aligned(xp: Any, *arrays: Any) -> bool:
    """True where every array begins at a multiple of 16 bytes."""
    machine = runtime(xp)
    assert machine is not None
    address, bits = machine.address, 0
    for a in arrays:
        if a is not None:
            bits |= address(a)
    return bits & 15 == 0


def vector_of(xp: Any, n: int, *arrays: Any) -> int:
    """Numbers per access over rows of n: 16 bytes of the first array, or 1 where rows or arrays are not aligned to it."""
    width = 16 // arrays[0].dtype.itemsize
    return width if n % width == 0 and aligned(xp, *arrays) else 1


def processors(xp: Any) -> int:
    """How many multiprocessors the current device has."""
    machine = runtime(xp)
    assert machine is not None
    return machine.processors()


def capability(xp: Any) -> int:
    """The current device's compute capability: 90 for 9.0."""
    machine = runtime(xp)
    assert machine is not None
    return machine.capability()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
