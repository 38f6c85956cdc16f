"""Training that is interrupted and resumed gives the bits of training that is not."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    "muon and adamw": lambda m: ro.MuonAdamWConfig().init(m, [m.layers[0].weight]),
}


class Net(Module):
    """Two layers without biases, so that Muon takes them too, with random noise of its own."""

    layers: list[Linear]

    def forward(self, x):
        x = rt.tanh(self.layers[0](x))
        return self.layers[1](x + rt.random.normal(x.shape, std=0.1, device=x.device).astype(x.dtype))


class Run:
    """Training whose every part can be saved, at any micro-batch."""

    def __init__(self, name, device):
        rt.random.seed(5)
        self.device, self.mixed = device, "masters" in name
        model = Net([LinearConfig(a, b, bias=False).init(Autodiff(device)) for a, b in ((4, 6), (6, 2))])
        self.model = model.to_dtype(rt.bfloat16) if self.mixed else model
        self.sparse = "sparse" in name
        self.optimizer, self.scheduler = OPTIMIZERS[name](self.model), StepLrSchedulerConfig(1e-2, 2, 0.5).init()
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


@pytest.mark.parametrize("name", ["adam", "masters"])
def test_saving_changes_nothing_and_any_moment_will_do(name, device, tmp_path):
    straight = Run(name, device).until(STEPS).bits()
    watched = Run(name, device)
    for at in range(STEPS + 1):
        watched.until(at).save(tmp_path / f"at-{at}")
    assert watched.bits() == straight
    for at in (0, 1, 2, 3, 7, STEPS):
        assert Run(name, device).load(tmp_path / f"at-{at}").until(STEPS).bits() == straight


@pytest.mark.parametrize("name", ["adam", "masters"])
def test_resuming_in_a_new_process_gives_the_same_bits(name, tmp_path):
    straight = Run(name, rt.Cpu()).until(STEPS)
    Run(name, rt.Cpu()).until(7).save(tmp_path / "a")
    code = (
        "import sys, ruda_tensor as rt\n"
        "from tests.optim.test_resume import Run\n"
        "Run(sys.argv[1], rt.Cpu()).load(sys.argv[2] + '/a').until(int(sys.argv[3])).save(sys.argv[2] + '/b')\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", code, name, str(tmp_path), str(STEPS)]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert Run(name, rt.Cpu()).load(tmp_path / "b").bits() == straight.bits()


def test_forgetting_the_pending_window_would_be_seen(tmp_path):
    """The comparison above can fail: a resume that drops what was pending ends elsewhere."""
    straight = Run("adam", rt.Cpu()).until(STEPS).bits()
    Run("adam", rt.Cpu()).until(4).save(tmp_path / "a")
    careless = Run("adam", rt.Cpu()).load(tmp_path / "a")
    careless.accumulator.grads()
    assert careless.until(STEPS).bits() != straight


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_resumes_with_its_history_twice_in_a_row(search, device, tmp_path):
    x = rt.tensor(np.random.default_rng(0).standard_normal((8, 4)), dtype=rt.float32, device=device)

    def closure(model):
        loss = (model(x) - 1.0).square().mean()
        return loss.item(), GradientsParams.from_grads(loss.backward(), model)

    def parts():
        rt.random.seed(5)
        optimizer = ro.LBFGSConfig(max_iter=3, history_size=4, line_search=search).init()
        return LinearConfig(4, 2).init(Autodiff(device)), optimizer, StepLrSchedulerConfig(0.5, 2, 0.9).init()

    def go(model, optimizer, scheduler, count):
        for _ in range(count):
            model, _ = optimizer.step(scheduler.step(), model, closure)
        return model, optimizer, scheduler

    def bits(model, optimizer, *_):
        return [p.numpy().tobytes() for p in model.params()], optimizer.history.iterations, len(optimizer.history.pairs)

    straight = bits(*go(*parts(), 6))
    now = go(*parts(), 2)
    for at in ("a", "b"):
        TrainingRecord.capture(*now, GradientsAccumulator()).save(RECORDER, tmp_path / at)
        back = TrainingRecord.load(RECORDER, tmp_path / at, device).restore(*parts(), device)
        now = go(back.model, back.optimizer, back.scheduler, 2)
    assert bits(*now) == straight and straight[2] > 0
