"""Elementwise kernels: activations without a bias, silu_mul and dropout."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..live import LivePlace
from .columns import ACTIVATIONS
from .gate import CTYPES, aligned, ceil_div, contiguous, opened
from .launch import Kernel

THREADS = 256  # as in flat.cuh
_SIGNATURES = {
    "activation_forward": "P P q",
    "activation_backward": "P P P q",
    "silu_mul_forward": "P P P q",
    "silu_mul_backward": "P P P P P q",
}
BATCHES = {"activation_forward": 4, "activation_backward": 2, "silu_mul_forward": 2, "silu_mul_backward": 2, "dropout": 2}


@functools.cache
def _kernel(source: str, name: str, dtype: np.dtype, vector: int, batch: int, kind: int) -> Kernel:
    defines = {"STORAGE": CTYPES[dtype], "VECTOR": vector, "BATCH": batch, "KIND": kind}
    return Kernel(source, name, _SIGNATURES[name], defines)


@functools.lru_cache(maxsize=4096)
def _planned(
    source: str, name: str, dtype: np.dtype, vector: int, batch: int, kind: int, size: int
) -> tuple[Kernel, tuple[int, int]]:
    return _kernel(source, name, dtype, vector, batch, kind), (ceil_div(size, THREADS * vector * batch), 1)


def _run(xp: Any, source: str, name: str, size: int, arrays: tuple, kind: int = 0) -> None:
    dtype = arrays[0].dtype
    vector = 16 // dtype.itemsize if aligned(xp, *arrays) else 1
    kernel, grid = _planned(source, name, dtype, vector, BATCHES[name], kind, size)
    kernel(grid, (THREADS, 1), *arrays, size)


def activation_forward(xp: Any, kind: str, x: Any) -> Any:
    """relu, gelu_tanh, gelu or silu of x; None where the gate is shut."""
    if opened(xp, x) is None:
        return None
    (x,) = contiguous(xp, x)
    out = xp.empty(x.shape, x.dtype)
    _run(xp, "activation.cu", "activation_forward", x.size, (x, out), ACTIVATIONS[kind])
    return out


def activation_backward(xp: Any, kind: str, g: Any, x: Any) -> Any:
    """g times the slope at x; None where the gate is shut."""
    if opened(xp, x) is None or g.dtype != x.dtype:
        return None
    g, x = contiguous(xp, g, x)
    dx = xp.empty(x.shape, x.dtype)
    _run(xp, "activation.cu", "activation_backward", x.size, (g, x, dx), ACTIVATIONS[kind])
    return dx


def silu_mul_forward(xp: Any, gate: Any, up: Any) -> Any:
    """silu(gate) up, with silu(gate) rounded to the storage dtype first; None where the gate is shut."""
    if opened(xp, gate) is None or up.dtype != gate.dtype or up.shape != gate.shape:
        return None
    gate, up = contiguous(xp, gate, up)
    out = xp.empty(gate.shape, gate.dtype)
    _run(xp, "silu_mul.cu", "silu_mul_forward", gate.size, (gate, up, out))
    return out


def silu_mul_backward(xp: Any, g: Any, gate: Any, up: Any, needs: tuple[bool, bool]) -> Any:
    """(dgate, dup), each None where it is not needed; None where the gate is shut."""
    if opened(xp, gate) is None or not g.dtype == up.dtype == gate.dtype:
        return None
    g, gate, up = contiguous(xp, g, gate, up)
    dgate, dup = (xp.empty(gate.shape, gate.dtype) if need else None for need in needs)
    _run(xp, "silu_mul.cu", "silu_mul_backward", gate.size, (g, gate, up, dgate, dup))
    return dgate, dup


@functools.cache
def _dropout(dtype: np.dtype, batch: int) -> Kernel:
    real = "d" if dtype == np.float64 else "f"
    defines = {"STORAGE": CTYPES[dtype], "VECTOR": max(4, 16 // dtype.itemsize), "BATCH": batch}
    return Kernel("dropout.cu", "dropout", f"P P q Q Q P {real} I i", defines)


def dropout(xp: Any, x: Any, *, p: float, seed: Any, offset: int) -> Any:
    """x / (1 - p) where the draw (seed, offset) of bernoulli(1 - p) is true, else 0; None where the gate is shut.

    It is its own derivative rule. A `LivePlace` for the seed is a seed and an offset to add, on the device.
    """
    state, seed = (seed.memory, 0) if isinstance(seed, LivePlace) else (None, seed)
    last = round((1 - p) * 2**32) - 1
    if opened(xp, x) is None or not 0 <= last < 2**32:
        return None
    (x,) = contiguous(xp, x)
    out, kernel = xp.empty(x.shape, x.dtype), _dropout(x.dtype, BATCHES["dropout"])
    per_block = THREADS * kernel.defines["VECTOR"] * kernel.defines["BATCH"]
    grid, vector = (ceil_div(x.size, per_block), 1), int(aligned(xp, x, out))
    kernel(grid, (THREADS, 1), x, out, x.size, seed % 2**64, offset % 2**64, state, 1 / (1 - p), last, vector)
    return out
