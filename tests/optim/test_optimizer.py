"""The shell around the rules: ties, frozen and missing ones, consumption, memory, refusals, records."""
from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_autodiff import Autodiff, checkpoint, custom_gradient
from ruda_nn import LinearConfig, Module, Param, RecordMismatch
from ruda_optim import AdamConfig, AdamWConfig, GradientsParams, Optimizer, SgdConfig
from ruda_record import RecorderError

from ._helpers import Pair, Point, give, param, point


class Tied(Module):
    """y = (x w) w: one parameter in two places."""

    first: Param
    second: Param

    def forward(self, x):
        return x * self.first * self.second


def tied(value=2.0, device=None):
    w = param(value, device=device)
    return Tied(w, w)


# ties
def test_OPTIM_09_a_tied_parameter_has_one_gradient_one_update_and_one_state(device):
    model, optimizer = tied(device=device), SgdConfig(momentum=0.5).init()
    loss = model(rt.tensor(3.0, device=device))
    gradients = GradientsParams.from_grads(loss.backward(), model)
    assert len(gradients) == 1 and gradients[model.first].item() == 12.0  # d(3 w^2) = 6 w
    model = optimizer.step(0.1, model, gradients)
    assert model.first is model.second and model.first.item() == pytest.approx(0.8)
    assert len(optimizer.states) == 1 and optimizer.states[model.first.id]["time"] == 1


def test_OPTIM_09_the_same_identity_in_two_objects_is_still_one_parameter(device):
    a = param(1.0, device=device)
    model = Pair(a, param(1.0, device=device, id=a.id))
    loss = model.a * 1.0 + model.b * 2.0
    gradients = GradientsParams.from_grads(loss.backward(), model)
    assert gradients[a].item() == 3.0
    new = SgdConfig().init().step(0.1, model, gradients)
    assert new.a is new.b and new.a.item() == pytest.approx(0.7)
    assert model.a.is_consumed() and model.b.is_consumed()


def test_tied_parameters_of_different_shapes_are_refused():
    a = param([1.0, 2.0])
    model = Pair(a, param([1.0], id=a.id))
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        SgdConfig().init().step(0.1, model, give((a, [1.0, 1.0])))
    assert model.a.tolist() == [1.0, 2.0]


# missing and frozen
def test_OPTIM_07_no_gradient_is_not_a_zero_gradient(device):
    for gradient, expected in ((None, 0.9), (0.0, 0.81)):
        model, optimizer = Pair(param(1.0, rt.float64, device), param(1.0, rt.float64, device)), SgdConfig(momentum=0.9).init()
        model = optimizer.step(0.1, model, give((model.a, 1.0), (model.b, 1.0)))
        state = copy.deepcopy(optimizer.states[model.a.id])
        given = [(model.b, 1.0)] + ([] if gradient is None else [(model.a, gradient)])
        model = optimizer.step(0.1, model, give(*given))
        assert model.a.item() == pytest.approx(expected, abs=1e-15)
        if gradient is None:
            assert optimizer.states[model.a.id] == state
    model, optimizer = Pair(param(1.0), param(1.0)), AdamWConfig(weight_decay=0.5).init()
    new = optimizer.step(0.1, model, give((model.b, 1.0)))
    assert new.a is model.a and new.a.item() == 1.0 and list(optimizer.states) == [model.b.id]


def test_contract_18_a_step_without_any_gradient_changes_nothing():
    model, optimizer = point([1.0, 2.0]), AdamWConfig().init()
    new = optimizer.step(0.1, model, GradientsParams())
    assert new.x is model.x and not model.x.is_consumed() and not optimizer.states


def test_OPTIM_08_frozen_parameters_keep_value_and_state_and_thaw(device):
    model, optimizer = Pair(param([1.0], device=device), param([1.0], device=device)), AdamWConfig(weight_decay=0.5).init()

    def both(m, optimizer, count):
        for _ in range(count):
            m = optimizer.step(0.1, m, give((m.a, [1.0]), (m.b, [1.0])))
        return m

    model = both(model, optimizer, 2)
    frozen = Pair(model.a.set_require_grad(False), model.b)
    value, state = frozen.a.numpy(), copy.deepcopy(optimizer.states[model.a.id])
    for _ in range(2):  # a stale gradient for the frozen one comes along
        frozen = optimizer.step(0.1, frozen, give((frozen.a, [1.0]), (frozen.b, [1.0])))
    assert frozen.a.numpy().tobytes() == value.tobytes() and not frozen.a.is_require_grad()
    assert optimizer.states[frozen.a.id]["time"] == state["time"] == 2 and optimizer.states[frozen.b.id]["time"] == 4
    thawed = both(Pair(frozen.a.require_grad(), frozen.b), optimizer, 1)
    straight = both(Pair(param([1.0], device=device), param([1.0], device=device)), AdamWConfig(weight_decay=0.5).init(), 3)
    assert thawed.a.numpy().tobytes() == straight.a.numpy().tobytes()


