"""Muon and AdamW as one optimizer: routing, both rates, what is refused before anything changes, records."""
from __future__ import annotations

import copy

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Embedding, EmbeddingConfig, Linear, LinearConfig, Module, Param, RecordMismatch
from ruda_optim import (
    AdamWConfig,
    ConstantLrSchedulerConfig,
    GradientClippingConfig,
    GradientsAccumulator,
    GradientsParams,
    MuonAdamWConfig,
    MuonConfig,
    TrainingRecord,
)
from ruda_record import BinFileRecorder, RecorderError

from ._helpers import Pair, adamw, give, param


class Block(Module):
    up: Linear
    down: Linear


class Language(Module):
    """A language model's parts, with a head that may be tied to the table."""

    table: Embedding
    blocks: list[Block]
    scale: Param
    head: Linear
    projection: Param

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = x + block.down(rt.tanh(block.up(x)))
        return self.head(x * self.scale) + rt.sum(self.projection)


def language(device=None, tied=False):
    device = device or rt.Cpu()
    make = Autodiff(device)
    table = EmbeddingConfig(7, 4).init(make)
    blocks = [Block(up=LinearConfig(4, 6).init(make), down=LinearConfig(6, 4).init(make)) for _ in range(2)]
    scale = Param(rt.ones((4,), device=device), device=make)
    projection = table.weight if tied else Param(rt.ones((4, 7), device=device), device=make)
    return Language(table, blocks, scale, LinearConfig(4, 7).init(make), projection)


def gradients(model, seed=0, dtype=None):
    rng = np.random.default_rng(seed)
    out = GradientsParams()
    for p in model.params():
        out.register(p, rt.tensor(rng.standard_normal(p.shape), dtype=dtype or p.dtype, device=p.device))
    return out


def bits(model):
    return {path: p.numpy().tobytes() for path, p in model.named_params()}


def routed(optimizer):
    return [path for path, entry in optimizer.manifest.items() if entry["muon"]]


HIDDEN = ["blocks.0.up.weight", "blocks.0.down.weight", "blocks.1.up.weight", "blocks.1.down.weight"]


def test_from_model_gives_muon_the_hidden_matrices():
    config = MuonAdamWConfig()
    assert routed(config.from_model(language())) == [*HIDDEN, "projection"]  # the table and the head are left out
    assert routed(config.from_model(language(tied=True))) == HIDDEN  # a tied matrix goes with the embedding
    assert routed(config.from_model(language(), exclude=["head.*", "projection", "blocks.1.*"])) == HIDDEN[:2]
    assert routed(config.from_model(language(), exclude="blocks.*")) == ["head.weight", "projection"]
    assert routed(config.from_model(language(), exclude=())) == [*HIDDEN, "head.weight", "projection"]
    frozen = language()
    frozen = frozen.map(lambda p: p.set_require_grad(False) if p.id == frozen.projection.id else p)
    assert routed(config.from_model(frozen)) == HIDDEN
    with pytest.raises(ValueError, match="no matrix"):
        config.from_model(language(), exclude="*")
    with pytest.raises(ValueError, match="nothing is left"):
        config.from_model(LinearConfig(2, 3, bias=False).init(Autodiff(rt.Cpu())))


def test_each_part_is_what_it_would_be_alone(device):
    config = MuonAdamWConfig(MuonConfig(weight_decay=0.1), AdamWConfig(weight_decay=0.2), adamw_lr_ratio=0.1)
    model = language(device)
    optimizer, other = config.from_model(model), model.clone()
    matrices = {entry["id"] for entry in optimizer.manifest.values() if entry["muon"]}
    muon, adam = MuonConfig(weight_decay=0.1).init(), AdamWConfig(weight_decay=0.2).init()
    for seed in range(3):
        model = optimizer.step(0.5, model, gradients(model, seed))
        both = gradients(other, seed)
        mine = GradientsParams({p: both[p] for p in other.params() if p.id in matrices})
        rest = GradientsParams({p: both[p] for p in other.params() if p.id not in matrices})
        other = adam.step(0.05, muon.step(0.5, other, mine), rest)
    assert bits(model) == bits(other)
    assert model.scale.numpy() == pytest.approx(_adamw_scale(model), rel=1e-5)


