"""A residual that a layer adds itself: the numbers of the sum, whatever the layer, and what dropout does about it."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn.attention import MultiHeadAttentionConfig
from ruda_nn.linear import Linear, LinearConfig, added
from ruda_nn.transformer import ACTIVATIONS, FeedForward, TransformerEncoderLayerConfig

CPU = rt.Cpu(float_dtype=rt.float64)


def normal(*shape, seed=0):
    return rt.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=rt.float64, device=CPU)


def layers():
    attention = MultiHeadAttentionConfig(6, 2, causal=True).init(CPU)
    yield "linear", LinearConfig(6, 6).init(CPU)
    yield "linear without bias", LinearConfig(6, 6, bias=False).init(CPU)
    yield "attention", attention
    for activation in (*ACTIVATIONS, "swiglu"):
        config = TransformerEncoderLayerConfig(d_model=6, n_heads=2, d_ff=8, activation=activation)
        yield f"feed-forward, {activation}", config.init(CPU).feed_forward


@pytest.mark.parametrize(("name", "layer"), list(layers()))
def test_the_sum_is_that_of_the_two(name, layer):
    x, r = normal(2, 3, 6), normal(2, 3, 6, seed=1)
    assert layer(x, residual=r).numpy().tobytes() == (r + layer(x)).numpy().tobytes()
    check_gradients(lambda x, r: layer(x, residual=r), x, r, order=2 if "attention" not in name else 1)


class Scaled(Linear):
    """A layer that knows no residual."""

    def forward(self, x):
        return rt.linear(x, self.weight, self.bias) * 3.0


def test_other_layers_in_place_of_linear_are_called_as_they_are():
    plain = LinearConfig(6, 6).init(CPU)
    scaled = Scaled(plain.weight, plain.bias)
    x, r = normal(2, 6), normal(2, 6, seed=1)
    assert np.array_equal(added(scaled, x, r).numpy(), (r + plain(x) * 3.0).numpy())
    assert np.array_equal(added(scaled, x, None).numpy(), (plain(x) * 3.0).numpy())
    part = FeedForward(plain, scaled, "gelu_tanh", 0.0, False)
    expected = r + plain(rt.gelu(plain(x), approximate="tanh")) * 3.0
    assert np.array_equal(part(x, r).numpy(), expected.numpy())


@pytest.mark.parametrize("first", [True, False])
def test_dropout_falls_on_a_result_before_the_residual_is_added(first):
    config = TransformerEncoderLayerConfig(d_model=6, n_heads=2, d_ff=8, dropout=0.5, norm_first=first, activation="gelu_tanh")
    layer = config.init(Autodiff(CPU))
    layer = layer.map(lambda p: p.like((p.detach() + normal(*p.shape) * 0.3)._data))
    x = normal(1, 3, 6)
    rt.random.seed(5)
    found = layer(x)
    rt.random.seed(5)
    drop = lambda y: rt.dropout(y, 0.5, training=True)
    y = layer.self_attn(layer.norm1(x) if first else x)
    z = x + drop(y)
    z = z if first else layer.norm1(z)
    part = layer.feed_forward
    inner = drop(rt.gelu(part.linear1(layer.norm2(z) if first else z), approximate="tanh"))
    out = z + drop(part.linear2(inner))
    assert np.array_equal(found.numpy(), (out if first else layer.norm2(out)).numpy())
    quiet = dataclasses.replace(layer, training=False, self_attn=layer.self_attn.valid(), feed_forward=part.valid())
    assert not np.array_equal(quiet(x).numpy(), found.numpy())
