"""Every row's forward against its NumPy or SciPy reference, in every float type and memory layout."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt

from ._rows import ROWS, arrays_of, as_arrays, each, is_float, results, tensors

REFERENCED = [row for row in ROWS if row.reference is not None]


def compare(row, arrays, dtype, rtol, atol):
    found = results(row.call(*tensors(arrays, dtype=dtype)))
    expected = as_arrays(row.reference(*arrays))
    assert len(found) == len(expected)
    for y, e in zip(found, expected, strict=True):
        assert y.shape == e.shape
        y = y.astype(rt.float64).numpy() if y.dtype in (rt.bfloat16, rt.float16) else y.numpy()
        np.testing.assert_allclose(y, e, rtol=rtol, atol=atol)


@each(REFERENCED)
def test_float64(row):
    compare(row, arrays_of(row), rt.float64, 1e-10, 1e-11)


@each(REFERENCED)
def test_float32(row):
    arrays = [a.astype(np.float32).astype(a.dtype) if is_float(a) else a for a in arrays_of(row)]
    compare(row, arrays, rt.float32, 2e-5, 2e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@each([row for row in REFERENCED if row.half])
def test_half_types_compute_in_float32_and_round_once(row, dtype):
    half = getattr(rt, dtype)
    rounded = [rt.tensor(a, dtype=half, device=rt.Cpu()).astype(rt.float64).numpy() if is_float(a) else a for a in arrays_of(row)]
    eps = 2.0**-10 if dtype == "float16" else 2.0**-7
    compare(row, rounded, half, 2 * eps, 2 * eps)


@each(ROWS)
def test_results_keep_the_float_type_of_their_inputs(row):
    arrays = arrays_of(row)
    if not any(is_float(a) for a in arrays):
        pytest.skip("no floating input")
    for dtype in (rt.float32, rt.float64):
        for y in results(row.call(*tensors(arrays, dtype=dtype))):
            assert y.dtype in (dtype, rt.bool, rt.int64, rt.int32), f"{y.dtype} from {dtype}"
            assert isinstance(y._data, np.ndarray)


def reversed_view(a: np.ndarray) -> np.ndarray:
    """The same values behind negative and non-unit strides."""
    wide = np.repeat(a[tuple(slice(None, None, -1) for _ in a.shape)], 2, axis=-1) if a.ndim else a
    return wide[tuple(slice(None, None, -1) for _ in range(a.ndim - 1)) + (slice(None, None, -2),)] if a.ndim else a


@each(ROWS)
def test_SHAPE_09_strided_views_give_the_same_values_and_stay_unchanged(row):
    arrays = arrays_of(row)
    copies = tensors(arrays)
    views = [rt.Tensor._wrap(reversed_view(a), rt.Cpu()) for a in arrays]
    for view, a in zip(views, arrays, strict=True):
        assert np.array_equal(view.numpy(), a)
    rt.random.seed(0)
    expected = results(row.call(*copies))
    rt.random.seed(0)
    found = results(row.call(*views))
    for y, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(y.numpy(), e.numpy(), rtol=1e-13, atol=1e-14)
    for view, a in zip(views, arrays, strict=True):
        assert np.array_equal(view.numpy(), a)
