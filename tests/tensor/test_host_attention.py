"""The compiled attention against its NumPy body and against float64."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import attention
from ruda_tensor.ops import _attend

pytestmark = pytest.mark.skipif(host.function("attention", "attention_forward", "p" * 7 + "nnf") is None, reason="no compiler")

# batches, query heads, key heads, queries, keys, features of q and k, of v
SIZES = [
    (2, 4, 4, 64, 64, 32, 32), (1, 4, 2, 5, 9, 3, 7), (2, 2, 1, 33, 17, 20, 8), (1, 1, 1, 1, 1, 1, 1),
    (3, 2, 2, 70, 70, 16, 16), (1, 6, 2, 40, 3, 64, 1), (1, 1, 1, 3, 100, 17, 33),
]  # fmt: skip


def made(sizes: tuple, dtype: Any = np.float32, seed: int = 0) -> list[np.ndarray]:
    b, h, k, t, n, d, e = sizes
    r = np.random.default_rng(seed)
    shapes = (b, h, t, d), (b, k, n, d), (b, k, n, e), (b, h, t, e)
    return [r.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def both(arrays: list, causal: bool) -> tuple:
    """Result, log sum exp and gradients."""
    q, k, v, g = arrays
    out, lse = _attend.attend(np, q, k, v, None, scale=0.3, causal=causal, dropout=None)
    needs = (True, True, True, False)
    grads = _attend.attend_backward(np, g, q, k, v, None, out, lse, needs=needs, scale=0.3, causal=causal, dropout=None)
    return out, lse, *grads[:3]


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    monkeypatch.setattr(attention, "SMALL", 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_it_agrees_with_float64(sizes, causal):
    arrays = made(sizes)
    assert attention.forward(np, *arrays[:3], scale=0.3, causal=causal) is not None
    found, right = both(arrays, causal), both([a.astype(np.float64) for a in arrays], causal)
    for a, b in zip(found, right):
        assert a.dtype == np.float32 and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("forward_compiled", [False, True])
def test_either_forward_goes_with_either_backward(forward_compiled):
    q, k, v, g = made(SIZES[1])
    needs, right = (True, True, True, False), both([a.astype(np.float64) for a in (q, k, v, g)], True)
    with host.use_host_kernels(forward_compiled):
        out, lse = _attend.attend(np, q, k, v, None, scale=0.3, causal=True, dropout=None)
    with host.use_host_kernels(not forward_compiled):
        grads = _attend.attend_backward(np, g, q, k, v, None, out, lse, needs=needs, scale=0.3, causal=True, dropout=None)
    for a, b in zip(grads[:3], right[2:]):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=4e-6)


def test_strided_inputs_are_walked_and_others_declined():
    arrays = made((2, 3, 3, 12, 12, 8, 8))
    expected = both(arrays, True)
    turned = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for a in arrays]
    backwards = [a[:, :, ::-1].copy()[:, :, ::-1] for a in arrays]
    for views in (turned, backwards):
        assert attention.forward(np, *views[:3], scale=0.3, causal=True) is not None
        for a, b in zip(both(views, True), expected):
            np.testing.assert_array_equal(a, b)
    wide = [np.repeat(a, 2, axis=-1)[..., ::2] for a in arrays]
    assert attention.forward(np, *wide[:3], scale=0.3, causal=True) is None


@pytest.mark.parametrize("causal", [False, True])
def test_what_is_not_finite_comes_out_as_in_numpy(causal):
    q, k, v, g = made((1, 2, 2, 40, 40, 8, 8))
    q[0, 0, 3, 2], k[0, 1, 39, 0], v[0, 1, 0, 1] = np.nan, np.inf, -np.inf
    found = both([q, k, v, g], causal)
    with host.use_host_kernels(False):
        right = both([q, k, v, g], causal)
    for a, b in zip(found[:2], right[:2]):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=4e-6)


def test_a_query_that_sees_no_key_gives_zero_and_takes_no_part():
    arrays = made((1, 1, 1, 6, 2, 4, 4))
    out, lse, dq, _, _ = both(arrays, True)
    assert not out[0, 0, :4].any() and not dq[0, 0, :4].any() and np.isposinf(lse[0, 0, :4]).all()
    assert out[0, 0, 4:].all()


def test_large_and_tiny_scores_neither_overflow_nor_vanish():
    q, k, v, g = made((1, 1, 1, 20, 20, 16, 16))
    for factor in (1e-20, 1e4, 1e18):
        out, lse, *grads = both([q * np.float32(factor), k, v, g], False)
        assert np.isfinite(out).all() and np.isfinite(lse).all() and all(np.isfinite(a).all() for a in grads)


def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    arrays = made((4, 2, 2, 50, 50, 16, 16))
    first = both(arrays, True)
    monkeypatch.setattr("ruda_tensor.ops._parallel.threads", lambda: 1)
    for a, b in zip(both(arrays, True), first):
        np.testing.assert_array_equal(a, b)


def test_a_head_has_the_same_bits_in_any_batch(monkeypatch):
    monkeypatch.undo()  # the size that decides is the real one
    for t in (3, 16, 64):
        arrays = made((3, 4, 4, t, t, 32, 32))
        whole = both(arrays, True)
        for b in range(3):
            for a, one in zip(whole, both([x[b : b + 1] for x in arrays], True)):
                np.testing.assert_array_equal(a[b], one[0])
