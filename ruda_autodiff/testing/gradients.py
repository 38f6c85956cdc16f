"""check_gradients: functions of tensors, to first and second order."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ruda_tensor import backend
from ruda_tensor.dtypes import FLOAT64, is_floating
from ruda_tensor.tensor import Tensor

from ..functional import Recording
from ..tape import no_grad
from ..trees import tensors_of
from .differences import EPS
from .engine import ULPS, Checker, Options
from .report import GradientMismatch, GradientReport, LowPrecision
from .structure import Space, argument_names, named_tensors, with_tensors


def place(values: np.ndarray, like: Tensor) -> Tensor:
    """Return float64 values as a tensor where `like` is, with its strides on the CPU: layouts are part of a test."""
    if like.device.kind != "cpu":
        with like.device.guard():
            return Tensor._wrap(like.device.xp.asarray(values), like.device)
    return Tensor._wrap(_with_strides(values, like._data), like.device)


def _with_strides(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    if like.flags.c_contiguous or not like.size:
        return np.array(values)
    steps = [s // like.itemsize if n > 1 else 0 for s, n in zip(like.strides, like.shape)]
    if any(s == 0 and n > 1 for s, n in zip(steps, like.shape)):
        return np.array(values)
    first = sum(-s * (n - 1) for s, n in zip(steps, like.shape) if s < 0)
    last = first + sum(s * (n - 1) for s, n in zip(steps, like.shape) if s > 0)
    memory = np.full(last + 1, np.nan)
    out = np.lib.stride_tricks.as_strided(memory[first:], like.shape, [8 * s for s in steps])
    out[...] = values
    return out if np.array_equal(out, values) else np.array(values)  # of elements that overlap, some were overwritten


def host(x: Tensor) -> np.ndarray:
    """The values of a tensor as float64 on the host."""
    return np.asarray(backend.to_host(x._data)).astype(np.float64)


def named_results(value: Any) -> list[tuple[str, Tensor]]:
    """(name, tensor) for the floating tensors that a function returned."""
    return [(name, y) for name, y in named_tensors(value, "output") if is_floating(y.dtype)]


class OnTape:
    """A function of tensors as an engine Function: evaluated without a tape, linearized with one."""

    size = 0.0

    def __init__(self, f: Callable, inputs: tuple, wrt: Any) -> None:
        self.f, self.arguments = f, inputs
        names = argument_names(f, len(inputs))
        self.chosen = _chosen(names, inputs, wrt)
        tensors = [pair for i in self.chosen for pair in named_tensors(inputs[i], names[i])]
        floats = [(name, x) for name, x in tensors if is_floating(x.dtype)]
        if not floats:
            kinds = ", ".join(type(x).__name__ for x in inputs) or "nothing"
            raise TypeError(
                f"check_gradients: needs a tensor of a floating dtype to differentiate by, got {kinds}; for functions of "
                "NumPy or other arrays there is check_vjp(f, vjp, *arrays)"
            )
        self.templates = [x for _, x in floats]
        self.inputs = Space([name for name, _ in floats], [x.shape for _, x in floats])
        self.outputs = Space([], [])

    def start(self) -> np.ndarray:
        return self.inputs.join([host(x) for x in self.templates])

    def at(self, x: np.ndarray) -> list[Tensor]:
        """The tensors that are differentiated by, at x and in float64."""
        return [place(part, like) for part, like in zip(self.inputs.split(x), self.templates, strict=True)]

    def call(self, moved: list[Tensor]) -> Any:
        """f with these tensors in the place of its floating ones; what is not differentiated by is float64 as well.

        The structures that were given are filled anew each time: a module's parameters become plain tensors in it.
        """
        following = iter(moved)
        out = []
        for i, argument in enumerate(self.arguments):
            tensors = tensors_of(argument)
            pick = lambda t, i=i: next(following) if i in self.chosen and is_floating(t.dtype) else self.constant(t)
            out.append(with_tensors(argument, [pick(t) for t in tensors]) if tensors else argument)
        return self.f(*out)

    @staticmethod
    def constant(x: Tensor) -> Tensor:
        return x.detach() if not is_floating(x.dtype) or x.dtype == FLOAT64 else place(host(x), x)

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        with no_grad(), np.errstate(all="ignore"):
            value = self.call(self.at(x))
        results = named_results(value)
        if not results:
            raise TypeError(
                f"check_gradients: the function returned no tensor of a floating dtype, but {type(value).__name__}; "
                "return tensors (a structure of them; y.sum() rather than y.item())"
            )
        if self.outputs.shapes != [y.shape for _, y in results] or any(y.dtype != FLOAT64 for _, y in results):
            self.outputs = self.space_of(results)
        return self.outputs.join([host(y) for _, y in results])

    @staticmethod
    def space_of(results: list[tuple[str, Tensor]]) -> Space:
        narrow = next(((name, y.dtype) for name, y in results if y.dtype != FLOAT64), None)
        if narrow is not None:
            raise LowPrecision(
                f"{narrow[0]} is {narrow[1]} though the inputs are float64: f converts, or makes constants of a default dtype; "
                "keep the dtype of the inputs: x.astype(y.dtype), rt.ones(n, dtype=x.dtype)"
            )
        return Space([name for name, _ in results], [y.shape for _, y in results])

    def record(self, tensors: list[Tensor], order: int = 1) -> Recording:
        return Recording("check_gradients", self.call, (tensors,), {}, (0,), order)

    def linearize(self, x: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, list[int]]]:
        recording = self.record(self.at(x))
        roots = [y for _, y in named_results(recording.value)]

        def pull(w: np.ndarray) -> tuple[np.ndarray, list[int]]:
            seeds = [place(part, y) for part, y in zip(self.outputs.split(w), roots, strict=True)]
            return gathered(self.inputs, pulled(recording, roots, seeds))

        return pull


def pulled(recording: Recording, roots: list[Tensor], seeds: list[Tensor]) -> list[Tensor | None]:
    """One gradient per recorded input, None where none arrived."""
    grads = recording.pull(roots, seeds, retain=True)
    return [None if x._node is None else grads.get(x._node) for x in recording.inputs]


def gathered(inputs: Space, gradients: list[Tensor | None]) -> tuple[np.ndarray, list[int]]:
    parts = [np.zeros(shape) if g is None else host(g) for g, shape in zip(gradients, inputs.shapes, strict=True)]
    return inputs.join(parts), [k for k, g in enumerate(gradients) if g is None]


class SecondOrder:
    """The first-order pull-back (x, w) -> J(x)^T w as a function to be checked.

    Numerically it is evaluated as a first backward pass runs, with the fast bodies; analytically it is recorded with
    order 2, which differentiates the rules. So the two recordings are held against each other as well.
    """

    def __init__(self, first: OnTape, size: float) -> None:
        self.first, self.outputs = first, Space([], [])
        names = [f"gradient of {name}" for name in first.outputs.names]
        self.inputs = Space(first.inputs.names + names, first.inputs.shapes + first.outputs.shapes)
        self.split_at = first.inputs.size
        self.size = size  # a gradient has the rounding of f, however small it is itself

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        f = self.first
        at, w = x[: self.split_at], x[self.split_at :]
        with np.errstate(all="ignore"):
            g, _ = f.linearize(at)(w)
        self.outputs = Space([f"d/d{name}" for name in f.inputs.names], f.inputs.shapes)
        return g

    def linearize(self, x: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, list[int]]]:
        f = self.first
        at, w = x[: self.split_at], x[self.split_at :]
        like = f.templates[0]
        seeds = [place(part, like) for part in f.outputs.split(w)]

        def gradient(tensors: list[Tensor], seeds: list[Tensor]) -> list[Tensor]:
            inner = f.record(tensors, order=2)
            roots = [y for _, y in named_results(inner.value)]
            found = pulled(inner, roots, seeds)
            return [y * 0.0 if g is None else g for y, g in zip(inner.inputs, found, strict=True)]

        recording = Recording("check_gradients", gradient, (f.at(at), seeds), {}, (0, 1), 1)
        roots = recording.value
        self._same_first_order(x, roots)

        def pull(u: np.ndarray) -> tuple[np.ndarray, list[int]]:
            cotangents = [place(part, y) for part, y in zip(self.outputs.split(u), roots, strict=True)]
            return gathered(self.inputs, pulled(recording, roots, cotangents))

        return pull

    def _same_first_order(self, x: np.ndarray, gradients: list[Tensor]) -> None:
        """The rules that order 2 records must give the gradient that order 1 gives."""
        once, twice = self.evaluate(x), self.outputs.join([host(g) for g in gradients])
        allowed = 1e-10 * float(np.abs(once).max(initial=0.0)) + ULPS * EPS * self.size
        bad = np.flatnonzero(~(np.abs(once - twice) <= allowed))
        if bad.size:
            name, index = self.outputs.locate(int(bad[0]))
            raise GradientMismatch(
                f"recording with order=2 changes the first derivative: {name}{list(index)} is {twice[bad[0]]!r}, and "
                f"{once[bad[0]]!r} with order=1; the hand-derived rule and the expression of a composite disagree"
            )


def _chosen(names: list[str], inputs: tuple, wrt: Any) -> tuple[int, ...]:
    """The numbers of the arguments to differentiate by: those that hold a floating tensor, or those that `wrt` names."""
    holds = [i for i, a in enumerate(inputs) if any(is_floating(x.dtype) for x in tensors_of(a))]
    if wrt is None:
        return tuple(holds)
    wanted = (wrt,) if isinstance(wrt, (int, str)) else tuple(wrt)
    found = [i for i in holds if i in wanted or names[i] in wanted]
    unknown = [w for w in wanted if w not in found and w not in [names[i] for i in found]]
    if unknown or not found:
        known = ", ".join(f"{i} ({names[i]})" for i in holds)
        raise ValueError(f"check_gradients: wrt={wrt!r} must name arguments with floating tensors, which are {known or 'none'}")
    return tuple(found)


def check_gradients(
    f: Callable, *inputs: Any, order: int = 1, wrt: Any = None, directions: int = 2, full: bool | None = None, seed: Any = 0,
    rtol: float = 1e-8, resolution: float = 1e-3, precision: float = 1e-9, step: float | None = None, kinks: str = "raise",
) -> GradientReport:
    """Check the derivatives of `f` at `inputs` against finite differences, in float64.

    Floating tensors are differentiated by, as float64 whatever they come in; integer and bool tensors and everything
    else pass through. Inputs may be nested tuples, lists and dicts, and modules, whose parameters are checked. `f`
    returns a tensor or a nested structure of them. Random directions are compared at any size, and for small functions
    every entry of the Jacobian (see docs/gradient-checking.md).

    `order=2` checks the derivative of the gradient too. `wrt`: numbers or names of the arguments to differentiate by.
    `directions`: how many random ones, from `seed`. `full`: compare every entry (None: where there are few).
    `rtol`: the relative error granted to the rule's own rounding, beside four times the estimated error of the
    numerical derivative. `resolution`: the check is Inconclusive where a relative error of this size could hide.
    `precision`: the relative rounding of f above which it is LowPrecision. `step`: the first step, relative to the
    size of an input. `kinks`: "raise" KinkNearby, or "ignore" such entries and count them in the report.

    Errors: GradientMismatch (MissingGradient ...) where a derivative is wrong; Inconclusive (KinkNearby, NonFinite,
    NotDeterministic, LowPrecision) where finite differences cannot tell.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[0.5, -1.0], [2.0, 0.1]], dtype=rt.float64, device=rt.Cpu())
    >>> check_gradients(lambda x: rt.tanh(x @ x), x, order=2).max_error < 1e-8
    True
    """
    if order not in (1, 2):
        raise ValueError(f"check_gradients: order must be 1 or 2, got {order!r}")
    return check(f, inputs, order, wrt, Options(directions, full, seed, rtol, resolution, precision, step, kinks))


def check(f: Callable, inputs: tuple, order: int, wrt: Any, options: Options) -> GradientReport:
    """check_gradients with its options in one object."""
    function = OnTape(f, inputs, wrt)
    x = function.start()
    checker = Checker(function, x, options)
    report = checker.run()
    if order == 2 and function.outputs.size:
        rng = np.random.default_rng(options.seed)
        w = rng.choice([-1.0, 1.0], function.outputs.size) * rng.uniform(0.5, 1.5, function.outputs.size)
        size = float(checker.curve.size.max()) * max(1.0, 1.0 / float(checker.scale.min())) if function.inputs.size else 0.0
        second = Checker(SecondOrder(function, size), np.concatenate([x, w]), options, order=2).run()
        second.saw(report.max_error, report.resolution)
        second.evaluations += report.evaluations
        second.kinks += report.kinks
        return second
    return report
