"""Clipping by value and by norm, parameter by parameter."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Param
from ruda_optim import (
    AdanConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsParams,
    MuonConfig,
    SgdConfig,
    clip_by_global_norm,
    clip_by_norm,
    clip_by_value,
    clipping,
)
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.ops import _parallel

from ._helpers import Pair, give, param, point


def clipped(clipping, g, dtype=rt.float32, device=None):
    """The gradient that a rule gets to see: what a step of size 1 takes off a zero."""
    model = point(np.zeros(np.shape(g)), dtype, device)
    return -SgdConfig(grad_clipping=clipping).init().step(1.0, model, give((model.x, g))).x.numpy()


def test_by_value(device):
    got = clipped(GradientClippingConfig.value(0.5), [-2.0, -0.5, 0.25, 0.0, 7.0, np.inf, np.nan], device=device)
    np.testing.assert_array_equal(got, np.float32([-0.5, -0.5, 0.25, 0.0, 0.5, 0.5, np.nan]))


def test_by_norm(device):
    np.testing.assert_allclose(clipped(GradientClippingConfig.norm(1.0), [3.0, 4.0], device=device), [0.6, 0.8], rtol=1e-6)
    assert clipped(GradientClippingConfig.norm(1.0), [], device=device).shape == (0,)
    assert clipped(GradientClippingConfig.norm(1.0), 3.0, device=device).tolist() == 1.0
    assert clipped(GradientClippingConfig.norm(1.0), [0.0, 0.0], device=device).tolist() == [0.0, 0.0]


def test_contract_20_what_is_under_the_norm_is_bit_unchanged(device):
    g = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    got = clipped(GradientClippingConfig.norm(float(np.linalg.norm(g)) * 1.001), g, device=device)
    assert got.tobytes() == g.tobytes()


def test_contract_20_clipping_looks_at_each_parameter_alone(device):
    model = Pair(param([0.0, 0.0], device=device), param([0.0], device=device))
    gradients = give((model.a, [3.0, 4.0]), (model.b, [0.5]))
    model = SgdConfig(grad_clipping=GradientClippingConfig.norm(1.0)).init().step(1.0, model, gradients)
    np.testing.assert_allclose(model.a.numpy(), [-0.6, -0.8], rtol=1e-6)
    assert model.b.tolist() == [-0.5]


@pytest.mark.parametrize("size", [1e30, 1e38, 1e-30, 1e-34])
def test_the_norm_neither_overflows_nor_underflows(size, device):
    g = np.float32([3.0, -4.0]) * np.float32(size / 4)
    unit = g.astype(np.float64) / np.linalg.norm(g.astype(np.float64))
    np.testing.assert_allclose(clipped(GradientClippingConfig.norm(size / 100), g, device=device) / (size / 100), unit, rtol=1e-5)


def test_OPTIM_11_a_gradient_that_is_not_finite_is_left_as_it_is_and_alone(device):
    model = Pair(param([0.0, 0.0], device=device), param([0.0], device=device))
    gradients = give((model.a, [np.inf, 2.0]), (model.b, [5.0]))
    model = SgdConfig(grad_clipping=GradientClippingConfig.norm(1.0)).init().step(1.0, model, gradients)
    assert model.a.tolist() == [-np.inf, -2.0] and model.b.tolist() == [-1.0]
    got = clipped(GradientClippingConfig.norm(1.0), [np.nan, 2.0], device=device)
    assert np.isnan(got[0]) and got[1] == 2.0


def test_clipping_comes_before_decay_and_momentum(device):
    model = point([2.0], rt.float64, device)
    config = SgdConfig(weight_decay=0.5, grad_clipping=GradientClippingConfig.value(1.0))
    assert config.init().step(1.0, model, give((model.x, [10.0]))).x.tolist() == [0.0]  # 2 - (1 + 0.5 * 2)


def test_every_rule_takes_it_and_the_gradient_itself_is_not_changed(device):
    for config in (AdanConfig(), MuonConfig()):
        model = point(np.ones((2, 2)), device=device)
        g = rt.full((2, 2), 100.0, device=device)
        config.with_grad_clipping(GradientClippingConfig.value(1.0)).init().step(0.1, model, GradientsParams({model.x: g}))
        assert (g.numpy() == 100.0).all()


def test_contract_31_masters_are_unscaled_before_they_are_clipped(device):
    masters = Fp32MasterOptimizer(SgdConfig().build()).with_grad_clipping(GradientClippingConfig.norm(1.0))
    masters = masters.with_gradient_scale(8.0)
    model = point([0.0, 0.0], rt.bfloat16, device)
    got = masters.init().step(1.0, model, give((model.x, [1.5, 2.0]), dtype=rt.float32)).x.astype(rt.float32).numpy()
    np.testing.assert_allclose(got, [-1.5 / 8, -2.0 / 8], rtol=1e-6)  # the unscaled norm is under 1: nothing to clip
    model = point([0.0, 0.0], rt.float32, device)
    got = masters.init().step(1.0, model, give((model.x, [24.0, 32.0]))).x.numpy()
    np.testing.assert_allclose(got, [-0.6, -0.8], rtol=1e-6)


# the norm of all gradients
def params(*shapes, device=None, dtype=rt.float32):
    return [Param(rt.zeros(shape, dtype=dtype, device=device or rt.Cpu())) for shape in shapes]


def norm64(arrays):
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(a, np.float64) / 1e30)) for a in arrays))) * 1e30


@pytest.mark.parametrize("dtype", [rt.float32, rt.float64, rt.bfloat16, rt.float16])
def test_the_global_norm_and_what_it_scales(dtype, device):
    rng = np.random.default_rng(0)
    places = params((), (3, 5), (0,), (100_003,), (1,), device=device, dtype=dtype)
    gradients = give(*[(p, rng.standard_normal(p.shape)) for p in places])
    arrays = [gradients[p].numpy().astype(np.float64) for p in places]
    for limit in (1.0, 1e4):
        clipped, norm = clip_by_global_norm(gradients, limit)
        assert norm.shape == () and norm.dtype == (rt.float64 if dtype == rt.float64 else rt.float32) and norm.device == device
        assert norm.item() == pytest.approx(norm64(arrays), rel=1e-7)
        for p, before in zip(places, arrays):
            after = clipped[p]
            assert after.dtype == dtype and after.shape == p.shape
            wide = before if limit > 1e3 else before * (limit / norm64(arrays))
            tolerance = {rt.float64: 1e-15, rt.float32: 3e-7, rt.bfloat16: 2**-8, rt.float16: 2**-10}[dtype]
            np.testing.assert_allclose(after.numpy().astype(np.float64), wide, rtol=tolerance, atol=1e-7)
            if limit > 1e3:
                assert after.numpy().tobytes() == gradients[p].numpy().tobytes()


def test_the_global_norm_is_that_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    places = params((4, 3), (7,))
    gradients = give(*[(p, 10 * rng.standard_normal(p.shape)) for p in places])
    leaves = [torch.zeros(p.shape, requires_grad=True) for p in places]
    for leaf, p in zip(leaves, places):
        leaf.grad = torch.tensor(gradients[p].numpy())
    theirs = torch.nn.utils.clip_grad_norm_(leaves, 0.5).item()
    clipped, norm = clip_by_global_norm(gradients, 0.5)
    assert norm.item() == pytest.approx(theirs, rel=1e-6)
    for leaf, p in zip(leaves, places):
        np.testing.assert_allclose(clipped[p].numpy(), leaf.grad.numpy(), rtol=3e-6)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize(("dtype", "size"), [
    (rt.float32, 1e30), (rt.float32, 1e38), (rt.float32, 1e-30), (rt.float32, 1e-35), (rt.float64, 1e30), (rt.float64, 1e-30),
    (rt.float64, 1e300), (rt.float64, 1e-300), (rt.bfloat16, 1e30), (rt.bfloat16, 1e-30),
])  # fmt: skip
def test_the_global_norm_neither_overflows_nor_underflows(dtype, size, device):
    a, b = params((2,), (1,), device=device, dtype=dtype)
    gradients = give((a, [2.0 * size, -1.0 * size]), (b, [2.0 * size]))
    exact = np.float64(gradients[b].numpy().astype(np.float64)[0]) * 1.5
    clipped, norm = clip_by_global_norm(gradients, size / 100)
    assert norm.item() == pytest.approx(exact, rel=1e-2 if dtype == rt.bfloat16 else 1e-6)
    got = clipped[a].numpy().astype(np.float64) / (size / 100)
    np.testing.assert_allclose(got, [2 / 3, -1 / 3], rtol=1e-2 if dtype == rt.bfloat16 else 1e-6)
    model = Pair(a, b)
    config = SgdConfig(grad_clipping=GradientClippingConfig.global_norm(size / 100))
    moved = config.init().step(1.0, model, gradients).a.numpy().astype(np.float64) / (size / 100)
    np.testing.assert_allclose(moved, [-2 / 3, 1 / 3], rtol=1e-2 if dtype == rt.bfloat16 else 1e-6)


@pytest.mark.parametrize(("size", "limit"), [(1e38, 1.0), (1e38, 1e-3), (1e30, 1e-10), (1e38, 1e-10)])
def test_a_factor_below_the_range_of_float32_loses_nothing(size, limit, device):
    """limit / norm is below 1.2e-38 here, where float32 has fewer digits, or none."""
    a, b = params((2,), (1,), device=device)
    gradients = give((a, [2.0 * size, -1.0 * size]), (b, [2.0 * size]))
    by_norm = clip_by_norm(gradients, limit)
    np.testing.assert_allclose(by_norm[a].numpy() / limit, np.array([2.0, -1.0]) / np.sqrt(5.0), rtol=1e-6)
    if device.kind == "cpu":  # on a GPU the factor of a global norm is one float32
        together, _ = clip_by_global_norm(gradients, limit)
        np.testing.assert_allclose(together[a].numpy() / limit, [2 / 3, -1 / 3], rtol=1e-6)


def test_the_bits_of_a_global_norm_do_not_depend_on_which_thread_is_first(monkeypatch):
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((20, 500_003)) * 10.0 ** rng.uniform(-3, 3, (20, 1))  # the root hides many a last bit
    gradients = [give((params(g.shape, dtype=rt.float64)[0], g)) for g in arrays]
    found = set()
    for order in (list, lambda blocks: blocks[::-1], lambda blocks: blocks[1::2] + blocks[::2]):

        def each_block(xp, rows, row_bytes, body, order=order):
            blocks = []
            _parallel.each_block(xp, rows, row_bytes, blocks.append)
            assert len(blocks) > 5
            for block in order(sorted(blocks, key=lambda block: block.start)):
                body(block)

        monkeypatch.setattr(clipping, "each_block", each_block)
        found.add(tuple(clip_by_global_norm(g, 1.0)[1].item() for g in gradients))
    assert len(found) == 1


@pytest.mark.parametrize("wrap", [False, True])
def test_every_rule_clips_by_the_global_norm_before_it_does_anything_else(wrap, device):
    """The same as clipping the gradients by hand and giving them to the rule without clipping.

    Without kernels: theirs adds the squares of the norm in float32, which is right to 1e-6 and not to the bit
    (tests/kernels/test_together.py).
    """
    import ruda_optim as ro

    with use_fused(False):
        _clips_before_anything_else(ro, wrap, device)


def _clips_before_anything_else(ro, wrap, device):
    rng = np.random.default_rng(2)
    for name in ("SgdConfig", "AdamConfig", "AdamWConfig", "AdaGradConfig", "RmsPropConfig", "AdanConfig", "MuonConfig"):
        config = getattr(ro, name)()
        clipping = GradientClippingConfig.global_norm(0.7)

        def made(rule):
            return Fp32MasterOptimizer(rule).init() if wrap else ro.Optimizer(rule)

        clipped, plain = made(config.with_grad_clipping(clipping).build()), made(config.build())
        one = Pair(param(np.ones((2, 3)), device=device), param(np.ones((3, 2)), device=device))
        two = one.clone()
        for _ in range(3):
            g = rng.standard_normal((2, 2, 3)).astype(np.float32)
            by_hand, _ = clip_by_global_norm(give((two.a, g[0]), (two.b, g[1].T)), 0.7)
            one = clipped.step(0.1, one, give((one.a, g[0]), (one.b, g[1].T)))
            two = plain.step(0.1, two, by_hand)
        for ours, theirs in zip(one.params(), two.params()):
            assert ours.numpy().tobytes() == theirs.numpy().tobytes()


def test_masters_take_the_global_norm_of_the_unscaled_gradients(device):
    limit = GradientClippingConfig.global_norm(1.0)
    for masters in (
        Fp32MasterOptimizer(SgdConfig().build(), gradient_scale=8.0, grad_clipping=limit),
        Fp32MasterOptimizer(SgdConfig(grad_clipping=limit).build(), gradient_scale=8.0),
    ):
        model = Pair(param([0.0], rt.bfloat16, device), param([0.0], rt.bfloat16, device))
        new = masters.init().step(1.0, model.clone(), give((model.a, [3.0]), (model.b, [4.0]), dtype=rt.float32))
        assert (new.a.item(), new.b.item()) == (-0.375, -0.5)  # the unscaled norm is 5 / 8: nothing to clip
        new = masters.init().step(1.0, model.clone(), give((model.a, [24.0]), (model.b, [32.0]), dtype=rt.float32))
        assert new.a.item() == pytest.approx(-0.6, rel=2**-8) and new.b.item() == pytest.approx(-0.8, rel=2**-8)
    with pytest.raises(ValueError, match="one place"):
        Fp32MasterOptimizer(SgdConfig(grad_clipping=limit).build()).with_grad_clipping(limit)


def test_clipping_by_value_and_by_norm_as_functions(device):
    a, b = params((2,), (2,), device=device)
    gradients = give((a, [3.0, -4.0]), (b, [0.3, np.nan]))
    by_value = clip_by_value(gradients, 1.0)
    np.testing.assert_array_equal(by_value[b].numpy(), np.float32([0.3, np.nan]))
    assert by_value[a].tolist() == [1.0, -1.0] and gradients[a].tolist() == [3.0, -4.0]
    np.testing.assert_allclose(clip_by_norm(gradients, 1.0)[a].numpy(), [0.6, -0.8], rtol=1e-6)
    half = clip_by_norm(give((params((2,), dtype=rt.float16, device=device)[0], [300.0, 400.0])), 250.0)
    (g,) = [half[key] for key in half]
    assert g.dtype == rt.float16 and g.tolist() == [150.0, 200.0]  # the sum of squares is no float16
    for clip in (clip_by_value, clip_by_norm, clip_by_global_norm):
        for wrong in (0.0, -1.0, float("nan"), float("inf"), True, "1"):
            with pytest.raises(ValueError, match=r"limit=.*number > 0"):
                clip(gradients, wrong)


@pytest.mark.gpu
def test_gradients_on_two_devices_have_one_norm():
    a, b = params((1,))[0], params((1,), device=rt.Cuda(0))[0]
    clipped, norm = clip_by_global_norm(give((a, [30.0]), (b, [40.0])), 5.0)
    assert norm.item() == 50.0 and clipped[a].tolist() == [3.0] and clipped[b].tolist() == [4.0]


WRONG = [
    ("value", 0.0, "limit"), ("norm", float("inf"), "limit"), ("global_norm", -1.0, "limit"), ("both", 1.0, "kind"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "limit", "field"), WRONG)
def test_wrong_settings_are_refused(kind, limit, field):
    clipping = GradientClippingConfig(kind, limit)
    with pytest.raises(ValueError, match=f"{field}=.*give"):
        SgdConfig(grad_clipping=clipping).init()
    with pytest.raises(ValueError, match=f"{field}=.*give"):
        Fp32MasterOptimizer(SgdConfig().build(), grad_clipping=clipping)


@pytest.mark.parametrize("clip", [clip_by_value, clip_by_norm, clip_by_global_norm])
def test_what_are_no_gradients_per_parameter_is_refused(clip):
    p = param([1.0])
    for wrong in ({p: p}, p, [p], (p * p).sum().backward()):
        with pytest.raises(TypeError, match=rf"{clip.__name__}\(GradientsParams\.from_grads"):
            clip(wrong, 1.0)


def test_it_is_part_of_the_configuration_that_a_restore_compares():
    model = point([1.0])
    record = SgdConfig(grad_clipping=GradientClippingConfig.value(1.0)).init().to_record()
    SgdConfig(grad_clipping=GradientClippingConfig.value(1)).init().load_record(record, model)
    with pytest.raises(ValueError, match="grad_clipping"):
        SgdConfig().init().load_record(record, model)
