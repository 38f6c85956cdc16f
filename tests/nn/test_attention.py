"""Multi-head attention: against its equations, PyTorch and finite differences; masks, caches and shared key heads."""
from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn.attention import MultiHeadAttention, MultiHeadAttentionConfig
from ruda_nn.cache import KeyValueCache
from ruda_nn.initializers import Constant
from ruda_nn.positions import RotaryConfig

from ._layers import draw

BASE = MultiHeadAttentionConfig(d_model=8, n_heads=4)
KINDS = {
    "fused": BASE,
    "separate": BASE.with_fused_qkv(False),
    "grouped": BASE.with_n_kv_heads(2),
    "single key head": BASE.with_n_kv_heads(1).with_fused_qkv(False),
    "other sizes": BASE.with_d_head(3).with_bias(False),
    "rotary": BASE.with_rotary(RotaryConfig(2)).with_n_kv_heads(2),
    "rotary, separate": BASE.with_d_head(6).with_rotary(RotaryConfig(6, dims=4)).with_fused_qkv(False),
}


def with_biases(layer, rng):
    """Fresh biases are 0, which would hide a mistake in them."""
    fresh = lambda p: p.like(rt.tensor(rng.standard_normal(p.shape), dtype=p.dtype, device=p.device)._data)
    return layer.map(lambda p: p if p.ndim > 1 else fresh(p))


def projections(layer):
    """(weight, bias) of q, k and v as float64 arrays."""
    if layer.in_proj is None:
        parts = [layer.q, layer.k, layer.v]
        return [(p.weight.numpy().astype(float), 0.0 if p.bias is None else p.bias.numpy().astype(float)) for p in parts]
    w = layer.in_proj.weight.numpy().astype(float)
    d = w.shape[1] // (layer.n_heads + 2 * layer.n_kv_heads)
    cuts = [layer.n_heads * d, (layer.n_heads + layer.n_kv_heads) * d]
    b = np.zeros(w.shape[1]) if layer.in_proj.bias is None else layer.in_proj.bias.numpy().astype(float)
    return list(zip(np.split(w, cuts, axis=1), np.split(b, cuts), strict=True))


