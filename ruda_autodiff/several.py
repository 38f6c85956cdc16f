"""Operations that pull gradients themselves, with one result or several.

The tape knows one result per node. An operation with several gets one node that waits for all of their gradients, and
one `Pick` node per result that hands its gradient over; the picks are newer, so the walk meets them first.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ruda_tensor.dtypes import is_floating
from ruda_tensor.tensor import Tensor

from .tape import Node, mode


class Own:
    """Base of operations that are their own plan: the walk calls `pull(walk, node, g)` for (parent, gradient) pairs."""

    joint = True
    computes = False
    memory_bound = False
    pulls = None
    name = "operation"

    @property
    def op(self) -> Own:
        return self

    def pull(self, walk: Any, node: Node, g: Any) -> list:
        raise TypeError(f"{self.name}: an operation that is its own plan says how to pull: def pull(self, walk, node, g)")


class Pick(Own):
    """One result out of several."""

    def __init__(self, owner: Any, index: int, count: int) -> None:
        self.name, self.index, self.count = owner.name, index, count

    def pull(self, walk: Any, node: Node, g: Tensor) -> list:
        assert node.parents is not None and node.parents[0] is not None
        walk.add_output(node.parents[0], self.index, self.count, g)
        walk.values.pop(node, None)
        return []


def attach_results(
    op: Any, recorder: Node, inputs: tuple, kept: Any, results: list[Tensor], live: Sequence[bool] | None = None
) -> list[Tensor]:
    """Return bare copies of `results` that are on the tape as the results of `op`, whose `pull` gets a list of gradients.

    Those of integers and bools stay bare, for nothing has a derivative through them, and so do those that are not `live`.
    """
    if not mode.recording:
        return results
    outs = [Tensor._wrap(y._data, y.device) for y in results]
    parents = tuple([x._node if isinstance(x, Tensor) else None for x in inputs])
    recorder.attach(op, parents, kept, None, outs[0])
    owner, outs[0]._node = outs[0]._node, None
    for i, out in enumerate(outs):
        if is_floating(out.dtype) and (live is None or live[i]):
            recorder.attach(Pick(op, i, len(outs)), (owner,), None, None, out)
    return outs


def attach_composite(op: Any, recorder: Node, inputs: tuple, results: list[Tensor]) -> list[Tensor]:
    """See `Node.record_several`."""
    if not mode.recording:
        return results
    kept = [inputs[op.inputs.index(name)] for name in op.keeps]
    return attach_results(op, recorder, inputs, (kept, ()), results, op.live)
