"""Modules: the walker, changes that keep identity, records, copies, and what goes wrong in a declaration."""
from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, grad
from ruda_nn import Linear, LinearConfig, Module, Param
from ruda_optim import GradientsParams, SgdConfig
from ruda_tensor import FloatDType


def param(values=(1.0, 2.0), dtype=rt.float32, device=None, **kwargs):
    return Param(rt.tensor(list(values), dtype=dtype, device=device or rt.Cpu()), **kwargs)


class Noise(Module):
    """A layer with a mode and a plain tensor."""

    scale: Param
    shift: rt.Tensor
    training: bool = True

    def forward(self, x):
        return x * self.scale + (self.shift if self.training else 0.0)


class Both(NamedTuple):
    left: Param
    right: Noise


class Net(Module):
    """Every kind of container."""

    embed: Param
    layers: list[Linear]
    named: dict[str, Param]
    both: Both
    mixed: tuple[Any, ...]
    head: Param
    noise: Noise
    steps: Param
    name: str = "net"
    maybe: Param | None = None
    factor: ClassVar[int] = 3

    @functools.cached_property
    def cached(self):
        return self.embed * 2.0


def noise(device=None):
    return Noise(param([1.0], device=device), rt.ones((1,), device=device or rt.Cpu()))


def net(device=None):
    device = device or rt.Cpu()
    embed, recording = param([1.0, 2.0], device=device), Autodiff(device)
    return Net(
        embed,
        [LinearConfig(2, 3).init(recording), LinearConfig(3, 1, bias=False).init(recording)],
        {"b": param(device=device), "a": param(device=device)},
        Both(param(device=device), noise(device)),
        (1, param(device=device), [param(device=device)]),
        embed,
        noise(device),
        Param(rt.tensor([3, 4], device=device)),
    )


PATHS = [
    "embed", "layers.0.weight", "layers.0.bias", "layers.1.weight", "named.b", "named.a", "both.0", "both.1.scale", "mixed.1",
    "mixed.2.0", "head", "noise.scale", "steps",
]  # fmt: skip


# the walker
def test_paths_are_in_declaration_order_and_ties_come_up_each_time():
    model = net()
    assert model.paths() == PATHS == [path for path, _ in model.named_params()]
    seen = []
    model.visit(lambda path, p: seen.append((path, p.id)))
    assert seen == [(path, p.id) for path, p in model.named_params()]
    assert dict(model.named_params())["head"] is model.embed


def test_distinct_parameters_stand_where_they_first_come_up():
    model = net()
    assert [p.id for p in model.params()] == [dict(model.named_params())[path].id for path in PATHS if path != "head"]
    assert model.num_params() == 2 + 6 + 3 + 3 + 2 + 2 + 2 + 1 + 2 + 2 + 1 + 2


def test_a_frozen_alias_is_a_parameter_of_its_own_that_is_counted_once():
    model = Both_(w := param(), w.set_require_grad(False))
    assert len(model.params()) == 2 and model.num_params() == 2 and model.params()[1].trainable is False


class Both_(Module):
    a: Param
    b: Param


