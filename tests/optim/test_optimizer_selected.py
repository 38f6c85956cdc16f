"""`step_selected`: the named parameters are updated, and the gradients that were not used come back."""
from __future__ import annotations

import copy

import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_optim import AdamConfig, GradientClippingConfig, GradientsParams, SgdConfig

from ._helpers import Pair, give, param, point

NAMING = [lambda m: [m.a], lambda m: [m.a.id], lambda m: m.a, lambda m: m.a.id, lambda m: (p for p in [m.a])]


@pytest.mark.parametrize("ids", NAMING)
def test_only_the_named_ones_are_updated_and_the_other_gradients_come_back(ids, device):
    model, optimizer = Pair(param([1.0, 2.0], device=device), param([4.0], device=device)), AdamConfig().init()
    gradients = give((model.a, [1.0, 1.0]), (model.b, [1.0]))
    new, unused = optimizer.step_selected(0.1, model, gradients, ids(model))
    assert new.b is model.b and not model.b.is_consumed() and model.a.is_consumed()
    assert list(optimizer.states) == [new.a.id] and unused.ids() == [new.b.id]
    assert len(gradients) == 2  # the container that was given is the caller's
    new = optimizer.step(0.1, new, unused)
    assert new.b.tolist() == pytest.approx([3.9]) and optimizer.states[new.a.id]["time"] == 1


def test_the_values_are_those_of_a_step_with_only_those_gradients(device):
    model = Pair(param([1.0, 2.0], device=device), param([4.0], device=device))
    one, two = SgdConfig(momentum=0.9).init(), SgdConfig(momentum=0.9).init()
    other = model.clone()
    for _ in range(3):
        gradients = give((model.a, [0.3, 0.7]), (model.b, [1.0]))
        model, _ = one.step_selected(0.1, model, gradients, [model.b])
        other = two.step(0.1, other, give((other.b, [1.0])))
    assert model.b.numpy().tobytes() == other.b.numpy().tobytes() and model.a.tolist() == [1.0, 2.0]


def test_gradients_of_unknown_and_frozen_ids_come_back(device):
    model, stranger = Pair(param([1.0], device=device), param([1.0], device=device)), point([1.0], device=device)
    frozen = Pair(model.a, model.b.set_require_grad(False))
    gradients = give((frozen.a, [1.0]), (frozen.b, [1.0]), (stranger.x, [1.0]))
    new, unused = SgdConfig().init().step_selected(1.0, frozen, gradients, [frozen.a, frozen.b, stranger.x, "nobody"])
    assert new.a.tolist() == [0.0] and new.b.tolist() == [1.0]
    assert unused.ids() == [frozen.b.id, stranger.x.id] and unused[stranger.x].tolist() == [1.0]
    new, unused = SgdConfig().init().step_selected(1.0, new, give((stranger.x, [1.0])), [new.a])
    assert new.a.tolist() == [0.0] and len(unused) == 1
    new, unused = SgdConfig().init().step_selected(1.0, new, give((new.a, [1.0])), [])
    assert new.a.tolist() == [0.0] and unused.ids() == [new.a.id]


def test_a_tied_parameter_is_named_once():
    w = param([1.0])
    new, unused = SgdConfig().init().step_selected(1.0, Pair(w, w), give((w, [1.0])), [w])
    assert new.a is new.b and new.a.tolist() == [0.0] and len(unused) == 0


def test_the_global_norm_is_that_of_the_gradients_that_are_used():
    model = Pair(param([0.0]), param([0.0]))
    config = SgdConfig(grad_clipping=GradientClippingConfig.global_norm(1.0))
    new, unused = config.init().step_selected(1.0, model, give((model.a, [0.5]), (model.b, [100.0])), [model.a])
    assert new.a.tolist() == [-0.5] and unused[model.b].tolist() == [100.0]


def test_wrong_calls_change_nothing():
    model, optimizer = Pair(param([1.0]), param([1.0, 2.0])), AdamConfig().init()
    bad = give((model.a, [1.0]))
    bad._by_id[model.b.id] = rt.ones((3,), device=rt.Cpu())
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        optimizer.step_selected(0.1, model, bad, [model.a, model.b])
    with pytest.raises(ValueError, match="learning rate"):
        optimizer.step_selected(-1.0, model, bad, [model.a])
    with pytest.raises(TypeError, match="GradientsParams"):
        optimizer.step_selected(0.1, model, {}, [model.a])
    assert not optimizer.states and not model.a.is_consumed()
    new, unused = optimizer.step_selected(0.1, model, bad, [model.a])  # a gradient that is not used is not looked at
    assert unused.ids() == [new.b.id]


def test_muon_takes_the_matrices_and_adamw_what_is_left():
    model = Pair(param([[1.0, 2.0], [3.0, 4.0]]), param([1.0]))
    muon, adamw = ro.MuonConfig().init(), ro.AdamWConfig().init()
    before = copy.deepcopy(model)
    gradients = give((model.a, [[1.0, 0.0], [0.0, 1.0]]), (model.b, [1.0]))
    model, rest = muon.step_selected(0.1, model, gradients, [p for p in model.params() if p.ndim == 2])
    model = adamw.step(0.1, model, rest)
    assert model.a.tolist() != before.a.tolist() and model.b.tolist() != before.b.tolist()
    assert isinstance(rest, GradientsParams) and list(muon.states) == [model.a.id] and list(adamw.states) == [model.b.id]


@pytest.mark.parametrize("ids", [lambda m: [3], lambda m: m, lambda m: 3, lambda m: [m]])
def test_what_names_no_parameter_is_refused_here_and_in_from_params(ids):
    model, optimizer = Pair(param([1.0]), param([4.0])), AdamConfig().init()
    with pytest.raises(TypeError, match=r"Param or its id|parameters or their ids"):
        optimizer.step_selected(0.1, model, give((model.a, [1.0])), ids(model))
    with pytest.raises(TypeError, match=r"Param or its id|parameters or their ids"):
        GradientsParams.from_params((model.a * model.b).sum().backward(), model, ids(model))
    assert not model.a.is_consumed() and not optimizer.states


@pytest.mark.parametrize("ids", NAMING)
def test_from_params_takes_the_same_names(ids):
    model = Pair(param([1.0]), param([4.0]))
    assert GradientsParams.from_params((model.a * model.b).sum().backward(), model, ids(model)).ids() == [model.a.id]
