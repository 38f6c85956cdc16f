"""Training records: capture, save, load, restore, and what is refused."""
from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig, Module, Param, RecordMismatch
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    Fp32MasterOptimizer,
    GradientsAccumulator,
    GradientsParams,
    LBFGSConfig,
    SgdConfig,
    StepLrSchedulerConfig,
    TrainingRecord,
)  # fmt: skip
from ruda_record import (
    BinBytesRecorder,
    BinFileRecorder,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    RecorderError,
)  # fmt: skip

from ._helpers import give, param


def parts(device=None):
    model = LinearConfig(2, 1).init(Autodiff(device or rt.Cpu()))
    return model, AdamConfig().init(), StepLrSchedulerConfig(0.1, 2).init()


def trained(device=None):
    """Parts after two updates, and one micro-batch pending."""
    model, optimizer, scheduler = parts(device)
    accumulator = GradientsAccumulator()
    x = rt.ones((3, 2), device=model.weight.device)
    for _ in range(3):
        accumulator.accumulate(model, GradientsParams.from_grads(model(x).square().mean().backward(), model))
        if scheduler.calls < 2:
            model = optimizer.step(scheduler.step(), model, accumulator.grads())
    return model, optimizer, scheduler, accumulator


class Memory:
    """A recorder to and from bytes, with the calls of one for files."""

    def __init__(self, settings=FullPrecisionSettings):
        self.inner, self.data = BinBytesRecorder(settings), b""

    def save(self, data: Any, path: Any) -> Any:
        self.data = self.inner.save(data)
        return path

    def load(self, path: Any) -> Any:
        return self.inner.load(self.data)


def through(record, settings=FullPrecisionSettings):
    memory = Memory(settings)
    record.save(memory, "x")
    return TrainingRecord.load(memory, "x")