def test_map_calls_once_per_distinct_parameter_and_keeps_structure():
    model, calls = net(), []
    _ = model.cached

    def half(p):
        calls.append(p.id)
        return p.like(p._data // 2 if p.dtype == rt.int32 else p._data * 0.5)

    out = model.map(half)
    assert len(calls) == len(set(calls)) == 12
    assert out.paths() == PATHS and out.embed is out.head and out.name == "net" and out.maybe is None
    assert type(out.both) is Both and type(out.mixed) is tuple and list(out.named) == ["b", "a"]
    assert out.embed.tolist() == [0.5, 1.0] and model.embed.tolist() == [1.0, 2.0]
    assert "cached" not in vars(out) and out.cached.tolist() == [1.0, 2.0]  # what was computed of the old one is gone
    assert [p.id for p in out.params()] == [p.id for p in model.params()]


def test_map_with_settings_changes_plain_fields_everywhere_inside():
    out = net().map(lambda p: p, training=False, name="other")
    assert (out.noise.training, out.both.right.training, out.name) == (False, False, "other")


def test_a_module_is_an_argument_of_transforms():
    g = grad(lambda m: (m.a * m.a * m.b).sum())(Both_(param([1.0, 2.0]), param([3.0, 4.0])))
    assert g.a.tolist() == [6.0, 16.0] and g.b.tolist() == [1.0, 4.0]


def test_one_identity_in_two_objects_becomes_one_parameter():
    a = param([1.0, 2.0])
    out = Both_(a, param([1.0, 2.0], id=a.id)).to_dtype(rt.float16)
    assert out.a is out.b and len(out.params()) == 1


# changes
@pytest.mark.parametrize("dtype", [FloatDType.F16, FloatDType.BF16, FloatDType.F64, rt.float32, "bfloat16"])
def test_contracts_5_and_6_to_dtype_keeps_identity_ties_flags_and_integers(dtype, device):
    model = net(device)
    model = dataclasses.replace(model, maybe=model.embed.set_require_grad(False))
    out = model.to_dtype(dtype)
    wanted = dtype.dtype if isinstance(dtype, FloatDType) else rt.dtypes.as_dtype(dtype) if dtype == "bfloat16" else dtype
    for (path, p), (_, q) in zip(model.named_params(), out.named_params(), strict=True):
        assert (p.id, p.trainable, p.shape) == (q.id, q.trainable, q.shape) and q is not p
        assert q.dtype == (rt.int32 if path == "steps" else wanted)
        assert q.is_require_grad() == p.is_require_grad()
    assert out.embed is out.head and out.maybe is not out.embed and not out.maybe.is_require_grad()
    assert out.steps.tolist() == [3, 4]
    loss = (out.embed * out.head * out.maybe).astype(rt.float32).sum()
    gradients = loss.backward()
    assert out.embed.grad(gradients).astype(rt.float32).tolist() == [2.0, 8.0]  # both places: d(x x c) = 2 x c
    assert model.embed.grad(gradients) is None and out.maybe.grad(gradients) is None
    with pytest.raises(TypeError, match="not a float"):
        model.to_dtype(rt.int32)


def test_to_dtype_is_not_differentiated_and_does_not_share_later_updates():
    model = Both_(param(), param())
    same = model.to_dtype(rt.float32)
    SgdConfig().init().step(1.0, model, GradientsParams({model.a: rt.ones((2,))}))
    assert same.a.tolist() == [1.0, 2.0]


def test_valid_and_train_switch_tracking_and_mode_and_share_the_numbers(device):
    model = Noise(param([2.0], device=device), rt.ones((1,), device=device))
    frozen = dataclasses.replace(model, scale=model.scale.set_require_grad(False))
    x = rt.ones((1,), device=device)
    still = model.valid()
    assert not still.training and not still.scale.is_require_grad() and still(x).tolist() == [2.0]
    assert still.scale.id == model.scale.id and still.scale.trainable and still.scale._data is model.scale._data
    again = still.train()
    assert again.training and again.scale.is_require_grad() and again(x).tolist() == [3.0]
    assert not frozen.valid().train().scale.is_require_grad()
    assert model.training and model.scale.is_require_grad()


def test_no_grad_freezes_keeps_the_mode_and_has_a_way_back(device):
    model = net(device)
    frozen = model.no_grad()
    assert not any(p.trainable or p.is_require_grad() for p in frozen.params()) and frozen.noise.training
    assert frozen.embed is frozen.head and [p.id for p in frozen.params()] == [p.id for p in model.params()]
    part = dataclasses.replace(model, layers=[model.layers[0].no_grad(), model.layers[1]])
    loss = part.layers[1](rt.tanh(part.layers[0](part.embed))).sum()
    gradients = GradientsParams.from_grads(loss.backward(), part)
    assert part.layers[1].weight in gradients and part.embed in gradients and part.layers[0].weight not in gradients
    back = frozen.map(lambda p: p.require_grad() if p.dtype == rt.float32 else p)
    assert back.embed.trainable and back.embed.is_require_grad() and back.embed is back.head


def test_fork_makes_new_leaves_and_takes_the_strategy_of_a_recording_device(device):
    model = net(device)
    out = model.fork(Autodiff(device, checkpointing="balanced"))
    assert out.embed.is_require_grad() and out.embed.strategy == "balanced" and model.embed.strategy == "none"
    assert out.embed.grad((model.embed * 1.0).sum().backward()) is None
    untracked = model.valid()
    assert not untracked.fork(device).embed.is_require_grad() and untracked.fork(Autodiff(device)).embed.is_require_grad()
    frozen = model.no_grad().fork(Autodiff(device))
    assert not frozen.embed.is_require_grad() and not frozen.embed.trainable


@pytest.mark.gpu
def test_to_device_and_fork_move_parameters_and_plain_tensors():
    model, there = net(rt.Cpu()), rt.Cuda(0)
    for out in (model.to_device(there), model.fork(there), model.fork(Autodiff(there))):
        assert {p.device for p in out.params()} == {there} and out.noise.shift.device == there
        assert out.embed is out.head and out.embed.id == model.embed.id and out.embed.is_require_grad()
        assert out.noise(rt.ones((1,), device=there)).tolist() == [2.0]
        assert out.to_device(rt.Cpu()).embed.tolist() == [1.0, 2.0]


def test_to_device_to_the_same_place_keeps_everything(device):
    model = net(device)
    out = model.to_device(device)
    assert out.paths() == PATHS and out.embed.is_require_grad() and out.noise.shift.tolist() == [1.0]
    assert out.embed.tolist() == model.embed.tolist() and out.steps.dtype == rt.int32


def test_clone_is_out_of_reach_and_keeps_ids_and_ties(device):
    model = net(device)
    twin = model.clone()
    assert twin.embed is twin.head and twin.embed.id == model.embed.id and twin.embed._data is not model.embed._data
    SgdConfig().init().step(1.0, model, GradientsParams({model.embed: rt.ones((2,), device=device)}))
    assert twin.embed.tolist() == [1.0, 2.0] and twin.embed.is_require_grad()


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_keep_everything(how, device):
    model = dataclasses.replace(net(device), maybe=param([5.0], device=device, trainable=False))
    out = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert type(out) is Net and out.paths() == model.paths() and out.embed is out.head and repr(out) == repr(model)
    for p, q in zip(model.params(), out.params(), strict=True):
        assert (p.id, p.trainable, p.strategy, p.device) == (q.id, q.trainable, q.strategy, q.device)
        assert p.is_require_grad() == q.is_require_grad()
        assert p.numpy().tobytes() == q.numpy().tobytes() and p._data is not q._data and q.shape == p.shape
    loss = out.layers[1](out.layers[0](out.embed)).sum()
    assert len(GradientsParams.from_grads(loss.backward(), out)) == 4
    assert copy.copy(model).embed is model.embed


# records
def test_a_record_is_plain_data_with_each_distinct_parameter_once():
    record = net().to_record()
    assert list(record["places"]) == PATHS and len(record["params"]) == 12
    assert record["places"]["embed"] == record["places"]["head"] == 0
    assert set(record["params"][0]) == {"id", "trainable", "dtype", "value"}


def test_a_record_with_two_equal_paths_is_refused():
    class Names(Module):
        a: dict[Any, Any]

    with pytest.raises(ValueError, match="'a.b.c'.*rename"):
        Names({"b.c": param(), "b": {"c": param()}}).to_record()
    with pytest.raises(ValueError, match="'a.1'"):
        Names({1: param(), "1": param()}).to_record()


def test_load_record_takes_ids_and_values_and_keeps_dtypes_and_tracking():
    source, target = net(), net().to_dtype(rt.float64).valid()
    out = target.load_record(source.to_record())
    assert [p.id for p in out.params()] == [p.id for p in source.params()] != [p.id for p in target.params()]
    assert out.embed.dtype == rt.float64 and not out.embed.is_require_grad() and out.embed is out.head
    assert target.load_record(source.to_record(), keep_dtype=False).embed.dtype == rt.float32
    again = source.load_record(out.to_record())
    assert again.layers[0].weight.numpy().tobytes() == source.layers[0].weight.numpy().tobytes()


# to look at
def test_summary():
    model = Both_(w := param([1.0, 2.0, 3.0]), w.set_require_grad(False))
    assert model.summary().splitlines() == [
        "path   shape  dtype    params  bytes",
        "a      (3,)   float32  3       12",
        "b      (3,)   float32  3       12     tied to a frozen",
        "total                  3       12",
    ]
    lines = net().summary().splitlines()
    assert lines[0].split() == ["path", "shape", "dtype", "params", "bytes"] and len(lines) == len(PATHS) + 2
    assert "tied to embed" in lines[1 + PATHS.index("head")]


def test_repr():
    class Empty(Module):
        pass

    model = Both_(param([1.0], trainable=False), param([1.0, 2.0]))
    assert repr(Empty()) == "Empty()"
    assert repr(model) == "Both_(\n  a=Param(1,) float32 frozen,\n  b=Param(2,) float32,\n)"
    small = Nested([Inner(param([1.0]))], {"k": param([1.0])}, [], "text")
    assert repr(small) == (
        "Nested(\n"
        "  layers=[\n"
        "    Inner(\n"
        "      w=Param(1,) float32,\n"
        "    ),\n"
        "  ],\n"
        "  named={\n"
        "    'k': Param(1,) float32,\n"
        "  },\n"
        "  none=[],\n"
        "  text='text',\n"
        ")"
    )


class Inner(Module):
    w: Param


class Nested(Module):
    layers: list[Inner]
    named: dict[str, Param]
    none: list[Inner]
    text: str


# declarations that would go wrong silently
def test_a_value_of_the_class_is_refused():
    layer = LinearConfig(1, 1).init(rt.Cpu())
    with pytest.raises(TypeError, match=r"layer is a value of the class.*layer: Linear"):

        class Undeclared(Module):
            layer = LinearConfig(1, 1).init(rt.Cpu())

    with pytest.raises(TypeError, match=r"layers: list"):

        class Listed(Module):
            layers = [layer]

    with pytest.raises(TypeError, match="share"):

        class Shared(Module):
            other: Linear = layer


def test_parameters_in_a_set_are_refused():
    class Bag(Module):
        items: set[Param]

    with pytest.raises(TypeError, match="items: a set has no order"):
        Bag({param(), param()}).params()
    Plain = dataclasses.make_dataclass("Plain", [("x", int)])

    class Settings(Module):
        names: set[str]
        other: Any

    assert Settings({"a", "b"}, Plain(1)).params() == []


def test_modules_are_not_changed_in_place():
    model = Both_(param(), param())
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"dataclasses\.replace\(model, a=\.\.\.\)"):
        model.a = param()
    with pytest.raises(AttributeError, match=r"its fields are a, b; declare another"):
        model.c = param()
    with pytest.raises(AttributeError, match="not changed in place"):
        del model.a

    class Torchlike(Module):
        def __init__(self):
            self.layer = LinearConfig(1, 1).init(rt.Cpu())

    with pytest.raises(AttributeError, match=r"declare another in the class: layer: Linear"):
        Torchlike()
    assert dataclasses.replace(model, a=model.b).a is model.b


def test_a_module_without_a_forward_says_so():
    with pytest.raises(TypeError, match="Both_ has no forward"):
        Both_(param(), param())(1.0)


def test_subclasses_add_fields_and_modules_are_keys():
    class More(Both_):
        c: Param

        def forward(self):
            return self.a + self.b + self.c

    model = More(param(), param(), param())
    assert model.paths() == ["a", "b", "c"] and model().tolist() == [3.0, 6.0]
    assert {model: 1}[model] == 1 and model != More(model.a, model.b, model.c)
    with pytest.raises(TypeError, match=r"More: b, c are missing; it takes More\(a, b, c\)"):
        More(param())


def test_empty_and_0_d_parameters_count():
    model = Both_(Param(rt.tensor(1.0, device=rt.Cpu())), Param(rt.zeros((0, 3), device=rt.Cpu())))
    assert model.num_params() == 1 and model.clone().b.shape == (0, 3) and model.to_dtype(rt.float16).a.shape == ()
    assert isinstance(model.clone().a._data, np.ndarray)
