"""Rows for ruda_tensor/ops/attention.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import draws
from ._spec import Spec
from .conv import normal


def attention(q, k, v, mask=None, causal=False, scale=None, keep=None):
    """softmax(scale q k^T + mask) v by its definition; a query that sees nothing gives zeros."""
    shared = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    if shared > 1:
        k, v = np.repeat(k, shared, axis=-3), np.repeat(v, shared, axis=-3)
    s = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    visible = np.ones(s.shape, bool)
    if mask is not None:
        visible = visible & mask if mask.dtype == bool else visible
        s = s if mask.dtype == bool else s + mask
    if causal:
        visible = np.tril(visible, s.shape[-1] - s.shape[-2])
    e = np.exp(s) * visible
    sums = e.sum(axis=-1, keepdims=True)
    p = e / np.where(sums == 0, 1, sums)
    return (p if keep is None else p * keep) @ v


def dropped(q, k, v):
    keep = rt.random.bernoulli((1, 2, 3, 5), p=0.75, seed=3, device=rt.Cpu()).numpy() / 0.75
    return attention(q, k, v, keep=keep)


def masked(rng):
    return rng.random((3, 4)) < 0.6


call = rt.scaled_dot_product_attention

ROWS: list[Spec] = [
    Spec("scaled_dot_product_attention", call, draws(normal(2, 1, 3, 2), normal(2, 1, 4, 2), normal(2, 1, 4, 3)), attention),
    Spec(
        "scaled_dot_product_attention", lambda q, k, v: call(q, k, v, scale=0.7),
        draws(normal(3, 2), normal(4, 2), normal(4, 1)), lambda q, k, v: attention(q, k, v, scale=0.7), tag="matrices",
    ),
    Spec(
        "scaled_dot_product_attention", lambda q, k, v: call(q, k, v, causal=True),
        draws(normal(1, 4, 3, 2), normal(1, 2, 5, 2), normal(1, 2, 5, 2)),
        lambda q, k, v: attention(q, k, v, causal=True), tag="causal-grouped",
    ),
    Spec(
        "scaled_dot_product_attention", lambda q, k, v: call(q, k, v, causal=True),
        draws(normal(2, 4, 2), normal(2, 2, 2), normal(2, 2, 2)),
        lambda q, k, v: attention(q, k, v, causal=True), tag="causal-more-queries",
    ),
    Spec(
        "scaled_dot_product_attention", lambda q, k, v, m: call(q, k, v, mask=m),
        draws(normal(2, 3, 2), normal(2, 4, 2), normal(2, 4, 2), masked),
        lambda q, k, v, m: attention(q, k, v, m), tag="mask",
    ),
    Spec(
        "scaled_dot_product_attention", lambda q, k, v, m: call(q, k, v, mask=m, causal=True),
        draws(normal(1, 2, 3, 2), normal(1, 1, 4, 2), normal(1, 1, 4, 2), normal(2, 1, 4)),
        lambda q, k, v, m: attention(q, k, v, m, causal=True), tag="added-mask",
    ),
    Spec(
        "scaled_dot_product_attention", lambda q, k, v: call(q, k, v, dropout_p=0.25, seed=3),
        draws(normal(1, 2, 3, 2), normal(1, 2, 5, 2), normal(1, 2, 5, 2)), dropped, tag="dropout",
    ),
]  # fmt: skip
