"""Neighbours of the index cases: random keys against NumPy, with the gradient of every duplicate."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt


def test_INDEX_04_an_ellipsis_that_stands_for_no_axis_still_separates_arrays(device):
    a = np.arange(24.0).reshape(2, 3, 4)
    x = rt.tensor(a, device=device)
    i, j = np.array([0, 2]), np.array([[1], [3]])
    for key in ((slice(None), i, ..., j), (i % 2, ..., i, j), (..., i, j), (slice(None), i, j, ...), (slice(None), 1, ..., j)):
        found = x[key]
        assert found.shape == a[key].shape and np.array_equal(found.numpy(), a[key]), key


def _random_key(rng, shape):
    key, axis, like = [], 0, [(2,), (3,), (2, 1), (1, 3), (0,)][rng.integers(5)]
    while axis < len(shape):
        n, kind = shape[axis], "isambN"[rng.integers(6)]
        if kind == "N":
            key.append(None)
            continue
        if kind == "b" and axis + 1 < len(shape):
            key.append(rng.random(shape[axis : axis + 2]) < 0.5)
            axis += 1
        elif kind == "a":
            key.append(rng.integers(-n, n, like))
        elif kind == "m":
            key.append(rng.random(n) < 0.5)
        elif kind == "i":
            key.append(int(rng.integers(-n, n)))
        else:
            key.append(slice(*[[None, 0, 1, -1, 5, -7][k] for k in rng.integers(6, size=2)], [None, 2, -1, -2][rng.integers(4)]))
        axis += 1
        if rng.random() < 0.15:
            break
    if rng.random() < 0.2:
        key.insert(int(rng.integers(len(key) + 1)), ...)
    return tuple(key)


@pytest.mark.parametrize("seed", range(4))
def test_INDEX_02_INDEX_04_any_key_reads_and_writes_as_in_numpy_and_its_gradients_go_where_the_values_went(seed):
    rng, tried = np.random.default_rng(seed), 0
    for _ in range(150):
        a = rng.normal(size=tuple(rng.integers(1, 5, rng.integers(1, 4))))
        key = _random_key(rng, a.shape)
        x = rt.tensor(a, device=rt.Cpu()).require_grad()
        try:
            expected = a[key]
        except IndexError:
            with pytest.raises(IndexError):
                x[key]
            continue
        tried += 1
        y, up = x[key], rng.normal(size=expected.shape)
        assert np.array_equal(y.numpy(), expected)
        spread = np.zeros(a.shape)
        np.add.at(spread, key, up)
        np.testing.assert_allclose(rt.sum(y * rt.tensor(up)).backward()[x].numpy(), spread, atol=1e-12)

        v, up = rt.tensor(rng.normal(size=expected.shape)).require_grad(), rng.normal(size=a.shape)
        written, owner = a.copy(), np.full(a.shape, -1)
        written[key], owner[key] = v.numpy(), np.arange(expected.size).reshape(expected.shape)
        out = rt.slice_assign(x, key, v)
        assert np.array_equal(out.numpy(), written)
        found, mine = rt.sum(out * rt.tensor(up)).backward(), np.zeros(expected.size)
        mine[owner[owner >= 0]] = up[owner >= 0]  # the last value written to a place survives, and alone has a gradient
        np.testing.assert_allclose(found[v].numpy(), mine.reshape(expected.shape), atol=1e-12)
        np.testing.assert_allclose(found[x].numpy(), np.where(owner < 0, up, 0), atol=1e-12)
    assert tried > 100
