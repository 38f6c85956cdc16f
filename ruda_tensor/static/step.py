"""One training step, recorded as a CUDA graph and replayed with new inputs."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import backend
from ..devices import Device, default_device
from ..kernels.blaslt import private_workspace
from ..kernels.capture import Recording
from ..live import Live, now
from ..recording import FINE, GONE, SHARED, CaptureError, SharedWhileCapturing, refuse_while_capturing
from ..tensor import Tensor
from .graph import StaticGraph

_ON_THE_TAPE = "StaticGraph: input {} is on the tape, and inputs are data; give x.detach()"


class CapturedStep(StaticGraph):
    """What `StaticGraph(step, *example_inputs)` gives; see there."""

    def __init__(self, step: Callable[..., Any], *examples: Any) -> None:
        self._step = step
        self._device = _check_examples(examples)
        self._examples = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else None for x in examples)
        self._buffers: list[Any] = []  # the arrays, or one-element lists of numbers, that a recorded step reads
        self._recording: Recording | None = None
        self._outputs: Any = None
        self._warm = False

    def replay(self, *inputs: Any) -> Any:
        """Run one step on these inputs and return its results, in memory of their own and without a place on the tape.

        The first call runs the step eagerly, the second records it and runs the recording, and all others run that.
        Errors: ValueError or TypeError for inputs unlike the examples; RuntimeError after `close`, and where what the
        recording trains is no longer the caller's model; CaptureError where the step cannot be recorded. Nothing has
        been run then.
        """
        self._check(inputs)
        if not self._device.launches:
            return _detached(self._step(*inputs))
        refuse_while_capturing("replaying a StaticGraph of a function", "call the function itself there")
        if not self._warm:
            out = self._eager(inputs)
            self._warm = True
            return out
        if self._recording is None:
            if not self._record(inputs):
                return self.run_eager(*inputs)
            assert self._recording is not None
        else:
            found = max((look() for look in self._recording.watched), default=FINE)
            if found == GONE:
                raise RuntimeError(
                    "StaticGraph: the recorded step trains a model or an optimizer state that has been replaced since (by a "
                    "record, a copy, or an eager step beside a snapshot); graph.run_eager(...) goes on with the present one "
                    "and records again"
                )
            if found == SHARED:  # a snapshot: the eager step leaves it its memory
                return self.run_eager(*inputs)
        with self._device.entered():  # once for all of it: entering costs as much as a launch
            self._load(inputs)
            self._recording.launch()
            return _mapped(self._outputs, self._copied, now)

    __call__ = replay

    def run_eager(self, *inputs: Any) -> Any:
        """Run one step without the recording, which the next `replay` makes anew."""
        self._check(inputs)
        if self._device.launches:
            refuse_while_capturing("running a StaticGraph of a function", "call the function itself there")
        out = self._eager(inputs)
        self._forget()
        self._warm = True
        return out

    def _eager(self, inputs: tuple[Any, ...]) -> Any:
        """The results of the step, which share no memory with a model where a recording would change that in place."""
        out = _detached(self._step(*inputs))
        if not self._device.launches:
            return out
        with self._device.guard():
            return _mapped(out, lambda x: Tensor._wrap(x._data.copy(), x.device))

    @property
    def info(self) -> dict[str, Any]:
        """`recorded`, `nodes` (launches and copies in the graph) and `workspace_bytes` (device memory that it holds)."""
        found = self._recording
        nodes, held = (0, 0) if found is None else (found.nodes, found.bytes)
        return {"recorded": found is not None, "nodes": nodes, "workspace_bytes": held}

    def close(self) -> None:
        """Give the recording's memory back; results that were returned stay."""
        self._forget()
        super().close()

    def _forget(self) -> None:
        self._outputs, self._buffers = None, []
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    def _check(self, inputs: tuple[Any, ...]) -> None:
        self._open("a step")
        if len(inputs) != len(self._examples):
            raise TypeError(f"StaticGraph: the step takes {len(self._examples)} inputs, as its examples, got {len(inputs)}")
        for i, (x, example) in enumerate(zip(inputs, self._examples)):
            if example is None:
                if not _is_number(x):
                    raise TypeError(f"StaticGraph: input {i} is a number, got {type(x).__name__}; float(x)")
                continue
            if not isinstance(x, Tensor):
                raise TypeError(f"StaticGraph: input {i} is a tensor, got {type(x).__name__}; rt.asarray(x, device=device)")
            if x._node is not None:
                raise TypeError(_ON_THE_TAPE.format(i))
            if (x.shape, x.dtype) != example or x.device != self._device:
                shape, dtype = example
                raise ValueError(
                    f"StaticGraph: input {i} is {x.dtype} {x.shape} on {x.device}, and the example was {dtype} {shape} on "
                    f"{self._device}; a graph has fixed sizes: pad the batch, or make a graph for this size as well"
                )

    def _load(self, inputs: tuple[Any, ...]) -> None:
        """Put inputs where the recorded step reads them, on the device."""
        assert self._recording is not None
        for buffer, x in zip(self._buffers, inputs):
            if not isinstance(x, Tensor):
                buffer[0] = x
            elif x._data is not buffer:
                self._recording.copy(buffer, x._data)

    def _copied(self, x: Tensor) -> Tensor:
        """A result of the recorded step in memory of its own."""
        assert self._recording is not None
        return _copy(self._recording, x)

    def _record(self, inputs: tuple[Any, ...]) -> bool:
        """Record the step on these inputs, and run nothing; False where somebody sees what it would change in place."""
        backend.release_memory(self._device.index)  # the eager step's: the recording needs as much, from a pool of its own
        made = Recording(self._device.index)
        with self._device.guard():
            copies = [x._data.copy() if isinstance(x, Tensor) else [x] for x in inputs]
        arguments = [_live(b) if isinstance(b, list) else Tensor._wrap(b, self._device) for b in copies]
        try:
            with made.capturing(), private_workspace(self._device.xp) as workspace:
                made.held.append(workspace)
                out = _detached(self._step(*arguments))
                if any(look() == SHARED for look in made.watched):  # perhaps by a result, such as a parameter
                    out = _mapped(out, lambda x: _copy(made, x))
                if any(look() == SHARED for look in made.watched):
                    raise SharedWhileCapturing("a snapshot holds what the step changes in place")
        except SharedWhileCapturing:
            return False
        except CaptureError:
            raise
        except Exception as error:
            if "capture" not in str(error).lower() and "capturing" not in str(error):
                raise
            raise CaptureError(
                f"the step does what a recording cannot hold ({error}); most often it reads a number on the host: float(x), "
                "x.item(), x.numpy(), an `if` on a tensor; return the tensor, and read it after replay"
            ) from error
        self._recording, self._outputs, self._buffers = made, out, copies
        return True