def test_contract_19_frozen_ones_have_no_gradient_and_no_state(device):
    model = LinearConfig(2, 1).init(Autodiff(device))
    model = type(model)(weight=model.weight.set_require_grad(False), bias=model.bias)
    optimizer, before = AdamWConfig(weight_decay=0.1).init(), model.weight.numpy()
    assert optimizer.states == {}
    x = rt.ones((4, 2), device=device)
    for _ in range(3):
        gradients = GradientsParams.from_grads(model(x).square().sum().backward(), model)
        assert gradients.ids() == [model.bias.id]
        model = optimizer.step(0.1, model, gradients)
    assert model.weight.numpy().tobytes() == before.tobytes() and list(optimizer.states) == [model.bias.id]


def test_a_frozen_alias_keeps_the_old_values(device):
    w = param([1.0, 2.0], device=device)
    model = Pair(w, w.set_require_grad(False))
    new = SgdConfig().init().step(1.0, model, give((w, [1.0, 1.0])))
    assert new.a.tolist() == [0.0, 1.0] and new.b.tolist() == [1.0, 2.0] and new.b is model.b


# consumption and memory
def uses():
    x = rt.ones((2,), device=rt.Cpu())
    return {
        "x + p": lambda p: x + p, "p + x": lambda p: p + x, "p * 2": lambda p: p * 2.0, "2 * p": lambda p: 2.0 * p,
        "-p": lambda p: -p, "exp": rt.exp, "x @ p": lambda p: x @ p, "p @ x": lambda p: p @ x, "sum": lambda p: p.sum(),
        "softmax": rt.softmax, "p[0]": lambda p: p[0], "shape": lambda p: p.shape, "dtype": lambda p: p.dtype,
        "numpy": lambda p: p.numpy(), "item": lambda p: p.item(), "tolist": lambda p: p.tolist(), "float": float,
        "bool": bool, "concat": lambda p: rt.concat([x, p]), "where": lambda p: rt.where(x > 0, x, p),
        "copy": lambda p: p.copy(),
        "detach": lambda p: p.detach().sum(), "np.asarray": lambda p: np.asarray(p.detach()),
        "astype": lambda p: p.astype(rt.float16),
        "pickle": pickle.dumps, "deepcopy": copy.deepcopy, "require_grad": lambda p: p.require_grad(),
        "p == x": lambda p: p == x,
        "reshape": lambda p: p.reshape((1, 2)), "to float64": lambda p: x.astype(rt.float64) + p, "len": len, "iter": list,
        "asarray": rt.asarray, "tensor": rt.tensor, "zeros_like": rt.zeros_like, "Param": Param, "mean": rt.mean,
        "pair": lambda p: rt.maximum(p, x), "linear": lambda p: rt.linear(x[None], p[:, None]),
        "map": lambda p: Point(p).to_dtype(rt.float16), "record": lambda p: Point(p).to_record(),
        "clone": lambda p: Point(p).clone(),
        "valid": lambda p: Point(p).valid().x.sum(), "summary": lambda p: Point(p).summary(),
        "step": lambda p: SgdConfig().init().step(0.1, Point(p), GradientsParams()).x.sum(),
    }  # fmt: skip


@pytest.mark.parametrize("use", uses())
def test_a_consumed_parameter_says_so_whatever_is_asked_of_it(use):
    model = point([1.0, 2.0])
    SgdConfig().init().step(0.1, model, give((model.x, [1.0, 1.0])))
    with pytest.raises(RuntimeError, match=r"(?s)consumed.*model = optimizer\.step"):
        out = uses()[use](model.x)
        print(out.numpy())  # where only a reference was made, looking at it raises
    assert model.x.is_consumed() and "consumed" in repr(model.x) and "consumed" in repr(model)


