"""What sliding windows share: which outputs a tap meets the input for, and settings given once or per axis."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def meet(size: int, count: int, start: int, stride: int) -> tuple[slice, slice]:
    """Return the outputs o of `count` whose tap at start + stride * o lies in an axis of `size`, and these places.

    The rest of the outputs meet padding there, so no padded copy of the input is ever made.
    """
    low = max(0, -(start // stride))
    high = min(count, (size - 1 - start) // stride + 1)
    if high <= low:
        return slice(0, 0), slice(0, 0)
    first = start + low * stride
    return slice(low, high), slice(first, first + (high - low - 1) * stride + 1, stride)


def per_axis(value: Any, axes: int, name: str, what: str, least: int) -> tuple[int, ...]:
    """Return a setting as one integer per axis; it may be given as one for all. Raises below `least`."""
    value = value.tolist() if hasattr(value, "tolist") else value  # a number or an array of any library
    several = isinstance(value, Sequence) and not isinstance(value, str)
    values: tuple[Any, ...] = tuple(value) if several else (value,) * axes
    if len(values) != axes:
        raise ValueError(f"{name}: {what}={value!r} must be one integer or {axes}; write {what}={max(least, 1)}")
    for v in values:
        if isinstance(v, bool) or not hasattr(v, "__index__"):
            raise TypeError(f"{name}: {what} must be an integer, got {v!r}; write {what}={max(least, 1)}")
        if v < least:
            raise ValueError(f"{name}: {what} must be at least {least}, got {value!r}; write {what}={max(least, 1)}")
    return tuple(int(v) for v in values)


def window_count(size: int, kernel: int, stride: int, low: int, high: int, dilation: int, name: str) -> int:
    """Return how many windows fit an axis of `size` padded by `low` and `high`, or raise where none does."""
    reach = (kernel - 1) * dilation + 1
    if size + low + high < reach:
        raise ValueError(
            f"{name}: a window of {reach} (kernel {kernel}, dilation {dilation}) does not fit an axis of {size} "
            f"padded by {low} and {high}; use a smaller kernel, or padding={-(-(reach - size) // 2)}"
        )
    return (size + low + high - reach) // stride + 1
