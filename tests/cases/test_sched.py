"""Cases of learning-rate schedules: resuming, drift, milestones."""
from __future__ import annotations

import pytest

from ruda_optim import CosineAnnealingLrSchedulerConfig, ExponentialLrSchedulerConfig, StepLrSchedulerConfig


def test_SCHED_01_rebuilding_on_resume_makes_no_extra_step():
    config = ExponentialLrSchedulerConfig(0.1, 0.5)
    scheduler = config.init()
    for _ in range(3):
        scheduler.step()
    resumed = config.init()
    resumed.load_record(scheduler.to_record())
    assert resumed.peek() == resumed.peek() == 0.0125  # read before stepping
    assert resumed.step() == 0.0125 and resumed.peek() == 0.00625


def test_SCHED_02_the_cosine_is_a_closed_form():
    scheduler = CosineAnnealingLrSchedulerConfig(0.8, 4).init()
    expected = [0.8, 0.6828427, 0.4, 0.1171573, 0, 0.1171573, 0.4, 0.6828427, 0.8]
    assert [scheduler.step() for _ in range(9)] == pytest.approx(expected, abs=5e-8)
    config = CosineAnnealingLrSchedulerConfig(0.002, 100)
    straight = config.init()
    for _ in range(30):
        straight.step()
    resumed = config.init()
    resumed.load_record(straight.to_record())
    assert [resumed.step(), resumed.step()] == pytest.approx([0.0015877853, 0.0015620834], abs=5e-11)
    assert [straight.step(), straight.step()] == [config.value(30), config.value(31)]


@pytest.mark.parametrize("advanced", [False, True])
def test_SCHED_04_milestones_do_not_lag_after_a_resume(advanced):
    """The record holds how often the schedule was called, so it is right whether it is taken before or after a call."""
    config, log, record = StepLrSchedulerConfig(100.0, 4, 0.1), [], None
    scheduler = config.init()
    for epoch in range(7):
        if epoch == 2 and not advanced:
            record = scheduler.to_record()
        log.append(scheduler.step())
        if epoch == 2 and advanced:
            record = scheduler.to_record()
    resumed = config.init()
    assert record is not None
    resumed.load_record(record)
    again = log[: record["calls"]] + [resumed.step() for _ in range(record["calls"], 7)]
    assert again == log == pytest.approx([100, 100, 100, 100, 10, 10, 10])
