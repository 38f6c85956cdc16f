"""The numbers that every candidate of a case computes with, as NumPy arrays."""
from __future__ import annotations

import numpy as np

LAYERS = ((784, 256), (256, 256), (256, 10))
CHAIN = 400
ADAMW = 1 << 24
CONV = ((32, 16, 28, 28), (32, 16, 3, 3), (32, 32, 28, 28))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal numbers in float32."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def batch() -> tuple[np.ndarray, np.ndarray]:
    """64 rows for the MLP and their classes."""
    return normal(64, 784), np.random.default_rng(1).integers(0, 10, 64)


def rows(on_gpu: bool) -> tuple[int, int]:
    """The size of the row kernels: on a GPU large enough that launching them costs nothing."""
    return (16384, 4096) if on_gpu else (4096, 1024)
