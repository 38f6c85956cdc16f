"""Loss scaling: the state machine, growth and backoff, records, and the optimizers it works with."""
from __future__ import annotations

import copy

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig, RecordMismatch
from ruda_optim import (
    AdamWConfig,
    Fp32MasterOptimizer,
    GradientsAccumulator,
    GradientsParams,
    GradScaler,
    LBFGSConfig,
    LinearLrSchedulerConfig,
    MuonAdamWConfig,
    SgdConfig,
)
from ruda_record import BinFileRecorder, RecorderError

from ._helpers import Pair, give, param, point

OPTIMIZERS = {
    "fused": lambda: AdamWConfig(fused_step=True).init(),
    "plain": lambda: AdamWConfig().init(),
    "sgd": lambda: SgdConfig().init(),
    "masters": lambda: Fp32MasterOptimizer(AdamWConfig().build()).init(),
}


def loss(device=None, value=2.0):
    return rt.tensor(value, dtype=rt.float32, device=device or rt.Cpu())


def cycle(scaler, optimizer, model, gradient, lr=0.1):
    """One cycle whose gradient, before scaling, is `gradient`."""
    scaler.scale(loss(model.x.device))
    model = scaler.step(optimizer, lr, model, give((model.x, np.asarray(gradient) * scaler.get_scale()), dtype=rt.float32))
    scaler.update()
    return model


def run(scaler, outcomes):
    """Update by update, True for a good step; returns the scale after each."""
    model, optimizer, out = point([1.0]), SgdConfig().init(), []
    for good in outcomes:
        model = cycle(scaler, optimizer, model, [1.0 if good else np.inf], lr=0.0)
        out.append(scaler.get_scale())
    return out


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_step_is_the_step(device, name):
    rng = np.random.default_rng(0)
    model, scaler, optimizer = point(rng.standard_normal(40), device=device), GradScaler(1024.0), OPTIMIZERS[name]()
    other, plain = model.clone(), OPTIMIZERS[name]()
    for _ in range(3):
        g = rng.standard_normal(40).astype(np.float32)
        model = cycle(scaler, optimizer, model, g)
        other = plain.step(0.1, other, give((other.x, g)))
    assert model.x.numpy().tobytes() == other.x.numpy().tobytes() and not scaler.last_step_skipped


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_step_is_skipped_whatever_the_optimizer(device, name, bad):
    model, scaler, optimizer = point(np.ones(40), device=device), GradScaler(1024.0), OPTIMIZERS[name]()
    same = cycle(scaler, optimizer, model, [bad] * 39 + [1.0])
    assert same is model and scaler.last_step_skipped and not optimizer.states and scaler.get_scale() == 512.0
    new = cycle(scaler, optimizer, model, np.ones(40))
    assert not scaler.last_step_skipped and new.x.numpy()[0] < 1.0 and scaler.get_scale() == 512.0


def test_the_loss_is_scaled_and_differentiated(device):
    model = LinearConfig(3, 1).init(Autodiff(device))
    x = rt.tensor(np.ones((2, 3)), dtype=rt.float32, device=device)
    scaler, accumulator = GradScaler(8.0), GradientsAccumulator()
    for _ in range(2):  # two micro-batches in one cycle
        scaled = scaler.scale(model(x).sum() / 2.0)
        accumulator.accumulate(model, GradientsParams.from_grads(scaled.backward(), model))
    gradients = accumulator.grads()
    np.testing.assert_array_equal(gradients[model.bias].numpy(), [16.0])
    new = scaler.step(SgdConfig().init(), 0.5, model.clone(), gradients)
    np.testing.assert_allclose(new.bias.numpy(), model.bias.numpy() - 1.0, rtol=1e-6)
    scaler.update()
    assert scaler.scale(loss(device, 3e38)).item() == np.inf and type(scaler.get_scale()) is float


def test_contract_69_growth_comes_after_exactly_the_interval():
    scaler = GradScaler()
    assert run(scaler, [True] * 1999) == [65536.0] * 1999
    assert run(scaler, [True, True]) == [131072.0, 131072.0]
    scaler = GradScaler(16.0, growth_interval=3)
    assert run(scaler, [1, 1, 0, 1, 1, 1, 1]) == [16, 16, 8, 8, 8, 16, 16]  # a bad step begins the count again
    assert run(GradScaler(8.0, growth_interval=1, growth_factor=1.5, backoff_factor=0.25), [1, 0]) == [12.0, 3.0]


