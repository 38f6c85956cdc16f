"""FP32 masters: contracts 29 to 31, AMP-07, and what a wrapper must not get wrong."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_optim import AdamWConfig, Fp32MasterOptimizer, RecordMismatch, SgdConfig
from ruda_record import BinBytesRecorder, DoublePrecisionSettings, HalfPrecisionSettings

from ._helpers import REFERENCES, Pair, Point, give, param, point


@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
def test_contract_29_the_master_moves_like_float32_and_the_weight_is_its_rounding(dtype, device):
    half, full = point([1.0], dtype, device), point([1.0], rt.float32, device)
    masters, plain = Fp32MasterOptimizer(SgdConfig().build()).init(), SgdConfig().init()
    for _ in range(64):
        half = masters.step(1.0, half, give((half.x, [1e-4]), dtype=rt.float32))
        full = plain.step(1.0, full, give((full.x, [1e-4])))
        master = masters.states[half.x.id]["master"]
        assert rt.Tensor._wrap(master, device).numpy().tobytes() == full.x.numpy().tobytes()
        assert half.x.dtype == dtype and half.x.numpy().tobytes() == full.x.numpy().astype(half.x.dtype).tobytes()
    assert full.x.item() == pytest.approx(1.0 - 64e-4, abs=64 * 2**-25)  # half an ulp a step


def test_contract_30_edits_of_the_stored_weight_are_ignored(device):
    model, masters = point([1.0], rt.bfloat16, device), Fp32MasterOptimizer(SgdConfig().build()).init()
    model = masters.step(1.0, model, give((model.x, [0.25])))
    edited = Point(model.x.like(rt.full((1,), 99.0, dtype=rt.bfloat16, device=device)._data))
    assert masters.step(1.0, edited, give((edited.x, [0.25]))).x.tolist() == [0.5]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), 1e39, 1e-39, 1e-46, 1e300, "8", None])
def test_contract_31_a_scale_that_float32_cannot_divide_by_is_refused(scale):
    with pytest.raises(ValueError, match="scale.*reciprocal"):
        Fp32MasterOptimizer(SgdConfig().build()).with_gradient_scale(scale)


def test_AMP_07_small_gradients_survive_under_a_scale_and_small_updates_in_the_master(device):
    for scale, expected in ((1.0, 0.0), (1024.0, 1.0011718e-8)):
        g = rt.tensor([1e-8 * scale], dtype=rt.float16, device=device)
        model = point([0.0], rt.float32, device)
        masters = Fp32MasterOptimizer(SgdConfig().build()).with_gradient_scale(scale).init()
        got = -masters.step(1.0, model, ro.GradientsParams({model.x: g.astype(rt.float32)})).x.item()
        assert got == pytest.approx(expected, rel=1e-7)
    for dtype in (rt.bfloat16, rt.float16):
        model, bare = point([1.0], dtype, device), point([1.0], dtype, device)
        masters, plain = Fp32MasterOptimizer(SgdConfig().build()).init(), SgdConfig().init()
        for _ in range(1000):
            model = masters.step(1e-4, model, give((model.x, [1.0])))
            bare = plain.step(1e-4, bare, give((bare.x, [1.0])))
        assert model.x.item() == pytest.approx(0.9, rel=4e-3) and bare.x.item() == 1.0


def test_the_division_by_the_scale_is_exact_for_any_scale(device):
    g = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    model = point(np.zeros(100), rt.float32, device)
    masters = Fp32MasterOptimizer(SgdConfig().build(), gradient_scale=3.0).init()
    assert (-masters.step(1.0, model, give((model.x, g))).x.numpy()).tobytes() == (g / np.float32(3.0)).tobytes()


@pytest.mark.parametrize("config", [*REFERENCES, "MuonConfig"])
def test_every_rule_can_be_wrapped_and_moves_its_master_as_float32(config, device):
    rng = np.random.default_rng(0)
    p = rt.tensor(rng.standard_normal((3, 4)), dtype=rt.bfloat16).numpy()
    half, full = point(p, rt.bfloat16, device), point(p.astype(np.float32), rt.float32, device)
    build = getattr(ro, config)().build
    masters, plain = Fp32MasterOptimizer(build()).init(), ro.Optimizer(build())
    for _ in range(5):
        g = rng.standard_normal((3, 4)).astype(np.float32)
        half = masters.step(1e-2, half, give((half.x, g), dtype=rt.float32))
        full = plain.step(1e-2, full, give((full.x, g)))
    assert half.x.numpy().tobytes() == full.x.numpy().astype(half.x.dtype).tobytes()


def test_a_float32_parameter_and_its_master_do_not_share_memory(device):
    model, masters = point([1.0], rt.float32, device), Fp32MasterOptimizer(SgdConfig().build()).init()
    model = masters.step(1.0, model, give((model.x, [0.25])))
    kept = model.valid()
    masters.step(1.0, model, give((model.x, [0.25])))
    assert kept.x.tolist() == [0.75]


def test_what_it_cannot_hold_is_refused_before_anything_changes():
    model = Pair(param([1.0], rt.bfloat16), param([1.0], rt.float64))
    masters = Fp32MasterOptimizer(AdamWConfig().build()).init()
    with pytest.raises(TypeError, match="float64"):
        masters.step(0.1, model, give((model.a, [1.0]), (model.b, [1.0])))
    with pytest.raises(TypeError, match="float16"):
        masters.step(0.1, model, give((model.a, [1.0]), dtype=rt.float16))
    assert not masters.states and model.a.tolist() == [1.0]
    for inner in (AdamWConfig().init(), AdamWConfig(), Fp32MasterOptimizer(AdamWConfig().build()), None):
        with pytest.raises(TypeError, match=r"AdamWConfig\(\)\.build\(\)"):
            Fp32MasterOptimizer(inner)
    for call in (lambda c: Fp32MasterOptimizer(SgdConfig().build(), grad_clipping=c), masters.rule.with_grad_clipping):
        with pytest.raises(TypeError, match=r"grad_clipping=GradientClippingConfig\.norm\(1\.0\)"):
            call(1.0)


def test_with_methods_make_new_rules():
    plain = Fp32MasterOptimizer(SgdConfig().build())
    scaled = plain.with_gradient_scale(8.0)
    assert (plain.gradient_scale, scaled.gradient_scale) == (1.0, 8.0)
    assert repr(scaled) == "Fp32MasterOptimizer(Sgd, gradient_scale=8.0)"


@pytest.mark.parametrize("settings", [None, DoublePrecisionSettings, HalfPrecisionSettings])
def test_masters_and_moments_come_back_in_float32(settings, device):
    model, masters = point([1.0, 2.0], rt.bfloat16, device), Fp32MasterOptimizer(AdamWConfig().build()).init()
    for _ in range(3):
        model = masters.step(1e-3, model, give((model.x, [0.1, 0.3]), dtype=rt.float32))
    recorder = BinBytesRecorder() if settings is None else BinBytesRecorder(settings)
    stored = recorder.load(recorder.save(masters.to_record()))
    again = Fp32MasterOptimizer(AdamWConfig().build()).init()
    again.load_record(stored, model)
    before, after = masters.states[model.x.id], again.states[model.x.id]
    arrays = [(before["master"], after["master"])] + [(before["inner"][k], after["inner"][k]) for k in ("exp_avg", "exp_avg_sq")]
    assert all(b.dtype == np.float32 for _, b in arrays) and after["inner"]["time"] == 3
    same = [bool((a == b).all()) for a, b in arrays]
    assert same == [True] * 3 if settings is not HalfPrecisionSettings else not all(same)
    other = again.step(1e-3, model.clone(), give((model.x, [0.1, 0.3]), dtype=rt.float32))
    assert other.x.dtype == rt.bfloat16
    for wrong in (Fp32MasterOptimizer(AdamWConfig().build()).with_gradient_scale(2.0), Fp32MasterOptimizer(SgdConfig().build())):
        with pytest.raises(RecordMismatch, match=r"gradient_scale: 1\.0 \| 2\.0|inner"):
            wrong.init().load_record(stored, other)
