"""The optimizer kernels run on the CPU: the bits of the plain rules, and the gradients' norm in any range."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ruda_tensor.kernels import optimizer

from . import _optimizers as cases
from ._cases import Poisoned
from ._shim import ALL, COMPILER, on_shim

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ to run the CUDA sources with")


@pytest.fixture(autouse=True)
def shim():
    with on_shim():
        yield


# Other rules and layouts run in test_together.py, through the optimizers.
PAIRS = [(name, layout) for name in cases.RULES for layout in cases.LAYOUTS if ALL or (name == "adamw" and layout[0] != FLOAT32)]


@pytest.mark.parametrize(("name", "layout"), PAIRS, ids=lambda a: a if isinstance(a, str) else f"{a[0]}-{a[1]}-{a[2]}")
def test_updates_have_the_bits_of_the_plain_rule(name, layout, rng):
    xp = Poisoned(np)
    cases.steps(xp, rng, name, layout, [5, 2049, 1, 700])
    xp.check()


@settings(max_examples=15 if ALL else 5)
@given(st.sampled_from(cases.LAYOUTS), st.lists(st.integers(0, 5000), min_size=1, max_size=20), st.integers(0, 3))
def test_any_number_of_parameters_of_any_size(layout, sizes, shift):
    xp = Poisoned(np)
    cases.steps(xp, np.random.default_rng(len(sizes)), "adamw", layout, sizes, shift=shift)
    xp.check()


def test_more_parameters_than_a_table_holds(rng, monkeypatch):
    monkeypatch.setattr(optimizer, "BUCKETS", (8,))
    cases.steps(Poisoned(np), rng, "adamw", cases.LAYOUTS[0], [3] * 19)


def entry(values: list[float]) -> optimizer.Entry:
    g = np.array(values, np.float32)
    return optimizer.Entry(np.ones_like(g), g, None, [])


def test_the_report_clips_or_skips_the_update():
    shape, numbers = optimizer.Shape("sgd"), optimizer.Numbers(1.0)
    pair = [entry([3.0]), entry([4.0, 0.0])]
    report = optimizer.gradient_report(np, [e.g for e in pair])
    optimizer.update(np, shape, numbers, pair, report=report, max_norm=1.0)
    clip = np.float32(1 / (5 + 1e-6))
    assert pair[0].p[0] == 1 - 3 * clip and pair[1].p.tolist() == [1 - 4 * clip, 1]
    optimizer.update(np, shape, numbers, pair, report=report, max_norm=10.0)
    assert pair[0].p[0] == 1 - 3 * clip - 3
    bad = [entry([np.nan]), entry([1.0])]
    report = optimizer.gradient_report(np, [e.g for e in bad])
    optimizer.update(np, shape, numbers, bad, report=report)
    assert [e.p[0] for e in bad] == [1, 1]


def test_a_clip_to_norm_0_still_decays():
    one = optimizer.Entry(np.ones(3, np.float32), np.ones(3, np.float32), None, [np.zeros(3, np.float32)] * 2)
    numbers = optimizer.adam_numbers(0.1, 1, (0.9, 0.999), 1e-8, 0.5, True)
    report = optimizer.gradient_report(np, [one.g])
    optimizer.update(np, optimizer.Shape("adamw"), numbers, [one], report=report, max_norm=0.0)
    assert one.p.tolist() == [np.float32(0.95)] * 3


def test_numbers_in_device_memory_replace_those_of_the_call():
    one = entry([2.0])
    numbers = np.array([0.5, 0, 1, 0, 1, 4], np.float32)  # rate 0.5, gradients divided by 4
    optimizer.update(np, optimizer.Shape("sgd"), optimizer.Numbers(9.0), [one], device_numbers=numbers)
    assert one.p[0] == 1 - 0.5 * 0.5


@settings(max_examples=25 if ALL else 8)
@given(
    st.lists(st.integers(0, 40_000 if ALL else 4_000), min_size=1, max_size=12), st.sampled_from([FLOAT32, FLOAT16, BFLOAT16]),
    st.sampled_from([1.0, 1e30, 1e-30, 3e38, 1e-37]), st.integers(0, 3), st.integers(0, 2**32),
)  # fmt: skip
def test_the_norm_neither_overflows_nor_underflows(sizes, dtype, scale, shift, seed):
    rng = np.random.default_rng(seed)
    scale = 1.0 if dtype == FLOAT16 else scale
    gradients = [(rng.uniform(-1, 1, n) * scale).astype(dtype) for n in sizes]
    cases.report(Poisoned(np), gradients, shift=shift)


@pytest.mark.parametrize(("value", "place"), [(np.inf, 0), (-np.inf, 31), (np.nan, 39_999), (np.nan, 40_000), (np.inf, 42_999)])
def test_one_bad_number_is_seen_wherever_it_is(value, place, rng):
    gradients = [rng.standard_normal(40_000).astype(np.float32), rng.standard_normal(3_000).astype(np.float32)]
    gradients[place // 40_000][place % 40_000] = value
    assert cases.report(Poisoned(np), gradients)[0] == 1


def test_what_overflows_when_unscaled_is_bad():
    largest = np.array([np.finfo(np.float32).max], np.float32)
    assert cases.report(np, [largest])[0] == 0
    assert cases.report(np, [largest], unscale=0.5)[0] == 1
    assert cases.report(np, [np.zeros(7, np.float32)]).tolist() == [0, 0, 0]


def test_the_hierarchy_has_a_fan_in_of_1024():
    assert [optimizer.statistics_rows(n) for n in (1, 65536, 65537, 10**8)] == [1, 1, 2, 1024]
    assert optimizer.statistics_plan(1024) == [] and optimizer.statistics_plan(1025) == [2]
    assert 12 * sum(optimizer.statistics_plan(4096 * 1024)) == 49_200


def test_what_the_kernel_cannot_update_is_declined():
    p = np.ones((4, 4), np.float32)
    assert cases.accepts(np, optimizer.Entry(p, p, None, []))
    assert not cases.accepts(np, optimizer.Entry(p.T, p, None, []))
    assert not cases.accepts(np, optimizer.Entry(p, p.astype(np.float64), None, []))
    assert not cases.accepts(np, optimizer.Entry(p.astype(np.int32), p, None, []))