def test_contract_69_the_scale_is_kept_between_its_limits():
    assert run(GradScaler(2.0**22, growth_interval=1), [True] * 4) == [2.0**23, 2.0**24, 2.0**24, 2.0**24]
    assert run(GradScaler(2.0**-22), [False] * 4) == [2.0**-23, 2.0**-24, 2.0**-24, 2.0**-24]
    assert run(GradScaler(4.0, min_scale=3.0, max_scale=5.0, growth_interval=1), [1, 0, 0, 1, 1]) == [5, 3, 3, 5, 5]


def test_contract_69_calls_out_of_turn_are_refused_and_change_nothing():
    model, optimizer, scaler = point([1.0]), SgdConfig().init(), GradScaler(4.0)
    gradients = give((model.x, [4.0]))

    def refused(*calls):
        for call in calls:
            with pytest.raises(RuntimeError, match="turn"):
                call()

    def step():
        return scaler.step(optimizer, 0.5, model, gradients)

    record = scaler.to_record()
    refused(step, scaler.update)
    scaler.scale(loss())
    scaler.scale(loss())
    refused(scaler.update, scaler.to_record, scaler.state_dict, lambda: scaler.load_record(record))
    model = step()
    assert model.x.tolist() == [0.5]
    refused(step, lambda: scaler.scale(loss()), scaler.to_record, lambda: scaler.load_record(record))
    scaler.update()
    refused(step, scaler.update)
    assert scaler.to_record()["good_steps"] == 1


