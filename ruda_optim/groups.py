"""Parameter groups: other settings for some of the parameters, such as no decay on norms and biases."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ruda_nn import Config, Param
from ruda_nn.config import is_number, plain


class ParamGroup:
    """Some parameters of a model, and how their settings differ; `config.init(groups=[...])` takes a list.

    `where` is a pattern for paths ("layers.*.bias"; "*bias" is every bias), a list of parameters or ids, or a function
    (path, parameter) -> bool. `lr_scale` (1.0) multiplies the learning rate, and `settings` are those of the optimizer's
    configuration. The first group that matches takes a parameter; the configuration itself holds for the rest. A tied
    parameter goes by its first path. Which group a parameter is in is decided once, at the first step, and recorded.

    A restore compares the groups: patterns by their text, functions by their name, lists by their length.

    Errors: ValueError where a setting is unknown or out of range (at `init`), or a group matches nothing (at the first
    step); TypeError for another kind of `where`.

    >>> from ruda_optim import AdamWConfig
    >>> AdamWConfig(weight_decay=0.1).init(groups=[ParamGroup.vectors(weight_decay=0.0), ParamGroup("head.*", lr_scale=10.0)])
    Optimizer(AdamW, 2 groups, 0 states)
    """

    def __init__(self, where: str | Iterable[Any] | Callable[..., Any], *, lr_scale: float = 1.0, **settings: Any) -> None:
        self.where, self.lr_scale, self.settings = where, lr_scale, settings
        self._matches, self._said = _matcher(where)
        if not is_number(lr_scale) or lr_scale < 0.0:
            raise ValueError(f"{self!r}: lr_scale={lr_scale!r} is not allowed; give a finite number >= 0")

    @classmethod
    def vectors(cls, *, lr_scale: float = 1.0, **settings: Any) -> ParamGroup:
        """Return the group of every parameter with fewer than two axes: biases, scales and shifts of norms, scalars."""
        return cls(vectors, lr_scale=lr_scale, **settings)

    def matches(self, path: str, p: Param) -> bool:
        """Return whether a parameter at a path is one of those that `where` names."""
        return bool(self._matches(path, p))

    def describe(self) -> dict[str, Any]:
        """Return the group as plain data, which a restore compares."""
        return {"where": self._said, "lr_scale": float(self.lr_scale), **{k: plain(v) for k, v in self.settings.items()}}

    def __repr__(self) -> str:
        scale = {} if self.lr_scale == 1.0 else {"lr_scale": self.lr_scale}
        return "".join([f"ParamGroup({self._said}", *[f", {k}={v!r}" for k, v in {**scale, **self.settings}.items()], ")"])


def vectors(path: str, p: Param) -> bool:
    """Return whether a parameter has fewer than two axes."""
    return p.ndim < 2


def _matcher(where: Any) -> tuple[Callable[[str, Param], Any], str]:
    """Return the predicate of a `where`, and its text."""
    if isinstance(where, str):
        return lambda path, p: fnmatchcase(path, where), repr(where)
    if callable(where):
        return where, getattr(where, "__qualname__", type(where).__name__)
    if isinstance(where, Iterable):
        listed = list(where) if not isinstance(where, Param) else [where]
        ids = {item.id if isinstance(item, Param) else item for item in listed}
        if all(isinstance(item, str) for item in ids):
            return lambda path, p: p.id in ids, f"{len(ids)} listed"
    raise TypeError(
        f"ParamGroup: where is a pattern, a list of parameters or ids, or a function, got {type(where).__name__}; "
        'ParamGroup("*.bias", weight_decay=0.0)'
    )


class Grouping:
    """The rules and learning-rate scales of an optimizer, default first, and which parameter goes by which."""

    def __init__(self, rule: Any, groups: Iterable[ParamGroup]) -> None:
        if isinstance(groups, ParamGroup) or not isinstance(groups, Iterable):
            raise TypeError(f"groups: expected a list of ParamGroup, got {type(groups).__name__}; init(groups=[ParamGroup(...)])")
        self.groups = tuple(groups)
        self.rules, self.scales = [rule], [1.0]
        for group in self.groups:
            if not isinstance(group, ParamGroup):
                raise TypeError(f"groups: expected ParamGroup, got {type(group).__name__}; ParamGroup.vectors(weight_decay=0.0)")
            self.rules.append(rule.with_settings(group.settings) if group.settings else rule)
            self.scales.append(float(group.lr_scale))
            if self.rules[-1].global_limit() != rule.global_limit():
                raise ValueError(f"{group!r}: the global norm is one for all groups; set it in the configuration itself")
        # A rule that is no `Rule` says nothing of these: it gets one parameter at a time.
        self.elementwise = [getattr(r, "elementwise", False) for r in self.rules]
        self.global_limit = rule.global_limit() if hasattr(rule, "global_limit") else None
        self.index: dict[str, int] = {}

    def describe(self) -> dict[str, Any]:
        """Return rule and groups as plain data."""
        own = self.rules[0].describe()
        return {**own, "groups": tuple(g.describe() for g in self.groups)} if self.groups else own

    def of(self, key: str) -> int:
        """Return the number of the group of an id, 0 for the default."""
        return self.index[key] if self.groups else 0

    def assign(self, named: list[tuple[str, Param]]) -> None:
        """Decide for every parameter that has no group yet; the first time, refuse groups that match nothing."""
        if not self.groups or all(p.id in self.index for _, p in named):
            return
        found, first = self.assigned(named), not self.index
        empty = [g for g in self.groups if first and not any(g.matches(path, p) for path, p in named)]
        if empty:
            shown = ", ".join(path for path, _ in named[:8])
            raise ValueError(f"step: no parameter matches {empty[0]!r}; the paths are {shown}{', ...' if len(named) > 8 else ''}")
        self.index = found

    def assigned(self, named: list[tuple[str, Param]]) -> dict[str, int]:
        """Return id -> number of the group, old decisions first, without deciding anything."""
        index = dict(self.index)
        for path, p in named if self.groups else ():
            if p.id not in index:
                index[p.id] = next((i for i, g in enumerate(self.groups, 1) if g.matches(path, p)), 0)
        return index


def settled(config: Any) -> Any:
    """Return a configuration whose numbers are Python's: a NumPy float64 among float32 arrays would be computed in float64."""
    return dataclasses.replace(config, **{f.name: _settled(getattr(config, f.name)) for f in dataclasses.fields(config)})


def _settled(value: Any) -> Any:
    if isinstance(value, Config):
        return settled(value)
    if isinstance(value, (list, tuple)):
        return tuple(_settled(v) for v in value)
    return value.item() if isinstance(value, np.generic) else value


def changed(config: Any, settings: dict[str, Any]) -> Any:
    """Return a configuration with other settings, or raise ValueError for one that it does not have."""
    known = [f.name for f in dataclasses.fields(config)]
    unknown = [name for name in settings if name not in known]
    if unknown:
        settable = ", ".join([*known, "lr_scale"])
        raise ValueError(f"{type(config).__name__} has no setting {unknown[0]!r}; a group may change {settable}")
    return dataclasses.replace(config, **settings)
