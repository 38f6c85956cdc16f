"""What is no tensor, or of a dtype that a layer has no use for: refused by the layer's name, or converted, never truncated."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_nn as nn
import ruda_tensor as rt
from ruda_autodiff import Autodiff

# Layers that look at the shape or dtype of what they are given, and a shape that they take.
LAYERS = {
    "AdaptiveAvgPool2d": (lambda d: nn.AdaptiveAvgPool2dConfig(2).init(d), (1, 3, 3)),
    "Glu": (lambda d: nn.Glu(), (3, 4)),
    "GroupNorm": (lambda d: nn.GroupNormConfig(2, 4).init(d), (3, 4)),
    "HardShrink": (lambda d: nn.HardShrink(), (3, 4)),
    "InstanceNorm": (lambda d: nn.InstanceNormConfig(2).init(d), (1, 2, 3)),
    "Lstm": (lambda d: nn.LstmConfig(4, 2).init(d), (2, 3, 4)),
    "Mish": (lambda d: nn.Mish(), (3, 4)),
    "MultiHeadAttention": (lambda d: nn.MultiHeadAttentionConfig(4, 2).init(d), (2, 3, 4)),
    "PRelu": (lambda d: nn.PReluConfig(4).init(d), (3, 4)),
    "Rotary": (lambda d: nn.RotaryConfig(4).init(d), (3, 4)),
    "Selu": (lambda d: nn.Selu(), (3, 4)),
    "SinusoidalPositions": (lambda d: nn.SinusoidalPositionsConfig(4).init(d), (3, 4)),
    "Softsign": (lambda d: nn.Softsign(), (3, 4)),
}


def first(y):
    return y if isinstance(y, rt.Tensor) else y[0]


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_no_tensor_is_refused_by_name(name):
    layer, spelt = LAYERS[name][0](rt.Cpu()), name.replace("GroupNorm", "group_norm")
    for wrong, kind in ((None, "NoneType"), ("text", "str"), (layer, type(layer).__name__)):
        with pytest.raises(TypeError, match=rf"(?i)^{spelt}: expected a tensor or a number, got {kind};"):
            layer(wrong)


@pytest.mark.parametrize("name", LAYERS)
def test_integers_and_arrays_give_what_the_same_floats_give(name, device):
    make, shape = LAYERS[name]
    layer = make(device)
    numbers = np.random.default_rng(0).integers(-3, 4, shape)
    expected = first(layer(rt.tensor(numbers, dtype=rt.float32, device=device)))
    found = first(layer(rt.tensor(numbers, device=device)))
    assert found.dtype == rt.float32 and found.numpy().tobytes() == expected.numpy().tobytes()
    if device == rt.Cpu():
        assert first(layer(numbers)).numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("config", [nn.RnnConfig(2, 3), nn.GruConfig(2, 3), nn.LstmConfig(2, 3)])
@pytest.mark.parametrize("kind", [list, np.array, "tensor"])
def test_lengths_beyond_the_sequence_are_refused(config, kind, device):
    layer, x = config.init(device), rt.ones((3, 4, 2), device=device)
    make = (lambda v: rt.tensor(v, device=device)) if kind == "tensor" else kind
    layer(x, lengths=make([0, 4, 1]))
    for wrong, shown in (([1, 5, 2], "5"), ([3, -1, 2], "-1"), ([9, -2, 0], "-2")):
        with pytest.raises(ValueError, match=rf"from 0 to the 4 steps of x, got {shown}; rt\.clip\(lengths, 0, 4\)"):
            layer(x, lengths=make(wrong))


def test_a_state_that_is_no_tensor_is_refused():
    x = rt.ones((3, 4, 2), device=rt.Cpu())
    with pytest.raises(TypeError, match=r"Gru: the initial state must be a tensor, got tuple; rt\.zeros\(\(1, 3, 5\)\)"):
        nn.GruConfig(2, 5).init(rt.Cpu())(x, (rt.zeros((1, 3, 5), device=rt.Cpu()),))


def test_attention_takes_masks_of_any_kind_and_caches_of_one():
    layer, x = nn.MultiHeadAttentionConfig(4, 2).init(rt.Cpu()), rt.ones((1, 2, 4), device=rt.Cpu())
    mask = [[True, False], [True, True]]
    expected = layer(x, mask=rt.tensor(mask, device=rt.Cpu())).tolist()
    assert layer(x, mask=mask).tolist() == layer(x, mask=np.array(mask)).tolist() == expected
    for wrong in (True, (None, None), nn.DecoderCache()):
        with pytest.raises(TypeError, match=r"cache must be a KeyValueCache, got .*attention\(x, cache=KeyValueCache\(\)\)"):
            layer(x, cache=wrong)


def test_rotary_says_what_would_fit():
    rotary = nn.RotaryConfig(4).init()
    with pytest.raises(ValueError, match=r"RotaryConfig\(d_head=2\)$"):
        rotary(rt.ones((3, 2), device=rt.Cpu()))
    with pytest.raises(ValueError, match=r"x\[None\]$"):
        rotary(rt.ones(4, device=rt.Cpu()))


def test_instance_norm_refuses_to_forget_its_input(device):
    layer = nn.InstanceNormConfig(3).init(device)
    for shape in ((2, 3), (2, 3, 1), (2, 3, 1, 1)):
        with pytest.raises(ValueError, match=r"one value per channel.*GroupNormConfig\(1, 3\)"):
            layer(rt.ones(shape, device=device))
    assert layer(rt.ones((2, 3, 1, 2), device=device)).shape == (2, 3, 1, 2)


def test_probabilities_are_probabilities(device):
    loss = nn.BinaryCrossEntropyLossConfig(reduction="none").init()
    weighted = nn.BinaryCrossEntropyLossConfig(weight=[2.0]).init(device)
    for wrong in ([0.5, -0.1], [1.5, 0.0]):
        for refusing in (loss, weighted):
            with pytest.raises(ValueError, match=r"from 0 to 1.*BinaryCrossEntropyLossConfig\(logits=True\)"):
                refusing(rt.tensor(wrong, device=device), 1.0)
    assert np.isnan(loss(rt.tensor([float("nan"), 1.0], device=device), 1.0).numpy()).tolist() == [True, False]
    logits = nn.BinaryCrossEntropyLossConfig(logits=True).init()
    assert logits(rt.tensor([-9.0, 9.0], device=device), 1.0).item() > 1


def test_map_refuses_a_function_that_returns_nothing():
    model = nn.LinearConfig(2, 1).init(Autodiff(rt.Cpu()))
    seen = []
    with pytest.raises(TypeError, match=r"map: the function returned None.*shape \(2, 1\).*model\.visit"):
        model.map(seen.append)
    model.visit(lambda path, p: seen.append(path))
    assert seen[1:] == ["weight", "bias"] and model.weight.shape == (2, 1)


def test_scores_come_before_targets():
    loss = nn.CrossEntropyLossConfig().init()
    scores, ids = rt.zeros((2, 3), device=rt.Cpu()), rt.tensor([0, 1], device=rt.Cpu())
    with pytest.raises(TypeError, match=r"scores must be floating, got int32; they come first: loss\(scores, targets\)"):
        loss(ids, scores)
    assert loss(scores.tolist(), ids).item() == loss(scores, ids).item()


def test_a_decoder_without_a_memory_and_caches_of_another_kind_are_refused():
    x = rt.ones((2, 2, 4), device=rt.Cpu())
    decoder = nn.TransformerDecoderConfig(4, 2, n_layers=2).init(rt.Cpu())
    encoder = nn.TransformerEncoderConfig(4, 2, n_layers=2, causal=True).init(rt.Cpu())
    with pytest.raises(TypeError, match="memory must be a tensor, got None"):
        decoder(x, None)
    with pytest.raises(TypeError, match=r"cache must be a DecoderCache, got KeyValueCache; DecoderCache\(\)"):
        decoder.layers[0](x, x, cache=nn.KeyValueCache())
    for cache in (nn.KeyValueCache(), (None, None), encoder.empty_cache(), True):
        with pytest.raises(TypeError, match=r"a DecoderCache for each layer.*cache=model\.empty_cache\(\)"):
            decoder(x, x, cache=cache)
    for cache in (nn.KeyValueCache(), (None, None), decoder.empty_cache()):  # the first has two parts, as many as layers
        with pytest.raises(TypeError, match=r"a KeyValueCache for each layer"):
            encoder(x, cache=cache)
    assert encoder(x, cache=list(encoder.empty_cache()))[1][0].length == 2


@pytest.mark.parametrize("name", ["EncoderLayer", "DecoderLayer", "Encoder", "Decoder"])
@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("d_model", 5), ("n_heads", 3), ("n_kv_heads", 3), ("d_ff", 0), ("dropout", 2), ("activation", rt.relu), ("norm", 1),
        ("norm_first", 1), ("causal", None), ("rotary", nn.RotaryConfig(4)), ("bias", 0), ("eps", -1.0), ("eps", "small"),
        ("fused_qkv", 1), ("initializer", 0.02),
    ],
)  # fmt: skip
def test_a_refused_configuration_has_drawn_nothing(name, field, wrong):
    config = getattr(nn, f"Transformer{name}Config")(**{"d_model": 4, "n_heads": 2, "dropout": 0.0, field: wrong})
    before = rt.random.get_state()
    with pytest.raises(ValueError, match=r"n_heads" if field == "d_model" else rf"{field}="):
        config.init(rt.Cpu())
    assert rt.random.get_state() == before
