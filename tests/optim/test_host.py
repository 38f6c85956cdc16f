"""One call that updates all parameters on a CPU: the bits, the records and the memory of the rule by itself."""
from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_optim import AdamConfig, AdamWConfig, GradientsParams, SgdConfig
from ruda_optim import host as one_call
from ruda_optim import optimizer as optimizer_module
from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import update

from ._helpers import give
from .test_buckets import OPTIMIZERS, bits, many, train

WHY = f"no compiled bodies: {host._reasons.get('update', 'off')}" if host.library("update") is None else ""
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
COMPILED = ("sgd", "sgd options", "nesterov", "adam", "amsgrad", "adamw")


@pytest.fixture
def calls(monkeypatch):
    """How many parameters each call updated."""
    counts, run = [], one_call.update_all

    def counted(name, entries, *rest):
        counts.append(len(entries))
        run(name, entries, *rest)

    monkeypatch.setattr(one_call, "update_all", counted)
    return counts


@pytest.mark.parametrize("dtype", [rt.float32, rt.float64, rt.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_the_rule(name, dtype, calls, monkeypatch):
    if "masters" in name and dtype == rt.float64:
        pytest.skip("masters are float32")
    together = bits(*train(OPTIMIZERS[name], dtype, rt.Cpu()))
    assert bool(calls) is (name in COMPILED and dtype != rt.bfloat16)
    calls.clear()
    monkeypatch.setattr(optimizer_module, "update_on_host", lambda *_: {})
    assert bits(*train(OPTIMIZERS[name], dtype, rt.Cpu())) == together and not calls


def test_a_step_is_one_call_for_each_count_of_updates(calls):
    model, optimizer = many([(300, 200), (200,), (), (0, 3), (70_000,)]), AdamConfig().init()
    for step in range(3):
        pairs = [(p, np.ones(p.shape)) for p in model.ps]
        model = optimizer.step(0.1, model, give(*(pairs[1:] if step == 1 else pairs)))
    assert calls == [5, 4, 1, 4] and not optimizer._places


def test_memory_that_nobody_sees_is_used_again_and_what_somebody_holds_stays(calls):
    model, optimizer = many([(64, 64), (5,)]), AdamWConfig().init()
    g = [np.ones(p.shape) for p in model.ps]
    model = optimizer.step(0.1, model, give(*zip(model.ps, g)))
    places = [p._data.ctypes.data for p in model.ps]
    states = {k: v.ctypes.data for k, v in optimizer.states["p0"].items() if k != "time"}
    model = optimizer.step(0.1, model, give(*zip(model.ps, g)))
    assert [p._data.ctypes.data for p in model.ps] == places
    assert {k: v.ctypes.data for k, v in optimizer.states["p0"].items() if k != "time"} == states
    kept, moment = model.ps[0].detach(), optimizer.states["p0"]["exp_avg"]
    before, moment_before = kept.numpy(), moment.copy()
    model = optimizer.step(0.1, model, give(*zip(model.ps, g)))
    assert np.array_equal(kept.numpy(), before) and not np.array_equal(model.ps[0].numpy(), before)
    assert np.array_equal(moment, moment_before) and len(calls) == 3
    del kept, moment
    gc.collect()


def test_strided_gradients_are_copied(calls):
    model = many([(40, 30)])
    wide = rt.tensor(np.arange(2400.0).reshape(40, 60), dtype=rt.float32, device=rt.Cpu())
    moved = SgdConfig().init().step(0.5, model, GradientsParams({model.ps[0]: wide[:, ::2]}))
    np.testing.assert_array_equal(moved.ps[0].numpy(), many([(40, 30)]).ps[0].numpy() - 0.5 * wide.numpy()[:, ::2])
    assert calls == [1]


def test_parameters_in_buckets_stay_there(calls, monkeypatch):
    """As when a first step found no compiled bodies yet."""
    with host.use_host_kernels(False):
        model, optimizer = many(), AdamConfig().init()
        model = optimizer.step(0.1, model, give(*[(p, np.ones(p.shape)) for p in model.ps]))
    bucketed = set(optimizer._places)
    assert bucketed
    model = optimizer.step(0.1, model, give(*[(p, np.ones(p.shape)) for p in model.ps]))
    assert set(optimizer._places) == bucketed
    monkeypatch.setattr(optimizer_module, "update_on_host", lambda *_: {})
    other, plain = many(), AdamConfig().init()
    for _ in range(2):
        other = plain.step(0.1, other, give(*[(p, np.ones(p.shape)) for p in other.ps]))
    assert bits(model, optimizer) == bits(other, plain)


def test_what_comes_from_a_pickle_is_updated_as_before(calls):
    model, optimizer = many([(300, 200), (7,)]), AdamConfig().init()
    model = optimizer.step(0.1, model, give(*[(p, np.ones(p.shape)) for p in model.ps]))
    for again in (lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy):
        model, optimizer = again((model, optimizer))
        model = optimizer.step(0.1, model, give(*[(p, np.ones(p.shape)) for p in model.ps]))
    assert calls == [2, 2, 2]


def test_small_models_do_not_wait_for_a_compiler(calls, monkeypatch):
    monkeypatch.setattr(update, "loaded", lambda name: False)
    model, optimizer = many([(3, 5), (17,)]), AdamConfig().init()
    optimizer.step(0.1, model, give(*[(p, np.ones(p.shape)) for p in model.ps]))
    assert not calls and optimizer._places
