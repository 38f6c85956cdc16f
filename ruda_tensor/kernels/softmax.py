"""softmax and log_softmax along the last axis: the bindings of softmax.cu."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .gate import CTYPES, LONGEST, contiguous, opened, vector_of
from .launch import Kernel
from .plans import Plan, row_plan


@functools.cache
def _kernel(name: str, signature: str, dtype: np.dtype, plan: Plan, log: int) -> Kernel:
    return Kernel("softmax.cu", name, signature, {"STORAGE": CTYPES[dtype], **plan.defines(), "LOG": log})


def _last(x: Any, axis: int) -> int:
    """The length of rows, where they lie along the last axis of more than one element, else 0."""
    inner = 1
    for n in x.shape[axis + 1 :]:
        inner *= n
    n = x.shape[axis] if x.ndim else 0
    return n if inner == 1 and n <= LONGEST else 0


def forward(xp: Any, x: Any, *, axis: int, log: bool) -> Any:
    """The result, in the dtype of x; None where the gate is shut or the axis is not the last."""
    n = _last(x, axis)
    if not n or opened(xp, x) is None:
        return None
    (x,) = contiguous(xp, x)
    out, rows = xp.empty(x.shape, x.dtype), x.size // n
    plan = row_plan(n, vector_of(xp, n, x, out), 32)
    kernel = _kernel("softmax_forward", "P P q i", x.dtype, plan, int(log))
    kernel(plan.grid(rows), plan.block(), x, out, rows, n)
    return out


def backward(xp: Any, g: Any, out: Any, *, axis: int, log: bool) -> Any:
    """The gradient of x from that of the result and the result; None where the gate is shut."""
    n = _last(out, axis)
    if not n or opened(xp, out) is None or g.dtype != out.dtype:
        return None
    g, out = contiguous(xp, g, out)
    dx, rows = xp.empty(out.shape, out.dtype), out.size // n
    vector = vector_of(xp, n, g, out, dx)
    plan = row_plan(n, vector, 4 * vector)
    kernel = _kernel("softmax_backward", "P P P q i", out.dtype, plan, int(log))
    kernel(plan.grid(rows), plan.block(), g, out, dx, rows, n)
    return dx
