"""Schedules that fall, rise, and combine others: values, positions, records."""
from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest

from ruda_nn import RecordMismatch
from ruda_optim import (
    ComposedLrSchedulerConfig,
    ConstantLrSchedulerConfig,
    CosineAnnealingLrSchedulerConfig,
    ExponentialLrSchedulerConfig,
    LinearLrSchedulerConfig,
    LrScheduler,
    LrSchedulerConfig,
    NoamLrSchedulerConfig,
    StepLrSchedulerConfig,
    WarmupLrSchedulerConfig,
)
from ruda_record import BinFileRecorder, RecorderError

from ._helpers import rates

LINEAR = LinearLrSchedulerConfig(0.5, 0.1, 4)
COSINE = CosineAnnealingLrSchedulerConfig(0.5, 4, min_lr=0.1)
EXPONENTIAL = ExponentialLrSchedulerConfig(0.5, 0.9)
NOAM = NoamLrSchedulerConfig(1.0, warmup_steps=3, model_size=16)
ALL = {
    "constant": ConstantLrSchedulerConfig(0.25),
    "step": StepLrSchedulerConfig(0.5, 3, 0.5),
    "linear": LINEAR,
    "cosine": COSINE,
    "cosine restart": COSINE.with_past_end("restart"),
    "cosine hold": COSINE.with_past_end("hold"),
    "exponential": EXPONENTIAL,
    "noam": NOAM,
    "warm-up": COSINE.with_warmup(3),
    "composed": ComposedLrSchedulerConfig((LINEAR, EXPONENTIAL), "avg"),
    "nested": ComposedLrSchedulerConfig((LINEAR, ComposedLrSchedulerConfig((NOAM, COSINE), "sum"))).with_warmup(2),
}


def values(config, count):
    return rates(config.init(), count)


def test_constant():
    assert values(ConstantLrSchedulerConfig(3), 3) == [3.0] * 3 and type(ConstantLrSchedulerConfig(3).init().step()) is float


def test_contract_35_linear_is_exact_at_both_ends_and_holds():
    assert values(LINEAR, 7) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], rel=1e-15)
    for n in (1, 3, 7, 1000):
        scheduler = LinearLrSchedulerConfig(0.3, 0.7, n).init()  # it may rise
        assert scheduler.value(0) == 0.3 and {scheduler.value(k) for k in (n, n + 1, 10**9)} == {0.7}


def test_contract_35_noam_begins_at_one():
    scheduler = NoamLrSchedulerConfig(1.0).init()
    assert scheduler.peek() == pytest.approx(1.7469281e-7, rel=1e-7)
    assert [scheduler.value(s - 1) for s in (4000, 8000)] == pytest.approx([6.9877124e-4, 4.9410588e-4], rel=1e-7)
    assert max(range(30), key=NoamLrSchedulerConfig(2.0, 10, 64).value) == 9


def test_cosine_golden_and_contract_34_restarting():
    golden = [0.5, 0.441421356, 0.3, 0.158578644, 0.1, 0.5, 0.441421356]
    assert values(COSINE.with_past_end("restart"), 7) == pytest.approx(golden, abs=1e-9)
    period = values(COSINE.with_past_end("restart"), 15)
    assert period.count(0.1) == 3 and period[:5] == period[5:10] == period[10:]


def test_cosine_mirrors_or_holds():
    mirrored = values(COSINE, 17)
    assert mirrored[:9] == mirrored[8::-1] and mirrored[:9] == mirrored[8:]  # back the same way, again and again
    assert mirrored[0] == mirrored[8] == 0.5 and mirrored[4] == mirrored[12] == 0.1
    assert values(COSINE.with_past_end("hold"), 9) == mirrored[:5] + [0.1] * 4
    one = CosineAnnealingLrSchedulerConfig(1.0, 1).init()
    assert rates(one, 4) == [1.0, 0.0, 1.0, 0.0]


def test_far_from_the_start_nothing_is_lost():
    cosine, far = CosineAnnealingLrSchedulerConfig(0.3, 7).init(), 14 * 10**14
    assert [cosine.value(far + k) for k in range(14)] == [cosine.value(k) for k in range(14)]
    assert StepLrSchedulerConfig(1.0, 10**15, 0.5).init().value(10**15) == 0.5


