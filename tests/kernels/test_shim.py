"""The CUDA sources run on the CPU: every kernel against float64 at sizes that hypothesis chooses."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

from . import _cases as cases
from . import _special
from ._shim import ALL, COMPILER, on_shim

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to run the CUDA sources with")
SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.integers(1, 40)
SHIFTS = st.sampled_from([0, 0, 1, 3])
DTYPES = st.sampled_from(cases.DTYPES)
# One width of each plan: lanes to spare, tails, one and several vectors per thread, a whole block, rows read again.
WIDTHS = st.sampled_from([1, 3, 8, 32, 67, 128, 264, 1100])
FEW = settings(max_examples=12 if ALL else 3)  # each width and dtype compiles its kernels


@pytest.fixture(autouse=True)
def shim():
    with on_shim():
        yield


def module() -> cases.Poisoned:
    return cases.Poisoned(np)


@FEW
@given(DTYPES, ROWS, WIDTHS, SHIFTS, st.booleans(), st.sampled_from(["same", "real", "none"]), st.booleans(), SEEDS)
def test_norms(dtype, rows, n, shift, rms, weights, bias, seed):
    xp = module()
    cases.norm(xp, np.random.default_rng(seed), dtype, rows, n, rms=rms, weights=weights, bias=bias, shift=shift)
    xp.check()


@FEW
@given(st.tuples(st.booleans(), st.booleans(), st.booleans()), st.booleans(), SEEDS)
def test_norms_compute_only_what_is_asked_for(needs, rms, seed):
    xp = module()
    cases.norm(xp, np.random.default_rng(seed), FLOAT32, 9, 67, rms=rms, needs=needs)
    xp.check()


@FEW
@given(DTYPES, ROWS, WIDTHS, SHIFTS, st.booleans(), SEEDS)
def test_softmaxes(dtype, rows, n, shift, log, seed):
    xp = module()
    cases.softmaxes(xp, np.random.default_rng(seed), dtype, rows, n, log=log, shift=shift)
    xp.check()


@FEW
@given(
    DTYPES, ROWS, WIDTHS, SHIFTS, st.booleans(), st.sampled_from([0.0, 0.1]), st.booleans(),
    st.sampled_from(["mean", "sum", "none"]), st.booleans(), SEEDS,
)  # fmt: skip
def test_cross_entropy(dtype, rows, n, shift, weighted, smoothing, ignore, reduction, reuse, seed):
    xp, rng = module(), np.random.default_rng(seed)
    cases.entropy(
        xp, rng, dtype, rows, n, weighted=weighted, smoothing=smoothing, ignore=ignore, reduction=reduction,
        shift=shift, reuse=reuse,
    )  # fmt: skip
    xp.check()


@FEW
@given(DTYPES, st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"]), ROWS, st.integers(1, 70), SHIFTS, SEEDS)
def test_activations(dtype, kind, rows, n, shift, seed):
    xp = module()
    cases.activations(xp, np.random.default_rng(seed), dtype, kind, rows, n, shift=shift)
    xp.check()


@FEW
@given(
    DTYPES, st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"]), st.integers(1, 150), WIDTHS,
    st.sampled_from(["same", "real"]), st.tuples(st.booleans(), st.booleans()), SHIFTS, SEEDS,
)  # fmt: skip
def test_activations_with_a_bias(dtype, kind, rows, n, bias, needs, shift, seed):
    xp = module()
    cases.activations(xp, np.random.default_rng(seed), dtype, kind, rows, n, bias=bias, needs=needs, shift=shift)
    xp.check()


@FEW
@given(DTYPES, st.integers(1, 9000), st.tuples(st.booleans(), st.booleans()), SHIFTS, SEEDS)
def test_silu_mul(dtype, size, needs, shift, seed):
    xp = module()
    cases.gated(xp, np.random.default_rng(seed), dtype, size, needs=needs, shift=shift)
    xp.check()


@FEW
@given(
    DTYPES, st.integers(1, 9000), st.floats(0.01, 0.99), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), SHIFTS
)
def test_dropout_draws_the_mask_of_every_device(dtype, size, p, seed, offset, shift):
    xp = module()
    cases.dropped(xp, np.random.default_rng(0), dtype, size, p, seed, offset, shift=shift)
    xp.check()


@FEW
@given(DTYPES, st.integers(1, 300), WIDTHS, SHIFTS, SEEDS)
def test_column_sums(dtype, rows, n, shift, seed):
    xp = module()
    cases.summed(xp, np.random.default_rng(seed), dtype, rows, n, shift=shift)
    xp.check()


KINDS = st.sampled_from(["sum", "mean", "max", "min"])


@FEW
@given(DTYPES, KINDS, st.integers(1, 300), st.sampled_from([32, 67, 264]), SHIFTS, SEEDS)
def test_reductions_of_columns(dtype, kind, rows, n, shift, seed):
    xp = module()
    cases.reduced(xp, np.random.default_rng(seed), dtype, rows, n, kind, last=False, shift=shift)
    xp.check()


@FEW
@given(st.sampled_from([FLOAT16, BFLOAT16]), KINDS, st.sampled_from([32, 67, 264, 1100, 4096]), SHIFTS, SEEDS)
def test_reductions_of_rows(dtype, kind, n, shift, seed):
    xp = module()
    cases.reduced(xp, np.random.default_rng(seed), dtype, 257, n, kind, last=True, shift=shift)
    xp.check()


# Widths of GPT-2 and of a whole block, and a ragged one: a block of the shim's GPU takes several of so many rows.
@pytest.mark.parametrize(("dtype", "n"), [(BFLOAT16, 768), (BFLOAT16, 264), (FLOAT32, 128), (FLOAT16, 2048)], ids=str)
def test_norms_of_more_rows_than_are_held_at_once(dtype, n, rng):
    xp = module()
    for rms in (False, True):
        cases.norm(xp, rng, dtype, 150 if n < 2000 else 20, n, rms=rms)
    cases.residual(xp, rng, dtype, 150 if n < 2000 else 20, n)
    xp.check()


# The longest rows of each kind: kept by a block, and too long for it (the plans are in ruda_tensor/kernels/plans.py).
LONG = [(FLOAT32, 4104), (BFLOAT16, 33000), *([(FLOAT64, 1025), (BFLOAT16, 8200)] if ALL else [])]


@pytest.mark.parametrize(("dtype", "n"), LONG, ids=str)
def test_long_rows(dtype, n, rng):
    xp = module()
    cases.norm(xp, rng, dtype, 2, n)
    cases.softmaxes(xp, rng, dtype, 1, n, log=False)
    cases.softmaxes(xp, rng, dtype, 1, n, log=True)
    cases.entropy(xp, rng, dtype, 1, n, weighted=True, smoothing=0.1)
    xp.check()


@pytest.mark.parametrize("dtype", [FLOAT16, FLOAT32] if ALL else [FLOAT16], ids=str)
def test_threads_in_the_other_order_give_the_same_bits(dtype, monkeypatch):
    from ._shim import RUNTIME

    def results():
        rng, xp = np.random.default_rng(1), module()
        found = cases.norm(xp, rng, dtype, 40, 264) + cases.norm(xp, rng, dtype, 40, 1100)
        found += cases.softmaxes(xp, rng, dtype, 5, 1100, log=False) + cases.entropy(xp, rng, dtype, 9, 1100)
        found += cases.activations(xp, rng, dtype, "gelu", 40, 67, bias="same") + cases.summed(xp, rng, dtype, 300, 67)
        return [a.tobytes() for a in found if a is not None]

    before = results()
    monkeypatch.setattr(RUNTIME, "order", 1)
    assert results() == before


@pytest.mark.parametrize(("dtype", "n"), [(BFLOAT16, 264), (FLOAT32, 5000), *([(FLOAT32, 67)] if ALL else [])], ids=str)
def test_special_values(dtype, n, rng):
    xp = module()
    _special.check(xp, dtype, n, rng)
    xp.check()


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "silu"] if ALL else ["gelu"])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_activations_of_all_halves(dtype, kind):
    xp = module()
    cases.every_half(xp, dtype, kind)
    xp.check()
