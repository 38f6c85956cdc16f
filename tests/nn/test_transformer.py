"""Transformer layers and stacks: against PyTorch and finite differences, with caches, and as modules."""
from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn.attention import MultiHeadAttentionConfig
from ruda_nn.exchange import load_safetensors
from ruda_nn.initializers import Constant
from ruda_nn.norm import LayerNorm, RmsNorm
from ruda_nn.positions import RotaryConfig
from ruda_nn.rnn import GruConfig, LstmConfig
from ruda_nn.transformer import (
    TransformerDecoder,
    TransformerDecoderConfig,
    TransformerDecoderLayerConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
    TransformerEncoderLayerConfig,
)

from ._layers import draw

SMALL = {"d_model": 8, "n_heads": 2, "d_ff": 12, "dropout": 0.0}
KINDS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True, "activation": "gelu"},
    "modern": {
        "norm_first": True, "activation": "swiglu", "norm": "rms", "n_kv_heads": 1, "bias": False, "rotary": RotaryConfig(4),
    },
    "separate": {"activation": "silu", "fused_qkv": False, "final_norm": True},
}  # fmt: skip
EXTRA = {k: {name: v for name, v in kind.items() if name != "final_norm"} for k, kind in KINDS.items()}


def shaken(model, rng):
    """Every parameter away from its start: norms from 1 and biases from 0, where a mistake could hide."""
    shift = lambda p: rt.tensor(rng.standard_normal(p.shape) * 0.3, dtype=p.dtype, device=p.device)
    return model.map(lambda p: p.like((p.detach() + shift(p))._data))


def torch_name(path):
    for ours, theirs in (
        ("in_proj.weight", "in_proj_weight"),
        ("in_proj.bias", "in_proj_bias"),
        (".out.", ".out_proj."),
        ("feed_forward.", ""),
        ("cross_attn", "multihead_attn"),
    ):
        path = path.replace(ours, theirs)
    return path


# against PyTorch
def compare(ours, theirs, inputs, rng, masks=None, their_masks=None):
    """Values, and the gradients of all inputs and parameters, at float32 rounding."""
    import torch

    theirs.load_state_dict({torch_name(path): torch.tensor(np.array(p.numpy().T)) for path, p in ours.named_params()})
    inputs = [x.require_grad() for x in inputs]
    given = [torch.tensor(x.numpy(), requires_grad=True) for x in inputs]
    y, yt = ours(*inputs, **masks or {}), theirs(*given, **their_masks or {})
    np.testing.assert_allclose(y.numpy(), yt.detach().numpy(), rtol=1e-5, atol=5e-6)
    weights = rng.standard_normal(y.shape).astype(np.float32)
    gradients = (y * rt.tensor(weights)).sum().backward()
    (yt * torch.tensor(weights)).sum().backward()
    for x, xt in zip(inputs, given, strict=True):
        np.testing.assert_allclose(gradients[x].numpy(), np.asarray(xt.grad), rtol=1e-4, atol=2e-5)
    found = dict(theirs.named_parameters())
    for path, p in ours.named_params():
        np.testing.assert_allclose(gradients[p].numpy().T, np.asarray(found[torch_name(path)].grad), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("causal", [False, True])
def test_an_encoder_layer_is_torchs(norm_first, activation, causal, rng):
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"norm_first": norm_first, "activation": activation}
    ours = TransformerEncoderLayerConfig(**SMALL, **options, causal=causal).init(Autodiff(rt.Cpu()))
    functions = {"gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "silu": torch.nn.functional.silu}
    options["activation"] = functions.get(activation, activation)
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, **options)
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(5) if causal else None
    compare(shaken(ours, rng), theirs, [draw(rng, 3, 5, 8)], rng, their_masks={"src_mask": hidden})


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_a_decoder_layer_is_torchs(norm_first, bias, rng):
    torch = pytest.importorskip("torch")
    ours = TransformerDecoderLayerConfig(**SMALL, norm_first=norm_first, bias=bias).init(Autodiff(rt.Cpu()))
    theirs = torch.nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=norm_first, bias=bias)
    keep = np.arange(7) < np.array([[7], [3], [1]])
    masks = {"memory_mask": rt.tensor(keep)[:, None, None]}
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(5)
    given = {"tgt_mask": hidden, "memory_key_padding_mask": torch.tensor(np.where(keep, 0.0, -np.inf), dtype=torch.float32)}
    compare(shaken(ours, rng), theirs, [draw(rng, 3, 5, 8), draw(rng, 3, 7, 8)], rng, masks, given)


