"""AdamW with fused_step: clipping, skipping, masters, records, against AdamW once more in float64 and against PyTorch."""
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import RecordMismatch
from ruda_optim import (
    AdamWConfig,
    Fp32MasterOptimizer,
    FusedAdamW,
    GradientClippingConfig,
    GradientsParams,
    fused_adamw,
    gradient_stats,
)
from ruda_optim.groups import ParamGroup
from ruda_record import RecorderError

from ._helpers import Pair, Point, adamw, give, param, point


def fused(**options):
    return AdamWConfig(fused_step=True, **options).init()


def bits(model):
    return [p.numpy().tobytes() for p in model.params()]


def state_bits(optimizer):
    return repr({key: copy_of(state) for key, state in optimizer.states.items()})


def copy_of(state):
    if isinstance(state, dict):
        return {name: copy_of(value) for name, value in state.items()}
    return rt.backend.to_host(state).tobytes() if hasattr(state, "dtype") else state


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, rt.float16])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 37), (0, 5), (70_000, 33)])
def test_values_follow_float64(device, dtype, sizes):
    rng = np.random.default_rng(0)
    options = {"weight_decay": 0.1, "betas": (0.8, 0.95), "eps": 1e-6}
    model = Pair(*[param(rng.standard_normal(n), dtype, device) for n in sizes])
    expected = [p.numpy().astype(float) for p in (model.a, model.b)]
    optimizer, sequence = fused(max_grad_norm=0.7, **options), []
    for _ in range(4):
        raw = [rt.tensor(rng.standard_normal(n), dtype=dtype).numpy().astype(float) for n in sizes]
        model = optimizer.step(0.01, model, give((model.a, raw[0]), (model.b, raw[1])), loss_scale=4.0)
        norm = np.sqrt(sum(((g / 4.0) ** 2).sum() for g in raw))
        assert optimizer.last_grad_norm == pytest.approx(norm, rel=2e-6)
        assert optimizer.last_clip_coef == pytest.approx(min(1.0, 0.7 / (norm + 1e-6)), rel=2e-6)
        sequence.append([g / 4.0 * min(1.0, 0.7 / (norm + 1e-6)) for g in raw])
    expected = [adamw(p, [gs[i] for gs in sequence], 0.01, **options) for i, p in enumerate(expected)]
    for p, wanted in zip((model.a, model.b), expected):
        if dtype == rt.float32:
            np.testing.assert_allclose(p.numpy(), wanted, rtol=2e-6, atol=2e-6)
            assert "master_copy" not in optimizer.states[p.id]
        else:
            master = rt.backend.to_host(optimizer.states[p.id]["master_copy"])
            np.testing.assert_allclose(master, wanted, rtol=2e-6, atol=2e-6)
            assert p.dtype == dtype and p.numpy().tobytes() == master.astype(dtype).tobytes()


def test_agrees_with_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    start = [rng.standard_normal(n).astype(np.float32) for n in (5, 300)]
    theirs = [torch.nn.Parameter(torch.tensor(x)) for x in start]
    reference = torch.optim.AdamW(theirs, lr=0.02, weight_decay=0.3)
    model, optimizer = Pair(*[param(x) for x in start]), fused(weight_decay=0.3, max_grad_norm=1.0)
    for _ in range(6):
        gradients = [rng.standard_normal(n).astype(np.float32) for n in (5, 300)]
        for p, g in zip(theirs, gradients):
            p.grad = torch.tensor(g)
        norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        reference.step()
        model = optimizer.step(0.02, model, give((model.a, gradients[0]), (model.b, gradients[1])))
        assert optimizer.last_grad_norm == pytest.approx(float(norm), rel=1e-6)
    for p, q in zip((model.a, model.b), theirs):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=2e-6, atol=2e-6)


