"""Nested arguments: lists, tuples, dicts and modules of tensors, taken apart and put together again."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ruda_tensor.tensor import Tensor


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the same structure with `function` applied to every tensor; anything else is passed through.

    Objects with a method `map_tensors(function)` (modules) say themselves how.

    >>> import ruda_tensor as rt
    >>> map_tensors(lambda x: x.shape, {"a": rt.zeros((2, 3), device=rt.Cpu()), "b": [1, "text"]})
    {'a': (2, 3), 'b': [1, 'text']}
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
    """Return the tensors of a structure in order.

    >>> import ruda_tensor as rt
    >>> len(tensors_of([rt.zeros(1, device=rt.Cpu()), {"a": rt.zeros(1, device=rt.Cpu())}, None]))
    2
    """
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    map_tensors(note, tree)
    return found


def aligned(name: str, tree: Any, like: Any) -> Any:
    """Return `tree` with its dicts in the order of those in `like`, so that their tensors pair up by key.

    A dict beside anything else, or with other keys, is refused: by position it would pair what does not belong together.
    """
    if isinstance(tree, dict):
        if not isinstance(like, dict):
            raise TypeError(f"{name}: a dict was given for a {type(like).__name__}; give its structure, or a list of its tensors")
        if tree.keys() != like.keys():
            raise ValueError(f"{name}: the keys {list(tree)} were given for a dict of {list(like)}")
        return {key: aligned(name, tree[key], value) for key, value in like.items()}
    if isinstance(tree, (list, tuple)) and isinstance(like, (list, tuple)) and len(tree) == len(like):
        return [aligned(name, part, whole) for part, whole in zip(tree, like, strict=True)]
    return tree
