"""Mutants of derivative rules: each is wrong in one way, and a checker worth its name fails for every one of them.

Kinds: scaled by 1.01, the sign flipped, shifted by one element, flipped along the last axis, the rules of two inputs
swapped, the axis mirrored, what broadcasting made not summed (the first slice taken) or averaged, and each operand of
+ - * / and each sum dropped from the rule's own source.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.operation import Composite, Primitive, Variadic
from ruda_tensor.tensor import Tensor

from .source import variants

Change = Callable[[Any, Any], Any]  # (xp or None, gradient) -> gradient


@dataclass(frozen=True)
class Mutant:
    """One wrong version of an operation's rules: `kind`, which `input` it concerns, and what it puts in their place.

    >>> from ruda_tensor.operation import Primitive
    >>> import ruda_tensor as rt
    >>> double = Primitive("double", lambda xp, x: x * 2.0, dx=lambda g: g * 2.0)
    >>> [m.kind for m in mutants_of(double)][:3]
    ['scale 1.01', 'sign', 'shift']
    """

    op: Any
    input: str
    kind: str
    parts: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.op.name} d{self.input}: {self.kind}"

    def __str__(self) -> str:
        return self.name


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Inside, the operation differentiates by the mutant's rules; afterwards by its own again, whatever happens.

    Not for several threads: the operation is changed for all of them.

    >>> import ruda_tensor as rt
    >>> from ruda_tensor.operation import Primitive, apply
    >>> double = Primitive("double", lambda xp, x: x * 2.0, dx=lambda g: g * 2.0)
    >>> x = rt.tensor([1.0], device=rt.Cpu()).require_grad()
    >>> with mutated(mutants_of(double)[1]):
    ...     print(x.grad(apply(double, (x,)).backward()).numpy())
    [-2.]
    """
    op = mutant.op
    saved = {field: getattr(op, field) for field in mutant.parts}
    plans = getattr(op, "plans", None)
    kept = dict(plans) if plans is not None else {}
    try:
        for field, value in mutant.parts.items():
            setattr(op, field, value)
        if plans is not None:
            plans.clear()
        yield
    finally:
        for field, value in saved.items():
            setattr(op, field, value)
        if plans is not None:
            plans.clear()
            plans.update(kept)


def _module(xp: Any, g: Any) -> Any:
    """Rules of primitives are written over tensors (xp is None), those of composites over arrays."""
    return rt if isinstance(g, Tensor) else xp


def _flip(xp: Any, g: Any) -> Any:
    return _module(xp, g).flip(g, axis=-1) if g.ndim else g


CHANGES: dict[str, Change] = {
    "scale 1.01": lambda xp, g: g * 1.01,
    "sign": lambda xp, g: -g,
    "shift": lambda xp, g: _module(xp, g).roll(g, 1),
    "flip": _flip,
}


def _mirror(axis: Any) -> Any:
    """Another axis than the one given: counted from the other end; all axes become the first."""
    if axis is None:
        return 0
    if isinstance(axis, (tuple, list)):
        return tuple(_mirror(a) for a in axis)
    return -1 - axis


def _first_slice(g: Any, shape: tuple[int, ...]) -> Tensor:
    extra = g.ndim - len(shape)
    if extra < 0 or g.shape == shape:
        return g
    index: tuple[Any, ...] = (0,) * extra
    return g[index + tuple(slice(0, 1) if n == 1 else slice(None) for n in shape)]


