"""GradientsParams and GradientsAccumulator: contracts 15, 16, 40, 45, and sections 1.5.6 of the contracts."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, record
from ruda_nn import LinearConfig, Module, Param, RecordMismatch
from ruda_optim import GradientsAccumulator, GradientsParams, GradientsRecord, SgdConfig
from ruda_record import BinBytesRecorder, DoublePrecisionSettings, HalfPrecisionSettings, RecorderError

from ._helpers import Pair, Point, give, param, point


def loss_of(model):
    return (model.a * model.a).sum() + 3.0 * model.b.sum()


def pair(device=None, dtype=rt.float32):
    return Pair(param([1.0, 2.0], dtype, device), param([4.0], dtype, device))


# GradientsParams
def test_from_grads_leaves_the_container_and_from_module_takes_its_own(device):
    model, other = pair(device), point([1.0], device=device)
    gradients = (loss_of(model) + other.x.sum()).backward()
    first = GradientsParams.from_grads(gradients, model)
    assert first[model.a].tolist() == [2.0, 4.0] and first[model.b].tolist() == [3.0] and len(first) == 2
    assert len(gradients) == 3
    assert len(GradientsParams.from_module(gradients, model)) == 2 and len(gradients) == 1
    assert len(GradientsParams.from_module(gradients, model)) == 0
    assert GradientsParams.from_grads(gradients, other)[other.x].tolist() == [1.0]


def test_from_params_takes_the_listed_ids():
    model = pair()
    gradients = loss_of(model).backward()
    for ids in ([model.b.id], (i for i in [model.b.id]), model.b.id, {model.b.id, "unknown"}):
        assert GradientsParams.from_params(gradients, model, ids).ids() == [model.b.id]
    assert len(GradientsParams.from_params(gradients, model, [])) == 0


def test_get_remove_register_and_look(device):
    model = pair(device)
    gradients = GradientsParams.from_grads(loss_of(model).backward(), model)
    assert gradients.get(model.a) is gradients[model.a] is gradients[model.a.id] and model.a in gradients
    assert list(gradients) == gradients.ids() == [model.a.id, model.b.id]
    gradients.register(model.a, rt.tensor([7.0, 7.0], device=device))  # replaces
    assert gradients[model.a].tolist() == [7.0, 7.0]
    assert gradients.remove(model.a).tolist() == [7.0, 7.0] and gradients.remove(model.a) is None
    assert gradients.get(model.a) is None and gradients.get(model.a, 5) == 5 and model.a not in gradients
    with pytest.raises(KeyError, match=r"gradients\.get\(p\)"):
        gradients[model.a]
    assert repr(gradients) == "GradientsParams(1 parameters)"


def test_a_parameter_outside_the_loss_has_none():
    model, outside = pair(), point([1.0])
    gradients = loss_of(model).backward()
    assert outside.x not in GradientsParams.from_grads(gradients, Pair(model.a, outside.x))
    assert len(GradientsParams.from_grads(gradients, outside)) == 0


def test_second_order_gradients_come_without_their_graph():
    model = point([3.0])
    with record(order=2):
        loss = (model.x * model.x * model.x).sum()
    gradients = GradientsParams.from_grads(loss.backward(order=2), model)
    assert gradients[model.x].tolist() == [27.0] and not gradients[model.x].is_require_grad()


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda m, g: GradientsParams.from_grads({}, m), TypeError, "loss.backward"),
        (lambda m, g: GradientsParams.from_grads(loss_of(m).backward(), None), TypeError, "expected a Module"),
        (lambda m, g: g.register(m.a, rt.ones((3,))), ValueError, r"\(3,\).*\(2,\)"),
        (lambda m, g: g.register(m.a, rt.ones((2,), dtype=rt.int32)), TypeError, "int32.*astype"),
        (lambda m, g: g.register(m.a, [1.0, 1.0]), TypeError, "list"),
        (lambda m, g: g.register(m.a.detach(), rt.ones((2,))), TypeError, "Param"),
        (lambda m, g: g[m.a.detach()], TypeError, "Param or its id"),
        (lambda m, g: g[0], TypeError, "Param or its id"),
        (lambda m, g: GradientsParams({m.a: rt.ones((1,))}), ValueError, r"\(1,\)"),
    ],
)
def test_wrong_calls_are_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call(pair(), GradientsParams())


@pytest.mark.gpu
def test_to_device():
    model = pair(rt.Cuda(0))
    gradients = GradientsParams.from_grads(loss_of(model).backward(), model)
    there = gradients.to_device(rt.Cpu())
    assert there[model.a].device == rt.Cpu() and gradients[model.a].device == rt.Cuda(0)


# GradientsAccumulator
def test_contract_15_it_sums_and_never_averages_and_grads_empties(device):
    model, accumulator = pair(device), GradientsAccumulator()
    for _ in range(3):
        accumulator.accumulate(model, GradientsParams.from_grads(loss_of(model).backward(), model))
    assert len(accumulator) == 2
    total = accumulator.grads()
    assert total[model.a].tolist() == [6.0, 12.0] and total[model.b].tolist() == [9.0]
    assert len(accumulator) == 0 and len(accumulator.grads()) == 0
    accumulator.accumulate(model, give((model.b, [1.0])))
    assert total[model.b].tolist() == [9.0]  # what was handed over is the caller's


def test_contract_16_pending_gradients_are_cast_too_when_nothing_arrives_for_them(device):
    model, accumulator = pair(device, rt.bfloat16), GradientsAccumulator()
    accumulator.accumulate(model, give((model.a, [1.0, 2.0])))
    accumulator.accumulate_with_dtype(model, give((model.b, [1.0])), rt.FloatDType.F32)
    total = accumulator.grads()
    assert total[model.a].dtype == total[model.b].dtype == rt.float32


def test_accumulate_keeps_the_dtype_and_plain_half_sums_lose_what_float32_keeps(device):
    for dtype in (rt.float16, rt.bfloat16):
        model, plain, wide = point([1.0], dtype, device), GradientsAccumulator(), GradientsAccumulator()
        for value in [1024.0] + [0.125] * 8:
            plain.accumulate(model, give((model.x, [value])))
            wide.accumulate_with_dtype(model, give((model.x, [value])), rt.FloatDType.F32)
        plain, wide = plain.grads()[model.x], wide.grads()[model.x]
        assert (plain.dtype, plain.item()) == (dtype, 1024.0) and (wide.dtype, wide.item()) == (rt.float32, 1025.0)


def test_pending_stays_without_a_new_gradient_and_unknown_or_frozen_ids_are_left_out(device):
    model, stranger, accumulator = pair(device), point([1.0], device=device), GradientsAccumulator()
    accumulator.accumulate(model, give((model.a, [1.0, 1.0])))
    accumulator.accumulate(model, give((model.b, [1.0]), (stranger.x, [1.0])))
    frozen = Pair(model.a, model.b.set_require_grad(False))
    accumulator.accumulate(frozen, give((frozen.b, [5.0])))
    total = accumulator.grads()
    assert total.ids() == [model.a.id, model.b.id] and total[model.b].tolist() == [1.0]


def test_accumulated_gradients_of_ties_and_across_updates():
    w = param(2.0)
    model, accumulator = Pair(w, w), GradientsAccumulator()
    for _ in range(2):
        accumulator.accumulate(model, GradientsParams.from_grads((model.a * model.b).backward(), model))
    total = accumulator.grads()
    assert len(total) == 1 and total[w].item() == 8.0
    new = SgdConfig().init().step(0.25, model, total)
    assert new.a.item() == 0.0 and new.a is new.b


@pytest.mark.parametrize("ignored", [False, True])
def test_AMP_01_micro_batches_are_weighted_by_their_tokens(ignored, device):
    model, accumulator = point(1.0, device=device), GradientsAccumulator()
    parts = [[1.0, 2.0, 3.0], [10.0]] + ([[]] if ignored else [])
    count = sum(map(len, parts))
    for part in parts:
        x = rt.tensor(np.float32(part), device=device)
        loss = (model.x * x).square().sum() / 2.0 / count
        accumulator.accumulate(model, GradientsParams.from_grads(loss.backward(), model))
    assert accumulator.grads()[model.x].item() == pytest.approx(28.5, rel=1e-6)  # the naive mean of means is 52.33


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda a, m: a.accumulate(m, loss_of(m).backward()), TypeError, "GradientsParams.from_grads"),
        (lambda a, m: a.accumulate(GradientsParams(), m), TypeError, "expected a Module"),
        (lambda a, m: a.accumulate_with_dtype(m, GradientsParams(), rt.int32), TypeError, "not a float"),
    ],
)
def test_wrong_accumulation_is_refused_and_keeps_what_is_pending(call, kind, message):
    model, accumulator = pair(), GradientsAccumulator()
    accumulator.accumulate(model, give((model.a, [1.0, 1.0])))
    with pytest.raises(kind, match=message):
        call(accumulator, model)
    assert accumulator.grads()[model.a].tolist() == [1.0, 1.0]


def test_a_gradient_of_another_shape_is_not_broadcast():
    model, accumulator = pair(), GradientsAccumulator()
    accumulator.accumulate(model, give((model.a, [1.0, 1.0])))
    wrong = GradientsParams()
    wrong._by_id[model.a.id] = rt.ones((1,), device=rt.Cpu())
    with pytest.raises(ValueError, match=r"\(1,\).*\(2,\)"):
        accumulator.accumulate(model, wrong)
    assert accumulator.grads()[model.a].tolist() == [1.0, 1.0]


# records
class Kinds(Module):
    half: Param
    brain: Param
    single: Param
    double: Param
    scalar: Param
    empty: Param


def kinds():
    return Kinds(
        param([1.0, 2.0], rt.float16), param([1.0], rt.bfloat16), param([[1.0]]), param([1.0], rt.float64), param(1.0),
        param(np.zeros((0, 3))),
    )  # fmt: skip


@pytest.mark.parametrize("settings", [None, HalfPrecisionSettings, DoublePrecisionSettings])
def test_contract_40_gradients_come_back_in_the_dtype_they_had(settings):
    model, accumulator = kinds(), GradientsAccumulator()
    values = {p: rt.full(p.shape, 1.0 / 3, dtype=p.dtype) for p in model.params()}
    values[model.brain] = rt.full((1,), 1.0 / 3, dtype=rt.float32)  # a float32 gradient of a bfloat16 parameter
    accumulator.accumulate(model, GradientsParams(values))
    recorder = BinBytesRecorder() if settings is None else BinBytesRecorder(settings)
    stored, again = recorder.load(recorder.save(accumulator.to_record())), GradientsAccumulator()
    assert len(accumulator) == 6
    again.load_record(stored, model)
    back = again.grads()
    for p, g in values.items():
        assert back[p].dtype == g.dtype and back[p].shape == g.shape
        if settings is not HalfPrecisionSettings:
            assert back[p].numpy().tobytes() == g.numpy().tobytes()
        else:
            np.testing.assert_allclose(back[p].numpy().astype(float), 1.0 / 3, rtol=2e-3)
    assert [entry["id"] for entry in stored] == sorted(p.id for p in values)


def test_contract_45_a_rejected_record_leaves_the_accumulator_alone():
    model, accumulator = pair(), GradientsAccumulator()
    accumulator.accumulate(model, give((model.a, [1.0, 2.0])))
    entry = accumulator.to_record()[0]
    frozen = Pair(model.a.set_require_grad(False), model.b)
    for bad, target, kind, message in (
        ([entry, entry], model, RecorderError, "two gradients"),
        ([{**entry, "id": "stranger"}], model, RecordMismatch, "stranger"),
        ([entry], frozen, RecordMismatch, "does not train"),
        ([{**entry, "value": np.zeros(3, np.float32)}], model, RecordMismatch, r"\(3,\) \| \(2,\)"),
        ([{**entry, "value": np.zeros(2, np.int32)}], model, RecorderError, "int32"),
        ([{**entry, "value": np.zeros(2, np.int32), "dtype": "int32"}], model, RecorderError, "no float"),
        ([{**entry, "dtype": "float8"}], model, RecorderError, "float8"),
        ([{**entry, "value": [1.0, 2.0]}], model, RecorderError, "array"),
        ([{"id": entry["id"]}], model, RecorderError, "should hold"),
        ([None], model, RecorderError, "should hold"),
        ({}, model, RecorderError, "list"),
    ):
        with pytest.raises(kind, match=message):
            accumulator.load_record(bad, target)
        assert accumulator.to_record()[0]["value"].tolist() == [1.0, 2.0] and len(accumulator) == 1


def test_a_record_is_a_snapshot(device):
    model, accumulator = point([1.0], device=device), GradientsAccumulator()
    accumulator.accumulate(model, give((model.x, [1.0])))
    stored = accumulator.to_record()
    accumulator.accumulate(model, give((model.x, [1.0])))
    assert stored[0]["value"].tolist() == [1.0] and accumulator.grads()[model.x].tolist() == [2.0]
    stored[0]["value"] = np.array([9.0], np.float32)
    again = GradientsAccumulator()
    again.load_record(stored, model)
    stored[0]["value"][...] = 5.0
    assert again.grads()[model.x].tolist() == [9.0]


def test_what_is_recorded_on_the_cpu_is_not_copied_and_cannot_be_written_to():
    model, accumulator = point(np.zeros(1000, np.float32)), GradientsAccumulator()
    accumulator.accumulate(model, give((model.x, np.ones(1000))))
    stored = accumulator.to_record()[0]["value"]
    assert np.shares_memory(stored, accumulator._pending[model.x]._data) and not stored.flags.writeable


def test_half_gradients_of_a_tracked_linear_layer(device):
    model = LinearConfig(3, 2).init(Autodiff(device)).to_dtype(rt.bfloat16)
    x = rt.ones((4, 3), dtype=rt.bfloat16, device=device)
    gradients = GradientsParams.from_grads(model(x).square().mean().backward(), model)
    assert {gradients[p].dtype for p in model.params()} == {np.dtype(ml_dtypes.bfloat16)}
    assert Point(model.bias).x is model.bias


def test_a_record_is_looked_at_and_cut_without_making_tensors():
    model = kinds()
    gradients = GradientsParams({p: rt.full(p.shape, 2.0, dtype=p.dtype) for p in model.params()})
    recorder = BinBytesRecorder()
    record = GradientsRecord(recorder.load(recorder.save(gradients.to_record())))
    assert record.parameter_ids() == sorted(p.id for p in model.params()) and len(record) == 6
    assert record.parameter_metadata() == {p.id: (p.shape, p.dtype) for p in model.params()}
    part = record.select_parameters([model.single, model.brain.id])
    assert part.parameter_ids() == sorted([model.single.id, model.brain.id]) and len(record) == 6
    assert record.select_parameters(model.half).parameter_ids() == [model.half.id]
    for source in (part, part.entries):
        back = GradientsParams.from_record(source, model)
        assert sorted(back.ids()) == part.parameter_ids() and back[model.brain].dtype == rt.bfloat16
    assert repr(part) == "GradientsRecord(2 parameters)" and len(record.select_parameters([])) == 0
    with pytest.raises(KeyError, match="stranger"):
        record.select_parameters([model.half, "stranger"])
    entry = record.entries[0]
    bad_id = {**entry, "id": 5}
    for bad, message in (([entry, entry], "two gradients"), ([bad_id], "should hold"), ({}, "list"), ([3], "should hold")):
        with pytest.raises(RecorderError, match=message):
            GradientsRecord(bad)


def test_without_a_model_recorded_gradients_go_to_one_device_with_the_shapes_and_dtypes_they_had(device):
    model = kinds()
    gradients = GradientsParams({p: rt.full(p.shape, 2.0, dtype=p.dtype) for p in model.params()})
    back = GradientsParams.from_record(gradients.to_record(), device=device)
    for p in model.params():
        assert back[p].device == device and back[p].dtype == p.dtype and back[p].shape == p.shape
        assert back[p].numpy().tobytes() == gradients[p].numpy().tobytes()


@pytest.mark.gpu
def test_gradients_move_to_the_devices_of_a_model():
    model, stranger = Pair(param([1.0]), param([1.0], device=rt.Cuda(0))), point([1.0])
    gradients = GradientsParams({model.a: rt.ones((1,), device=rt.Cpu()), stranger.x: rt.ones((1,), device=rt.Cpu())})
    gradients._by_id[model.b.id] = rt.ones((1,), device=rt.Cpu())
    moved = gradients.to_device(model)
    assert [moved[key].device for key in (model.a, model.b, stranger.x)] == [rt.Cpu(), rt.Cuda(0), rt.Cpu()]
