"""What the tests of the optimizers share: tiny models, and the rules once more in plain float64 NumPy."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import GradientsParams


class Point(Module):
    """A model that is one parameter."""

    x: Param


class Pair(Module):
    """A model of two parameters."""

    a: Param
    b: Param


def param(values: Any, dtype: Any = rt.float32, device: Any = None, **kwargs: Any) -> Param:
    return Param(rt.tensor(values, dtype=dtype, device=device or rt.Cpu()), **kwargs)


def point(values: Any, dtype: Any = rt.float32, device: Any = None) -> Point:
    return Point(param(values, dtype, device))


def give(*pairs: tuple[Param, Any], dtype: Any = None) -> GradientsParams:
    """Gradients of the parameters' dtype (or the one named) with the given values."""
    return GradientsParams({p: rt.tensor(g, dtype=dtype or p.dtype, device=p.device) for p, g in pairs})


def trace(optimizer: Any, gradients: Any, lr: float = 0.1, start: Any = 1.0, dtype: Any = rt.float64) -> list:
    """The values of one parameter after each update."""
    model, out = point(start, dtype), []
    for g in gradients:
        model = optimizer.step(lr, model, give((model.x, g)))
        out.append(model.x.tolist())
    return out


# Each reference is `f(p, gradients, lr, **options)`, written from the papers and contracts, without in-place tricks.
def sgd(p, gradients, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0):
    v = None
    for g in gradients:
        g = g + weight_decay * p
        if momentum:
            v = g if v is None else momentum * v + (1 - dampening) * g
            g = g + momentum * v if nesterov else v
        p = p - lr * g
    return p


def adam(p, gradients, lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, amsgrad=False, decoupled=False, cautious=False):
    m = v = top = np.zeros_like(p)
    for t, g in enumerate(gradients, start=1):
        g = g if decoupled else g + weight_decay * p
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        top = np.maximum(top, v)
        second = (top if amsgrad else v) / (1 - betas[1] ** t)
        if decoupled:
            where = (p >= 0) == (m >= 0) if cautious else np.ones_like(p, bool)
            p = np.where(where, p * (1 - lr * weight_decay), p)
        p = p - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(second) + eps)
    return p


def adamw(p, gradients, lr, weight_decay=1e-2, cautious_weight_decay=False, **options):
    options = {"decoupled": True, "cautious": cautious_weight_decay, **options}
    return adam(p, gradients, lr, weight_decay=weight_decay, **options)


def adagrad(p, gradients, lr, lr_decay=0.0, eps=1e-10, weight_decay=0.0):
    total = np.zeros_like(p)
    for t, g in enumerate(gradients):
        g = g + weight_decay * p
        total = total + g * g
        p = p - lr / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
    return p


def rmsprop(p, gradients, lr, alpha=0.99, eps=1e-8, momentum=0.0, centered=False, weight_decay=0.0):
    v = mean = buffer = np.zeros_like(p)
    for g in gradients:
        g = g + weight_decay * p
        v = alpha * v + (1 - alpha) * g * g
        mean = alpha * mean + (1 - alpha) * g
        u = g / (np.sqrt(np.maximum(v - mean**2, 0) if centered else v) + eps)
        buffer = momentum * buffer + u
        p = p - lr * (buffer if momentum else u)
    return p


def adan(p, gradients, lr, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.0, no_prox=False):
    m = n = e = np.zeros_like(p)
    before = None
    for t, g in enumerate(gradients, start=1):
        d = np.zeros_like(p) if before is None else g - before
        before = g
        m = betas[0] * m + (1 - betas[0]) * g
        e = betas[1] * e + (1 - betas[1]) * d
        n = betas[2] * n + (1 - betas[2]) * (g + betas[1] * d) ** 2
        c1, c2, c3 = (1 - b**t for b in betas)
        u = (m / c1 + betas[1] * e / c2) / (np.sqrt(n) / math.sqrt(c3) + eps)
        p = p * (1 - lr * weight_decay) - lr * u if no_prox else (p - lr * u) / (1 + lr * weight_decay)
    return p


REFERENCES: dict[str, Callable] = {
    "SgdConfig": sgd,
    "AdamConfig": adam,
    "AdamWConfig": adamw,
    "AdaGradConfig": adagrad,
    "RmsPropConfig": rmsprop,
    "AdanConfig": adan,
}


def rates(scheduler, count):
    """What the next calls of a schedule return."""
    return [scheduler.step() for _ in range(count)]