def test_stacks_are_torchs(rng):
    torch = pytest.importorskip("torch")
    options = {"norm_first": True, "activation": "gelu"}
    ours = TransformerEncoderConfig(**SMALL, **options, n_layers=3).init(Autodiff(rt.Cpu()))
    layer = torch.nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, **options)
    theirs = torch.nn.TransformerEncoder(layer, 3, torch.nn.LayerNorm(8), enable_nested_tensor=False)
    compare(shaken(ours, rng), theirs, [draw(rng, 3, 5, 8)], rng)
    ours = TransformerDecoderConfig(**SMALL, n_layers=2, causal=False).init(Autodiff(rt.Cpu()))
    layer = torch.nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True)
    theirs = torch.nn.TransformerDecoder(layer, 2)
    compare(shaken(ours, rng), theirs, [draw(rng, 3, 5, 8), draw(rng, 3, 4, 8)], rng)


def test_a_layer_whose_parts_give_nothing_is_its_input_or_its_norm(rng, device):
    """All linear weights and biases 0: pre-norm hands x through, post-norm is the norm of the norm of x."""
    x = draw(rng, 2, 3, 8, device=device)
    for norm, norm_first in (("layer", True), ("layer", False), ("rms", False)):
        layer = TransformerEncoderLayerConfig(**SMALL, norm=norm, norm_first=norm_first, initializer=Constant(0.0)).init(device)
        y = layer(x).numpy()
        want = x.numpy().astype(float)
        for _ in range(0 if norm_first else 2):
            want = want - (want.mean(-1, keepdims=True) if norm == "layer" else 0.0)
            want = want / np.sqrt((want**2).mean(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def test_swiglu_is_its_equation(rng, device):
    config = TransformerEncoderLayerConfig(**SMALL, activation="swiglu")
    part = shaken(config.init(device).feed_forward, rng)
    x = draw(rng, 2, 3, 8, device=device)
    w, b = part.linear1.weight.numpy().astype(float), part.linear1.bias.numpy().astype(float)
    u = x.numpy() @ w + b
    hidden = u[..., :12] / (1 + np.exp(-u[..., :12])) * u[..., 12:]
    want = hidden @ part.linear2.weight.numpy() + part.linear2.bias.numpy()
    np.testing.assert_allclose(part(x).numpy(), want, rtol=1e-5, atol=2e-6)


# gradients
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_finite_differences(kind, rng):
    small = {**SMALL, "d_model": 4, "d_ff": 3} | EXTRA[kind]
    if "rotary" in small:
        small["rotary"] = RotaryConfig(2)
    if small.get("activation") is None:
        small["activation"] = "gelu"  # a kink of relu may lie beside any point
    encoder = shaken(TransformerEncoderLayerConfig(**small, causal=True).init(Autodiff(rt.Cpu())).to_dtype(rt.float64), rng)
    decoder = shaken(TransformerDecoderLayerConfig(**small).init(Autodiff(rt.Cpu())).to_dtype(rt.float64), rng)
    x, memory = draw(rng, 1, 3, 4, dtype=np.float64), draw(rng, 1, 2, 4, dtype=np.float64)
    check_gradients(lambda m, x: m(x), encoder, x)
    check_gradients(lambda m, x, c: m(x, c), decoder, x, memory)


# caches
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [[1] * 5, [3, 2]])
def test_decoding_with_a_cache_is_the_full_forward(kind, steps, rng, device):
    encoder = shaken(TransformerEncoderConfig(**SMALL, **KINDS[kind], n_layers=2, causal=True).init(device), rng)
    decoder = shaken(TransformerDecoderConfig(**SMALL, **KINDS[kind], n_layers=2).init(device), rng)
    x, memory = draw(rng, 2, 5, 8, device=device), draw(rng, 2, 4, 8, device=device)
    for model, more in ((encoder, []), (decoder, [memory])):
        cache, parts, at = model.empty_cache(), [], 0
        for n in steps:
            y, cache = model(x[:, at : at + n], *more, cache=cache)
            parts.append(y)
            at += n
        np.testing.assert_allclose(rt.concat(parts, axis=1).numpy(), model(x, *more).numpy(), rtol=2e-5, atol=5e-6)
    assert [c.length for c in encoder(x, cache=encoder.empty_cache())[1]] == [5, 5]
    assert [(c.self_attn.length, c.cross_attn.length) for c in cache] == [(5, 4)] * 2


def test_a_causal_encoder_does_not_see_the_future_and_another_does(rng):
    x = rng.standard_normal((1, 6, 8)).astype(np.float32)
    other = x.copy()
    other[:, 4:] = 0
    for causal in (True, False):
        model = TransformerEncoderConfig(**SMALL, n_layers=2, causal=causal).init(rt.Cpu())
        a, b = model(rt.tensor(x)).numpy()[:, :4], model(rt.tensor(other)).numpy()[:, :4]
        assert np.allclose(a, b, atol=1e-6) is causal


def test_a_mask_reaches_every_layer(rng, device):
    model = TransformerEncoderConfig(**SMALL, n_layers=2).init(device)
    x = draw(rng, 2, 5, 8, device=device)
    keep = rt.tensor(np.arange(5) < np.array([[5], [3]]), device=device)[:, None, None]
    y = model(x, mask=keep).numpy()
    np.testing.assert_allclose(y[1:, :3], model(x[1:, :3]).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y[:1], model(x[:1]).numpy(), rtol=1e-5, atol=1e-6)
    cached, _ = model(x, mask=keep, cache=model.empty_cache())
    assert cached.numpy().tobytes() == y.tobytes()
    decoder = TransformerDecoderConfig(**SMALL, n_layers=2).init(device)
    y = decoder(x, x, memory_mask=keep)
    np.testing.assert_allclose(y.numpy()[1:], decoder(x[1:], x[1:, :3]).numpy(), rtol=1e-5, atol=1e-6)
    cached, _ = decoder(x, x, memory_mask=keep, cache=decoder.empty_cache())
    assert cached.numpy().tobytes() == y.numpy().tobytes()
    own = decoder(x, x, mask=keep).numpy()
    assert not np.array_equal(own[1, 4], decoder(x, x).numpy()[1, 4]) and np.array_equal(own[0], decoder(x, x).numpy()[0])


# dtypes, sizes and modes
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
def test_half_types_are_kept(kind, dtype, rng, device):
    model = TransformerEncoderConfig(**SMALL, **KINDS[kind], n_layers=2).init(Autodiff(device)).to_dtype(dtype)
    x = draw(rng, 2, 5, 8, dtype=dtype, device=device)
    y = model(x)
    wide = model.to_dtype(rt.float32)(x.astype(rt.float32)).numpy()
    eps = 2.0**-7 if dtype == rt.bfloat16 else 2.0**-10
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(rt.float32).numpy(), wide, rtol=8 * eps, atol=8 * eps)
    gradients = y.astype(rt.float32).square().sum().backward()
    assert all(gradients[p].dtype == dtype and np.isfinite(gradients[p].astype(rt.float32).numpy()).all() for p in model.params())
    decoder = TransformerDecoderConfig(**SMALL, **KINDS[kind], n_layers=1).init(device).to_dtype(dtype)
    assert decoder(x, x).dtype == dtype


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (1, 1, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_small_and_empty_batches_and_sequences(kind, shape, device):
    encoder = TransformerEncoderConfig(**SMALL, **KINDS[kind], n_layers=2).init(Autodiff(device))
    decoder = TransformerDecoderConfig(**SMALL, **KINDS[kind], n_layers=1).init(Autodiff(device))
    x = rt.ones(shape, device=device).require_grad()
    assert encoder(x).shape == shape == decoder(x, x).shape and encoder(x).sum().backward()[x].shape == shape


@pytest.mark.parametrize("norm_first", [True, False])
def test_dropout_works_in_training_only(norm_first, rng):
    options = {**SMALL, "dropout": 0.3, "norm_first": norm_first}
    x = draw(rng, 2, 5, 8)
    for model, more in (
        (TransformerEncoderConfig(**options, n_layers=1).init(Autodiff(rt.Cpu())), []),
        (TransformerDecoderConfig(**options, n_layers=1).init(Autodiff(rt.Cpu())), [x]),
    ):
        assert not np.array_equal(model(x, *more).numpy(), model(x, *more).numpy())
        calm = model.valid()
        assert np.array_equal(calm(x, *more).numpy(), model.map(lambda p: p, dropout=0.0)(x, *more).numpy())
        assert not np.array_equal(calm.train()(x, *more).numpy(), calm(x, *more).numpy())
    inside = TransformerEncoderLayerConfig(**options).init(Autodiff(rt.Cpu())).feed_forward
    kept = inside.map(lambda p: p.like(p._data * 0 + 1))
    assert not np.array_equal(kept(x).numpy(), kept.valid()(x).numpy())
    everything = TransformerEncoderLayerConfig(**{**options, "dropout": 1.0}).init(Autodiff(rt.Cpu()))
    if norm_first:
        np.testing.assert_array_equal(everything(x).numpy(), x.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_copies(kind, rng):
    x = draw(rng, 2, 4, 8)
    for config, more in ((TransformerEncoderConfig, []), (TransformerDecoderConfig, [x])):
        model, other = (config(**SMALL, **KINDS[kind], n_layers=2).init(Autodiff(rt.Cpu())) for _ in range(2))
        want = model(x, *more).numpy().tobytes()
        assert other(x, *more).numpy().tobytes() != want
        copies = (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), model.clone())
        for same in (other.load_record(model.to_record()), *copies):
            assert same(x, *more).numpy().tobytes() == want


def test_balanced_checkpointing_gives_the_same_gradients(rng):
    model = TransformerDecoderConfig(**{**SMALL, "dropout": 0.2}, n_layers=2).init(Autodiff(rt.Cpu()))
    x, found = draw(rng, 2, 4, 8), []
    for m in (model, model.fork(Autodiff(rt.Cpu(), checkpointing="balanced"))):
        rt.random.seed(1)
        gradients = m(x, x).square().sum().backward()
        found.append([gradients[p].numpy() for p in m.params()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# settings
def test_settings_reach_what_they_name():
    encoder = TransformerEncoderConfig(d_model=8, n_heads=2).init(Autodiff(rt.Cpu()))
    assert isinstance(encoder, TransformerEncoder) and len(encoder.layers) == 6 and encoder.norm is None
    layer = encoder.layers[0]
    assert layer.feed_forward.linear1.weight.shape == (8, 32) and layer.dropout == layer.self_attn.dropout == 0.1
    assert isinstance(layer.norm1, LayerNorm) and layer.norm1.eps == 1e-5 and layer.feed_forward.activation == "relu"
    assert not layer.norm_first and not layer.self_attn.causal and layer.training and layer.feed_forward.training
    decoder = TransformerDecoderConfig(
        d_model=8, n_heads=2, norm="rms", norm_first=True, bias=False, eps=1e-3, rotary=RotaryConfig(4), n_layers=1
    ).init(rt.Cpu())
    layer = decoder.layers[0]
    assert isinstance(decoder, TransformerDecoder) and isinstance(decoder.norm, RmsNorm)
    assert isinstance(layer.norm3, RmsNorm) and layer.norm3.eps == 1e-3
    assert layer.self_attn.causal and not layer.cross_attn.causal and layer.cross_attn.rotary is None and not layer.training
    assert layer.self_attn.rotary is not None and not any(path.endswith("bias") for path in decoder.paths())
    assert TransformerEncoderConfig(d_model=8, n_heads=2, norm_first=True, final_norm=False).init(rt.Cpu()).norm is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"d_model": 0}, "d_model"),
        ({"n_heads": 3}, "n_heads"),
        ({"d_ff": 0}, "d_ff"),
        ({"dropout": 2.0}, "dropout"),
        ({"activation": "tanh"}, "activation"),
        ({"norm": "batch"}, "norm"),
        ({"eps": -1.0}, "eps"),
        ({"n_layers": 0}, "n_layers"),
        ({"final_norm": "yes"}, "final_norm"),
    ],
)
def test_a_wrong_setting_is_refused(change, field):
    for config in (TransformerEncoderConfig, TransformerDecoderConfig):
        with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
            config(**{**SMALL, **change}).init()


