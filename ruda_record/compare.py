"""The differences of two records, one line each."""
from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from .format import CHUNK
from .kinds import leaves
from .layout import Place


def differences(a: Any, b: Any) -> Iterator[tuple[str, str, str]]:
    """(sign, name, what) for all that differs: "-" is only in `a`, "+" only in `b`, "!" in both and not the same."""
    here, there = ({place.keys(): (place, value) for place, value in leaves(x, Place(), False)} for x in (a, b))
    for keys, (place, value) in here.items():
        if keys not in there:
            yield "-", str(place), describe(value)
        elif what := _difference(value, there[keys][1]):
            yield "!", str(place), what
    for keys, (place, value) in there.items():
        if keys not in here:
            yield "+", str(place), describe(value)
    yield from _containers(a, b, Place())


def _containers(a: Any, b: Any, place: Place) -> Iterator[tuple[str, str, str]]:
    """A list where the other has a tuple: their items are compared as if they were the same."""
    if type(a) is dict and type(b) is dict:
        for key in a:
            if key in b:
                yield from _containers(a[key], b[key], Place(place, key))
    elif type(a) in (list, tuple) and type(b) in (list, tuple) and a and b:
        if type(a) is not type(b):
            yield "!", str(place), f"{type(a).__name__} | {type(b).__name__}"
        for index, (x, y) in enumerate(zip(a, b)):
            yield from _containers(x, y, Place(place, index))


def describe(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name} {value.shape}"
    if isinstance(value, np.generic):
        return f"{value.dtype.name} {value}"
    if type(value) is int and value.bit_length() > 256:
        return f"int of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _difference(a: Any, b: Any) -> str:
    """How two values without parts differ; "" where every bit is the same."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        parts = [f"shape {a.shape} | {b.shape}"] if a.shape != b.shape else []
        if a.dtype != b.dtype:
            parts.append(f"dtype {a.dtype.name} | {b.dtype.name}")
        if a.shape == b.shape and (found := _elements(a.reshape(-1), b.reshape(-1))):
            parts.append(found)
        return "; ".join(parts)
    if type(a) is type(b) and _bits(a) == _bits(b):
        return ""
    return f"{describe(a)} | {describe(b)}"


def _bits(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.tobytes()
    return struct.pack("d", value) if type(value) is float else value


def _elements(a: np.ndarray, b: np.ndarray) -> str:
    """Which elements differ, and by how much; NaN and NaN of the same bits are the same."""
    count, largest, odd = 0, 0.0, 0
    for at in range(0, a.size, CHUNK):
        x, y = (np.ascontiguousarray(z[at : at + CHUNK]) for z in (a, b))
        if x.dtype == y.dtype:
            differ = x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}")
            x, y = x[differ], y[differ]
        with np.errstate(all="ignore"):
            x, y = x.astype(np.longdouble), y.astype(np.longdouble)
            gap = np.abs(x - y)
        known = np.isfinite(gap)
        if a.dtype != b.dtype:
            same = (x == y) | np.isnan(x) & np.isnan(y)
            gap, known = gap[~same], known[~same]
        count += gap.size
        odd += gap.size - int(known.sum())
        largest = max(largest, float(gap[known].max(initial=0)))
    if not count:
        return ""
    beyond = f", {odd} of them not finite" if odd else ""
    return f"{count} of {a.size} elements differ{beyond}, max abs difference {largest:g}"
