"""Scans and differences: edge cases, dtypes and errors beside the rows of tests/specs/scan.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient


def test_GRAD_15_cumprod_with_zeros(device):
    close(gradient(rt.cumprod, [3, 0, 2, 0, 5], device), [1, 9, 0, 0, 0])
    close(gradient(rt.cumprod, [2, 4, 0, 5, 3], device), [5, 2, 168, 0, 0])


def test_GRAD_15_a_product_that_overflows_later_does_not_spoil_earlier_gradients(device):
    x = np.full(100, 10.0)
    with np.errstate(over="ignore"):
        close(gradient(lambda x: rt.cumprod(x)[2], x, device), np.where(np.arange(100) < 3, 100.0, 0.0))
    x[30] = 0.0
    found = gradient(lambda x: rt.cumprod(x)[20], x, device)
    close(found, np.where(np.arange(100) < 21, 1e20, 0.0))


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0]), min_size=1, max_size=7))
def test_GRAD_15_cumprod_gradient_is_the_sum_of_products_without_the_element(values):
    x = np.asarray(values)
    expected = [sum(np.prod(np.delete(x[: j + 1], i)) for j in range(i, len(x))) for i in range(len(x))]
    close(gradient(rt.cumprod, x, dtype=rt.float64), expected, rtol=1e-12)
    close(gradient(rt.prod, x, dtype=rt.float64), [np.prod(np.delete(x, i)) for i in range(len(x))], rtol=1e-12)


def test_GRAD_17_logcumsumexp_after_minus_infinities(device):
    x = [-rt.inf, -rt.inf, 0.0, 0.0]
    close(rt.logcumsumexp(rt.tensor(x, device=device)), [-np.inf, -np.inf, 0, np.log(2)])
    close(gradient(lambda x: rt.logcumsumexp(x)[-1], x, device), [0, 0, 0.5, 0.5])
    close(gradient(rt.logcumsumexp, x, device), [0, 0, 1.5, 0.5])
    with ra.record(order=2):
        assert np.isfinite(gradient(rt.logcumsumexp, x, device)).all()


def test_GRAD_17_logcumsumexp_of_large_and_infinite_values(device):
    x = rt.tensor([-1000.0, 1000.0, -rt.inf, 1000.0, rt.inf, 3.0], device=device)
    two = 1000 + np.log(2)
    close(rt.logcumsumexp(x), [-1000, 1000, 1000, two, np.inf, np.inf])
    assert not np.isnan(gradient(rt.logcumsumexp, x.numpy(), device)).any()
    close(gradient(rt.logcumsumexp, [0.0, 200.0], device), [1.0, 1.0])
    found = rt.logcumsumexp(rt.tensor([0.0, rt.nan, 1.0], device=device)).numpy()
    assert found[0] == 0 and np.isnan(found[1:]).all()


def test_GRAD_17_halves_keep_a_float32_running_value(device):
    x = np.random.default_rng(0).uniform(50, 60, 64)
    x = rt.tensor(x, dtype=rt.bfloat16).astype(rt.float64).numpy()
    exact = gradient(lambda x: rt.logcumsumexp(x)[-1], x, CPU, rt.float64)
    close(gradient(lambda x: rt.logcumsumexp(x)[-1], x, device, rt.bfloat16), exact, rtol=0.02, atol=1e-4)


def test_SHAPE_08_scans_of_nothing(device):
    for scan in (rt.cumsum, rt.cumprod, rt.logcumsumexp):
        for axis in (0, 1):
            assert scan(rt.zeros((2, 0), device=device), axis=axis).shape == (2, 0)
            assert gradient(lambda x, s=scan, a=axis: s(x, axis=a), np.zeros((2, 0)), device).shape == (2, 0)
    assert rt.cumulative_sum(rt.zeros((0,), device=device), include_initial=True).tolist() == [0.0]
    assert rt.cumulative_prod(rt.zeros((2, 0), device=device), axis=1, include_initial=True).tolist() == [[1.0], [1.0]]
    assert rt.diff(rt.zeros((1, 2), device=device), axis=0).shape == (0, 2)


@pytest.mark.parametrize("dtype,largest", [(rt.float16, 4096), (rt.bfloat16, 4096)])
def test_DTYPE_02_cumsum_of_halves_does_not_stall(device, dtype, largest):
    y = rt.cumsum(rt.ones((4096,), dtype=dtype, device=device))
    assert y.dtype == dtype and y[-1].item() == largest


def test_cumulative_dtypes(device):
    x = rt.tensor([200, 100], dtype=rt.uint8, device=device)
    assert rt.cumsum(x).tolist() == [200, 300] and rt.cumsum(x).dtype == rt.uint32
    assert rt.cumprod(x, dtype=rt.float64).dtype == rt.float64
    assert rt.cumulative_sum(rt.tensor([True, True], device=device), include_initial=True).tolist() == [0, 1, 2]


def test_the_axis_may_be_left_out_only_where_there_is_one():
    for scan in (rt.cumulative_sum, rt.cumulative_prod, rt.cumsum, rt.cumprod, rt.logcumsumexp):
        assert scan(rt.ones(3, device=CPU)).shape == (3,)
        with pytest.raises(ValueError, match="so say which"):
            scan(rt.ones((2, 3), device=CPU))
        with pytest.raises(ValueError, match="so say which"):
            scan(rt.tensor(1.0, device=CPU))
        with pytest.raises(IndexError, match="axis 2 is out of range"):
            scan(rt.ones((2, 3), device=CPU), axis=2)


def test_diff_joins_numbers_and_refuses_what_has_no_difference(device):
    x = rt.tensor([[1, 4, 9]], device=device)
    assert rt.diff(x, prepend=0, append=0).tolist() == [[1, 3, 5, -9]]
    assert rt.diff(x, n=0) is x
    assert rt.diff(x, n=5).shape == (1, 0)
    with pytest.raises(ValueError, match="n must be at least 0"):
        rt.diff(x, n=-1)
    with pytest.raises(TypeError, match="bools have no difference"):
        rt.diff(rt.tensor([True, False], device=device))


def test_scans_of_views_equal_scans_of_copies(device):
    x = rt.tensor(np.random.default_rng(0).standard_normal((6, 8)), device=device)[::-1, ::-2]
    for scan in (rt.cumsum, rt.cumprod, rt.logcumsumexp):
        assert np.array_equal(scan(x, axis=1).numpy(), scan(x.copy(), axis=1).numpy())


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16], ids=str)
def test_DTYPE_02_differences_of_differences_are_rounded_once(dtype, device):
    x = rt.tensor(np.random.default_rng(0).normal(size=(5, 20)), dtype=dtype, device=device)
    expected = rt.diff(x.astype(rt.float32), n=3).astype(dtype)
    assert rt.diff(x, n=3).dtype == dtype and rt.diff(x, n=3).tolist() == expected.tolist()
