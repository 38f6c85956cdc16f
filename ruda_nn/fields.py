"""Fields of modules and configurations: those of a dataclass, whose `__init__` is here, once, and not compiled per class.

Compiling them would be most of the time that importing these packages takes. One `__init__` for all can also say what
was misspelt, what is missing, and that layers are made from their configuration.
"""
from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, NoReturn

PLAIN = (bool, int, float, str, tuple, type(None))


def declare(cls: type, base: type) -> None:
    """Give a class the fields that it annotates, behind those of its bases; none may hide a method of the base of all."""
    for name in inspect.get_annotations(cls):
        if name != "forward" and callable(getattr(base, name, None)):
            raise TypeError(
                f"{cls.__name__}.{name}: a field of this name would hide the method {base.__name__}.{name}; "
                f"name it otherwise: own_{name}"
            )
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)


def fill(instance: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Set the fields of a new instance from arguments and defaults, and run its `__post_init__`."""
    fields = [f for f in dataclasses.fields(instance) if f.init]
    positional = [f.name for f in fields if not f.kw_only]
    given = {**dict(zip(positional, args)), **kwargs}
    known = {f.name for f in fields}
    for name in kwargs:
        if name not in known:
            _refuse(instance, f"there is no {name!r}", args, kwargs)
        if name in positional[: len(args)]:
            _refuse(instance, f"{name!r} is given twice, by position and by name", args, kwargs)
    if len(args) > len(positional):
        given_so = f"{len(args)} value{'s were' if len(args) > 1 else ' was'} given by position, and there are {len(positional)}"
        named = next((f.name for f in fields if f.kw_only), None)
        as_in = "" if named is None else _by_name(type(instance), args[: len(positional)], named)
        _refuse(instance, given_so + as_in, args, kwargs)
    missing = [f.name for f in fields if f.name not in given and not _has_default(f)]
    if missing:
        _refuse(instance, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing", args, kwargs)
    for f in dataclasses.fields(instance):
        if f.name in given:
            vars(instance)[f.name] = given[f.name]
        elif f.default_factory is not dataclasses.MISSING:
            vars(instance)[f.name] = f.default_factory()
        elif f.default is not dataclasses.MISSING:
            vars(instance)[f.name] = f.default
    if hasattr(type(instance), "__post_init__"):
        instance.__post_init__()


def advice(cls: type, args: tuple = (), kwargs: dict[str, Any] | None = None) -> str:
    """The line that makes this layer from its configuration, or "" for a class that has none."""
    if not hasattr(sys.modules.get(cls.__module__), cls.__name__ + "Config"):
        return ""
    settings = [repr(v) for v in args] + [f"{name}={v!r}" for name, v in (kwargs or {}).items()]
    plain = all(isinstance(v, PLAIN) for v in (*args, *(kwargs or {}).values()))
    return f"; a layer is made from its settings: {cls.__name__}Config({', '.join(settings) if plain else '...'}).init(device)"


def _has_default(f: Any) -> bool:
    return f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING


def _by_name(cls: type, args: tuple, name: str) -> str:
    """The line that gives a field by its name, behind those that are given by position."""
    shown = [repr(v) if isinstance(v, PLAIN) else "..." for v in args]
    return f"; give the others by name: {cls.__name__}({', '.join([*shown, f'{name}=...'])})"


def _refuse(instance: Any, problem: str, args: tuple, kwargs: dict[str, Any]) -> NoReturn:
    cls = type(instance)
    parameters = list(signature(cls).parameters.values())
    shown = [str(p).partition(":")[0] for p in parameters]
    named = [i for i, p in enumerate(parameters) if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if named:
        shown.insert(named[0], "*")
    call = f"{cls.__name__}({', '.join(shown)})"
    raise TypeError(f"{cls.__name__}: {problem}; it takes {call}" + advice(cls, args, kwargs))


def signature(cls: type) -> inspect.Signature:
    """The signature of the class as a function of its fields."""
    made = []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.init:
            default = f.default if f.default is not dataclasses.MISSING else ... if _has_default(f) else inspect.Parameter.empty
            kind = inspect.Parameter.KEYWORD_ONLY if f.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
            made.append(inspect.Parameter(f.name, kind, default=default, annotation=f.type))
    # A needed field may follow one with a default here, which inspect refuses to check.
    return inspect.Signature(sorted(made, key=lambda p: p.kind), __validate_parameters__=False)


class SignatureOfFields:
    """What `help` and editors show for a class that takes `fill`'s `__init__`."""

    def __get__(self, instance: Any, owner: type) -> inspect.Signature:
        if instance is not None or not getattr(owner.__init__, "fills", False):
            raise AttributeError("__signature__")
        return signature(owner)
