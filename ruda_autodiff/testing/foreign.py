"""Checking functions of other frameworks: anything that takes and gives NumPy or DLPack arrays."""
from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .engine import Checker, Options
from .report import GradientReport, dtype_error, shape_error
from .structure import Space, argument_names


def to_numpy(x: Any) -> np.ndarray:
    """Return a NumPy array of what another framework made: NumPy, numbers, ruda tensors, DLPack on CPU or GPU."""
    if isinstance(x, (np.ndarray, np.generic, int, float, list)):
        return np.asarray(x)
    for leave in ("detach", "cpu", "get"):  # PyTorch leaves its tape and its GPU by the first two, CuPy its GPU by `get`
        away = leave == "detach" or (hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] != 1)
        if away and hasattr(x, leave):
            x = getattr(x, leave)()
    return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)


def converter(x: Any) -> Callable[[np.ndarray], Any]:
    """Return the function that makes arrays of the framework of `x` out of NumPy arrays."""
    if isinstance(x, np.ndarray):
        return lambda a: a
    namespace = x.__array_namespace__() if hasattr(x, "__array_namespace__") else None
    if namespace is None:
        namespace = sys.modules.get(type(x).__module__.partition(".")[0])
    found = getattr(namespace, "from_dlpack", None)
    if found is None:
        raise TypeError(
            f"no way is known to make a {type(x).__name__} of a NumPy array; name one: check_vjp(f, vjp, x, convert=...)"
        )
    return found


class Foreign:
    """A function of another framework and its pull-back as an engine Function."""

    size = 0.0

    def __init__(self, f: Callable, vjp: Callable, arrays: tuple, wrt: Any, convert: Callable | None) -> None:
        self.f, self.vjp = f, vjp
        self.values = [to_numpy(a) for a in arrays]
        self.convert = [convert or converter(a) for a in arrays]
        names = argument_names(f, len(arrays))
        floats = [i for i, a in enumerate(self.values) if a.dtype.kind == "f"]
        unknown = [w for w in wrt or () if w not in names and w not in floats]
        if unknown:
            raise ValueError(f"check_vjp: wrt={unknown} names no floating argument; there are {[names[i] for i in floats]}")
        self.picked = floats if wrt is None else [i for i in floats if i in wrt or names[i] in wrt]
        if not self.picked:
            raise TypeError(f"check_vjp: no floating array to differentiate by among {names}, wrt={wrt!r}")
        self.inputs = Space([names[i] for i in self.picked], [self.values[i].shape for i in self.picked])
        self.outputs = Space([], [])
        self.several = False
        self.kept: list[int] = []
        self.results: list[np.ndarray] = []

    def start(self) -> np.ndarray:
        return self.inputs.join([self.values[i] for i in self.picked])

    def arguments(self, x: np.ndarray) -> tuple[list[np.ndarray], list[Any]]:
        """The arguments at x, as NumPy arrays and as the framework's own."""
        values = [np.array(v, np.float64 if v.dtype.kind == "f" else v.dtype) for v in self.values]
        for i, part in zip(self.picked, self.inputs.split(x), strict=True):
            values[i] = np.array(part)
        return values, [make(v) for make, v in zip(self.convert, values, strict=True)]

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        values, given = self.arguments(x)
        copies = [v.copy() for v in values]
        with np.errstate(all="ignore"):
            y = self.f(*given)
        self.unchanged(values, copies, "f")
        self.several = isinstance(y, (tuple, list))
        results = [to_numpy(part) for part in (y if self.several else [y])]
        self.kept = [i for i, r in enumerate(results) if r.dtype.kind == "f"]
        self.results = results
        if not self.kept:
            raise TypeError(f"check_vjp: the function returned no floating array, but {type(y).__name__}")
        names = [f"output[{i}]" for i in self.kept] if self.several else ["output"]
        self.outputs = Space(names[: len(self.kept)], [results[i].shape for i in self.kept])
        return self.outputs.join([results[i] for i in self.kept])

    @staticmethod
    def unchanged(values: list[np.ndarray], copies: list[np.ndarray], who: str) -> None:
        for i, (value, copy) in enumerate(zip(values, copies, strict=True)):
            if not np.array_equal(value, copy, equal_nan=value.dtype.kind == "f"):
                raise RuntimeError(f"{who} changed its argument {i} in place; let it work on a copy")

    def linearize(self, x: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, list[int]]]:
        self.evaluate(x)
        make = self.convert[self.picked[0]]

        def pull(w: np.ndarray) -> tuple[np.ndarray, list[int]]:
            values, given = self.arguments(x)
            copies = [v.copy() for v in values]
            parts = dict(zip(self.kept, self.outputs.split(w), strict=True))
            seeds = [make(np.array(parts[i])) if i in parts else None for i in range(len(self.results))]
            with np.errstate(all="ignore"):
                found = self.vjp(tuple(seeds) if self.several else seeds[0], *given)
            self.unchanged(values, copies, "vjp")
            return self.gather(found)

        return pull

    def gather(self, found: Any) -> tuple[np.ndarray, list[int]]:
        """One vector of the gradients that a pull-back returned, after checking their number, shapes and dtypes."""
        gradients = list(found) if isinstance(found, (tuple, list)) else [found]
        if len(gradients) != len(self.values):
            if len(gradients) != len(self.picked):
                raise ValueError(
                    f"vjp returned {len(gradients)} gradients for {len(self.values)} arguments; return one per argument, None "
                    "where there is none"
                )
            gradients = [gradients[self.picked.index(i)] if i in self.picked else None for i in range(len(self.values))]
        parts, missing = [], []
        for k, i in enumerate(self.picked):
            name, shape = self.inputs.names[k], self.inputs.shapes[k]
            if gradients[i] is None:
                missing.append(k)
                parts.append(np.zeros(shape))
                continue
            g = to_numpy(gradients[i])
            if g.shape != shape:
                raise shape_error(name, g.shape, shape, _shape_hint(g.shape, shape))
            if g.dtype != np.float64:
                raise dtype_error(name, g.dtype, "float64")
            parts.append(g)
        return self.inputs.join(parts), missing


