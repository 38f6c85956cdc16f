"""Buckets: the bits of one parameter at a time, in fewer calls, and memory that nobody else sees."""
from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_optim as ro
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Module, Param
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsParams,
    ParamGroup,
    SgdConfig,
)  # fmt: skip
from ruda_optim import buckets as room
from ruda_optim import optimizer as optimizer_module
from ruda_tensor.kernels.gate import use_fused

from ._helpers import give, param


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """Where one call updates all parameters there are no buckets; test_host.py and kernels/test_together.py compare the two."""
    monkeypatch.setattr(optimizer_module, "update_on_host", lambda *_: {})
    with use_fused(False):
        yield


SHAPES = [(), (0,), (1,), (3, 5), (17,), (2, 3, 4), (0, 3), (130,), (7, 1)]


class Many(Module):
    ps: list[Param]


def many(shapes=SHAPES, dtype=rt.float32, device=None, seed=0):
    rng = np.random.default_rng(seed)
    return Many([param(rng.standard_normal(shape), dtype, device, id=f"p{i}") for i, shape in enumerate(shapes)])


OPTIMIZERS = {
    "sgd": lambda: SgdConfig().init(),
    "sgd options": lambda: SgdConfig(momentum=0.9, dampening=0.2, weight_decay=0.1).init(),
    "nesterov": lambda: SgdConfig(momentum=0.9, nesterov=True).init(),
    "adam": lambda: AdamConfig().init(),
    "amsgrad": lambda: AdamConfig(amsgrad=True, weight_decay=0.1).init(),
    "adamw": lambda: AdamWConfig(cautious_weight_decay=True, weight_decay=0.3).init(),
    "adagrad": lambda: ro.AdaGradConfig(lr_decay=0.1, weight_decay=0.1).init(),
    "rmsprop": lambda: ro.RmsPropConfig(centered=True, momentum=0.9).init(),
    "adan": lambda: ro.AdanConfig(weight_decay=0.1).init(),
    "adan no_prox": lambda: ro.AdanConfig(weight_decay=0.1, no_prox=True).init(),
    "value": lambda: AdamConfig(grad_clipping=GradientClippingConfig.value(0.3)).init(),
    "norm": lambda: AdamConfig(grad_clipping=GradientClippingConfig.norm(0.3)).init(),
    "global norm": lambda: AdamWConfig(grad_clipping=GradientClippingConfig.global_norm(0.3)).init(),
    "masters": lambda: Fp32MasterOptimizer(AdamConfig().build()).with_gradient_scale(8.0).init(),
    "masters clipped": lambda: Fp32MasterOptimizer(ro.AdanConfig().build(), gradient_scale=3.0)
    .with_grad_clipping(GradientClippingConfig.global_norm(0.5)).init(),
    "groups": lambda: AdamWConfig(weight_decay=0.2, grad_clipping=GradientClippingConfig.global_norm(2.0)).init(
        groups=[ParamGroup.vectors(weight_decay=0.0), ParamGroup("ps.3", lr_scale=0.1, betas=(0.5, 0.6))]
    ),
}  # fmt: skip


def train(make, dtype, device, steps=12, grad_dtype=None):
    """Train with gradients that come and go, a tie, and a parameter that is frozen for a while."""
    rng = np.random.default_rng(7)
    model, optimizer = many(dtype=dtype, device=device), make()
    model = Many([*model.ps, model.ps[3]])
    for step in range(steps):
        frozen = step in (4, 5)
        model = Many([p.set_require_grad(not frozen) if p.id == "p4" else p for p in model.ps])
        pairs = []
        for i, p in enumerate(model.ps[:-1]):
            g = rng.standard_normal(p.shape)
            if step % (i + 2) or step == 0:  # the first step has them all, later ones miss one now and then
                pairs.append((p, g))
        model = optimizer.step(1e-2, model, give(*pairs, dtype=grad_dtype))
    return model, optimizer


def bits(model, optimizer):
    def flat(state):
        return [flat(v) if isinstance(v, dict) else v.tobytes() if isinstance(v, np.ndarray) else v for v in state.values()]

    states = {key: flat(entry) for key, entry in _values(optimizer.to_record()["states"]).items()}
    return [(p.id, p.numpy().tobytes()) for p in model.ps], states


