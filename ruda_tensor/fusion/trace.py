"""Running a function of tensors for the record: what it computes, and the derivative by its primitives' own rules.

The tape here is a small one of its own, for the tensors of one run, which hold expressions and no numbers.
"""
from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..devices import Cpu, Device
from ..dtypes import FLOAT32, FLOATING, HALF
from ..operation import Primitive, apply
from ..ops._common import cast
from ..tensor import Tensor, leaf_maker
from .structure import taken_apart
from .symbols import FusionError, Graph, Namespace, Symbol

PLACE = "the inputs of a fused function"


class Symbolic(Device):
    """The device of tensors without numbers, one for each run of a function."""

    kind = "symbolic"
    array_type = Symbol
    symbolic = True

    def __init__(self, like: Device, graph: Graph) -> None:
        self.xp, self.float_dtype, self.int_dtype = Namespace(graph), like.float_dtype, like.int_dtype

    def put(self, array: np.ndarray) -> Symbol:
        if array.ndim:
            raise FusionError("an array of numbers")
        return self.xp.graph.number(array, array.dtype)

    def __repr__(self) -> str:
        return PLACE


class Recorder:
    """The node of a tensor while a function runs: it puts every operation on the tape, and composites as their expressions.

    `live`: whether a gradient is wanted through the tensor. `plan`: the rules to run, where it is the result of some.
    """

    __slots__ = ("tape", "live", "plan", "inputs", "static", "out", "shape", "dtype")
    is_leaf = False

    def __init__(self, tape: Tape, live: bool, out: Tensor) -> None:
        self.tape, self.live = tape, live
        self.plan: Any = None
        self.inputs: tuple = ()
        self.static: dict | None = None
        self.out, self.shape, self.dtype = out.detach(), out.shape, out.dtype

    def expands(self) -> bool:
        return True

    def record(self, op: Primitive, tracked: int, inputs: tuple, static: dict | None, out: Tensor) -> None:
        out._node = self.tape.node(op, inputs, static, out)

    def refuse(self, *args: Any) -> Any:
        raise FusionError("an operation with a derivative rule of its own")

    record_composite = record_custom = record_results = attach = refuse


