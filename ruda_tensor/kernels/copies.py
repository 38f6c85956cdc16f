"""Copies: to another floating dtype, and of strided arrays into row-major order."""
from __future__ import annotations

import functools
import math
import struct
from typing import Any

import numpy as np

from .. import backend
from ..dtypes import FLOAT32, HALF
from .gate import CTYPES, MOST_BLOCKS, aligned, ceil_div, fused
from .launch import Kernel, runtime

THREADS, CAST_BATCH, ROWS_BATCH = 256, 2, 2
CAST_VECTOR = 8
_LARGEST = 1 << 31  # numbers; positions are 32-bit in permute.cu
_OUTER = struct.Struct("@8q4I")


@functools.cache
def _cast(source: np.dtype, target: np.dtype, vector: int, batch: int) -> Kernel:
    defines = {"STORAGE": CTYPES[source], "TARGET": CTYPES[target], "VECTOR": vector, "BATCH": batch}
    return Kernel("cast.cu", "cast", "P P q", defines)


def cast(xp: Any, x: Any, dtype: np.dtype) -> Any:
    """x in another dtype, between float32 and half types; None where the gate is shut."""
    if runtime(xp) is None or not fused() or x.size == 0 or x.dtype == dtype:
        return None
    if not (x.dtype == FLOAT32 or x.dtype in HALF) or not (dtype == FLOAT32 or dtype in HALF):
        return None
    x = straight(xp, x)
    out = xp.empty(x.shape, dtype)
    vector = CAST_VECTOR if aligned(xp, x, out) else 1
    kernel = _cast(x.dtype, dtype, vector, CAST_BATCH)
    kernel((ceil_div(x.size, THREADS * vector * CAST_BATCH), 1), (THREADS, 1), x, out, x.size)
    return out


def converted(x: Any, dtype: np.dtype) -> Any:
    """`x.astype(dtype)`, by a kernel where x lies on a GPU."""
    if type(x) is np.ndarray or not backend.is_cupy_array(x):
        return x.astype(dtype)
    xp = backend.cupy()
    machine = runtime(xp)
    here = machine is not None and machine.device() == x.device.id  # a kernel runs where it is launched
    found = cast(xp, x, dtype) if here else None
    return x.astype(dtype) if found is None else found


@functools.cache
def _rows(width: int, vector: int, axes: int) -> Kernel:
    defines = {"WIDTH": width, "AXES": axes, "VECTOR": vector, "BATCH": ROWS_BATCH, "TILED": 0}
    return Kernel("permute.cu", "permute_rows", f"P P {_OUTER.size}s I I", defines)


@functools.cache
def _tiles(width: int, pairs: int, axes: int) -> Kernel:
    defines = {"WIDTH": width, "AXES": axes, "PAIRS": pairs, "TILED": 1}
    return Kernel("permute.cu", "permute_tiles", f"P P {_OUTER.size}s I I q q", defines)


def straight(xp: Any, x: Any) -> Any:
    """x in row-major order without gaps: itself, or a copy."""
    if x.flags.c_contiguous:
        return x
    found = _permuted(xp, x) if runtime(xp) is not None and fused() else None
    return xp.ascontiguousarray(x) if found is None else found


def for_reshape(xp: Any, x: Any, shape: tuple[int, ...]) -> Any:
    """x, copied by a kernel where another shape of it would be a copy anyway."""
    if runtime(xp) is None or not fused() or x.flags.c_contiguous:
        return x
    sizes = iter([n for n in shape if n != 1])
    for group, _, _ in _joined(x.shape, list(x.strides)):
        product = 1
        while product < group:
            product *= next(sizes, group)
        if product != group:
            return straight(xp, x)
    return x


def _permuted(xp: Any, x: Any) -> Any:
    """A copy by a kernel; None where the layout is another than those that permute.cu knows."""
    width = x.dtype.itemsize
    if not 0 < x.size < _LARGEST or width not in (1, 2, 4, 8) or any(s % width for s in x.strides):
        return None
    axes = _joined(x.shape, [s // width for s in x.strides])
    if axes and axes[-1][1] == 1:
        return _copy_rows(xp, x, axes, width)
    flat = next((k for k, (_, stride, _) in enumerate(axes) if stride == 1), None)
    return None if flat is None else _copy_tiles(xp, x, axes, flat, width)


def _joined(shape: tuple[int, ...], strides: list[int]) -> list[tuple[int, int, int]]:
    """(size, stride, stride of the copy) of the axes, with those joined that one stride walks."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size > 1:
            if axes and axes[-1][1] == stride * size:
                axes[-1] = axes[-1][0] * size, stride
            else:
                axes.append((size, stride))
    out, pitch = [], 1
    for size, stride in reversed(axes):
        out.append((size, stride, pitch))
        pitch *= size
    return out[::-1]


def _outer(axes: list[tuple[int, int, int]]) -> bytes:
    rest = 4 - len(axes)
    sizes, strides, pitches = zip(*axes) if axes else ((), (), ())
    return _OUTER.pack(*strides, *[0] * rest, *pitches, *[0] * rest, *sizes, *[1] * rest)


def _copy_rows(xp: Any, x: Any, axes: list, width: int) -> Any:
    (n, _, _), outer = axes[-1], axes[:-1]
    if len(outer) > 4:
        return None
    out, vector, machine = xp.empty(x.shape, x.dtype), 16 // width, runtime(xp)
    assert machine is not None
    common = math.gcd(n, machine.address(x) // width, *[stride for _, stride, _ in outer])
    while common % vector:
        vector //= 2
    total = x.size // vector
    grid = ceil_div(total, THREADS * ROWS_BATCH), 1
    _rows(width, vector, len(outer))(grid, (THREADS, 1), x, out, _outer(outer), n // vector, total)
    return out


def _copy_tiles(xp: Any, x: Any, axes: list, flat: int, width: int) -> Any:
    (along, _, pitch), (last, stride, _) = axes[flat], axes[-1]
    outer = [axis for k, axis in enumerate(axes[:-1]) if k != flat]
    if len(outer) > 4:
        return None
    machine, batches = runtime(xp), math.prod(size for size, _, _ in outer)
    assert machine is not None
    steps = [stride, pitch, along, last, *[s for _, s, _ in outer], *[p for _, _, p in outer]]
    pairs = int(width == 2 and machine.address(x) % 4 == 0 and not any(s % 2 for s in steps))
    side = 64 if pairs else 32
    blocks = ceil_div(along, side) * ceil_div(last, side) * batches
    if blocks > MOST_BLOCKS:
        return None
    out = xp.empty(x.shape, x.dtype)
    arguments = (_outer(outer), along, last, stride, pitch)
    _tiles(width, pairs, len(outer))((blocks, 1), (32, 8), x, out, *arguments)
    return out
