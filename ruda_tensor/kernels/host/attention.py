"""Attention without mask and dropout: each function returns what the body in ops/_attend.py does, or None to decline."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import threads
from . import FLOAT32, SMALL, address, function, library
from .pool import run

BESIDE = 32  # queries, as in attention.c
WIDEST = 16  # lanes of the widest vectors
PARTS = 4  # for each core, since they are not equally fast; each works in memory of its own


def _takes(xp: Any, q: Any, k: Any, *more: Any) -> bool:
    """Decided by the size of one head, so that it has the same bits in any batch."""
    large = q.shape[2] * k.shape[2] * q.shape[3] >= SMALL
    return xp is np and large and all(
        a.dtype is FLOAT32 and a.size and a.strides[-1] == 4 and a.flags.aligned for a in (q, k, *more)
    )


def compiled(xp: Any, q: Any, k: Any, v: Any) -> bool:
    """Whether there is a compiled body for these arrays."""
    return _takes(xp, q, k, v) and library("attention") is not None


def _sizes(q: Any, k: Any, v: Any, causal: bool, g: Any = None, out: Any = None, grads: Any = (None,) * 3) -> tuple[Any, int]:
    """The struct of attention.c, and how many floats a block works in; what is None is not there."""
    heads = k.shape[1]
    sizes = [heads, q.shape[1] // heads, q.shape[2], k.shape[2], q.shape[3], v.shape[3], int(causal)]
    for a in (q, k, v, g, out, *grads):
        sizes += [0, 0, 0] if a is None else [stride // 4 for stride in a.strides[:3]]
    n, d, e = k.shape[2], *(-(-size // WIDEST) * WIDEST for size in (q.shape[3], v.shape[3]))
    room = BESIDE * (2 * d + 2 * e + 2 * n + max(d, e) + 2) + n * (d + e)
    return np.array(sizes, np.int64), room


def _each(call: Any, units: int, room: int, scale: float, *arrays: Any) -> None:
    """Call it for every pair of batch and key head, on all cores."""
    first = np.arange(0, units, -(-units // (PARTS * threads())))
    scratch = np.empty((len(first), room), FLOAT32)
    last = np.append(first[1:], units)
    run(call, *[address(a) for a in arrays], address(scratch) + 4 * room * np.arange(len(first)), first, last, number=scale)


def forward(xp: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool, out: Any = None) -> tuple[Any, Any] | None:
    """The result, which is written to `out` where that is given, and the log sum exp of each query's scores."""
    if not _takes(xp, q, k, v) or (call := function("attention", "attention_forward", "p" * 7 + "nnf")) is None:
        return None
    out = np.empty((*q.shape[:3], v.shape[3]), FLOAT32) if out is None else out
    lse = np.empty((*q.shape[:3], 1), FLOAT32)
    sizes, room = _sizes(q, k, v, causal, out=out)
    _each(call, k.shape[0] * k.shape[1], room, scale, sizes, q, k, v, out, lse)
    return out, lse


def backward(
    xp: Any, g: Any, q: Any, k: Any, v: Any, lse: Any, *, scale: float, causal: bool, into: Any = None
) -> tuple | None:
    """The gradients of q, k and v, which are written to the three arrays `into` where those are given."""
    if not _takes(xp, q, k, v, g) or (call := function("attention", "attention_backward", "p" * 10 + "nnf")) is None:
        return None
    grads = [np.empty(a.shape, FLOAT32) for a in (q, k, v)] if into is None else into
    sizes, room = _sizes(q, k, v, causal, g, grads=grads)
    _each(call, k.shape[0] * k.shape[1], room, scale, sizes, g, q, k, v, lse, *grads)
    return tuple(grads)
