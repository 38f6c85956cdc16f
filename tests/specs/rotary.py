"""Rows for ruda_tensor/ops/rotary.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import constant, draws, uniform
from ._spec import Spec

ANGLES = np.linspace(-3.0, 3.0, 6).reshape(3, 2)  # of three positions and two pairs


def call(x):
    dtype = rt.float64 if x.dtype == rt.float64 else rt.float32
    return rt.rotary(x, *[constant(f(ANGLES), x, dtype) for f in (np.cos, np.sin)])


def reference(x):
    """Each pair as a complex number, times exp(i angle)."""
    turned = (x[..., :2] + 1j * x[..., 2:4]) * np.exp(1j * ANGLES)
    return np.concatenate([turned.real, turned.imag, x[..., 4:]], axis=-1)


ROWS = [
    Spec("rotary", call, draws(uniform(-3.0, 3.0, 3, 4)), reference, linear=True),
    Spec("rotary", call, draws(uniform(-3.0, 3.0, 2, 2, 3, 7)), reference, linear=True, tag="heads and a rest"),
]
