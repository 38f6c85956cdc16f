"""Backward: one walk from the root to the leaves, newest operation first.

Every user of a node was created after it, so popping nodes from a heap by descending creation number meets each node
only when all of its gradient has arrived. No counting pass and no recursion is needed, a chain of any length works,
and operations that must run in strict reverse order (collectives) do so on every rank. A node is emptied as soon as
its rules have run, so what it kept dies during the walk.
"""
from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.dtypes import FLOAT32, HALF
from ruda_tensor.operation import Composite, Variadic, widen
from ruda_tensor.owning import last_holder
from ruda_tensor.tensor import Tensor

from .anomaly import check_anomaly
from .gradients import Gradients
from .tape import Node, _Setting, install_walker, mode

_wrap = Tensor._wrap


@rt.fuse
def _wide_sum(x: Tensor, y: Tensor) -> Tensor:
    return rt.astype(x, FLOAT32) + rt.astype(y, FLOAT32)


class GraphConsumed(RuntimeError):
    """A second backward through a graph that an earlier one has emptied."""


class HigherDerivativeUnsupported(RuntimeError):
    """A second derivative was asked of something that was recorded for first derivatives only."""


def backward(root: Tensor, *, retain_graph: bool = False, order: int = 1, seed: Tensor | None = None) -> Gradients:
    """Walk from `root` with the incoming gradient `seed` (ones) and return the gradients of the leaves.

    With order 2 the gradients depend on the graph, so it is kept.
    """
    if order not in (1, 2):
        raise ValueError(f"backward: order must be 1 or 2, got {order!r}")
    assert root._node is not None
    if seed is None:
        with root.device.entered():  # never kept for the next: gradients are views of it, and leave by DLPack
            seed = _wrap(root.device.xp.ones(root.shape, root.dtype), root.device)
    walk = Walk(retain_graph or order == 2, order)
    with _Setting(recording=order == 2, order=order):
        walk.add(root._node, seed)
        walk.run()
    return Gradients(walk.leaves)


install_walker(backward)