def _averaged(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    size = int(np.prod(shape))
    return g * (size / g.size) if g.size > size else g


def mutants_of(op: Any) -> list[Mutant]:
    """Return the mutants of a Primitive, a Variadic or a Composite; use them with `mutated`.

    Errors: TypeError for anything else.

    >>> from ruda_tensor.operation import Primitive
    >>> cube = Primitive("cube", lambda xp, x: x * x * x, dx=lambda g, x: g * (3.0 * x * x))
    >>> any("became" in m.kind for m in mutants_of(cube)) or len(mutants_of(cube))
    4
    """
    if isinstance(op, Composite):
        return _of_composite(op)
    if isinstance(op, Variadic):
        return _of_variadic(op)
    if isinstance(op, Primitive):
        return _of_primitive(op)
    raise TypeError(f"mutants_of: expected a Primitive or a Composite, got {type(op).__name__}")


def _lambda(names: tuple[str, ...], body: Callable) -> Callable:
    """A function with these very parameter names, since a rule's names say what the tape keeps for it."""
    text = ", ".join(names)
    values = ", ".join(f"{n!r}: {n}" for n in names)
    return eval(f"lambda {text}: body({{{values}}})", {"body": body})


def _of_primitive(op: Primitive) -> list[Mutant]:
    out: list[Mutant] = []

    def add(name: str, kind: str, rule: Callable) -> None:
        out.append(Mutant(op, name, kind, {"rules": {**op.rules, name: rule}}))

    for name, rule in op.rules.items():
        code = rule.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for kind, change in CHANGES.items():
            add(name, kind, _lambda(names, lambda a, change=change, rule=rule: change(None, rule(**a))))
        if "axis" in names:
            add(name, "axis", _lambda(names, lambda a, rule=rule: rule(**{**a, "axis": _mirror(a["axis"])})))
        if len(op.inputs) > 1:
            shape = f"{name}_shape"
            more = names if shape in names else (*names, shape)
            for kind, undo in (("broadcast not summed", _first_slice), ("broadcast averaged", _averaged)):

                def unsummed(a: dict, undo: Any = undo, rule: Any = rule, names: Any = names, shape: str = shape) -> Any:
                    return undo(rule(**{n: a[n] for n in names}), a[shape])

                add(name, kind, _lambda(more, unsummed))
        for what, changed in variants(rule):
            add(name, what, changed)
    order = list(op.rules)
    for a, b in zip(order, order[1:]):
        if _code(op.rules[a]) == _code(op.rules[b]):
            continue  # the rules are one and the same, as for add
        swapped = {**op.rules, a: op.rules[b], b: op.rules[a]}
        out.append(Mutant(op, a, f"swapped with d{b}", {"rules": swapped}))
    return out


def _code(rule: Callable) -> tuple:
    code = rule.__code__
    return code.co_code, code.co_consts, code.co_names, code.co_varnames, code.co_freevars


def _of_variadic(op: Variadic) -> list[Mutant]:
    rule, out = op.rule, []

    def add(kind: str, changed: Callable) -> None:
        out.append(Mutant(op, "x_i", kind, {"rule": changed}))

    for kind, change in CHANGES.items():

        def altered(i: int, g: Tensor, shapes: Any, static: Any, inputs: Any, change: Change = change) -> Any:
            return change(None, rule(i, g, shapes, static, inputs))

        add(kind, altered)
    add("neighbour's", lambda i, g, shapes, static, inputs: rule((i + 1) % len(shapes), g, shapes, static, inputs))
    add("axis", lambda i, g, shapes, static, inputs: rule(i, g, shapes, _mirrored(static), inputs))
    for what, changed in variants(rule):
        add(what, changed)
    return out


def _mirrored(static: dict[str, Any] | None) -> dict[str, Any]:
    static = dict(static or {})
    return {**static, "axis": _mirror(static["axis"])} if "axis" in static else static


def _of_composite(op: Composite) -> list[Mutant]:
    backward, out = op.backward, []

    def add(name: str, kind: str, changed: Callable) -> None:
        out.append(Mutant(op, name, kind, {"backward": changed}))

    inputs: tuple[str, ...] = op.inputs
    first = inputs[0]
    for i, name in enumerate(inputs):
        for kind, change in CHANGES.items():

            def altered(xp: Any, g: Any, *kept: Any, i: int = i, change: Change = change, **static: Any) -> Any:
                found = list(backward(xp, g, *kept, **static))
                if i < len(found) and found[i] is not None:
                    found[i] = change(xp, xp.asarray(found[i]))
                return tuple(found)

            add(name, kind, altered)

    if "axis" in (*backward.__code__.co_varnames, *op.forward.__code__.co_varnames):

        def other_axis(xp: Any, g: Any, *kept: Any, **static: Any) -> Any:
            return backward(xp, g, *kept, **_mirrored(static))

        add(first, "axis", other_axis)
    if len(inputs) > 1:

        def swapped(xp: Any, g: Any, *kept: Any, **static: Any) -> Any:
            a, b, *rest = backward(xp, g, *kept, **static)
            return (b, a, *rest)

        add(first, f"swapped with d{inputs[1]}", swapped)
    for what, changed in variants(backward):
        add(first, what, changed)
    return out
