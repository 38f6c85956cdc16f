"""Trading time for memory: forget what a part of the forward kept, and compute it again in backward.

`checkpoint(f)` forgets everything inside a call of f. Balanced checkpointing (`Autodiff(device, checkpointing=
"balanced")`) forgets the results of memory-bound operations (pointwise ones, norms, reshapes) and keeps those of
compute-bound ones (matrix products, convolutions, collectives). Both give bit-equal gradients, for the same
operations run on the same numbers.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ruda_tensor.operation import Composite, Primitive, Variadic, apply, call, call_several
from ruda_tensor.random.state import noting, replaying
from ruda_tensor.tensor import Tensor

from .backward import HigherDerivativeUnsupported
from .several import Own, Pick, attach_results
from .tape import Node, _Setting, mode
from .trees import map_tensors, tensors_of


class Checkpoint(Own):
    """The tape's side of a checkpointed call: runs it again and splices what it records into the walk."""

    name = "checkpoint"

    def __init__(self, results: list[Tensor]) -> None:
        self.expected = _kinds(results)

    def pull(self, walk: Any, node: Node, g: list) -> list:
        run, _ = node.kept
        results = run()
        if _kinds(results) != self.expected:
            raise RuntimeError(
                f"{self.name}: the function gave {_kinds(results)} when it ran again for its gradients, and {self.expected} in "
                "the forward; what it computes must depend on nothing that changes in between: give it as an argument"
            )
        for y, gradient in zip(results, g, strict=True):
            if gradient is not None and y._node is not None:
                walk.add(y._node, gradient)  # newer than anything that waits: the walk goes on through it at once
        return []


def _kinds(results: list[Tensor]) -> list[tuple[tuple[int, ...], str]]:
    return [(y.shape, str(y.dtype)) for y in results]


def checkpoint(f: Callable) -> Callable:
    """Return `f` keeping only its arguments for backward, which runs it again (random numbers included).

    Chen et al. 2016, Training deep nets with sublinear memory cost. `f` must be a function of its arguments and of
    what it captures; gradients of captured tensors are right too. The numbers that it drew, from whichever generator,
    are drawn again, and no generator moves, so other threads may draw meanwhile.

    Errors: RuntimeError in backward where `f` then draws other random numbers than before, or gives other results: more,
    fewer, or of another shape or dtype.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0, 2.0], device=rt.Cpu()).require_grad()
    >>> y = checkpoint(lambda x: rt.exp(rt.exp(x)))(x)
    >>> x.grad(y.sum().backward()).shape
    (2,)
    """

    @functools.wraps(f)
    def forgetful(*args: Any, **kwargs: Any) -> Any:
        if not mode.recording:
            return f(*args, **kwargs)
        order = mode.order
        with noting() as drawn:
            value = f(*args, **kwargs)
        results = tensors_of(value)
        tracked = [y for y in results if y._node is not None]
        if not tracked:
            return value

        def again() -> list[Tensor]:
            with replaying(drawn), _Setting(recording=True, order=order, recomputing=True):
                return [y for y in tensors_of(f(*args, **kwargs)) if y._node is not None]

        recorder = tracked[0]._node
        outs = iter(attach_results(Checkpoint(tracked), recorder, tuple(tensors_of((args, kwargs))), again, tracked))
        return map_tensors(lambda y: y if y._node is None else next(outs), value)

    return forgetful


class Recomputed(Checkpoint):
    """The tape's side of a call that another package runs, and runs again in backward, for first derivatives only."""

    def __init__(self, name: str, results: list[Tensor]) -> None:
        super().__init__(results)
        self.name = name

    def pull(self, walk: Any, node: Node, g: list) -> list:
        if walk.order == 2:
            raise HigherDerivativeUnsupported(
                f"'{self.name}' has first derivatives only; for a second one compute its operations one after the other, "
                "without it"
            )
        return super().pull(walk, node, g)


def attach_recomputed(name: str, recorder: Node, prepare: Callable, inputs: tuple, results: list[Tensor]) -> list[Tensor]:
    """See `Node.record_recomputed`."""
    if not mode.recording:
        return results
    run = prepare()

    def again() -> list[Tensor]:
        with _Setting(recording=True, order=1, recomputing=True):
            return run()

    return attach_results(Recomputed(name, results), recorder, inputs, again, results)


