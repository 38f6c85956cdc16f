"""The plan form of a static graph: named tensors, a list of nodes, and what of their results is wanted.

A plan is checked as a whole and then runs without checks but those of what it reads. On a GPU the whole plan is one
CUDA graph, recorded when the plan is made; on the CPU its operations run one after the other. Either way each node
gives the bits of the operation that it names.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ..kernels.blaslt import private_workspace
from ..kernels.capture import Recording
from ..kernels.completion import Completion, address, idle
from ..recording import capturing, refuse_while_capturing
from ..tensor import Tensor
from .checks import Step, check_inputs, checked, checked_outputs, listed
from .graph import StaticGraph
from .kinds import KINDS, GraphOp
from .passes import fused, last_uses, pruned, workspace


class Plan(StaticGraph):
    """A fixed plan over named inputs: `StaticGraph(inputs, nodes, ...)`.

    `inputs` maps names to float32, float16 or bfloat16 tensors of one device; a node reads inputs and the results of
    earlier nodes, or with `infer_dependencies` of any. `outputs` names the results to return: a tuple of names gives a
    tuple, one name or None (the last node) a tensor. `optimize` leaves out nodes that no output needs and fuses silu with
    a product; `reuse_workspace` frees a result's memory after its last use; neither changes a bit of an output.

    The outputs of a plan are its own memory: the next run overwrites them, so copy what you keep. With `training` they
    are independent tensors on the tape instead, inputs may be tracked, and backward computes the plan again from copies
    of what was read (first derivatives only).

    Errors: ValueError or TypeError with the node and its mistake, for the whole plan at once, before anything runs.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu())
    >>> nodes = [rt.GraphOp("mm", "square", "x", "x"), rt.GraphOp("sum_keepdim", "y", "square", scalar=2)]
    >>> plan = rt.StaticGraph({"x": x}, nodes)
    >>> plan.replay().tolist()
    [[17.0], [37.0]]
    >>> plan.replay({"x": x * 2.0}).tolist()
    [[68.0], [148.0]]
    >>> plan.info["workspace_bytes"]
    24
    """

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        nodes: Sequence[GraphOp],
        outputs: Sequence[str] | str | None = None,
        infer_dependencies: bool = False,
        track_completion: bool = False,
        optimize: bool = False,
        reuse_workspace: bool = False,
        training: bool = False,
    ) -> None:
        self.device = check_inputs(inputs)
        given = listed(nodes)
        steps = checked(inputs, given, infer_dependencies)
        names = checked_outputs(outputs, steps, given[-1].output)
        self.training = bool(training)
        self._bound = dict(inputs)
        self._expected = {name: (x.shape, x.dtype) for name, x in inputs.items()}
        for name, x in self._bound.items():
            self._check_binding(name, x)
        self._names, self._single = names, outputs is None or isinstance(outputs, str)
        self._steps = fused(pruned(steps, names), names) if optimize else steps
        dead = last_uses(self._steps, names)
        self._dead = dead if reuse_workspace else None
        self._info = {
            "nodes": len(self._steps),
            "workspace_bytes": workspace(self._steps, names, self._dead),
            "logical_workspace_bytes": workspace(self._steps, names, None),
            "unoptimized_workspace_bytes": workspace(steps, names, None),
            "graph_nodes": 0,
            "graph_bytes": 0,
        }
        self._outputs: dict[str, Tensor] = {}
        self._scratch: dict[str, Tensor] = {}  # results that are no outputs and keep their memory in the recorded graph
        self._held: dict[str, Any] = {}  # buffers of inputs that were bound to other memory after the recording
        self._recording: Recording | None = None
        on_gpu = self.device.kind == "cuda"
        self._completion = Completion(self.device.index) if track_completion and on_gpu else None
        self._tracks = bool(track_completion)
        if on_gpu:
            refuse_while_capturing("making a plan", "make it before, and call its replay inside the step")
            self._compute()  # compiles the kernels and opens the libraries, which cannot be recorded
            self._record({})

    # running
    def replay(self, inputs: Mapping[str, Tensor] | None = None) -> Any:
        """Run the plan and return its outputs. `inputs` binds names to other tensors first, which stay bound.

        Errors: ValueError, TypeError or RuntimeError where a bound tensor is not as it was when the plan was made.
        """
        self._ready("replay", inputs)
        if self._recording is None or capturing():  # inside a captured step the nodes become part of that step
            return self._results(self._run())
        self._refresh()
        self._recording.launch()
        return self._results(self._outputs)

    def run_eager(self, inputs: Mapping[str, Tensor] | None = None) -> Any:
        """The same as `replay`, operation by operation, without the recorded graph."""
        self._ready("run_eager", inputs)
        return self._results(self._run())

    def _ready(self, what: str, inputs: Mapping[str, Tensor] | None) -> None:
        """Bind and check, in that order, changing nothing where something is wrong."""
        self._open(what)
        new = {} if inputs is None else dict(inputs)
        unknown = [name for name in new if name not in self._bound]
        if unknown:
            raise ValueError(f"StaticGraph: {unknown} are no inputs of this plan, which has {list(self._bound)}")
        for name, x in {**self._bound, **new}.items():
            self._check_binding(name, x)
        self._bound.update(new)

    def _check_binding(self, name: str, x: Any) -> None:
        shape, dtype = self._expected[name]
        if isinstance(x, Tensor) and x.device is self.device and (x._node is None or self.training):
            data = x._data
            if type(data) is self.device.array_type and data.dtype is dtype and data.shape == shape:
                return  # as almost always; the questions below take longer
        if not isinstance(x, Tensor):
            raise TypeError(f"StaticGraph: input {name!r} must be a tensor, got {type(x).__name__}; rt.tensor(values)")
        data = x._data
        if x.device == self.device and not isinstance(data, self.device.array_type):
            raise RuntimeError(
                f"StaticGraph: input {name!r} was consumed by an optimizer's step, which reuses its memory; bind the new "
                f'one: graph.replay({{"{name}": model.weight}})'
            )
        if data.shape != shape or data.dtype != dtype or x.device != self.device:
            raise ValueError(
                f"StaticGraph: input {name!r} is {x.shape} {x.dtype} on {x.device}, and this plan was made for {shape} "
                f"{dtype} on {self.device}; make a plan for these: StaticGraph(inputs, nodes)"
            )
        if x._node is not None and not self.training:
            raise ValueError(
                f"StaticGraph: input {name!r} is tracked, and this plan drops the tape; give {name}.detach(), or make the "
                "plan with training=True"
            )

    def _compute(self) -> dict[str, Tensor]:
        values = {name: x.detach() for name, x in self._bound.items()} if self.training else dict(self._bound)
        return evaluate(self._steps, values, self._dead)

    def _run(self) -> dict[str, Tensor]:
        """Compute everything from what is bound and return the outputs, which inside a captured step are that step's."""
        values = self._compute()
        return {name: values[name] for name in self._names} if capturing() else self._published(values)

    def _published(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take the outputs out of the values of a run: the first ones become the buffers, later ones are copied there."""
        with self.device.guard():
            for name in self._names:
                value = values.pop(name)
                if name in self._outputs:
                    self.device.xp.copyto(self._outputs[name]._data, value._data)
                else:
                    self._outputs[name] = value
        return self._outputs

    def _results(self, outputs: dict[str, Tensor]) -> Any:
        if self._completion is not None and not capturing():
            self._completion.mark()
        results = self._recorded(outputs) if self.training else [outputs[name] for name in self._names]
        return results[0] if self._single else tuple(results)

    # on a GPU
    def _record(self, held: dict[str, Any]) -> None:
        """Record the plan as it reads these buffers, and for other inputs the memory that they are bound to."""
        arrays = {name: held.get(name, x._data) for name, x in self._bound.items()}
        products = any(step.kind in ("mm", "bmm") for step in self._steps)
        made = Recording(self.device.index)
        with made.capturing(), private_workspace(self.device.xp) if products else nullcontext() as own:
            made.held += [own] if products else []
            values = evaluate(self._steps, {n: Tensor._wrap(a, self.device) for n, a in arrays.items()}, self._dead)
            self._published(values)
        if self._recording is not None:
            self._recording.close()
        self._recording, self._held = made, held
        self._scratch = {} if self._dead is not None else {n: x for n, x in values.items() if n not in arrays}
        self._places = {name: address(array) for name, array in arrays.items()}
        self._info.update(graph_nodes=made.nodes, graph_bytes=made.bytes)

    def _refresh(self) -> None:
        """Bring the values of inputs that are bound to other memory than was recorded to where the graph reads them.

        Such an input gets a buffer of its own the first time, and the graph is recorded once more.
        """
        xp, held = self.device.xp, self._held
        moved = [n for n, x in self._bound.items() if n not in held and address(x._data) != self._places[n]]
        with self.device.guard():
            if moved:
                held = {**held, **{name: xp.empty(*self._expected[name]) for name in moved}}
            for name, buffer in held.items():
                xp.copyto(buffer, self._bound[name]._data)
            if moved:
                self._record(held)

    # on the tape
    def _recorded(self, outputs: dict[str, Tensor]) -> list[Tensor]:
        """Copies of the outputs, on the tape as the results of one operation where they depend on a tracked input."""
        with self.device.guard():
            copies = {name: Tensor._wrap(outputs[name]._data.copy(), self.device) for name in self._names}
        inputs = tuple(self._bound.values())
        tracked = self._dependent({name for name, x in self._bound.items() if x._node is not None})
        if tracked:
            node = next(x._node for x in inputs if x._node is not None)
            results = node.record_recomputed("StaticGraph", lambda: self._again(tracked), inputs, [copies[n] for n in tracked])
            copies.update(zip(tracked, results, strict=True))
        return [copies[name] for name in self._names]

    def _dependent(self, names: set[str]) -> list[str]:
        """The outputs that depend on any of the inputs named."""
        for step in self._steps:
            if not names.isdisjoint(step.inputs):
                names.add(step.output)
        return [name for name in self._names if name in names]

    def _again(self, outputs: list[str]) -> Callable[[], list[Tensor]]:
        """A function that computes outputs again from copies of the inputs, which have the inputs' places on the tape."""
        needed = pruned(self._steps, tuple(outputs))
        read = {name for step in needed for name in step.inputs if name in self._bound}
        copies = {}
        with self.device.guard():
            for name in read:
                copies[name] = Tensor._wrap(self._bound[name]._data.copy(), self.device)
                copies[name]._node = self._bound[name]._node

        def again() -> list[Tensor]:
            values = evaluate(needed, dict(copies), None)
            return [values[name] for name in outputs]

        return again

    # around it
    @property
    def info(self) -> dict[str, int]:
        """Counts and bytes of this plan.

        `nodes` run at each replay. `workspace_bytes` is what their results take, `logical_workspace_bytes` what they
        would take without reuse, and `unoptimized_workspace_bytes` what those of all nodes given would. `graph_nodes` and
        `graph_bytes` are those of the CUDA graph, with the operations' own scratch memory; 0 on the CPU.
        """
        return dict(self._info)

    def synchronize(self) -> None:
        """Wait until all work queued on the plan's device is done."""
        self._open("synchronize")
        self.device.synchronize()

    def query(self) -> bool:
        """True where all work queued on the plan's stream is done; does not wait."""
        self._open("query")
        return self.device.kind != "cuda" or idle(self.device.index)

    def query_completion(self) -> bool:
        """True where the last run is done, whatever was queued after it; does not wait. Needs `track_completion=True`."""
        self._tracked("query_completion")
        return self._completion is None or self._completion.done()

    def wait_completion(self) -> None:
        """Wait until the last run is done, whatever was queued after it. Needs `track_completion=True`."""
        self._tracked("wait_completion")
        if self._completion is not None:
            self._completion.wait()

    def _tracked(self, what: str) -> None:
        self._open(what)
        if not self._tracks:
            raise RuntimeError(
                f"StaticGraph: {what} needs a plan that marks the end of each run; make it with track_completion=True"
            )

    def close(self) -> None:
        """Let go of inputs, buffers and the recorded graph. Outputs that you hold stay valid."""
        if self._recording is not None:
            self._recording.close()
        self._recording = None
        self._bound, self._outputs, self._scratch, self._held = {}, {}, {}, {}
        super().close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{list(self._bound)} to {list(self._names)}"
        return f"<StaticGraph of {len(self._steps)} nodes, {state}, on {self.device}>"


def evaluate(steps: list[Step], values: dict[str, Tensor], dead: list[tuple[str, ...]] | None) -> dict[str, Tensor]:
    """Add the steps' results to `values`, by the operations that they name, and return it without what is `dead`.

    NumPy is kept from warning at poles and overflows, as CuPy does not.
    """
    with np.errstate(all="ignore"):
        for i, (kind, output, inputs, scalar, _, _) in enumerate(steps):
            left, right = values[inputs[0]], values[inputs[1]] if len(inputs) == 2 else None
            values[output] = KINDS[kind].run(left, right, scalar)
            if dead is not None:
                for name in dead[i]:
                    del values[name]
    return values