def test_without_clipping_it_is_plain_adamw_bit_for_bit(device):
    rng = np.random.default_rng(2)
    start = rng.standard_normal(1000)
    one, other = point(start, device=device), point(start, device=device)
    fast, plain = fused(), AdamWConfig().init()
    for _ in range(3):
        g = rng.standard_normal(1000)
        one, other = fast.step(0.1, one, give((one.x, g))), plain.step(0.1, other, give((other.x, g)))
    assert bits(one) == bits(other) and fast.last_grad_norm is None and fast.last_clip_coef is None


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}, {"max_grad_norm": 1.0, "hierarchical_stats": True}])
def test_contract_59_one_bad_number_skips_everything(device, bad, options):
    model, optimizer = Pair(param(np.ones(40_000), device=device), param(np.ones(3), device=device)), fused(**options)
    poor = np.ones(40_000)
    poor[39_999] = bad
    before = bits(model)
    same = optimizer.step(0.1, model, give((model.a, poor), (model.b, np.ones(3))))
    assert same is model and optimizer.last_step_skipped and optimizer.last_step_had_grad
    assert bits(model) == before and not optimizer.states and optimizer.to_record(model)["states"] == {}
    model = optimizer.step(0.1, model, give((model.a, np.ones(40_000)), (model.b, np.ones(3))))
    assert not optimizer.last_step_skipped and bits(model) != before
    before, states = bits(model), state_bits(optimizer)
    model = optimizer.step(0.1, model, give((model.a, np.ones(40_000)), (model.b, np.full(3, bad))))
    assert optimizer.last_step_skipped and bits(model) == before and state_bits(optimizer) == states
    assert optimizer.last_grad_norm is None and optimizer.last_clip_coef is None


def test_what_overflows_when_it_is_unscaled_is_bad_too(device):
    model, optimizer, largest = point(1.0, device=device), fused(), float(np.finfo(np.float32).max)
    gradients = give((model.x, largest))
    assert optimizer.step(0.1, model, gradients, loss_scale=0.5) is model and optimizer.last_step_skipped
    optimizer.step(0.1, model, gradients, loss_scale=1.0)
    assert not optimizer.last_step_skipped


@pytest.mark.parametrize("dtype", [rt.float32, rt.float16, rt.bfloat16])
def test_contract_60_gradients_are_only_read(device, dtype):
    model, optimizer = point(np.ones(999), dtype, device), fused(max_grad_norm=0.5)
    gradients = give((model.x, np.linspace(-3, 3, 999)))
    before = gradients[model.x].numpy().tobytes()
    optimizer.step(0.1, model, gradients, loss_scale=8.0)
    assert gradients[gradients.ids()[0]].numpy().tobytes() == before


def test_contract_61_one_norm_after_unscaling_over_all_groups(device):
    model = Pair(param([1.0], device=device), param([1.0], device=device))
    groups = [ParamGroup("b", weight_decay=0.0, lr_scale=2.0)]
    optimizer = AdamWConfig(fused_step=True, max_grad_norm=1.0, weight_decay=0.5).init(groups)
    assert isinstance(optimizer, FusedAdamW)
    new = optimizer.step(0.1, model, give((model.a, [6.0]), (model.b, [8.0])), loss_scale=2.0)
    assert optimizer.last_grad_norm == 5.0 and optimizer.last_clip_coef == float(np.float32(1.0 / (5.0 + 1e-6)))
    # The first update of Adam is lr times the sign of the gradient, and the moments show what it was given.
    assert new.a.item() == pytest.approx(1.0 * (1 - 0.1 * 0.5) - 0.1, rel=1e-5)
    assert new.b.item() == pytest.approx(1.0 - 0.2, rel=1e-5)
    for p, g in ((new.a, 3.0), (new.b, 4.0)):
        m = rt.backend.to_host(optimizer.states[p.id]["inner"]["exp_avg"])
        assert float(m[0]) == pytest.approx(0.1 * g * optimizer.last_clip_coef, rel=1e-6)
    for wrong in ({"max_grad_norm": 2.0}, {"amsgrad": True}, {"weight_decay": -1.0}, {"speed": 9}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            AdamWConfig(fused_step=True).init([ParamGroup("b", **wrong)])


@pytest.mark.parametrize("size", [1e30, 1e-30, 3e38, 1e-40])
def test_contract_62_the_norm_neither_overflows_nor_underflows(device, size):
    if size < np.finfo(np.float32).tiny and device.kind == "cuda":
        pytest.skip("CuPy's kernels take float32 numbers below 1.2e-38 for zero (docs/decisions/0001-foundation.md)")
    model, optimizer = Pair(param(np.ones(5000), device=device), param([1.0], device=device)), fused(max_grad_norm=1.0)
    x = float(np.float32(size))
    optimizer.step(0.1, model, give((model.a, np.full(5000, x)), (model.b, [x])))
    assert optimizer.last_grad_norm == pytest.approx(x * np.sqrt(5001.0), rel=1e-6) and optimizer.last_grad_norm > 0
    assert not optimizer.last_step_skipped


def test_contract_63_a_limit_of_zero_still_decays_and_counts(device):
    model, optimizer = point([2.0], device=device), fused(max_grad_norm=0.0, weight_decay=0.5)
    for _ in range(2):
        model = optimizer.step(0.1, model, give((model.x, [7.0])))
    assert optimizer.last_clip_coef == 0.0
    state = optimizer.states[model.x.id]["inner"]
    assert model.x.item() == pytest.approx(2.0 * 0.95**2, rel=1e-6) and state["time"] == 2
    assert float(state["exp_avg"][0]) == 0.0


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 1.0}, {"max_grad_norm": 1.0, "hierarchical_stats": True}])
def test_contract_64_twelve_bytes_come_to_the_host_once_a_step(device, options, monkeypatch):
    seen, real = [], gradient_stats.to_host
    monkeypatch.setattr(gradient_stats, "to_host", lambda a: seen.append((a.nbytes, str(a.dtype))) or real(a))
    model, optimizer = Pair(param(np.ones(70_000), device=device), param(np.ones(5), device=device)), fused(**options)
    for _ in range(3):
        model = optimizer.step(0.1, model, give((model.a, np.ones(70_000)), (model.b, np.ones(5))))
    assert seen == [(12, "float32")] * 3