class BalancedNode(Node):
    """A node under balanced checkpointing: keeps recipes in the place of results that are cheap to compute again."""

    __slots__ = ("recipe",)
    recipe: tuple | None  # (operation, inputs as tensors or nodes, static), or None where the result itself is kept

    def record(self, op: Primitive, tracked: int, inputs: tuple, static: dict | None, out: Tensor) -> None:
        super().record(op, tracked, inputs, static, out)
        self._forget(op, inputs, static, out)

    def record_composite(self, op: Composite, inputs: tuple, static: dict, out: Tensor, extras: tuple) -> None:
        super().record_composite(op, inputs, static, out, extras)
        self._forget(op, inputs, static, out)

    def record_several(self, op: Any, inputs: tuple, results: list[Tensor]) -> list[Tensor]:
        outs = super().record_several(op, inputs, results)
        picks: list[Any] = [y._node for y in outs if y._node is not None]
        if picks:
            owner = picks[0].parents[0]
            (kept, extras), static = owner.kept
            owner.recipe = (op, tuple(_store(x) for x in inputs), None)
            owner.plan, owner.kept = Recompute(op), ("kept", ([_store(k) for k in kept], extras), static)
            for pick in picks:
                pick.recipe = (pick.plan, (owner,), None)
        return outs

    def record_custom(self, op: Any, inputs: tuple, static: dict | None, out: Tensor) -> None:
        super().record_custom(op, inputs, static, out)
        if out._node is not None:
            out._node.recipe = None  # type: ignore[attr-defined]

    def attach(self, op: Any, parents: tuple, kept: Any, static: dict | None, out: Tensor) -> None:
        super().attach(op, parents, kept, static, out)
        out._node.recipe = None

    def _forget(self, op: Any, inputs: tuple, static: dict | None, out: Tensor) -> None:
        """Replace what the new node kept by recipes, and give it its own recipe where its result is cheap."""
        node: Any = out._node
        if node is None or mode.order == 2:
            return  # not recorded, or recorded for second derivatives, which need every value on the tape
        stored = tuple(_store(x) for x in inputs)
        node.recipe = (op, stored, static) if op.memory_bound else None
        node.plan = Recompute(node.plan)
        if isinstance(op, Composite):
            (kept, extras), _ = node.kept
            if op.memory_bound:
                node.kept = ("composite", stored, static)
            else:
                node.kept = ("kept", ([_store(k) for k in kept], extras), static)
        elif isinstance(op, Variadic):
            (like, shapes), _ = node.kept
            node.kept = ("kept", (None if like is None else list(stored), shapes), static)
        else:
            plan = node.plan.inner
            kept = [_store(k) for k in node.kept]
            if plan.keeps_out and op.memory_bound:
                kept[len(plan.inputs)] = node.plan  # a mark: compute the result again
            node.kept = ("plan", kept, None)


def _store(x: Any) -> Any:
    """A tensor as its recipe where it has one, else itself."""
    node = x._node if isinstance(x, Tensor) else None
    return node if isinstance(node, BalancedNode) and getattr(node, "recipe", None) is not None else x


class Recompute(Own):
    """The plan of a balanced node: computes forgotten values again, then runs the rules of the plan inside."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def op(self) -> Any:
        return self.inner.op

    def pull(self, walk: Any, node: Node, g: Tensor) -> list:
        if walk.order == 2:
            raise HigherDerivativeUnsupported(
                f"'{self.op.name}' was recorded with balanced checkpointing for first derivatives only; record for second "
                "ones: with ruda_autodiff.record(order=2): ..., or use grad(grad(f)), hessian, hvp"
            )
        values = walk.values
        kind, kept, static = node.kept
        stand_in = _Restored(node)
        with _Setting(recording=False, order=1):
            if kind == "plan":
                full = [materialize(k, values) if isinstance(k, Node) else k for k in kept]
                if self.inner.keeps_out:
                    at = len(self.inner.inputs)
                    if full[at] is self:
                        full[at] = materialize(node, values)._data
                stand_in.kept = full
            elif kind == "composite":
                stand_in.kept = _rerun_composite(self.op, [materialize(k, values) for k in kept], static)
            else:
                first, second = kept
                first = None if first is None else [materialize(k, values) for k in first]
                stand_in.kept = ((first, second), static)
        stand_in.plan = self.inner
        values.pop(node, None)
        if not walk.retain:
            node.recipe = None  # type: ignore[attr-defined]
        return walk.pull(stand_in, g)


class _Restored:
    """A node as the plain tape would have it, for the length of one pull."""

    def __init__(self, node: Node) -> None:
        self.parents, self.shape, self.dtype, self.age = node.parents, node.shape, node.dtype, node.age
        self.kept: Any = None
        self.plan: Any = None

    @property
    def op(self) -> Any:
        return self.plan.op


def _rerun_composite(op: Composite, inputs: list, static: dict | None) -> tuple:
    from ruda_tensor.operation import run_composite

    arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
    device = next(x.device for x in inputs if isinstance(x, Tensor))
    out, extras = run_composite(op, device, arrays, static or {})
    return ([out if name == "out" else inputs[op.inputs.index(name)] for name in op.keeps], extras), static


def materialize(x: Any, values: dict[Node, Tensor]) -> Any:
    """Return the tensor of a recipe, computing the chain behind it without recursion; others come back as they are.

    `values` remembers what was computed until the walk has passed it, so a chain is computed once.
    """
    if not isinstance(x, BalancedNode):
        return x
    stack = [x]
    while stack:
        node = stack[-1]
        if node in values:
            stack.pop()
            continue
        assert node.recipe is not None
        op, inputs, static = node.recipe
        missing = [i for i in inputs if isinstance(i, BalancedNode) and i not in values]
        if missing:
            stack += missing
            continue
        ready = tuple(values[i] if isinstance(i, BalancedNode) else _untracked(i) for i in inputs)
        values[node] = _computed(op, ready, static)
        stack.pop()
    return values[x]


def _computed(op: Any, inputs: tuple, static: dict | None) -> Any:
    """The result of an operation, the list of those of a composite that has several, or one out of such a list."""
    if isinstance(op, Pick):
        return inputs[0][op.index]
    if isinstance(op, Composite):
        return call_several(op, inputs) if op.several else call(op, inputs, static)
    return apply(op, inputs, static)


def _untracked(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x
