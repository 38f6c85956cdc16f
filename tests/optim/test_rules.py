"""The elementwise rules against published traces, plain float64 NumPy, and PyTorch where it is installed."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_optim as ro
import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import AdamConfig, AdamWConfig, Fp32MasterOptimizer, SgdConfig

from ._helpers import REFERENCES, give, param, point, trace

# One parameter at 1, gradients 0.5, -0.25, 0.1, 0.4, lr 0.1: the golden traces, with the options they were made with.
GRADIENTS = [0.5, -0.25, 0.1, 0.4]
GOLDEN = [
    ("SgdConfig", {}, [0.95, 0.975, 0.965, 0.925]),
    ("SgdConfig", {"momentum": 0.9, "dampening": 0.1}, [0.95, 0.9275, 0.89825, 0.835925]),
    ("SgdConfig", {"momentum": 0.9, "dampening": 0.1, "nesterov": True}, [0.905, 0.90975, 0.873425, 0.7773325]),
    ("AdamConfig", {"eps": 1e-5}, [0.900002, 0.87336897, 0.841845575, 0.787250082]),
    ("AdamWConfig", {"eps": 1e-5, "weight_decay": 1e-4}, [0.899992, 0.87334997, 0.841817842, 0.78721393]),
    ("AdanConfig", {}, [0.900000002, 0.931590037, 0.931449811, 0.903721464]),
    ("AdanConfig", {"weight_decay": 0.1}, [0.891089111, 0.913543708, 0.904359884, 0.867952017]),
    ("AdanConfig", {"weight_decay": 0.1, "no_prox": True}, [0.890000002, 0.912690037, 0.90342291, 0.866660334]),
    ("AdaGradConfig", {"eps": 1e-5}, [0.900002, 0.94472256, 0.927113851, 0.86952942]),
    ("RmsPropConfig", {"eps": 1e-5, "momentum": 0.9}, [0.00019996, -0.450687452, -1.034093801, -2.140232916]),
    (
        "RmsPropConfig",
        {"eps": 1e-5, "momentum": 0.9, "centered": True},
        [-0.004835836, -0.459820277, -1.047243631, -2.160377274],
    ),
    ("RmsPropConfig", {"eps": 1e-5}, [0.00019996, 0.449132584, 0.271524905, -0.309548495]),
]


@pytest.mark.parametrize(("config", "options", "expected"), GOLDEN)
def test_golden_traces(config, options, expected):
    got = trace(getattr(ro, config)(**options).init(), GRADIENTS)
    np.testing.assert_allclose(got, expected, rtol=0, atol=6e-10)  # half a unit of the ninth decimal
    single = trace(getattr(ro, config)(**options).init(), GRADIENTS, dtype=rt.float32)
    np.testing.assert_allclose(single, expected, rtol=1e-6, atol=2e-7)


CASES = [
    ("SgdConfig", {}),
    ("SgdConfig", {"weight_decay": 0.1}),
    ("SgdConfig", {"momentum": 0.9}),
    ("SgdConfig", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SgdConfig", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("AdamConfig", {}),
    ("AdamConfig", {"weight_decay": 0.1, "betas": (0.8, 0.95)}),
    ("AdamConfig", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamConfig", {"betas": (0.0, 0.0)}),
    ("AdamWConfig", {}),
    ("AdamWConfig", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamWConfig", {"cautious_weight_decay": True, "weight_decay": 0.3}),
    ("AdaGradConfig", {}),
    ("AdaGradConfig", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("RmsPropConfig", {}),
    ("RmsPropConfig", {"momentum": 0.9, "weight_decay": 0.1}),
    ("RmsPropConfig", {"centered": True}),
    ("RmsPropConfig", {"centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    ("AdanConfig", {}),
    ("AdanConfig", {"weight_decay": 0.3}),
    ("AdanConfig", {"weight_decay": 0.3, "no_prox": True}),
]


def run(config, options, p, gradients, lr, dtype, device=None):
    model, optimizer = point(p, dtype, device), getattr(ro, config)(**options).init()
    for g in gradients:
        model = optimizer.step(lr, model, give((model.x, g)))
    assert model.x.dtype == dtype
    return model.x.numpy()


def data(shape=(7, 3), steps=50):
    rng = np.random.default_rng(3)
    scale = 10.0 ** rng.uniform(-3, 1, shape)
    return rng.standard_normal(shape), [rng.standard_normal(shape) * scale for _ in range(steps)]


@pytest.mark.parametrize(("config", "options"), CASES)
def test_fifty_steps_equal_the_float64_reference(config, options, device):
    p, gradients = data()
    expected = REFERENCES[config](p, gradients, 1e-2, **options)
    got = run(config, options, p, gradients, 1e-2, rt.float64, device)
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    single = run(config, options, p, gradients, 1e-2, rt.float32, device)
    np.testing.assert_allclose(single, expected, rtol=2e-5, atol=2e-5)


TORCH = {
    "SgdConfig": "SGD", "AdamConfig": "Adam", "AdamWConfig": "AdamW", "AdaGradConfig": "Adagrad", "RmsPropConfig": "RMSprop"
}  # fmt: skip


@pytest.mark.parametrize(("config", "options"), [c for c in CASES if c[0] in TORCH and "cautious_weight_decay" not in c[1]])
def test_fifty_steps_equal_torch(config, options):
    torch = pytest.importorskip("torch")
    p, gradients = data()
    leaf = torch.tensor(p, requires_grad=True)
    theirs = getattr(torch.optim, TORCH[config])([leaf], lr=1e-2, **options)
    for g in gradients:
        leaf.grad = torch.tensor(g)
        theirs.step()
    np.testing.assert_allclose(run(config, options, p, gradients, 1e-2, rt.float64), leaf.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("config", TORCH)
def test_defaults_are_those_of_torch(config):
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.optim, TORCH[config])([torch.zeros(1, requires_grad=True)], lr=0.1).defaults
    ours = getattr(ro, config)().build().config.describe()
    shared = set(ours) & set(theirs)
    assert {"SgdConfig": "momentum", "RmsPropConfig": "alpha"}.get(config, "eps") in shared
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}


@pytest.mark.parametrize("config", REFERENCES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (100_003,)])
def test_every_shape_is_updated(config, shape, device):
    rng = np.random.default_rng(1)
    p, gradients = rng.standard_normal(shape), [rng.standard_normal(shape) for _ in range(3)]
    got = run(config, {}, p, gradients, 1e-2, rt.float64, device)
    assert got.shape == shape and isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, REFERENCES[config](p, gradients, 1e-2), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("config", REFERENCES)
def test_strided_parameters_and_gradients_are_updated(config, device):
    p, gradients = data((6, 4), 3)
    x = rt.tensor(p, device=device).T
    model, optimizer = point([0.0]), getattr(ro, config)().init()
    model = type(model)(Param(x))
    before = x.numpy()
    for g in gradients:
        model = optimizer.step(1e-2, model, ro.GradientsParams({model.x: rt.tensor(g, device=device).T}))
    np.testing.assert_allclose(model.x.numpy(), REFERENCES[config](p, gradients, 1e-2).T, rtol=1e-10)
    assert x.numpy().tobytes() == before.tobytes()  # the tensor that the parameter was made of


@pytest.mark.parametrize("config", [*REFERENCES, "MuonConfig"])
@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(config, dtype, device):
    p, gradients = data((4, 3), 1)
    p, gradients = rt.tensor(p, dtype=dtype).numpy().astype(np.float32), gradients
    g = rt.tensor(gradients[0], dtype=dtype).numpy().astype(np.float32)
    got = run(config, {}, p, [g], 1e-2, dtype, device)
    wide = run(config, {}, p, [g], 1e-2, rt.float32, device)
    assert got.tobytes() == wide.astype(got.dtype).tobytes()


@pytest.mark.parametrize("config", [*REFERENCES, "MuonConfig"])
def test_the_same_input_gives_the_same_bits(config, device):
    p, gradients = data((40, 30), 3)
    first, second = (run(config, {}, p, gradients, 1e-2, rt.float32, device) for _ in range(2))
    assert first.tobytes() == second.tobytes()


# adaptive rules at their edges
OPTIM_01 = [
    ("AdamConfig", {}), ("AdamConfig", {"amsgrad": True}), ("AdamWConfig", {"weight_decay": 0.0}), ("RmsPropConfig", {}),
    ("RmsPropConfig", {"centered": True}), ("AdaGradConfig", {}), ("AdanConfig", {}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "options"), OPTIM_01)
@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16, rt.float32])
def test_OPTIM_01_zero_gradients_leave_half_parameters_alone(config, options, dtype, device):
    model, optimizer = point([0.5, -4.0, 3.0], dtype, device), getattr(ro, config)(**options).init()
    before = model.x.numpy().tobytes()
    for _ in range(3):
        model = optimizer.step(0.1, model, give((model.x, [0.0, 0.0, 0.0])))
    assert model.x.numpy().tobytes() == before
    states = [a for a in optimizer.states[model.x.id].values() if hasattr(a, "dtype")]
    assert states and all(bool(a.dtype == np.float32) and not (a * 0).any() for a in states)


def test_OPTIM_02_eps_is_added_to_the_corrected_root(device):
    for config in (AdamConfig(), AdamWConfig(weight_decay=0.0)):
        model = point(1.0, rt.float64, device)
        model = config.init().step(0.1, model, give((model.x, 1e-9)))
        assert 1.0 - model.x.item() == pytest.approx(0.1 / 11, rel=1e-9)


def test_OPTIM_06_adamw_decays_by_the_learning_rate_and_past_the_moments(device):
    got = trace(AdamWConfig(weight_decay=0.5).init(), [0.0, 0.0])
    np.testing.assert_allclose(got, [0.95, 0.9025], rtol=1e-15)
    coupled = trace(AdamConfig(weight_decay=0.5).init(), [0.0, 0.0])
    np.testing.assert_allclose(coupled[1], 0.8004122, rtol=1e-7)


def test_OPTIM_15_the_counter_of_the_bias_correction_survives_a_record():
    gradients, sequence = [1.0, -0.5, 0.25, 2.0], [0.9, 0.8733663, 0.8393234, 0.7750341915]
    np.testing.assert_allclose(trace(AdamConfig().init(), gradients), sequence, rtol=1e-6)
    model, optimizer = point(1.0, rt.float64), AdamConfig().init()
    for g in gradients[:2]:
        model = optimizer.step(0.1, model, give((model.x, g)))
    record, optimizer = optimizer.to_record(), AdamConfig().init()
    optimizer.load_record(record, model)
    for g in gradients[2:]:
        model = optimizer.step(0.1, model, give((model.x, g)))
    assert model.x.item() == pytest.approx(0.7750341915, abs=5e-11)


def test_contract_21_amsgrad_keeps_the_largest_uncorrected_moment():
    optimizer = AdamConfig(amsgrad=True, betas=(0.9, 0.5)).init()
    model = point(1.0, rt.float64)
    moments = []
    for g in (2.0, 0.1):
        model = optimizer.step(0.1, model, give((model.x, g)))
        moments.append(float(optimizer.states[model.x.id]["max_exp_avg_sq"]))
    assert moments == [2.0, 2.0]  # the corrected moments would be 4 and 1.34


def test_contract_24_adan_starts_with_no_difference_and_decays_proximally():
    optimizer = ro.AdanConfig(weight_decay=0.1).init()
    model = point(1.0, rt.float64)
    model = optimizer.step(0.1, model, give((model.x, 0.5)))
    assert float(optimizer.states[model.x.id]["exp_avg_diff"]) == 0.0
    assert model.x.item() == pytest.approx(0.9 / 1.01, rel=1e-7)


def test_contract_25_cautious_decay_asks_the_new_moment_and_zero_is_positive():
    optimizer = AdamWConfig(weight_decay=1.0, cautious_weight_decay=True, betas=(0.0, 0.0)).init()
    model = point([1.0, 1.0, -1.0, -1.0, 1.0], rt.float64)
    model = optimizer.step(0.1, model, give((model.x, [3.0, -3.0, -3.0, 0.0, 0.0])))
    np.testing.assert_allclose(model.x.numpy(), [0.9 - 0.1, 1.0 + 0.1, -0.9 + 0.1, -1.0, 0.9], rtol=1e-8)


def test_a_centered_variance_below_zero_by_rounding_counts_as_zero(device):
    rng = np.random.default_rng(0)
    model, optimizer = point(rng.standard_normal(4096), rt.float32, device), ro.RmsPropConfig(centered=True).init()
    g = rng.standard_normal(4096)
    for _ in range(2000 if device == rt.Cpu() else 200):
        model = optimizer.step(1e-9, model, give((model.x, g)))
    assert np.isfinite(model.x.numpy()).all()


def test_huge_gradients_warn_of_nothing_and_stay_local(device):
    for config in REFERENCES:
        model, optimizer = point([1.0, 1.0], rt.float32, device), getattr(ro, config)().init()
        for g in ([3e38, 0.1], [-3e38, 0.1], [float("nan"), 0.1]):
            model = optimizer.step(1e-3, model, give((model.x, g)))
        assert np.isfinite(model.x.numpy()[1])


def test_a_rule_of_ones_own_keeps_the_dtypes_of_its_state():
    class Counted(ro.Rule):
        """Sgd that counts the negative gradients, and remembers which were."""

        arrays = ("negative", "count")

        def start(self, xp, p):
            return {"time": 0, "negative": xp.zeros(p.shape, bool), "count": xp.zeros(p.shape, "int32")}

        def kernel(self, lr, time):
            def body(xp, p, g, negative, count, t):
                xp.less(g, 0.0, out=negative)
                xp.add(count, negative, out=count)
                xp.multiply(g, lr, out=t)
                xp.subtract(p, t, out=p)

            return body

    class One(Module):
        x: Param

    model = One(param([1.0, 1.0]))
    for wrap in (lambda rule: ro.Optimizer(rule), lambda rule: Fp32MasterOptimizer(rule).init()):
        optimizer, accumulator, seen = wrap(Counted(ro.OptimizerConfig())), ro.GradientsAccumulator(), []
        for i in range(1, 10):  # DTYPE_09: three windows of three micro-steps
            accumulator.accumulate_with_dtype(model, give((model.x, [-1.0, 1.0])), rt.FloatDType.F32)
            if i % 3 == 0:
                model = optimizer.step(0.1, model, accumulator.grads())
            state = optimizer.states.get(model.x.id, {"negative": None})
            state = state.get("inner", state)
            seen.append(None if state["negative"] is None else (str(state["negative"].dtype), str(state["count"].dtype)))
        assert seen == [None] * 2 + [("bool", "int32")] * 7
        assert state["count"].tolist() == [3, 0] and state["negative"].tolist() == [True, False]
        again = wrap(Counted(ro.OptimizerConfig()))
        again.load_record(optimizer.to_record(), model)
        state = again.states[model.x.id]
        state = state.get("inner", state)
        assert (state["negative"].dtype, state["count"].dtype) == (np.bool_, np.int32) and state["count"].tolist() == [3, 0]


def test_DTYPE_06_a_float64_learning_rate_leaves_parameters_and_state_in_float32(device):
    for config in REFERENCES:
        model, optimizer = point([1.0, 2.0, 3.0], rt.float32, device), getattr(ro, config)().init()
        for lr in (np.float64(1e-3), np.array(1e-3), rt.tensor(1e-3, dtype=rt.float64, device=device)):
            model = optimizer.step(lr, model, give((model.x, [1.0, 2.0, 3.0])))
        assert model.x.dtype == rt.float32
        arrays = [a for a in optimizer.states[model.x.id].values() if hasattr(a, "dtype")]
        assert all(a.dtype == np.float32 for a in arrays) and len(arrays) == len(optimizer.rule.arrays)
        for x in (model.x * np.float64(2), model.x * np.array(2.0), model.x.sum() * 2.0, np.float64(2) * model.x):
            assert x.dtype == rt.float32
    model = point(1.0)
    assert SgdConfig().init().step(np.float32(0.5), model, give((model.x, 1.0))).x.item() == 0.5


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SgdConfig(momentum=1.0), "momentum"),
        (lambda: SgdConfig(momentum="0.9"), "momentum"),
        (lambda: SgdConfig(dampening=1.5), "dampening"),
        (lambda: SgdConfig(nesterov=True), "nesterov"),
        (lambda: SgdConfig(weight_decay=-1.0), "weight_decay"),
        (lambda: SgdConfig(weight_decay=None), "weight_decay"),
        (lambda: SgdConfig(grad_clipping=1.0), "grad_clipping"),
        (lambda: AdamConfig(betas=(0.9, 1.0)), "betas"),
        (lambda: AdamConfig(betas=0.9), "betas"),
        (lambda: AdamConfig(betas=(0.9,)), "betas"),
        (lambda: AdamConfig(eps=0.0), "eps"),
        (lambda: AdamConfig(eps=float("nan")), "eps"),
        (lambda: AdamWConfig(weight_decay=float("inf")), "weight_decay"),
        (lambda: ro.AdaGradConfig(lr_decay=-0.1), "lr_decay"),
        (lambda: ro.RmsPropConfig(alpha=1.0), "alpha"),
        (lambda: ro.RmsPropConfig(momentum=-0.1), "momentum"),
        (lambda: ro.AdanConfig(betas=(0.9, 0.9)), "betas"),
        (lambda: ro.MuonConfig(dampening=0.1), "nesterov"),
        (lambda: ro.MuonConfig(dampening=0.1, nesterov=False, mode="ema"), "dampening"),
        (lambda: ro.MuonConfig(mode="sum"), "mode"),
        (lambda: ro.MuonConfig(ns_steps=0), "ns_steps"),
        (lambda: ro.MuonConfig(ns_steps=100), "ns_steps"),
        (lambda: ro.MuonConfig(ns_coefficients=(1.0, float("inf"), 1.0)), "ns_coefficients"),
        (lambda: ro.MuonConfig(eps=0.0), "eps"),
        (lambda: ro.MuonConfig(adjust_lr="x"), "adjust_lr"),
        (lambda: ro.MuonConfig(matrix_layout="x"), "matrix_layout"),
        (lambda: ro.SgdConfig(momentum=0.9, nesterov="no"), "nesterov"),
        (lambda: AdamConfig(amsgrad="no"), "amsgrad"),
        (lambda: AdamConfig(amsgrad=1), "amsgrad"),
        (lambda: AdamWConfig(cautious_weight_decay=None), "cautious_weight_decay"),
        (lambda: ro.RmsPropConfig(centered="no"), "centered"),
        (lambda: ro.AdanConfig(no_prox=0), "no_prox"),
        (lambda: ro.MuonConfig(nesterov="no"), "nesterov"),
        (lambda: ro.MuonConfig(stable_normalization=1), "stable_normalization"),
        (lambda: ro.LBFGSConfig(max_iter=-1), "max_iter"),
        (lambda: ro.LBFGSConfig(history_size=0), "history_size"),
        (lambda: ro.LBFGSConfig(tolerance_grad=-1.0), "tolerance_grad"),
        (lambda: ro.LBFGSConfig(max_eval=0), "max_eval"),
        (lambda: ro.LBFGSConfig(line_search="wolfe"), "line_search"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_value_and_range(make, field):
    config = make()
    with pytest.raises(ValueError, match=f"{field}=.*give") as error:
        config.init()
    assert repr(getattr(config, field)) in str(error.value)


NUMBERS = [
    lambda x: SgdConfig(momentum=x(0.9), weight_decay=x(0.1), dampening=x(0.3)),
    lambda x: AdamConfig(betas=(x(0.9), x(0.99)), eps=x(1e-6), weight_decay=x(0.1)),
    lambda x: AdamWConfig(betas=(x(0.9), x(0.99)), eps=x(1e-6), weight_decay=x(0.1)),
    lambda x: ro.AdaGradConfig(eps=x(1e-6), weight_decay=x(0.1), lr_decay=x(0.1)),
    lambda x: ro.RmsPropConfig(eps=x(1e-6), alpha=x(0.9), momentum=x(0.9), weight_decay=x(0.1), centered=True),
    lambda x: ro.AdanConfig(eps=x(1e-6), betas=(x(0.9), x(0.8), x(0.7)), weight_decay=x(0.1)),
    lambda x: ro.MuonConfig(momentum=x(0.9), ns_coefficients=(x(3.4), x(-4.7), x(2.03)), weight_decay=x(0.1), eps=x(1e-7)),
    lambda x: SgdConfig(grad_clipping=ro.GradientClippingConfig.norm(x(0.7))),
    lambda x: SgdConfig(grad_clipping=ro.GradientClippingConfig.value(x(0.7))),
    lambda x: SgdConfig(grad_clipping=ro.GradientClippingConfig.global_norm(x(0.7))),
]


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("make", NUMBERS)
def test_numpy_numbers_are_the_settings_of_python_numbers_to_the_bit(make, masters, device):
    """A float64 that stays NumPy's would bring float32 arrays to float64, and a resume with Python's would differ."""
    rng = np.random.default_rng(0)
    value, steps = rng.standard_normal((5, 4)), rng.standard_normal((3, 5, 4))
    results, records = [], []
    for number in (float, np.float64):
        rule = make(number).build()
        optimizer = Fp32MasterOptimizer(rule).init() if masters else make(number).init()
        model = point(value, device=device)
        for g in steps:
            model = optimizer.step(number(0.05), model, give((model.x, g)))
        results.append(model.x.numpy().tobytes())
        records.append(optimizer.to_record()["config"])
    assert results[0] == results[1] and records[0] == records[1]
