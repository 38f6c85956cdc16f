"""Configurations: frozen dataclasses of keyword settings, each with a `with_<field>` method."""
from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, NoReturn, dataclass_transform

from .fields import SignatureOfFields, declare, fill


@dataclass_transform(frozen_default=True)
class Config:
    """Base of configurations: a subclass is a frozen dataclass, and `config.with_field(value)` a changed copy.

    Wrong values are refused where the configuration is used (`init()`, `build()`), by name, value and allowed range.

    >>> from ruda_nn import LinearConfig
    >>> LinearConfig(2, 1).with_bias(False)
    LinearConfig(d_in=2, d_out=1, bias=False, initializer=None)
    """

    __signature__ = SignatureOfFields()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declare(cls, Config)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fill(self, args, kwargs)

    __init__.fills = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        self._frozen(name)

    def __delattr__(self, name: str) -> NoReturn:
        self._frozen(name)

    def _frozen(self, name: str) -> NoReturn:
        kind = type(self).__name__
        raise dataclasses.FrozenInstanceError(
            f"{kind} is not changed in place (here: {kind}.{name}); make a changed one: config = config.with_{name}(value)"
        )

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr]  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        how = f"; make what they describe: {type(self).__name__}(...).init(device)" if hasattr(type(self), "init") else ""
        raise TypeError(f"{type(self).__name__} holds settings, and is not called{how}")

    def __getattr__(self, name: str) -> Any:
        field = name.removeprefix("with_")
        known = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        if name.startswith("with_") and field in known:

            def changed(value: Any) -> Any:
                return dataclasses.replace(self, **{field: value})  # type: ignore[type-var]

            changed.__qualname__ = f"{type(self).__name__}.{name}"
            return changed
        raise AttributeError(f"{type(self).__name__} has no {name!r}; its settings are {', '.join(known)}")

    def require(self, ok: bool, field: str, allowed: str) -> None:
        """Raise ValueError naming the field, its value and the allowed range unless `ok`."""
        require(ok, type(self).__name__, field, getattr(self, field), allowed)

    def require_bools(self, *fields: str) -> None:
        """Raise unless these settings, or all that are declared bools, hold one: "False" and None are mistakes more often."""
        declared = [f.name for f in dataclasses.fields(self) if f.type in ("bool", bool)]  # type: ignore[arg-type]
        for field in fields or declared:
            self.require(isinstance(getattr(self, field), bool), field, "True or False")

    def require_count(self, *fields: str, low: int = 1) -> None:
        """Raise unless each of these settings is an integer >= low."""
        for field in fields:
            count = getattr(self, field)
            self.require(is_whole(count) and count >= low, field, f"an integer >= {low}")

    def require_number(self, field: str, low: float = 0.0, *, open: bool = False) -> None:
        """Raise unless a setting is a finite number >= low (> low where `open`)."""
        x = getattr(self, field)
        ok = is_number(x) and (x > low if open else x >= low)
        self.require(ok, field, f"a finite number {'>' if open else '>='} {low:g}")

    def require_within(self, field: str, high: float, *, zero: bool = False) -> None:
        """Raise unless a setting is a number in (0, high], or in [0, high] where `zero`."""
        x = getattr(self, field)
        ok = is_number(x) and (0.0 <= x if zero else 0.0 < x) and x <= high
        self.require(ok, field, f"a number in {'[' if zero else '('}0, {high:g}]")

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data, for records: what a restore is compared with."""
        return {f.name: plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]


def require(ok: bool, owner: str, field: str, value: Any, allowed: str) -> None:
    """Raise ValueError naming whose setting it is, its value and the allowed range unless `ok`."""
    if not ok:
        raise ValueError(f"{owner}: {field}={value!r} is not allowed; give {allowed}")


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
    """Return whether a setting is a finite real number that a float holds (True and False are not numbers)."""
    try:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def is_whole(value: Any) -> bool:
    """Return whether a setting is an integer (True and False are not)."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
