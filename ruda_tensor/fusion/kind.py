"""A function on one kind of arguments, as an operation whose two directions are one generated kernel each."""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..devices import Device
from ..dtypes import FLOAT32, FLOATING, HALF
from ..kernels.gate import use_fused
from ..kernels.generated import run
from ..operation import Composite, Fused, call, call_several
from ..tensor import Tensor, common_device
from .codegen import program
from .evaluate import evaluate
from .symbols import Symbol
from .trace import Trace

MOST_SETS = 256  # of used results that an operation remembers


class Kind:
    """A function on one kind of arguments: what it computes, whatever the numbers.

    `examples`: for each input a tensor or a NumPy scalar that has its dtype and shape, or None. `free`: whether the shapes
    are those of a call, broadcast in the same way, and not always those of the examples. `outs`: the expressions of the
    results, where they are known. `several`: whether f returns a list of tensors, which have one shape, and not a tensor.
    """

    def __init__(
        self, f: Callable, examples: Sequence[Any], device: Device, free: bool = False, *,
        outs: list[Symbol] | None = None, several: bool = False,
    ) -> None:
        self.f, self.device, self.free, self.several = f, device, free, several
        self.examples = [without_numbers(x) if isinstance(x, Tensor) else x for x in examples]
        outs = Trace(f, self.examples, device).outs if outs is None else outs
        self.shape, self.dtypes = outs[0].shape, tuple([out.dtype for out in outs])
        self.differentiable = any(d in FLOATING for d in self.dtypes)
        self.program, self.reads, self.given = program("fused_forward", outs, all(d in HALF for d in self.dtypes))
        self.operations: dict[tuple[bool, ...], Generated] = {}

    def operation(self, needs: tuple[bool, ...]) -> Generated:
        """The operation whose backward gives the gradients of the inputs marked in `needs`."""
        found = self.operations.get(needs)
        if found is None:
            found = self.operations[needs] = Generated(self, needs)
        return found

    def __call__(self, inputs: tuple) -> Any:
        """The result, or the list of results."""
        device, tracked = self.device, False
        for x in inputs:
            if isinstance(x, Tensor):
                tracked = tracked or x._node is not None
                if x.device is not device:
                    common_device(getattr(self.f, "__name__", "fuse"), device, x.device)
        if tracked and self.differentiable:
            operation = self.operation(tuple([isinstance(x, Tensor) and x._node is not None for x in inputs]))
            return call_several(operation, inputs) if self.several else call(operation, inputs)
        arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
        if device.guarded:
            with device.guard():
                made = self.ahead(device.xp, *arrays)
        else:
            made = self.ahead(device.xp, *arrays)
        return [Tensor._wrap(a, device) for a in made] if self.several else Tensor._wrap(made, device)

    def ahead(self, xp: Any, *arrays: Any) -> Any:
        """The raw result, or the list of them, by the kernel or by the function itself."""
        shape = layout(tuple([a.shape for a in arrays if hasattr(a, "shape")]))[1] if self.free else self.shape
        found = run(xp, self.program, shape, [arrays[i] for i in self.reads], [arrays[i] for i in self.given])
        if found is None:
            return self.plain(xp, *arrays)
        return found if self.several else found[0]

    def plain(self, xp: Any, *arrays: Any) -> Any:
        """The raw result, or the list of them, of the function itself."""
        device = self.device
        with use_fused(False):  # an elementwise primitive of half types would come back here
            out = self.f(*[Tensor._wrap(a, device) if isinstance(a, device.array_type) else a for a in arrays])
        return [y._data for y in out] if self.several else out._data


def without_numbers(x: Tensor) -> Tensor:
    """A tensor of the same dtype and shape that holds no memory."""
    xp = x.device.xp
    with x.device.guard():
        return Tensor._wrap(xp.broadcast_to(xp.zeros((), x.dtype), x.shape), x.device)


@functools.lru_cache(4096)
def layout(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple, tuple[int, ...]]:
    """How shapes broadcast, whatever their sizes, and the shape they broadcast to."""
    if shapes.count(shapes[0]) == len(shapes):
        return (), shapes[0]
    whole = np.broadcast_shapes(*shapes)
    return tuple([tuple([n == m for n, m in zip(s[::-1], whole[::-1], strict=False)]) for s in shapes]), whole


