"""Which attention kernels run: Hopper's, where they take the arrays, then those for any tensor cores, else none."""
from __future__ import annotations

from typing import Any

from . import attention, attention_hopper


def forward(xp: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool, out: Any = None) -> tuple[Any, Any] | None:
    """(softmax(scale q k^T) v, log sum exp per query), or None; see `attention.forward`."""
    found = attention_hopper.forward(xp, q, k, v, scale=scale, causal=causal, out=out)
    return attention.forward(xp, q, k, v, scale=scale, causal=causal, out=out) if found is None else found


def backward(
    xp: Any, g: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, scale: float, causal: bool,
    needs: tuple[bool, ...] = (True, True, True), into: tuple[Any, ...] = (None, None, None),
) -> tuple[Any, Any, Any] | None:  # fmt: skip
    """(dq, dk, dv), each None where it is not needed, or None; see `attention.backward`."""
    settings = {"scale": scale, "causal": causal, "needs": needs, "into": into}
    found = attention_hopper.backward(xp, g, q, k, v, out, lse, **settings)
    return attention.backward(xp, g, q, k, v, out, lse, **settings) if found is None else found
