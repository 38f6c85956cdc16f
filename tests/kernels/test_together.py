"""Optimizers by one launch: the bits, the records and the memory of the plain rules, and who still takes those."""
from __future__ import annotations

import copy
from collections import Counter

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import GradientClippingConfig, GradientsParams, ParamGroup
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

from ._hooks import launching

SHAPES = [(33, 7), (300,), (), (2049,), (0, 3)]
GLOBAL, VALUE = GradientClippingConfig.global_norm(1.0), GradientClippingConfig.value(0.1)
OPTIMIZERS = {
    "sgd": lambda: ro.SgdConfig().init(),
    "sgd with all": lambda: ro.SgdConfig(momentum=0.9, dampening=0.1, weight_decay=0.1).init(),
    "nesterov": lambda: ro.SgdConfig(momentum=0.9, nesterov=True).init(),
    "adam": lambda: ro.AdamConfig(weight_decay=0.1).init(),
    "amsgrad": lambda: ro.AdamConfig(amsgrad=True).init(),
    "adamw": lambda: ro.AdamWConfig(weight_decay=0.1).init(),
    "cautious": lambda: ro.AdamWConfig(weight_decay=0.1, cautious_weight_decay=True).init(),
    "groups": lambda: ro.AdamWConfig().init(groups=[ParamGroup.vectors(weight_decay=0.0, lr_scale=0.5)]),
    "masters": lambda: ro.Fp32MasterOptimizer(ro.AdamWConfig().build(), gradient_scale=3.0).init(),
    "masters of sgd": lambda: ro.Fp32MasterOptimizer(ro.SgdConfig(momentum=0.9).build(), gradient_scale=8.0).init(),
    "fused adamw": lambda: ro.AdamWConfig(fused_step=True).init(),
    "by value": lambda: ro.AdamConfig(grad_clipping=VALUE).init(),
    "masters, by value": lambda: ro.Fp32MasterOptimizer(ro.SgdConfig(grad_clipping=VALUE).build()).init(),
    "masters that clip by value": lambda: ro.Fp32MasterOptimizer(ro.AdamWConfig().build(), grad_clipping=VALUE).init(),
}  # fmt: skip
CLIPPING = {
    "global norm": lambda: ro.AdamWConfig(grad_clipping=GLOBAL).init(),
    "masters, clipped": lambda: ro.Fp32MasterOptimizer(ro.SgdConfig().build(), gradient_scale=8.0, grad_clipping=GLOBAL).init(),
    "one by one": lambda: ro.AdamConfig(grad_clipping=GradientClippingConfig.norm(0.1)).init(),
    "fused adamw, clipped": lambda: ro.AdamWConfig(fused_step=True, max_grad_norm=1.0).init(),
}
OTHERS = {
    "adan": lambda: ro.AdanConfig().init(),
    "unscaled and clipped by value": lambda: ro.Fp32MasterOptimizer(
        ro.AdamConfig().build(), gradient_scale=8.0, grad_clipping=VALUE).init(),
    "clipped twice": lambda: ro.Fp32MasterOptimizer(
        ro.AdamConfig(grad_clipping=GradientClippingConfig.norm(0.1)).build(), grad_clipping=VALUE).init(),
}  # fmt: skip


class Many(Module):
    ps: list[Param]


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


def many(dtype, device):
    rng = np.random.default_rng(3)
    tensors = [rt.tensor(rng.standard_normal(shape), dtype=dtype, device=device) for shape in SHAPES]
    return Many([Param(x, id=f"p{i}") for i, x in enumerate(tensors)])


def gradients(model, step, dtype=None):
    """Gradients of that step, which sometimes miss the second parameter."""
    rng = np.random.default_rng(step)
    values = [(p, rng.standard_normal(p.shape) * 3) for p in model.ps]
    given = values if step % 3 else [values[0], *values[2:]]
    return GradientsParams({p: rt.tensor(g, dtype=dtype or p.dtype, device=p.device) for p, g in given})


