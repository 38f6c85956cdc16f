"""Buffers: state that is recorded, moved and copied with a model, and never trained."""
from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, checkpoint, no_grad, value_and_grad
from ruda_nn import BatchNormConfig, Buffer, LinearConfig, Module, Param, RecordMismatch, Sequential
from ruda_optim import (
    AdamConfig,
    GradientsAccumulator,
    GradientsParams,
    LBFGSConfig,
    SgdConfig,
    StepLrSchedulerConfig,
    TrainingRecord,
)
from ruda_record import BinBytesRecorder


class Counter(Module):
    """Counts its calls, in a buffer that two places share."""

    weight: Param
    calls: Buffer
    more: dict[str, Buffer]
    plain: rt.Tensor

    def forward(self, x):
        self.calls.set(self.calls.value + 1)
        return x * self.weight


def counter(device=None):
    device = device or rt.Cpu()
    calls = Buffer(rt.tensor([0], device=device))
    weight, more = Param(rt.tensor([2.0, 3.0], device=device)), {"same": calls, "own": buffer(device)}
    return Counter(weight, calls, more, rt.ones(1, device=device))


def buffer(device=None, values=(1.0, 2.0, 3.0)):
    return Buffer(rt.tensor(list(values), device=device or rt.Cpu()))


def net(device, strategy="none"):
    device = Autodiff(device, checkpointing=strategy)
    return Sequential(LinearConfig(3, 4).init(device), BatchNormConfig(4).init(device), rt.tanh, LinearConfig(4, 1).init(device))


def batch(device, seed=0):
    return rt.tensor(np.random.default_rng(seed).standard_normal((6, 3)).astype(np.float32), device=device)


def stats(model):
    return {path: b.tolist() for path, b in model.named_buffers()}


# the cell
def test_a_buffer_holds_a_tensor_and_is_set_to_like_ones_only(device):
    b = buffer(device)
    old = b.value
    b.set(rt.zeros(3, device=device))
    assert b.tolist() == [0, 0, 0] and old.tolist() == [1, 2, 3]
    assert (b.shape, b.dtype, b.size, b.nbytes) == ((3,), rt.float32, 3, 12)
    assert b.device == device and b.numpy().tolist() == [0, 0, 0] and repr(b) == "Buffer(3,) float32"
    for wrong in (rt.zeros(4, device=device), rt.zeros(3, dtype=rt.float64, device=device)):
        with pytest.raises(ValueError, match=r"Buffer\.set: got shape.*the buffer holds.*astype"):
            b.set(wrong)
    for wrong in (0.0, [0, 0, 0], np.zeros(3, np.float32)):
        with pytest.raises(TypeError, match=r"rt\.asarray"):
            b.set(wrong)
        with pytest.raises(TypeError, match=r"Buffer\(rt\.zeros"):
            Buffer(wrong)
    assert b.tolist() == [0, 0, 0]


def test_nothing_of_a_buffer_is_on_the_tape(device):
    x = rt.ones(3, device=device).require_grad()
    b = Buffer(x * 2.0)
    assert not b.value.is_require_grad()
    b.set(x * 3.0)
    assert not b.value.is_require_grad() and b.tolist() == [3, 3, 3]


def test_a_field_that_is_declared_a_buffer_is_one():
    with pytest.raises(TypeError, match=r"calls is a Buffer, got Tensor; Counter\(calls=Buffer\(tensor\)\)"):
        dataclasses.replace(counter(), calls=rt.zeros(1))
    with pytest.raises(TypeError, match="value of the class"):

        class Shared(Module):
            state = buffer()


# the walker
def test_the_walker_tells_buffers_from_parameters(device):
    model = counter(device)
    assert model.paths() == ["weight"] and model.num_params() == 2 and len(model.params()) == 1
    assert model.devices() == [device] and Sequential(rt.relu).devices() == []
    assert [path for path, _ in model.named_buffers()] == ["calls", "more.same", "more.own"]
    state = model.state_dict()
    assert list(state) == ["weight", "calls", "more.same", "more.own"]
    assert type(state["weight"]) is rt.Tensor and not state["weight"].is_require_grad() and state["weight"].tolist() == [2, 3]
    model(rt.ones(2, device=device))
    assert state["calls"].tolist() == [0] and model.state_dict()["more.same"].tolist() == [1]


