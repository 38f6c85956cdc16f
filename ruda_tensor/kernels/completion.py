"""Whether a GPU is done with what was queued on it."""
from __future__ import annotations

from typing import Any

from .. import backend


class Completion:
    """An event that marks a place in a GPU's queue."""

    def __init__(self, device: int) -> None:
        with backend.use_device(device):
            self.event = backend.cupy().cuda.Event(disable_timing=True)
        self.device = device

    def mark(self) -> None:
        """Mark the present end of the current stream."""
        with backend.use_device(self.device):
            self.event.record()

    def done(self) -> bool:
        """True where everything before the mark is done; also before the first mark."""
        return bool(self.event.done)

    def wait(self) -> None:
        """Wait for everything before the mark."""
        self.event.synchronize()


def idle(device: int) -> bool:
    """True where everything queued on a GPU's current stream is done."""
    with backend.use_device(device):
        return bool(backend.cupy().cuda.get_current_stream().done)


def address(array: Any) -> tuple[int, tuple[int, ...]]:
    """Where an array begins and how it lies: what a recorded launch remembers of it."""
    return array.data.ptr, array.strides