def _adamw_scale(model):
    place = [p.id for p in model.params()].index(model.scale.id)
    gs = [[gradients(model, seed)[p].numpy().astype(float) for p in model.params()][place] for seed in range(3)]
    return adamw(np.ones(4), gs, 0.05, weight_decay=0.2)


def test_the_two_rates_can_be_given():
    model = language()
    one, other, clone = MuonAdamWConfig().from_model(model), MuonAdamWConfig().from_model(model), model.clone()
    model = one.step(0.2, model, gradients(model))
    clone = other.step_with_lrs(0.2, 0.2 * 0.015, clone, gradients(clone))
    assert bits(model) == bits(clone)
    still = one.step_with_lrs(0.0, 0.0, model, gradients(model))
    assert bits(still) == bits(clone) and one.muon.states[still.blocks[0].up.weight.id]["time"] == 2


def test_to_skip_changes_nothing_and_checks_nothing():
    model = language()
    optimizer = MuonAdamWConfig().from_model(model)
    assert optimizer.step_with_lrs(-1.0, float("nan"), model, None, skip=True) is model  # type: ignore[arg-type]
    assert optimizer.last_step_skipped and not optimizer.muon.states and not optimizer.adamw.states


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_skips_the_whole_step(device, bad):
    model = language(device)
    optimizer, before = MuonAdamWConfig().from_model(model), bits(model)
    poor = gradients(model)
    poor.register(model.scale, rt.tensor([1.0, bad, 1.0, 1.0], device=device))
    assert optimizer.step(0.1, model, poor) is model and optimizer.last_step_skipped
    assert bits(model) == before and not optimizer.muon.states and not optimizer.adamw.states
    model = optimizer.step(0.1, model, gradients(model))
    assert not optimizer.last_step_skipped and bits(model) != before


def test_one_norm_over_both_groups(device):
    model = Pair(param(np.ones((1, 2)), device=device), param(np.ones(2), device=device))
    optimizer = MuonAdamWConfig(max_grad_norm=1.0).init(model, [model.a.id])
    given = give((model.a, [[6.0, 0.0]]), (model.b, [0.0, 8.0]))
    new = optimizer.step(0.1, model, given, loss_scale=2.0)
    assert optimizer.last_grad_norm == 5.0 and optimizer.last_clip_coef == float(np.float32(0.2))  # no epsilon here
    moment = rt.backend.to_host(optimizer.adamw.states[new.b.id]["exp_avg"])
    assert moment.tolist() == pytest.approx([0.0, 0.1 * 4.0 * 0.2])
    assert rt.backend.to_host(optimizer.muon.states[new.a.id]["velocity"]).ravel().tolist() == pytest.approx([0.6, 0.0])
    assert given[new.a].tolist() == [[6.0, 0.0]]


@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
def test_half_models_get_float32_masters(device, dtype):
    model = language(device).to_dtype(dtype)
    optimizer = MuonAdamWConfig(max_grad_norm=1.0).from_model(model)
    wide, plain = model.to_dtype(rt.float32), MuonAdamWConfig(max_grad_norm=1.0)
    full = plain.from_model(wide)
    for seed in range(3):
        model = optimizer.step(1e-4, model, gradients(model, seed))
        given = GradientsParams({p: rt.astype(g, rt.float32) for p, g in _of(wide, gradients(model, seed))})
        wide = full.step(1e-4, wide, given)
    assert bits(model) == bits(wide.to_dtype(dtype))


def _of(model, given):
    return [(p, given[p]) for p in model.params()]


@pytest.mark.parametrize(
    ("choose", "message"),
    [
        (lambda m: [], "no matrix"),
        (lambda m: [m.head.weight, m.head.weight.id], "head.weight is named twice"),
        (lambda m: ["nobody"], "'nobody' is no id"),
        (lambda m: [m.scale], r"scale has shape \(4,\)"),
    ],
)
def test_wrong_choices_are_refused(choose, message):
    model = language()
    with pytest.raises(ValueError, match=message):
        MuonAdamWConfig().init(model, choose(model))


