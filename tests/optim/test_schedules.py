"""Step schedules: values, positions, records."""
from __future__ import annotations

import copy

import numpy as np
import pytest

from ruda_nn import RecordMismatch
from ruda_optim import SgdConfig, StepLrSchedulerConfig
from ruda_record import RecorderError

from ._helpers import give, point, rates


def test_golden_and_contract_33():
    got = rates(StepLrSchedulerConfig(1e-3, 100).with_gamma(0.5).init(), 201)
    assert got[:100] == [1e-3] * 100  # exactly the initial rate
    assert (got[100], got[199], got[200]) == (5e-4, 5e-4, 2.5e-4)
    assert StepLrSchedulerConfig(1.0, 1).gamma == 0.1
    assert rates(StepLrSchedulerConfig(1.0, 1).init(), 3) == pytest.approx([1.0, 0.1, 0.01])


def test_it_is_a_function_of_the_position_and_does_not_drift():
    scheduler = StepLrSchedulerConfig(0.3, 7, 0.9).init()
    assert rates(scheduler, 5000) == [0.3 * 0.9 ** (k // 7) for k in range(5000)]


def test_agrees_with_torch():
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    theirs, expected = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert rates(StepLrSchedulerConfig(0.5, 3, 0.5).init(), 12) == expected


@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_SCHED_01_rebuilding_on_resume_makes_no_extra_step(at):
    config = StepLrSchedulerConfig(0.1, 1, 0.5)
    scheduler, fresh = config.init(), config.init()
    rates(scheduler, at)
    fresh.load_record(scheduler.to_record())
    assert rates(fresh, 2) == rates(scheduler, 2) == [0.1 * 0.5**at, 0.1 * 0.5 ** (at + 1)]


@pytest.mark.parametrize("saved", ["before", "after"])
def test_SCHED_04_milestones_do_not_lag_after_a_resume(saved):
    """The rate is read once per epoch; saving before or after the reading is a matter of what was called, not of luck."""
    config, log = StepLrSchedulerConfig(100.0, 4, 0.1), []
    scheduler, record = config.init(), None
    for epoch in range(6):
        if saved == "before" and epoch == 2:
            record = scheduler.to_record()
        log.append(scheduler.step())
        if saved == "after" and epoch == 2:
            record = scheduler.to_record()
    resumed = config.init()
    resumed.load_record(record)
    first = 2 if saved == "before" else 3
    assert log == pytest.approx([100, 100, 100, 100, 10, 10]) and rates(resumed, 6 - first) == log[first:]


def test_a_rejected_record_changes_nothing():
    scheduler = StepLrSchedulerConfig(0.1, 3).init()
    rates(scheduler, 5)
    good = scheduler.to_record()
    for bad, kind, message in (
        (StepLrSchedulerConfig(0.1, 4).init().to_record(), RecordMismatch, r"step_size: 4 \| 3"),
        (StepLrSchedulerConfig(0.2, 3).init().to_record(), RecordMismatch, r"lr: 0\.2 \| 0\.1"),
        ({**good, "calls": -1}, RecorderError, "-1"),
        ({**good, "calls": 1.5}, RecorderError, "1.5"),
        ({**good, "calls": True}, RecorderError, "True"),
        ({"calls": 3}, RecorderError, "config"),
        (None, RecorderError, "not valid"),
    ):
        with pytest.raises(kind, match=message):
            scheduler.load_record(bad)
        assert scheduler.calls == 5
    scheduler.load_record(good)
    assert scheduler.calls == 5 and copy.deepcopy(scheduler).step() == scheduler.step()


def test_numpy_numbers_are_fine_and_give_python_floats():
    scheduler = StepLrSchedulerConfig(np.float64(0.1), np.int64(2)).init()
    assert type(scheduler.step()) is float and type(scheduler.to_record()["config"]["step_size"]) is int
    scheduler.load_record(StepLrSchedulerConfig(0.1, 2).init().to_record())


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (StepLrSchedulerConfig(float("nan"), 1), "lr"),
        (StepLrSchedulerConfig(-0.1, 1), "lr"),
        (StepLrSchedulerConfig("0.1", 1), "lr"),
        (StepLrSchedulerConfig(0.1, 0), "step_size"),
        (StepLrSchedulerConfig(0.1, 1.5), "step_size"),
        (StepLrSchedulerConfig(0.1, True), "step_size"),
        (StepLrSchedulerConfig(0.1, 1, 0.0), "gamma"),
        (StepLrSchedulerConfig(0.1, 1, float("inf")), "gamma"),
    ],
)
def test_wrong_settings_are_refused_at_init(config, field):
    with pytest.raises(ValueError, match=f"{field}=.*give"):
        config.init()


def test_a_rate_that_grows_past_every_float_is_infinite_and_refused_by_the_step():
    scheduler = StepLrSchedulerConfig(1.0, 1, 2.0).init()
    assert scheduler.value(1023) == 2.0**1023 and scheduler.value(1024) == scheduler.value(2**50) == float("inf")
    assert StepLrSchedulerConfig(0.0, 1, 2.0).init().value(2**50) == 0.0
    scheduler.calls = 5000
    model = point([1.0])
    with pytest.raises(ValueError, match="finite"):
        SgdConfig().init().step(scheduler.step(), model, give((model.x, [1.0])))
    with pytest.raises(TypeError, match=r"LrScheduler; step\(lr\.step\(\), model"):
        SgdConfig().init().step(scheduler, model, give((model.x, [1.0])))  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [-1, 1.5, "1", True])
def test_calls_are_counted_from_zero(k):
    with pytest.raises(ValueError, match=r"scheduler\.value\(0\)"):
        StepLrSchedulerConfig(1.0, 1).init().value(k)