def test_clones_views_and_captures_survive_the_step(device):
    model, optimizer = point([1.0, 2.0], device=device), AdamConfig().init()
    model = optimizer.step(0.1, model, give((model.x, [1.0, 1.0])))  # from here on the memory is the model's own
    now = model.x.numpy().tobytes()
    kept = {
        "clone": model.clone().x, "valid": model.valid().x, "train": model.train().x, "no_grad": model.no_grad().x,
        "fork": model.fork(Autodiff(device)).x, "detach": model.x.detach(), "to_dtype": model.to_dtype(rt.float32).x,
        "view": model.x.detach()[:], "reshaped": model.x.detach().reshape((2, 1)), "deepcopy": copy.deepcopy(model).x,
        "pickle": pickle.loads(pickle.dumps(model)).x, "tensor": rt.tensor(model.x), "asarray": rt.asarray(model.x.detach()),
    }  # fmt: skip
    if device == rt.Cpu():
        kept["numpy view"] = np.asarray(model.x.detach())
        kept["dlpack"] = np.from_dlpack(model.x.detach())
        kept["numpy view of a valid model"] = np.asarray(model.valid().x)
    for _ in range(2):
        model = optimizer.step(0.1, model, give((model.x, [1.0, 1.0])))
    for name, x in kept.items():
        values = x if isinstance(x, np.ndarray) else x.numpy()
        assert values.tobytes() == now, name


def test_the_memory_of_the_old_model_is_reused(device):
    model, optimizer = point(np.ones(1000), device=device), AdamConfig().init()
    model = optimizer.step(0.1, model, give((model.x, np.ones(1000))))
    array = model.x._data
    del array
    where = id(model.x._data)
    for _ in range(3):
        model = optimizer.step(0.1, model, give((model.x, np.ones(1000))))
    assert id(model.x._data) == where
    held = model.x._data  # somebody else sees it: it is left alone
    model = optimizer.step(0.1, model, give((model.x, np.ones(1000))))
    assert model.x._data is not held


def test_memory_falls_without_the_garbage_collector(device):
    import weakref

    model, optimizer = LinearConfig(3, 2).init(Autodiff(device)), AdamConfig().init()
    x = rt.ones((4, 3), device=device)
    gc.disable()
    try:
        gradients = GradientsParams.from_grads(model(x).square().sum().backward(), model)
        old, node = weakref.ref(model.weight), weakref.ref(model.weight._node)
        model = optimizer.step(0.1, model, gradients)
        assert old() is None and node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["plain", "kept output", "checkpoint", "balanced", "custom", "tied", "view"])
def test_TAPE_05_c_a_graph_recorded_before_the_step_gives_the_right_gradient_or_raises(how, device):
    strategy = "balanced" if how == "balanced" else "none"
    model = Point(Param(rt.tensor([2.0, 3.0], device=device), device=Autodiff(device, checkpointing=strategy)))
    optimizer = SgdConfig().init()
    model = optimizer.step(0.0, model, give((model.x, [1.0, 1.0])))
    x = model.x

    @custom_gradient
    def square(t):
        return t * t, lambda g: g * t * 2.0

    y = {
        "plain": lambda: x * x,
        "kept output": lambda: rt.exp(x),
        "checkpoint": lambda: checkpoint(lambda t: t * t)(x),
        "balanced": lambda: rt.exp(x * x),
        "custom": lambda: square(x),
        "tied": lambda: x * x.detach() + x.detach() * x,
        "view": lambda: x.reshape((2, 1)) * x.reshape((2, 1)),
    }[how]()
    right = [float(np.exp(2)), float(np.exp(3))] if how == "kept output" else [4.0, 6.0]
    if how == "balanced":
        right = [4.0 * float(np.exp(4)), 6.0 * float(np.exp(9))]
    optimizer.step(1.0, model, give((model.x, [7.0, 7.0])))
    try:
        got = y.sum().backward()[x].tolist()
    except RuntimeError as error:
        assert "consumed" in str(error) and how not in ("kept output", "tied", "view")
    else:
        np.testing.assert_allclose(got, right, rtol=1e-6)


