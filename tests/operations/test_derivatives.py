"""Every row's derivative against finite differences, to second order, on seeded and on searched inputs."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_autodiff.testing import check_adjoint, check_gradients

from ._rows import ROWS, arrays_of, each, gradients_of, is_float, results, tensors

DIFFERENTIABLE = [row for row in ROWS if row.order >= 1]


@each(DIFFERENTIABLE)
def test_first_order(row):
    check_gradients(row.call, *tensors(arrays_of(row)), order=1)


@each([row for row in ROWS if row.order >= 2])
def test_second_order(row):
    check_gradients(row.call, *tensors(arrays_of(row)), order=2)


@each([row for row in ROWS if row.linear])
def test_adjoint(row):
    check_adjoint(row.call, *tensors(arrays_of(row)))


@settings(max_examples=5)
@given(seed=st.integers(1, 2**32 - 1))
@each(DIFFERENTIABLE)
def test_first_order_on_other_inputs(row, seed):
    check_gradients(row.call, *tensors(arrays_of(row, seed)), order=1, full=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@each(DIFFERENTIABLE)
def test_TAPE_12_every_floating_input_gets_a_gradient_of_its_shape_and_dtype(row, dtype):
    if dtype != "float32" and not row.half:
        pytest.skip("the row is not for half types")
    inputs = tensors(arrays_of(row), dtype=getattr(rt, dtype))
    for x, g in zip(inputs, gradients_of(row, inputs), strict=True):
        if x.dtype == getattr(rt, dtype):
            assert g is not None and g.shape == x.shape and g.dtype == x.dtype


@each(DIFFERENTIABLE)
def test_float32_gradients_agree_with_float64(row):
    arrays = [a.astype(np.float32).astype(a.dtype) if is_float(a) else a for a in arrays_of(row)]
    wide = gradients_of(row, tensors(arrays))
    narrow = gradients_of(row, tensors(arrays, dtype=rt.float32))
    for w, n in zip(wide, narrow, strict=True):
        if w is not None and n is not None:
            scale = max(1.0, float(np.abs(w.numpy()).max(initial=0.0)))  # cotangents are about 1
            np.testing.assert_allclose(n.numpy(), w.numpy(), rtol=2e-4, atol=2e-6 * scale)


@each([row for row in ROWS if row.order == 0])
def test_what_has_no_derivative_is_constant_to_the_tape(row):
    inputs = [x.require_grad() if x.dtype in (rt.float32, rt.float64) else x for x in tensors(arrays_of(row))]
    for y in results(row.call(*inputs)):
        if y.is_require_grad():
            assert not any(g.numpy().any() for g in rt.sum(y).backward())
