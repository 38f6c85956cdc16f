"""Training that is interrupted and resumed gives the bits of training that is not."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig, Module
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsAccumulator,
    GradientsParams,
    MuonConfig,
    ParamGroup,
    StepLrSchedulerConfig,
    TrainingRecord,
)  # fmt: skip
from ruda_record import BinFileRecorder, FullPrecisionSettings

RECORDER = BinFileRecorder(FullPrecisionSettings)
STEPS, WINDOW = 14, 3

GLOBAL = GradientClippingConfig.global_norm(0.05)
LAST = [ParamGroup("layers.1.*", lr_scale=0.5, weight_decay=0.3)]

OPTIMIZERS = {
    "sgd": lambda m: ro.SgdConfig(momentum=0.9, nesterov=True, weight_decay=0.01).init(),
    "adam": lambda m: AdamConfig(amsgrad=True, grad_clipping=GradientClippingConfig.norm(0.1)).init(),
    "adamw": lambda m: AdamWConfig(cautious_weight_decay=True).init(),
    "adagrad": lambda m: ro.AdaGradConfig(lr_decay=0.1).init(),
    "rmsprop": lambda m: ro.RmsPropConfig(centered=True, momentum=0.9).init(),
    "adan": lambda m: ro.AdanConfig(weight_decay=0.1).init(),
    "muon": lambda m: MuonConfig(weight_decay=0.1, mode="ema").init(),
    "masters": lambda m: Fp32MasterOptimizer(AdamWConfig().build()).with_gradient_scale(8.0).init(),
    "muon masters": lambda m: Fp32MasterOptimizer(MuonConfig().build()).init(),
    "value": lambda m: AdamConfig(grad_clipping=GradientClippingConfig.value(0.01)).init(),
    "global norm": lambda m: AdamConfig(grad_clipping=GLOBAL).init(),
    "groups": lambda m: AdamWConfig(grad_clipping=GLOBAL).init(groups=LAST),
    "listed group": lambda m: AdamWConfig().init(groups=[ParamGroup([m.layers[0].weight], betas=(0.8, 0.9))]),
    "muon groups": lambda m: MuonConfig(grad_clipping=GLOBAL).init(groups=LAST),
    "sparse": lambda m: ro.AdanConfig().init(),
    "sparse masters": lambda m: Fp32MasterOptimizer(AdamConfig().build(), grad_clipping=GLOBAL).init(),
    "masters groups": lambda m: Fp32MasterOptimizer(ro.RmsPropConfig().build(), grad_clipping=GLOBAL).init(groups=LAST),
    "fused": lambda m: AdamWConfig(fused_step=True, max_grad_norm=0.05).init(),
    "fused masters": lambda m: AdamWConfig(fused_step=True).init(),
    "muon and adamw": lambda m: ro.MuonAdamWConfig(max_grad_norm=0.05).init(m, [m.layers[0].weight]),
    "muon and adamw masters": lambda m: ro.MuonAdamWConfig().init(m, [m.layers[0].weight]),
}

COSINE = ro.CosineAnnealingLrSchedulerConfig(0.02, 3, min_lr=0.001)
SCHEDULES = {
    "constant": ro.ConstantLrSchedulerConfig(0.01),
    "step": StepLrSchedulerConfig(1e-2, 2, 0.5),
    "linear": ro.LinearLrSchedulerConfig(0.02, 0.001, 3),
    "cosine": COSINE,
    "cosine hold": COSINE.with_past_end("hold"),
    "cosine restart": COSINE.with_past_end("restart"),
    "exponential": ro.ExponentialLrSchedulerConfig(0.02, 0.7),
    "noam": ro.NoamLrSchedulerConfig(0.1, 2, 16),
    "warm-up": COSINE.with_warmup(2),
    "composed": ro.ComposedLrSchedulerConfig((COSINE.with_warmup(2), ro.ExponentialLrSchedulerConfig(0.9, 0.9)), "avg"),
    "warm-up of composed": ro.ComposedLrSchedulerConfig((COSINE, COSINE.with_past_end("hold")), "sum").with_warmup(1),
}


class Net(Module):
    """Two layers without biases, so that Muon takes them too, with random noise of its own."""

    layers: list[Linear]

    def forward(self, x):
        x = rt.tanh(self.layers[0](x))
        return self.layers[1](x + rt.random.normal(x.shape, std=0.1, device=x.device).astype(x.dtype))


class Run:
    """Training whose every part can be saved, at any micro-batch."""

    def __init__(self, name, device, schedule="step"):
        rt.random.seed(5)
        self.device, self.mixed = device, "masters" in name
        model = Net([LinearConfig(a, b, bias=False).init(Autodiff(device)) for a, b in ((4, 6), (6, 2))])
        self.model = model.to_dtype(rt.bfloat16) if self.mixed else model
        self.sparse = "sparse" in name
        self.optimizer, self.scheduler = OPTIMIZERS[name](self.model), SCHEDULES[schedule].init()
        self.accumulator, self.done, self.pending = GradientsAccumulator(), 0, 0

    def step(self):
        rng = np.random.default_rng(self.done)
        dtype = rt.bfloat16 if self.mixed else rt.float32
        x = rt.tensor(rng.standard_normal((8, 4)), dtype=dtype, device=self.device)
        scale = 8.0 if self.mixed else 1.0
        loss = self.model(x).astype(rt.float32).square().mean() * (scale / WINDOW)
        gradients = GradientsParams.from_grads(loss.backward(), self.model)
        if self.sparse and self.done // WINDOW % 2:
            gradients.remove(self.model.layers[0].weight)  # updated less often than the other: another counter
        if self.mixed:
            self.accumulator.accumulate_with_dtype(self.model, gradients, rt.FloatDType.F32)
        else:
            self.accumulator.accumulate(self.model, gradients)
        self.done, self.pending = self.done + 1, self.pending + 1
        if self.pending == WINDOW:
            self.model = self.optimizer.step(self.scheduler.step(), self.model, self.accumulator.grads())
            self.pending = 0

    def until(self, count):
        while self.done < count:
            self.step()
        return self

    def save(self, path):
        capture = TrainingRecord.capture_with_dtypes if self.mixed else TrainingRecord.capture
        state = {"done": self.done, "pending": self.pending, "random": rt.random.get_state()}
        capture(self.model, self.optimizer, self.scheduler, self.accumulator, state).save(RECORDER, path)
        return self

    def load(self, path):
        record = TrainingRecord.load(RECORDER, path, self.device)
        restore = record.restore_with_dtypes if self.mixed else record.restore
        restored = restore(self.model, self.optimizer, self.scheduler, self.device)
        self.model, self.accumulator = restored.model, restored.accumulator
        self.done, self.pending = restored.state["done"], restored.state["pending"]
        rt.random.set_state(restored.state["random"])
        return self

    def bits(self):
        pending = [g["value"].tobytes() for g in self.accumulator.to_record()]
        return [p.numpy().tobytes() for p in self.model.params()], len(pending), sorted(pending)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_resumes_in_mid_window_and_twice_in_a_row(name, device, tmp_path):
    straight = Run(name, device).until(STEPS).bits()
    Run(name, device).until(4).save(tmp_path / "a")
    Run(name, device).load(tmp_path / "a").until(8).save(tmp_path / "b")
    Run(name, device).load(tmp_path / "b").save(tmp_path / "c")  # restored and saved again without a step between
    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "c.bin").read_bytes()
    assert Run(name, device).load(tmp_path / "c").until(STEPS).bits() == straight


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_resumes_in_mid_window_and_twice_in_a_row(schedule, tmp_path):
    straight = Run("adam", rt.Cpu(), schedule).until(STEPS)
    Run("adam", rt.Cpu(), schedule).until(4).save(tmp_path / "a")
    Run("adam", rt.Cpu(), schedule).load(tmp_path / "a").until(8).save(tmp_path / "b")
    back = Run("adam", rt.Cpu(), schedule).load(tmp_path / "b").until(STEPS)
    assert back.bits() == straight.bits() and back.scheduler.to_record() == straight.scheduler.to_record()
    if schedule != "constant":  # a position that is forgotten would be seen
        late = Run("adam", rt.Cpu(), schedule).load(tmp_path / "b")
        late.scheduler.calls += 1
        assert late.until(STEPS).bits() != straight.bits()


class ScaledRun(Run):
    """Training in cycles of a `GradScaler`, some of which overflow; it is saved between them."""

    def __init__(self, name, device):
        super().__init__(name, device)
        self.scaler = ro.GradScaler(64.0, growth_interval=2)

    def step(self):
        x = rt.tensor(np.random.default_rng(self.done).standard_normal((8, 4)), dtype=rt.float32, device=self.device)
        loss = self.model(x.astype(rt.bfloat16 if self.mixed else rt.float32)).astype(rt.float32).square().mean()
        gradients = GradientsParams.from_grads(self.scaler.scale(loss).backward(), self.model)
        if self.done in (1, 5, 6):
            p = self.model.layers[1].weight
            gradients.register(p, gradients[p] * float("inf"))
        self.model = self.scaler.step(self.optimizer, self.scheduler, self.model, gradients)
        self.scaler.update()
        self.done += 1

    def save(self, path):
        capture = TrainingRecord.capture_with_dtypes if self.mixed else TrainingRecord.capture
        state = {"done": self.done, "random": rt.random.get_state(), "scaler": self.scaler.to_record()}
        capture(self.model, self.optimizer, self.scheduler, self.accumulator, state).save(RECORDER, path)
        return self

    def load(self, path):
        record = TrainingRecord.load(RECORDER, path, self.device)
        restore = record.restore_with_dtypes if self.mixed else record.restore
        restored = restore(self.model, self.optimizer, self.scheduler, self.device)
        self.model, self.done = restored.model, restored.state["done"]
        self.scaler.load_record(restored.state["scaler"])
        rt.random.set_state(restored.state["random"])
        return self

    def bits(self):
        return super().bits(), self.scaler.to_record(), self.scheduler.calls


@pytest.mark.parametrize("name", ["adam", "fused", "fused masters", "muon and adamw", "muon and adamw masters", "muon masters"])
def test_cycles_of_a_scaler_resume_before_and_after_an_overflow(name, device, tmp_path):
    straight = ScaledRun(name, device).until(10)
    assert straight.scheduler.calls == 7 and straight.scaler.get_scale() != 64.0
    ScaledRun(name, device).until(1).save(tmp_path / "a")
    ScaledRun(name, device).load(tmp_path / "a").until(6).save(tmp_path / "b")
    assert ScaledRun(name, device).load(tmp_path / "b").until(10).bits() == straight.bits()


@pytest.mark.parametrize("name", ["adam", "masters"])
def test_saving_changes_nothing_and_any_moment_will_do(name, device, tmp_path):
    straight = Run(name, device).until(STEPS).bits()
    watched = Run(name, device)
    for at in range(STEPS + 1):
        watched.until(at).save(tmp_path / f"at-{at}")
    assert watched.bits() == straight
    for at in (0, 1, 2, 3, 7, STEPS):
        assert Run(name, device).load(tmp_path / f"at-{at}").until(STEPS).bits() == straight


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("adam", "composed"), ("masters", "cosine"), ("fused masters", "warm-up"), ("muon and adamw", "noam"), ("groups", "linear")],
)
def test_resuming_in_a_new_process_gives_the_same_bits(name, schedule, tmp_path):
    straight = Run(name, rt.Cpu(), schedule).until(STEPS)
    Run(name, rt.Cpu(), schedule).until(7).save(tmp_path / "a")
    in_a_new_process("Run(sys.argv[1], rt.Cpu(), sys.argv[2])", tmp_path, STEPS, name, schedule)
    assert Run(name, rt.Cpu(), schedule).load(tmp_path / "b").bits() == straight.bits()


def test_cycles_of_a_scaler_resume_in_a_new_process(tmp_path):
    straight = ScaledRun("fused", rt.Cpu()).until(10)
    ScaledRun("fused", rt.Cpu()).until(3).save(tmp_path / "a")
    in_a_new_process("ScaledRun(sys.argv[1], rt.Cpu())", tmp_path, 10, "fused")
    assert ScaledRun("fused", rt.Cpu()).load(tmp_path / "b").bits() == straight.bits()


def in_a_new_process(run, folder, until, *arguments):
    """Load `folder`/a into what the expression `run` makes there, go on, and save `folder`/b."""
    code = (
        "import sys, ruda_tensor as rt\n"
        "from tests.optim.test_resume import LbfgsRun, Run, ScaledRun\n"
        f"{run}.load({str(folder / 'a')!r}).until({until}).save({str(folder / 'b')!r})\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_forgetting_the_pending_window_would_be_seen(tmp_path):
    """The comparison above can fail: a resume that drops what was pending ends elsewhere."""
    straight = Run("adam", rt.Cpu()).until(STEPS).bits()
    Run("adam", rt.Cpu()).until(4).save(tmp_path / "a")
    careless = Run("adam", rt.Cpu()).load(tmp_path / "a")
    careless.accumulator.grads()
    assert careless.until(STEPS).bits() != straight


class LbfgsRun(Run):
    """Training with L-BFGS, whose history goes on from step to step."""

    def __init__(self, name, device):
        rt.random.seed(5)
        search, self.mixed, self.device = "strong_wolfe" if "search" in name else None, "half" in name, device
        model = LinearConfig(4, 2).init(Autodiff(device))
        self.model = model.to_dtype(rt.bfloat16) if self.mixed else model
        self.optimizer = ro.LBFGSConfig(max_iter=3, history_size=4, line_search=search).init()
        self.scheduler, self.accumulator = StepLrSchedulerConfig(0.5, 2, 0.9).init(), GradientsAccumulator()
        self.done = self.pending = 0

    def step(self):
        x = rt.tensor(np.random.default_rng(0).standard_normal((8, 4)), dtype=self.model.weight.dtype, device=self.device)

        def closure(model):
            loss = (model(x).astype(rt.float32) - 1.0).square().mean()
            return loss.item(), GradientsParams.from_grads(loss.backward(), model)

        self.model, _ = self.optimizer.step(self.scheduler.step(), self.model, closure)
        self.done += 1

    def bits(self):
        history: Any = self.optimizer.history
        return super().bits(), history.iterations, len(history.pairs)


@pytest.mark.parametrize("name", ["plain", "search", "half", "half search"])
def test_lbfgs_resumes_with_its_history_twice_in_a_row(name, device, tmp_path):
    straight = LbfgsRun(name, device).until(6).bits()
    LbfgsRun(name, device).until(2).save(tmp_path / "a")
    LbfgsRun(name, device).load(tmp_path / "a").until(4).save(tmp_path / "b")
    assert LbfgsRun(name, device).load(tmp_path / "b").until(6).bits() == straight and straight[2] > 0


def test_lbfgs_resumes_in_a_new_process(tmp_path):
    straight = LbfgsRun("search", rt.Cpu()).until(6).bits()
    LbfgsRun("search", rt.Cpu()).until(3).save(tmp_path / "a")
    in_a_new_process("LbfgsRun(sys.argv[1], rt.Cpu())", tmp_path, 6, "search")
    assert LbfgsRun("search", rt.Cpu()).load(tmp_path / "b").bits() == straight
