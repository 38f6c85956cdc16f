"""Storage dtypes: of some parameters only, captured and put back."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import BatchNormConfig, LinearConfig, Module, ModuleDTypeRecord, Param, RecordMismatch, Sequential
from ruda_record import RecorderError


class Mixed(Module):
    a: Param
    tied: Param
    frozen: Param
    steps: Param


def mixed(device=None):
    device = device or rt.Cpu()
    a = Param(rt.tensor([1.0, 2.0], device=device), id="a")
    return Mixed(a, a, a.set_require_grad(False), Param(rt.tensor([1], device=device), id="steps"))


# to_dtype_selected
@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16, rt.float64, rt.FloatDType.BF16])
def test_selected_parameters_alone_change(dtype, device):
    model = Sequential(LinearConfig(2, 3).init(Autodiff(device)), BatchNormConfig(3).init(Autodiff(device)))
    out = model.to_dtype_selected(dtype, [model[0].weight, model[1].bias.id])
    wanted = getattr(dtype, "dtype", dtype)
    assert [p.dtype for p in out.params()] == [wanted, rt.float32, rt.float32, wanted]
    assert [p.id for p in out.params()] == [p.id for p in model.params()] and all(p.is_require_grad() for p in out.params())
    assert out[1].running_mean.dtype == rt.float32
    gradients = out(rt.ones((4, 2), device=device)).sum().backward()
    assert out[0].bias.grad(gradients) is not None and model[0].bias.grad(gradients) is None
    assert [p.dtype for p in model.to_dtype_selected(dtype, []).params()] == [rt.float32] * 4


def test_ties_flags_and_integers_are_kept_by_a_selection(device):
    out = mixed(device).to_dtype_selected(rt.float64, "a")
    assert out.a is out.tied and out.a.dtype == rt.float64 == out.frozen.dtype and not out.frozen.trainable
    assert mixed(device).to_dtype_selected(rt.float64, ["steps"]).steps.dtype == rt.int32


def test_an_unknown_id_or_another_kind_of_dtype_is_refused():
    with pytest.raises(ValueError, match=r"no parameter has the id 'b', 'c'; take them from this model"):
        mixed().to_dtype_selected(rt.float16, ["a", "c", "b"])
    with pytest.raises(TypeError, match="to_dtype_selected: int32 is not a float"):
        mixed().to_dtype_selected(rt.int32, ["a"])


# ModuleDTypeRecord
def test_dtypes_are_captured_sorted_and_put_back(device):
    model = Sequential(*[LinearConfig(2, 2, bias=False).init(Autodiff(device)) for _ in range(5)])
    stored = model.to_dtype_selected(rt.bfloat16, [model[1].weight, model[4].weight])
    record = ModuleDTypeRecord.capture(stored)
    assert record.entries == sorted(record.entries) and len(record.entries) == 5
    out = ModuleDTypeRecord([list(entry) for entry in record.entries]).apply(model)
    assert [p.dtype for p in out.params()] == [p.dtype for p in stored.params()] and out[0].weight is model[0].weight
    assert [p.id for p in out.params()] == [p.id for p in model.params()] and out[1].weight.is_require_grad()
    assert np.array_equal(out[1].weight.astype(rt.float32).numpy(), stored[1].weight.astype(rt.float32).numpy())


def test_a_frozen_alias_has_an_entry_of_its_own_and_integers_have_none():
    record = ModuleDTypeRecord.capture(mixed())
    assert record.entries == [("a", False, "float32"), ("a", True, "float32")]
    out = ModuleDTypeRecord([("a", False, "float16"), ("a", True, "float64")]).apply(mixed())
    assert (out.a.dtype, out.tied.dtype, out.frozen.dtype, out.steps.dtype) == (rt.float64, rt.float64, rt.float16, rt.int32)
    assert out.a is out.tied and ModuleDTypeRecord.capture(out).entries[0][2] == "float16"


@pytest.mark.parametrize("entries,message", [
    ([("a", True, "float32")], r"a \(frozen\): missing \| present"),
    ([("a", True, "float32"), ("a", False, "float32"), ("b", True, "float32")], r"b \(trainable\): present \| missing"),
    ([("a", True, "float32"), ("a", False, "float32"), ("steps", False, "float32")], r"steps \(frozen\): present \| missing"),
])  # fmt: skip
def test_a_record_of_another_model_is_refused(entries, message):
    with pytest.raises(RecordMismatch, match=message):
        ModuleDTypeRecord(entries).apply(mixed())


@pytest.mark.parametrize("entries", [
    [("a", True)], [("a", True, "int32")], [("a", True, "float31")], [("a", 1, "float32")], [(3, True, "float32")], ["abc"],
    [("a", True, "float32"), ("a", True, "float16")], [("a", True, ["float32"])],
])  # fmt: skip
def test_what_is_no_such_record_is_refused(entries):
    with pytest.raises(RecorderError):
        ModuleDTypeRecord(entries)


def test_one_parameter_in_two_dtypes_cannot_be_captured():
    a = Param(rt.tensor([1.0]), id="a")
    with pytest.raises(ValueError, match=r"tied: the parameter a is stored as float16 here and as float32 elsewhere"):
        ModuleDTypeRecord.capture(Mixed(a, Param(rt.tensor([1.0], dtype=rt.float16), id="a"), a, a))
