"""Transforms of functions: gradients, Jacobians, Hessians and their products with vectors.

A transform records its function on fresh inputs and walks back to them. One that runs inside another, or on a tracked
tensor, or with `order=2`, records so that its result can itself be differentiated; otherwise its result is a constant.
"""
from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import ruda_tensor as rt
from ruda_tensor.dtypes import is_floating
from ruda_tensor.operation import Primitive, apply
from ruda_tensor.tensor import Tensor

from .backward import Walk
from .tape import Node, _Setting, leaf, mode
from .trees import aligned, map_tensors, tensors_of

_input = Primitive("input", lambda xp, x: x, half="storage", dx=lambda g: g)


class Recording:
    """One evaluation of `f` on fresh inputs, and walks from its result back to them.

    The inputs are the oldest nodes of what is recorded here, so a walk ends when only they and older nodes wait.
    """

    def __init__(self, name: str, f: Callable, args: tuple, kwargs: dict, argnums: tuple[int, ...], order: int) -> None:
        if order not in (1, 2):
            raise ValueError(f"{name}: order must be 1 or 2, got {order!r}")
        for i in argnums:
            if not -len(args) <= i < len(args):
                raise ValueError(f"{name}: argument {i} is to be differentiated, and {len(args)} were given by position")
        chosen = {i % len(args) for i in argnums}
        tracked = any(x.is_require_grad() for x in tensors_of(args))
        self.differentiable = order == 2 or mode.depth > 0 or tracked
        self.inputs: list[Tensor] = []
        with _Setting(recording=True, order=2 if self.differentiable else 1, depth=mode.depth + 1):
            fresh = tuple(map_tensors(self._fresh, a) if i in chosen else a for i, a in enumerate(args))
            if not self.inputs:
                raise TypeError(f"{name}: argument {argnums} holds no tensor of a floating dtype to differentiate by")
            ages = [x._node.age for x in self.inputs]
            self.until, self.since = min(ages), max(ages)
            self.arguments = [fresh[i] for i in argnums]
            self.value = f(*fresh, **kwargs)

    def _fresh(self, x: Tensor) -> Tensor:
        if not is_floating(x.dtype):
            return x
        out = apply(_input, (x,)) if x._node is not None else leaf(x)
        self.inputs.append(out)
        return out

    def pull(self, roots: list[Tensor], seeds: list[Tensor], retain: bool) -> dict[Node, Tensor]:
        """Return the gradient that has arrived at each input node."""
        order = 2 if self.differentiable else 1
        walk = Walk(retain or self.differentiable, order)
        with _Setting(recording=self.differentiable, order=order):
            for root, seed in zip(roots, seeds, strict=True):
                if root._node is not None and root._node.age <= self.since:
                    walk.add(root._node, seed)
            walk.run(until=self.until)
            found = {x._node: walk.arrived(x._node) for x in self.inputs}
            return {node: rt.astype(g, node.dtype) for node, g in found.items() if g is not None}

    def gradients(self, grads: dict[Node, Tensor]) -> list:
        """Arrange gradients as the differentiated arguments are; zeros where an input took no part."""

        handed: set[int] = set()

        def of(x: Tensor) -> Tensor:
            if not is_floating(x.dtype):
                return x
            g = None if x._node is None else grads.get(x._node)
            if g is None:
                return rt.zeros(x.shape, dtype=x.dtype, device=x.device)
            if id(g) in handed:  # a + b gives both the same gradient, and one tensor in two places of a module is a tie
                g, shared = Tensor._wrap(g._data, g.device), g
                g._node = shared._node
            handed.add(id(g))
            return g

        return [map_tensors(of, a) for a in self.arguments]

    def result(self) -> Any:
        """The value of `f`: on the tape of an enclosing transform, or bare."""
        return self.value if self.differentiable else map_tensors(lambda x: x.detach(), self.value)


def _numbers(argnums: int | tuple[int, ...]) -> tuple[int, ...]:
    return (operator.index(argnums),) if _single(argnums) else tuple(operator.index(i) for i in argnums)  # type: ignore


def _single(argnums: int | tuple[int, ...]) -> bool:
    """True for an integer of any library."""
    return hasattr(argnums, "__index__")


def _scalar(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.size != 1:
        got = f"shape {value.shape}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{name}: the function must return one number, got {got}; sum it, or use jacobian or vjp")
    return value


