"""Cases of loss scaling and accumulation: weights of micro-batches, runaway scales, skipped steps, lost digits."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Module, Param
from ruda_optim import (
    AdamWConfig,
    ConstantLrSchedulerConfig,
    Fp32MasterOptimizer,
    GradientsAccumulator,
    GradientsParams,
    GradScaler,
    SgdConfig,
    TrainingRecord,
)
from ruda_record import BinFileRecorder


class Weight(Module):
    """y = w x."""

    w: Param

    def forward(self, x):
        return x * self.w


def weight(value, device, dtype=rt.float32):
    return Weight(Param(rt.tensor(value, dtype=dtype, device=device), device=Autodiff(device)))


def gradient(model, value, dtype=rt.float32):
    g = rt.tensor(np.broadcast_to(value, model.w.shape), dtype=dtype, device=model.w.device)
    return GradientsParams({model.w: g})


def cycle(scaler, optimizer, model, g, lr=0.1):
    """One update with a gradient that is `g` before scaling."""
    scaler.scale(rt.tensor(1.0, device=model.w.device))
    with np.errstate(all="ignore"):
        scaled = np.asarray(g, np.float32) * np.float32(scaler.get_scale())
    model = scaler.step(optimizer, lr, model, gradient(model, scaled))
    scaler.update()
    return model


def test_AMP_01_micro_batches_count_by_their_tokens(device):
    model, accumulator = weight(1.0, device), GradientsAccumulator()
    batches = [[1.0, 2.0, 3.0], [10.0]]
    for kept in (batches, [*batches, []]):  # one in which every token is ignored changes nothing
        tokens = sum(map(len, kept))
        for batch in kept:
            x = rt.tensor(np.asarray(batch, np.float32), device=device)
            loss = model(x).square().sum() / (2.0 * tokens)
            accumulator.accumulate(model, GradientsParams.from_grads(loss.backward(), model))
        assert accumulator.grads()[model.w].item() == pytest.approx(28.5)
    for batch in batches:  # what averaging the averages would give
        x = rt.tensor(np.asarray(batch, np.float32), device=device)
        loss = model(x).square().mean() / 2.0 / len(batches)
        accumulator.accumulate(model, GradientsParams.from_grads(loss.backward(), model))
    assert accumulator.grads()[model.w].item() == pytest.approx(52.333333, rel=1e-6)


def test_AMP_03_the_scale_does_not_run_away(device):
    scaler, optimizer, model = GradScaler(growth_interval=1), SgdConfig().init(), weight(0.0, device)
    for _ in range(200):
        model = cycle(scaler, optimizer, model, 1e-6, lr=1.0)
    assert scaler.get_scale() == 2.0**24
    assert model.w.item() == pytest.approx(-200e-6, rel=1e-5)


@pytest.mark.parametrize("fused", [True, False])
def test_AMP_04_the_scale_does_not_vanish(device, fused):
    optimizer = AdamWConfig(fused_step=True, max_grad_norm=1.0).init() if fused else AdamWConfig().init()
    scaler, model = GradScaler(), weight(1.0, device)
    for _ in range(2000):
        assert cycle(scaler, optimizer, model, np.inf) is model
    assert scaler.get_scale() == 2.0**-24 and np.isfinite(np.float32(1.0) / np.float32(scaler.get_scale()))
    new, expected = cycle(scaler, optimizer, model, 0.5), weight(1.0, device)
    expected = AdamWConfig().init().step(0.1, expected, gradient(expected, 0.5))
    assert new.w.item() == expected.w.item() < 1.0


@pytest.mark.parametrize("dtype", [rt.float32, rt.float16])
@pytest.mark.parametrize("fused", [True, False])
def test_AMP_05_a_skipped_first_step_leaves_no_trace(device, dtype, fused, tmp_path):
    def parts():
        bare = AdamWConfig(fused_step=True).init() if fused else Fp32MasterOptimizer(AdamWConfig().build()).init()
        return weight([1.0, -2.0], device, dtype), bare, ConstantLrSchedulerConfig(0.1).init()

    def state(model, optimizer):
        record = optimizer.to_record(model)["states"]
        return model.w.numpy().tobytes(), repr(list(record.values()))

    clean, optimizer, _ = parts()
    scaler = GradScaler(1024.0)
    for g in (0.5, -0.25):
        clean = cycle(scaler, optimizer, clean, g)
    wanted = state(clean, optimizer)

    model, optimizer, schedule = parts()
    scaler = GradScaler(2048.0)
    model = cycle(scaler, optimizer, model, [np.inf, 1.0])
    assert scaler.last_step_skipped and scaler.get_scale() == 1024.0 and not optimizer.states
    path = tmp_path / "skipped"
    TrainingRecord.capture_with_dtypes(model, optimizer, schedule, GradientsAccumulator(), scaler.to_record()).save(
        BinFileRecorder(), path
    )
    fresh = parts()
    restored = TrainingRecord.load(BinFileRecorder(), path).restore_with_dtypes(*fresh, device)
    resumed = GradScaler(2048.0)
    resumed.load_record(restored.state)
    for way, its_optimizer, its_scaler in ((model, optimizer, scaler), (restored.model, restored.optimizer, resumed)):
        for g in (0.5, -0.25):
            way = cycle(its_scaler, its_optimizer, way, g)
        assert state(way, its_optimizer) == wanted and its_scaler.get_scale() == 1024.0


def test_AMP_07_small_gradients_need_a_scale(device):
    x = rt.tensor(1e-8, dtype=rt.float16, device=device)
    assert x.item() == 0.0
    scaler = GradScaler(1024.0)
    stored = rt.tensor(1e-8 * scaler.get_scale(), dtype=rt.float16, device=device)
    model, optimizer = weight(0.0, device, rt.float16), Fp32MasterOptimizer(SgdConfig().build()).init()
    scaler.scale(rt.tensor(1.0, device=device))
    model = scaler.step(optimizer, 1.0, model, GradientsParams({model.w: stored}))
    master = rt.backend.to_host(optimizer.states[model.w.id]["master"])
    assert -float(master) == pytest.approx(1.0011718e-8, rel=1e-7)


@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
def test_AMP_07_small_updates_need_float32_masters(device, dtype):
    count, lr = 1000, 1e-4
    kept, masters = weight(1.0, device, dtype), Fp32MasterOptimizer(SgdConfig().build()).init()
    lost, plain = weight(1.0, device, dtype), SgdConfig().init()
    for _ in range(count):
        kept = masters.step(lr, kept, gradient(kept, 1.0))
        lost = plain.step(lr, lost, gradient(lost, 1.0))
    master = rt.backend.to_host(masters.states[kept.w.id]["master"])
    assert float(master) == pytest.approx(0.9, rel=2e-5) and kept.w.item() == pytest.approx(0.9, rel=2**-8)
    assert lost.w.item() == 1.0


@pytest.mark.parametrize("count_calls", [False, True])
def test_AMP_08_the_schedule_counts_updates_or_calls_as_it_is_given(device, count_calls):
    config = ConstantLrSchedulerConfig(0.5).with_warmup(4)  # 0.1, 0.2, 0.3, 0.4, 0.5
    schedule, scaler, optimizer, model = config.init(), GradScaler(4.0), SgdConfig().init(), weight(0.0, device)
    for g in (np.inf, np.inf, 1.0):
        model = cycle(scaler, optimizer, model, g, lr=schedule.step() if count_calls else schedule)
    assert model.w.item() == pytest.approx(-0.3 if count_calls else -0.1)
    resumed = config.init()
    resumed.load_record(schedule.to_record())
    assert resumed.peek() == schedule.peek() == pytest.approx(0.4 if count_calls else 0.2)
