"""One row per operation and variant; the rows drive forward, derivative, parity, property and mutation tests."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spec:
    """How to call one operation, on what, and what is right.

    `call` takes tensors and returns a tensor or a tuple of them; `make(rng)` returns float64, integer or bool arrays
    from the smooth part of its domain; `reference` computes the same in NumPy or SciPy from the same arrays.
    """

    name: str
    call: Callable[..., Any]
    make: Callable[..., tuple]
    reference: Callable[..., Any] | None
    order: int = 2
    half: bool = True
    linear: bool = False
    tag: str = ""

    def __str__(self) -> str:
        return f"{self.name}-{self.tag}" if self.tag else self.name
