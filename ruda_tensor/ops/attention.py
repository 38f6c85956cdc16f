"""Scaled dot-product attention: softmax(q k^T / sqrt(d)) v."""
from __future__ import annotations

import math
from typing import Any

from .. import random
from ..dtypes import BOOL, FLOAT32, FLOATING, HALF, promote_types
from ..kernels import flash as kernels
from ..operation import Composite, Fused, call
from ..random.state import check_probability
from ..tensor import Tensor
from ._attend import attend, attend_backward
from ._common import as_tensor, cast, floating, scalar_of
from ._numerics import single
from .compare import greater, keep, where
from .dropout import drop, position
from .dropout import dropout as drop_all
from .matmul import matmul
from .reduce import max as largest
from .reduce import sum as add_up
from .shape import broadcast_to, matrix_transpose, reshape
from .transcendental import exp

__all__ = ["scaled_dot_product_attention"]


def _expression(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, causal: bool, dropout: tuple | None
) -> Tensor:
    dtype, (b, h, t, d), (heads, keys) = q.dtype, q.shape, k.shape[1:3]
    rows = (b, heads, h * t // heads if heads else 0)
    s = reshape(matmul(reshape(single(q), (*rows, d)), matrix_transpose(single(k))), (b, h, t, keys)) * scale
    visible = None
    if mask is not None:
        visible = mask if mask.dtype == BOOL else greater(mask, -math.inf)
        s = s if mask.dtype == BOOL else s + keep(single(mask), visible)
    if causal:
        seen = _causal(q, t, keys)
        visible = seen if visible is None else visible & seen
    top = s.detach() if visible is None else where(visible, s.detach(), -math.inf)
    if keys:  # any shift cancels in the quotient, so it is a constant
        top = largest(top, axis=-1, keepdims=True)
        s = s - where(greater(top, -math.inf), top, 0.0)
    e = exp(s) if visible is None else keep(exp(keep(s, visible)), visible)
    sums = add_up(e, axis=-1, keepdims=True)
    p = e / where(greater(sums, 0.0), sums, 1.0)
    p = p if dropout is None else drop(p, *dropout)
    return cast(reshape(matmul(reshape(p, (*rows, keys)), single(v)), (b, h, t, v.shape[3])), dtype)


def _causal(like: Tensor, queries: int, keys: int) -> Tensor:
    """Which keys each query sees: the last query sees all."""
    with like.device.guard():
        xp = like.device.xp
        last = xp.arange(queries)[:, None] + (keys - queries)
        return Tensor._wrap(xp.arange(keys) <= last, like.device)


def _fused_forward(
    xp: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool, dropout: tuple | None
) -> tuple | None:
    return kernels.forward(xp, q, k, v, scale=scale, causal=causal) if mask is None and dropout is None else None


def _fused_backward(
    xp: Any, g: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, *, needs: tuple, scale: float, causal: bool,
    dropout: tuple | None,
) -> tuple | None:  # fmt: skip
    if mask is not None or dropout is not None:
        return None
    found = kernels.backward(xp, g, q, k, v, out, lse, scale=scale, causal=causal, needs=needs[:3])
    return None if found is None else (*found, None)


_attention = Composite(
    "scaled_dot_product_attention", _expression, attend, attend_backward, keeps="q k v mask out", memory_bound=False,
    fused=Fused("attention_hopper_*.cu attention_*.cu", _fused_forward, _fused_backward),
)  # fmt: skip


def _check(name: str, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise where the shapes of queries, keys and values do not fit each other."""
    shapes = f"q {q.shape}, k {k.shape} and v {v.shape}"
    layout = "q (..., H, Tq, D), k (..., K, Tk, D) and v (..., K, Tk, E), where K divides H"
    if q.ndim < 2 or not q.ndim == k.ndim == v.ndim:
        raise ValueError(f"{name}: got {shapes}; they need equally many axes, at least 2: {layout}")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(f"{name}: {shapes} do not fit; they must be {layout}")
    heads, key_heads = (q.shape[-3], k.shape[-3]) if q.ndim > 2 else (1, 1)
    if heads != key_heads and (key_heads == 0 or heads % key_heads):
        raise ValueError(f"{name}: {heads} query heads cannot share {key_heads} key heads; {key_heads} must divide {heads}")


def _four(x: Tensor) -> Tensor:
    """(..., H, T, n) or (T, n) as (B, H, T, n)."""
    if x.ndim == 4:
        return x
    heads = x.shape[-3] if x.ndim > 2 else 1
    return reshape(x, (math.prod(x.shape[:-3]), heads, *x.shape[-2:]))


def _mask(name: str, mask: Any, q: Tensor, keys: int) -> Tensor:
    """Return the mask as (B or 1, H or 1, Tq or 1, Tk or 1), bool or floating."""
    mask = as_tensor(mask, None, name)
    full = (*q.shape[:-1], keys)
    padded = (1,) * (q.ndim - mask.ndim) + mask.shape
    if len(padded) != q.ndim or any(m not in (1, n) for m, n in zip(padded, full)):
        raise ValueError(f"{name}: mask has shape {mask.shape}, which does not broadcast to the scores {full}")
    if mask.dtype not in FLOATING and mask.dtype != BOOL:
        raise TypeError(f"{name}: mask must be bool (True: may be seen) or floating (added), got {mask.dtype}; mask != 0")
    if mask.dtype in FLOATING:
        mask = cast(mask, FLOAT32 if q.dtype in HALF else q.dtype)
    if any(n != 1 for n in padded[:-3]):
        padded = (*q.shape[:-3], *padded[-3:])
        mask = broadcast_to(mask, padded)
    return _four(reshape(mask, padded))


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
    seed: int | None = None,
    key: random.Key | None = None,
) -> Tensor:
    """Return softmax(scale q k^T + mask) v for q (..., H, Tq, D), k (..., K, Tk, D) and v (..., K, Tk, E).

    The result is (..., H, Tq, E). K divides H: each H / K query heads in turn share the keys of one head. `scale` is
    1 / sqrt(D) if None. A bool mask says which keys may be seen, a floating one is added to the scores (and has a
    gradient); it broadcasts to (..., H, Tq, Tk). `causal` is aligned at the bottom right: query i sees keys up to
    i + Tk - Tq, so the last query sees all. A query that sees no key gives zeros, and zero gradients. `dropout_p` drops
    probabilities as `dropout` does; leave it 0 outside of training.

    Scores exist only in blocks, in float32 or wider; backward keeps q, k, v, the result and one number per query. On a GPU of
    compute capability 8.0 or more, halves with a D = E up to 128 that 8 divides run on tensor cores, without mask or dropout.

    Errors: ValueError for shapes that do not fit, TypeError for an integer mask.
    Source: Vaswani et al., "Attention is all you need", 2017, equation 1; backward: Dao et al., "FlashAttention", 2022.

    >>> import ruda_tensor as rt
    >>> q, k = rt.zeros((2, 1), device=rt.Cpu()), rt.zeros((4, 1), device=rt.Cpu())
    >>> v = rt.tensor([[1.0], [10.0], [100.0], [1000.0]], device=rt.Cpu())
    >>> rt.scaled_dot_product_attention(q, k, v, causal=True).tolist()
    [[37.0], [277.75]]
    """
    name = "scaled_dot_product_attention"
    q, k, v = floating(q, name), floating(k, name), floating(v, name)
    dtype = promote_types(promote_types(q.dtype, k.dtype), v.dtype)
    q, k, v = cast(q, dtype), cast(k, dtype), cast(v, dtype)
    _check(name, q, k, v)
    mask = None if mask is None else _mask(name, mask, q, k.shape[-2])
    p = check_probability(f"{name}: dropout_p", dropout_p)
    factor = scalar_of(scale)
    if scale is None:
        factor = q.shape[-1] ** -0.5 if q.shape[-1] else 1.0
    if factor is None or isinstance(factor, bool) or not math.isfinite(factor):
        raise ValueError(f"{name}: scale must be a finite number, got {scale!r}; leave it out for 1 / sqrt(D)")
    dropout = None
    if 0 < p < 1:
        dropout = (p, *position(name, math.prod(q.shape[:-1]) * k.shape[-2], seed, key))
    static = {"scale": float(factor), "causal": bool(causal), "dropout": dropout}
    out = call(_attention, (_four(q), _four(k), _four(v), mask), static)
    out = reshape(out, (*q.shape[:-1], v.shape[-1]))
    return drop_all(out, 1.0, training=True) if p == 1 else out
