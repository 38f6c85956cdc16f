"""Sorting and searching: order, ties, NaN, dtypes and errors beside the rows of tests/specs/sort.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf
DTYPES = ["bool", "int8", "uint8", "int32", "uint64", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16, rt.float32, rt.float64])
def test_nan_comes_last_both_ways(device, dtype):
    x = rt.tensor([1.0, nan, -inf, inf, nan, 0.0], dtype=dtype, device=device)
    for descending, expected in ((False, [-inf, 0, 1, inf, nan, nan]), (True, [inf, 1, 0, -inf, nan, nan])):
        found = rt.sort(x, descending=descending)
        assert found.dtype == dtype
        close(rt.astype(found, rt.float64), expected)
        close(rt.argsort(x, descending=descending)[-2:], [1, 4])
    close(rt.astype(rt.topk(x, 2).values, rt.float64), [inf, 1])
    close(rt.topk(x, 6, largest=False).indices, [2, 5, 0, 3, 1, 4])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("descending", [False, True])
def test_equal_elements_keep_their_order(device, dtype, descending):
    values = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 4, (3, 50))
    x = rt.astype(rt.tensor(values, device=device), getattr(rt, dtype))
    order = np.argsort(-values if descending else values, axis=1, kind="stable")
    found = rt.argsort(x, axis=1, descending=descending)
    assert found.dtype == rt.int64 and np.array_equal(found.numpy(), order)
    sorted_values = rt.sort(x, axis=1, descending=descending)
    assert sorted_values.dtype == x.dtype
    assert np.array_equal(rt.astype(sorted_values, rt.int64).numpy(), np.take_along_axis(values, order, 1))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_extreme_integers_sort_both_ways(device, dtype):
    info = np.iinfo(dtype)
    x = rt.tensor(np.array([0, info.max, info.min, 1], dtype), device=device)
    assert rt.sort(x).tolist() == sorted(x.tolist())
    assert rt.sort(x, descending=True).tolist() == sorted(x.tolist(), reverse=True)
    assert rt.argsort(x, descending=True)[0].item() == 1


def test_negative_zero_keeps_its_sign_and_place(device):
    x = rt.tensor([0.0, -0.0, 0.0], device=device)
    for descending in (False, True):
        assert np.signbit(rt.sort(x, descending=descending).numpy()).tolist() == [False, True, False]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.booleans())
def test_gradients_go_back_to_where_elements_came_from(values, descending):
    weight = np.arange(1.0, len(values) + 1)
    order = np.argsort(-np.asarray(values) if descending else values, kind="stable")
    expected = np.empty(len(values))
    expected[order] = weight
    w = rt.tensor(weight, device=CPU)
    close(gradient(lambda x: rt.sort(x, descending=descending) * w, values, dtype=rt.float64), expected)
    k = (len(values) + 1) // 2
    expected[order[k:]] = 0.0
    found = gradient(lambda x: rt.topk(x, k, largest=descending).values * w[:k], values, dtype=rt.float64)
    close(found, expected)


def test_sorting_nothing_and_along_every_axis(device):
    assert rt.sort(rt.zeros((2, 0), device=device)).shape == (2, 0)
    assert rt.argsort(rt.zeros((0, 2), device=device), axis=0).shape == (0, 2)
    assert rt.topk(rt.zeros((2, 3), device=device), 0).values.shape == (2, 0)
    assert gradient(lambda x: rt.topk(x, 0).values, np.ones((2, 3)), device).tolist() == [[0, 0, 0]] * 2
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for axis in range(-3, 3):
        assert np.array_equal(rt.sort(rt.tensor(x, device=device), axis=axis).numpy(), np.sort(x, axis))
        w = np.random.default_rng(1).standard_normal(x.shape)
        weight = rt.tensor(w, device=device)
        g = gradient(lambda t, a=axis, w=weight: rt.sort(t, axis=a) * w, x, device, rt.float64)
        close(np.take_along_axis(g, np.argsort(x, axis), axis), w)


def test_errors_of_sorting():
    x = rt.ones((2, 3), device=CPU)
    for name in ("sort", "argsort"):
        with pytest.raises(IndexError, match=f"{name}: axis 2"):
            getattr(rt, name)(x, axis=2)
        with pytest.raises(IndexError, match="0-d"):
            getattr(rt, name)(rt.tensor(1.0, device=CPU))
    for k in (4, -1):
        with pytest.raises(ValueError, match="k must be from 0 to 3, the size of axis 1"):
            rt.topk(x, k)
    with pytest.raises(TypeError, match="topk: k must be an integer, got 1.5"):
        rt.topk(x, 1.5)


def test_searchsorted_sides_dtypes_and_errors(device):
    x = rt.tensor([1, 3, 3, 7], device=device)
    for side in ("left", "right"):
        found = rt.searchsorted(x, rt.tensor([[0, 3], [8, 7]], device=device), side=side)
        assert found.dtype == rt.int64
        assert np.array_equal(found.numpy(), np.searchsorted([1, 3, 3, 7], [[0, 3], [8, 7]], side=side))
    assert rt.searchsorted(x, 2.5).item() == 1
    half = rt.astype(x, rt.bfloat16)
    assert rt.searchsorted(half, rt.tensor([3.0, nan], dtype=rt.bfloat16, device=device)).tolist() == [1, 4]
    assert rt.searchsorted(rt.zeros((0,), device=device), 1.0).item() == 0
    with pytest.raises(ValueError, match="x1 must have 1 axis"):
        rt.searchsorted(rt.ones((2, 2), device=device), 1.0)
    with pytest.raises(ValueError, match="side must be"):
        rt.searchsorted(x, 1, side="middle")
    with pytest.raises(ValueError, match="sorter must be"):
        rt.searchsorted(x, 1, sorter=rt.tensor([0, 1], device=device))
