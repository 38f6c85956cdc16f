"""The bodies of attention over raw arrays: blocks of scores that stay in the cache, and no score is kept for backward.

q is (B, H, Tq, D), k (B, K, Tk, D) and v (B, K, Tk, E), where K divides H: query heads h r ... h r + r - 1 share the
keys of head h. `mask` is None or (B, H, Tq, Tk), each size possibly 1. Forward keeps one number per query, the
logarithm of its sum of exponentials, from which backward has its probabilities again.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtypes import BOOL
from ..kernels.gemm import multiply
from ..kernels.host import attention
from .dropout import kept, masked

HOST_BLOCK = 1 << 20  # of scores; a second such block, the keys and the values share the cache in backward
DEVICE_BLOCK = 512 << 20


class _Block:
    """A range of batches, key heads and queries, and the keys that causal queries of it can see."""

    def __init__(self, batches: slice, heads: slice, queries: slice, keys: int, group: int) -> None:
        self.batches, self.heads, self.queries, self.keys, self.group = batches, heads, queries, slice(0, keys), group

    def by_query(self, a: Any) -> Any:
        """The part of (B, H, Tq, n) as (batches, key heads, group, queries, n)."""
        return self._grouped(a)[self.batches, self.heads, :, self.queries]

    def by_key(self, a: Any) -> Any:
        """The part of (B, K, Tk, n)."""
        return a[self.batches, self.heads, self.keys]

    def of_mask(self, mask: Any) -> Any:
        """The part of a mask, (batches, key heads, group, queries, keys), where sizes of 1 stay whole."""
        mask = self._grouped(mask)
        parts = (self.batches, self.heads, slice(None), self.queries, self.keys)
        return mask[tuple(slice(None) if n == 1 else part for n, part in zip(mask.shape, parts))]

    def _grouped(self, a: Any) -> Any:
        b, h, *rest = a.shape
        return a.reshape(b, *((1, 1) if h == 1 else (h // self.group, self.group)), *rest)

    def rows(self, a: Any) -> Any:
        """(batches, key heads, group, queries, n) with group and queries merged: a copy unless it is contiguous."""
        return a.reshape(*a.shape[:2], a.shape[2] * a.shape[3], a.shape[4])


def _blocks(xp: Any, q: Any, k: Any, causal: bool) -> Iterator[_Block]:
    """Cut the scores into blocks: all heads of some batches, else some heads of one, else some queries of one head."""
    (b, h, t, _), (heads, keys) = q.shape, k.shape[1:3]
    if not heads:
        return
    group = h // heads
    budget = (HOST_BLOCK if xp is np else DEVICE_BLOCK) // q.dtype.itemsize
    head = max(1, group * t * keys)
    steps = max(1, budget // (head * heads)), min(heads, max(1, budget // head)), t
    if head > budget:
        steps = 1, 1, max(1, budget // max(1, group * keys))
    for b0 in range(0, b, steps[0]):
        for h0 in range(0, heads, steps[1]):
            for t0 in range(0, t, max(1, steps[2])):
                queries = slice(t0, min(t, t0 + steps[2]))
                seen = min(keys, max(0, queries.stop + keys - t)) if causal else keys
                yield _Block(slice(b0, min(b, b0 + steps[0])), slice(h0, min(heads, h0 + steps[1])), queries, seen, group)


def _walkable(xp: Any, a: Any) -> Any:
    """The array, copied where BLAS cannot walk it: it needs the last axis dense and the one before it ascending."""
    return a if xp is not np or (a.strides[-1] == a.itemsize and min(a.strides) > 0) else np.ascontiguousarray(a)


def _scores(xp: Any, block: _Block, q: Any, k: Any, mask: Any, scale: float, causal: bool) -> tuple[Any, Any]:
    """Return the scaled queries as rows, and the scores (batches, key heads, group, queries, keys), -inf if hidden."""
    part = block.by_query(q)
    rows = block.rows(xp.ascontiguousarray(xp.multiply(part, q.dtype.type(scale))))
    s = multiply(xp, rows, block.by_key(k).swapaxes(-1, -2)).reshape(*part.shape[:4], block.keys.stop)
    if mask is not None:
        m = block.of_mask(mask)
        if m.dtype == BOOL:
            xp.copyto(s, -math.inf, where=~m)
        else:
            s += m
    if causal:
        last = xp.arange(block.queries.start, block.queries.stop) + (k.shape[2] - q.shape[2])  # the last key each sees
        first = min(block.keys.stop, max(0, block.queries.start + k.shape[2] - q.shape[2] + 1))
        xp.copyto(s[..., first:], -math.inf, where=xp.arange(first, block.keys.stop) > last[:, None])
    return rows, s


def _kept(xp: Any, block: _Block, shape: tuple, dropout: tuple[float, int, int]) -> Any:
    """The part of the dropout mask of all (B, H, Tq, Tk) probabilities that falls on a block."""
    p, seed, offset = dropout
    _, h, t, n = shape
    batches, heads, queries = ((r.start, r.stop - r.start) for r in (block.batches, block.heads, block.queries))
    whole = queries[1] == t  # then the block is one run of elements, else a run for each head of a single group
    parts = []
    for head in range(1 if whole else block.group):
        first = ((batches[0] * h + heads[0] * block.group + head) * t + queries[0]) * n
        count = (batches[1] * heads[1] * block.group * t if whole else queries[1]) * n
        words = kept(xp, first % 4 + count, p, seed, (offset + first // 4) % 2**64)
        parts.append(words[first % 4 :])
    found = parts[0] if whole else xp.concatenate(parts)
    return found.reshape(batches[1], heads[1], block.group, queries[1], n)[..., block.keys]


def _plain(mask: Any, dropout: Any) -> bool:
    return mask is None and dropout is None


def attend(
    xp: Any, q: Any, k: Any, v: Any, mask: Any, *, scale: float, causal: bool, dropout: tuple | None
) -> tuple[Any, Any]:
    """Return softmax(scale q k^T + mask) v, and log sum exp of each query's scores: inf where it sees no key."""
    if _plain(mask, dropout):
        compiled = attention.forward(xp, q, k, v, scale=scale, causal=causal)
        if compiled is not None:
            return compiled
    out = xp.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    lse = xp.full((*q.shape[:3], 1), math.inf, q.dtype)
    k, v = _walkable(xp, k), _walkable(xp, v)
    with np.errstate(invalid="ignore", over="ignore"):
        for block in _blocks(xp, q, k, causal):
            if block.keys.stop == 0:
                continue
            _, s = _scores(xp, block, q, k, mask, scale, causal)
            top = xp.max(s, axis=-1, keepdims=True)
            xp.copyto(top, 0, where=top == -math.inf)  # a query that sees nothing: every exponential is then 0
            s -= top
            xp.exp(s, out=s)
            sums = xp.sum(s, axis=-1, keepdims=True)
            empty = sums == 0
            xp.copyto(sums, 1, where=empty)
            logs = block.by_query(lse)
            logs[...] = xp.where(empty, math.inf, xp.log(sums) + top)
            if dropout is not None:
                s = masked(xp, s, _kept(xp, block, (*q.shape[:3], k.shape[2]), dropout))
                sums *= 1 - dropout[0]
            weighted = multiply(xp, block.rows(s), block.by_key(v)).reshape(*s.shape[:4], v.shape[3])
            block.by_query(out)[...] = weighted / sums
    return out, lse