def test_a_state_dict_is_out_of_the_reach_of_training(device):
    model = counter(device)
    state = model.state_dict()
    SgdConfig().init().step(1.0, model, GradientsParams({model.weight: rt.ones(2, device=device)}))
    assert state["weight"].tolist() == [2, 3]


def test_summary_and_repr_show_buffers():
    assert counter().summary().splitlines() == [
        "path       shape  dtype    params  bytes",
        "weight     (2,)   float32  2       8",
        "calls      (1,)   int32            4      buffer",
        "more.same  (1,)   int32            4      tied to calls buffer",
        "more.own   (3,)   float32          12     buffer",
        "total                      2       24",
    ]
    assert "calls=Buffer(1,) int32," in repr(counter()) and "'own': Buffer(3,) float32," in repr(counter())


# who shares a cell
@pytest.mark.parametrize("change", [
    lambda m: m.valid(), lambda m: m.train(), lambda m: m.clone(), lambda m: m.no_grad(), lambda m: m.to_dtype(rt.float64),
    lambda m: m.to_device(m.calls.device), lambda m: m.fork(Autodiff(m.calls.device)), lambda m: m.load_record(m.to_record()),
    lambda m: m.to_dtype_selected(rt.float64, [m.weight]), copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)),
])  # fmt: skip
def test_another_model_has_cells_of_its_own_and_ties_stay_ties(change, device):
    model = counter(device)
    x = rt.ones(2, device=device)
    model(x)
    other = change(model)
    assert other.calls is other.more["same"] and other.calls is not model.calls and other.calls.tolist() == [1]
    other(x), other(x)
    assert (model.calls.tolist(), other.calls.tolist(), other.more["own"].tolist()) == ([1], [3], [1, 2, 3])


def test_the_model_that_goes_on_keeps_its_cells(device):
    model = counter(device)
    assert model.map(lambda p: p).calls is model.calls and dataclasses.replace(model, plain=model.plain).calls is model.calls
    value_and_grad(lambda m: m(rt.ones(2, device=device)).sum())(model)
    assert model.calls.tolist() == [1]
    stepped = SgdConfig().init().step(1.0, model, GradientsParams({model.weight: rt.ones(2, device=device)}))
    stepped(rt.ones(2, device=device))
    assert stepped.calls.tolist() == [2] and stepped.more["same"].tolist() == [2]


def test_to_dtype_widens_buffers_and_leaves_them_for_half_types(device):
    model = counter(device)
    for half in (rt.float16, rt.bfloat16):
        out = model.to_dtype(half)
        assert out.weight.dtype == half and out.more["own"].dtype == rt.float32 and out.calls.dtype == rt.int32
    wide = model.to_dtype(rt.float64)
    assert wide.more["own"].dtype == rt.float64 and wide.to_dtype(rt.float32).more["own"].dtype == rt.float32
    norm = BatchNormConfig(2).init(Autodiff(rt.Cpu(float_dtype=rt.bfloat16)))
    assert norm.weight.dtype == rt.bfloat16 and norm.running_mean.dtype == rt.float32 == norm.running_var.dtype


@pytest.mark.gpu
def test_buffers_move_with_their_module():
    model, there = counter(rt.Cpu()), rt.Cuda(0)
    for out in (model.to_device(there), model.fork(there), model.fork(Autodiff(there))):
        assert out.calls.device == there and out.calls is out.more["same"] and out.plain.device == there
        out(rt.ones(2, device=there))
        assert out.to_device(rt.Cpu()).calls.tolist() == [1] and model.calls.tolist() == [0]


# training
@pytest.mark.parametrize("strategy", ["none", "balanced"])
@pytest.mark.parametrize("forgetful", [False, True])
def test_one_forward_is_one_update_however_often_it_is_computed(strategy, forgetful, device):
    """checkpoint runs the layer again in backward, and balanced checkpointing its operations: neither updates twice."""
    rt.random.seed(0)
    model, x = net(device, strategy), batch(device)
    plain = model.clone()
    plain(x)
    loss = (checkpoint(model) if forgetful else model)(x).sum()
    after = stats(model)
    loss.backward()
    assert stats(model) == after == stats(plain) and after["layers.1.running_mean"] != [0.0] * 4


