"""Reductions, statistics, norms and sets: edge cases, dtypes and errors beside the rows of tests/specs/reduce.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

# singular points


def test_GRAD_05_norm_of_zero_vectors(device):
    close(gradient(rt.norm, np.zeros(3), device), np.zeros(3))
    close(gradient(lambda x: rt.norm(x) ** 2, np.zeros(3), device), np.zeros(3))
    close(gradient(lambda x: rt.norm(x, axis=1), [[0, 0], [3, 4]], device), [[0, 0], [0.6, 0.8]])
    for order in (1, 1.5, 3, rt.inf):
        assert np.isfinite(gradient(lambda x, p=order: rt.norm(x, p), np.zeros(3), device)).all()


def test_GRAD_05_second_derivative_at_a_zero_vector_is_zero():
    x = rt.tensor(np.zeros(3), device=CPU).require_grad()
    with ra.record(order=2):
        g = x.grad(rt.norm(x).backward(order=2))
        assert g.is_require_grad()
        close(x.grad(rt.sum(g).backward()), np.zeros(3))


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("order", [2, 3])
def test_norm_neither_overflows_nor_vanishes(device, scale, order):
    x = np.array([3.0, 4.0, 0.0]) * scale
    length = (3.0**order + 4.0**order) ** (1 / order) * scale
    close(rt.norm(rt.tensor(x, dtype=rt.float32, device=device), order), length)
    close(gradient(lambda x: rt.norm(x, order), x, device), gradient(lambda x: rt.norm(x, order), x, CPU, rt.float64))


def test_norm_of_infinities_nothing_and_scalars(device):
    close(rt.norm(rt.tensor([rt.inf, 1e30, -1.0], device=device)), np.inf)
    assert np.isnan(rt.norm(rt.tensor([rt.nan, 1.0], device=device)).item())
    close(rt.norm(rt.zeros((0, 3), device=device), axis=0), np.zeros(3))
    close(rt.norm(rt.tensor(-2.0, device=device)), 2.0)
    close(gradient(rt.norm, -2.0, device), -1.0)


def test_a_norm_beyond_the_range_is_inf_without_a_warning(device):
    for order in (1.5, 2, 3):
        assert rt.norm(rt.tensor([3e38, 3e38], device=device), order).item() == rt.inf


def test_norm_refuses_orders_that_are_no_norm():
    for order in (0, 0.5, -1, "fro", True):
        with pytest.raises(ValueError, match="norm: ord must be"):
            rt.norm(rt.ones(2, device=CPU), order)


def test_GRAD_06_std_of_constants(device):
    close(gradient(rt.std, [2, 2, 2], device), np.zeros(3))
    close(gradient(rt.std, [7], device), [0])
    close(gradient(rt.std, [1, 2, 4], device), [-0.3563483, -0.0890871, 0.4454354])
    close(gradient(lambda x: rt.mean(rt.std(x, axis=0)), np.ones((4, 3)), device), np.zeros((4, 3)))


@given(value=st.floats(-1e6, 1e6, width=32), n=st.integers(1, 40))
def test_GRAD_06_std_of_any_constant_is_exactly_zero_with_zero_gradient(value, n):
    x = rt.full((n,), value, device=CPU).require_grad()
    y = rt.std(x)
    assert y.item() == 0.0
    assert not x.grad(y.backward()).numpy().any()


@pytest.mark.parametrize("shape", [(1,), (1, 1, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["var", "std"])
def test_GRAD_07_unbiased_variance_of_one_element(device, shape, keepdims, name):
    x = rt.ones(shape, device=device).require_grad()
    y = getattr(rt, name)(x, correction=1, keepdims=keepdims)
    g = x.grad(y.backward())
    assert np.isnan(y.item()) and np.isnan(g.numpy()).all() and g.shape == shape


def test_GRAD_07_no_degree_of_freedom_is_nan_not_inf():
    assert np.isnan(rt.var(rt.tensor([1.0, 5.0], device=CPU), correction=3).item())
    assert np.isnan(rt.var(rt.zeros((0,), device=CPU)).item())


def test_variance_survives_a_large_mean(device):
    x = 1e6 + np.arange(8, dtype=np.float32)
    close(rt.var(rt.tensor(x, device=device)), x.astype(np.float64).var())


def test_GRAD_20_normalize_and_cosine_similarity_at_zero(device):
    zero, other = [0.0, 0.0], [3.0, 4.0]
    y = rt.tensor(other, device=device)
    close(rt.cosine_similarity(rt.tensor(zero, device=device), rt.tensor(zero, device=device)), 0)
    close(rt.cosine_similarity(rt.tensor(zero, device=device), y), 0)
    close(rt.normalize(rt.tensor(zero, device=device), eps=1e-12), zero)
    close(rt.normalize(y), [0.6, 0.8])
    close(gradient(lambda x: rt.normalize(x, eps=1e-12), zero, device), [1e12, 1e12])
    for second in (zero, other):
        g = gradient(lambda x, s=second: rt.cosine_similarity(x, rt.tensor(s, device=device)), zero, device)
        h = gradient(lambda x, s=second: rt.cosine_similarity(rt.tensor(s, device=device), x), zero, device)
        assert np.isfinite(g).all() and np.isfinite(h).all()
    tiny = rt.tensor([1e-20, 0.0], device=device)
    assert np.isfinite(rt.cosine_similarity(tiny, tiny, eps=1e-30).item())


# ties and NaN


@pytest.mark.parametrize("name,sign", [("max", 1), ("min", -1)])
def test_TIE_02_ties_share_the_gradient(device, name, sign):
    x = sign * np.array([[1.0, 3, 3], [3, 3, 3]])
    reduce = getattr(rt, name)
    close(gradient(reduce, x, device), [[0, 0.2, 0.2], [0.2, 0.2, 0.2]])
    third = 1 / 3
    close(gradient(lambda x: reduce(x, axis=1), x, device), [[0, 0.5, 0.5], [third, third, third]])


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=20))
def test_TIE_02_shares_sum_to_one(values):
    for reduce in (rt.max, rt.min):
        g = gradient(reduce, values, dtype=rt.float64)
        close(g.sum(), 1.0)
        assert ((g > 0) == (np.asarray(values) == reduce(rt.tensor(values, device=CPU)).item())).all()


@pytest.mark.parametrize("name", ["max", "min"])
def test_TIE_06_nan_survives(device, name):
    x = [[rt.nan, -1.0, 2.0], [0.0, 1.0, 2.0]]
    reduce = getattr(rt, name)
    assert np.isnan(reduce(rt.tensor(x, device=device)).item())
    found = reduce(rt.tensor(x, device=device), axis=1).numpy()
    assert np.isnan(found[0]) and found[1] == (2.0 if name == "max" else 0.0)
    g = gradient(lambda x: reduce(x, axis=1), x, device)
    close(g, [[1, 0, 0], [0, 0, 1] if name == "max" else [1, 0, 0]])
    position = getattr(rt, "arg" + name)(rt.tensor(x, device=device), axis=1)
    close(position, [0, 2 if name == "max" else 0])


def test_argmax_takes_the_first_of_equals(device):
    x = rt.tensor([[1, 3, 3], [2, 2, 0]], device=device)
    close(rt.argmax(x, axis=1), [1, 0])
    close(rt.argmin(x, axis=0), [0, 1, 1])
    assert rt.argmax(x).item() == 1 and rt.argmax(x, keepdims=True).shape == (1, 1)
    assert rt.argmax(x).dtype == rt.int64
    assert rt.argmax(rt.tensor(4.0, device=device)).item() == 0


# empty


def test_SHAPE_08_extremes_of_empty_tensors(device):
    for reduce in (rt.max, rt.min):
        assert reduce(rt.zeros((0, 4), device=device), axis=1).shape == (0,)
        assert reduce(rt.zeros((2, 0), device=device), axis=0).shape == (0,)
        with pytest.raises(ValueError, match=r"axis 1 of the shape \(2, 0\) has no elements"):
            reduce(rt.zeros((2, 0), device=device), axis=1)
        with pytest.raises(ValueError, match="has no elements"):
            reduce(rt.zeros((0,), device=device))
        assert gradient(lambda x, r=reduce: r(x, axis=1), np.zeros((0, 4)), device).shape == (0, 4)
    for position in (rt.argmax, rt.argmin):
        assert position(rt.zeros((0, 4), device=device), axis=1).shape == (0,)
        with pytest.raises(ValueError, match="has no elements"):
            position(rt.zeros((2, 0), device=device), axis=-1)
    with pytest.raises(ValueError, match="has no elements"):
        rt.norm(rt.zeros((0,), device=device), rt.inf)


@pytest.mark.parametrize(
    "name,value",
    [("sum", 0.0), ("mean", np.nan), ("prod", 1.0), ("norm", 0.0), ("var", np.nan), ("std", np.nan)],
)
def test_SHAPE_08_reductions_of_nothing(device, name, value):
    reduce = getattr(rt, name)
    close(reduce(rt.zeros((0,), device=device)), value)
    close(reduce(rt.zeros((2, 0), device=device), axis=1), [value, value])
    assert reduce(rt.zeros((2, 0), device=device), axis=0).shape == (0,)
    assert gradient(reduce, np.zeros((0,)), device).shape == (0,)
    assert gradient(lambda x: reduce(x, axis=1), np.zeros((2, 0)), device).shape == (2, 0)


def test_truth_of_nothing_and_of_nan(device):
    nothing = rt.zeros((0,), device=device)
    assert rt.all(nothing).item() is True and rt.any(nothing).item() is False and rt.count_nonzero(nothing).item() == 0
    x = rt.tensor([rt.nan, -0.0], dtype=rt.bfloat16, device=device)
    assert rt.any(x).item() is True and rt.all(x).item() is False and rt.count_nonzero(x).item() == 1
    assert rt.all(x).dtype == rt.bool and rt.count_nonzero(x).dtype == rt.int64


# dtypes


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_DTYPE_01_mean_of_large_halves(device, dtype):
    y = rt.mean(rt.full((1000,), 120, dtype=dtype, device=device))
    assert y.dtype == dtype and y.item() == 120


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_DTYPE_02_sums_of_halves_do_not_stall(device, dtype):
    y = rt.sum(rt.ones((2500, 9), dtype=dtype, device=device), axis=0)
    assert y.dtype == dtype
    close(rt.astype(y, rt.float32), np.full(9, 2500.0), rtol=2e-3)
    bias = rt.zeros((9,), dtype=dtype, device=device).require_grad()
    g = bias.grad(rt.sum(bias + rt.ones((2500, 9), dtype=dtype, device=device)).backward())
    close(rt.astype(g, rt.float32), np.full(9, 2500.0), rtol=2e-3)


def test_DTYPE_08_integers_and_bools(device):
    assert rt.mean(rt.tensor([1, 2], device=device)).item() == 1.5
    assert rt.sum(rt.tensor([True, True, True], device=device)).item() == 3
    for dtype, wide in [
        ("bool", "int32"), ("int8", "int32"), ("int32", "int32"), ("int64", "int64"), ("uint8", "uint32"),
        ("uint64", "uint64"),
    ]:  # fmt: skip
        x = rt.ones((300,), dtype=getattr(rt, dtype), device=device)
        for y in (rt.sum(x), rt.prod(x), rt.cumsum(x)):
            assert y.dtype == getattr(rt, wide)
        assert rt.sum(x).item() == 300
        assert rt.mean(x).dtype == rt.std(x).dtype == rt.norm(x).dtype == rt.float32
    assert rt.max(rt.tensor([3, 7], dtype=rt.uint8, device=device)).dtype == rt.uint8
    assert rt.sum(rt.ones(3, device=device), dtype=rt.float64).dtype == rt.float64


@pytest.mark.parametrize(
    "shape,axis", [((100_000, 3), 0), ((3, 40_000, 5), 1), ((4096, 600), 0), ((70, 90, 8), (0, 1))]
)
def test_sums_over_leading_axes_are_accurate(shape, axis):
    x = np.random.default_rng(1).random(shape, dtype=np.float32)
    exact = x.sum(axis, dtype=np.float64)
    close(rt.sum(rt.tensor(x, device=CPU), axis=axis), exact, rtol=1e-6)
    close(rt.mean(rt.tensor(x, device=CPU), axis=axis), x.mean(axis, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("rows", [63, 64, 65, 80, 81, 99, 100])
@pytest.mark.parametrize("inner", [2, 511, 512])
def test_sums_of_any_number_of_rows(rows, inner):
    x = np.random.default_rng(rows).integers(-50, 50, (2, rows, inner)).astype(np.float64)
    assert np.array_equal(rt.sum(rt.tensor(x, device=CPU), axis=1).numpy(), x.sum(1))
    assert np.array_equal(rt.sum(rt.tensor(x, device=CPU), axis=1, keepdims=True).numpy(), x.sum(1, keepdims=True))


# products


def test_products_with_zeros_have_all_derivatives():
    x = rt.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0]], dtype=rt.float64, device=CPU).require_grad()
    with ra.record(order=2):
        g = x.grad(rt.sum(rt.prod(x, axis=1)).backward(order=2))
        close(g, [[0, 6, 0], [0, 0, 0]])
        h = x.grad(rt.sum(g * rt.tensor([[1.0, 0, 0], [1.0, 0, 0]], dtype=rt.float64, device=CPU)).backward())
    close(h, [[0, 3, 0], [0, 5, 0]])


# errors


def test_errors_name_the_operation_and_the_axis():
    x = rt.ones((2, 3), device=CPU)
    for name in ("sum", "mean", "prod", "max", "min", "all", "any", "var", "std", "argmax", "count_nonzero"):
        with pytest.raises(IndexError, match=f"{name}: axis 2 is out of range"):
            getattr(rt, name)(x, axis=2)
    with pytest.raises(ValueError, match="twice"):
        rt.sum(x, axis=(0, -2))
    with pytest.raises(TypeError, match="correction must be a number"):
        rt.var(x, correction=True)
    with pytest.raises(IndexError):
        rt.max(rt.tensor(1.0, device=CPU), axis=0)


# sets


def test_sets_follow_the_array_api_with_nans_and_zeros(device):
    strict = pytest.importorskip("array_api_strict")
    values = np.array([[2.0, np.nan, -0.0], [0.0, np.nan, 2.0]])
    found = rt.unique_all(rt.tensor(values, device=device))
    expected = strict.unique_all(strict.asarray(values))
    for name in ("values", "inverse_indices", "counts"):
        close(getattr(found, name), np.asarray(getattr(expected, name)))
    close(found.indices, [2, 0, 1, 4])
    for part in (found.indices, found.inverse_indices, found.counts):
        assert part.dtype == rt.int64


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float32"])
def test_unique_of_every_kind(device, dtype):
    x = rt.tensor(np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 6, (4, 5)), device=device)
    x = rt.astype(x, getattr(rt, dtype))
    found = rt.unique_all(x)
    assert found.values.dtype == x.dtype
    flat = rt.astype(x, rt.float64).numpy().reshape(-1)
    close(rt.astype(found.values, rt.float64).numpy()[found.inverse_indices.numpy()], flat.reshape(4, 5))
    close(rt.astype(found.values, rt.float64), flat[found.indices.numpy()])
    close(found.counts, np.unique(flat, return_counts=True)[1])


def test_sets_of_nothing_and_of_scalars(device):
    found = rt.unique_all(rt.zeros((0, 2), device=device))
    assert [part.shape for part in found] == [(0,), (0,), (0, 2), (0,)]
    assert rt.unique_inverse(rt.tensor(3.0, device=device)).inverse_indices.shape == ()
    assert [i.shape for i in rt.nonzero(rt.zeros((2, 0), device=device))] == [(0,), (0,)]
    with pytest.raises(ValueError, match="nonzero: a 0-d tensor"):
        rt.nonzero(rt.tensor(1.0, device=device))
    close(rt.nonzero(rt.tensor([0.0, rt.nan, -0.0, 1.0], dtype=rt.float16, device=device))[0], [1, 3])
