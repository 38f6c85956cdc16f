"""Checking a plan as a whole, before anything is computed: what comes out can run."""
from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..devices import Device
from ..dtypes import FLOAT32, HALF
from ..tensor import Tensor
from .kinds import KINDS, GraphOp, Shape, scalar_of

MOST_NODES, MOST_TENSORS, MOST_AXES, MOST_ELEMENTS = 256, 512, 8, 2**32 - 1
STORED = (FLOAT32, *HALF)


class Step(NamedTuple):
    """A checked node: `scalar` is as its operation takes it, `shape` and `dtype` are those of its result."""

    kind: str
    output: str
    inputs: tuple[str, ...]
    scalar: Any
    shape: Shape
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def checked(inputs: Mapping[str, Tensor], nodes: list[GraphOp], infer_dependencies: bool) -> list[Step]:
    """Return the nodes as steps in an order that can run. Errors: ValueError, TypeError, with the node and its mistake."""
    if not 1 <= len(nodes) <= MOST_NODES:
        raise ValueError(f"StaticGraph: a plan has 1 to {MOST_NODES} nodes, got {len(nodes)}; split it into several plans")
    if len(inputs) + len(nodes) > MOST_TENSORS:
        raise ValueError(
            f"StaticGraph: a plan has at most {MOST_TENSORS} tensors, got {len(inputs)} inputs and {len(nodes)} nodes; "
            "split it into several plans"
        )
    _check_names(inputs, nodes)
    nodes = _sorted(inputs, nodes) if infer_dependencies else nodes
    known = {name: (x.shape, x.dtype) for name, x in inputs.items()}
    steps = []
    for i, node in enumerate(nodes):
        try:
            step = _checked_node(node, known, {n.output for n in nodes[i:]})
        except (ValueError, TypeError) as error:
            raise type(error)(f"StaticGraph: {_where(i, node)}: {error}") from None
        known[step.output] = step.shape, step.dtype
        steps.append(step)
    return steps


def _where(i: int, node: GraphOp) -> str:
    return f"node {i} ({node.kind} giving {node.output!r})"


def listed(nodes: Any) -> list[GraphOp]:
    """The nodes as a list. Errors: TypeError for what is no node."""
    found: list[Any] = list(nodes) if isinstance(nodes, Iterable) and not isinstance(nodes, (str, Mapping)) else [nodes]
    for i, node in enumerate(found):
        if not isinstance(node, GraphOp):
            raise TypeError(
                f"StaticGraph: nodes is a list of GraphOp, and node {i} is {type(node).__name__}; "
                'for example nodes=[GraphOp("relu", "y", "x")]'
            )
    return found


def check_inputs(inputs: Any) -> Device:
    """Check the tensors that a plan reads, and return their device."""
    if not isinstance(inputs, Mapping) or not inputs:
        raise ValueError('StaticGraph: inputs is a mapping of names to tensors with at least one; for example {"x": x}')
    device = None
    for name, x in inputs.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f'StaticGraph: the name of an input is a string that is not empty, got {name!r}; write {{"x": x}}')
        if not isinstance(x, Tensor):
            raise TypeError(f"StaticGraph: input {name!r} must be a tensor, got {type(x).__name__}; make one: rt.tensor(values)")
        if x.dtype not in STORED:
            raise TypeError(
                f"StaticGraph: input {name!r} is {x.dtype}; a plan takes float32, float16 and bfloat16: "
                f"{name}.astype(rt.float32)"
            )
        _check_shape(f"input {name!r}", x.shape)
        device = x.device if device is None else device
        if x.device != device:
            raise ValueError(
                f"StaticGraph: input {name!r} is on {x.device} and others on {device}; move it: {name}.to_device({device!r})"
            )
    assert device is not None
    return device


def _check_shape(what: str, shape: Shape) -> None:
    if not 1 <= len(shape) <= MOST_AXES or 0 in shape or math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(
            f"StaticGraph: {what} has shape {shape}; a plan takes 1 to {MOST_AXES} axes, none of size 0, and at most "
            f"{MOST_ELEMENTS} elements: rt.reshape(x, (1,)) gives a number an axis"
        )