def _value_and_grad(name: str, f: Callable, argnums: int | tuple[int, ...], order: int) -> Callable:
    """`value_and_grad` under the name that the user called, which errors give."""

    def evaluate(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        r = Recording(name, f, args, kwargs, _numbers(argnums), order)
        value = _scalar(name, r.value)
        grads = r.pull([value], [rt.ones(value.shape, dtype=value.dtype, device=value.device)], retain=False)
        found = r.gradients(grads)
        return r.result(), found[0] if _single(argnums) else tuple(found)

    return evaluate


def value_and_grad(f: Callable, argnums: int | tuple[int, ...] = 0, *, order: int = 1) -> Callable:
    """Return a function that gives (f(x), df/dx) for a scalar-valued f.

    `argnums` names the arguments to differentiate by; a tuple gives a tuple of gradients. Arguments may be nested
    lists, tuples and dicts of tensors, or modules; the gradient has their structure. `order=2` makes the gradient
    differentiable by everything it depends on, captured tensors included.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0, 2.0], device=rt.Cpu())
    >>> value, g = value_and_grad(lambda x: (x * x).sum())(x)
    >>> value.item(), g.numpy()
    (5.0, array([2., 4.], dtype=float32))
    """
    return _value_and_grad("value_and_grad", f, argnums, order)


def grad(f: Callable, argnums: int | tuple[int, ...] = 0, *, order: int = 1) -> Callable:
    """Return the gradient function df/dx of a scalar-valued f; see `value_and_grad`.

    >>> import ruda_tensor as rt
    >>> cube = lambda x: x * x * x
    >>> grad(grad(cube))(rt.tensor(2.0, device=rt.Cpu())).item()
    12.0
    """
    both = _value_and_grad("grad", f, argnums, order)
    return lambda *args, **kwargs: both(*args, **kwargs)[1]


def vjp(f: Callable, *args: Any, order: int = 1) -> tuple[Any, Callable]:
    """Return f(*args) and its pull-back: cotangents of the result to a tuple of gradients, one per argument.

    The pull-back may be called many times. Results that are not tensors have no cotangent: give None there.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0, 2.0], device=rt.Cpu())
    >>> y, pull = vjp(lambda x: x * x, x)
    >>> pull(rt.tensor([1.0, 10.0], device=rt.Cpu()))[0].numpy()
    array([ 2., 40.], dtype=float32)
    """
    numbers = tuple(i for i, a in enumerate(args) if any(is_floating(x.dtype) for x in tensors_of(a)))
    r = Recording("vjp", f, args, {}, numbers, order)
    roots = tensors_of(r.value)

    def pull(*cotangents: Any) -> tuple:
        given = tensors_of(aligned("vjp", cotangents[0], r.value)) if len(cotangents) == 1 else cotangents
        seeds = [c for c in given if c is not None]
        if len(seeds) != len(roots) or any(s.shape != y.shape for s, y in zip(seeds, roots, strict=True)):
            raise ValueError(f"vjp: the result has shapes {[y.shape for y in roots]}, the cotangents {[s.shape for s in seeds]}")
        found = iter(r.gradients(r.pull(roots, seeds, retain=True)))
        return tuple(next(found) if i in numbers else None for i in range(len(args)))

    return r.result(), pull


def jacobian(f: Callable, argnums: int | tuple[int, ...] = 0, *, order: int = 1) -> Callable:
    """Return a function that gives the Jacobian dy_i/dx_j, of shape y.shape + x.shape; one walk per element of y.

    >>> import ruda_tensor as rt
    >>> jacobian(lambda x: x * x)(rt.tensor([1.0, 3.0], device=rt.Cpu())).numpy()
    array([[2., 0.],
           [0., 6.]], dtype=float32)
    """

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        r = Recording("jacobian", f, args, kwargs, _numbers(argnums), order)
        y = r.value
        if not isinstance(y, Tensor):
            raise TypeError(f"jacobian: the function must return one tensor, got {type(y).__name__}; use vjp")
        rows = []
        for i in range(y.size):
            seed = rt.reshape(rt.astype(rt.equal(rt.arange(y.size, device=y.device), i), y.dtype), y.shape)
            rows.append(r.gradients(r.pull([y], [seed], retain=True)))

        def stack(position: int, path_index: int, x: Tensor) -> Tensor:
            if not rows:
                return rt.zeros(y.shape + x.shape, dtype=x.dtype, device=x.device)
            column = [tensors_of(row[position])[path_index] for row in rows]
            return rt.reshape(rt.stack(column, axis=0), y.shape + x.shape)

        found = []
        for position, argument in enumerate(r.arguments):
            count = itertools.count()
            found.append(map_tensors(lambda x, p=position, c=count: stack(p, next(c), x), argument))
        return found[0] if _single(argnums) else tuple(found)

    return evaluate


def hessian(f: Callable, argnums: int = 0) -> Callable:
    """Return a function that gives the Hessian d2f/dx_i dx_j of a scalar-valued f, of shape x.shape + x.shape.

    >>> import ruda_tensor as rt
    >>> hessian(lambda x: (x * x * x).sum())(rt.tensor([1.0, 2.0], device=rt.Cpu())).numpy()
    array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """

    def evaluate(*args: Any, **kwargs: Any) -> Any:
        if 0 <= argnums < len(args) and not isinstance(args[argnums], Tensor):
            raise TypeError(
                f"hessian: the argument must be one tensor, got {type(args[argnums]).__name__}; for nested tensors and "
                "modules there is the product with a vector: hvp(f, x, v)"
            )
        return jacobian(grad(f, argnums), argnums)(*args, **kwargs)

    return evaluate


def hvp(f: Callable, x: Any, v: Any) -> Any:
    """Return the Hessian of the scalar-valued f at x times the vector v, without forming the Hessian.

    `x` may be nested or a module; `v` has its structure, or is a list of its tensors in order.

    H v = d/dx <df/dx, v> (Pearlmutter 1994, Fast exact multiplication by the Hessian, eq. 2, by two reverse passes).

    >>> import ruda_tensor as rt
    >>> x, v = rt.tensor([1.0, 2.0], device=rt.Cpu()), rt.tensor([1.0, 1.0], device=rt.Cpu())
    >>> hvp(lambda x: (x * x * x).sum(), x, v).numpy()
    array([ 6., 12.], dtype=float32)
    """

    def along(x: Any) -> Tensor:
        gradients, directions = tensors_of(_value_and_grad("hvp", f, 0, 1)(x)[1]), tensors_of(aligned("hvp", v, x))
        if [g.shape for g in gradients] != [d.shape for d in directions]:
            raise ValueError(f"hvp: x has shapes {[g.shape for g in gradients]} and v {[d.shape for d in directions]}")
        total = None
        for g, d in zip(gradients, directions, strict=True):
            term = rt.sum(g * d)
            total = term if total is None else total + term
        assert total is not None
        return total

    return grad(along)(x)
