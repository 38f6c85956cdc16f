"""Bits and truth values: every integer dtype, shifts past the width, errors."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt

INTEGERS = (rt.int8, rt.int16, rt.int32, rt.int64, rt.uint8, rt.uint16, rt.uint32, rt.uint64)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_operators_are_those_of_numpy(dtype, device):
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    a, b = (rng.integers(info.min, info.max, (5, 7), dtype=dtype, endpoint=True) for _ in range(2))
    x, y = rt.tensor(a, device=device), rt.tensor(b, device=device)
    for found, expected in (
        (x & y, a & b), (x | y, a | b), (x ^ y, a ^ b), (~x, ~a), (x & 7, a & 7), (7 | x, 7 | a), (x ^ 1, a ^ 1),
        (x << 3, a << 3), (x >> 3, a >> 3), (1 << (y & 3), 1 << (b & 3)),
    ):  # fmt: skip
        assert found.dtype == dtype and np.array_equal(found.numpy(), expected.astype(dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_shifts_by_the_width_or_more_lose_every_bit(dtype, device):
    width = rt.iinfo(dtype).bits
    values = np.array([1, 3, rt.iinfo(dtype).max, rt.iinfo(dtype).min], dtype)
    x = rt.tensor(values, device=device)
    for shift in (width - 1, width, min(width + 3, 127)):
        exact = [int(v) >> shift for v in values]
        assert (x >> shift).numpy().tolist() == exact
        left = [(int(v) << shift) % 2**width for v in values]
        assert [int(v) % 2**width for v in (x << shift).numpy()] == left


def test_bools_have_truth_but_no_shifts(device):
    x, y = (rt.tensor(v, device=device) for v in ([True, True, False, False], [True, False, True, False]))
    assert (x & y).numpy().tolist() == [True, False, False, False] and (x & y).dtype == rt.bool
    assert (x | y).numpy().tolist() == [True, True, True, False]
    assert (x ^ y).numpy().tolist() == [False, True, True, False]
    assert (~x).numpy().tolist() == [False, False, True, True]
    for f in (lambda: x << 1, lambda: rt.bitwise_right_shift(x, y)):
        with pytest.raises(TypeError, match="needs integers"):
            f()


def test_floats_have_no_bits_here(device):
    x = rt.ones(2, device=device)
    for f in (lambda: x & x, lambda: x | 1, lambda: ~x, lambda: x << 1):
        with pytest.raises(TypeError, match="needs integers.*float32.*astype"):
            f()
    with pytest.raises(ValueError, match="negative.*other way by 2"):
        rt.tensor([1], device=device) >> -2
    with pytest.raises(OverflowError, match="int8"):
        rt.tensor([1], dtype=rt.int8, device=device) & 300


def test_logical_functions_take_every_dtype(device):
    for dtype in (*INTEGERS, rt.bool, rt.float16, rt.bfloat16, rt.float32, rt.float64):
        x = rt.tensor([0, 1, 0, 1], dtype=dtype, device=device)
        y = rt.tensor([0, 0, 1, 1], dtype=dtype, device=device)
        assert rt.logical_and(x, y).numpy().tolist() == [False, False, False, True]
        assert rt.logical_or(x, y).numpy().tolist() == [False, True, True, True]
        assert rt.logical_xor(x, y).numpy().tolist() == [False, True, True, False]
        assert rt.logical_not(x).numpy().tolist() == [True, False, True, False]
        assert rt.logical_not(x).dtype == rt.bool
    assert rt.logical_and(rt.tensor([rt.nan, -0.0], device=device), True).numpy().tolist() == [True, False]
    assert not rt.logical_not(rt.ones(2, device=device).require_grad()).is_require_grad()


def test_empty_and_0d(device):
    for shape in ((0,), (2, 0), ()):
        x = rt.ones(shape, dtype=rt.int32, device=device)
        for y in (x & x, x << 1, x >> 1, ~x, rt.logical_not(x)):
            assert y.shape == shape and type(y) is rt.Tensor
