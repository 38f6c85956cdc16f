"""Nested arguments: lists, tuples, dicts and modules of tensors, taken apart and put together again."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ruda_tensor.tensor import Tensor


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the same structure with `function` applied to every tensor; anything else is passed through.

    Objects with a method `map_tensors(function)` (modules) say themselves how.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[map_tensors(function, value) for value in tree])
    if isinstance(tree, (list, tuple)):
        return type(tree)(map_tensors(function, value) for value in tree)
    own = getattr(tree, "map_tensors", None)
    return tree if own is None else own(function)


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors of a structure in order."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_tensors(note, tree)
    return found
