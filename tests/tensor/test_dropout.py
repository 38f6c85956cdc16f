"""Dropout: its mask, its scale, its gradient, and that nothing is stored."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, gradient


def test_LAYER_07_probabilities_at_the_ends_and_between(device):
    ones = np.ones(1000)
    x = rt.ones(1000, device=device)
    assert not rt.dropout(x, 1.0, training=True).numpy().any()
    assert not gradient(lambda x: rt.dropout(x, 1.0, training=True), ones, device).any()
    assert rt.dropout(x, 0.0, training=True) is x
    for p in (0.0, 0.25, 1.0):
        assert rt.dropout(x, p, training=False) is x
    y = rt.dropout(x, 0.25, training=True, seed=1).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert np.array_equal(gradient(lambda x: rt.dropout(x, 0.25, training=True, seed=1), ones, device), y)
    assert abs((y > 0).mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / 1000)


def test_the_mask_is_the_one_that_random_names(device):
    x = rt.ones((3, 7), device=device)
    keep = rt.random.bernoulli((3, 7), p=0.6, seed=5, device=device).numpy()
    assert np.array_equal(rt.dropout(x, 0.4, training=True, seed=5).numpy() > 0, keep)
    assert np.array_equal(rt.dropout(x, 0.4, training=True, key=rt.random.key(5)).numpy() > 0, keep)
    rt.random.seed(5)
    assert np.array_equal(rt.dropout(x, 0.4, training=True).numpy() > 0, keep)
    assert rt.random.get_state()["offset"] == 6  # 21 words, in counters of four
    assert not np.array_equal(rt.dropout(x, 0.4, training=True).numpy() > 0, keep)


def test_a_seed_or_inference_leaves_the_process_generator_alone():
    rt.random.seed(5)
    x = rt.ones(8, device=CPU)
    for arguments in ({"training": True, "seed": 1}, {"training": False}):
        rt.dropout(x, 0.5, **arguments)
    rt.dropout(x, 0.0, training=True)
    rt.dropout(x, 1.0, training=True)
    assert rt.random.get_state()["offset"] == 0


def test_RNG_02_a_restored_state_draws_the_same_masks(device):
    x = rt.ones(100, device=device)
    rt.random.seed(1)
    rt.dropout(x, 0.5, training=True)
    state = rt.random.get_state()
    first = rt.dropout(x, 0.5, training=True).numpy()
    rt.random.set_state(state)
    assert np.array_equal(rt.dropout(x, 0.5, training=True).numpy(), first)


def test_backward_stores_no_mask_and_draws_the_same_one(device):
    x = rt.ones((64, 64), device=device).require_grad()
    y = rt.dropout(x, 0.5, training=True)
    kept = y._node.kept
    assert not any(isinstance(k, rt.Tensor) or hasattr(k, "nbytes") for k in kept)
    rt.random.seed(99)  # what is drawn in between changes nothing
    assert np.array_equal(rt.sum(y).backward()[x].numpy(), y.detach().numpy())


def test_second_derivative(device):
    x = rt.tensor(np.arange(1.0, 9.0), device=device).require_grad()
    with ra.record(order=2):
        y = rt.sum(rt.dropout(x, 0.5, training=True, seed=2) ** 3)
    g = y.backward(order=2)[x]
    keep = rt.random.bernoulli((8,), p=0.5, seed=2, device=device).numpy()
    np.testing.assert_allclose(rt.sum(g).backward()[x].numpy(), 6 * 8 * np.arange(1.0, 9.0) * keep, rtol=1e-12)


def test_an_infinity_that_is_dropped_is_gone(device):
    y = rt.dropout(rt.full(100, float("inf"), device=device), 0.5, training=True, seed=0).numpy()
    assert set(y.tolist()) == {0.0, float("inf")}
    assert not rt.dropout(rt.full(3, float("nan"), device=device), 1.0, training=True).numpy().any()


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16, rt.float64])
def test_dtypes_share_the_mask(dtype, device):
    wide = rt.dropout(rt.ones(50, device=device), 0.3, training=True, seed=1).numpy()
    y = rt.dropout(rt.ones(50, dtype=dtype, device=device), 0.3, training=True, seed=1)
    assert y.dtype == dtype and np.array_equal(y.numpy() > 0, wide > 0)
    assert rt.dropout(rt.ones(3, dtype=rt.int32, device=device), 0.3, training=True).dtype == rt.float32


def test_shapes(device):
    assert rt.dropout(rt.zeros((0, 3), device=device), 0.5, training=True).shape == (0, 3)
    assert rt.dropout(rt.ones((), device=device), 0.5, training=True).shape == ()
    base = np.ones((4, 6), np.float32)
    view = rt.dropout(rt.Tensor._wrap(base[::-1, ::2], CPU), 0.5, training=True, seed=1).numpy()
    assert np.array_equal(view, rt.dropout(rt.ones((4, 3), device=CPU), 0.5, training=True, seed=1).numpy())


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_probabilities_outside_raise(p):
    with pytest.raises(ValueError, match="p must be"):
        rt.dropout(rt.ones(3, device=CPU), p, training=True)


def test_a_seed_and_a_key_are_too_much():
    with pytest.raises(ValueError, match="seed= or key="):
        rt.dropout(rt.ones(3, device=CPU), 0.5, training=True, seed=1, key=rt.random.key(1))
    with pytest.raises(TypeError, match=r"rt\.random\.key"):
        rt.dropout(rt.ones(3, device=CPU), 0.5, training=True, key=7)
