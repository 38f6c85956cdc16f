"""The attention cases at the level of layers: queries that see nothing, and the corner that causal masks start from."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn.attention import MultiHeadAttention, MultiHeadAttentionConfig
from ruda_nn.cache import KeyValueCache
from ruda_nn.linear import Linear
from ruda_nn.param import Param


def linear(values, device):
    return Linear(weight=Param(rt.tensor(values, dtype=rt.float64, device=device), device=Autodiff(device)), bias=None)


def selecting(device):
    """One head whose queries, keys and values are features 0-1, 2-3 and 4-5 of the input, and whose result is itself."""
    layer = MultiHeadAttentionConfig(d_model=6, n_heads=1, d_head=2, bias=False).init(Autodiff(device))
    out = np.eye(2, 6)
    fields = {"in_proj": linear(np.eye(6), device), "out": linear(out, device)}
    return MultiHeadAttention(**{**{name: getattr(layer, name) for name in type(layer).__dataclass_fields__}, **fields})


Q, K, V = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 2], [1, 1]], [[1, 2], [3, 4], [5, 6]]
MASK = [[1, 1, 0], [0, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize("additive", [False, True])
def test_LAYER_11_a_query_that_sees_no_key_gives_0_and_finite_gradients(additive, device):
    layer = selecting(device)
    x = rt.tensor(np.concatenate([Q, K, V], axis=1)[None], dtype=rt.float64, device=device).require_grad()
    mask = rt.tensor(np.array(MASK, bool), device=device)
    if additive:
        mask = rt.where(mask, rt.zeros((), dtype=rt.float64, device=device), -rt.inf)
    y = layer(x, mask=mask)
    np.testing.assert_allclose(y.numpy()[0, :, :2], [[1.6604769, 2.6604769], [0, 0], [4, 5]], atol=1e-7)
    gradients = y.sum().backward()
    found = gradients[x].numpy()[0]
    np.testing.assert_allclose(found[:, :2], [[-0.6255944, 1.2511888], [0, 0], [0.7071068, -0.7071068]], atol=1e-7)
    np.testing.assert_allclose(found[:, 2:4], [[-0.6255944, 0], [-0.0815124, -0.7071068], [0.7071068, 0.7071068]], atol=1e-7)
    np.testing.assert_allclose(found[:, 4:], np.repeat([[0.6697615], [0.8302385], [0.5]], 2, axis=1), atol=1e-7)
    assert all(np.isfinite(gradients[p].numpy()).all() for p in layer.params())


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, rt.float16])
def test_LAYER_11_one_blind_query_leaves_the_rest_of_the_batch_alone(dtype, device):
    rt.random.seed(0)
    layer = MultiHeadAttentionConfig(d_model=8, n_heads=2).init(Autodiff(device)).to_dtype(dtype)
    x = rt.random.normal((3, 4, 8), device=device).astype(dtype)
    keep = np.ones((3, 1, 4, 4), bool)
    keep[1, :, 2] = False
    y = layer(x, mask=rt.tensor(keep, device=device))
    seen = layer(x)
    for b, t in [(0, slice(None)), (2, slice(None)), (1, [0, 1, 3])]:
        assert y.numpy()[b, t].tobytes() == seen.numpy()[b, t].tobytes()
    assert not y.numpy()[1, 2].any()
    gradients = y.sum().backward()
    assert all(np.isfinite(gradients[p].numpy().astype(np.float32)).all() for p in layer.params())


@pytest.mark.parametrize(
    ("queries", "keys", "want"),
    [
        (1, 4, [277.75]),
        (2, 4, [37, 277.75]),
        (3, 4, [5.5, 37, 277.75]),
        (4, 2, [0, 0, 1, 5.5]),
    ],
)
def test_LAYER_12_causal_masks_are_aligned_at_the_bottom_right(queries, keys, want, device):
    """All scores are 0, so a query gives the mean of the values that it sees."""
    one, zero = linear([[1.0]], device), linear([[0.0]], device)
    layer = MultiHeadAttention(
        in_proj=None, q=zero, k=zero, v=one, out=one, n_heads=1, n_kv_heads=1, causal=True, dropout=0.0, rotary=None,
        training=False,
    )  # fmt: skip
    values = rt.tensor([[[1.0], [10.0], [100.0], [1000.0]]], dtype=rt.float64, device=device)[:, :keys]
    x = rt.zeros((1, queries, 1), dtype=rt.float64, device=device)
    np.testing.assert_allclose(layer(x, values).numpy().ravel(), want, rtol=1e-14)
    if queries <= keys:
        y, cache = layer(values[:, : keys - queries], cache=KeyValueCache())
        y, cache = layer(values[:, keys - queries :], cache=cache)
        np.testing.assert_allclose(y.numpy().ravel(), want, rtol=1e-14)
