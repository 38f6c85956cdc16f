"""A model that changes its storage dtype in mid-training: states follow, and a resume after it has the same bits."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_optim import AdamWConfig, Fp32MasterOptimizer, GradientsAccumulator, TrainingRecord
from ruda_tensor.dtypes import FLOAT32, HALF

from ._helpers import Pair, give, param

MAKERS = {
    "sgd": lambda: ro.SgdConfig(momentum=0.9).init(),
    "adam": lambda: ro.AdamConfig(amsgrad=True).init(),
    "adamw": lambda: AdamWConfig().init(),
    "adagrad": lambda: ro.AdaGradConfig().init(),
    "rmsprop": lambda: ro.RmsPropConfig(centered=True, momentum=0.9).init(),
    "adan": lambda: ro.AdanConfig().init(),
    "muon": lambda: ro.MuonConfig().init(),
    "masters": lambda: Fp32MasterOptimizer(AdamWConfig().build()).init(),
}
CONSTANT = ro.ConstantLrSchedulerConfig(0.1)


CHANGES = [
    (rt.float32, rt.float64), (rt.float64, rt.float32), (rt.float64, rt.bfloat16), (rt.float32, rt.bfloat16),
    (rt.bfloat16, rt.float32), (rt.float16, rt.float64),
]  # fmt: skip
CASES = [(name, *change) for name in MAKERS for change in CHANGES if name != "masters" or rt.float64 not in change]


def step(optimizer, model, seed, dtype=None):
    rng = np.random.default_rng(seed)
    gradients = give(*[(p, rng.standard_normal(p.shape)) for p in model.params()], dtype=dtype)
    return optimizer.step(0.05, model, gradients)


def start(dtype, device, tied):
    a = param(np.arange(6.0).reshape(2, 3) - 2.5, dtype, device)
    return Pair(a, a if tied else param(np.arange(6.0).reshape(3, 2) - 1.5, dtype, device))


@pytest.mark.parametrize("tied", [False, True])  # two parameters go into a bucket, one does not
@pytest.mark.parametrize(("name", "before", "after"), CASES)
def test_states_follow_a_model_to_another_dtype(name, before, after, tied, device):
    model, optimizer = start(before, device, tied), MAKERS[name]()
    for seed in range(3):
        model = step(optimizer, model, seed)
    model = step(optimizer, model.to_dtype(after), 3)
    wide = FLOAT32 if after in HALF or name == "masters" else after
    for state in optimizer.states.values():
        state = {**state, **state.get("inner", {})}
        assert {value.dtype for value in state.values() if hasattr(value, "dtype")} == {wide} and state["time"] == 4
    record = TrainingRecord.capture_with_dtypes(model, optimizer, CONSTANT.init(), GradientsAccumulator())
    back = record.restore_with_dtypes(start(before, device, tied), MAKERS[name](), CONSTANT.init(), device)
    resumed = back.model
    for seed in range(4, 7):
        model, resumed = step(optimizer, model, seed), step(back.optimizer, resumed, seed)
    assert [p.numpy().tobytes() for p in resumed.params()] == [p.numpy().tobytes() for p in model.params()]


def test_a_model_made_wider_is_computed_wider(device):
    """In float64 from the second step on: what float32 moments would round off is there."""
    for dtype, error in ((rt.float64, 1e-14), (rt.float32, 1e-6)):
        model, optimizer = Pair(param([1.0], rt.float32, device), param([1.0], rt.float32, device)), MAKERS["sgd"]()
        model = optimizer.step(1.0, model, give((model.a, [0.0]), (model.b, [0.0]))).to_dtype(dtype)
        for _ in range(2):
            model = optimizer.step(0.1, model, give((model.a, [1 / 3]), (model.b, [1 / 3])))
        assert model.a.item() == pytest.approx(1.0 - 0.1 * (1 / 3) - 0.1 * (1.9 / 3), abs=error, rel=0)
        assert (abs(model.a.item() - (1.0 - 0.1 * 2.9 / 3)) < 1e-12) is (dtype == rt.float64)
