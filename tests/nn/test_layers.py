"""Configurations, initializers, the linear layer and the loss."""
from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn import (
    Config,
    Constant,
    CrossEntropyLossConfig,
    Initializer,
    KaimingNormal,
    KaimingUniform,
    Linear,
    LinearConfig,
    Normal,
    Uniform,
    XavierUniform,
)  # fmt: skip
from ruda_nn.config import plain


# configurations
class Outer(Config):
    inner: LinearConfig
    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


def test_with_methods_give_changed_copies():
    config = LinearConfig(2, 3)
    changed = config.with_bias(False).with_d_out(5)
    assert changed == LinearConfig(2, 5, bias=False) and config == LinearConfig(2, 3) and hash(config) == hash(LinearConfig(2, 3))
    with pytest.raises(AttributeError, match="its settings are d_in, d_out, bias, initializer"):
        config.with_biass(False)
    with pytest.raises(AttributeError, match="no 'weight'"):
        print(config.weight)
    with pytest.raises(AttributeError):
        config.d_in = 3
    with pytest.raises(TypeError, match="d_inn"):
        LinearConfig(d_inn=3, d_out=2)


def test_configs_can_be_copied_and_described():
    config = Outer(LinearConfig(2, 3), np.float32(0.5), [np.int64(1), 2])
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), copy.copy(config)):
        assert other == config
    assert config.describe() == {
        "inner": {"config": "LinearConfig", "d_in": 2, "d_out": 3, "bias": True, "initializer": None},
        "rate": 0.5,
        "sizes": (1, 2),
    }
    assert [type(v) for v in config.describe()["sizes"]] == [int, int] and type(config.describe()["rate"]) is float
    assert plain((True, None, "x", 1, 1.5, rt.FloatDType.BF16)) == (True, None, "x", 1, 1.5, "FloatDType.BF16")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LinearConfig(0, 1).init(), "d_in"),
        (lambda: LinearConfig(1, -1).init(), "d_out"),
        (lambda: LinearConfig(1.0, 1).init(), "d_in"),
        (lambda: LinearConfig(True, 1).init(), "d_in"),
        (lambda: LinearConfig(1, 1, initializer=0.5).init(), "initializer"),
        (lambda: LinearConfig(1, 1, initializer=Uniform(1.0, 1.0)).init(), "high"),
        (lambda: LinearConfig(1, 1, initializer=Normal(std=-1.0)).init(), "std"),
        (lambda: LinearConfig(1, 1, initializer=Constant(float("nan"))).init(), "value"),
        (lambda: LinearConfig(1, 1, initializer=KaimingUniform(gain=0.0)).init(), "gain"),
        (lambda: LinearConfig(1, 1, initializer=KaimingNormal(gain=-1.0)).init(), "gain"),
        (lambda: LinearConfig(1, 1, initializer=XavierUniform(gain="1")).init(), "gain"),
        (lambda: CrossEntropyLossConfig(label_smoothing=1.5).init(), "label_smoothing"),
        (lambda: CrossEntropyLossConfig(label_smoothing=None).init(), "label_smoothing"),
        (lambda: CrossEntropyLossConfig(reduction="max").init(), "reduction"),
        (lambda: CrossEntropyLossConfig(ignore_index=0.5).init(), "ignore_index"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_value_and_range(make, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        make()


# initializers
@pytest.mark.parametrize(
    ("initializer", "mean", "std", "bound"),
    [
        (Constant(0.25), 0.25, 0.0, 0.25),
        (Uniform(-1.0, 3.0), 1.0, 4 / math.sqrt(12), 3.0),
        (Normal(0.5, 2.0), 0.5, 2.0, None),
        (KaimingUniform(), 0.0, 1 / math.sqrt(3 * 200), 1 / math.sqrt(200)),
        (KaimingUniform(gain=2.0, fan_out_only=True), 0.0, 2 / math.sqrt(100), 2 * math.sqrt(3 / 100)),
        (KaimingNormal(), 0.0, 1 / math.sqrt(200), None),
        (KaimingNormal(gain=math.sqrt(2), fan_out_only=True), 0.0, math.sqrt(2 / 100), None),
        (XavierUniform(), 0.0, math.sqrt(2 / 300), math.sqrt(6 / 300)),
    ],
)
def test_initializers_have_their_moments_and_bounds(initializer, mean, std, bound, device):
    rt.random.seed(0)
    values = initializer.fill((200, 100), 200, 100, device).numpy()
    assert values.shape == (200, 100) and values.dtype == np.float32
    assert values.mean() == pytest.approx(mean, abs=5 * std / math.sqrt(20000) + 1e-7)
    assert values.std() == pytest.approx(std, rel=0.03, abs=1e-7)
    if bound is not None:
        assert np.abs(values).max() <= bound * (1 + 1e-6) and np.abs(values).max() > 0.98 * bound


def test_the_same_seed_gives_the_same_weights(device):
    def weights():
        rt.random.seed(3)
        return LinearConfig(5, 4).init(device)

    a, b = weights(), weights()
    assert a.weight.numpy().tobytes() == b.weight.numpy().tobytes() and a.weight.id != b.weight.id
    assert a.bias.numpy().tobytes() == b.bias.numpy().tobytes()


def test_an_initializer_of_ones_own():
    class Counting(Initializer):
        def fill(self, shape, fan_in, fan_out, device):
            return rt.full(shape, float(10 * fan_in + fan_out), device=device)

    layer = LinearConfig(2, 3, initializer=Counting()).init(rt.Cpu())
    assert set(layer.weight.numpy().ravel()) == {23.0} == set(layer.bias.numpy().ravel())
    with pytest.raises(TypeError, match="does not say how to fill"):
        LinearConfig(2, 3, initializer=Initializer()).init()


# the linear layer
def test_contract_4_the_weight_is_in_by_out_and_both_are_uniform_to_one_over_root_in(device):
    layer = LinearConfig(100, 3000).init(Autodiff(device))
    assert isinstance(layer, Linear) and layer.weight.shape == (100, 3000) and layer.bias.shape == (3000,)
    for values in (layer.weight.numpy(), layer.bias.numpy()):
        assert 0.0995 < np.abs(values).max() <= 0.1 and abs(values.mean()) < 5 * 0.1 / math.sqrt(3 * values.size)
    assert layer.num_params() == 100 * 3000 + 3000


@pytest.mark.parametrize("shape", [(2,), (5, 2), (4, 5, 2), (0, 2)])
def test_linear_is_x_w_plus_b(shape, device):
    layer = LinearConfig(2, 3).init(Autodiff(device))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = layer(rt.tensor(x, device=device))
    np.testing.assert_allclose(y.numpy(), x @ layer.weight.numpy() + layer.bias.numpy(), rtol=1e-6, atol=1e-6)
    assert y.is_require_grad() and layer.forward(rt.tensor(x, device=device)).shape == (*shape[:-1], 3)


def test_linear_gradients():
    layer = LinearConfig(3, 2).init(Autodiff(rt.Cpu())).to_dtype(rt.float64)
    check_gradients(lambda m, x: rt.tanh(m(x)), layer, rt.ones((4, 3), dtype=rt.float64, device=rt.Cpu()) * 0.5, order=2)


def test_linear_without_a_bias_and_on_a_plain_device(device):
    layer = LinearConfig(2, 3, bias=False).init(device)
    assert layer.bias is None and layer.paths() == ["weight"] and not layer.weight.is_require_grad() and layer.weight.trainable
    assert layer(rt.ones((1, 2), device=device)).shape == (1, 3)


def test_the_default_dtype_of_the_device_is_that_of_the_layer():
    assert LinearConfig(2, 3).init(Autodiff(rt.Cpu(float_dtype=rt.float64))).weight.dtype == rt.float64
    assert LinearConfig(2, 3).init(rt.Cpu(float_dtype=rt.bfloat16)).bias.dtype == rt.bfloat16


def test_a_wrong_input_names_both_shapes():
    with pytest.raises(ValueError, match=r"(?s)3.*2"):
        LinearConfig(2, 1).init(rt.Cpu())(rt.ones((4, 3), device=rt.Cpu()))


def test_linear_agrees_with_torch():
    torch = pytest.importorskip("torch")
    layer = LinearConfig(5, 4).init(Autodiff(rt.Cpu()))
    theirs = torch.nn.Linear(5, 4)
    theirs.load_state_dict({"weight": torch.tensor(layer.weight.numpy().T), "bias": torch.tensor(layer.bias.numpy())})
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    gradients = layer(rt.tensor(x)).square().sum().backward()
    out = theirs(torch.tensor(x))
    out.square().sum().backward()
    np.testing.assert_allclose(layer(rt.tensor(x)).numpy(), out.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients[layer.weight].numpy().T, theirs.weight.grad.numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients[layer.bias].numpy(), theirs.bias.grad.numpy(), rtol=1e-5, atol=1e-5)


# the loss
LOSSES = [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"reduction": "none"}, {"ignore_index": 2}]


@pytest.mark.parametrize("options", LOSSES)
def test_the_cross_entropy_module_is_the_function(options, device):
    logits = rt.tensor(np.random.default_rng(0).standard_normal((4, 3)), dtype=rt.float32, device=device)
    targets = rt.tensor([0, 2, 1, 2], device=device)
    loss = CrossEntropyLossConfig(**options).init()
    assert loss(logits, targets).tolist() == rt.cross_entropy(logits, targets, **options).tolist()
    assert loss.params() == [] and "CrossEntropyLoss" in repr(loss)