def _check_names(inputs: Mapping[str, Tensor], nodes: Sequence[GraphOp]) -> None:
    taken = dict.fromkeys(inputs, "an input")
    for i, node in enumerate(nodes):
        for field, name in (("kind", node.kind), ("output", node.output), ("left", node.left), ("right", node.right)):
            if (not isinstance(name, str) or not name) and not (field == "right" and name is None):
                raise TypeError(f"StaticGraph: node {i}: {field} is a string that is not empty, got {name!r}; {node!r}")
        if node.kind not in KINDS:
            raise ValueError(f"StaticGraph: {_where(i, node)}: there is no such kind; there are {', '.join(sorted(KINDS))}")
        if node.output in taken:
            raise ValueError(
                f"StaticGraph: {_where(i, node)}: {node.output!r} is {taken[node.output]} already, and nothing is changed in "
                f"place; give the result a new name: {node.output + '_next'!r}"
            )
        taken[node.output] = f"the result of node {i}"


def _sorted(inputs: Mapping[str, Tensor], nodes: list[GraphOp]) -> list[GraphOp]:
    """The nodes in an order that can run, each as early as its place in the list allows (Kahn 1962)."""
    maker = {node.output: i for i, node in enumerate(nodes)}
    needs = [{maker[name] for name in (node.left, node.right) if name in maker} for node in nodes]
    users: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(needs):
        for j in before:
            users[j].append(i)
    waiting = [len(before) for before in needs]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(nodes[i])
        for j in users[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(order) < len(nodes):
        stuck = [nodes[i].output for i, count in enumerate(waiting) if count]
        raise ValueError(
            f"StaticGraph: these results need one another in a circle, or need one that does: {', '.join(map(repr, stuck))}; "
            "let one of them start from an input"
        )
    return order


def _checked_node(node: GraphOp, known: dict[str, tuple[Shape, np.dtype]], later: set[str]) -> Step:
    kind = KINDS[node.kind]
    if node.right is None and kind.right:
        raise ValueError(f'it takes two tensors and right is None; write GraphOp({node.kind!r}, {node.output!r}, "x", "y")')
    if node.right is not None and kind.right is False:
        raise ValueError(f"it takes one tensor, and right is {node.right!r}; leave right out")
    names = (node.left,) if node.right is None else (node.left, node.right)
    for name in names:
        if name not in known:
            if name in later:
                raise ValueError(
                    f"{name!r} is made by this node or a later one; put that one first, or give infer_dependencies=True"
                )
            raise ValueError(f"there is no tensor named {name!r} among {', '.join(map(repr, known))}")
    (x, dtype), *rest = (known[name] for name in names)
    y = rest[0][0] if rest else None
    if rest and rest[0][1] != dtype:
        raise ValueError(
            f"left is {dtype} and right {rest[0][1]}; both must have one dtype: {node.right}.astype({node.left}.dtype)"
        )
    scalar = scalar_of(kind, node.scalar, len(x))
    shape = kind.shape(x, y, scalar)  # type: ignore[arg-type]
    if math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"the result has shape {shape}, more than {MOST_ELEMENTS} elements; split it into several plans")
    return Step(node.kind, node.output, names, scalar, shape, dtype)


def checked_outputs(outputs: Any, steps: list[Step], last: str) -> tuple[str, ...]:
    """The names that a replay returns: those asked for, or the last node's."""
    if outputs is None:
        return (last,)
    names = tuple(outputs) if isinstance(outputs, Iterable) and not isinstance(outputs, str) else (outputs,)
    made = [step.output for step in steps]
    unknown = [name for name in names if name not in made]
    if not names or unknown:
        raise ValueError(
            f"StaticGraph: outputs {names} must name results of nodes, at least one, and {unknown} are none; "
            f"for example outputs=({last!r},)"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"StaticGraph: outputs {names} name one result twice; name each once")
    return names