def test_frozen_matrices_and_whole_models_are_refused():
    model = language()
    frozen = model.no_grad()
    with pytest.raises(ValueError, match=r"head\.weight is frozen"):
        MuonAdamWConfig().init(frozen, [frozen.head.weight])
    matrices = Pair(param(np.ones((2, 2))), param(np.ones((2, 2))))
    with pytest.raises(ValueError, match="nothing is left"):
        MuonAdamWConfig().init(matrices, matrices.params())
    with pytest.raises(ValueError, match=r"shape \(0, 3\)"):
        empty = Pair(param(np.ones((0, 3))), param(np.ones(2)))
        MuonAdamWConfig().init(empty, [empty.a])
    with pytest.raises(TypeError, match="Module"):
        MuonAdamWConfig().from_model([model])  # type: ignore[arg-type]


GLOBAL = GradientClippingConfig.global_norm(2.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MuonAdamWConfig(adamw_lr_ratio=0.0), "adamw_lr_ratio"),
        (MuonAdamWConfig(max_grad_norm=-1.0), "max_grad_norm"),
        (MuonAdamWConfig(muon=MuonConfig(ns_steps=0)), "ns_steps"),
        (MuonAdamWConfig(adamw=AdamWConfig(eps=0.0)), "eps"),
        (MuonAdamWConfig(adamw=AdamWConfig(fused_step=True)), "fused_step"),
        (MuonAdamWConfig(muon=AdamWConfig()), "muon="),  # type: ignore[arg-type]
        (MuonAdamWConfig(muon=MuonConfig(grad_clipping=GLOBAL)), r"muon=.*MuonAdamWConfig\(max_grad_norm=2.0\)"),
        (MuonAdamWConfig(adamw=AdamWConfig(grad_clipping=GLOBAL)), r"adamw=.*MuonAdamWConfig\(max_grad_norm=2.0\)"),
    ],
)
def test_wrong_settings_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config.from_model(language())


def test_contract_28_gradients_of_no_parameter_are_refused():
    model, stranger = language(), language()
    optimizer, given = MuonAdamWConfig().from_model(model), gradients(model)
    given.register(stranger.scale, rt.ones((4,), device=rt.Cpu()))
    with pytest.raises(ValueError, match=stranger.scale.id):
        optimizer.step(0.1, model, given)
    assert not optimizer.muon.states and not model.scale.is_consumed()


@pytest.mark.parametrize("name", ["scale", "projection"])
def test_both_groups_are_asked_before_either_begins(name):
    """One gradient that its group's masters cannot take; Muon is stepped first, and has not been when AdamW refuses."""
    model = language().to_dtype(rt.bfloat16)
    optimizer, poor, before = MuonAdamWConfig().from_model(model), gradients(model), bits(model)
    p = getattr(model, name)
    poor.register(p, rt.ones(p.shape, dtype=rt.float16, device=p.device))
    with pytest.raises(TypeError, match="float16"):
        optimizer.step(0.1, model, poor)
    assert not optimizer.muon.states and not optimizer.adamw.states and bits(model) == before
    for rates in ((-1.0, 0.1), (0.1, float("inf"))):
        with pytest.raises(ValueError, match="learning rate"):
            optimizer.step_with_lrs(*rates, model, gradients(model))
    assert bits(optimizer.step(0.1, model.clone(), gradients(model))) != before


def test_a_changed_model_is_refused():
    model = language()
    optimizer = MuonAdamWConfig().from_model(model)
    frozen = model.map(lambda p: p.set_require_grad(False) if p.id == model.scale.id else p)
    for changed, message in ((language(), "head.weight"), (frozen, "scale: missing"), (model.to_dtype(rt.bfloat16), "bfloat16")):
        with pytest.raises(ValueError, match=message):
            optimizer.step(0.1, changed, gradients(changed))
    assert not optimizer.muon.states