def _values(state):
    if isinstance(state, dict) and set(state) == {"dtype", "value"}:
        return state["value"]
    return {k: _values(v) for k, v in state.items()} if isinstance(state, dict) else state


@pytest.mark.parametrize("dtype", [rt.float32, rt.float64, rt.bfloat16, rt.float16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_one_parameter_at_a_time(name, dtype, device, monkeypatch):
    if "masters" in name and dtype == rt.float64:
        pytest.skip("masters are float32")
    model, optimizer = train(OPTIMIZERS[name], dtype, device)
    assert bool(optimizer._places) is (name != "norm")
    together = bits(model, optimizer)
    with monkeypatch.context() as patch:
        patch.setitem(room.SMALL, device.kind, -1)
        model, alone = train(OPTIMIZERS[name], dtype, device)
        assert not alone._places
    assert bits(model, alone) == together


@pytest.mark.parametrize("name", ["adam", "masters", "global norm"])
def test_gradients_of_another_dtype_than_their_parameters(name, device, monkeypatch):
    together = bits(*train(OPTIMIZERS[name], rt.bfloat16, device, grad_dtype=rt.float32))
    monkeypatch.setitem(room.SMALL, device.kind, -1)
    assert bits(*train(OPTIMIZERS[name], rt.bfloat16, device, grad_dtype=rt.float32)) == together


def test_gradients_of_several_dtypes_in_one_bucket(device, monkeypatch):
    def run():
        model, optimizer = many([(3,), (4,)], rt.bfloat16, device), AdamConfig().init()
        for _ in range(3):
            a, b = model.ps
            first = rt.tensor([0.1, 0.2, 0.3], dtype=rt.float32, device=device)
            second = rt.tensor([0.1, 0.2, 0.3, 0.4], dtype=rt.bfloat16, device=device)
            model = optimizer.step(1e-2, model, GradientsParams({a: first, b: second}))
        return bits(model, optimizer)

    together = run()
    monkeypatch.setitem(room.SMALL, device.kind, -1)
    assert run() == together


@given(
    name=st.sampled_from(sorted(OPTIMIZERS)),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=4, max_size=8),
    present=st.lists(st.integers(0, 255), min_size=1, max_size=8),
    dtype=st.sampled_from([rt.float32, rt.bfloat16]),
    held=st.integers(0, 7),
)
def test_any_shapes_and_any_gradients_missing(name, shapes, present, dtype, held):
    def run():
        model, optimizer, keep = many(shapes, dtype, rt.Cpu()), OPTIMIZERS[name](), []
        for step, mask in enumerate(present):
            pairs = [(p, 0.1 * (i + 1) - 0.2 * step + np.zeros(p.shape)) for i, p in enumerate(model.ps) if mask >> i & 1]
            keep.append(model.ps[held % len(shapes)].detach() if step % 2 else None)  # somebody looks now and then
            model = optimizer.step(1e-2, model, give(*pairs))
        return bits(model, optimizer), [None if x is None else x.numpy().tobytes() for x in keep]

    together = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(room.SMALL, "cpu", -1)
        assert run() == together


def counted(optimizer):
    """Count the calls of the rule's step."""
    calls, rule = [], optimizer.rule
    whole = rule.step
    rule.step = lambda xp, lr, p, *rest: calls.append(p.size) or whole(xp, lr, p, *rest)
    return calls


def ones(model):
    return GradientsParams({p: rt.ones(p.shape, dtype=p.dtype, device=p.device) for p in model.ps})


def test_small_parameters_are_updated_in_one_call_and_large_ones_by_themselves(device):
    large = room.SMALL[device.kind] + 1 if device.kind == "cpu" else 5
    model, optimizer = many([(3,), (large,), (2, 2), (5,)], device=device), SgdConfig().init()
    calls = counted(optimizer)
    for _ in range(2):
        model = optimizer.step(0.1, model, ones(model))
    assert sorted(calls) == sorted([12, large] * 2 if device.kind == "cpu" else [17] * 2)


def test_a_missing_gradient_cuts_the_bucket_in_two_and_counts_differ_from_then_on(device):
    model, optimizer = many([(1,), (2,), (3,), (4,)], device=device), AdamConfig().init()
    calls = counted(optimizer)
    for missing in (None, 1, None, None):
        gradients = ones(model)
        if missing is not None:
            gradients.remove(model.ps[missing])
        model = optimizer.step(0.1, model, gradients)
    assert calls == [10, 1, 7, 1, 2, 7, 1, 2, 7]
    assert [optimizer.states[f"p{i}"]["time"] for i in range(4)] == [4, 3, 4, 4]


def test_buckets_have_a_largest_size_and_a_single_parameter_needs_none(device, monkeypatch):
    monkeypatch.setitem(room.LARGEST, device.kind, 5)
    model, optimizer = many([(2,), (3,), (4,), (9,), (1,), (1,)], device=device), SgdConfig().init()
    calls = counted(optimizer)
    model = optimizer.step(0.1, model, ones(model))
    assert sorted(calls) == [2, 4, 5, 9]
    calls.clear()
    optimizer.step(0.1, model, ones(model))
    assert sorted(calls) == [2, 4, 5, 9]


def test_the_memory_of_a_bucket_is_used_again_and_only_while_nobody_sees_it(device):
    model, optimizer = many([(3,), (2, 2)], device=device), AdamConfig().init()
    model = optimizer.step(0.1, model, ones(model))
    bucket = optimizer._places["p0"][0]
    where = id(bucket._data)
    for _ in range(3):
        model = optimizer.step(0.1, model, ones(model))
        assert id(bucket._data) == where and model.ps[1]._data is bucket.views[1]
    held = model.ps[1].detach()
    model = optimizer.step(0.1, model, ones(model))
    assert id(bucket._data) != where
    where = id(bucket._data)
    model = optimizer.step(0.1, model, ones(model))
    assert id(bucket._data) == where  # who holds the old memory does not disturb the new
    del held


def kept_of(model, device):
    x = model.ps[1]
    kept = {
        "clone": model.clone().ps[1], "valid": model.valid().ps[1], "no_grad": model.no_grad().ps[1], "detach": x.detach(),
        "fork": model.fork(Autodiff(device)).ps[1], "view": x.detach()[:], "row": x.detach()[0], "turned": x.detach().T,
        "reshaped": x.detach().reshape((4,)), "pickle": pickle.loads(pickle.dumps(model)).ps[1],
        "deepcopy": copy.deepcopy(model).ps[1], "asarray": rt.asarray(x.detach()),
        "grown": rt.broadcast_to(x.detach(), (3, 2, 2)),
    }  # fmt: skip
    if device == rt.Cpu():
        kept["numpy view"] = np.asarray(x.detach())
        kept["dlpack"] = np.from_dlpack(x.detach())
        kept["a view of a numpy view"] = np.asarray(model.valid().ps[1])[1:]
    return kept


@pytest.mark.parametrize("name", ["sgd", "adam", "masters"])
@pytest.mark.parametrize("what", kept_of(many([(3,), (2, 2)]), rt.Cpu()))
def test_what_somebody_keeps_of_a_parameter_stays(what, name, device):
    """Each is the only thing kept, so that the copy is not due to another."""
    model, optimizer = many([(3,), (2, 2), (4,)], device=device), OPTIMIZERS[name]()
    for _ in range(2):
        model = optimizer.step(0.1, model, ones(model))
    kept = kept_of(model, device).get(what)
    if kept is None:
        pytest.skip("NumPy sees no GPU memory")
    gc.collect()
    values = (lambda: kept.tobytes()) if isinstance(kept, np.ndarray) else (lambda: kept.numpy().tobytes())
    now, moved = values(), model.ps[1].numpy().tobytes()
    for _ in range(2):
        model = optimizer.step(0.1, model, ones(model))
    assert values() == now and model.ps[1].numpy().tobytes() != moved


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_graph_recorded_before_the_step_keeps_the_values_that_it_saw(which, device):
    model, optimizer = many([(2,), (2,), (2,)], device=device), SgdConfig().init()
    model = optimizer.step(0.0, model, ones(model))
    p = model.ps[which]
    flat = p.reshape((2, 1))  # keeps a view of the memory, and not the parameter
    before = p.numpy()
    y = flat * flat
    optimizer.step(1.0, model, ones(model))
    np.testing.assert_array_equal(y.sum().backward()[p].numpy(), 2.0 * before)


def test_two_models_and_copies_of_the_optimizer_do_not_meet(device):
    model, optimizer = many(device=device), AdamWConfig().init()
    model = optimizer.step(0.1, model, ones(model))
    other, twin = model.clone(), copy.deepcopy(optimizer)
    third, spare = pickle.loads(pickle.dumps((model, optimizer)))
    valid = model.valid()
    for _ in range(2):
        model = optimizer.step(0.1, model, ones(model))
    for _ in range(2):
        other, third = twin.step(0.1, other, ones(other)), spare.step(0.1, third, ones(third))
    assert bits(model, optimizer) == bits(other, twin) == bits(third, spare)
    back = valid.train()  # the older values with the newer states
    before = bits(model, optimizer)[0]
    back = optimizer.step(0.1, back, ones(back))
    assert bits(model, optimizer)[0] == before  # the first model has kept its memory
    alone = twin.step(0.1, valid.train().clone(), ones(valid.train()))
    assert bits(back, optimizer) == bits(alone, twin)


@pytest.mark.parametrize("change", [lambda m: m.to_dtype(rt.float64), lambda m: m.to_dtype(rt.bfloat16), lambda m: m.clone()])
def test_a_model_whose_dtype_changes_goes_on_with_its_states(change, device, monkeypatch):
    def run():
        model, optimizer = many(device=device), AdamConfig().init()
        for _ in range(2):
            model = optimizer.step(0.1, model, ones(model))
        model = change(model)
        for missing in (1, 0):
            gradients = ones(model)
            gradients.remove(model.ps[missing])
            model = optimizer.step(0.1, model, gradients)
        return bits(model, optimizer)

    together = run()
    monkeypatch.setitem(room.SMALL, device.kind, -1)
    assert run() == together


@pytest.mark.parametrize("name", ["adam", "masters", "groups"])
def test_a_record_in_between_changes_nothing(name, device):
    make = OPTIMIZERS[name]
    model, optimizer = train(make, rt.float32, device, steps=5)
    again = make()
    again.load_record(optimizer.to_record(model), model)
    other = model.clone()
    for _ in range(2):
        model, other = optimizer.step(1e-2, model, ones(model)), again.step(1e-2, other, ones(other))
    assert bits(model, optimizer) == bits(other, again)


def test_a_rule_that_looks_at_the_whole_parameter_gets_each_by_itself(device):
    class Centered(ro.Sgd):
        """Sgd without the mean of the gradient, which is the mean of one parameter."""

        def update(self, xp, lr, p, g, state):
            super().update(xp, lr, p, g - g.mean(), state)

    model = many([(2,), (3,)], device=device)
    new = ro.Optimizer(Centered(SgdConfig())).step(1.0, model.clone(), ones(model))
    assert bits(new, SgdConfig().init())[0] == bits(model, SgdConfig().init())[0]
    assert not ro.MuonConfig().build().elementwise and not Centered(SgdConfig()).elementwise


def test_parameters_that_join_later_and_states_that_were_replaced(device):
    model, optimizer = many([(2,), (3,), (4,), (5,)], device=device), AdamConfig().init()
    gradients = ones(model)
    for p in model.ps[2:]:
        gradients.remove(p)
    model = optimizer.step(0.1, model, gradients)
    model = optimizer.step(0.1, model, ones(model))
    assert [optimizer.states[f"p{i}"]["time"] for i in range(4)] == [2, 2, 1, 1]
    optimizer.states["p0"] = {**optimizer.states["p0"], "time": 7}
    optimizer.step(0.1, model, ones(model))
    assert [optimizer.states[f"p{i}"]["time"] for i in range(4)] == [8, 3, 2, 2]


def test_a_rule_whose_state_follows_the_dtype_it_is_given_keeps_float32_through_a_record():
    class Own(ro.Rule):
        arrays = ("sum",)

        def start(self, xp, p):
            return {"time": 0, "sum": xp.zeros(p.shape, p.dtype)}

        def kernel(self, lr, time):
            def body(xp, p, g, total, t):
                xp.add(total, g, out=total)
                xp.subtract(p, xp.multiply(total, lr, out=t), out=p)

            return body

    model, optimizer = many([(2,), (3,)], rt.bfloat16), ro.Optimizer(Own(ro.OptimizerConfig()))
    for _ in range(3):
        model = optimizer.step(1e-3, model, give(*[(p, np.full(p.shape, 0.1)) for p in model.ps], dtype=rt.float32))
    again = ro.Optimizer(Own(ro.OptimizerConfig()))
    again.load_record(optimizer.to_record(), model)
    assert bits(model, again) == bits(model, optimizer) and again.states["p0"]["sum"].dtype == np.float32
