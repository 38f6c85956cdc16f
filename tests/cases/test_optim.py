"""Cases of the kind OPTIM that are about several parameters at once; the others stand beside what they test.

In tests/optim: OPTIM-01, -02, -06 and -15 in test_rules.py, -07, -09 and -13 in test_optimizer.py, -12 in test_lbfgs.py.
"""
from __future__ import annotations

import copy

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import (
    AdamWConfig,
    GradientClippingConfig,
    GradientsParams,
    ParamGroup,
    SgdConfig,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
)


class Two(Module):
    a: Param
    b: Param


def param(values, device, **kwargs):
    return Param(rt.tensor(values, dtype=rt.float32, device=device), **kwargs)


def give(*pairs):
    return GradientsParams({p: rt.tensor(g, dtype=rt.float32, device=p.device) for p, g in pairs})


def test_OPTIM_08_frozen_parameters_keep_everything_and_stay_out_of_the_norm(device):
    config = AdamWConfig(weight_decay=0.5, grad_clipping=GradientClippingConfig.global_norm(1.0))
    model, optimizer = Two(param([1.0, 1.0], device), param([1.0], device)), config.init()
    for _ in range(2):
        model = optimizer.step(0.1, model, give((model.a, [1.0, 2.0]), (model.b, [2.0])))
    frozen = Two(model.a.set_require_grad(False), model.b)
    value, state = frozen.a.numpy(), copy.deepcopy(optimizer.states[frozen.a.id])
    twin, alone = config.init(), Two(frozen.a.copy(), frozen.b.copy())
    twin.load_record(optimizer.to_record(alone), alone)
    for _ in range(2):  # the stale gradient is huge: in the norm, it would make that of b vanish
        frozen = optimizer.step(0.1, frozen, give((frozen.a, [1e6, 1e6]), (frozen.b, [0.5])))
        alone = twin.step(0.1, alone, give((alone.b, [0.5])))
    assert frozen.a.numpy().tobytes() == value.tobytes() and frozen.b.numpy().tobytes() == alone.b.numpy().tobytes()
    kept = optimizer.states[frozen.a.id]
    assert kept["time"] == state["time"] == 2 and not (kept["exp_avg"] != state["exp_avg"]).any()
    thawed = Two(frozen.a.require_grad(), frozen.b)
    thawed = optimizer.step(0.1, thawed, give((thawed.a, [0.1, 0.1])))
    assert optimizer.states[thawed.a.id]["time"] == 3 and thawed.a.numpy().tobytes() != value.tobytes()


def test_OPTIM_09_a_tied_parameter_is_stepped_once_in_one_group_and_counted_once(device):
    p = param(1.0, device)
    for groups in ((), (ParamGroup("a", lr_scale=1.0), ParamGroup("b", lr_scale=5.0))):  # the first path decides
        p = param(1.0, device)
        model = SgdConfig().init(groups=groups).step(0.1, Two(p, p), give((p, 3.0)))
        assert model.a is model.b and model.a.item() == pytest.approx(0.7)
    tied = param([0.0, 0.0], device)
    _, norm = clip_by_global_norm(give((tied, [3.0, 4.0])), 1.0)
    assert norm.item() == 5.0
    config = SgdConfig(grad_clipping=GradientClippingConfig.global_norm(5.0))
    model = config.init().step(1.0, Two(tied, tied), give((tied, [3.0, 4.0])))
    assert model.a.tolist() == [-3.0, -4.0]  # at the limit: counted twice, it would be over


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_OPTIM_11_a_norm_that_is_not_finite_is_returned_and_leaves_every_gradient_alone(bad, device):
    p, q = param([0.0], device), param([0.0, 0.0], device)
    clipped, norm = clip_by_global_norm(give((p, [bad]), (q, [1.0, 2.0])), 1.0)
    assert not np.isfinite(norm.item()) and clipped[q].tolist() == [1.0, 2.0]
    np.testing.assert_array_equal(clipped[p].numpy(), np.float32([bad]))
    assert clip_by_norm(give((p, [bad]), (q, [3.0, 4.0])), 1.0)[q].numpy() == pytest.approx([0.6, 0.8])
    model = Two(p, q)
    model = SgdConfig(grad_clipping=GradientClippingConfig.global_norm(1.0)).init().step(
        1.0, model, give((p, [bad]), (q, [1.0, 2.0]))
    )  # fmt: skip
    assert model.b.tolist() == [-1.0, -2.0]


def test_OPTIM_11_zeros_stay_zeros_and_nothing_has_the_norm_zero(device):
    p = param([1.0, 1.0], device)
    zeros = give((p, [0.0, 0.0]))
    for clipped in (clip_by_norm(zeros, 1.0), clip_by_value(zeros, 1.0), clip_by_global_norm(zeros, 1.0)[0]):
        assert clipped[p].tolist() == [0.0, 0.0]
    for empty in (GradientsParams(), give((param(np.zeros((0, 3)), device), np.zeros((0, 3))))):
        clipped, norm = clip_by_global_norm(empty, 1.0)
        assert norm.item() == 0.0 and norm.dtype == rt.float32 and len(clipped) == len(empty)
    config = SgdConfig(grad_clipping=GradientClippingConfig.global_norm(1.0))
    assert config.init().step(1.0, Two(p, p), zeros).a.tolist() == [1.0, 1.0]
    other = param([1.0], device)
    model = Two(other, other)
    assert config.init().step(1.0, model, GradientsParams()).a is other
