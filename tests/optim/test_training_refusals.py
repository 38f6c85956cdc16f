"""Training records that are not whole, or of other parts: refused with both sides, and nothing is changed."""
from __future__ import annotations

import copy

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig
from ruda_optim import AdamConfig, AdamWConfig, GradientsAccumulator, RecordMismatch, StepLrSchedulerConfig, TrainingRecord
from ruda_record import BinFileRecorder, FullPrecisionSettings, RecorderError

from ._helpers import Pair, give, param

SCHEDULE = StepLrSchedulerConfig(0.1, 3)


def trained(seed=0, config=None):
    rng = np.random.default_rng(seed)
    model, optimizer = Pair(param(rng.standard_normal((2, 3))), param(rng.standard_normal(4))), (config or AdamConfig()).init()
    scheduler, accumulator = SCHEDULE.init(), GradientsAccumulator()
    for _ in range(2):
        gradients = give(*[(p, rng.standard_normal(p.shape)) for p in model.params()])
        model = optimizer.step(scheduler.step(), model, gradients)
    accumulator.accumulate(model, give(*[(p, rng.standard_normal(p.shape)) for p in model.params()]))
    return model, optimizer, scheduler, accumulator


def bits(model, optimizer, scheduler):
    states = {
        key: [value.tobytes() if hasattr(value, "tobytes") else value for value in state.values()]
        for key, state in optimizer.states.items()
    }
    return [(p.id, p.numpy().tobytes()) for p in model.params()], states, scheduler.calls


def changed(data, path, value):
    *most, last = path
    place = data
    for name in most:
        place = place[name]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return data


@pytest.mark.parametrize(("path", "value"), [
    *[((part,), KeyError) for part in ("version", "model", "optimizer", "scheduler", "gradients", "state", "dtypes")],
    (("extra",), 1), (("version",), 9), (("dtypes",), "yes"), (("gradients",), {}), (("gradients", 0, "id"), "stranger"),
    (("optimizer", "states", "STATE", "time"), -1), (("optimizer", "states", "STATE", "time"), True),
    (("optimizer", "states", "STATE", "exp_avg"), KeyError), (("scheduler", "calls"), -1), (("optimizer", "config"), KeyError),
])  # fmt: skip
@pytest.mark.parametrize("with_dtypes", [False, True])
def test_a_record_that_is_not_whole_changes_nothing(path, value, with_dtypes):
    capture = TrainingRecord.capture_with_dtypes if with_dtypes else TrainingRecord.capture
    record = capture(*trained(), {"epoch": 1})
    state = next(iter(record.data["optimizer"]["states"]))
    path = [state if name == "STATE" else name for name in path]
    broken = TrainingRecord(changed(copy.deepcopy(record.data), path, value))
    model, optimizer, scheduler, _ = trained(1)
    before = bits(model, optimizer, scheduler)
    with pytest.raises(RecorderError):
        (broken.restore_with_dtypes if with_dtypes else broken.restore)(model, optimizer, scheduler)
    assert bits(model, optimizer, scheduler) == before
    record.restore(model, optimizer, scheduler)  # the whole one goes in


KINDS = {
    "adam": lambda model: AdamConfig().init(),
    "fused": lambda model: AdamWConfig(fused_step=True).init(),
    "lbfgs": lambda model: ro.LBFGSConfig().init(),
    "muon and adamw": lambda model: ro.MuonAdamWConfig().init(model, [model.a]),
    "masters": lambda model: ro.Fp32MasterOptimizer(AdamConfig().build()).init(),
}


@pytest.mark.parametrize("mine", KINDS)
@pytest.mark.parametrize("theirs", KINDS)
def test_the_record_of_another_kind_of_optimizer_is_a_two_sided_mismatch(mine, theirs):
    model, *_ = trained()
    record = KINDS[theirs](model).to_record(model)
    optimizer = KINDS[mine](model)
    if mine == theirs:
        return optimizer.load_record(record, model)
    with pytest.raises(RecordMismatch, match=r"optimizer is configured differently \(record \| here\):\n  rule: "):
        optimizer.load_record(record, model)


def test_what_is_pending_for_a_parameter_frozen_since_is_left_out(tmp_path):
    """No step would use it, and a model that does not train the parameter could not take it back."""
    model, optimizer, scheduler, accumulator = trained()
    frozen = Pair(model.a.set_require_grad(False), model.b)
    recorder = BinFileRecorder(FullPrecisionSettings)
    TrainingRecord.capture(frozen, optimizer, scheduler, accumulator).save(recorder, tmp_path / "a")
    fresh = Pair(param(np.zeros((2, 3)), trainable=False), param(np.zeros(4)))
    back = TrainingRecord.load(recorder, tmp_path / "a").restore(fresh, AdamConfig().init(), SCHEDULE.init())
    assert back.accumulator.grads().ids() == [model.b.id] and len(accumulator) == 2
    moved = back.optimizer.step(0.1, back.model, give((back.model.b, np.ones(4))))
    want = optimizer.step(0.1, frozen, give((frozen.b, np.ones(4))))
    assert moved.b.numpy().tobytes() == want.b.numpy().tobytes() and rt.equal(moved.a, want.a).numpy().all()


def test_a_run_may_have_no_schedule_and_no_accumulator(tmp_path):
    def parts():
        return LinearConfig(2, 1).init(Autodiff(rt.Cpu())), ro.SgdConfig(momentum=0.9).init()

    model, optimizer = parts()
    record = TrainingRecord.capture(model, optimizer, state={"epoch": 3})
    record.save(BinFileRecorder(), tmp_path / "a")
    restored = TrainingRecord.load(BinFileRecorder(), tmp_path / "a").restore(*parts())
    assert restored.state == {"epoch": 3} and restored.scheduler is None and len(restored.accumulator) == 0
    assert restored.model.weight.tolist() == model.weight.tolist()
    schedule = ro.ConstantLrSchedulerConfig(0.1).init()
    with pytest.raises(RecordMismatch, match=r"schedule is \(record \| here\): missing \| present"):
        record.restore(*parts(), schedule)
    with pytest.raises(RecordMismatch, match=r"schedule is \(record \| here\): present \| missing"):
        TrainingRecord.capture(model, optimizer, schedule).restore(*parts())
