"""Structures of results: tensors in tuples, lists and dicts, taken apart and put together again."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..tensor import Tensor
from .symbols import FusionError

CONSTANTS = (bool, int, float, complex, str, bytes, np.generic, np.dtype)  # what nobody can change


def taken_apart(value: Any, tensors: list[Tensor]) -> Callable[[Sequence[Tensor]], Any]:
    """Put the tensors of `value` into `tensors`, in order, and return what builds `value` of others in their places.

    Errors: FusionError where there is anything else than tensors, constants, tuples, lists and dicts.
    """
    kind = type(value)
    if isinstance(value, Tensor):
        place = len(tensors)
        tensors.append(value)
        return lambda made: made[place]
    if kind is dict:
        if any(isinstance(key, Tensor) for key in value):
            raise FusionError("dict with tensors as keys")
        named = {key: taken_apart(part, tensors) for key, part in value.items()}
        return lambda made: {key: part(made) for key, part in named.items()}
    if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(value, "_make")):
        parts = [taken_apart(part, tensors) for part in value]
        make = getattr(kind, "_make", kind)  # a namedtuple's
        return lambda made: make([part(made) for part in parts])
    if value is None or isinstance(value, CONSTANTS):
        return lambda made: value
    raise FusionError(f"{kind.__name__}")
