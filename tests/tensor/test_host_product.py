"""The compiled matrix product against float64, against BLAS, and in the operations that use it."""
from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import pool
from ruda_tensor.kernels.host import product as host_product
from ruda_tensor.ops import matmul

usable = host.function("product", "usable", ">n")
pytestmark = pytest.mark.skipif(usable is None or not usable(), reason="no compiler, or vectors too narrow to gain")
ODD = [1, 2, 3, 5, 17, 63, 65, 257]
SIZES = sorted({(m, k, n) for m, k, n in itertools.product(ODD, repeat=3) if (m * 7 + k * 3 + n) % 5 == 0}) + [
    (8, 16, 48), (16, 32, 64), (7, 256, 16), (9, 258, 80), (300, 40, 33), (64, 784, 10), (4, 600, 100), (520, 520, 47),
]  # fmt: skip
LAYOUTS = ["straight", "first", "second", "both"]


@pytest.fixture
def any_size(monkeypatch):
    """Let the compiled body take every size."""
    monkeypatch.setattr(host_product, "threads", lambda: 1)
    for name in ("LEAST", "BIASED", "ROWS", "STEPS", "COLUMNS", "ACROSS", "NARROW"):
        monkeypatch.setattr(host_product, name, 1)
    for name in ("MOST", "APART", "LARGE", "HUGE"):
        monkeypatch.setattr(host_product, name, 1 << 60)
    monkeypatch.setattr(host_product, "_plans", {})


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(host_product, "threads", lambda: 1)
    monkeypatch.setattr(host_product, "_plans", {})


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def operands(m, k, n, layout):
    x = normal(k, m).T if layout in ("first", "both") else normal(m, k)
    return x, normal(n, k, seed=1).T if layout in ("second", "both") else normal(k, n, seed=1)


