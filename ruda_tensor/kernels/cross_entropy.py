"""Cross-entropy with class ids along the last axis: the bindings of cross_entropy.cu and cross_entropy_reduce.cu."""
from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .gate import CTYPES, LONGEST, contiguous, opened, vector_of
from .launch import Kernel
from .plans import LONG_GROUP, Plan


@functools.cache
def _rows(name: str, dtype: np.dtype, plan: Plan, weighted: bool, smoothed: bool) -> Kernel:
    r = "d" if dtype == np.float64 else "f"
    forward, backward = f"P P P P P P P P q i q i {r} {r}", f"P P P P P P P P q i q i {r} {r} {r} i"
    defines = {"STORAGE": CTYPES[dtype], **plan.defines(), "WEIGHTED": int(weighted), "SMOOTHED": int(smoothed)}
    return Kernel("cross_entropy.cu", name, forward if name.endswith("forward") else backward, defines)


@functools.cache
def _reduce(name: str, dtype: np.dtype) -> Kernel:
    signature = "P P P q i" if name == "cross_entropy_total" else "P P P q i q i i"
    return Kernel("cross_entropy_reduce.cu", name, signature, {"STORAGE": CTYPES[dtype]})


@functools.lru_cache(maxsize=1024)
def _plan(n: int, vector: int) -> Plan:
    """Rows are read once each way and never kept: a warp for short ones, else a block of up to 512 threads."""
    vectors = -(-n // vector)
    if vectors <= 128:
        return Plan(vector, 32, 4, 0)
    return Plan(vector, min(LONG_GROUP, -(-vectors // 128) * 32), 1, 0)


def _classes(logits: Any, axis: int) -> int:
    """The number of classes, where they lie along the last axis, else 0."""
    return logits.shape[-1] if axis == logits.ndim - 1 and logits.shape[-1] <= LONGEST else 0


def _weight(xp: Any, weight: Any, real: np.dtype) -> Any:
    return None if weight is None else xp.ascontiguousarray(weight.astype(real, copy=False))


def forward(
    xp: Any, logits: Any, targets: Any, weight: Any, *, axis: int, ignore: int | None, smoothing: float, reduction: str
) -> Any:
    """(out, top, whole) as the plain body keeps them; None where the gate is shut. out has the dtype of the logits."""
    real, n = opened(xp, logits), _classes(logits, axis)
    if real is None or not n or targets.dtype != np.int64:
        return None
    x, ids = contiguous(xp, logits, targets)
    w, rows, dtype = _weight(xp, weight, real), x.size // n, x.dtype
    plan = _plan(n, vector_of(xp, n, x))
    top, whole = xp.empty((rows, 1), real), xp.empty((rows, 1), real)
    each = reduction == "none"
    counts = reduction == "mean" and (w is not None or ignore is not None)
    out = xp.empty(targets.shape if each else (), dtype)
    terms = None if each else xp.empty(rows, real)
    owns = xp.empty(rows, real) if counts else None
    kernel = _rows("cross_entropy_forward", dtype, plan, w is not None, smoothing > 0)
    kernel(
        plan.grid(rows), plan.block(), x, ids, w, out if each else None, top, whole, terms, owns, rows, n,
        ignore or 0, int(ignore is not None), 1.0 - smoothing, smoothing / n,
    )  # fmt: skip
    if not each:
        _reduce("cross_entropy_total", dtype)((1, 1), (1024, 1), terms, owns, out, rows, int(reduction == "mean"))
    return out, top, whole


def backward(
    xp: Any, g: Any, logits: Any, targets: Any, weight: Any, top: Any, whole: Any, *, axis: int, ignore: int | None,
    smoothing: float, reduction: str, out: Any = None,
) -> Any:  # fmt: skip
    """The gradient of the logits; None where the gate is shut. `out` may be the logits themselves, if they are not needed."""
    real, n = opened(xp, logits), _classes(logits, axis)
    if real is None or not n or targets.dtype != np.int64 or g.dtype != logits.dtype or top.dtype != real:
        return None
    g, x, ids, top, whole = contiguous(xp, g, logits, targets, top, whole)
    w, rows, mean = _weight(xp, weight, real), x.size // n, reduction == "mean"
    ignoring, dx = ignore is not None, xp.empty(x.shape, x.dtype) if out is None else out
    plan = _plan(n, vector_of(xp, n, x, dx))
    factor = None
    if w is not None or (mean and ignoring):
        factor = xp.empty(2, real)
        kernel = _reduce("cross_entropy_factor", x.dtype)
        kernel((1, 1), (1024, 1), ids, w, factor, rows, n, ignore or 0, int(ignoring), int(mean))
    kernel = _rows("cross_entropy_backward", x.dtype, plan, w is not None, smoothing > 0)
    kernel(
        plan.grid(rows), plan.block(), g, x, ids, w, top, whole, factor, dx, rows, n, ignore or 0, int(ignoring),
        1.0 - smoothing, smoothing / n, 1.0 / rows if mean else 1.0, int(reduction == "none"),
    )  # fmt: skip
    return dx