def test_contract_68_a_failed_step_leaves_it_unusable_until_a_record_is_loaded():
    class Breaks:
        rule, last_step_skipped = None, False

        def step(self, lr, model, gradients, *, loss_scale):
            raise MemoryError("out of memory")

    model, scaler = point([1.0]), GradScaler(4.0)
    record, gradients = scaler.to_record(), give((model.x, [4.0]))
    scaler.scale(loss())
    with pytest.raises(MemoryError):
        scaler.step(Breaks(), 0.5, model, gradients)
    calls = (
        lambda: scaler.scale(loss()), lambda: scaler.step(SgdConfig().init(), 0.5, model, gradients), scaler.update,
        scaler.to_record,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(RuntimeError, match="failed"):
            call()
    scaler.load_record(record)
    assert cycle(scaler, SgdConfig().init(), model, [1.0]).x.item() == pytest.approx(0.9)


def test_what_step_refuses_by_itself_leaves_the_cycle_as_it_was():
    model, scaler, stranger = point([1.0]), GradScaler(4.0), point([1.0])
    gradients, optimizer = give((model.x, [4.0])), SgdConfig().init()
    scaler.scale(loss())
    twice = Fp32MasterOptimizer(SgdConfig().build()).with_gradient_scale(2.0).init()
    for call, kind, message in (
        (lambda: scaler.step(SgdConfig(), 0.5, model, gradients), TypeError, "SgdConfig"),
        (lambda: scaler.step(LBFGSConfig().init(), 0.5, model, gradients), TypeError, "LBFGS takes a closure"),
        (lambda: scaler.step(optimizer, 0.5, gradients, model), TypeError, "Module"),
        (lambda: scaler.step(optimizer, 0.5, model, GradientsParams()), ValueError, "no gradient"),
        (lambda: scaler.step(optimizer, 0.5, model, give((stranger.x, [1.0]))), ValueError, "no gradient"),
        (lambda: scaler.step(twice, 0.5, model, gradients), ValueError, "with_gradient_scale"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert scaler.step(optimizer, 0.5, model, gradients).x.tolist() == [0.5]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (rt.tensor(1.0, dtype=rt.float16, device=rt.Cpu()), TypeError),
        (rt.tensor(1, device=rt.Cpu()), TypeError),
        (1.0, TypeError),
        (rt.tensor([1.0, 2.0], device=rt.Cpu()), ValueError),
    ],
)
def test_a_loss_is_one_float32_number(wrong, kind):
    scaler = GradScaler()
    with pytest.raises(kind, match="scale: a loss is"):
        scaler.scale(wrong)
    assert scaler.to_record()["scale"] == 65536.0  # still ready
    assert scaler.scale(rt.tensor([[0.5]], device=rt.Cpu())).tolist() == [[32768.0]]


def test_a_schedule_given_as_the_rate_moves_only_with_updates():
    schedule, scaler = LinearLrSchedulerConfig(0.5, 0.1, 4).init(), GradScaler(4.0)
    model, optimizer = point([1.0]), SgdConfig().init()
    for gradient, calls in (([np.inf], 0), ([1.0], 1), ([np.nan], 1), ([1.0], 2)):
        model = cycle(scaler, optimizer, model, gradient, lr=schedule)
        assert schedule.calls == calls
    assert model.x.item() == pytest.approx(1.0 - 0.5 - 0.4)


def test_records_carry_scale_and_count(tmp_path):
    scaler, recorder = GradScaler(16.0, growth_interval=5), BinFileRecorder()
    run(scaler, [1, 1, 0, 1, 1])
    record = recorder.load(recorder.save(scaler.to_record(), tmp_path / "scaler"))
    resumed = GradScaler(1.0, growth_interval=5)
    resumed.load_state_dict(record)
    assert resumed.state_dict() == scaler.state_dict() == record and record["good_steps"] == 2
    assert run(resumed, [1] * 8) == run(scaler, [1] * 8)
    assert run(copy.deepcopy(scaler), [1] * 4) == run(scaler, [1] * 4)


def test_a_rejected_record_changes_nothing():
    scaler = GradScaler(16.0, growth_interval=5)
    run(scaler, [1, 1])
    good = scaler.to_record()
    for bad, kind, message in (
        (None, RecorderError, "should hold"),
        ({k: v for k, v in good.items() if k != "scale"}, RecorderError, "should hold"),
        ({**good, "more": 1}, RecorderError, "should hold"),
        ({**good, "version": 2}, RecorderError, "version 2"),
        ({**good, "version": True}, RecorderError, "version True"),
        ({**good, "config": None}, RecorderError, "dict"),
        ({**good, "scale": 2.0**25}, RecorderError, "scale is"),
        ({**good, "scale": 0.0}, RecorderError, "scale is"),
        ({**good, "scale": float("nan")}, RecorderError, "scale is"),
        ({**good, "good_steps": 5}, RecorderError, "counts 5"),
        ({**good, "good_steps": -1}, RecorderError, "counts -1"),
        ({**good, "good_steps": 1.5}, RecorderError, "counts 1.5"),
        (GradScaler(16.0, growth_interval=6).to_record(), RecordMismatch, r"growth_interval: 6 \| 5"),
    ):
        with pytest.raises(kind, match=message):
            scaler.load_record(bad)
        assert scaler.to_record() == good


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"init_scale": 0.0}, "init_scale"), ({"init_scale": 2.0**25}, "init_scale"), ({"init_scale": True}, "init_scale"),
        ({"init_scale": float("nan")}, "init_scale"), ({"init_scale": 1.0, "min_scale": 2.0}, "init_scale"),
        ({"growth_factor": 1.0}, "growth_factor"), ({"growth_factor": float("inf")}, "growth_factor"),
        ({"backoff_factor": 0.0}, "backoff_factor"), ({"backoff_factor": 1.0}, "backoff_factor"),
        ({"growth_interval": 0}, "growth_interval"), ({"growth_interval": 2.0}, "growth_interval"),
        ({"growth_interval": True}, "growth_interval"), ({"min_scale": 0.0}, "min_scale"), ({"min_scale": 1e-45}, "min_scale"),
        ({"max_scale": 1e39}, "max_scale"), ({"max_scale": "big"}, "max_scale"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_by_name(options, field):
    with pytest.raises(ValueError, match=f"{field}="):
        GradScaler(**options)


def test_muon_and_adamw_together_under_a_scaler(device):
    def parts():
        rt.random.seed(0)
        model = LinearConfig(4, 3).init(Autodiff(device)).to_dtype(rt.bfloat16)
        return model, MuonAdamWConfig(max_grad_norm=1.0).from_model(model), GradScaler(64.0)

    def gradients(model, scale):
        x = rt.tensor(np.linspace(-1, 1, 8).reshape(2, 4), dtype=rt.bfloat16, device=device)
        found = (model(x).astype(rt.float32).square().mean() * scale).backward()
        return GradientsParams.from_grads(found, model)

    model, optimizer, scaler = parts()
    other, plain, _ = parts()
    for _ in range(2):
        scaler.scale(loss(device))
        model = scaler.step(optimizer, 0.1, model, gradients(model, 64.0))
        scaler.update()
        other = plain.step(0.1, other, gradients(other, 1.0))
    assert [p.numpy().tobytes() for p in model.params()] == [p.numpy().tobytes() for p in other.params()]
    scaler.scale(loss(device))
    bad = gradients(model, 64.0)
    bad.register(model.bias, rt.tensor(np.full(3, np.inf), dtype=rt.float32, device=device))
    assert scaler.step(optimizer, 0.1, model, bad) is model and scaler.last_step_skipped and optimizer.last_step_skipped


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_overflows_in_a_frozen_parameter_skips_nothing(name, device):
    model = Pair(param([1.0], device=device), param([1.0], trainable=False, device=device))
    scaler, gradients = GradScaler(2.0), give((model.a, [1.0]), (model.b, [float("inf")]))
    scaler.scale(loss(device))
    new = scaler.step(OPTIMIZERS[name](), 0.1, model, gradients)
    assert not scaler.last_step_skipped and new.a.item() < 1.0 and new.b.item() == 1.0
