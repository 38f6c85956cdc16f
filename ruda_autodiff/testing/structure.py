"""Nested arguments as named arrays, and named arrays as one vector."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ruda_tensor.tensor import Tensor

from ..trees import map_tensors


def argument_names(f: Callable, count: int) -> list[str]:
    """The names of the first `count` positional parameters of f; "x0", "x1" ... where it does not say."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "x")
    return (names + [f"{rest}{i}" for i in range(len(names), count)])[:count]


def named_tensors(tree: Any, path: str) -> list[tuple[str, Tensor]]:
    """Return (path, tensor) for every tensor of a structure, in the order in which `map_tensors` meets them.

    Lists, tuples and dicts are walked; an object that maps its own tensors (a module) names them by `named_params`,
    each distinct one once.
    """
    if isinstance(tree, Tensor):
        return [(path, tree)]
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in named_tensors(value, f"{path}[{key!r}]")]
    fields = getattr(tree, "_fields", None)
    if isinstance(tree, tuple) and fields is not None:
        return [pair for name, value in zip(fields, tree) for pair in named_tensors(value, f"{path}.{name}")]
    if isinstance(tree, (list, tuple)):
        return [pair for i, value in enumerate(tree) for pair in named_tensors(value, f"{path}[{i}]")]
    if not hasattr(tree, "map_tensors"):
        return []
    found: list[Tensor] = []
    map_tensors(lambda x: found.append(x) or x, tree)
    named = getattr(tree, "named_params", None)
    names: list[str] = []
    if named is not None:
        first = {_identity(p): name for name, p in reversed(named())}
        names = [f"{path}.{first[_identity(x)]}" for x in found if _identity(x) in first]
    return list(zip(names if len(names) == len(found) else [f"{path}.{i}" for i in range(len(found))], found))


def _identity(x: Any) -> Any:
    """Tied parameters are one: they share an id and a trainable flag."""
    name = getattr(x, "id", None)
    return id(x) if name is None else (name, getattr(x, "trainable", None))


def with_tensors(tree: Any, tensors: Iterable[Tensor]) -> Any:
    """Return the structure with its tensors replaced, in order."""
    following = iter(tensors)
    return map_tensors(lambda _: next(following), tree)


class Space:
    """Several named arrays as one float64 vector."""

    def __init__(self, names: list[str], shapes: list[tuple[int, ...]]) -> None:
        self.names, self.shapes = names, shapes
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)

    @property
    def size(self) -> int:
        return int(self.starts[-1])

    def block(self, k: int) -> slice:
        return slice(self.starts[k], self.starts[k + 1])

    def split(self, vector: np.ndarray) -> list[np.ndarray]:
        return [vector[self.block(k)].reshape(shape) for k, shape in enumerate(self.shapes)]

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        parts = [np.asarray(a, np.float64).ravel() for a in arrays]
        return np.concatenate(parts) if parts else np.zeros(0)

    def owner(self, position: int) -> int:
        """Which array a position of the vector belongs to."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def locate(self, position: int) -> tuple[str, tuple[int, ...]]:
        """The name and the index of one position of the vector."""
        k = self.owner(position)
        index = np.unravel_index(position - self.starts[k], self.shapes[k])
        return self.names[k], tuple(int(i) for i in index)

    def expand(self, per_array: list[float]) -> np.ndarray:
        """A vector that is constant on each array."""
        return np.repeat(np.asarray(per_array, np.float64), np.diff(self.starts))


def element(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]" if index else name
