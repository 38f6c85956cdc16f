"""Small float32 products against float64, for any strides."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.kernels import columns, small_product
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

from . import _cases as cases

SIZES = [(1, 1, 1), (64, 256, 784), (7, 10, 33), (16, 16, 128), (33, 65, 129), (64, 10, 256), (256, 256, 64), (5, 300, 200)]


def laid(xp, a, how):
    """The array in row-major order, in column-major order, backwards in memory, or as part of a larger one."""
    if how == "columns":
        return xp.asarray(a.T.copy()).T
    if how == "backwards":
        return xp.asarray(a[::-1, ::-1].copy())[::-1, ::-1]
    if how == "part":
        wide = xp.full((a.shape[0] + 1, 2 * a.shape[1] + 1), np.nan, np.float32)
        wide[1:, 1::2] = xp.asarray(a)
        return wide[1:, 1::2]
    return xp.asarray(a)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("first", "second"), [("rows", "rows"), ("columns", "rows"), ("rows", "columns"), ("part", "backwards")])
def test_products_of_any_layout(xp, rng, size, first, second):
    m, n, k = size
    x, y, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), n))
    exact, bound = x.astype(float) @ y + b, np.abs(x).astype(float) @ np.abs(y) + np.abs(b)
    x, y, b = laid(xp, x, first), laid(xp, y, second), xp.asarray(b)
    HITS.clear()
    found = small_product.product(cases.Poisoned(xp), x, y, b)
    assert HITS == {"small_product": 1} and found.flags.c_contiguous
    assert (np.abs(backend.to_host(found) - exact) <= 2.0**-23 * np.sqrt(k + 4) * 2 * bound).all()
    bare = backend.to_host(small_product.product(xp, x, y))
    assert (np.abs(bare - (exact - backend.to_host(b))) <= 2.0**-23 * np.sqrt(k + 4) * 2 * bound).all()
    for _ in range(20):
        assert backend.to_host(small_product.product(xp, x, y, b)).tobytes() == backend.to_host(found).tobytes()


def test_one_row_for_all(xp, rng):
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 40), (40, 30)))
    wide = xp.broadcast_to(xp.asarray(x), (50, 40))
    found = backend.to_host(small_product.product(xp, wide, xp.asarray(y)))
    np.testing.assert_allclose(found, np.tile(x @ y, (50, 1)), rtol=2e-5, atol=1e-5)


def test_inf_and_nan_reach_what_they_should_and_nothing_else(xp):
    x, y = np.ones((40, 20), np.float32), np.ones((20, 50), np.float32)
    x[3, 7], x[5, 19], y[11, 49] = np.nan, np.inf, -np.inf
    found = backend.to_host(small_product.product(xp, xp.asarray(x), xp.asarray(y)))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, x @ y)


def test_what_is_large_or_of_another_kind_is_declined(xp):
    x = xp.ones((64, 64), np.float32)
    assert small_product.product(xp, x, x) is not None
    for a, b in ((x[None], x[None]), (x.astype(np.float64),) * 2, (x[:, :0], x[:0]), (x[:0], x)):
        assert small_product.product(xp, a, b) is None
    assert small_product.product(xp, xp.broadcast_to(x[:1], (5000, 64)), x) is None
    with use_fused(False):
        assert small_product.product(xp, x, x) is None


LAYERS = [(1, 1, 1), (64, 784, 256), (64, 256, 10), (7, 33, 10), (16, 16, 16), (33, 129, 65), (200, 5, 300), (3, 300, 1)]


@pytest.mark.parametrize("size", LAYERS)
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_all_derivatives_of_a_layer_in_one_launch(xp, rng, size, layout):
    m, k, n = size
    g, x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, n), (m, k), (k, n)))
    wide = [a.astype(float) for a in (g, x, w)]
    exact = (wide[0] @ wide[2].T, wide[1].T @ wide[0], wide[0].sum(0))
    bound = (abs(wide[0]) @ abs(wide[2]).T, abs(wide[1]).T @ abs(wide[0]), abs(wide[0]).sum(0))
    g, x, w = laid(xp, g, layout), xp.asarray(x), xp.asarray(w)
    whole = None
    for needs in itertools.product((True, False), repeat=3):
        if not any(needs):
            continue
        HITS.clear()
        found = small_product.linear_backward(cases.Poisoned(xp), g, x, w, needs)
        assert HITS == {"small_linear_backward": 1} and [a is not None for a in found] == list(needs)
        found = [None if a is None else backend.to_host(a) for a in found]
        whole = found if whole is None else whole
        for a, b, e, limit, terms in zip(found, whole, exact, bound, (n, m, m)):
            if a is not None:
                assert a.shape == e.shape and a.dtype == np.float32
                assert (abs(a - e) <= 2.0**-23 * np.sqrt(terms + 4) * 2 * limit).all()
                assert a.tobytes() == b.tobytes()
    for _ in range(20):
        again = small_product.linear_backward(xp, g, x, w, (True, True, True))
        assert all(backend.to_host(a).tobytes() == b.tobytes() for a, b in zip(again, whole))


def test_inf_and_nan_in_a_gradient_stay_in_their_rows_and_columns(xp):
    g, x, w = (np.ones(shape, np.float32) for shape in ((20, 18), (20, 40), (40, 18)))
    g[3, 7], g[19, 17], x[5, 2], w[9, 4] = np.nan, np.inf, -np.inf, np.nan
    found = small_product.linear_backward(xp, *[xp.asarray(a) for a in (g, x, w)], (True, True, True))
    with np.errstate(all="ignore"):
        for a, b in zip(found, (g @ w.T, x.T @ g, g.sum(0))):
            np.testing.assert_array_equal(backend.to_host(a), b)


def test_what_of_a_layer_is_large_or_lies_otherwise_is_declined(xp):
    x, w, g = (xp.ones(shape, np.float32) for shape in ((8, 16), (16, 4), (8, 4)))
    assert small_product.linear_backward(xp, g, x, w, (True, True, True)) is not None
    for a, b in ((xp.asarray(np.ones((16, 8), np.float32)).T, w), (x, xp.asarray(np.ones((4, 16), np.float32)).T)):
        assert small_product.linear_backward(xp, g, a, b, (True, True, True)) is None
    with use_fused(False):
        assert small_product.linear_backward(xp, g, x, w, (True, True, True)) is None
    assert small_product.fits(64, 784, 256) and not any(small_product.fits(*s) for s in ((0, 4, 4), (4, 0, 4), (64, 4096, 8)))


def test_few_rows_are_added_in_one_launch(xp, rng):
    for rows, n in ((64, 256), (1, 33), (columns.FEW, 40), (columns.FEW + 1, 40)):
        g = rng.standard_normal((rows, n)).astype(np.float32)
        HITS.clear()
        found = backend.to_host(columns.sum_columns(xp, xp.asarray(g), n, g.dtype))
        assert HITS["columns_reduce"] == (rows > columns.FEW) and HITS["columns_finish"] == 1
        np.testing.assert_allclose(found, g.sum(0, dtype=float), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_a_layer_of_a_small_batch_uses_it():
    device = rt.Cuda(0)
    x, w, b = (rt.random.normal(shape, device=device) for shape in ((64, 784), (784, 256), (256,)))
    x, w, b = (t.require_grad() for t in (x, w, b))

    def run(bias):
        y = rt.linear(x, w, bias)
        found = rt.sum(y * y).backward()
        return [y, *[found[t] for t in (x, w, bias) if t is not None]]

    for bias in (b, None):
        HITS.clear()
        ours = run(bias)
        assert HITS["small_product"] == HITS["small_linear_backward"] == 1
        with use_fused(False):
            for a, e in zip(ours, run(bias)):
                np.testing.assert_allclose(a.numpy(), e.numpy(), rtol=1e-4, atol=1e-3)
