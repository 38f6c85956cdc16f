"""Multi-head attention, with shared key heads, rotary positions and a cache for decoding."""
from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import ruda_tensor as rt
from ruda_tensor.ops._common import floating
from ruda_tensor.ops._packed import packed_attention

from .cache import KeyValueCache
from .config import Config, is_whole
from .creation import Creation
from .initializers import Initializer, KaimingUniform, XavierUniform, Zeros, require_initializer
from .linear import Linear, added
from .module import Module
from .positions import Rotary, RotaryConfig


class MultiHeadAttention(Module):
    """Attention of every position of x to the positions of a context, in several heads at once.

    x is [batch, T, d_model], the context [batch, S, d_context] (x itself where none is given), the result [batch, T,
    d_model]. With H heads of d features, and K heads of keys and values (K divides H: each is shared by H / K heads):

        q = x W_q + b_q,   k = c W_k + b_k,   v = c W_v + b_v
        y = concat over heads of softmax(q k^T / sqrt(d)) v,   times W_out, + b_out

    The three projections are one product `in_proj` with the weight [W_q | W_k | W_v], or with `fused_qkv=False` the
    layers `q`, `k` and `v`. One product is faster, and the one that torch.nn.MultiheadAttention stores; three layers can
    be adapted one by one, and allow a context of another width.

    `mask` broadcasts to [batch, H, T, S], and has 2 or 4 axes (3 would be ambiguous): bool (True: may be attended to), or
    floating (added to the scores). For a padded batch, keep [batch, S] is given as keep[:, None, None, :]. A query that may
    attend to nothing gives 0 before `out`, and gradients of 0. `causal` lets query i see the keys up to i + S - T: the last
    query sees all. Dropout falls on the probabilities, in training mode.

    A `residual` [batch, T, d_model] is added to y.

    With a cache, the result is (y, new cache): x holds the next positions only, which attend to those in the cache and,
    if causal, to those of x up to themselves. `rotary` then turns by the right positions. With a context and a cache
    that is not empty, the context is not projected again: the cache already holds all of it.

    Errors: ValueError for shapes that do not fit, and for rotary positions with a context.
    Source: Vaswani et al., "Attention is all you need", 2017, section 3.2; Shazeer, "Fast transformer decoding", 2019,
    and Ainslie et al., "GQA", 2023, for shared key heads.

    >>> attention = MultiHeadAttentionConfig(d_model=8, n_heads=2, causal=True).init(rt.Cpu())
    >>> x = rt.ones((1, 3, 8), device=rt.Cpu())
    >>> attention(x).shape
    (1, 3, 8)
    >>> y, cache = attention(x, cache=KeyValueCache())
    >>> y, cache = attention(x[:, :1], cache=cache)
    >>> y.shape, cache.length
    ((1, 1, 8), 4)
    """

    in_proj: Linear | None
    q: Linear | None
    k: Linear | None
    v: Linear | None
    out: Linear
    n_heads: int
    n_kv_heads: int
    causal: bool
    dropout: float
    rotary: Rotary | None
    training: bool

    torch_names = {"in_proj.weight": "in_proj_weight", "in_proj.bias": "in_proj_bias", "out": "out_proj"}

    def forward(
        self,
        x: rt.Tensor,
        context: rt.Tensor | None = None,
        *,
        mask: rt.Tensor | None = None,
        causal: bool | None = None,
        cache: KeyValueCache | None = None,
        residual: rt.Tensor | None = None,
    ) -> Any:
        x = floating(x, "MultiHeadAttention")
        context = context if context is None else floating(context, "MultiHeadAttention: context")
        mask = mask if mask is None or isinstance(mask, rt.Tensor) else rt.asarray(mask, device=x.device)
        if not isinstance(cache, KeyValueCache | None):
            raise TypeError(
                f"MultiHeadAttention: cache must be a KeyValueCache, got {type(cache).__name__}; "
                "a sequence starts with attention(x, cache=KeyValueCache())"
            )
        self._check(x, context, mask)
        causal, dropout = self.causal if causal is None else causal, self.dropout if self.training else 0.0
        if self.in_proj is not None and self.rotary is context is mask is cache is None and not dropout:
            y = packed_attention(self.in_proj(x), self.n_heads, self.n_kv_heads, causal=causal)
            return added(self.out, y, residual)
        if context is None:
            q, k, v = self._project(x, 0 if cache is None else cache.length)
            k, v = (k, v) if cache is None else cache.append(k, v).held()
        else:
            known = None if cache is None or cache.k is None else cache.held()
            q, k, v = self._project_apart(x, context, known)
        y = rt.scaled_dot_product_attention(q, k, v, mask=mask, causal=causal, dropout_p=dropout)
        y = rt.reshape(rt.permute_dims(y, (0, 2, 1, 3)), (*x.shape[:2], y.shape[1] * y.shape[3]))
        y = added(self.out, y, residual)
        return y if cache is None else (y, KeyValueCache(k, v))

    def _project(self, x: rt.Tensor, offset: int) -> tuple[rt.Tensor, rt.Tensor, rt.Tensor]:
        """Queries, keys and values of x, each [batch, heads, T, d]."""
        h, k = self.n_heads, self.n_kv_heads
        if self.in_proj is None:
            assert self.q and self.k and self.v
            q, key, v = _heads(self.q(x), h), _heads(self.k(x), k), _heads(self.v(x), k)
            if self.rotary is not None:
                q, key = self.rotary(q, offset), self.rotary(key, offset)
            return q, key, v
        joint = self.in_proj(x)
        if self.rotary is None:
            q, key, v = _parts(joint, [h, k, k])
            return q, key, v
        turned, v = _parts(joint, [h + k, k])
        q, key = rt.split(self.rotary(turned, offset), [h, k], axis=1)
        return q, key, v

    def _project_apart(
        self, x: rt.Tensor, context: rt.Tensor, known: tuple[rt.Tensor, rt.Tensor] | None
    ) -> tuple[rt.Tensor, rt.Tensor, rt.Tensor]:
        """Queries of x, and the keys and values of a context unless they are known."""
        h, k = self.n_heads, self.n_kv_heads
        if self.in_proj is None:
            assert self.q and self.k and self.v
            q = _heads(self.q(x), h)
            return q, *(known or (_heads(self.k(context), k), _heads(self.v(context), k)))
        weight, bias = self.in_proj.weight, self.in_proj.bias
        d = weight.shape[1] // (h + 2 * k)
        of_q, of_kv = rt.split(weight, [h * d, 2 * k * d], axis=1)
        bias_q, bias_kv = (None, None) if bias is None else rt.split(bias, [h * d, 2 * k * d])
        q = _heads(rt.linear(x, of_q, bias_q), h)
        key, v = known or _parts(rt.linear(context, of_kv, bias_kv), [k, k])
        return q, key, v

    def _check(self, x: rt.Tensor, context: rt.Tensor | None, mask: rt.Tensor | None) -> None:
        first = self.in_proj or self.q
        assert first
        d_model = first.weight.shape[0]
        d_context = d_model if self.k is None else self.k.weight.shape[0]
        if x.ndim != 3 or x.shape[2] != d_model:
            raise ValueError(f"MultiHeadAttention: x must be [batch, T, {d_model}], got {x.shape}; one sequence: x[None]")
        if context is None and d_context != d_model:
            raise ValueError(f"MultiHeadAttention: its keys come from a context [batch, S, {d_context}]; attention(x, context)")
        if context is not None and (context.ndim != 3 or context.shape[::2] != (x.shape[0], d_context)):
            raise ValueError(f"MultiHeadAttention: context must be [{x.shape[0]}, S, {d_context}], got {context.shape}")
        if context is not None and self.rotary is not None:
            raise ValueError("MultiHeadAttention: rotary positions compare positions of one sequence; rotary=None for a context")
        if mask is not None and mask.ndim not in (2, 4):
            raise ValueError(
                f"MultiHeadAttention: mask must have the axes [T, S] or [batch, heads, T, S] (sizes may be 1), got {mask.shape}; "
                "of one mask per batch entry: mask[:, None]; of which keys count: keep[:, None, None, :]"
            )


