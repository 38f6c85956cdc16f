"""What the two forms of a static graph share: the name, and who may still use it."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class StaticGraph:
    """Work that is laid out once and then run again and again: a plan of operations, or a captured function.

    `StaticGraph(inputs, nodes, ...)`, with a mapping of names to tensors first, is a plan of `GraphOp` nodes: see
    `ruda_tensor.static.plan.Plan`. `StaticGraph(step, *example_inputs)` records a training step: see
    `ruda_tensor.static.step.CapturedStep`. Both have `replay`, `run_eager`, `info` and `close`, and are context managers
    that close themselves.

    Errors: TypeError where the first argument is neither; what each form refuses is said there.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([-1.0, 2.0], device=rt.Cpu())
    >>> with rt.StaticGraph({"x": x}, [rt.GraphOp("relu", "y", "x")]) as graph:
    ...     graph.replay().numpy()
    array([0., 2.], dtype=float32)
    """

    _closed = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not StaticGraph:
            return object.__new__(cls)
        first = args[0] if args else kwargs.get("inputs", kwargs.get("step"))
        if isinstance(first, Mapping):
            from .plan import Plan

            return object.__new__(Plan)  # a subclass, whose __init__ Python calls
        if callable(first):
            from .step import CapturedStep

            return object.__new__(CapturedStep)
        raise TypeError(
            f"StaticGraph: the first argument is a function or a mapping of names to tensors, got {type(first).__name__}; "
            'for example StaticGraph(step, x, y), or StaticGraph({"x": x}, [GraphOp("relu", "y", "x")])'
        )

    @staticmethod
    def from_model(model: Callable[..., Any], most: int = 16) -> Callable[..., Any]:
        """Return a function that gives what a model gives in inference, on a GPU by one graph per shape of its inputs.

        The model is taken as it is now, `model.valid()` where it has that: later training is not seen. Inputs are tensors.
        Of graphs for more than `most` combinations of shapes and dtypes, the one made first is dropped.
        Errors: TypeError for what cannot be called; those of the model.

        >>> import ruda_tensor as rt
        >>> run = rt.StaticGraph.from_model(lambda x: 2 * x)
        >>> [run(rt.ones(n, device=rt.Cpu())).tolist() for n in (1, 2)]
        [[2.0], [2.0, 2.0]]
        """
        if not callable(model):
            raise TypeError(f"from_model: expected a model, got {type(model).__name__}; StaticGraph.from_model(model)")
        frozen = model.valid() if hasattr(model, "valid") else model  # type: ignore[union-attr]
        graphs: dict[tuple, Any] = {}

        def run(*inputs: Any) -> Any:
            key = tuple([(getattr(x, "shape", None), getattr(x, "dtype", None), getattr(x, "device", None)) for x in inputs])
            graph = graphs.get(key)
            if graph is None:
                graph = StaticGraph(frozen, *inputs)
                if len(graphs) >= most:
                    graphs.pop(next(iter(graphs))).close()
                graphs[key] = graph
            return graph.replay(*inputs)

        return run

    def close(self) -> None:
        """Let go of the graph and its memory. Results stay valid; anything else that is asked of it then raises."""
        self._closed = True

    def _open(self, what: str) -> None:
        if self._closed:
            raise RuntimeError(f"StaticGraph: {what} was asked of a closed graph; make a new one, or close it later")

    def __enter__(self) -> Any:
        self._open("entering it")
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