def attend_backward(
    xp: Any,
    g: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    out: Any,
    lse: Any,
    *,
    needs: tuple,
    scale: float,
    causal: bool,
    dropout: tuple | None,
) -> tuple:
    """With p the probabilities, s the scores and dp = g v^T:  ds = p (dp - sum(p dp)), and dv = p^T g.

    `out` is kept for the kernels, whose sum(p dp) is sum(g out). The order of the blocks fixes the order of all sums.
    Dao et al., "FlashAttention", 2022, appendix B.2 to B.4.
    """
    if _plain(mask, dropout):
        compiled = attention.backward(xp, g, q, k, v, lse, scale=scale, causal=causal)
        if compiled is not None:
            return (*(grad if need else None for grad, need in zip(compiled, needs)), None)
    dq, dk, dv = xp.zeros(q.shape, q.dtype), xp.zeros(k.shape, k.dtype), xp.zeros(v.shape, v.dtype)
    dmask = xp.zeros(mask.shape, q.dtype) if needs[3] else None
    k, v = _walkable(xp, k), _walkable(xp, v)
    with np.errstate(invalid="ignore", over="ignore"):
        for block in _blocks(xp, q, k, causal):
            if block.keys.stop == 0:
                continue
            rows, p = _scores(xp, block, q, k, mask, scale, causal)
            p -= block.by_query(lse)
            xp.exp(p, out=p)
            incoming = block.rows(xp.ascontiguousarray(block.by_query(g)))
            ds = multiply(xp, incoming, block.by_key(v).swapaxes(-1, -2)).reshape(p.shape)
            used = p
            if dropout is not None:
                keeps = _kept(xp, block, (*q.shape[:3], k.shape[2]), dropout)
                ds, used = masked(xp, ds, keeps), masked(xp, p, keeps)
                ds *= 1 / (1 - dropout[0])
                used *= 1 / (1 - dropout[0])
            if needs[2]:
                block.by_key(dv)[...] += multiply(xp, block.rows(used).swapaxes(-1, -2), incoming)
            ds -= _dots(xp, p, ds)
            ds *= p
            if dmask is not None:
                part = block.of_mask(dmask)
                shared = tuple(i for i, n in enumerate(part.shape) if n == 1)
                part += xp.sum(ds, axis=shared, keepdims=True) if shared else ds
            scores = block.rows(ds)
            if needs[0]:
                to_q = multiply(xp, scores, block.by_key(k))
                to_q *= q.dtype.type(scale)
                block.by_query(dq)[...] = to_q.reshape(*p.shape[:4], q.shape[3])
            if needs[1]:
                block.by_key(dk)[...] += multiply(xp, scores.swapaxes(-1, -2), rows)
    return dq if needs[0] else None, dk if needs[1] else None, dv if needs[2] else None, dmask


def _dots(xp: Any, x: Any, y: Any) -> Any:
    return np.vecdot(x, y)[..., None] if xp is np else xp.sum(x * y, axis=-1, keepdims=True)
