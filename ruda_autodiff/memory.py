"""What the tape keeps: bytes per operation."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ruda_tensor.tensor import Tensor

from .tape import Node


@dataclass
class MemoryReport:
    """Bytes that a recorded graph keeps for backward; memory shared by several nodes counts once, at its newest user.

    `rows` are (operation, nodes, bytes), largest first; `total` is the sum of the bytes.

    >>> print(MemoryReport([("exp", 1, 4000)], 4000))
    operation                  nodes          bytes
    exp                            1          4,000
    total                                     4,000
    """

    rows: list[tuple[str, int, int]] = field(default_factory=list)
    total: int = 0

    def __str__(self) -> str:
        lines = [f"{'operation':24s} {'nodes':>7s} {'bytes':>14s}"]
        lines += [f"{name:24s} {count:7d} {size:14,d}" for name, count, size in self.rows]
        return "\n".join([*lines, f"{'total':24s} {'':7s} {self.total:14,d}"])


def memory_report(*roots: Tensor) -> MemoryReport:
    """Return how many bytes each kind of operation keeps for the backward of `roots`; leaves' own values not counted.

    >>> import ruda_tensor as rt
    >>> x = rt.ones(1000, device=rt.Cpu()).require_grad()
    >>> memory_report(rt.exp(x).sum()).rows
    [('exp', 1, 4000), ('sum', 1, 0)]
    """
    seen_arrays = {id(_base(x._data)) for x in roots if x._node is not None and x._node.is_leaf}
    nodes = _nodes([x._node for x in roots if x._node is not None], seen_arrays)
    counts: dict[str, list[int]] = {}
    for node in nodes:
        row = counts.setdefault(node.op.name, [0, 0])
        row[0] += 1
        for array in _arrays([node.kept, getattr(node, "recipe", None)]):
            base = _base(array)
            if id(base) not in seen_arrays:
                seen_arrays.add(id(base))
                row[1] += base.nbytes
    rows = sorted(((name, n, size) for name, (n, size) in counts.items()), key=lambda row: (-row[2], row[0]))
    return MemoryReport(rows, sum(size for _, _, size in rows))


def _nodes(starts: list[Node], leaf_arrays: set[int]) -> list[Node]:
    """The operations behind `starts`, newest first; notes the arrays of leaves, which the tape does not own."""
    seen: set[Node] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node in seen or node.is_leaf:
            continue
        seen.add(node)
        stack += [p for p in node.parents or () if p is not None]
        for x in _tensors(node.kept):
            if x._node is not None and x._node.is_leaf:
                leaf_arrays.add(id(_base(x._data)))
    return sorted(seen, key=lambda node: node.age)


def _tensors(kept: Any) -> list[Tensor]:
    if isinstance(kept, Tensor):
        return [kept]
    if isinstance(kept, (list, tuple)):
        return [x for part in kept for x in _tensors(part)]
    return []


def _arrays(kept: Any) -> list[Any]:
    if isinstance(kept, Tensor):
        return [kept._data]
    if isinstance(kept, (list, tuple)):
        return [x for part in kept for x in _arrays(part)]
    return [kept] if hasattr(kept, "nbytes") and hasattr(kept, "dtype") else []


def _base(array: Any) -> Any:
    """The array that owns the memory of a view."""
    while getattr(array, "base", None) is not None and hasattr(array.base, "nbytes"):
        array = array.base
    return array
