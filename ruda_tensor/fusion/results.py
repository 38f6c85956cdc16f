"""What a function returns: one tensor, or tensors in tuples, lists and dicts, as one kernel for those of each shape."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..devices import Device
from ..tensor import Tensor
from .kind import Kind, without_numbers
from .structure import taken_apart
from .trace import Trace


def kind_of(f: Callable, inputs: Sequence[Tensor], device: Device) -> Kind | Results:
    """`f` on arguments like `inputs`, run once without numbers to see what it makes of them."""
    examples = [without_numbers(x) for x in inputs]
    trace = Trace(f, examples, device)
    return Kind(f, examples, device, outs=trace.outs) if isinstance(trace.value, Tensor) else Results(f, examples, device, trace)


class Results:
    """A function that returns a structure, on one kind of arguments.

    The results of one shape are those of one `Kind`: one kernel forward, and one backward. An input that is returned comes
    back itself, and a tensor that occurs twice is made once.
    """

    def __init__(self, f: Callable, examples: Sequence[Tensor], device: Device, trace: Trace) -> None:
        self.build, self.count = taken_apart(trace.value, []), len(trace.tensors)
        known: dict[int, int] = {}  # where each tensor stands first
        self.again: list[tuple[int, int]] = []
        self.inputs: list[tuple[int, int]] = []
        shapes: dict[tuple[int, ...], list[int]] = {}
        for place, y in enumerate(trace.tensors):
            input_ = next((i for i, x in enumerate(trace.starts) if x is y), None)
            if input_ is not None:
                self.inputs.append((place, input_))
            elif id(y) in known:
                self.again.append((place, known[id(y)]))
            else:
                known[id(y)] = place
                shapes.setdefault(y.shape, []).append(place)
        self.kinds = [
            (Kind(_some(f, places), examples, device, outs=[trace.outs[i] for i in places], several=True), places)
            for places in shapes.values()
        ]

    def __call__(self, inputs: tuple) -> Any:
        made: list[Any] = [None] * self.count
        for kind, places in self.kinds:
            for place, y in zip(places, kind(inputs), strict=True):
                made[place] = y
        for place, i in self.inputs:
            made[place] = inputs[i]
        for place, first in self.again:
            made[place] = made[first]
        return self.build(made)


def _some(f: Callable, places: list[int]) -> Callable[..., list[Tensor]]:
    """`f` with the list of some of its results."""

    @functools.wraps(f)
    def some(*inputs: Any) -> list[Tensor]:
        tensors: list[Tensor] = []
        taken_apart(f(*inputs), tensors)
        return [tensors[i] for i in places]

    return some
