"""Gradients: what backward returns, one tensor per leaf."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ruda_tensor.tensor import Tensor

from .tape import Node


class Gradients:
    """The gradients of the leaves that took part in a backward pass; gradients never live on tensors.

    `gradients[x]` raises KeyError where `x` took no part, `gradients.get(x)` and `x.grad(gradients)` give None.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0, 2.0], device=rt.Cpu()).require_grad()
    >>> gradients = (x * x).sum().backward()
    >>> gradients[x].numpy()
    array([2., 4.], dtype=float32)
    """

    __slots__ = ("_by_leaf",)

    def __init__(self, by_leaf: dict[Node, Tensor]) -> None:
        self._by_leaf = by_leaf

    def get(self, x: Tensor, default: Any = None) -> Any:
        """Return the gradient of `x`, or `default` where it took no part."""
        return default if x._node is None else self._by_leaf.get(x._node, default)

    def __getitem__(self, x: Tensor) -> Tensor:
        found = self.get(x)
        if found is None:
            raise KeyError(
                f"no gradient for a tensor of shape {x.shape}: it is not a leaf that took part in this backward pass"
                f"{'' if x.is_require_grad() else ' (it is not tracked: x = x.require_grad())'}; x.grad(gradients) gives None"
            )
        return found

    def __contains__(self, x: Tensor) -> bool:
        return self.get(x) is not None

    def __len__(self) -> int:
        return len(self._by_leaf)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._by_leaf.values())

    def remove(self, x: Tensor) -> Tensor | None:
        """Take the gradient of `x` out, once; None where there is none."""
        return None if x._node is None else self._by_leaf.pop(x._node, None)

    def replace(self, x: Tensor, g: Tensor) -> None:
        """Put `g` in the place of the gradient of `x`."""
        if x._node is None or not x._node.is_leaf:
            raise KeyError("replace: the tensor is not a leaf; make one first: x = x.require_grad()")
        if g.shape != x.shape or g.dtype != x.dtype:
            raise ValueError(f"replace: the gradient is {g.shape} {g.dtype}, and its leaf {x.shape} {x.dtype}")
        self._by_leaf[x._node] = g

    def __repr__(self) -> str:
        rows = ", ".join(f"{tuple(g.shape)} {g.dtype}" for g in self._by_leaf.values())
        return f"Gradients({len(self)} leaves: {rows})"
