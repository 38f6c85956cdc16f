"""Parity between dtypes and devices, and between a batch and its rows."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import custom_gradient
from ruda_autodiff.testing import ParityMismatch, check_batch_consistency, check_parity

ALL = ["float64", "float32", "bfloat16", "float16"]


def t(values, dtype=rt.float64):
    return rt.tensor(values, dtype=dtype, device=rt.Cpu())


@pytest.fixture
def x(rng):
    return t(rng.standard_normal((4, 3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: rt.exp(x), lambda x: rt.softmax(x), lambda x: rt.var(x, axis=0), lambda x: rt.tanh(x @ x.mT),
        lambda x: rt.logsumexp(x, axis=1), lambda x: (rt.sort(x, axis=0), rt.argmax(x)), lambda x: rt.norm(x),
    ],
)  # fmt: skip
def test_operations_agree_in_every_dtype(f, x):
    report = check_parity(f, x, dtypes=ALL, devices=["cpu"])
    assert report.max_error <= 1.0 and len(report.compared) == 4


def test_an_error_beyond_rounding_is_caught(x):
    def f(x):
        return x * (1.0 if x.dtype == rt.float64 else 1.001)

    with pytest.raises(ParityMismatch, match=r"float32 on Cpu\(\): output\["):
        check_parity(f, x, dtypes=["float32"], devices=["cpu"])


def test_a_gradient_that_is_wrong_in_one_dtype_is_caught(x):
    @custom_gradient
    def f(x):
        return x * 2.0, lambda g: g * (2.0 if x.dtype == rt.float64 else 2.001)

    with pytest.raises(ParityMismatch, match="the gradient of x"):
        check_parity(f, x, dtypes=["float32"], devices=["cpu"])


def test_a_result_in_another_dtype_is_caught(x):
    with pytest.raises(ParityMismatch, match="dtype float64 though every floating input is float32"):
        check_parity(lambda x: x.astype(rt.float64), x, dtypes=["float32"], devices=["cpu"])


def test_cancellation_and_overflow_are_no_mismatch():
    check_parity(lambda x: (x + 1000.0) - 1000.0, t([0.1, 0.7]), dtypes=["float32"], devices=["cpu"])
    check_parity(lambda x: rt.exp(x), t([1.0, 50.0]), dtypes=["float16"], devices=["cpu"])


def test_integers_and_constants():
    check_parity(lambda x, ids: rt.take(x, ids, axis=0), t([1.0, 2.0, 3.0]), t([2, 0], rt.int32), dtypes=ALL, devices=["cpu"])
    check_parity(lambda ids: ids + 1, t([2, 0], rt.int32), devices=["cpu"])


def test_parity_arguments_are_checked(x):
    with pytest.raises(ValueError, match="floating dtypes"):
        check_parity(rt.exp, x, dtypes=["int32"])
    with pytest.raises(ValueError, match="devices"):
        check_parity(rt.exp, x, devices=[])


@pytest.mark.gpu
def test_cpu_against_gpu(x):
    report = check_parity(lambda x: rt.softmax(x @ x.mT), x, dtypes=ALL)
    assert len(report.compared) == 8


# batches
def test_rows_that_do_not_see_each_other_pass(x, rng):
    check_batch_consistency(lambda x: rt.softmax(x, axis=1), x)
    a, b = t(rng.standard_normal((3, 2, 4))), t(rng.standard_normal((3, 4, 2)))
    check_batch_consistency(lambda a, b: (a @ b, a.sum(axis=1)), a, b)
    check_batch_consistency(lambda x: x.mT * 2.0, x, axis=0, out_axis=1)
    check_batch_consistency(lambda x: x * 2.0, t(np.zeros((0, 3))))


def test_a_statistic_over_the_batch_is_caught(x):
    for f in (lambda x: x - rt.mean(x, axis=0), lambda x: rt.softmax(x, axis=0), lambda x: rt.flip(x, axis=0)):
        with pytest.raises(ParityMismatch, match="one at a time"):
            check_batch_consistency(f, x)


def test_a_gradient_across_rows_is_caught(x):
    @custom_gradient
    def f(x):
        return x * 2.0, lambda g: rt.flip(g, axis=0) * 2.0

    with pytest.raises(ParityMismatch, match="the gradient of x"):
        check_batch_consistency(f, x)


def test_batches_are_checked(x):
    with pytest.raises(ValueError, match="same number of rows"):
        check_batch_consistency(lambda x, y: x, x, t([1.0]))
    with pytest.raises(ValueError, match="without 4 rows"):
        check_batch_consistency(lambda x: rt.sum(x), x)
