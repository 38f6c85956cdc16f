"""Transformer layers and stacks: encoders (with `causal=True` also language models) and decoders over a memory."""
from __future__ import annotations

from dataclasses import KW_ONLY
from functools import partial
from typing import Any

import ruda_tensor as rt

from .attention import MultiHeadAttention, MultiHeadAttentionConfig
from .cache import DecoderCache, KeyValueCache
from .config import Config, is_whole
from .creation import Creation
from .gated import silu_mul
from .initializers import Initializer
from .linear import Linear, LinearConfig, added
from .module import Module
from .norm import LayerNormConfig, RmsNormConfig
from .positions import RotaryConfig

ACTIVATIONS = {"relu": rt.relu, "gelu": rt.gelu, "gelu_tanh": partial(rt.gelu, approximate="tanh"), "silu": rt.silu}


class FeedForward(Module):
    """The part of a transformer layer that sees each position by itself: f(x W_1 + b_1) W_2 + b_2.

    x and the result are [..., d_model], between them is d_ff. With "swiglu" the first product has two halves (u, w), and
    the second takes silu(u) w. Dropout falls on what the second product takes, in training mode. A `residual` like the result
    is added to it.

    Source: Vaswani et al., "Attention is all you need", 2017, section 3.3; Shazeer, "GLU variants improve transformer", 2020.

    >>> layer = TransformerEncoderLayerConfig(d_model=8, n_heads=2, d_ff=12, activation="swiglu").init(rt.Cpu())
    >>> layer.feed_forward.linear1.weight.shape, layer.feed_forward.linear2.weight.shape
    ((8, 24), (12, 8))
    """

    linear1: Linear
    linear2: Linear
    activation: str
    dropout: float
    training: bool

    def forward(self, x: rt.Tensor, residual: rt.Tensor | None = None) -> rt.Tensor:
        first, second = self.linear1, self.linear2
        drops = self.training and self.dropout > 0
        if self.activation in ACTIVATIONS and not drops and type(first) is type(second) is Linear:
            weights = first.weight, first.bias, second.weight, second.bias
            return rt.feed_forward(x, *weights, activation=self.activation, residual=residual)
        x = first(x)
        if self.activation == "swiglu":
            gate, x = rt.chunk(x, 2, axis=-1)
            x = silu_mul(gate, x)
        else:
            x = ACTIVATIONS[self.activation](x)
        return added(second, rt.dropout(x, self.dropout, training=self.training), residual)


class TransformerEncoderLayer(Module):
    """Self-attention, then a feed-forward part, each added to what it was given and normalized: x is [batch, T, d_model].

        after (norm_first=False):  x = norm1(x + attention(x)),   x = norm2(x + feed_forward(x))
        before (norm_first=True):  x = x + attention(norm1(x)),   x = x + feed_forward(norm2(x))

    Dropout falls on the attention's probabilities, inside the feed-forward part, and on both results before they are added,
    in training mode. `mask` and `cache` are those of `MultiHeadAttention`; with a cache the result is (y, new cache).

    Source: Vaswani et al., "Attention is all you need", 2017; Xiong et al., "On layer normalization in the transformer
    architecture", 2020, for norm_first.

    >>> layer = TransformerEncoderLayerConfig(d_model=8, n_heads=2).init(rt.Cpu())
    >>> layer(rt.ones((1, 3, 8), device=rt.Cpu())).shape
    (1, 3, 8)
    """

    self_attn: MultiHeadAttention
    feed_forward: FeedForward
    norm1: Module
    norm2: Module
    norm_first: bool
    dropout: float
    training: bool

    torch_names = {"feed_forward.linear1": "linear1", "feed_forward.linear2": "linear2"}

    def forward(self, x: rt.Tensor, *, mask: rt.Tensor | None = None, cache: KeyValueCache | None = None) -> Any:
        out = self.self_attn(_before(self, self.norm1, x), mask=mask, cache=cache, residual=_inside(self, x))
        y, cache = out if cache is not None else (out, None)
        x = _after(self, self.norm1, x, y)
        x = _after(self, self.norm2, x, self.feed_forward(_before(self, self.norm2, x), _inside(self, x)))
        return x if cache is None else (x, cache)