def test_contract_67_half_models_keep_float32_state_through_a_record(device):
    rng = np.random.default_rng(3)
    model, optimizer = point(rng.standard_normal(50), rt.float16, device), fused(max_grad_norm=1.0)
    other, resumed = model.clone(), fused(max_grad_norm=1.0)
    gs = [rng.standard_normal(50) * 1e-6 for _ in range(4)]
    for g in gs[:2]:
        model = optimizer.step(1e-4, model, give((model.x, g), dtype=rt.float32))
    other = model.clone()
    resumed.load_record(optimizer.to_record(model), other)
    assert state_bits(resumed) == state_bits(optimizer)
    state = resumed.states[other.x.id]
    assert state["param_dtype"] == "float16" and state["inner"]["exp_avg_sq"].dtype == np.float32
    assert float(rt.backend.to_host(state["inner"]["exp_avg_sq"]).max()) < 1e-8  # nothing in float16
    for g in gs[2:]:
        model = optimizer.step(1e-4, model, give((model.x, g), dtype=rt.float32))
        other = resumed.step(1e-4, other, give((other.x, g), dtype=rt.float32))
    assert bits(model) == bits(other) and state_bits(resumed) == state_bits(optimizer)
    with pytest.raises(RecordMismatch, match=r"float16 \| bfloat16"):
        resumed.load_record(optimizer.to_record(model), model.to_dtype(rt.bfloat16))


def test_contract_66_step_options_in_records():
    model = point([1.0])
    plain, one = AdamWConfig().init(), fused(max_grad_norm=1.0)
    two = fused(max_grad_norm=1.0, hierarchical_stats=True)
    assert "step_options" not in plain.to_record()["config"] and "fused_step" not in plain.to_record()["config"]
    assert one.to_record()["config"]["step_options"] == {"version": 1, "fused_step": True, "max_grad_norm": 1.0}
    assert two.to_record()["config"]["step_options"] == {
        "version": 2, "hierarchical_stats": True, "fused_step": True, "max_grad_norm": 1.0
    }  # fmt: skip
    AdamWConfig().init().load_record(plain.to_record(), model)  # no options are options that are off
    others = (plain, two, fused(max_grad_norm=2.0), fused())
    for optimizer, record in [(one, other) for other in others] + [(other, one) for other in others]:
        with pytest.raises(RecordMismatch, match="step_options"):
            optimizer.load_record(record.to_record(), model)
    good = one.to_record()
    for options, message in (
        ({"version": 3, "fused_step": True, "max_grad_norm": 1.0}, "version 3"),
        ({"version": True, "fused_step": True, "max_grad_norm": 1.0}, "version True"),
        ({"version": 1, "fused_step": True, "max_grad_norm": 1.0, "speed": 9}, "speed"),
        ({"version": 1, "fused_step": True}, "max_grad_norm"),
        (7, "version None"),
    ):
        with pytest.raises(RecorderError, match=message):
            one.load_record({**good, "config": {**good["config"], "step_options": options}}, model)
    one.load_record(good, model)