def test_wrong_arguments_say_what_is_needed(rng):
    model = TransformerEncoderConfig(**SMALL, n_layers=2).init(rt.Cpu())
    with pytest.raises(ValueError, match=r"one entry per layer, 2, got 1; .*cache=model\.empty_cache\(\)"):
        model(draw(rng, 1, 3, 8), cache=model.empty_cache()[:1])
    with pytest.raises(ValueError, match=r"x must be \[batch, T, 8\], got \(3, 8\)"):
        model(draw(rng, 3, 8))


@pytest.mark.parametrize("kind", ["encoder", "decoder", "lstm", "gru", "attention"])
def test_a_checkpoint_of_torch_loads_by_its_own_names(kind, rng, tmp_path):
    torch, files = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    nn, x = torch.nn, draw(rng, 2, 5, 8)
    ours, theirs, n = {
        "encoder": (
            TransformerEncoderConfig(**SMALL, n_layers=2, final_norm=True),
            lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2, nn.LayerNorm(8)),
            1,
        ),
        "decoder": (
            TransformerDecoderConfig(**SMALL, n_layers=2, causal=False),
            lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True), 2),
            2,
        ),
        "lstm": (LstmConfig(8, 4, 2, bidirectional=True), lambda: nn.LSTM(8, 4, 2, bidirectional=True, batch_first=True), 1),
        "gru": (GruConfig(8, 4, bias=False), lambda: nn.GRU(8, 4, bias=False, batch_first=True), 1),
        "attention": (MultiHeadAttentionConfig(8, 2), lambda: nn.MultiheadAttention(8, 2, batch_first=True), 3),
    }[kind]
    theirs = theirs()
    files.save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    model, report = load_safetensors(ours.init(rt.Cpu()), tmp_path / "model.safetensors")
    assert report.fits() and sorted(report.loaded) == sorted(model.paths())
    y, want = model(*[x] * min(n, 2)), theirs(*[torch.tensor(x.numpy())] * n)
    y, want = (a[0] if isinstance(a, tuple) else a for a in (y, want))
    np.testing.assert_allclose(y.numpy(), want.detach().numpy(), rtol=1e-5, atol=5e-6)
