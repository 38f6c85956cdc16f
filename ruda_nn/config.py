"""Configurations: frozen dataclasses of keyword settings, each with a `with_<field>` method."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
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

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
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
        """The settings as plain data, for records: what a restore is compared with."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