class TransformerDecoderLayer(Module):
    """Self-attention, attention to a memory, then a feed-forward part, each added and normalized as in the encoder's layer.

    x is [batch, T, d_model] and the memory, an encoder's output, [batch, S, d_model]. `mask` [batch, heads, T, T] is of the
    self-attention and `memory_mask` [batch, heads, T, S] of the other. With a `DecoderCache` the result is (y, new cache);
    the memory is projected in the first step, and later steps find that in the cache.

    Source: Vaswani et al., "Attention is all you need", 2017.

    >>> layer = TransformerDecoderLayerConfig(d_model=8, n_heads=2).init(rt.Cpu())
    >>> x, memory = rt.ones((1, 3, 8), device=rt.Cpu()), rt.ones((1, 5, 8), device=rt.Cpu())
    >>> layer(x, memory).shape
    (1, 3, 8)
    """

    self_attn: MultiHeadAttention
    cross_attn: MultiHeadAttention
    feed_forward: FeedForward
    norm1: Module
    norm2: Module
    norm3: Module
    norm_first: bool
    dropout: float
    training: bool

    torch_names = {"feed_forward.linear1": "linear1", "feed_forward.linear2": "linear2", "cross_attn": "multihead_attn"}

    def forward(
        self, x: rt.Tensor, memory: rt.Tensor, *, mask: rt.Tensor | None = None, memory_mask: rt.Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Any:  # fmt: skip
        if memory is None:  # attention would then be to x itself
            raise TypeError("TransformerDecoderLayer: memory must be a tensor, got None; else use TransformerEncoder")
        if not isinstance(cache, DecoderCache | None):
            raise TypeError(f"TransformerDecoderLayer: cache must be a DecoderCache, got {type(cache).__name__}; DecoderCache()")
        own, cross = (None, None) if cache is None else cache
        out = self.self_attn(_before(self, self.norm1, x), mask=mask, cache=own, residual=_inside(self, x))
        y, own = out if own is not None else (out, None)
        x = _after(self, self.norm1, x, y)
        given = _before(self, self.norm2, x)
        out = self.cross_attn(given, memory, mask=memory_mask, cache=cross, residual=_inside(self, x))
        y, cross = out if cross is not None else (out, None)
        x = _after(self, self.norm2, x, y)
        x = _after(self, self.norm3, x, self.feed_forward(_before(self, self.norm3, x), _inside(self, x)))
        return x if own is None or cross is None else (x, DecoderCache(own, cross))


def _before(layer: Any, norm: Module, x: rt.Tensor) -> rt.Tensor:
    """What a part of the layer is given."""
    return norm(x) if layer.norm_first else x


def _inside(layer: Any, x: rt.Tensor) -> rt.Tensor | None:
    """The residual for a part to add to its result, where no dropout falls on that first."""
    return None if layer.training and layer.dropout > 0 else x


def _after(layer: Any, norm: Module, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
    """What comes out, for the part's result y, to which x was added where `_inside` gave it."""
    if _inside(layer, x) is None:
        y = x + rt.dropout(y, layer.dropout, training=True)
    return y if layer.norm_first else norm(y)


class TransformerEncoder(Module):
    """A stack of `TransformerEncoderLayer`, with a last normalization where its layers normalize first.

    With `causal=True` it is the body of a language model such as GPT: an embedding of the tokens (plus one of the
    positions, or `rotary`) in front, and a linear layer to the vocabulary behind.

    `forward(x, mask=, cache=)` takes x [batch, T, d_model]; with a cache (one KeyValueCache per layer; `empty_cache()` is
    where a sequence starts) x holds the next positions only, and the result is (y, new cache).

    >>> model = TransformerEncoderConfig(d_model=8, n_heads=2, n_layers=2, causal=True, norm_first=True).init(rt.Cpu())
    >>> x = rt.ones((1, 3, 8), device=rt.Cpu())
    >>> y, cache = model(x, cache=model.empty_cache())
    >>> y, cache = model(x[:, :1], cache=cache)
    >>> y.shape, cache[0].length
    ((1, 1, 8), 4)
    """

    layers: list[TransformerEncoderLayer]
    norm: Module | None

    def forward(
        self, x: rt.Tensor, *, mask: rt.Tensor | None = None, cache: tuple[KeyValueCache, ...] | None = None
    ) -> Any:
        if cache is None:
            for layer in self.layers:
                x = layer(x, mask=mask)
            return x if self.norm is None else self.norm(x)
        _check_cache(self, cache)
        new = []
        for layer, part in zip(self.layers, cache, strict=True):
            x, part = layer(x, mask=mask, cache=part)
            new.append(part)
        return (x if self.norm is None else self.norm(x)), tuple(new)

    def empty_cache(self) -> tuple[KeyValueCache, ...]:
        """Return what a sequence starts with: one empty cache per layer."""
        return (KeyValueCache(),) * len(self.layers)


class TransformerDecoder(Module):
    """A stack of `TransformerDecoderLayer`, with a last normalization where its layers normalize first.

    `forward(x, memory, mask=, memory_mask=, cache=)`; with a cache (one DecoderCache per layer; `empty_cache()` is where a
    sequence starts) x holds the next positions only, and the result is (y, new cache).

    >>> model = TransformerDecoderConfig(d_model=8, n_heads=2, n_layers=2).init(rt.Cpu())
    >>> x, memory = rt.ones((1, 3, 8), device=rt.Cpu()), rt.ones((1, 5, 8), device=rt.Cpu())
    >>> y, cache = model(x, memory, cache=model.empty_cache())
    >>> y.shape, cache[0].self_attn.length, cache[0].cross_attn.length
    ((1, 3, 8), 3, 5)
    """

    layers: list[TransformerDecoderLayer]
    norm: Module | None

    def forward(
        self, x: rt.Tensor, memory: rt.Tensor, *, mask: rt.Tensor | None = None, memory_mask: rt.Tensor | None = None,
        cache: tuple[DecoderCache, ...] | None = None,
    ) -> Any:  # fmt: skip
        if cache is None:
            for layer in self.layers:
                x = layer(x, memory, mask=mask, memory_mask=memory_mask)
            return x if self.norm is None else self.norm(x)
        _check_cache(self, cache)
        new = []
        for layer, part in zip(self.layers, cache, strict=True):
            x, part = layer(x, memory, mask=mask, memory_mask=memory_mask, cache=part)
            new.append(part)
        return (x if self.norm is None else self.norm(x)), tuple(new)

    def empty_cache(self) -> tuple[DecoderCache, ...]:
        """Return what a sequence starts with: one empty cache per layer."""
        return (DecoderCache(),) * len(self.layers)


def _check_cache(model: Any, cache: Any) -> None:
    kind = type(model.empty_cache()[0])
    if not isinstance(cache, (tuple, list)) or not all(isinstance(part, kind) for part in cache):
        raise TypeError(
            f"{type(model).__name__}: cache must be a tuple with a {kind.__name__} for each layer, got {type(cache).__name__}; "
            "a sequence starts with cache=model.empty_cache()"
        )
    if len(cache) != len(model.layers):
        raise ValueError(
            f"{type(model).__name__}: cache must hold one entry per layer, {len(model.layers)}, got {len(cache)}; "
            "a sequence starts with cache=model.empty_cache()"
        )


class _Settings(Config):
    """What all transformer configurations have in common; each is a class of its own, so that its name says what it makes."""

    d_model: int
    n_heads: int
    _: KW_ONLY
    d_ff: int | None = None
    n_kv_heads: int | None = None
    dropout: float = 0.1
    activation: str = "relu"
    norm: str = "layer"
    norm_first: bool = False
    causal: bool = False
    rotary: RotaryConfig | None = None
    bias: bool = True
    eps: float = 1e-5
    fused_qkv: bool = True
    initializer: Initializer | None = None

    def _check(self) -> None:
        self.require_bools()
        self.require_count("d_model", "n_heads")
        self.require(self.d_ff is None or (is_whole(self.d_ff) and self.d_ff > 0), "d_ff", "an integer >= 1, or None: 4 d_model")
        self.require_within("dropout", 1.0, zero=True)
        known = (*ACTIVATIONS, "swiglu")
        self.require(self.activation in known, "activation", f"one of {', '.join(known)}")
        self.require(self.norm in ("layer", "rms"), "norm", "'layer' or 'rms'")
        self.require_number("eps", open=self.norm == "rms")

    def _norm(self, device: Any) -> Module:
        if self.norm == "rms":
            return RmsNormConfig(self.d_model, eps=self.eps).init(device)
        return LayerNormConfig(self.d_model, eps=self.eps, bias=self.bias).init(device)

    def _attention(self, device: Any, own: bool) -> MultiHeadAttention:
        return MultiHeadAttentionConfig(
            self.d_model, self.n_heads, n_kv_heads=self.n_kv_heads, bias=self.bias, dropout=self.dropout,
            causal=own and self.causal, rotary=self.rotary if own else None, fused_qkv=self.fused_qkv,
            initializer=self.initializer,
        ).init(device)  # fmt: skip

    def _feed_forward(self, device: Any) -> FeedForward:
        d_ff = self.d_ff or 4 * self.d_model
        first = LinearConfig(self.d_model, d_ff * (1 + (self.activation == "swiglu")), self.bias, self.initializer)
        second = LinearConfig(d_ff, self.d_model, self.bias, self.initializer)
        return FeedForward(
            first.init(device), second.init(device), self.activation, float(self.dropout), Creation(device).training
        )

    def _encoder_layer(self, device: Any) -> TransformerEncoderLayer:
        self._check()
        return TransformerEncoderLayer(
            self_attn=self._attention(device, True), feed_forward=self._feed_forward(device), norm1=self._norm(device),
            norm2=self._norm(device), norm_first=self.norm_first, dropout=float(self.dropout),
            training=Creation(device).training,
        )  # fmt: skip

    def _decoder_layer(self, device: Any) -> TransformerDecoderLayer:
        self._check()
        return TransformerDecoderLayer(
            self_attn=self._attention(device, True), cross_attn=self._attention(device, False),
            feed_forward=self._feed_forward(device), norm1=self._norm(device), norm2=self._norm(device),
            norm3=self._norm(device), norm_first=self.norm_first, dropout=float(self.dropout),
            training=Creation(device).training,
        )  # fmt: skip


class TransformerEncoderLayerConfig(_Settings):
    """Settings of `TransformerEncoderLayer`: `d_model`, `n_heads`, and these, with PyTorch's defaults where it has them:

    `d_ff` (4 d_model), `n_kv_heads` (n_heads), `dropout` (0.1), `activation` ("relu", "gelu", "gelu_tanh", "silu" or
    "swiglu"), `norm` ("layer" or "rms"), `norm_first` (False), `causal` (False), `rotary` (None, or a RotaryConfig of the
    head's size), `bias` (True, of all layers inside), `eps` (1e-5), `fused_qkv` (True), `initializer` (of all linear weights).

    >>> TransformerEncoderLayerConfig(d_model=8, n_heads=2, norm="rms").init(rt.Cpu()).feed_forward.linear1.weight.shape
    (8, 32)
    """

    def init(self, device: Any = None) -> TransformerEncoderLayer:
        """Return the layer on a device; on a recording device its parameters are tracked and dropout is on."""
        return self._encoder_layer(device)


class TransformerDecoderLayerConfig(_Settings):
    """Settings of `TransformerDecoderLayer`: those of the encoder's layer, and `causal` (True, of the self-attention).

    `rotary` turns the queries and keys of the self-attention only.

    >>> TransformerDecoderLayerConfig(d_model=8, n_heads=2).init(rt.Cpu()).self_attn.causal
    True
    """

    _: KW_ONLY
    causal: bool = True

    def init(self, device: Any = None) -> TransformerDecoderLayer:
        """Return the layer on a device; on a recording device its parameters are tracked and dropout is on."""
        return self._decoder_layer(device)


class TransformerEncoderConfig(_Settings):
    """Settings of `TransformerEncoder`: those of its layers, `n_layers` (6), and `final_norm` (None: as `norm_first`).

    >>> len(TransformerEncoderConfig(d_model=8, n_heads=2, n_layers=3).init(rt.Cpu()).layers)
    3
    """

    _: KW_ONLY
    n_layers: int = 6
    final_norm: bool | None = None

    def init(self, device: Any = None) -> TransformerEncoder:
        """Return the stack on a device; on a recording device its parameters are tracked and dropout is on."""
        last = _check_stack(self)
        layers = [self._encoder_layer(device) for _ in range(self.n_layers)]
        return TransformerEncoder(layers=layers, norm=self._norm(device) if last else None)


class TransformerDecoderConfig(_Settings):
    """Settings of `TransformerDecoder`: those of its layers, `n_layers` (6), and `final_norm` (None: as `norm_first`).

    >>> len(TransformerDecoderConfig(d_model=8, n_heads=2, n_layers=3).init(rt.Cpu()).layers)
    3
    """

    _: KW_ONLY
    causal: bool = True
    n_layers: int = 6
    final_norm: bool | None = None

    def init(self, device: Any = None) -> TransformerDecoder:
        """Return the stack on a device; on a recording device its parameters are tracked and dropout is on."""
        last = _check_stack(self)
        layers = [self._decoder_layer(device) for _ in range(self.n_layers)]
        return TransformerDecoder(layers=layers, norm=self._norm(device) if last else None)


def _check_stack(config: Any) -> bool:
    """Check the settings that a stack adds, and return whether it ends with a normalization."""
    config.require_count("n_layers")
    config.require(config.final_norm is None or isinstance(config.final_norm, bool), "final_norm", "True, False or None")
    return config.norm_first if config.final_norm is None else config.final_norm
