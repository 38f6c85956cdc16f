"""A capture holds the arrays of training instead of copies, and the next update leaves them alone."""
from __future__ import annotations

import copy
import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig, Module, Sequential
from ruda_optim import (
    AdaGradConfig,
    AdamConfig,
    AdamWConfig,
    AdanConfig,
    ConstantLrSchedulerConfig,
    Fp32MasterOptimizer,
    GradientsAccumulator,
    GradientsParams,
    MuonAdamWConfig,
    RmsPropConfig,
    SgdConfig,
    TrainingRecord,
)
from ruda_record import BinFileRecorder

OPTIMIZERS = {
    "sgd": lambda model: SgdConfig(momentum=0.9).init(),
    "adam": lambda model: AdamConfig(amsgrad=True).init(),
    "adamw": lambda model: AdamWConfig().init(),
    "fused": lambda model: AdamWConfig(fused_step=True, max_grad_norm=1.0).init(),
    "adagrad": lambda model: AdaGradConfig().init(),
    "rmsprop": lambda model: RmsPropConfig(centered=True, momentum=0.9).init(),
    "adan": lambda model: AdanConfig().init(),
    "masters": lambda model: Fp32MasterOptimizer(AdamWConfig().build()).init(),
    "muon": lambda model: MuonAdamWConfig().init(model, [model[0].weight.id]),
}


def made(device: Any) -> Sequential:
    """Two matrices too large for a bucket, and four parameters that share one."""
    recording = Autodiff(device)
    return Sequential(*[LinearConfig(a, b).init(recording) for a, b in ((128, 128), (128, 128), (128, 3))])


def step(model: Module, optimizer: Any, seed: int) -> Any:
    x = rt.random.normal((4, 128), seed=seed, device=next(iter(model.params())).device)
    return optimizer.step(0.01, model, GradientsParams.from_grads(model(x).square().mean().backward(), model))


def captured(model: Module, optimizer: Any) -> TrainingRecord:
    return TrainingRecord.capture(model, optimizer, ConstantLrSchedulerConfig(1e-3).init(), GradientsAccumulator())


def bits(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: bits(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(inner) for inner in value]
    return value.tobytes() if isinstance(value, np.ndarray) else value


def places(model: Any, optimizer: Any) -> list[int]:
    """Where the parameters and their states begin in memory."""
    states = [optimizer.states[key] for key in sorted(optimizer.states)]
    arrays = [p._data for p in model.params()] + [a for s in states for a in s.values() if hasattr(a, "shape")]
    return [a.__array_interface__["data"][0] for a in arrays]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_later_training_does_not_reach_a_capture_and_is_not_changed_by_it(device, name):
    rt.random.seed(3)
    model, twin = (lambda m: (m, m.clone()))(made(device))
    optimizer, other = OPTIMIZERS[name](model), OPTIMIZERS[name](twin)
    for i in range(2):
        model, twin = step(model, optimizer, i), step(twin, other, i)
    record = captured(model, optimizer)
    before = copy.deepcopy(bits(record.data))
    for i in range(2, 4):
        model, twin = step(model, optimizer, i), step(twin, other, i)
    assert bits(record.data) == before
    assert bits(captured(model, optimizer).data) == bits(captured(twin, other).data)
    assert bits(captured(model, optimizer).data) != before


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("masters", "muon", "fused")])
def test_memory_is_reused_again_once_the_record_is_gone(name):
    model = made(rt.Cpu())
    optimizer = OPTIMIZERS[name](model)
    model = step(step(model, optimizer, 0), optimizer, 1)
    here = places(model, optimizer)
    model = step(model, optimizer, 2)
    assert places(model, optimizer) == here
    record = captured(model, optimizer)
    model = step(model, optimizer, 3)
    there = places(model, optimizer)
    assert not set(there) & set(here) and record.data["version"] == 1
    del record
    gc.collect()
    model = step(model, optimizer, 4)
    assert places(model, optimizer) == there


def test_capturing_and_saving_takes_no_memory_of_the_models_size(tmp_path):
    model, optimizer = LinearConfig(2000, 1000).init(Autodiff(rt.Cpu())), AdamWConfig().init()
    gradients = GradientsParams({p: rt.ones_like(p) for p in model.params()})
    model = optimizer.step(0.1, model, gradients)
    size = 3 * sum(p.nbytes for p in model.params())
    captured(model, optimizer).save(BinFileRecorder(), tmp_path / "first")  # what is made once is not the record's
    tracemalloc.start()
    try:
        captured(model, optimizer).save(BinFileRecorder(), tmp_path / "second")
        assert tracemalloc.get_traced_memory()[1] < 0.05 * size
    finally:
        tracemalloc.stop()
