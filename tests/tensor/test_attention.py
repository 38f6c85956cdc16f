"""Attention: the hand-derived body against its expression and PyTorch, hidden rows, alignment, memory, errors."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_tensor.ops import _attend

from ._helpers import CPU, close

attention = rt.scaled_dot_product_attention
SHAPES = [  # leading axes, heads, key heads, queries, keys
    ((), 1, 1, 5, 7), ((2,), 4, 2, 5, 7), ((2,), 4, 1, 7, 5), ((2, 3), 2, 2, 4, 4), ((3,), 6, 3, 1, 9),
    ((0,), 2, 2, 3, 3), ((2,), 2, 2, 0, 3), ((2,), 2, 2, 3, 0),
]  # fmt: skip
MASKS = {
    "none": lambda rng: None,
    "bool": lambda rng: rng.random((5, 7)) < 0.5,
    "bool-keys": lambda rng: rng.random((2, 1, 1, 7)) < 0.7,
    "added": lambda rng: rng.standard_normal((4, 5, 7)),
    "added-column": lambda rng: rng.standard_normal((2, 1, 5, 1)),
    "added-infinite": lambda rng: np.where(rng.random((5, 7)) < 0.5, -np.inf, rng.standard_normal((5, 7))),
}


def run(arrays, weight, order=1, mask=None, dtype=rt.float64, device=CPU, **settings):
    """The result and the gradients by q, k, v and a floating mask."""
    leaves = [rt.tensor(a, dtype=dtype, device=device).require_grad() for a in arrays]
    if mask is not None:
        mask = rt.tensor(mask, device=device)
        mask = mask if mask.dtype == rt.bool else mask.astype(dtype).require_grad()
        leaves += [mask] if mask.dtype != rt.bool else []
    with ra.record(order=order):
        y = attention(*leaves[:3], mask=mask, **settings)
    found = rt.sum(y * rt.tensor(weight, dtype=dtype, device=device)).backward()
    return [t.detach().numpy() for t in (y, *(found[x] for x in leaves))]


def drawn(rng, lead, heads, key_heads, t, n, d=3, e=4):
    shapes = (*lead, heads, t, d), (*lead, key_heads, n, d), (*lead, key_heads, n, e)
    return [rng.standard_normal(s) for s in shapes], rng.standard_normal((*lead, heads, t, e))


def agree(a, b, **tolerance):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, **{"rtol": 1e-10, "atol": 1e-11, **tolerance})


@pytest.mark.parametrize("block", [64, 3000, 1 << 20])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("causal", [False, True])
def test_hand_derived_body_agrees_with_its_expression(causal, dropout_p, block, monkeypatch):
    monkeypatch.setattr(_attend, "HOST_BLOCK", block)
    rng = np.random.default_rng(0)
    settings = {"causal": causal, "dropout_p": dropout_p, "seed": 5}
    for shape in SHAPES:
        arrays, weight = drawn(rng, *shape)
        agree(run(arrays, weight, **settings), run(arrays, weight, 2, **settings))
    for make in MASKS.values():
        arrays, weight = drawn(rng, (2,), 4, 2, 5, 7)
        mask = make(rng)
        agree(run(arrays, weight, mask=mask, **settings), run(arrays, weight, 2, mask=mask, **settings))


@pytest.mark.parametrize("kind", list(MASKS))
def test_equals_torch(kind):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays, weight = drawn(rng, (2,), 4, 2, 5, 7)
    mask = MASKS[kind](rng)
    if mask is not None and kind != "added-column":
        mask[..., 0] = True if mask.dtype == bool else 0.5  # PyTorch gives NaN where nothing is seen
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    theirs = None if mask is None else torch.tensor(mask)
    y = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=theirs, enable_gqa=True)
    y.backward(torch.tensor(weight))
    agree(run(arrays, weight, mask=mask)[:4], [y.detach().numpy(), *(t.grad.numpy() for t in tensors)])


def test_LAYER_11_a_query_that_sees_nothing(device):
    arrays = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 2], [1, 1]], [[1, 2], [3, 4], [5, 6]]
    mask = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1]], bool)
    expected = [
        [[1.6604769, 2.6604769], [0, 0], [4, 5]],
        [[-0.6255944, 1.2511888], [0, 0], [0.7071068, -0.7071068]],
        [[-0.6255944, 0], [-0.0815124, -0.7071068], [0.7071068, 0.7071068]],
        np.array([[0.6697615], [0.8302385], [0.5]]) * [1, 1],
    ]
    for order in (1, 2):
        for hide in (mask, np.where(mask, 0.0, -np.inf)):
            found = run(arrays, np.ones((3, 2)), order, hide, rt.float32, device)
            for a, b in zip(found, expected):
                close(a, b, rtol=1e-5, atol=1e-6)
            assert all(np.isfinite(a).all() for a in found[:4])


def test_LAYER_12_causal_is_aligned_at_the_bottom_right(device):
    def rows(queries, values):
        q, k = rt.zeros((queries, 1), device=device), rt.zeros((len(values), 1), device=device)
        return attention(q, k, rt.tensor([[v] for v in values], device=device), causal=True).numpy()[:, 0]

    values = [1.0, 10.0, 100.0, 1000.0]
    close(rows(1, values), [277.75])
    close(rows(2, values), [37, 277.75])
    close(rows(3, values), [5.5, 37, 277.75])
    close(rows(4, values[:2]), [0, 0, 1, 5.5])


def test_cached_decoding_equals_the_last_rows(device):
    rng = np.random.default_rng(0)
    (q, k, v), _ = drawn(rng, (2,), 4, 2, 6, 6)
    whole = attention(*(rt.tensor(a, device=device) for a in (q, k, v)), causal=True).numpy()
    for i in range(6):
        step = attention(*(rt.tensor(a, device=device) for a in (q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1])))
        np.testing.assert_allclose(step.numpy()[:, :, 0], whole[:, :, i], rtol=1e-12)
        last = attention(*(rt.tensor(a, device=device) for a in (q[:, :, i:], k, v)), causal=True).numpy()
        np.testing.assert_allclose(last, whole[:, :, i:], rtol=1e-12)


def test_shared_heads_equal_repeated_ones(device):
    (q, k, v), weight = drawn(np.random.default_rng(0), (2,), 6, 2, 3, 5)
    shared = run([q, k, v], weight, device=device)
    repeated = run([q, k.repeat(3, axis=1), v.repeat(3, axis=1)], weight, device=device)
    agree(shared[:2], repeated[:2])
    for a, b in zip(shared[2:], repeated[2:]):
        np.testing.assert_allclose(a, b.reshape(2, 2, 3, *b.shape[2:]).sum(axis=2), rtol=1e-10)


def test_large_scores_neither_overflow_nor_lose_the_winner(device):
    q = rt.tensor([[300.0], [-300.0]], device=device)
    k = rt.tensor([[300.0], [-300.0], [0.0]], device=device)
    y = attention(q, k, rt.tensor([[1.0], [2.0], [3.0]], device=device))
    close(y, [[1.0], [2.0]])
    y = attention(q.astype(rt.float16), k.astype(rt.float16), rt.tensor([[1.0], [2.0], [3.0]], dtype=rt.float16, device=device))
    assert y.dtype == rt.float16 and y.tolist() == [[1.0], [2.0]]


def test_half_types_have_a_float32_softmax_and_are_rounded_once(device):
    (q, k, v), _ = drawn(np.random.default_rng(0), (2,), 4, 2, 5, 300)
    for dtype in (rt.float16, rt.bfloat16):
        halves = [rt.tensor(a, dtype=dtype, device=device) for a in (q, k, v)]
        wide = attention(*(h.astype(rt.float32) for h in halves))
        assert np.array_equal(attention(*halves).numpy(), wide.astype(dtype).numpy())
        with ra.record(order=2):
            plain = attention(*(h.require_grad() for h in halves))
        close(plain.detach().astype(rt.float32), wide.numpy(), rtol=1e-2, atol=1e-2)
    mask = rt.zeros((5, 300), dtype=rt.bfloat16, device=device)
    assert attention(*(rt.tensor(a, dtype=rt.float32, device=device) for a in (q, k, v)), mask=mask).dtype == rt.float32


def test_SHAPE_09_transposed_and_reversed_views(device):
    rng = np.random.default_rng(0)
    for make in (
        lambda t, d: rng.standard_normal((2, t, 4, d)).transpose(0, 2, 1, 3),
        lambda t, d: rng.standard_normal((2, 4, t, 2 * d))[::-1, :, ::-1, ::-2],
        lambda t, d: np.broadcast_to(rng.standard_normal((1, 1, t, d)), (2, 4, t, d)),
    ):
        views = [make(5, 3), make(7, 3), make(7, 2)]
        weight = rng.standard_normal((2, 4, 5, 2))
        results = []
        for arrays in (views, [v.copy() for v in views]):
            leaves = [rt.Tensor._wrap(a, CPU).require_grad() for a in arrays]
            y = attention(*leaves, causal=True)
            found = rt.sum(y * rt.tensor(weight, device=CPU)).backward()
            results.append([y.detach().numpy(), *(found[x].numpy() for x in leaves)])
        agree(*results, rtol=1e-13, atol=1e-14)


def test_the_tape_keeps_no_scores():
    q, k, v = (rt.ones((1, 2, 64, 8), device=CPU).require_grad() for _ in range(3))
    y = attention(q, k, v, causal=True)
    node = y._node
    while node.op.name != "scaled_dot_product_attention":
        node = node.parents[0]
    (kept, extras), _ = node.kept
    assert sum(a.nbytes for a in (*kept[:3], *extras)) == 3 * q.nbytes + 4 * 2 * 64


def test_dropout_masks_regenerate_and_follow_the_generator(device):
    (q, k, v), _ = drawn(np.random.default_rng(0), (2,), 2, 2, 5, 7)
    arrays = [rt.tensor(a, device=device) for a in (q, k, v)]
    rt.random.seed(4)
    first = attention(*arrays, dropout_p=0.5).numpy()
    assert rt.random.get_state()["offset"] == 2 * 2 * 5 * 7 // 4
    second = attention(*arrays, dropout_p=0.5).numpy()
    assert not np.array_equal(first, second)
    assert np.array_equal(first, attention(*arrays, dropout_p=0.5, seed=4).numpy())
    assert not attention(*arrays, dropout_p=1.0).numpy().any()
    mean = np.mean([attention(*arrays, dropout_p=0.5, seed=s).numpy() for s in range(400)], axis=0)
    np.testing.assert_allclose(mean, attention(*arrays).numpy(), atol=0.25)


def test_no_gradient_is_computed_that_nobody_wants():
    (q, k, v), _ = drawn(np.random.default_rng(0), (1,), 2, 2, 3, 4)
    leaf = rt.tensor(k, device=CPU).require_grad()
    found = rt.sum(attention(rt.tensor(q, device=CPU), leaf, rt.tensor(v, device=CPU))).backward()
    assert len(found) == 1 and found[leaf].shape == k.shape


Q, K, V = (rt.zeros(s, device=CPU) for s in ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)))


@pytest.mark.parametrize(
    "call,error,words",
    [
        (lambda: attention(Q[0], K, V), ValueError, ["(4, 3, 8)", "equally many axes"]),
        (lambda: attention(Q[0, 0, 0], K[0, 0, 0], V[0, 0, 0]), ValueError, ["at least 2"]),
        (lambda: attention(Q[..., :7], K, V), ValueError, ["(2, 4, 3, 7)", "(2, 2, 5, 8)"]),
        (lambda: attention(Q, K, V[:, :, :4]), ValueError, ["(2, 2, 4, 6)"]),
        (lambda: attention(Q[:1], K, V), ValueError, ["do not fit"]),
        (lambda: attention(Q[:, :3], K, V), ValueError, ["3 query heads", "2 key heads"]),
        (lambda: attention(Q, K, V, mask=rt.zeros((3, 4), device=CPU)), ValueError, ["(3, 4)", "(2, 4, 3, 5)"]),
        (lambda: attention(Q, K, V, mask=rt.zeros((3, 5), dtype=rt.int32, device=CPU)), TypeError, ["int32", "bool"]),
        (lambda: attention(Q, K, V, scale=float("inf")), ValueError, ["scale", "inf"]),
        (lambda: attention(Q, K, V, dropout_p=1.5), ValueError, ["dropout_p", "1.5"]),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
