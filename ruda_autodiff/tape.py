"""The tape: what is remembered of each operation, and who remembers it.

A tracked tensor points to the `Node` of the operation that made it; a node points to the nodes of its inputs
(`parents`) and holds what the derivative rules need (`kept`). References go only from results to inputs, so there is
no registry, no cycle, and memory falls by reference counting alone. A tensor's own node records the operations that
use it: `ruda_tensor` calls `node.record(...)` and knows nothing else about this package.
"""
from __future__ import annotations

import itertools
import threading
import traceback
from collections.abc import Callable
from typing import Any

from ruda_tensor.operation import Composite, Primitive, Variadic
from ruda_tensor.tensor import Tensor, install_tape

from ._decorate import wrap

_count = itertools.count(1).__next__


class Mode(threading.local):
    """What recording does in this thread; every thread starts with the defaults, whatever its maker had set.

    `order` 2 records composites as the primitives of their expressions, which can be differentiated again.
    `depth` counts the functional transforms that are running, so that an inner one knows it will be differentiated.
    `recomputing` is on while `checkpoint` runs a function again, whose effects have happened already.
    """

    recording = True
    order = 1
    depth = 0
    anomaly = False
    recomputing = False

    def __init__(self) -> None:
        self.settings: list[_Setting] = []  # those in force, the newest last

    def apply(self) -> None:
        """Set the fields to their defaults, overridden by the settings in force."""
        self.recording, self.order, self.depth, self.anomaly, self.recomputing = True, 1, 0, False, False
        for setting in self.settings:
            for name, value in setting.fields.items():
                setattr(self, name, value)


mode = Mode()


class Node:
    """One recorded operation, or a leaf.

    `plan` says which rules to run and what they need (None for a leaf; an operation without per-input rules is its
    own plan). `kept` holds tensors and static values in the plan's order; the result, where a rule needs it, is kept
    as a bare array, since a tensor would point back to this node. `parents` is None once backward has consumed it.
    `age` is minus the creation number: a heap pops the newest first, and every user of a node is newer than it.
    """

    __slots__ = ("plan", "parents", "kept", "age", "shape", "dtype", "trace", "__weakref__")
    traces = False  # True once anomaly mode has been used: reading a thread's mode costs as much as making a tensor
    plan: Any
    parents: tuple[Node | None, ...] | None
    kept: Any
    trace: Any

    @property
    def op(self) -> Any:
        return None if self.plan is None else self.plan.op

    @property
    def is_leaf(self) -> bool:
        return self.plan is None

    def expands(self) -> bool:
        """True where a composite must be recorded by its expression."""
        return mode.order == 2 and mode.recording

    def record(self, op: Primitive, tracked: int, inputs: tuple, static: dict[str, Any] | None, out: Tensor) -> None:
        """Put `out` on the tape; called by `apply` on a tracked input. Bit i of `tracked` says that input i is."""
        if not mode.recording:
            return
        if tracked == 1:
            parents = (inputs[0]._node,)
        else:
            parents = tuple([x._node if isinstance(x, Tensor) else None for x in inputs])
        if op.joint:
            self.record_variadic(op, inputs, static, out, parents)  # type: ignore[arg-type]
            return
        plans = op.plans
        plan = plans[tracked] if tracked in plans else op.plan(tracked)
        if plan is None:
            return  # the operation has no derivative: its result is a constant
        if plan.bare:
            kept = ()
        elif plan.only is not None:
            kept = (inputs[plan.only],)
        else:
            kept = self.keep(plan, inputs, static, out)
        node = _new(type(self))
        node.plan = plan
        node.parents = parents
        node.kept = kept
        node.age = -_count()
        data = out._data
        node.shape = data.shape
        node.dtype = data.dtype
        out._node = node
        if Node.traces and mode.anomaly:
            node.trace = traceback.extract_stack(limit=24)[:-3]

    @staticmethod
    def keep(plan: Any, inputs: tuple, static: dict[str, Any] | None, out: Tensor) -> list:
        """Return what the rules of `plan` name: inputs, the result as a bare array, shapes and dtypes, static values."""
        kept = [inputs[i] for i in plan.inputs]
        if plan.keeps_out:
            kept.append(out._data)
        if plan.meta:
            kept += [getattr(out if i < 0 else inputs[i], attribute) for i, attribute in plan.meta]
        if plan.static:
            kept += [static[name] for name in plan.static]  # type: ignore[index]
        return kept

    def attach(self, op: Any, parents: tuple, kept: Any, static: dict | None, out: Tensor) -> None:
        """Make the node of an operation that is no primitive and give it to the operation's result."""
        node = _new(type(self))
        node.plan, node.parents, node.kept = op, parents, (kept, static)
        node.age = -_count()
        data = out._data
        node.shape, node.dtype = data.shape, data.dtype
        out._node = node
        if Node.traces and mode.anomaly:
            node.trace = traceback.extract_stack(limit=24)[:-3]

    def record_variadic(self, op: Variadic, inputs: tuple, static: dict | None, out: Tensor, parents: tuple) -> None:
        shapes = tuple([x.shape for x in inputs])
        self.attach(op, parents, (inputs if op.keeps_inputs else None, shapes), static, out)

    def record_composite(self, op: Composite, inputs: tuple, static: dict, out: Tensor, extras: tuple) -> None:
        """Put a composite's result on the tape as one node; called by `call`."""
        if not mode.recording:
            return
        parents = tuple([x._node if isinstance(x, Tensor) else None for x in inputs])
        kept = [out._data if name == "out" else inputs[op.inputs.index(name)] for name in op.keeps]
        self.attach(op, parents, (kept, extras), static, out)

    def record_custom(self, op: Any, inputs: tuple, static: dict | None, out: Tensor) -> None:
        """Put `out` on the tape for an operation that pulls gradients itself: `op.pull(walk, node, g)`."""
        if mode.recording:
            self.attach(op, tuple([x._node if isinstance(x, Tensor) else None for x in inputs]), None, static, out)

    def record_results(self, op: Any, inputs: tuple, results: list[Tensor]) -> list[Tensor]:
        """Return `results` on the tape as those of one operation, whose `op.pull(walk, node, g)` gets a list."""
        from .several import attach_results

        return attach_results(op, self, inputs, None, results)

    def record_several(self, op: Any, inputs: tuple, results: list[Tensor]) -> list[Tensor]:
        """Return `results` on the tape as those of one composite; called by `call_several`."""
        from .several import attach_composite

        return attach_composite(op, self, inputs, results)

    def record_recomputed(self, name: str, prepare: Callable, inputs: tuple, results: list[Tensor]) -> list[Tensor]:
        """Return `results` on the tape as those of one call that keeps nothing but `prepare()`: a function that gives
        them again, tracked, for first derivatives. It is not asked for where nothing is recorded."""
        from .checkpointing import attach_recomputed

        return attach_recomputed(name, self, prepare, inputs, results)

    def backward(self, root: Tensor, retain_graph: bool, order: int) -> Any:
        return _walker[0](root, retain_graph=retain_graph, order=order)

    def __repr__(self) -> str:
        return "<leaf>" if self.op is None else f"<node {self.op.name} {tuple(self.shape)} {self.dtype}>"


