"""Configurations: frozen dataclasses of keyword settings, each with a `with_<field>` method."""
from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, dataclass_transform


@dataclass_transform(frozen_default=True)
class Config:
    """Base of configurations: a subclass is a frozen dataclass, and `config.with_field(value)` a changed copy.

    Wrong values are refused where the configuration is used (`init()`, `build()`), by name, value and allowed range.

    >>> from ruda_nn import LinearConfig
    >>> LinearConfig(2, 1).with_bias(False)
    LinearConfig(d_in=2, d_out=1, bias=False, initializer=None)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)

    def __getattr__(self, name: str) -> Any:
        field = name.removeprefix("with_")
        known = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        if name.startswith("with_") and field in known:
            return lambda value: dataclasses.replace(self, **{field: value})  # type: ignore[type-var]
        raise AttributeError(f"{type(self).__name__} has no {name!r}; its settings are {', '.join(known)}")

    def require(self, ok: bool, field: str, allowed: str) -> None:
        """Raise ValueError naming the field, its value and the allowed range unless `ok`."""
        if not ok:
            value = getattr(self, field)
            raise ValueError(f"{type(self).__name__}: {field}={value!r} is not allowed; give {allowed}")

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data, for records: what a restore is compared with."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]


def plain(value: Any) -> Any:
    """Return a setting as what a record can hold, the same for settings that mean the same."""
    if isinstance(value, Config):
        return {"config": type(value).__name__, **value.describe()}
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else str(value)


def is_number(value: Any) -> bool:
    """Return whether a setting is a finite real number (True and False are not)."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Return whether a setting is an integer (True and False are not)."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
