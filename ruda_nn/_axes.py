"""Settings that are one integer, or one for each axis."""
from __future__ import annotations

from typing import Any

from .config import Config, is_whole


def per_axis(config: Config, field: str, axes: int, least: int) -> tuple[int, ...]:
    """Return a setting as one integer per axis, or raise by name, value and range."""
    value: Any = getattr(config, field)
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * axes
    shape = "an integer" if axes == 1 else f"an integer or {axes} of them,"
    ok = len(values) == axes and all(is_whole(v) and v >= least for v in values)
    config.require(ok, field, f"{shape} >= {least}")
    return tuple(int(v) for v in values)