def check(found, x, y, bias: Any = 0.0):
    """Within the bound of a sum in any order: (k + 2) u times the sum of absolute products."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    right, terms = x @ y + bias, np.abs(x) @ np.abs(y) + np.abs(bias)
    assert found.dtype == np.float32 and found.shape == right.shape and found.flags.c_contiguous
    assert (np.abs(found - right) <= (x.shape[1] + 2) * 2.0**-24 * terms).all()


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_agrees_with_float64_at_odd_sizes(layout):
    for size in SIZES:
        x, y = operands(*size, layout)
        bias = normal(size[2], seed=2)
        check(host_product.product(x, y), x, y)
        check(host_product.product(x, y, bias), x, y, bias.astype(np.float64))
        residual = normal(size[0], size[2], seed=3)
        for row in (None, bias):
            expected = host_product.product(x, y, row) + residual
            for given in (residual, np.asfortranarray(residual)):
                np.testing.assert_array_equal(host_product.product(x, y, row, given), expected)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_that_lie_anywhere_give_the_bits_of_copies_and_nothing_beside_them_is_read(layout):
    for m, k, n in [(5, 17, 63), (24, 33, 50), (65, 300, 7), (1, 9, 100)]:
        x, y = operands(m, k, n, layout)
        expected = host_product.product(x, y)
        for shift in range(4):
            views = []
            for a in (x, y):
                turned = not a.flags.c_contiguous
                b = a.T if turned else a
                room = np.full((b.shape[0] + 2, b.shape[1] + 5 + shift), np.nan, np.float32)
                view = room[1:-1, shift : shift + b.shape[1]]
                view[...] = b
                views.append(view.T if turned else view)
            np.testing.assert_array_equal(host_product.product(*views), expected)


@pytest.mark.usefixtures("any_size")
def test_rows_may_run_backwards_or_be_the_same_one():
    x, y = normal(20, 33), normal(33, 40, seed=1)
    backwards, same = x[::-1], np.broadcast_to(x[3], (20, 33))
    np.testing.assert_array_equal(host_product.product(backwards, y), host_product.product(x, y)[::-1])
    np.testing.assert_array_equal(host_product.product(same, y)[7], host_product.product(x, y)[3])
    check(host_product.product(x, y[::-1]), x, y[::-1])
    check(host_product.product(x[::2], y), x[::2], y)


@pytest.mark.usefixtures("any_size")
def test_what_cannot_be_walked_is_declined_and_computed_all_the_same():
    x, y = normal(20, 66), normal(66, 40, seed=1)
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    for a, b in ((x[:, ::2], y[::2]), (odd, y), (x.astype(np.float64), y.astype(np.float64)), (x.astype(int), y.astype(int))):
        assert host_product.product(a, b) is None
        np.testing.assert_allclose(matmul.product(np, a, b), a.astype(np.float64) @ b, rtol=2e-5, atol=2e-5)
    assert host_product.product(normal(2, 3, 4), normal(2, 4, 5)) is None
    for m, k, n in ((0, 5, 6), (5, 0, 6), (5, 6, 0)):
        np.testing.assert_array_equal(matmul.product(np, normal(m, k), normal(k, n)), np.zeros((m, n), np.float32))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_not_finite_spreads_as_in_blas(layout):
    x, y = operands(40, 70, 50, layout)
    x[3, 5], x[7, 69], x[11, 0], y[9, 49] = math.nan, math.inf, -math.inf, math.inf
    x[20, 9], x[21] = 0.0, 0.0
    with np.errstate(all="ignore"):
        found, right = host_product.product(x, y), x @ y
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    assert np.isnan(found[[20, 21], 49]).all() and np.isnan(found[3]).all()
    np.testing.assert_array_equal(found[np.isinf(right)], right[np.isinf(right)])


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_number_is_the_same_bits_in_any_company(layout):
    x, y = operands(37, 300, 90, layout)
    whole = host_product.product(x, y)
    for i, j in ((0, 1), (3, 8), (8, 37), (36, 37)):
        np.testing.assert_array_equal(host_product.product(x[i:j], y), whole[i:j])
        np.testing.assert_array_equal(host_product.product(x, y[:, i:j]), whole[:, i:j])


@pytest.mark.usefixtures("any_size")
def test_nothing_is_written_beside_the_result():
    for m, k, n in ((1, 5, 1), (13, 40, 47), (8, 16, 48), (30, 300, 17)):
        x, y = normal(m, k), normal(k, n, seed=1)
        right = host_product.product(x, y)
        call, sizes, *_ = host_product._plans[x.shape, x.strides, y.shape, y.strides, True]
        room = np.full(m * n + 64, 7.0, np.float32)
        call(sizes, host.address(x), host.address(y), 0, host.address(room) + 4 * 32, 0)
        np.testing.assert_array_equal(room[32:-32].reshape(m, n), right)
        assert (room[:32] == 7.0).all() and (room[-32:] == 7.0).all()


@pytest.mark.usefixtures("one_thread")
def test_sizes_decide():
    x, y = normal(64, 784), normal(784, 256)
    assert host_product.product(x, y) is not None and host_product.product(x.T, normal(64, 256)) is not None
    assert host_product.product(x[:, :300], y[:300, :10]) is None and host_product.product(x, y[:, :10], y[0, :10]) is not None
    assert host_product.product(x[:4], y) is None and host_product.product(x[:, :8], y[:8, :8]) is None
    with host.use_host_kernels(False):
        assert host_product.product(x, y) is None


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("cores", [2, 3, 5])
def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch, cores):
    sizes = (64, 784, 256), (301, 130, 97), (97, 300, 111)
    cases: list[tuple] = [(normal(m, k), normal(k, n, seed=1), normal(n)) for m, k, n in sizes]
    cases += [(*case, normal(len(case[0]), case[1].shape[1], seed=4)) for case in cases]
    cases += [(normal(70, 300).T, normal(70, 129), None), (normal(90, 200), normal(150, 200).T, None)]

    def all_of(count: int) -> list:
        monkeypatch.setattr(host_product, "threads", lambda: count)
        monkeypatch.setattr(pool, "threads", lambda: count)
        host_product._plans.clear()
        return [host_product.product(*case) for case in cases]

    alone, shared = all_of(1), all_of(cores)
    assert all(out is not None for out in alone)
    for a, b in zip(alone, shared):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("batch", [(64,), (4, 16), (2, 1, 32)])
def test_linear_and_its_gradients_are_those_of_the_plain_bodies(batch):
    def run():
        leaves = [rt.tensor(a, device=rt.Cpu()).require_grad() for a in (normal(*batch, 200), normal(200, 100), normal(100))]
        out = rt.linear(*leaves)
        gradients = (out * rt.tensor(normal(*batch, 100, seed=3), device=rt.Cpu())).sum().backward()
        return [out.numpy(), *[gradients[leaf].numpy() for leaf in leaves]]

    found = run()
    with host.use_host_kernels(False):
        right = run()
    for a, b in zip(found, right):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-4)
    assert any(plan is not None for plan in host_product._plans.values())


@pytest.mark.usefixtures("one_thread")
def test_threads_of_the_program_may_multiply_at_once(monkeypatch):
    monkeypatch.setattr(host_product, "PLANS", 3)  # plans are dropped meanwhile
    pairs = [(normal(40 + i, 200, seed=i), normal(200, 100, seed=i)) for i in range(8)]
    expected = [host_product.product(x, y) for x, y in pairs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for a, b in zip(pool.map(lambda pair: host_product.product(*pair), pairs), expected):
                np.testing.assert_array_equal(a, b)


def test_addresses_are_those_that_numpy_tells():
    x = normal(6, 7)
    frozen = x.copy()
    frozen.flags.writeable = False
    for a in (x, x[2:, 3:], x.T, x[::-1], frozen, np.broadcast_to(x[0], (3, 7)), np.zeros(()), np.zeros((0, 3))):
        assert host.address(a) == a.__array_interface__["data"][0]
    assert host.address(None) == 0