class Tape:
    """The operations of one run, in order."""

    def __init__(self) -> None:
        self.nodes: list[Recorder] = []

    def start(self, x: Tensor, live: bool) -> Tensor:
        """`x` as an input of the function."""
        out = x.detach()
        out._node = Recorder(self, live and x.dtype in FLOATING, x)
        return out

    def node(self, op: Primitive, inputs: tuple, static: dict | None, out: Tensor) -> Recorder:
        if op.joint:
            raise FusionError("an operation on a list of tensors")
        bits = 0
        for i, x in enumerate(inputs):
            if isinstance(x, Tensor) and is_live(x):
                bits |= 1 << i
        plan = op.plan(bits) if bits and out.dtype in FLOATING and recording() else None
        node = Recorder(self, plan is not None, out)
        if plan is not None:
            node.plan, node.inputs, node.static = plan, inputs, static
            self.nodes.append(node)
        return node

    def pull(
        self, outs: Sequence[Tensor], gradients: Sequence[Tensor | None], inputs: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients of the inputs for those of some results of one shape: None where nothing depends on one.

        Each is of that shape or smaller. Elementwise rules are linear in g, so what broadcasting has to add up may be added
        at the end.
        """
        grads: dict[Recorder, Tensor] = {}
        for out, g in zip(outs, gradients, strict=True):
            if g is not None and is_live(out):
                add_to(grads, out._node, g)  # a result may be made of another one
        for node in reversed(self.nodes):
            if node in grads:
                for parent, gradient in pulled(node, grads.pop(node)):
                    add_to(grads, parent, gradient)
        return [None if x is None else grads.get(x._node) for x in inputs]


def is_live(x: Tensor) -> bool:
    """Whether a gradient is wanted through a tensor of a run."""
    return isinstance(x._node, Recorder) and x._node.live


def add_to(grads: dict[Recorder, Tensor], node: Recorder, g: Tensor) -> None:
    """Add a contribution: in float32 for half types, else in the dtype of the node."""
    from ..ops.arithmetic import add

    g = cast(g, FLOAT32 if node.dtype in HALF else node.dtype)
    grads[node] = add(grads[node], g) if node in grads else g


def pulled(node: Recorder, g: Tensor) -> list[tuple[Recorder, Tensor]]:
    """(input's node, gradient) for each rule of an operation, in float32 where its forward widens half types."""
    plan, static = node.plan, node.static or {}
    owners = [node.out if i < 0 else node.inputs[i] for i, _ in plan.meta]
    kept = [node.inputs[i] for i in plan.inputs] + [node.out] * plan.keeps_out
    kept = [k.detach() if isinstance(k, Tensor) else k for k in kept]
    if plan.op.computes and g.dtype in HALF:
        g = cast(g, FLOAT32)
    if plan.op.computes:
        kept = [cast(k, FLOAT32) if isinstance(k, Tensor) and k.dtype in HALF else k for k in kept]
    kept += [getattr(owner, attribute) for owner, (_, attribute) in zip(owners, plan.meta, strict=True)]
    kept += [static[name] for name in plan.static]
    return [
        (node.inputs[i]._node, rule(g, *(kept if arguments is None else [kept[j] for j in arguments])))
        for i, rule, arguments in plan.pulls
    ]


def recording() -> bool:
    """Whether the tape of this thread, if there is one, records now: a function may turn it off for a part of itself."""
    make = leaf_maker()
    if make is None:
        return True
    x = Tensor._wrap(np.zeros((), FLOAT32), Cpu())
    x._node = make(x)
    return apply(_PROBE, (x,))._node is not None


_PROBE = Primitive("probe", lambda xp, x: x, half="storage", dx=lambda g: g)


class Trace:
    """A function as expressions: `value` is what it returned, `tensors` the tensors in it, and `outs` their symbols."""

    def __init__(self, f: Callable, inputs: Sequence[Any], device: Device, needs: tuple[bool, ...] | None = None) -> None:
        """Run `f` on symbols like `inputs`: tensors, numbers, which a launch gives, and None.

        `needs` marks those of which gradients will be asked.

        Errors: FusionError, naming the operation, where f is not elementwise or meets tensors that are not its arguments.
        """
        self.f, self.graph, self.tape = f, Graph(), Tape()
        self.place = Symbolic(device, self.graph)
        self.starts: list[Tensor | None] = []
        for i, x in enumerate(inputs):
            if x is None:
                self.starts.append(None)
                continue
            op = "input" if isinstance(x, Tensor) else "given"
            symbol = self.graph.make(op, (), x.dtype, x.shape, i)
            self.starts.append(self.tape.start(Tensor._wrap(symbol, self.place), needs is not None and needs[i]))
        with _explained(f):
            self.value = f(*self.starts)
        self.tensors: list[Tensor] = []
        try:
            taken_apart(self.value, self.tensors)
        except FusionError as error:
            raise FusionError(_unfit(f, f"a result that is {error}")) from None
        if not self.tensors:
            raise FusionError(_unfit(f, f"a result that is {type(self.value).__name__} without a tensor"))
        if not all(isinstance(y._data, Symbol) for y in self.tensors):
            raise FusionError(_unfit(f, "a result that is a tensor from elsewhere"))
        self.outs: list[Symbol] = [y._data for y in self.tensors]
        self.live = tuple([is_live(y) for y in self.tensors])
        self.known = dict(self.graph.known)

    def gradients(self, arrived: tuple[bool, ...]) -> list[Symbol | None]:
        """For each input its gradient, or None where none is wanted or nothing depends on it.

        Those of the results that `arrived` marks, which have one shape, are read as inputs number len(inputs) and on. Symbols
        are numbered from where the function's end, so that the numbers, and the text that names them, are the same whatever
        else was asked before.
        """
        self.graph.known, first = dict(self.known), len(self.starts)
        seeds = [
            Tensor._wrap(self.graph.make("input", (), y.dtype, y.shape, first + k), self.place) if there else None
            for k, (y, there) in enumerate(zip(self.outs, arrived, strict=True))
        ]
        with _explained(self.f):
            found = self.tape.pull(self.tensors, seeds, self.starts)
        return [None if g is None else g._data for g in found]


@contextmanager
def _explained(f: Callable) -> Iterator[None]:
    """Let errors of a run say which operation of `f` cannot be in a kernel."""
    try:
        yield
    except FusionError as error:
        raise FusionError(_explain(f, error)) from error
    except ValueError as error:
        if PLACE not in str(error):
            raise
        raise FusionError(_explain(f, FusionError("a tensor that is not among the arguments"), error)) from error


def _unfit(f: Callable, what: str) -> str:
    """What a function returns, and what to return instead."""
    return (
        f"fuse: {getattr(f, '__name__', 'the function')} has {what}; return tensors made of the arguments, one or several in "
        "a tuple, list or dict, with None and numbers beside them: rt.fuse(lambda x, y: (x * y, x + y))(x, y)"
    )


def _explain(f: Callable, what: FusionError, error: Exception | None = None) -> str:
    """What was met and in which operation, and what to write instead."""
    name = getattr(f, "__name__", "the function")
    frames = [frame for frame, _ in traceback.walk_tb((error or what).__traceback__)]
    called = [frame.f_code.co_name for frame in frames if _is_operation(frame)]
    op = f"'{called[0]}'" if called else None
    if error is not None:
        return f"fuse: {op or name} uses {what}; make it one: rt.fuse(lambda x, w: ...)(x, w)"
    met = f"{op or what} is not elementwise" if str(what).startswith("'") else f"{op or 'it'} needs {what}"
    return (
        f"fuse: {name} cannot be one kernel, for {met}; fuse the elementwise part alone and leave the rest outside, "
        "as in rt.sum(rt.fuse(f)(x), axis=0)"
    )


def _is_operation(frame: Any) -> bool:
    """Whether a frame is that of a public function of the package."""
    module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
    return module.startswith("ruda_tensor.") and not module.startswith("ruda_tensor.fusion") and name[0] not in "_<"