def train(make, dtype, device, steps=range(1, 6), fused=lambda step: True, grad_dtype=None, model=None, optimizer=None):
    model, optimizer = model or many(dtype, device), optimizer or make()
    for step in steps:
        with use_fused(fused(step)):
            model = optimizer.step(0.01, model, gradients(model, step, grad_dtype))
    return model, optimizer


def bits(model):
    return [p.numpy().tobytes() for p in model.ps]


def same_record(a, b):
    """Whether two records hold the same, arrays by their bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_record(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return a == b


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_launch_has_the_bits_and_the_record_of_the_rule(name, dtype, place):
    before = Counter(HITS)
    model, optimizer = train(OPTIMIZERS[name], dtype, place)
    ran = Counter(HITS) - before
    expected, plain = train(OPTIMIZERS[name], dtype, rt.Cpu(), fused=lambda step: False)
    assert bits(model) == bits(expected)
    assert same_record(optimizer.to_record(), plain.to_record())
    # 5 steps; after the third, which p1 missed, its number of updates is another, and so are the step's numbers.
    assert ran["optimizer_step"] == (12 if name == "groups" else 7)


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_dtypes(name):
    test_one_launch_has_the_bits_and_the_record_of_the_rule(name, rt.float16, rt.Cuda(0))
    if "masters" not in name and "fused" not in name:
        test_one_launch_has_the_bits_and_the_record_of_the_rule(name, rt.float64, rt.Cuda(0))


@pytest.mark.parametrize("name", ["adamw", "masters of sgd", "fused adamw"])
def test_half_parameters_take_float32_gradients(name, place):
    model, _ = train(OPTIMIZERS[name], rt.bfloat16, place, grad_dtype=rt.float32)
    expected, _ = train(OPTIMIZERS[name], rt.bfloat16, rt.Cpu(), fused=lambda step: False, grad_dtype=rt.float32)
    assert bits(model) == bits(expected)


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
@pytest.mark.parametrize("name", CLIPPING)
def test_clipped_steps_agree(name, dtype, place):
    """Not to the bit: on a GPU the squares of a norm are added in another order."""
    before = Counter(HITS)
    model, _ = train(CLIPPING[name], dtype, place)
    ran = Counter(HITS) - before
    expected, _ = train(CLIPPING[name], dtype, rt.Cpu(), fused=lambda step: False)
    assert ran["optimizer_step"] == 7 and ran["statistics_rows"] == (0 if name == "one by one" else 5)
    for a, b in zip(model.ps, expected.ps):
        a, b = a.astype(rt.float64).numpy(), b.astype(rt.float64).numpy()
        np.testing.assert_allclose(a, b, rtol=2**-7 if dtype == rt.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_other_rules_are_run_as_before(name, place):
    before = HITS["optimizer_step"]
    model, _ = train(OTHERS[name], rt.float32, place)
    assert HITS["optimizer_step"] == before
    expected, _ = train(OTHERS[name], rt.float32, place, fused=lambda step: False)
    assert bits(model) == bits(expected)


@pytest.mark.parametrize("name", ["adamw", "masters", "fused adamw"])
def test_the_gate_may_open_and_shut_between_steps(name, place):
    model, optimizer = train(OPTIMIZERS[name], rt.bfloat16, place, fused=lambda step: step % 2 == 0)
    expected, plain = train(OPTIMIZERS[name], rt.bfloat16, rt.Cpu(), fused=lambda step: False)
    assert bits(model) == bits(expected) and same_record(optimizer.to_record(), plain.to_record())


@pytest.mark.parametrize("name", ["adam", "masters", "fused adamw, clipped", "global norm"])
def test_a_restored_run_has_the_bits_of_one_that_went_on(name, place):
    make = {**OPTIMIZERS, **CLIPPING}[name]
    model, optimizer = train(make, rt.bfloat16, place, range(1, 4))
    kept, record = copy.deepcopy(model), copy.deepcopy(optimizer.to_record())
    model, _ = train(make, rt.bfloat16, place, range(4, 7), model=model, optimizer=optimizer)
    again = make()
    again.load_record(record, kept)
    restored, _ = train(make, rt.bfloat16, place, range(4, 7), model=kept, optimizer=again)
    assert bits(restored) == bits(model)


def test_what_somebody_else_holds_is_not_written_to(place):
    model, optimizer = train(OPTIMIZERS["adamw"], rt.float32, place, range(1, 3))
    seen, state = model.ps[0].detach(), optimizer.states["p0"]["exp_avg"]
    before, moments = seen.numpy().tobytes(), rt.backend.to_host(state).tobytes()
    train(OPTIMIZERS["adamw"], rt.float32, place, range(4, 6), model=model, optimizer=optimizer)
    assert seen.numpy().tobytes() == before and rt.backend.to_host(state).tobytes() == moments


def test_memory_that_nobody_sees_is_used_again(place):
    model, optimizer = train(OPTIMIZERS["adamw"], rt.float32, place, range(1, 3))

    def addresses(p):
        return [a.data.ptr if place.kind == "cuda" else a.ctypes.data for a in (p._data, optimizer.states[p.id]["exp_avg"])]

    before = addresses(model.ps[0])
    model, _ = train(OPTIMIZERS["adamw"], rt.float32, place, range(4, 6), model=model, optimizer=optimizer)
    assert addresses(model.ps[0]) == before


@pytest.mark.parametrize("name", ["adam", "nesterov"])
@pytest.mark.parametrize("dtypes", [(rt.float32, rt.float64, rt.bfloat16), (rt.bfloat16, rt.float64)], ids=str)
def test_the_state_follows_its_parameter_to_another_dtype(name, dtypes, place):
    outcomes = []
    for device, fused in ((place, True), (rt.Cpu(), False)):
        model, optimizer = many(dtypes[0], device), OPTIMIZERS[name]()
        for i, dtype in enumerate(dtypes):
            model = model.to_dtype(dtype)
            steps, before = range(i + 1, i + 2), HITS["optimizer_step"]
            model, optimizer = train(None, dtype, device, steps, lambda step, on=fused: on, model=model, optimizer=optimizer)
            assert (HITS["optimizer_step"] > before) == fused
        outcomes.append((bits(model), optimizer.to_record()))
    assert outcomes[0][0] == outcomes[1][0] and same_record(outcomes[0][1], outcomes[1][1])


def test_a_step_that_is_not_finite_changes_nothing(place):
    model, optimizer = train(OPTIMIZERS["fused adamw"], rt.float32, place, range(1, 3))
    before, record = bits(model), optimizer.to_record()
    bad = gradients(model, 4)
    bad._by_id["p1"] = rt.full((300,), np.inf, device=place)
    assert optimizer.step(0.01, model, bad) is model and optimizer.last_step_skipped
    assert bits(model) == before and same_record(optimizer.to_record(), record)
    model = many(rt.float32, place)
    bad = gradients(model, 4)
    bad._by_id["p1"] = rt.full((300,), np.nan, device=place)
    moved = ro.SgdConfig(grad_clipping=GLOBAL).init().step(1.0, model, bad)
    assert np.isfinite(moved.ps[0].numpy()).all() and np.isnan(moved.ps[1].numpy()).all(), "left as they are"


def test_numbers_beyond_float32_are_left_to_the_rule(place):
    before = HITS["optimizer_step"]
    model = ro.SgdConfig().init().step(1e39, many(rt.float32, place), gradients(many(rt.float32, place), 1))
    assert HITS["optimizer_step"] == before and np.isinf(model.ps[0].numpy()).all()


def test_strided_gradients_are_copied(place):
    model = many(rt.float32, place)
    g = rt.tensor(np.random.default_rng(0).standard_normal((7, 33)), dtype=rt.float32, device=place)
    moved = [ro.SgdConfig().init().step(1.0, copy.deepcopy(model), GradientsParams({model.ps[0]: x})) for x in (g.mT, g.mT + 0.0)]
    assert bits(moved[0]) == bits(moved[1])