class Walk:
    """The state of one backward pass.

    `grads` holds the gradient that has arrived so far at each waiting node. A first contribution is borrowed as it
    is; a second allocates a sum, which is then ours (`owned`) and takes further ones in place. The gradient of a half
    tensor is rounded once, when it is complete: two contributions wait side by side (`seconds`), for their sum is one
    operation, and a third makes it a sum in float32.
    """

    def __init__(self, retain_graph: bool, order: int) -> None:
        self.retain, self.order = retain_graph, order
        self.grads: dict[Node, Tensor] = {}
        self.owned: set[Node] = set()
        self.seconds: dict[Node, Tensor] = {}
        self.heap: list[tuple[int, Node]] = []
        self.leaves: dict[Node, Tensor] = {}
        self.values: dict[Node, Tensor] = {}  # what balanced checkpointing has computed again and still needs

    def add(self, node: Node, g: Tensor) -> None:
        """Add a contribution to a node's gradient: undo broadcasting, cast to its dtype, borrow or accumulate."""
        if g._data.shape != node.shape:
            g = unbroadcast(g, node.shape)
        grads = self.grads
        old = grads.get(node)
        half = node.dtype in HALF
        if not half and g._data.dtype is not node.dtype:
            g = rt.astype(g, node.dtype)
        if old is None:
            grads[node] = g
            heappush(self.heap, (node.age, node))
            return
        if half:
            if node not in self.owned:
                second = self.seconds.pop(node, None)
                if second is None:
                    self.seconds[node] = g
                    return
                old = _wide_sum(old, second)
                grads[node] = old
                if self.order == 1:
                    self.owned.add(node)
            g = rt.astype(g, FLOAT32)
        if node in self.owned:
            with g.device.entered():
                g.device.xp.add(old._data, g._data, out=old._data)
        else:
            grads[node] = rt.add(old, g)
            if self.order == 1:
                self.owned.add(node)

    def run(self, until: int = 0) -> None:
        """Pop nodes until none newer than `until` waits; see the module docstring for why this order is right.

        NumPy is kept from warning at poles and overflows, as CuPy does not: what is inf or NaN shows in the result.
        """
        with np.errstate(all="ignore"):
            self._run(until)

    def _run(self, until: int) -> None:
        heap, grads, add, retain = self.heap, self.grads, self.add, self.retain
        checked = mode.anomaly
        while heap and heap[0][0] < until:
            node = heappop(heap)[1]
            g = grads.pop(node)
            if node in self.seconds:
                g = self.total(node, g)
            plan = node.plan
            if plan is None:
                self.leaves[node] = g if g._data.dtype is node.dtype else rt.astype(g, node.dtype)
                continue
            parents, kept = node.parents, node.kept
            if parents is None:
                raise GraphConsumed(
                    f"backward: the part of the graph that made '{node.op.name}' was consumed by an earlier backward(); "
                    "keep it for a second one: loss.backward(retain_graph=True)"
                )
            if checked or plan.pulls is None or node.dtype in HALF:
                self.run_special(node, g)
            else:
                if plan.keeps_out:
                    kept = self.with_out(node, g)
                for i, rule, arguments in plan.pulls:
                    parent = parents[i]
                    gradient = rule(g, *kept) if arguments is None else rule(g, *[kept[j] for j in arguments])
                    data = gradient._data
                    if parent not in grads and data.shape == parent.shape and data.dtype is parent.dtype:
                        grads[parent] = gradient
                        heappush(heap, (parent.age, parent))
                    else:
                        add(parent, gradient)
            if not retain:
                node.parents = node.kept = None

    def arrived(self, node: Node) -> Tensor | None:
        """What has arrived at a node that was not reached yet."""
        g = self.grads.get(node)
        return self.total(node, g) if g is not None and node in self.seconds else g

    def total(self, node: Node, g: Tensor) -> Tensor:
        """The sum of the two contributions to a half tensor's gradient, rounded once."""
        second = self.seconds.pop(node)
        if g.dtype != second.dtype:
            g, second = rt.astype(g, FLOAT32), rt.astype(second, FLOAT32)
        return rt.add(g, second)

    def add_output(self, node: Node, index: int, count: int, g: Tensor) -> None:
        """Add the gradient of one of several results of an operation; the node waits until it is its turn."""
        waiting: Any = self.grads.get(node)
        if waiting is None:
            waiting = self.grads[node] = [None] * count  # type: ignore[assignment]
            heappush(self.heap, (node.age, node))
        waiting[index] = g

    def with_out(self, node: Node, g: Tensor) -> list:
        """The kept values with the result as a tensor: on the tape for order 2, bare otherwise."""
        kept = list(node.kept)
        at = len(node.plan.inputs)
        out = kept[at] = _wrap(kept[at], g.device)
        if self.order == 2:
            out._node = node
        return kept

    def run_special(self, node: Node, g: Tensor) -> None:
        """The less common nodes: half precision, composites, variadic and custom operations, and anomaly mode."""
        if node.dtype in HALF and isinstance(g, Tensor):
            g = rt.astype(g, node.dtype)
        anomaly = mode.anomaly
        for parent, gradient in self.pull(node, g):
            if parent is not None and gradient is not None:
                if anomaly:
                    check_anomaly(node, g, gradient)
                self.add(parent, gradient)

    def pull(self, node: Node, g: Tensor) -> list[tuple[Node | None, Tensor | None]]:
        """Return (parent, gradient) for each input of a node, computing half precision in float32."""
        plan, parents = node.plan, node.parents
        assert parents is not None
        if isinstance(plan, Composite):
            return list(zip(parents, self.pull_composite(node, g), strict=True))
        op = plan.op
        if plan.pulls is not None:
            kept = self.with_out(node, g) if plan.keeps_out else node.kept
            if op.computes and g.dtype in HALF:
                g = rt.astype(g, FLOAT32)
                kept = [rt.astype(k, FLOAT32) if isinstance(k, Tensor) and k.dtype in HALF else k for k in kept]
            return [
                (parents[i], rule(g, *kept) if arguments is None else rule(g, *[kept[j] for j in arguments]))
                for i, rule, arguments in plan.pulls
            ]
        if isinstance(plan, Variadic):
            (inputs, shapes), static = node.kept
            return [(p, None if p is None else op.rule(i, g, shapes, static or {}, inputs)) for i, p in enumerate(parents)]
        return plan.pull(self, node, g)

    def pull_composite(self, node: Node, g: Any) -> list[Tensor | None]:
        """Run a composite's hand-derived body on raw arrays; that of several results gets a list of gradients."""
        op: Any = node.plan
        device = g.device if isinstance(g, Tensor) else next(part for part in g if part is not None).device
        if self.order == 2:
            raise HigherDerivativeUnsupported(
                f"'{op.name}' was recorded for first derivatives only; record for second ones: "
                "with ruda_autodiff.record(order=2): ..., or use grad(grad(f)), hessian, hvp"
            )
        raw = g._data if isinstance(g, Tensor) else [None if part is None else part._data for part in g]
        if not device.guarded:
            return self._pull_composite(node, raw, device)
        with device.guard():
            return self._pull_composite(node, raw, device)

    def _pull_composite(self, node: Node, g: Any, device: Any) -> list[Tensor | None]:
        op = node.plan
        (kept, extras), static = node.kept
        needs = tuple([p is not None for p in node.parents])  # type: ignore[union-attr]
        result, fused = None, op.fused if device.launches else None
        spend = self.may_spend(op, kept, device) if fused is not None and fused.spends else {}
        if spend:
            node.parents = node.kept = None  # consumed, also where what follows fails
        arrays, static = [g, *[k._data if isinstance(k, Tensor) else k for k in kept]], static or {}
        if fused is not None:
            result = self.pull_onto(node, fused.backward, arrays, extras, needs, static, device) if fused.adds else None
            if result is None:
                result = fused.backward(device.xp, *arrays, *extras, needs=needs, **spend, **static)
        elif op.fused is not None and op.fused.adds and node.dtype not in HALF:
            result = self.pull_onto(node, op.backward, arrays, extras, needs, static, device)
        if result is None:
            arrays, _ = widen(arrays)
            result = op.backward(device.xp, *arrays, *extras, needs=needs, **static)
        kind = device.array_type
        return [None if r is None else _wrap(r if type(r) is kind else device.xp.asarray(r), device) for r in result]

    def may_spend(self, op: Composite, kept: list, device: Any) -> dict[str, bool]:
        """{"spend": True} where nobody but this walk, which comes once, can see the kept array that a backward may reuse."""
        assert op.fused is not None
        if self.retain or mode.anomaly:
            return {}
        return {"spend": True} if last_holder(kept, op.keeps.index(op.fused.spends), device.xp) else {}

    def pull_onto(
        self, node: Node, body: Any, arrays: list, extras: tuple, needs: tuple, static: dict, device: Any
    ) -> list | None:
        """Let a body add the first input's gradient to what has arrived of it already; None where nothing has.

        That saves a pass over the gradient of a residual stream for each of its norms, and in half types four.
        """
        parent = node.parents[0]  # type: ignore[index]
        waiting = None if parent is None or mode.anomaly else self.grads.get(parent)
        if waiting is None:
            return None
        found = body(device.xp, *arrays, *extras, needs=needs, **static, add=waiting._data)
        if found is None:
            return None
        self.grads[parent] = _wrap(found[0], device)  # type: ignore[index]
        if parent.dtype in HALF:  # type: ignore[union-attr]
            self.owned.discard(parent)  # type: ignore[arg-type]  # halves are summed in float32, never in place
        else:
            self.owned.add(parent)  # type: ignore[arg-type]
        return [None, *found[1:]]


def unbroadcast(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return `g` with what broadcasting made of `shape` undone: stretched axes summed, missing ones spread."""
    if g.ndim < len(shape) or any(a == 1 and b != 1 for a, b in zip(g.shape[::-1], shape[::-1], strict=False)):
        g = rt.broadcast_to(g, shape)  # a rule may return a smaller gradient where it is the same everywhere
    extra = g.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(i + extra for i, n in enumerate(shape) if n == 1 and g.shape[i + extra] != 1)
    if axes:
        g = rt.sum(g, axis=axes, keepdims=True)
    return rt.reshape(g, shape) if g.shape != shape else g