def test_a_failure_half_way_poisons_it_until_a_record_is_loaded(monkeypatch):
    model = language()
    optimizer = MuonAdamWConfig().from_model(model)
    model = optimizer.step(0.1, model, gradients(model))
    record, kept = optimizer.to_record(model), model.clone()

    def breaks(*args):
        raise MemoryError

    monkeypatch.setattr(optimizer.adamw, "step", breaks)
    with pytest.raises(MemoryError):
        optimizer.step(0.1, model, gradients(model))
    for call in (lambda: optimizer.step(0.1, kept, gradients(kept)), lambda: optimizer.to_record(kept)):
        with pytest.raises(RuntimeError, match="record"):
            call()
    optimizer.load_record(record, kept)
    assert optimizer.step(0.1, kept, gradients(kept)).scale.shape == (4,)


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16])
def test_training_resumes_with_the_recorded_ids(device, dtype, tmp_path):
    def parts():
        model = language(device).to_dtype(dtype)
        return model, MuonAdamWConfig().from_model(model), ConstantLrSchedulerConfig(0.1).init()

    model, optimizer, schedule = parts()
    for seed in range(2):
        model = optimizer.step(schedule.step(), model, gradients(model, seed))
    path = TrainingRecord.capture(model, optimizer, schedule, GradientsAccumulator(), None).save(
        BinFileRecorder(), tmp_path / "a"
    )
    restored = TrainingRecord.load(BinFileRecorder(), path).restore(*parts(), device)
    other = restored.model
    assert other.scale.id == model.scale.id
    for seed in range(2, 4):
        model = optimizer.step(schedule.step(), model, gradients(model, seed))
        other = restored.optimizer.step(restored.scheduler.step(), other, gradients(other, seed))
    assert bits(model) == bits(other)


def test_a_restore_that_brings_half_storage_back_brings_masters_too(device):
    """The fresh model is float32, and so its optimizer was made without masters."""
    model = language(device).to_dtype(rt.bfloat16)
    optimizer, schedule = MuonAdamWConfig().from_model(model), ConstantLrSchedulerConfig(0.1)
    model = optimizer.step(0.1, model, gradients(model))
    record = TrainingRecord.capture_with_dtypes(model, optimizer, schedule.init(), GradientsAccumulator())
    fresh = language(device)
    back = record.restore_with_dtypes(fresh, MuonAdamWConfig().from_model(fresh), schedule.init(), device)
    model, other = optimizer.step(0.1, model, gradients(model, 1)), back.optimizer.step(0.1, back.model, gradients(back.model, 1))
    assert bits(model) == bits(other) and other.scale.dtype == rt.bfloat16


def test_contract_28_records_of_another_kind_are_refused_and_change_nothing():
    model = language()
    optimizer = MuonAdamWConfig().from_model(model)
    model = optimizer.step(0.1, model, gradients(model))
    good = optimizer.to_record(model)
    first = next(iter(good["muon"]["states"]))
    swapped = copy.deepcopy(good)
    swapped["adamw"]["states"][first] = swapped["muon"]["states"].pop(first)
    shaped, typed = copy.deepcopy(good), copy.deepcopy(good)
    shaped["manifest"]["scale"]["shape"] = [5]
    typed["manifest"]["scale"]["dtype"] = "float16"
    grouped = MuonAdamWConfig().from_model(model, exclude=["*head*", "projection"]).to_record(model)
    broken_state = copy.deepcopy(good)
    broken_state["adamw"]["states"][model.scale.id] = {}
    before = repr(good)
    for record, kind, message in (
        (None, RecorderError, "should hold"), ({**good, "more": 1}, RecorderError, "should hold"),
        ({**good, "version": 2}, RecorderError, "version 2"), ({**good, "manifest": []}, RecorderError, "should hold"),
        (MuonAdamWConfig(adamw_lr_ratio=0.5).from_model(model).to_record(), RecordMismatch, r"adamw_lr_ratio: 0\.5 \| 0\.015"),
        (MuonAdamWConfig(MuonConfig(momentum=0.5)).from_model(model).to_record(), RecordMismatch, "muon"),
        (grouped, RecordMismatch, "projection"), (shaped, RecordMismatch, "scale"), (typed, RecordMismatch, "float16"),
        (swapped, RecorderError, "not in that group"), (broken_state, RecordMismatch, "holds"),
        ({**good, "muon": 7}, RecorderError, "should hold"), (language_record(), RecordMismatch, "record \\| here"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            optimizer.load_record(record, model)
        assert repr(optimizer.to_record(model)) == before
    optimizer.load_record(good, model)
    assert repr(optimizer.to_record(model)) == before
    optimizer.to_record(model)["manifest"]["scale"]["shape"].append(1)  # a record is a snapshot
    assert repr(optimizer.to_record(model)) == before


def language_record():
    model = language()
    return MuonAdamWConfig().from_model(model).to_record(model)
