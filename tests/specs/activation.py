"""Rows for ruda_tensor/ops/activation.py."""
from __future__ import annotations

import numpy as np
import scipy.special as sp

import ruda_tensor as rt

from ._domains import away, draws, uniform
from ._spec import Spec

near = draws(uniform(-3.0, 3.0, 3, 4))
off = draws(away((0.0,), 3, 4))


def softplus(x, beta=1.0):
    return np.logaddexp(0.0, beta * x) / beta


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


SMOOTH = [
    Spec("sigmoid", lambda x: rt.sigmoid(x), near, sp.expit),
    Spec("logsigmoid", lambda x: rt.logsigmoid(x), near, sp.log_expit),
    Spec("softplus", lambda x: rt.softplus(x), near, softplus),
    Spec("softplus", lambda x: rt.softplus(x, beta=2.5), near, lambda x: softplus(x, 2.5), tag="beta"),
    Spec("gelu", lambda x: rt.gelu(x), near, lambda x: x * sp.ndtr(x)),
    Spec("gelu", lambda x: rt.gelu(x), draws(uniform(-3.0, 3.0)), lambda x: x * sp.ndtr(x), tag="0-d"),
    Spec("gelu", lambda x: rt.gelu(x, approximate="tanh"), near, gelu_tanh, tag="tanh"),
    Spec("silu", lambda x: rt.silu(x), near, lambda x: x * sp.expit(x)),
    Spec("silu_mul", lambda x, y: rt.silu_mul(x, y), draws(uniform(-3.0, 3.0, 3, 4), uniform(-3.0, 3.0, 3, 4)),
         lambda x, y: x * sp.expit(x) * y),
    Spec("mish", lambda x: rt.mish(x), near, lambda x: x * np.tanh(softplus(x))),
]

KINKED = [
    Spec("relu", lambda x: rt.relu(x), off, lambda x: np.maximum(x, 0)),
    Spec("relu6", lambda x: rt.relu6(x), draws(away((0.0, 6.0), 3, 4)), lambda x: np.clip(x, 0, 6)),
    Spec("hardtanh", lambda x: rt.hardtanh(x), draws(away((-1.0, 1.0), 3, 4)), lambda x: np.clip(x, -1, 1)),
    Spec(
        "hardtanh", lambda x: rt.hardtanh(x, -2.0, 0.5), draws(away((-2.0, 0.5), 9)), lambda x: np.clip(x, -2, 0.5),
        tag="bounds",
    ),
    Spec("leaky_relu", lambda x: rt.leaky_relu(x, 0.1), off, lambda x: np.where(x > 0, x, 0.1 * x)),
    Spec("leaky_relu", lambda x: rt.leaky_relu(x, -2.0), off, lambda x: np.where(x > 0, x, -2.0 * x), tag="negative"),
    Spec("elu", lambda x: rt.elu(x), off, lambda x: np.where(x > 0, x, np.expm1(x))),
    Spec("elu", lambda x: rt.elu(x, alpha=0.5), off, lambda x: np.where(x > 0, x, 0.5 * np.expm1(x)), tag="alpha"),
]

ROWS = SMOOTH + KINKED