def _copy(recording: Recording, x: Tensor) -> Tensor:
    out = x.device.xp.empty(x.shape, x.dtype)
    recording.copy(out, x._data)
    return Tensor._wrap(out, x.device)


def _live(cell: list[Any]) -> Live:
    return Live(lambda: cell[0])


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _check_examples(examples: tuple[Any, ...]) -> Device:
    """Return the device of the examples, or raise."""
    device: Device | None = None
    for i, x in enumerate(examples):
        if isinstance(x, Tensor):
            if x._node is not None:
                raise TypeError(_ON_THE_TAPE.format(i))
            if device is not None and x.device != device:
                raise ValueError(f"StaticGraph: input {i} is on {x.device}, another on {device}; x.to_device({device!r})")
            device = x.device
        elif not _is_number(x):
            raise TypeError(
                f"StaticGraph: inputs are tensors and numbers, and input {i} is {type(x).__name__}; what stays from step to "
                "step, such as a model, is a variable of the enclosing function"
            )
    return default_device() if device is None else device


def _same(x: Any) -> Any:
    return x


def _mapped(tree: Any, f: Callable[[Tensor], Tensor], other: Callable[[Any], Any] = _same) -> Any:
    """The same nested tuples, lists and dicts with f of every tensor, and `other` of what is no such thing."""
    if isinstance(tree, Tensor):
        return f(tree)
    if isinstance(tree, dict):
        return {key: _mapped(value, f, other) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[_mapped(value, f, other) for value in tree])
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(value, f, other) for value in tree)
    return other(tree)


def _detached(tree: Any) -> Any:
    return _mapped(tree, lambda x: x.detach())