class Generated(Composite):
    """A function as an operation: `expression` is the function, and both directions are one generated kernel each.

    It keeps the inputs that its derivative reads, and computes from them whatever else the derivative needs. Of several
    results some may not be used: each set of those that are has a backward kernel of its own, made when it is first met.
    """

    __slots__ = ("kind", "needs", "trace", "derivative", "partial", "lock")

    def __init__(self, kind: Kind, needs: tuple[bool, ...]) -> None:
        self.kind, self.needs = kind, needs
        self.name = getattr(kind.f, "__name__", "fused")
        self.expression = kind.f
        self.fused = Fused("fused.cuh", kind.ahead, self.back)
        self.forward, self.backward = kind.ahead if kind.several else kind.plain, self.back
        self.inputs = tuple([f"x{i}" for i in range(len(needs))])
        self.memory_bound = True
        self.trace: Trace | None = None
        self.derivative: Derivative | None = None
        self.partial: dict[tuple[bool, ...], Derivative] = {}
        self.lock = threading.Lock()

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs that the derivative reads, found when an operation is recorded for the first time."""
        if self.derivative is None:
            trace = Trace(self.kind.f, self.kind.examples, self.kind.device, self.needs)
            self.trace, self.derivative = trace, Derivative(self.kind, self.needs, trace, trace.live)
        return self.derivative.keeps

    @property
    def several(self) -> bool:  # type: ignore[override]
        return self.kind.several

    @property
    def live(self) -> tuple[bool, ...]:
        """Which results depend on the inputs in `needs`."""
        assert self.keeps is not None and self.trace is not None
        return self.trace.live

    def back(self, xp: Any, g: Any, *kept: Any, needs: tuple[bool, ...]) -> list[Any]:
        """The gradients of the inputs; `g` is a list for several results, with None for those that were not used."""
        assert self.derivative is not None
        if not self.kind.several:
            return self.derivative(xp, [g], dict(zip(self.derivative.kept, kept, strict=True)))
        arrived = tuple([part is not None for part in g])
        chosen = self.derivative if arrived == self.live else self.partly(arrived)
        return chosen(xp, g, dict(zip(self.derivative.kept, kept, strict=True)))

    def partly(self, arrived: tuple[bool, ...]) -> Derivative:
        """The derivative where the gradients of these results alone have arrived. It reads nothing that the whole one
        does not read, for a gradient that arrives adds terms and changes none.
        """
        assert self.trace is not None
        with self.lock:  # threads may walk backward at once, and share the trace
            found = self.partial.get(arrived)
            if found is None:
                if len(self.partial) >= MOST_SETS:
                    self.partial.clear()
                found = self.partial[arrived] = Derivative(self.kind, self.needs, self.trace, arrived)
        return found


class Derivative:
    """The gradients of the inputs in `needs` as expressions of the inputs and of the gradients of the results.

    `arrived` marks the results that have a gradient. Those of the inputs have the shape of the results: whoever adds them up
    adds what broadcasting joined. A half gradient that is to be added up is written in float32.
    """

    def __init__(self, kind: Kind, needs: tuple[bool, ...], trace: Trace, arrived: tuple[bool, ...]) -> None:
        self.first = len(needs)  # the place of the first result's gradient among what is read
        self.found = trace.gradients(arrived)
        for i, (out, x) in enumerate(zip(self.found, kind.examples, strict=True)):
            if out is not None and not self.is_seed(out.astype(x.dtype)):
                self.found[i] = out.astype(FLOAT32 if x.dtype in HALF and x.shape != kind.shape else x.dtype)
            elif out is not None:
                self.found[i] = out.astype(x.dtype)
        self.outs = [out for out in self.found if out is not None and not self.is_seed(out)]
        quick = all(d in HALF for d, there in zip(kind.dtypes, arrived, strict=True) if there)
        self.program, self.reads, self.given = program("fused_backward", self.outs, quick)
        self.kept = tuple([i for i in (*self.reads, *self.given) if i < self.first])
        self.keeps = tuple([f"x{i}" for i in self.kept])

    def is_seed(self, out: Symbol) -> bool:
        """Whether a gradient is that of a result, which is handed on as it is."""
        return out.op == "input" and out.value >= self.first

    def __call__(self, xp: Any, g: Sequence[Any], values: dict[int, Any]) -> list[Any]:
        """The raw gradients, for those of the results and what was kept of the inputs, by place."""
        shape = ()
        for place, part in enumerate(g, self.first):
            if part is not None:
                values[place], shape = part, part.shape
        results = iter(())
        if self.outs:
            made = run(xp, self.program, shape, [values[i] for i in self.reads], [values[i] for i in self.given])
            results = iter(evaluate(xp, self.outs, values, shape) if made is None else made)
        return [None if out is None else values[out.value] if self.is_seed(out) else next(results) for out in self.found]
