"""Where rows of elementwise operations draw their inputs: the smooth parts of domains."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import ruda_tensor as rt

Make = Callable[[np.random.Generator], tuple]


def draws(*parts: Callable[[np.random.Generator], Any]) -> Make:
    """A `make` that draws each input with its own function."""
    return lambda rng: tuple(np.asarray(part(rng)) for part in parts)


def uniform(low: float, high: float, *shape: int) -> Callable:
    return lambda rng: rng.uniform(low, high, shape)


def signed(low: float, high: float, *shape: int) -> Callable:
    """Magnitudes from low to high, either sign: away from zero."""
    return lambda rng: rng.uniform(low, high, shape) * rng.choice([-1.0, 1.0], shape)


def between(*shape: int) -> Callable:
    """Away from whole numbers and from halves, so that no rounding function is near a jump."""
    return lambda rng: rng.integers(-3, 4, shape) + rng.choice([0.25, 0.75], shape) + rng.uniform(-0.15, 0.15, shape)


def levels(*shape: int) -> Callable:
    """Few values, so that ties are common."""
    return lambda rng: rng.integers(-2, 3, shape).astype(np.float64)


def integers(low: int, high: int, *shape: int) -> Callable:
    return lambda rng: rng.integers(low, high, shape)


def flags(*shape: int) -> Callable:
    return lambda rng: rng.random(shape) < 0.5


def apart(gap: float, *shape: int) -> Make:
    """Two arrays that differ by at least `gap` everywhere, either way."""

    def make(rng: np.random.Generator) -> tuple:
        x = rng.uniform(-2.0, 2.0, shape)
        return x, x + rng.uniform(gap, 1.0, shape) * rng.choice([-1.0, 1.0], shape)

    return make


def away(points: tuple[float, ...], *shape: int) -> Callable:
    """Values in [-3, 3] (wider where the points are) at least 0.2 from each point."""

    def part(rng: np.random.Generator) -> np.ndarray:
        low, high = min(-3.0, min(points) - 1.0), max(3.0, max(points) + 1.0)
        x = rng.uniform(low, high, shape)
        for p in points:
            x = np.where(np.abs(x - p) < 0.2, p + np.where(x < p, -0.3, 0.3), x)
        return x

    return part


def constant(values, like, dtype=None):
    """A tensor of a row's own on the device of `like`, made once: a captured step finds it, as it finds its model."""
    array = np.asarray(values)
    return _made(array.tobytes(), array.dtype, array.shape, dtype, type(like.device), like.device)


@functools.cache
def _made(values, kind, shape, dtype, _, device):
    return rt.tensor(np.frombuffer(values, kind).reshape(shape), dtype=dtype, device=device)