def test_composed_reductions():
    a, b = values(LINEAR, 6), values(EXPONENTIAL, 6)
    for reduction, combine in (("product", lambda x, y: x * y), ("sum", lambda x, y: x + y), ("avg", lambda x, y: (x + y) / 2)):
        got = values(ComposedLrSchedulerConfig((LINEAR, EXPONENTIAL)).with_reduction(reduction), 6)
        assert got == pytest.approx([combine(x, y) for x, y in zip(a, b)], rel=1e-15)
    assert [values(ComposedLrSchedulerConfig(reduction=r), 1) for r in ("product", "sum", "avg")] == [[1.0], [0.0], [0.0]]
    assert ComposedLrSchedulerConfig().reduction == "product"
    assert ComposedLrSchedulerConfig((LINEAR,)).with_schedule(NOAM) == ComposedLrSchedulerConfig((LINEAR, NOAM))


def test_warm_up_rises_to_the_peak_once():
    scheduler = COSINE.with_warmup(4).init()
    assert rates(scheduler, 10) == pytest.approx([0.1, 0.2, 0.3, 0.4, *values(COSINE, 6)], rel=1e-15)
    assert values(COSINE.with_warmup(0), 5) == values(COSINE, 5)
    assert COSINE.with_warmup(3) == WarmupLrSchedulerConfig(3, COSINE)


def torch_rates(make, count, lr):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    theirs, out = make(torch.optim.lr_scheduler, optimizer), []
    for _ in range(count):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    return out