def test_contract_68_a_failure_half_way_poisons_it_until_a_record_is_loaded(monkeypatch):
    model, optimizer = Pair(param(np.ones(20_000)), param(np.ones(20_000))), fused(max_grad_norm=1.0)
    ones = np.ones(20_000)
    model = optimizer.step(0.1, model, give((model.a, ones), (model.b, ones)))
    kept, record = model.clone(), optimizer.to_record(model)
    calls, real = [], fused_adamw.FusedAdamWRule.step

    def breaks(*args):
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("out of memory")
        return real(*args)

    monkeypatch.setattr(fused_adamw.FusedAdamWRule, "step", breaks)
    with pytest.raises(MemoryError):
        optimizer.step(0.1, model, give((model.a, ones), (model.b, ones)))
    monkeypatch.undo()
    gradients = give((kept.a, ones), (kept.b, ones))
    for call in (lambda: optimizer.step(0.1, kept, gradients), lambda: optimizer.to_record(kept)):
        with pytest.raises(RuntimeError, match="record"):
            call()
    optimizer.load_record(record, kept)
    assert optimizer.step(0.1, kept, gradients).a.shape == (20_000,)


def test_a_report_that_cannot_be_poisons_it_too(monkeypatch):
    model, optimizer = point([1.0]), fused(max_grad_norm=1.0)
    report = np.array([0.0, np.nan, 1.0], np.float32)
    monkeypatch.setattr(gradient_stats, "gradient_report", lambda *args, **kwargs: report)
    with pytest.raises(RuntimeError, match="cannot be right"):
        optimizer.step(0.1, model, give((model.x, [1.0])))
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match="an earlier step failed"):
        optimizer.step(0.1, model, give((model.x, [1.0])))
    assert not optimizer.states and model.x.tolist() == [1.0]


def test_errors_in_the_call_change_nothing_and_poison_nothing():
    model, optimizer = Pair(param([1.0]), param(np.ones(2), rt.float64)), fused(max_grad_norm=1.0)
    good, stranger = give((model.a, [1.0])), point([1.0])
    for call, kind, message in (
        (lambda: optimizer.step(-1.0, model, good), ValueError, "learning rate"),
        (lambda: optimizer.step(0.1, model, good, loss_scale=0.0), ValueError, "scale"),
        (lambda: optimizer.step(0.1, model, good, loss_scale=1e-45), ValueError, "scale"),
        (lambda: optimizer.step(0.1, model, good, loss_scale=np.inf), ValueError, "scale"),
        (lambda: optimizer.step(1e300, model, good), ValueError, "weight_decay"),
        (lambda: optimizer.step(0.1, model, give((model.b, [1.0, 1.0]))), TypeError, "float64"),
        (lambda: optimizer.step(0.1, model, give((stranger.x, [1.0]))), ValueError, "another model"),
        (lambda: optimizer.step(0.1, good, model), TypeError, "Module"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert not optimizer.states and model.a.tolist() == [1.0]
    assert optimizer.step(0.1, model, good).a.item() < 1.0


def test_a_model_that_changes_its_dtype_is_refused():
    model, optimizer = point(np.ones(2)), fused()
    model = optimizer.step(0.1, model, give((model.x, np.ones(2))))
    half, before = model.to_dtype(rt.float16), state_bits(optimizer)
    with pytest.raises(TypeError, match="x is stored as float16 now and was as float32"):
        optimizer.step(0.1, half, give((half.x, np.ones(2))))
    assert state_bits(optimizer) == before
    assert optimizer.step(0.1, model, give((model.x, np.ones(2)))).x.dtype == rt.float32


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"fused_step": 1}, TypeError, "fused_step=1"),
        ({"fused_step": True, "hierarchical_stats": None}, TypeError, "hierarchical_stats=None"),
        ({"hierarchical_stats": True}, ValueError, "hierarchical_stats=True"),
        ({"max_grad_norm": 1.0}, ValueError, "max_grad_norm=1.0"),
        ({"fused_step": True, "max_grad_norm": -1.0}, ValueError, "max_grad_norm=-1.0"),
        ({"fused_step": True, "max_grad_norm": 1e39}, ValueError, "max_grad_norm"),
        ({"fused_step": True, "max_grad_norm": float("nan")}, ValueError, "max_grad_norm"),
        ({"fused_step": True, "max_grad_norm": True}, ValueError, "max_grad_norm=True"),
        ({"fused_step": True, "amsgrad": True}, ValueError, "amsgrad=True"),
        ({"fused_step": True, "betas": (0.9, 1 - 1e-9)}, ValueError, "betas"),
        ({"fused_step": True, "grad_clipping": GradientClippingConfig.norm(1.0)}, ValueError, "grad_clipping"),
    ],
)
def test_option_rules(options, kind, message):
    with pytest.raises(kind, match=message):
        AdamWConfig(**options).init()


