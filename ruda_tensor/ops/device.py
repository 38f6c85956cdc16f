"""Moving a tensor between devices."""
from __future__ import annotations

from typing import Any

from .. import backend
from ..devices import Device
from ..tensor import Tensor

__all__ = ["move"]


class _Move:
    """Not a primitive: its result is on another device, so the gradient has to travel back."""

    name = "to_device"
    joint = True
    computes = False
    memory_bound = False
    pulls = None

    @property
    def op(self) -> _Move:
        return self

    @staticmethod
    def pull(walk: Any, node: Any, g: Tensor) -> list:
        _, static = node.kept
        return [(node.parents[0], move(g, static["source"]))]


_move = _Move()


def move(x: Tensor, device: Device) -> Tensor:
    """Return `x` on `device`; differentiable. `x.to_device(device)` is the method form.

    >>> import ruda_tensor as rt
    >>> move(rt.ones(2, device=rt.Cpu()), rt.Cpu()).device
    Cpu()
    """
    out = Tensor._wrap(device.put(backend.to_host(x._data)), device)
    if x._node is not None:
        x._node.record_custom(_move, (x,), {"source": x.device}, out)
    return out