@pytest.mark.parametrize(
    ("config", "make"),
    [
        (CosineAnnealingLrSchedulerConfig(0.5, 6, 0.1), lambda t, o: t.CosineAnnealingLR(o, 6, 0.1)),
        (ExponentialLrSchedulerConfig(0.5, 0.8), lambda t, o: t.ExponentialLR(o, 0.8)),
        (LinearLrSchedulerConfig(0.5, 0.05, 7), lambda t, o: t.LinearLR(o, 1.0, 0.1, 7)),
        (ConstantLrSchedulerConfig(0.5), lambda t, o: t.ConstantLR(o, 1.0, 3)),
        (
            LinearLrSchedulerConfig(0.5, 0.05, 5).with_warmup(4),
            lambda t, o: t.SequentialLR(o, [t.LinearLR(o, 0.2, 1.0, 4), t.LinearLR(o, 1.0, 0.1, 5)], [4]),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's SequentialLR uses what torch's schedulers deprecate
def test_agrees_with_torch(config, make):
    expected = torch_rates(make, 25, 0.5)
    assert values(config, 25) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ALL)
def test_a_schedule_is_a_function_of_the_position(name):
    config = ALL[name]
    scheduler, straight = config.init(), values(config, 30)
    assert scheduler.last is None and straight == [config.value(k) for k in range(30)]
    for k in range(30):
        assert scheduler.peek() == scheduler.peek() == straight[k]  # reading makes no step
        assert scheduler.step() == straight[k] == scheduler.last
    assert all(math.isfinite(x) and x >= 0.0 for x in straight)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("at", [0, 1, 5, 12])
def test_it_resumes_from_a_record_at_any_position(name, at, tmp_path):
    config, recorder = ALL[name], BinFileRecorder()
    scheduler, resumed = config.init(), config.init()
    rates(scheduler, at)
    resumed.load_record(recorder.load(recorder.save(scheduler.to_record(), tmp_path / "schedule")))
    assert resumed.last == scheduler.last and rates(resumed, 20) == rates(scheduler, 20)
    for copied in (copy.deepcopy(resumed), pickle.loads(pickle.dumps(resumed))):
        assert copied.step() == scheduler.peek() and copied.calls == at + 21 == resumed.calls + 1


@pytest.mark.parametrize("mine", ALL)
def test_contract_36_a_record_of_another_schedule_is_refused_and_changes_nothing(mine):
    scheduler = ALL[mine].init()
    rates(scheduler, 5)
    for other, config in ALL.items():
        if other != mine:
            with pytest.raises(RecordMismatch, match=r"record \| here"):
                scheduler.load_record(config.init().to_record())
            assert scheduler.calls == 5
    scheduler.load_record(ALL[mine].init().to_record())
    assert scheduler.calls == 0


@pytest.mark.parametrize("members", [(), (LINEAR,), (EXPONENTIAL, LINEAR), (LINEAR, EXPONENTIAL, NOAM), (LINEAR, LINEAR)])
def test_contract_36_count_and_order_of_members_must_match(members):
    scheduler = ComposedLrSchedulerConfig((LINEAR, EXPONENTIAL)).init()
    with pytest.raises(RecordMismatch, match="schedules"):
        scheduler.load_record(ComposedLrSchedulerConfig(members).init().to_record())
    scheduler.load_record(ComposedLrSchedulerConfig([LINEAR, EXPONENTIAL]).init().to_record())  # a list is as good


def test_a_schedule_of_another_kind_with_the_same_settings_is_refused():
    class Slower(LrSchedulerConfig):
        initial_lr: float
        gamma: float

        def value(self, k):
            return self.initial_lr / (1.0 + self.gamma * k)

    with pytest.raises(RecordMismatch, match="'Slower'"):
        EXPONENTIAL.init().load_record(Slower(0.5, 0.9).init().to_record())


def test_an_impossible_count_is_refused():
    scheduler = LINEAR.init()
    for calls in (2**53, 10**400, -1, 0.5):
        with pytest.raises(RecorderError, match="was called"):
            scheduler.load_record({**scheduler.to_record(), "calls": calls})
    assert scheduler.calls == 0


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (ConstantLrSchedulerConfig(-1.0), "lr=-1.0"),
        (LinearLrSchedulerConfig(0.0, 0.1, 4), "initial_lr"),
        (LinearLrSchedulerConfig(1.1, 0.1, 4), "initial_lr"),
        (LinearLrSchedulerConfig(NAN, 0.1, 4), "initial_lr"),
        (LinearLrSchedulerConfig(0.5, -0.1, 4), "final_lr"),
        (LinearLrSchedulerConfig(0.5, 1.1, 4), "final_lr"),
        (LinearLrSchedulerConfig(0.5, 0.1, 0), "num_iters"),
        (CosineAnnealingLrSchedulerConfig(0.0, 4), "initial_lr"),
        (CosineAnnealingLrSchedulerConfig(2.0, 4), "initial_lr"),
        (CosineAnnealingLrSchedulerConfig(0.5, 0), "num_iters"),
        (CosineAnnealingLrSchedulerConfig(0.5, 4, 0.6), "min_lr"),
        (CosineAnnealingLrSchedulerConfig(0.5, 4, -0.1), "min_lr"),
        (CosineAnnealingLrSchedulerConfig(0.5, 4, past_end="stop"), "past_end"),
        (ExponentialLrSchedulerConfig(1.5, 0.9), "initial_lr"),
        (ExponentialLrSchedulerConfig(0.5, 0.0), "gamma"),
        (ExponentialLrSchedulerConfig(0.5, 1.1), "gamma"),
        (NoamLrSchedulerConfig(1.0, warmup_steps=0), "warmup_steps"),
        (NoamLrSchedulerConfig(1.0, model_size=0), "model_size"),
        (NoamLrSchedulerConfig(INF), "factor"),
        (ComposedLrSchedulerConfig((LINEAR,), "max"), "reduction"),
        (ComposedLrSchedulerConfig(LINEAR), "schedules"),
        (ComposedLrSchedulerConfig((LINEAR, LINEAR.init())), r"schedules\[1\]"),
        (ComposedLrSchedulerConfig((LINEAR, ExponentialLrSchedulerConfig(0.5, 2.0))), r"in schedules\[1\]: .*gamma=2.0"),
        (LINEAR.with_warmup(-1), "warmup_steps"),
        (LINEAR.with_warmup(2.5), "warmup_steps"),
        (LinearLrSchedulerConfig(2.0, 0.1, 4).with_warmup(3), "in schedule: .*initial_lr=2.0"),
    ],
)
def test_wrong_settings_are_refused_at_init(config, field):
    with pytest.raises(ValueError, match=field):
        config.init()


def test_ends_of_the_ranges_are_fine():
    for config in (
        LinearLrSchedulerConfig(1.0, 0.0, 1), LinearLrSchedulerConfig(np.float32(0.5), 1, np.int64(3)),
        CosineAnnealingLrSchedulerConfig(1.0, 1, 1.0), ExponentialLrSchedulerConfig(1.0, 1.0), StepLrSchedulerConfig(100.0, 4),
    ):  # fmt: skip
        assert all(type(x) is float for x in values(config, 3))


def test_a_schedule_of_ones_own_works_everywhere():
    class Table(LrSchedulerConfig):
        rates: tuple

        def value(self, k):
            return self.rates[min(k, len(self.rates) - 1)]

    table = Table((0.5, 0.25))
    assert values(table.with_warmup(1), 4) == [0.25, 0.5, 0.25, 0.25]
    assert isinstance(table.init(), LrScheduler) and table.init().to_record()["config"]["rates"] == (0.5, 0.25)
    assert values(ComposedLrSchedulerConfig((table, table)), 2) == [0.25, 0.0625]
    with pytest.raises(NotImplementedError, match="Bare"):
        dataclasses.replace(type("Bare", (LrSchedulerConfig,), {})()).init().step()