def test_checkpoints_within_checkpoints_update_once_and_give_the_same_gradients(device):
    rt.random.seed(0)
    model, x = net(device), batch(device)
    twin = model.clone()
    inner = checkpoint(lambda x: model[1](model[0](x)))
    gradients = checkpoint(lambda x: model[3](model[2](inner(x))))(x).sum().backward()
    expected = twin(x).sum().backward()
    assert stats(model) == stats(twin)
    for p, q in zip(model.params(), twin.params(), strict=True):
        assert p.grad(gradients).tolist() == q.grad(expected).tolist()
    assert model(x).is_require_grad() and stats(model) != stats(twin)  # and it goes on after backward


def test_a_checkpoint_that_raises_while_it_recomputes_leaves_the_mode_as_it_was(device):
    model, x, calls = net(device), batch(device), []

    def fails_the_second_time(x):
        calls.append(1)
        if len(calls) == 2:
            raise ArithmeticError
        return model(x)

    loss = checkpoint(fails_the_second_time)(x).sum()
    with pytest.raises(ArithmeticError):
        loss.backward()
    before = stats(model)
    model(x)
    assert stats(model) != before


def test_inference_updates_nothing_and_recording_does_not_matter(device):
    model, x = net(device), batch(device)
    before = stats(model)
    still = model.valid()
    still(x)
    assert stats(still) == before == stats(model)
    with no_grad():
        model(x)
    assert stats(model) != before and stats(still) == before


def test_an_update_costs_no_wait_for_the_device(device, monkeypatch):
    model, x = net(device), batch(device)
    from ruda_tensor import backend

    def refuse(*args):
        raise AssertionError("a copy to the host")

    monkeypatch.setattr(backend, "to_host", refuse)
    model(x)
    model(x)
    with pytest.raises(AssertionError, match="a copy to the host"):
        stats(model)


@pytest.mark.parametrize("config", [AdamConfig(), SgdConfig()])
def test_training_goes_on_with_the_statistics_and_a_snapshot_does_not(config, device):
    rt.random.seed(0)
    model, optimizer = net(device), config.init()
    snapshot, record = model.valid(), model.to_record()
    fixed = copy.deepcopy(record)
    for i in range(3):
        loss = model(batch(device, i)).square().mean()
        model = optimizer.step(0.1, model, GradientsParams.from_grads(loss.backward(), model))
    expected = np.zeros(4)
    assert not np.allclose(model[1].running_mean.numpy(), expected)
    assert stats(snapshot) == {"layers.1.running_mean": [0.0] * 4, "layers.1.running_var": [1.0] * 4}
    assert all(np.array_equal(a["value"], b["value"]) for a, b in zip(record["buffers"]["values"], fixed["buffers"]["values"]))


def test_lbfgs_hands_the_statistics_on():
    model = net(rt.Cpu())
    optimizer = LBFGSConfig().init()
    model, _ = optimizer.step(1.0, model, lambda m: loss_and_gradients(m))
    assert model[1].running_mean.tolist() != [0.0] * 4


def loss_and_gradients(model):
    loss = model(batch(rt.Cpu())).square().mean()
    return loss, GradientsParams.from_grads(loss.backward(), model)


# records
def test_records_keep_buffers_and_models_without_any_keep_their_format(device):
    model = counter(device)
    model(rt.ones(2, device=device))
    record = model.to_record()
    assert set(record) == {"places", "params", "buffers"} and list(record["places"]) == ["weight"]
    assert record["buffers"]["places"] == {"calls": 0, "more.same": 0, "more.own": 1} and len(record["buffers"]["values"]) == 2
    assert set(LinearConfig(2, 1).init(device).to_record()) == {"places", "params"}
    for keep in (True, False):
        out = counter(device).load_record(record, keep_dtype=keep)
        assert out.calls.tolist() == [1] and out.calls is out.more["same"] and out.weight.id == model.weight.id
    fresh = counter(device).to_dtype(rt.float64)
    assert fresh.load_record(record).more["own"].dtype == rt.float64
    assert fresh.load_record(record, keep_dtype=False).more["own"].dtype == rt.float32
    model(rt.ones(2, device=device))
    assert record["buffers"]["values"][0]["value"].tolist() == [1]


def test_two_buffers_over_one_tensor_are_restored_apart():
    """A clone shares its tensors, and so may two buffers; their cells are what counts."""
    same = rt.zeros(2, device=rt.Cpu())

    class Two(Module):
        a: Buffer
        b: Buffer

    model, fresh = Two(Buffer(same), Buffer(same)), Two(Buffer(same), Buffer(same))
    model.a.set(same + 1.0)
    out = fresh.load_record(model.to_record())
    assert out.a.tolist() == [1, 1] and out.b.tolist() == [0, 0] and out.a is not out.b


