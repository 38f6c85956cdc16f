"""Self-attention over packed queries, keys and values, whose gradients are written where they belong, without copies."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels import flash as kernels
from ..kernels.host import attention as host
from ..operation import Composite, Fused, call
from ..tensor import Tensor
from ._attend import attend, attend_backward
from .attention import scaled_dot_product_attention
from .join import split
from .shape import permute_dims, reshape

# A packed array is (B, T, (H + 2 K) D): H heads of queries, then K of keys and K of values. Joined heads are (B, T, H D).
_HEADS_FIRST = (0, 2, 1, 3)


def _cut(packed: Any, heads: int, shared: int) -> tuple[Any, Any, Any]:
    """Views of queries (B, H, T, D), keys and values (B, K, T, D)."""
    b, t, width = packed.shape
    whole = packed.reshape(b, t, heads + 2 * shared, width // (heads + 2 * shared)).transpose(_HEADS_FIRST)
    return whole[:, :heads], whole[:, heads : heads + shared], whole[:, heads + shared :]


def _apart(joined: Any, heads: int) -> Any:
    """Joined heads as (B, H, T, D)."""
    b, t, width = joined.shape
    return joined.reshape(b, t, heads, width // heads).transpose(_HEADS_FIRST)


def _joined(x: Any) -> Any:
    """(B, H, T, D) as joined heads: a view where their memory is (B, T, H, D)."""
    b, h, t, d = x.shape
    return x.transpose(_HEADS_FIRST).reshape(b, t, h * d)


def _expression(packed: Tensor, *, heads: int, shared: int, scale: float, causal: bool) -> Tensor:
    b, t, width = packed.shape
    n = heads + 2 * shared
    # Cut before the axes change places, so that backward copies once.
    parts = split(reshape(packed, (b, t, n, width // n)), [heads, shared, shared], axis=2)
    q, k, v = [permute_dims(part, _HEADS_FIRST) for part in parts]
    y = scaled_dot_product_attention(q, k, v, causal=causal, scale=scale)
    return reshape(permute_dims(y, _HEADS_FIRST), (b, t, heads * y.shape[3]))


def _forward(xp: Any, packed: Any, *, heads: int, shared: int, scale: float, causal: bool) -> tuple[Any, Any]:
    q, k, v = _cut(packed, heads, shared)
    out = xp.empty((*packed.shape[:2], heads * q.shape[3]), packed.dtype)
    compiled = host.forward(xp, q, k, v, scale=scale, causal=causal, out=_apart(out, heads))
    if compiled is not None:
        return out, compiled[1]
    found, lse = attend(xp, q, k, v, None, scale=scale, causal=causal, dropout=None)
    return _joined(found), lse


def _backward(
    xp: Any, g: Any, packed: Any, out: Any, lse: Any, *, needs: tuple, heads: int, shared: int, scale: float, causal: bool
) -> tuple[Any]:
    parts, static = _cut(packed, heads, shared), {"scale": scale, "causal": causal}
    gradient = xp.empty(packed.shape, packed.dtype)
    into = _cut(gradient, heads, shared)
    if host.backward(xp, _apart(g, heads), *parts, lse, into=into, **static) is not None:
        return (gradient,)
    needs = (True, True, True, False)
    found = attend_backward(xp, _apart(g, heads), *parts, None, _apart(out, heads), lse, needs=needs, dropout=None, **static)
    for part, computed in zip(into, found):
        part[...] = computed
    return (gradient,)


def _fused_forward(xp: Any, packed: Any, *, heads: int, shared: int, scale: float, causal: bool) -> tuple | None:
    found = kernels.forward(xp, *_cut(packed, heads, shared), scale=scale, causal=causal)
    return None if found is None else (_joined(found[0]), found[1])


def _fused_backward(
    xp: Any, g: Any, packed: Any, out: Any, lse: Any, *, needs: tuple, heads: int, shared: int, scale: float, causal: bool
) -> tuple | None:
    gradient = xp.empty(packed.shape, packed.dtype)
    parts, into = _cut(packed, heads, shared), _cut(gradient, heads, shared)
    found = kernels.backward(xp, _apart(g, heads), *parts, _apart(out, heads), lse, scale=scale, causal=causal, into=into)
    return None if found is None else (gradient,)


_packed = Composite(
    "packed_attention", _expression, _forward, _backward, keeps="packed out", memory_bound=False,
    fused=Fused("attention_hopper_*.cu attention_*.cu", _fused_forward, _fused_backward),
)  # fmt: skip


def packed_attention(packed: Tensor, heads: int, shared: int, *, causal: bool, scale: float | None = None) -> Tensor:
    """Return self-attention (B, T, H D) of packed queries, keys and values (B, T, (H + 2 K) D), K = `shared` heads of keys.

    The value is that of `scaled_dot_product_attention` on its parts, one after the other along the last axis.
    """
    static = {"heads": heads, "shared": shared, "causal": bool(causal)}
    static["scale"] = (packed.shape[2] // (heads + 2 * shared)) ** -0.5 if scale is None else scale
    compiled = packed.device.kind == "cpu" and host.compiled(np, *_cut(packed._data, heads, shared))
    return call(_packed, (packed,), static) if packed.device.launches or compiled else _expression(packed, **static)