def _shape_hint(given: tuple[int, ...], needed: tuple[int, ...]) -> str:
    if len(given) >= len(needed):
        padded = (1,) * (len(given) - len(needed)) + needed
        if all(a == b or b == 1 for a, b in zip(given, padded, strict=True)):
            axes = tuple(k for k, (a, b) in enumerate(zip(given, padded, strict=True)) if a != b or k < len(given) - len(needed))
            return f"the broadcast is not undone: sum it over axis {axes} and reshape it to {needed}"
    return "it is transposed" if given[::-1] == needed else ""


def check_vjp(
    f: Callable, vjp: Callable, *arrays: Any, wrt: Any = None, convert: Callable | None = None, directions: int = 2,
    full: bool | None = None, seed: Any = 0, rtol: float = 1e-8, resolution: float = 1e-3, precision: float = 1e-9,
    step: float | None = None, kinks: str = "raise",
) -> GradientReport:
    """Check the pull-back `vjp` of a function `f` of NumPy, PyTorch, JAX, CuPy ... arrays by finite differences.

    `f(*arrays)` returns an array or a tuple of arrays; `vjp(g, *arrays)` gets an incoming gradient of the result's
    shape (a tuple of them for a tuple, None for an integer result) and returns one gradient per argument, None where
    there is none. Floating arguments are checked in float64 and handed to f in the framework that they came from, by
    its `from_dlpack` or by `convert` (NumPy array -> array, for example to reach a GPU); others pass through. The
    remaining options are those of `check_gradients`.

    Errors: GradientMismatch where a gradient is wrong, missing, or has the wrong shape or dtype; Inconclusive where
    finite differences cannot tell; RuntimeError where f or vjp changes its arguments.

    >>> import numpy as np
    >>> x, a = np.array([0.5, -1.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> report = check_vjp(lambda a, x: np.tanh(a @ x), lambda g, a, x: (
    ...     np.outer(g * (1 - np.tanh(a @ x) ** 2), x), a.T @ (g * (1 - np.tanh(a @ x) ** 2))), a, x)
    >>> report.entries
    12
    """
    options = Options(directions, full, seed, rtol, resolution, precision, step, kinks)
    names = (wrt,) if isinstance(wrt, (int, str)) else wrt
    if not callable(f) or not callable(vjp):
        raise TypeError("check_vjp: needs two functions first: check_vjp(f, lambda g, x: (g * df(x),), x)")
    if inspect.isclass(vjp):
        raise TypeError("check_vjp: vjp must be a function (g, *arrays) -> gradients, got a class")
    function = Foreign(f, vjp, arrays, names, convert)
    return Checker(function, function.start(), options).run()