def bits(value):
    """Nested data with the bits of its arrays, to be compared by ==."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, dict):
        return {key: bits(inner) for key, inner in value.items()}
    return [bits(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(*items):
    """Everything a record says of some parts, to be compared by ==."""
    return bits([item.to_record() for item in items])


def test_contract_37_a_capture_changes_nothing(device):
    model, optimizer, scheduler, accumulator = trained(device)
    before = plain(model, optimizer, scheduler, accumulator)
    identities = [id(p) for p in model.params()]
    TrainingRecord.capture(model, optimizer, scheduler, accumulator, {"a": [1]})
    assert plain(model, optimizer, scheduler, accumulator) == before and [id(p) for p in model.params()] == identities
    assert scheduler.calls == 2 and len(accumulator) == 2 and not model.weight.is_consumed()


def test_contract_39_a_restore_brings_ids_values_states_position_and_pending(device, tmp_path):
    everything = trained(device)
    record = TrainingRecord.capture(*everything, (2, 1))
    path = record.save(BinFileRecorder(FullPrecisionSettings), tmp_path / "new" / "folder" / "step-2")
    assert path.name == "step-2.bin"
    model, optimizer, scheduler = parts(device)
    old_ids, given = [p.id for p in model.params()], model
    restored = TrainingRecord.load(BinFileRecorder, path, device).restore(model, optimizer, scheduler, device)
    assert plain(restored.model, optimizer, scheduler, restored.accumulator) == plain(*everything)
    assert restored.optimizer is optimizer and restored.scheduler is scheduler and restored.state == (2, 1)
    assert [p.id for p in restored.model.params()] != old_ids == [p.id for p in given.params()]
    assert restored.model.weight.is_require_grad() and not given.weight.is_consumed()


def test_tracking_follows_the_model_that_is_restored_into(device):
    record = TrainingRecord.capture(*trained(device))
    _, optimizer, scheduler = parts(device)
    untracked = LinearConfig(2, 1).init(device)
    assert not record.restore(untracked, optimizer, scheduler, device).model.weight.is_require_grad()
    assert record.restore(untracked, *parts(device)[1:], Autodiff(device)).model.weight.is_require_grad()


def test_two_restores_do_not_share_memory_with_each_other_or_the_record(device):
    seen = {"seen": np.array([1, 2])}
    record = TrainingRecord.capture(*trained(device), seen)
    seen["seen"][1] = 77  # the caller goes on with its own
    first, second = (record.restore(*parts(device), device) for _ in range(2))
    expected = plain(second.model, second.optimizer, second.accumulator)
    first.state["seen"][0] = 99
    first.optimizer.step(0.1, first.model, first.accumulator.grads())
    assert plain(second.model, second.optimizer, second.accumulator) == expected and second.state["seen"].tolist() == [1, 2]
    third = record.restore(*parts(device), device)
    assert plain(third.model, third.optimizer, third.accumulator) == expected and third.state["seen"].tolist() == [1, 2]


def test_the_callers_state_is_any_plain_data(tmp_path):
    state = {
        "random": rt.random.get_state(), "epoch": 3, "order": np.arange(5), "loss": 0.5, "nested": [(1, 2), {"x": None}],
        "big": 2**70, "name": "run", "done": True, "scalar": np.float64(0.1), "0-d": np.array(3.0),
    }  # fmt: skip
    record = through(TrainingRecord.capture(*trained(), state))
    back = record.restore(*parts()).state
    assert back.keys() == state.keys() and back["nested"] == [(1, 2), {"x": None}] and back["0-d"].shape == ()
    rt.random.set_state(back["random"])
    with pytest.raises(RecorderError, match=r"numpy\(\)"):
        TrainingRecord.capture(*trained(), rt.ones((2,))).save(BinFileRecorder(), tmp_path / "x")
    assert TrainingRecord.capture(*trained()).restore(*parts()).state is None


class Everything(Module):
    """Ties, a frozen alias, a frozen one, 0-d, empty, all float dtypes, integers, containers."""

    table: Param
    head: Param
    alias: Param
    frozen: Param
    scalar: Param
    empty: Param
    double: Param
    brain: Param
    half: Param
    steps: Param
    layers: list[Linear]
    named: dict[str, Param]
    pair: tuple[Param, Param]
    maybe: Param | None = None
    width: int = 3


def everything(fill=0.5):
    table = param([[fill, 1.0]])
    return Everything(
        table, table, table.set_require_grad(False), param([fill], trainable=False), param(fill), param(np.zeros((0, 2))),
        param([fill / 3], rt.float64), param([fill], rt.bfloat16), param([fill], rt.float16), Param(rt.tensor([7, 8])),
        [LinearConfig(2, 2).init(Autodiff(rt.Cpu())) for _ in range(2)], {"b": param([fill]), "a": param([fill])},
        (param([fill]), param([fill])),
    )  # fmt: skip


@pytest.mark.parametrize("settings", [FullPrecisionSettings, DoublePrecisionSettings, HalfPrecisionSettings])
def test_a_round_trip_keeps_shapes_dtypes_ties_flags_and_full_bits(settings):
    model, optimizer = everything(), AdamConfig().init()
    model = optimizer.step(0.1, model, GradientsParams({p: rt.ones_like(p.detach()) for p in model.params() if p.trainable}))
    record = TrainingRecord.capture_with_dtypes(model, optimizer, parts()[2], GradientsAccumulator())
    fresh = everything(0.0)
    restored = through(record, settings).restore_with_dtypes(fresh, AdamConfig().init(), parts()[2])
    back = restored.model
    assert back.table is back.head and back.alias is not back.table and back.alias.id == back.table.id
    for (path, p), (other, q) in zip(model.named_params(), back.named_params(), strict=True):
        assert (path, p.id, p.trainable, p.shape, p.dtype) == (other, q.id, q.trainable, q.shape, q.dtype)
        assert p.is_require_grad() == q.is_require_grad() and isinstance(q._data, np.ndarray)
        if settings is not HalfPrecisionSettings or p.dtype in (rt.bfloat16, rt.float16, rt.int32):
            assert p.numpy().tobytes() == q.numpy().tobytes(), path
    for key, state in optimizer.states.items():
        again = restored.optimizer.states[key]
        assert again["time"] == state["time"] and all(again[k].dtype == state[k].dtype for k in ("exp_avg", "exp_avg_sq"))
    restored.optimizer.step(0.1, back, GradientsParams({p: rt.ones_like(p.detach()) for p in back.params() if p.trainable}))


def test_contract_41_plain_restores_values_and_the_other_storage_dtypes_too(device):
    model, _, scheduler = parts(device)
    model = type(model)(weight=model.to_dtype(rt.bfloat16).weight, bias=model.bias)
    masters = lambda: Fp32MasterOptimizer(AdamWConfig().build()).init()  # noqa: E731
    plain_record = TrainingRecord.capture(model, masters(), scheduler, GradientsAccumulator())
    typed = TrainingRecord.capture_with_dtypes(model, masters(), scheduler, GradientsAccumulator())
    fresh = parts(device)[0]
    back = through(plain_record).restore(fresh, masters(), parts()[2], device).model
    assert back.weight.dtype == rt.float32
    np.testing.assert_array_equal(back.weight.numpy(), model.weight.astype(rt.float32).numpy())
    back = through(typed).restore_with_dtypes(fresh, masters(), parts()[2], device).model
    assert (back.weight.dtype, back.bias.dtype) == (rt.bfloat16, rt.float32)
    assert through(typed).restore(fresh, masters(), parts()[2], device).model.weight.dtype == rt.float32
    with pytest.raises(ValueError, match="capture_with_dtypes"):
        through(plain_record).restore_with_dtypes(fresh, masters(), parts()[2], device)


class Wide(Module):
    weight: Param
    bias: Param
    extra: Param


def other_models():
    w, b = param([[1.0], [1.0]]), param([1.0])
    linear = parts()[0]
    return {
        r"bias: present \| missing": LinearConfig(2, 1, bias=False).init(Autodiff(rt.Cpu())),
        r"extra: missing \| present": Wide(w, b, param([1.0])),
        r"weight: shape \(2, 1\) \| \(3, 1\)": LinearConfig(3, 1).init(Autodiff(rt.Cpu())),
        r"weight: trainable \| frozen": type(linear)(weight=w.set_require_grad(False), bias=b),
        r"weight: float32 \| int32": type(linear)(weight=Param(rt.tensor([[1], [1]])), bias=b),
    }


@pytest.mark.parametrize("message", other_models())
def test_another_model_is_refused_with_both_sides_and_nothing_changes(message):
    record, model = TrainingRecord.capture(*trained(), (1, 2)), other_models()[message]
    _, optimizer, scheduler = parts()
    before = plain(model, optimizer, scheduler)
    with pytest.raises(RecordMismatch, match=message) as error:
        record.restore(model, optimizer, scheduler)
    assert isinstance(error.value, RecorderError) and isinstance(error.value, ValueError)
    assert plain(model, optimizer, scheduler) == before


def test_other_ties_are_refused_by_their_paths():
    class Two(Module):
        a: Param
        b: Param

    w = param([1.0])
    tied, untied = Two(w, w), Two(param([1.0]), param([1.0]))
    alias = Two(w, w.set_require_grad(False))
    frozen = Two(param([1.0]), param([1.0], trainable=False))
    for source, target, message in (
        (tied, untied, r"b: tied to a \| not tied"),
        (untied, tied, r"b: not tied \| tied to a"),
        (alias, frozen, r"b: tied to a \| not tied"),
        (frozen, alias, r"b: not tied \| tied to a"),
        (tied, alias, r"b: trainable \| frozen"),
    ):
        with pytest.raises(RecordMismatch, match=message):
            target.load_record(source.to_record())


def test_another_optimizer_or_schedule_is_refused_and_nothing_changes():
    record, (model, optimizer, scheduler) = TrainingRecord.capture(*trained()), parts()
    before = plain(model, optimizer, scheduler)
    for other, schedule, message in (
        (AdamConfig(eps=1e-6).init(), scheduler, r"eps: 1e-08 \| 1e-06"),
        (SgdConfig().init(), scheduler, r"rule: 'Adam' \| 'Sgd'"),
        (optimizer, StepLrSchedulerConfig(0.1, 3).init(), r"step_size: 2 \| 3"),
        (Fp32MasterOptimizer(AdamConfig().build()).init(), scheduler, "Fp32MasterOptimizer"),
    ):
        with pytest.raises(RecordMismatch, match=message):
            record.restore(model, other, schedule)
        assert plain(model, optimizer, scheduler) == before and not other.states and schedule.calls == 0


def test_pending_gradients_that_do_not_fit_are_refused_and_nothing_changes():
    record, (model, optimizer, scheduler) = TrainingRecord.capture(*trained()), parts()
    record.data["gradients"][0]["value"] = np.zeros(5, np.float32)
    before = plain(model, optimizer, scheduler)
    with pytest.raises(RecordMismatch, match=r"\(5,\)"):
        record.restore(model, optimizer, scheduler)
    assert plain(model, optimizer, scheduler) == before


def test_CKPT_02_damage_is_a_recorder_error(tmp_path):
    path = TrainingRecord.capture(*trained(), (3, 1)).save(BinFileRecorder(), tmp_path / "a")
    good = path.read_bytes()
    for cut in {len(good) * i // 16 for i in range(16)} | {len(good) - 1}:
        path.write_bytes(good[:cut])
        with pytest.raises(RecorderError):
            TrainingRecord.load(BinFileRecorder(), path)
    path.write_bytes(good + b"\0")
    with pytest.raises(RecorderError):
        TrainingRecord.load(BinFileRecorder(), path)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(good), 200):
        flipped = bytearray(good)
        flipped[at] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(flipped))
        with pytest.raises(RecorderError):
            TrainingRecord.load(BinFileRecorder(), path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: {}, "not a training record"),
        (lambda d: [1], "not a training record"),
        (lambda d: {k: v for k, v in d.items() if k != "state"}, "not a training record"),
        (lambda d: {**d, "version": 2}, "version 2"),
        (lambda d: {**d, "model": 3}, "places and params"),
        (lambda d: {**d, "model": {"places": [], "params": []}}, "places"),
        (lambda d: {**d, "model": {**d["model"], "places": {"weight": 9}}}, "weight"),
        (lambda d: {**d, "model": {**d["model"], "params": [{}]}}, "parameter 0"),
        (lambda d: {**d, "model": {**d["model"], "params": d["model"]["params"] * 2}}, "occurs twice"),
        (lambda d: {**d, "model": {**d["model"], "params": [{**d["model"]["params"][0], "id": 5}]}}, "id 5"),
        (lambda d: {**d, "model": {**d["model"], "params": [{**d["model"]["params"][0], "dtype": "x"}]}}, "'x'"),
        (lambda d: {**d, "model": {**d["model"], "params": [{**d["model"]["params"][0], "dtype": "int8"}]}}, "int8"),
    ],
)
def test_a_whole_file_of_something_else_is_a_recorder_error_that_names_it(change, message):
    memory = Memory()
    memory.save(change(copy.deepcopy(TrainingRecord.capture(*trained()).data)), "x")
    with pytest.raises(RecorderError, match=message) as error:
        TrainingRecord.load(memory, "runs/step-3")
    assert "runs/step-3" in str(error.value)


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "gradients"])
@pytest.mark.parametrize("junk", [None, 3, [], {}, [3], {"config": 1}, {"states": {}, "config": {}}, "text"])
def test_a_part_of_another_kind_is_refused_in_restore_and_nothing_changes(part, junk):
    if part == "gradients" and junk == []:
        return  # that is an empty window
    record, (model, optimizer, scheduler) = TrainingRecord.capture(*trained()), parts()
    record.data[part] = junk
    before = plain(model, optimizer, scheduler)
    with pytest.raises(RecorderError):
        record.restore(model, optimizer, scheduler)
    assert plain(model, optimizer, scheduler) == before


def test_wrong_arguments_are_type_errors():
    model, optimizer, scheduler, accumulator = trained()
    record = TrainingRecord.capture(model, optimizer, scheduler, accumulator)
    for call, message in (
        (lambda: TrainingRecord.capture(optimizer, model, scheduler, accumulator), "expected a Module first"),
        (lambda: TrainingRecord.capture(model, None, scheduler, accumulator), "expected an optimizer"),
        (lambda: TrainingRecord.capture(model, optimizer, 0.1, accumulator), r"a schedule .*Config\(0\.1\)\.init\(\)"),
        (lambda: TrainingRecord.capture(model, optimizer, scheduler, accumulator.grads()), "expected a GradientsAccumulator"),
        (lambda: record.save("path", "x"), "expected a recorder"),
        (lambda: TrainingRecord.load(None, "x"), "expected a recorder"),
        (lambda: record.save(BinBytesRecorder, "x"), r"takes no path: blob = recorder\.save\(record\.data\)"),
        (lambda: record.restore(optimizer, model, scheduler), "expected a Module first"),
    ):
        with pytest.raises(TypeError, match=message):
            call()


def test_lbfgs_can_be_captured_like_any_optimizer():
    def closure(m):
        loss = (m(rt.tensor([[1.0, 2.0], [0.5, -1.0]])) - 1.0).square().sum()
        return loss.item(), GradientsParams.from_grads(loss.backward(), m)

    config, (model, _, scheduler) = LBFGSConfig(max_iter=2, line_search="strong_wolfe"), parts()
    optimizer = config.init()
    model, _ = optimizer.step(1.0, model, closure)
    record = through(TrainingRecord.capture(model, optimizer, scheduler, GradientsAccumulator()))
    restored = record.restore(parts()[0], config.init(), parts()[2])
    model, loss = optimizer.step(1.0, model, closure)
    again, other = restored.optimizer.step(1.0, restored.model, closure)
    assert loss == other and model.weight.numpy().tobytes() == again.weight.numpy().tobytes()


def test_CKPT_12_ties_are_stored_once_and_come_back_as_one():
    w = param(np.ones((100, 10)))

    class Two(Module):
        first: Param
        second: Param

    def make(seed):
        x = param(np.full((100, 10), float(seed)))
        return Two(x, x)

    model, optimizer, scheduler = Two(w, w), AdamConfig().init(), StepLrSchedulerConfig(0.1, 2).init()
    model = optimizer.step(0.1, model, give((w, np.ones((100, 10)))))
    record = TrainingRecord.capture(model, optimizer, scheduler, GradientsAccumulator())
    memory = Memory()
    record.save(memory, "x")
    assert len(record.data["model"]["params"]) == 1 and len(memory.data) < 3 * 4096 + 4096  # weight and two moments
    back = TrainingRecord.load(memory, "x").restore(make(0), AdamConfig().init(), StepLrSchedulerConfig(0.1, 2).init())
    assert back.model.first is back.model.second and len(back.optimizer.states) == 1
    assert copy.deepcopy(back.model).first is not back.model.first
    twin = copy.deepcopy(back.model)
    assert twin.first is twin.second
    new = back.optimizer.step(0.1, back.model, give((back.model.first, np.ones((100, 10)))))
    assert new.first is new.second and back.optimizer.states[new.first.id]["time"] == 2
