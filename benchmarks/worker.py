"""Each library in a process of its own: threads of one that spin for more work would slow the next one's turn."""
from __future__ import annotations

import importlib.util
import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

import ruda_tensor as rt

from .measure import Run, Trained, Turns

LIBRARIES = ("ruda", "torch", "autograd", "floors")
Makers = dict[str, dict[str, Callable[[], Run]]]  # case -> candidate -> what makes it


class Absent(Exception):
    """A library that is not there, with a word on it for the heading."""


def load(library: str, device: rt.Device) -> tuple[str, Makers, Callable[[Any], list]]:
    """Return what to say of a library, its workloads, and how a result of theirs is compared."""
    if library == "ruda":
        from . import ours

        return "", {name: {"ruda": lambda f=f: f(device)} for name, f in ours.WORKLOADS.items()}, ours.agreeing
    if library == "floors":
        from . import numpy_peer

        return f"{device.xp.__name__} {device.xp.__version__}", numpy_peer.floors(device.xp), lambda result: []
    if importlib.util.find_spec(library) is None:
        raise Absent(f"{library} is not installed: left out")
    if library == "autograd":
        from . import numpy_peer

        if device.kind != "cpu":
            raise Absent("autograd has no GPU: left out")
        return "autograd", numpy_peer.autograd_workloads(), lambda result: []
    from . import torch_peer

    if device.kind == "cuda" and not torch_peer.torch.cuda.is_available():
        raise Absent("this torch cannot use the GPU: left out")
    return torch_peer.about(), torch_peer.workloads(device.kind), torch_peer.agreeing


def serve(pipe: Any, library: str, device: rt.Device, slot: float, clock: str) -> None:
    """Answer requests until the pipe closes: ("make", case) and ("turn", candidate)."""
    turns: dict[str, Turns] = {}
    try:
        said, workloads, agreeing = load(library, device)
        pipe.send(("ok", said))
        while True:
            request, name = pipe.recv()
            if request == "turn":
                pipe.send(("ok", turns[name].take()))
                continue
            turns.clear()
            results, sizes = {}, {}
            for label, make in workloads.get(name, {}).items():
                run = make()
                results[label] = agreeing(run())
                if isinstance(run, Trained):
                    sizes[label] = run.parameters
                turns[label] = Turns(run, device.synchronize, slot, clock)
            pipe.send(("ok", (results, sizes)))
    except EOFError:
        pass
    except Absent as absent:
        pipe.send(("absent", str(absent)))
    except Exception:
        pipe.send(("error", traceback.format_exc()))


class Library:
    """A library's process, seen from the one that asks."""

    def __init__(self, name: str, device: rt.Device, slot: float, clock: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, device, slot, clock), daemon=True)
        self.process.start()
        theirs.close()
        self.absent = False
        self.said = self._answer()

    def _answer(self) -> Any:
        try:
            kind, value = self.pipe.recv()
        except EOFError:
            raise RuntimeError(f"a process ended with exit code {self.process.exitcode}") from None
        if kind == "error":
            raise RuntimeError(f"in the process of a library:\n{value}")
        self.absent = kind == "absent"
        return value

    def make(self, case: str) -> tuple[dict[str, list], dict[str, int]]:
        """Make a case's candidates; return the results, as arrays to compare, and how many parameters those have that train."""
        self.pipe.send(("make", case))
        return self._answer()

    def turn(self, candidate: str) -> float:
        """Let a candidate take its turn."""
        self.pipe.send(("turn", candidate))
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join()