def turned(layer, x, t):
    """The rotation of one position's features, pair by pair."""
    if layer.rotary is None:
        return x
    y, n = x.copy(), layer.rotary.dims
    for i in range(n // 2):
        a = t / layer.rotary.theta ** (2 * i / n)
        y[i] = x[i] * np.cos(a) - x[i + n // 2] * np.sin(a)
        y[i + n // 2] = x[i + n // 2] * np.cos(a) + x[i] * np.sin(a)
    return y


def reference(layer, x, context, mask=None):
    """Each batch entry, head and query by itself, in float64."""
    (wq, bq), (wk, bk), (wv, bv) = projections(layer)
    h, group = layer.n_heads, layer.n_heads // layer.n_kv_heads
    d = wq.shape[1] // h
    wo = layer.out.weight.numpy().astype(float)
    out = np.zeros((*x.shape[:2], h * d))
    for b in range(x.shape[0]):
        q, k, v = x[b] @ wq + bq, context[b] @ wk + bk, context[b] @ wv + bv
        for i in range(h):
            of_q, of_k = slice(i * d, i * d + d), slice(i // group * d, i // group * d + d)
            for t in range(x.shape[1]):
                query = turned(layer, q[t, of_q], t)
                s = np.array([query @ turned(layer, k[u, of_k], u) for u in range(len(k))]) / np.sqrt(d)
                seen = np.ones(len(k), bool) if mask is None else mask[b, i, t]
                e = np.exp(s - s[seen].max()) * seen if seen.any() else np.zeros(len(k))
                out[b, t, of_q] = e / max(e.sum(), 1e-300) @ v[:, of_k]
    return out @ wo + (0.0 if layer.out.bias is None else layer.out.bias.numpy().astype(float))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_each_head_is_its_equations(kind, causal, rng, device):
    rt.random.seed(0)
    layer = with_biases(KINDS[kind].with_causal(causal).init(device), rng)
    x = draw(rng, 2, 5, 8, device=device)
    mask = np.tril(np.ones((2, 4, 5, 5), bool)) if causal else None
    want = reference(layer, x.numpy().astype(float), x.numpy().astype(float), mask)
    np.testing.assert_allclose(layer(x).numpy(), want, rtol=1e-5, atol=2e-6)
    if not causal:
        np.testing.assert_allclose(layer(x, causal=True).numpy(), layer.map(lambda p: p, causal=True)(x).numpy())


@pytest.mark.parametrize("kind", [k for k in KINDS if "rotary" not in k])
def test_a_context_gives_the_keys_and_values(kind, rng, device):
    layer = with_biases(KINDS[kind].init(device), rng)
    x, context = draw(rng, 2, 3, 8, device=device), draw(rng, 2, 5, 8, device=device)
    want = reference(layer, x.numpy().astype(float), context.numpy().astype(float))
    np.testing.assert_allclose(layer(x, context).numpy(), want, rtol=1e-5, atol=2e-6)
    y, cache = layer(x, context, cache=KeyValueCache())
    assert y.numpy().tobytes() == layer(x, context).numpy().tobytes() and cache.length == 5
    again, same = layer(x, context * 0.0, cache=cache)
    np.testing.assert_allclose(again.numpy(), want, rtol=1e-5, atol=2e-6)
    assert same.k is cache.k


def test_a_context_of_another_width(rng):
    layer = with_biases(BASE.with_fused_qkv(False).with_d_context(5).init(Autodiff(rt.Cpu())), rng)
    x, context = draw(rng, 2, 3, 8), draw(rng, 2, 6, 5)
    want = reference(layer, x.numpy().astype(float), context.numpy().astype(float))
    np.testing.assert_allclose(layer(x, context).numpy(), want, rtol=1e-5, atol=2e-6)
    with pytest.raises(ValueError, match=r"come from a context \[batch, S, 5\]; attention\(x, context\)"):
        layer(x)


# masks
def test_masks_hide_or_add(rng, device):
    layer = with_biases(BASE.init(device), rng)
    x = draw(rng, 2, 5, 8, device=device)
    mask = rng.random((2, 4, 5, 5)) < 0.5
    mask[1, 2, 3] = False
    want = reference(layer, x.numpy().astype(float), x.numpy().astype(float), mask)
    hidden = rt.tensor(mask, device=device)
    np.testing.assert_allclose(layer(x, mask=hidden).numpy(), want, rtol=1e-5, atol=2e-6)
    added = rt.where(hidden, rt.zeros((), device=device), -rt.inf)
    np.testing.assert_allclose(layer(x, mask=added).numpy(), want, rtol=1e-5, atol=2e-6)
    keep = np.array([[True] * 5, [True, True, False, False, False]])
    both = np.broadcast_to(np.tril(np.ones((5, 5), bool)) & keep[:, None, None], (2, 4, 5, 5))
    want = reference(layer, x.numpy().astype(float), x.numpy().astype(float), both)
    padded = rt.tensor(keep, device=device)[:, None, None, :]
    np.testing.assert_allclose(layer(x, mask=padded, causal=True).numpy(), want, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_a_query_that_sees_nothing_is_the_bias_and_has_no_gradient(fused, rng, device):
    layer = with_biases(BASE.with_fused_qkv(fused).init(Autodiff(device)), rng)
    x = draw(rng, 1, 4, 8, device=device).require_grad()
    mask = rt.tensor(np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 0]], bool), device=device)
    y = layer(x, mask=mask)
    assert y.numpy()[0, 1].tobytes() == layer.out.bias.numpy().tobytes()
    gradients = y.square().sum().backward()
    assert all(np.isfinite(gradients[p].numpy()).all() for p in layer.params())
    found = gradients[x].numpy()[0]
    assert np.isfinite(found).all() and (found[1] == 0).all() and (found[[0, 2, 3]] != 0).any(axis=1).all()


# against PyTorch
@pytest.mark.parametrize("case", ["plain", "causal", "padded", "cross", "no bias", "added"])
def test_values_and_gradients_agree_with_torch(case, rng):
    torch = pytest.importorskip("torch")
    bias = case != "no bias"
    layer = BASE.with_bias(bias).init(Autodiff(rt.Cpu()))
    layer = with_biases(layer, rng)
    theirs = torch.nn.MultiheadAttention(8, 4, bias=bias, batch_first=True)
    names = {f"in_proj.{name}": f"in_proj_{name}" for name in ("weight", "bias")}
    names |= {f"out.{name}": f"out_proj.{name}" for name in ("weight", "bias")}
    theirs.load_state_dict({names[path]: torch.tensor(np.array(p.numpy().T)) for path, p in layer.named_params()})
    x, c = draw(rng, 3, 5, 8).require_grad(), draw(rng, 3, 7, 8).require_grad()
    xt, ct = (torch.tensor(a.numpy(), requires_grad=True) for a in (x, c))
    keep = np.arange(5) < np.array([[5], [2], [1]])
    bias_mask = rng.standard_normal((5, 5)).astype(np.float32)
    ours, args = {
        "causal": (lambda: layer(x, causal=True), {"attn_mask": ~torch.tril(torch.ones(5, 5, dtype=torch.bool))}),
        "padded": (lambda: layer(x, mask=rt.tensor(keep)[:, None, None]), {"key_padding_mask": torch.tensor(~keep)}),
        "cross": (lambda: layer(x, c), {}),
        "added": (lambda: layer(x, mask=rt.tensor(bias_mask)), {"attn_mask": torch.tensor(bias_mask)}),
    }.get(case, (lambda: layer(x), {}))
    keys = ct if case == "cross" else xt
    y, (yt, _) = ours(), theirs(xt, keys, keys, need_weights=False, **args)
    np.testing.assert_allclose(y.numpy(), yt.detach().numpy(), rtol=1e-5, atol=2e-6)
    gradients = y.square().sum().backward()
    yt.square().sum().backward()
    np.testing.assert_allclose(gradients[x].numpy(), xt.grad.numpy(), rtol=1e-4, atol=2e-5)
    if case == "cross":
        np.testing.assert_allclose(gradients[c].numpy(), ct.grad.numpy(), rtol=1e-4, atol=2e-5)
    found = dict(theirs.named_parameters())
    for path, p in layer.named_params():
        np.testing.assert_allclose(gradients[p].numpy().T, found[names[path]].grad.numpy(), rtol=1e-4, atol=2e-5)


def test_fused_and_separate_projections_are_the_same_layer(rng):
    """Also that the default initialization is one: the parts of the joint matrix have the spread of the three."""
    rt.random.seed(0)
    for config in (BASE, BASE.with_fused_qkv(False)):
        layer = config.with_d_model(120).with_n_kv_heads(2).init(rt.Cpu())
        a = np.sqrt(6 / (120 + 240))
        for w, b in projections(layer):
            assert 0.99 * a < np.abs(w).max() <= a and w.std() == pytest.approx(a / np.sqrt(3), rel=0.05) and not np.any(b)
        out = layer.out.weight.numpy()
        assert 0.99 / np.sqrt(120) < np.abs(out).max() <= 1 / np.sqrt(120) and not layer.out.bias.numpy().any()
    alone = BASE.with_d_model(120).with_fused_qkv(False).with_d_context(60).init(rt.Cpu())
    assert 0.97 * np.sqrt(6 / 180) < np.abs(alone.k.weight.numpy()).max() <= np.sqrt(6 / 180)
    filled = BASE.with_initializer(Constant(0.5)).init(rt.Cpu())
    assert set(filled.in_proj.weight.numpy().ravel()) == {0.5} and not filled.in_proj.bias.numpy().any()


# gradients
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_finite_differences(kind, rng):
    layer = with_biases(KINDS[kind].with_causal(True).init(Autodiff(rt.Cpu())).to_dtype(rt.float64), rng)
    x = draw(rng, 1, 3, 8, dtype=np.float64)
    check_gradients(lambda m, x: m(x), layer, x)
    if layer.k is not None and layer.rotary is None:  # its bias moves all scores of a query alike: a derivative of pure rounding
        layer = dataclasses.replace(layer, k=dataclasses.replace(layer.k, bias=None))
    check_gradients(lambda m, x: m(x), layer, x, order=2)
    if layer.rotary is None:
        check_gradients(lambda m, x, c: m(x, c, causal=False), layer, x, draw(rng, 1, 4, 8, dtype=np.float64))


# caches
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [[1] * 6, [3, 1, 2], [6], [0, 5, 1]])
def test_decoding_with_a_cache_is_the_full_forward(kind, steps, rng, device):
    layer = with_biases(KINDS[kind].with_causal(True).init(device), rng)
    x = draw(rng, 2, 6, 8, device=device)
    cache, parts, at = KeyValueCache(), [], 0
    for n in steps:
        y, cache = layer(x[:, at : at + n], cache=cache)
        at += n
        assert cache.length == at and y.shape == (2, n, 8)
        parts.append(y)
    np.testing.assert_allclose(rt.concat(parts, axis=1).numpy(), layer(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_cache_is_a_value_that_may_branch(rng):
    layer = BASE.with_causal(True).init(rt.Cpu())
    x = draw(rng, 2, 4, 8)
    _, start = layer(x[:, :2], cache=KeyValueCache())
    before = start.k.numpy().tobytes()
    one, _ = layer(x[:, 2:3], cache=start)
    other, _ = layer(x[:, 3:], cache=start)
    again, _ = layer(x[:, 2:3], cache=start)
    assert start.k.numpy().tobytes() == before and one.numpy().tobytes() == again.numpy().tobytes()
    assert not np.array_equal(one.numpy(), other.numpy())
    swapped, _ = layer(x[:, 2:3][::-1], cache=start.map(lambda a: rt.take(a, [1, 0], axis=0)))
    np.testing.assert_allclose(swapped.numpy(), one.numpy()[::-1], rtol=1e-6, atol=1e-7)
    assert KeyValueCache().map(lambda a: a[:1]) == KeyValueCache()
    with pytest.raises(ValueError, match=r"holds keys \(2, 4, 2, 2\), and \(1, 4, 1, 2\) do not fit.*KeyValueCache\(\)"):
        layer(x[:1, :1], cache=start)


# dtypes, sizes and modes
@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_half_types_are_kept(kind, dtype, rng, device):
    layer = KINDS[kind].with_causal(True).init(Autodiff(device)).to_dtype(dtype)
    x = draw(rng, 2, 5, 8, dtype=dtype, device=device)
    y, (k, v) = layer(x, cache=KeyValueCache())
    wide = layer.to_dtype(rt.float32)(x.astype(rt.float32)).numpy()
    assert y.dtype == k.dtype == v.dtype == dtype
    eps = 2.0**-7 if dtype == rt.bfloat16 else 2.0**-10
    np.testing.assert_allclose(y.astype(rt.float32).numpy(), wide, rtol=4 * eps, atol=4 * eps)
    gradients = y.astype(rt.float32).square().sum().backward()
    assert all(gradients[p].dtype == dtype for p in layer.params())


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8), (1, 1, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_small_and_empty_batches_and_sequences(kind, shape, device):
    layer = KINDS[kind].with_causal(True).init(Autodiff(device))
    x = rt.ones(shape, device=device).require_grad()
    y = layer(x)
    assert y.shape == shape and y.sum().backward()[x].shape == shape
    if "rotary" not in kind:
        assert layer(x, rt.ones((shape[0], 0, 8), device=device), causal=False).shape == shape


def test_dropout_falls_on_probabilities_in_training_only(rng):
    layer = BASE.with_dropout(0.5).init(Autodiff(rt.Cpu()))
    x = draw(rng, 2, 6, 8)
    assert layer.training and not np.array_equal(layer(x).numpy(), layer(x).numpy())
    calm = layer.valid()
    np.testing.assert_array_equal(calm(x).numpy(), layer.map(lambda p: p, dropout=0.0)(x).numpy())
    assert not calm.training and not calm(x).is_require_grad() and calm.train().training
    rt.random.seed(5)
    mean = np.mean([layer(x).numpy() for _ in range(400)], axis=0)
    np.testing.assert_allclose(mean, calm(x).numpy(), atol=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_copies(kind, rng):
    layer, other = (KINDS[kind].init(Autodiff(rt.Cpu())) for _ in range(2))
    x = draw(rng, 2, 4, 8)
    want = layer(x).numpy().tobytes()
    assert other(x).numpy().tobytes() != want
    for same in (other.load_record(layer.to_record()), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), layer.clone()):
        assert isinstance(same, MultiHeadAttention) and same(x).numpy().tobytes() == want


def test_balanced_checkpointing_gives_the_same_gradients(rng):
    layer = BASE.with_dropout(0.3).with_rotary(RotaryConfig(2)).init(Autodiff(rt.Cpu()))
    x, found = draw(rng, 2, 4, 8), []
    for m in (layer, layer.fork(Autodiff(rt.Cpu(), checkpointing="balanced"))):
        rt.random.seed(1)
        gradients = m(x).square().sum().backward()
        found.append([gradients[p].numpy() for p in m.params()])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


# bad input
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (BASE.with_d_model(0), "d_model"),
        (BASE.with_n_heads(3), "n_heads"),
        (BASE.with_n_kv_heads(3), "n_kv_heads"),
        (BASE.with_d_head(0), "d_head"),
        (BASE.with_dropout(-0.1), "dropout"),
        (BASE.with_rotary(1e4), "rotary"),
        (BASE.with_rotary(RotaryConfig(4)), "rotary"),
        (BASE.with_d_context(4), "fused_qkv"),
        (BASE.with_d_context(4).with_fused_qkv(False).with_rotary(RotaryConfig(2)), "d_context"),
        (BASE.with_initializer(1.0), "initializer"),
    ],
)
def test_a_wrong_setting_is_refused(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init()


def test_wrong_arguments_say_what_is_needed(rng):
    layer, x = BASE.init(rt.Cpu()), draw(rng, 2, 4, 8)
    with pytest.raises(ValueError, match=r"x must be \[batch, T, 8\], got \(4, 8\); one sequence: x\[None\]"):
        layer(x[0])
    with pytest.raises(ValueError, match=r"context must be \[2, S, 8\], got \(1, 4, 8\)"):
        layer(x, x[:1])
    with pytest.raises(ValueError, match=r"got \(2, 4, 4\).*mask\[:, None\]"):
        layer(x, mask=rt.ones((2, 4, 4), dtype=rt.bool, device=rt.Cpu()))
    with pytest.raises(TypeError, match="mask must be bool"):
        layer(x, mask=rt.ones((4, 4), dtype=rt.int32, device=rt.Cpu()))
    with pytest.raises(ValueError, match="rotary positions compare positions of one sequence"):
        BASE.with_rotary(RotaryConfig(2)).init(rt.Cpu())(x, x)