def test_the_bare_rule_has_no_step_options():
    with pytest.raises(ValueError, match=r"init\(\)"):
        Fp32MasterOptimizer(AdamWConfig(fused_step=True).build())
    assert AdamWConfig().with_fused_step(True).with_max_grad_norm(1.0).init().config.max_grad_norm == 1.0


def test_frozen_parameters_and_those_without_a_gradient_stay():
    frozen = param(np.ones(3)).set_require_grad(False)
    model, optimizer = Pair(frozen, param(np.ones(3))), fused(max_grad_norm=1.0)
    optimizer.step(0.1, model, GradientsParams())
    assert not optimizer.last_step_had_grad and not optimizer.last_step_skipped and optimizer.last_grad_norm is None
    gradients = give((model.b, np.ones(3)))
    gradients.register(model.a, rt.tensor(np.full(3, np.inf), dtype=rt.float32))
    new = optimizer.step(0.1, model, gradients)  # a frozen parameter's gradient is not looked at
    assert not optimizer.last_step_skipped and new.a.tolist() == [1, 1, 1] and list(optimizer.states) == [model.b.id]
    tied = param(np.ones(2))
    twice = optimizer.step(0.1, Pair(tied, tied), give((tied, [3.0, 4.0])))
    assert twice.a is twice.b and optimizer.last_grad_norm == 5.0


def test_step_selected_decides_by_the_selected_alone():
    model, optimizer = Pair(param([1.0]), param([1.0])), fused(max_grad_norm=1.0)
    gradients = give((model.a, [2.0]), (model.b, [np.inf]))
    new, unused = optimizer.step_selected(0.1, model, gradients, [model.a])
    assert new.a.item() < 1.0 and new.b.item() == 1.0 and unused.ids() == [model.b.id] and optimizer.last_grad_norm == 2.0
    same, unused = optimizer.step_selected(0.1, new, give((new.b, [np.inf])), [new.b])
    assert same is new and unused.ids() == [new.b.id] and optimizer.last_step_skipped


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_by_itself(copied):
    model, optimizer = Pair(param(np.ones(4)), param(np.ones(5), rt.bfloat16)), fused(max_grad_norm=1.0)
    model = optimizer.step(0.1, model, give((model.a, np.ones(4)), (model.b, np.ones(5))))
    other, twin = model.clone(), copied(optimizer)
    for _ in range(2):
        model = optimizer.step(0.1, model, give((model.a, np.ones(4)), (model.b, np.full(5, 2.0))))
        other = twin.step(0.1, other, give((other.a, np.ones(4)), (other.b, np.full(5, 2.0))))
    assert bits(model) == bits(other) and twin.last_clip_coef == optimizer.last_clip_coef < 1.0


def test_small_parameters_together_give_the_bits_of_each_alone(device):
    rng = np.random.default_rng(5)
    values, gs = rng.standard_normal((2, 7)), rng.standard_normal((3, 2, 7))
    both, optimizer = Pair(*[param(v, rt.bfloat16, device) for v in values]), fused()
    alone = [(Point(param(v, rt.bfloat16, device)), fused()) for v in values]
    for g in gs:
        both = optimizer.step(0.1, both, give((both.a, g[0]), (both.b, g[1])), loss_scale=8.0)
        alone = [(o.step(0.1, m, give((m.x, x)), loss_scale=8.0), o) for (m, o), x in zip(alone, g)]
    assert bits(both) == [b for m, _ in alone for b in bits(m)]
