"""Statistics over all gradients: norms against float64, merging in stages, reports that cannot be."""
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_optim import GradScaler, MuonAdamWConfig, StatisticsPlan, statistics_plan
from ruda_optim.gradient_stats import GradientStats, gradient_report, measure, read_report, rows_of, scaled_gradients

from ._helpers import Pair, give, param


def test_contract_65_the_plan():
    assert [statistics_plan(n) for n in (0, 1, 1024)] == [StatisticsPlan((), 0)] * 3
    assert statistics_plan(1025) == StatisticsPlan((2,), 24)
    assert statistics_plan(1024 * 1024) == StatisticsPlan((1024,), 12_288)
    assert statistics_plan(1024 * 1024 + 1) == StatisticsPlan((1025, 2), 12_324)
    assert statistics_plan(4096 * 1024) == StatisticsPlan((4096, 4), 49_200)
    for wrong in (-1, 1.5, True, "7", None):
        with pytest.raises(ValueError, match="rows="):
            statistics_plan(wrong)


def test_rows_of_a_tensor():
    assert [rows_of(n) for n in (1, 32, 33, 64, 65, 32_767, 32_768, 10**9)] == [1, 1, 2, 2, 3, 1024, 1024, 1024]


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 65, 1025, 32_769, 100_003, 3_000_017])
@pytest.mark.parametrize("dtype", [rt.float32, rt.float16, rt.bfloat16])
def test_the_norm_of_every_size(device, n, dtype, rng):
    g = rt.tensor(rng.standard_normal(n) * 0.1, dtype=dtype, device=device)
    wide = g.numpy().astype(float)
    stats = measure([g], 0.5)
    assert stats.all_finite and stats.norm == pytest.approx(0.5 * math.sqrt((wide**2).sum()), rel=3e-7)


@pytest.mark.parametrize("place", [0, 16, 17, 40_000, 99_999, 100_002])
@pytest.mark.parametrize("hierarchical", [False, True])
def test_a_bad_number_is_found_wherever_it_is(device, place, hierarchical):
    g = np.ones(100_003, np.float32)
    g[place] = np.nan
    many = [rt.tensor(x, device=device) for x in (np.ones(70_000, np.float32), g, np.ones(3, np.float32))]
    assert measure(many, hierarchical=hierarchical) == GradientStats(False, None)
    assert not measure(many, norm=False).all_finite
    report = rt.backend.to_host(gradient_report(device.xp, [x._data for x in many]))
    assert report[0] == 1.0 and np.isfinite(report).all()


def test_stages_change_the_order_and_not_the_decision(device, rng):
    sizes = [70_000, 80_001, 7, 99_999]  # 1024 rows three times, and one
    tensors = [rt.tensor(rng.standard_normal(n), dtype=rt.float32, device=device) for n in sizes]
    assert len(statistics_plan(sum(map(rows_of, sizes))).stages) == 1
    flat, staged = measure(tensors), measure(tensors, hierarchical=True)
    assert staged.norm == pytest.approx(flat.norm, rel=1e-6) and staged.all_finite
    small = tensors[2:3]
    assert measure(small) == measure(small, hierarchical=True)  # no stage at all: the same bits


def test_small_gradients_end_to_end_and_in_several_pieces(device, rng):
    arrays = [rng.standard_normal(n).astype(t) for n, t in [(60_001, "f4"), (9, "f2"), (0, "f4"), (65_536, "f4")] * 12]
    tensors = [rt.tensor(a, device=device) for a in arrays]
    expected = math.sqrt(sum(float((a.astype(float) ** 2).sum()) for a in arrays))
    assert measure(tensors).norm == pytest.approx(expected, rel=3e-7)
    for place in (0, 1, 25, 45, 47):
        if arrays[place].size:
            poor = arrays[place].copy()
            poor[-1] = -np.inf
            bad = [*tensors[:place], rt.tensor(poor, device=device), *tensors[place + 1 :]]
            assert measure(bad) == GradientStats(False, None)


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(FINITE, max_size=80), max_size=4), st.booleans())
def test_any_finite_gradients(values, hierarchical):
    stats = measure([rt.tensor(v, dtype=rt.float32, device=rt.Cpu()) for v in values], hierarchical=hierarchical)
    numbers = [x for v in values for x in v]
    top = max(map(abs, numbers), default=0.0)
    expected = top * math.sqrt(math.fsum((x / top) ** 2 for x in numbers)) if top else 0.0
    assert stats.all_finite and stats.norm == pytest.approx(expected, rel=1e-6, abs=0.0)
    assert (stats.norm == 0.0) == (top == 0.0)