_new = Node.__new__
_walker: list[Callable] = []


def install_walker(backward: Callable) -> None:
    """Called once by `backward.py`, which imports this module."""
    _walker.append(backward)


def make_leaf(x: Tensor, kind: type[Node] = Node) -> Node:
    """Return the node of a new leaf with the shape and dtype of `x`."""
    node = _new(kind)
    node.plan = node.kept = None
    node.parents = ()
    node.age = -_count()
    data = x._data
    node.shape, node.dtype = data.shape, data.dtype
    return node


def leaf(x: Tensor, kind: type[Node] = Node) -> Tensor:
    """Return a leaf over the values of `x` whose users are recorded by nodes of `kind`."""
    out = Tensor._wrap(x._data, x.device)
    out._node = make_leaf(x, kind)
    return out


install_tape(make_leaf)


class _Setting:
    """A context manager and decorator that sets fields of this thread's `mode` while it is in force.

    Leaving takes this setting out of those in force and computes the mode anew from the rest, so settings may end in
    any order: two generators, each in the middle of a `with no_grad():`, cannot leave recording off for good.
    """

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __enter__(self) -> None:
        mode.settings.append(self)
        for name, value in self.fields.items():
            setattr(mode, name, value)

    def __exit__(self, *exc: Any) -> None:
        settings = mode.settings
        for i in range(len(settings) - 1, -1, -1):
            if settings[i] is self:
                del settings[i]
                break
        mode.apply()

    def __call__(self, function: Callable) -> Callable:
        return wrap(function, lambda: _Setting(**self.fields))


def no_grad() -> _Setting:
    """Record nothing inside: a context manager, or a decorator `@no_grad()` of functions and generators.

    The setting belongs to the thread that enters it: threads started inside record as usual. A decorated generator
    has it on only while its own code runs, so its caller's mode is untouched between yields.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0], device=rt.Cpu()).require_grad()
    >>> with no_grad():
    ...     y = x * 2.0
    >>> y.is_require_grad()
    False
    """
    return _Setting(recording=False)


def enable_grad() -> _Setting:
    """Record inside, even within `no_grad()`.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0], device=rt.Cpu()).require_grad()
    >>> with no_grad(), enable_grad():
    ...     y = x * 2.0
    >>> y.is_require_grad()
    True
    """
    return _Setting(recording=True)


def record(order: int = 1) -> _Setting:
    """Record for derivatives up to `order` (1 or 2) inside: order 2 records composites by their expressions.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([3.0], device=rt.Cpu()).require_grad()
    >>> with record(order=2):
    ...     y = (x * x * x).sum()
    >>> g = x.grad(y.backward(order=2))
    >>> x.grad(g.sum().backward()).numpy()
    array([18.], dtype=float32)
    """
    if order not in (1, 2):
        raise ValueError(f"record: order must be 1 or 2, got {order!r}; record with 2 for any higher order too")
    return _Setting(recording=True, order=order)


def is_recording() -> bool:
    """Return whether operations on tracked tensors are recorded in this thread.

    >>> is_recording()
    True
    """
    return mode.recording


def is_recomputing() -> bool:
    """Return whether this thread is in a function that `checkpoint` runs again for its gradients.

    A function with an effect, such as counting its calls, leaves it out then: the forward had it already.

    >>> is_recomputing()
    False
    """
    return mode.recomputing