class Untied(Module):
    weight: Param
    calls: Buffer
    more: dict[str, Buffer]


@pytest.mark.parametrize("change,message", [
    (lambda m: dataclasses.replace(m, more={"own": m.more["own"]}), r"more\.same: missing \| buffer"),
    (lambda m: dataclasses.replace(m, more={**m.more, "new": buffer()}), r"more\.new: buffer \| missing"),
    (lambda m: dataclasses.replace(m, calls=Buffer(rt.tensor([0]))), r"more\.same: not tied \| tied to calls"),
    (lambda m: dataclasses.replace(m, more={**m.more, "own": buffer(values=[1.0])}), r"more\.own: shape \(1,\) \| \(3,\)"),
    (lambda m: dataclasses.replace(m, more={**m.more, "own": Buffer(rt.tensor([1, 2, 3]))}), r"more\.own: int32 \| float32"),
    (lambda m: dataclasses.replace(m, more={**m.more, "own": Param(rt.ones(3))}), r"more\.own: trainable \| buffer"),
    (lambda m: Nothing(m.weight), r"calls: missing \| buffer"),
])  # fmt: skip
def test_a_record_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    model = counter()
    record = change(counter()).to_record()
    with pytest.raises(RecordMismatch, match=message):
        model.load_record(record)
    assert model.calls.tolist() == [0] and model.more["own"].tolist() == [1, 2, 3]


class Nothing(Module):
    weight: Param


@pytest.mark.parametrize("change,message", [
    (lambda r: {**r, "buffers": 3}, "buffers should hold places and a list of values"),
    (lambda r: {**r, "buffers": {**r["buffers"], "values": []}}, "calls should be one of 0 buffers, not 0"),
    (lambda r: {**r, "buffers": {**r["buffers"], "places": {"calls": True}}}, "calls should be one of 2 buffers, not True"),
    (lambda r: {**r, "buffers": {**r["buffers"], "places": []}}, "places of its model's buffers should be a dict"),
    (lambda r: {**r, "buffers": {**r["buffers"], "values": [1, 2]}}, "buffer 0 should be an array"),
    (lambda r: {**r, "buffers": {**r["buffers"], "places": {"weight": 0}}}, "weight is a parameter and a buffer"),
    (lambda r: {**r, "other": 1}, "should hold places and params"),
])  # fmt: skip
def test_broken_records_are_refused_by_what_is_wrong(change, message):
    from ruda_record import RecorderError

    with pytest.raises(RecorderError, match=message):
        counter().load_record(change(counter().to_record()))


def test_one_path_for_a_buffer_and_a_parameter_is_refused():
    class Names(Module):
        a: dict

    with pytest.raises(ValueError, match="'a.b.c'.*rename"):
        Names({"b.c": Param(rt.ones(1)), "b": {"c": buffer()}}).to_record()


def test_a_training_record_resumes_bit_for_bit(device):
    """Two steps, a record through bytes, two more: the same weights, statistics and predictions as four steps."""

    def parts(seed):
        rt.random.seed(seed)
        return net(device), AdamConfig().init(), StepLrSchedulerConfig(0.1, 5).init()

    def train(model, optimizer, scheduler, steps):
        for i in steps:
            loss = model(batch(device, i)).square().mean()
            model = optimizer.step(scheduler.step(), model, GradientsParams.from_grads(loss.backward(), model))
        return model

    expected = train(*parts(0), range(4))
    model, optimizer, scheduler = parts(0)
    model = train(model, optimizer, scheduler, range(2))
    record = TrainingRecord.capture(model, optimizer, scheduler, GradientsAccumulator())
    train(model, optimizer, scheduler, range(2, 4))  # cannot reach the record
    recorder = BinBytesRecorder()
    data = recorder.load(recorder.save(record.data))
    restored = TrainingRecord(data).restore(*parts(1), Autodiff(device))
    out = train(restored.model, restored.optimizer, restored.scheduler, range(2, 4))
    for (path, x), y in zip(out.state_dict().items(), expected.state_dict().values(), strict=True):
        assert x.numpy().tobytes() == y.numpy().tobytes(), path
    assert stats(out) == stats(expected)