def test_gradients_are_not_written_to_whatever_their_layout(device):
    base = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for view in (base.T, base[:, ::2], base[::-1]):
        g = rt.tensor(base, device=device)
        x = rt.Tensor._wrap(g._data.T if view is base.T else g._data[:, ::2] if view.shape == (3, 2) else g._data[::-1], device)
        assert measure([x], 2.0).norm == pytest.approx(2.0 * math.sqrt((view.astype(float) ** 2).sum()), rel=1e-6)
        assert g.numpy().tobytes() == base.tobytes()


@pytest.mark.parametrize(
    "report",
    [[2.0, 1.0, 1.0], [0.5, 1.0, 1.0], [np.nan, 1.0, 1.0], [0.0, -1.0, 1.0], [0.0, np.inf, 1.0], [0.0, 1.0, np.nan],
     [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]],
)  # fmt: skip
def test_reports_that_no_gradients_can_have(report):
    with pytest.raises(RuntimeError, match="cannot be right"):
        read_report(np.array(report, np.float32))


def test_reports_that_can_be():
    assert read_report(np.array([0, 3, 4], np.float32)) == GradientStats(True, 6.0)
    assert read_report(np.array([0, 0, 0], np.float32)) == GradientStats(True, 0.0)
    assert read_report(np.array([1, 3, 4], np.float32)) == GradientStats(False, None)
    assert read_report(np.array([0, 3, 0], np.float32), norm=False) == GradientStats(True, None)
    assert measure([]) == GradientStats(True, 0.0) and measure([], norm=False).norm is None


def test_the_clipping_factor():
    assert GradientStats(True, 5.0).clip(1.0) == float(np.float32(1 / (5 + 1e-6)))
    assert GradientStats(True, 5.0).clip(1.0, 0.0) == float(np.float32(0.2))
    assert GradientStats(True, 0.5).clip(1.0) == GradientStats(True, 0.0).clip(0.5) == GradientStats(True, 5.0).clip(None) == 1.0
    assert GradientStats(True, 0.0).clip(0.0, 0.0) == 1.0 and GradientStats(True, 5.0).clip(0.0) == 0.0
    assert 0.0 < GradientStats(True, 1e35).clip(1.0) < 1e-34


def test_scaling_keeps_ids_and_leaves_ones_alone(device):
    model = Pair(param([1.0], rt.float16, device), param([2.0], rt.float64, device))
    gradients = give((model.a, [1e-7]), (model.b, [3.0]))
    assert scaled_gradients(gradients, model, 1.0) is gradients
    out = scaled_gradients(gradients, model, 0.5, 1.0, 0.25)
    assert out[model.a].dtype == rt.float32 and out[model.b].dtype == rt.float64
    assert out[model.b].item() == 0.375 and out[model.a].item() == float(np.float16(1e-7)) / 8


@pytest.mark.parametrize("size", [1e100, 1.0, 1e-100, 1e306])
def test_float64_is_measured_in_float64(size, device):
    wide = [rt.tensor(np.full(n, size), dtype=rt.float64, device=device) for n in (3, 5000)]
    stats = measure([*wide, rt.tensor([1.0], dtype=rt.float32, device=device)], 0.5)
    assert stats.all_finite and stats.norm == pytest.approx(0.5 * math.hypot(size * math.sqrt(5003.0), 1.0), rel=1e-12)
    for bad in (float("nan"), float("-inf")):
        assert measure([*wide, rt.tensor([bad], dtype=rt.float64, device=device)], norm=False) == GradientStats(False, None)
    model = Pair(param(np.ones((2, 2)), rt.float64, device), param([1.0], rt.float64, device))
    optimizer, scaler = MuonAdamWConfig(max_grad_norm=1.0).init(model, [model.a]), GradScaler(2.0)
    scaler.scale(rt.tensor(1.0, dtype=rt.float32, device=device))
    scaler.step(optimizer, 0.1, model, give((model.a, np.full((2, 2), size)), (model.b, [size])))
    assert not scaler.last_step_skipped and optimizer.last_grad_norm == pytest.approx(0.5 * size * math.sqrt(5.0), rel=1e-12)
