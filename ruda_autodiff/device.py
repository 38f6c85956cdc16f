"""The device that records: parameters made there are tracked, and layers are in training mode."""
from __future__ import annotations

from typing import Any

from ruda_tensor.devices import Device, resolve_device
from ruda_tensor.tensor import Tensor

from .checkpointing import BalancedNode
from .tape import Node, leaf

STRATEGIES: dict[str, type[Node]] = {"none": Node, "balanced": BalancedNode}


class Autodiff:
    """A plain device together with the wish to record: parameters initialized on it are leaves.

    `checkpointing="balanced"` computes the results of memory-bound operations again in backward instead of keeping
    them; `"none"` (the default) keeps what the rules need. Gradients are bit-equal under both.

    >>> import ruda_tensor as rt
    >>> Autodiff(rt.Cpu())
    Autodiff(Cpu())
    """

    def __init__(self, device: Any = None, *, checkpointing: str = "none") -> None:
        if isinstance(device, Autodiff):
            raise TypeError("Autodiff: the device records already; give a plain one: Autodiff(Cpu())")
        if checkpointing not in STRATEGIES:
            raise ValueError(f"Autodiff: checkpointing must be one of {', '.join(STRATEGIES)}, got {checkpointing!r}")
        self.plain: Device = resolve_device(device)
        self.checkpointing = checkpointing

    def leaf(self, x: Tensor) -> Tensor:
        """Return a leaf over the values of `x` whose users are recorded under this device's strategy."""
        return leaf(x.to_device(self.plain).detach(), STRATEGIES[self.checkpointing])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Autodiff):
            return NotImplemented
        return (self.plain, self.checkpointing) == (other.plain, other.checkpointing)

    def __hash__(self) -> int:
        return hash((self.plain, self.checkpointing))

    def __repr__(self) -> str:
        how = "" if self.checkpointing == "none" else f", checkpointing={self.checkpointing!r}"
        return f"Autodiff({self.plain!r}{how})"