def test_a_step_that_fails_half_way_leaves_no_half_updated_model():
    class Faulty(ro.Rule):
        def kernel(self, lr, time):
            def body(xp, p, g, t):
                if 2.0 in p:
                    raise MemoryError("full")
                xp.subtract(p, g, out=p)

            return body

    model, optimizer = Pair(param([1.0]), param([1.0, 2.0])), Optimizer(Faulty(ro.OptimizerConfig()))
    safe = optimizer.to_record()
    kept = model.clone()
    with pytest.raises(MemoryError):
        optimizer.step(0.1, model, give((model.a, [1.0]), (model.b, [1.0, 1.0])))
    assert model.a.is_consumed() and model.b.is_consumed()
    for call in (lambda: optimizer.step(0.1, kept, give((kept.a, [1.0]))), optimizer.to_record):
        with pytest.raises(RuntimeError, match="half-way"):
            call()
    optimizer.load_record(safe, kept)
    assert optimizer.step(0.1, kept, give((kept.a, [1.0]))).a.tolist() == [0.0]


# refusals
def test_wrong_calls_are_refused_before_anything_changes(device):
    model, optimizer = LinearConfig(2, 1).init(Autodiff(device)), AdamConfig().init()
    good = give((model.weight, [[1.0], [1.0]]), (model.bias, [1.0]))
    before = [p.numpy().tobytes() for p in model.params()]
    raw = model(rt.ones((1, 2), device=device)).sum().backward()
    bad = give((model.weight, [[1.0], [1.0]]))
    bad._by_id[model.bias.id] = rt.ones((3,), device=device)
    stranger = point([1.0])
    for call, kind, message in (
        (lambda: optimizer.step(-0.1, model, good), ValueError, "learning rate.*-0.1"),
        (lambda: optimizer.step(float("nan"), model, good), ValueError, "finite"),
        (lambda: optimizer.step(float("inf"), model, good), ValueError, "finite"),
        (lambda: optimizer.step(model, 0.1, good), TypeError, r"step\(lr, model, gradients\)"),
        (lambda: optimizer.step("fast", model, good), TypeError, r"step\(lr, model, gradients\)"),
        (lambda: optimizer.step(0.1, good, model), TypeError, "expected a Module"),
        (lambda: optimizer.step(0.1, model, raw), TypeError, "GradientsParams.from_grads"),
        (lambda: optimizer.step(0.1, model, bad), ValueError, r"\(3,\).*\(1,\)"),
        (lambda: optimizer.step(0.1, model, give((stranger.x, [1.0]))), ValueError, "another model"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert not optimizer.states and [p.numpy().tobytes() for p in model.params()] == before
    optimizer.step(0.1, model, good)


@pytest.mark.gpu
def test_a_gradient_on_another_device_is_refused():
    model = point([1.0])
    gradients = give((model.x, [1.0])).to_device(rt.Cuda(0))
    with pytest.raises(ValueError, match=r"to_device"):
        SgdConfig().init().step(0.1, model, gradients)


# records
def test_OPTIM_13_states_follow_names_and_not_positions():
    class Forward(Module):
        a: Param
        b: Param

    class Backward(Module):
        b: Param
        a: Param

    rng = np.random.default_rng(0)
    gradients = [rng.standard_normal((2, 3, 3)).astype(np.float32) for _ in range(4)]
    model, optimizer = Forward(param(np.ones((3, 3))), param(np.zeros((3, 3)))), AdamConfig().init()
    for a, b in gradients[:3]:
        model = optimizer.step(0.1, model, give((model.a, a), (model.b, b)))
    fresh, again = Backward(a=param(np.zeros((3, 3))), b=param(np.zeros((3, 3)))), AdamConfig().init()
    other = fresh.load_record(model.to_record())
    again.load_record(optimizer.to_record(), other)
    (a, b), = gradients[3:]
    model, other = (
        o.step(0.1, m, give((m.a, a), (m.b, b))) for o, m in ((optimizer, model), (again, other))
    )
    assert model.a.numpy().tobytes() == other.a.numpy().tobytes() and model.b.numpy().tobytes() == other.b.numpy().tobytes()


def test_a_record_is_a_snapshot_and_a_rejected_one_changes_nothing(device):
    model, optimizer = point([1.0, 2.0], device=device), AdamConfig().init()
    model = optimizer.step(0.1, model, give((model.x, [1.0, 1.0])))
    key, record = model.x.id, optimizer.to_record()
    model = optimizer.step(0.1, model, give((model.x, [1.0, 1.0])))
    assert record["states"][key]["time"] == 1 and record["states"][key]["exp_avg"]["value"].tolist() == [np.float32(0.1)] * 2
    state = record["states"][key]
    short = {"dtype": "float32", "value": np.zeros(3, np.float32)}
    whole = {"dtype": "int32", "value": np.zeros(2, np.int32)}
    before = copy.deepcopy(optimizer.to_record())

    def same(a, b):
        return pickle.dumps(a) == pickle.dumps(b)

    for bad, kind, message in (
        ({**record, "config": {**record["config"], "eps": 1e-6}}, RecordMismatch, r"eps: 1e-06 \| 1e-08"),
        ({**record, "config": SgdConfig().build().describe()}, RecordMismatch, r"rule: 'Sgd' \| 'Adam'"),
        ({**record, "states": {"feed": state}}, RecordMismatch, "feed"),
        ({**record, "states": {key: {**state, "exp_avg": short}}}, RecordMismatch, r"exp_avg.*\(3,\).*\(2,\)"),
        ({**record, "states": {key: {**state, "exp_avg": whole}}}, RecordMismatch, "int32"),
        ({**record, "states": {key: {**state, "time": 1.0}}}, RecordMismatch, r"time.*1\.0"),
        ({**record, "states": {key: {"time": 1}}}, RecordMismatch, "exp_avg"),
        ({**record, "states": {key: None}}, RecordMismatch, "NoneType"),
        ({**record, "states": {key: {**state, "exp_avg": 1.0}}}, RecorderError, "not valid"),
        ({"states": {}}, RecorderError, "not valid"),
        ([], RecorderError, "not valid"),
        ({**record, "config": None}, RecorderError, "not valid"),
    ):
        with pytest.raises(kind, match=message) as error:
            optimizer.load_record(bad, model)
        assert isinstance(error.value, ValueError)
        assert same(optimizer.to_record(), before)
    optimizer.load_record(record, model)
    assert optimizer.states[key]["time"] == 1 and record["states"][key]["exp_avg"]["value"].tolist() == [np.float32(0.1)] * 2
    optimizer.step(0.1, model, give((model.x, [1.0, 1.0])))
    assert record["states"][key]["exp_avg"]["value"].tolist() == [np.float32(0.1)] * 2  # the record is not the state


def test_states_of_parameters_that_were_replaced_are_not_captured():
    model, optimizer = Pair(param([1.0]), param([1.0])), AdamConfig().init()
    model = optimizer.step(0.1, model, give((model.a, [1.0]), (model.b, [1.0])))
    model = Pair(model.a, param([5.0]))
    assert list(optimizer.to_record(model)["states"]) == [model.a.id] and len(optimizer.to_record()["states"]) == 2
    AdamConfig().init().load_record(optimizer.to_record(model), model)


def test_states_follow_the_precision_of_the_model_that_they_are_loaded_beside():
    model, optimizer, again = point([1.0, 2.0], rt.float64), AdamConfig().init(), AdamConfig().init()
    model = optimizer.step(0.1, model, give((model.x, [1.0, 3.0])))
    narrow = model.to_dtype(rt.float32)
    again.load_record(optimizer.to_record(), narrow)
    assert again.states[model.x.id]["exp_avg"].dtype == np.float32
    assert again.step(0.1, narrow, give((narrow.x, [1.0, 3.0]))).x.dtype == rt.float32


def test_betas_as_a_list_or_numpy_numbers_are_the_same_configuration():
    model = point([1.0])
    record = AdamConfig(betas=[np.float64(0.9), 0.999], eps=np.float32(0.5)).init().to_record()
    AdamConfig(eps=0.5).init().load_record(record, model)


def test_an_optimizer_can_be_copied_and_shown():
    model, optimizer = point([1.0]), AdamConfig().init()
    model = optimizer.step(0.1, model, give((model.x, [1.0])))
    assert repr(optimizer) == "Optimizer(Adam, 1 states)"
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        other = model.clone()
        for _ in range(2):
            other = twin.step(0.1, other, give((other.x, [1.0])))
        assert twin.states[model.x.id]["time"] == 3 and optimizer.states[model.x.id]["time"] == 1