def _heads(x: rt.Tensor, n: int) -> rt.Tensor:
    """[batch, T, n d] as [batch, n, T, d], without a copy."""
    return rt.permute_dims(rt.reshape(x, (*x.shape[:2], n, x.shape[2] // n)), (0, 2, 1, 3))


def _parts(x: rt.Tensor, counts: list[int]) -> list[rt.Tensor]:
    """[batch, T, n d] as several [batch, heads, T, d], so many heads in each; cut first, so that backward copies once."""
    n = sum(counts)
    parts = rt.split(rt.reshape(x, (*x.shape[:2], n, x.shape[2] // n)), counts, axis=2)
    return [rt.permute_dims(part, (0, 2, 1, 3)) for part in parts]


class MultiHeadAttentionConfig(Config):
    """Settings of `MultiHeadAttention`: `d_model`, `n_heads`, and how heads are made and share.

    `n_kv_heads` (n_heads; 1 is multi-query attention), `d_head` (d_model / n_heads), `bias` (True), `dropout` (0),
    `causal` (False), `rotary` (None, or a RotaryConfig), `fused_qkv` (True), `d_context` (d_model) and `initializer`, of all
    weights. Its default is PyTorch's: [W_q | W_k | W_v] is Xavier uniform as one matrix (where d_context is another
    width, each is on its own), W_out is U(-k, k) with k = 1/sqrt(n_heads d_head), and biases are 0.

    >>> MultiHeadAttentionConfig(d_model=8, n_heads=4, n_kv_heads=2).init(rt.Cpu()).in_proj.weight.shape
    (8, 16)
    """

    d_model: int
    n_heads: int
    _: KW_ONLY
    n_kv_heads: int | None = None
    d_head: int | None = None
    bias: bool = True
    dropout: float = 0.0
    causal: bool = False
    rotary: RotaryConfig | None = None
    fused_qkv: bool = True
    d_context: int | None = None
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> MultiHeadAttention:
        """Return the layer on a device; on a recording device its parameters are tracked and dropout is on."""
        self._check()
        make, d = Creation(device), self.d_head or self.d_model // self.n_heads
        n_kv, d_context = self.n_kv_heads or self.n_heads, self.d_context or self.d_model
        rows, shared = self.n_heads * d, n_kv * d

        def linear(default: Initializer, d_in: int, d_out: int, fan_out: int) -> Linear:
            weight = make.param(self.initializer or default, (d_in, d_out), d_in, fan_out)
            return Linear(weight=weight, bias=make.param(Zeros(), (d_out,)) if self.bias else None)

        in_proj = q = k = v = None
        width = rows + 2 * shared
        if self.fused_qkv:
            in_proj = linear(XavierUniform(), self.d_model, width, width)
        else:
            joint = d_context == self.d_model
            q = linear(XavierUniform(), self.d_model, rows, width if joint else rows)
            k, v = (linear(XavierUniform(), d_context, shared, width if joint else shared) for _ in "kv")
        return MultiHeadAttention(
            in_proj=in_proj, q=q, k=k, v=v, out=linear(KaimingUniform(), rows, self.d_model, self.d_model),
            n_heads=self.n_heads, n_kv_heads=n_kv, causal=self.causal, dropout=float(self.dropout),
            rotary=None if self.rotary is None else self.rotary.init(device), training=make.training,
        )  # fmt: skip

    def _check(self) -> None:
        self.require_bools()
        self.require_count("d_model", "n_heads")
        for field in ("n_kv_heads", "d_head", "d_context"):
            value = getattr(self, field)
            self.require(value is None or (is_whole(value) and value > 0), field, "an integer >= 1, or None")
        if self.d_head is None:
            self.require(self.d_model % self.n_heads == 0, "n_heads", f"a divisor of d_model={self.d_model}, or d_head=")
        self.require(self.n_heads % (self.n_kv_heads or 1) == 0, "n_kv_heads", f"a divisor of n_heads={self.n_heads}")
        self.require_within("dropout", 1.0, zero=True)
        self.require(isinstance(self.rotary, RotaryConfig | None), "rotary", "a RotaryConfig, or None")
        require_initializer(self)
        if self.rotary is not None:
            d = self.d_head or self.d_model // self.n_heads
            self.require(self.rotary.d_head == d, "rotary", f"RotaryConfig(d_head={d}), the size of a head")
        other = self.d_context not in (None, self.d_model)
        self.require(not (self.fused_qkv and other), "fused_qkv", "False where d_context is not d_model")
        self.require(not (self.rotary is not None and other), "d_context", "d_model, or no rotary positions")


