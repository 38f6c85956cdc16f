"""Second derivatives through every layer and loss, against differences of first ones."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_nn as nn
import ruda_tensor as rt
from ruda_autodiff import Autodiff, grad, hvp

CPU = rt.Cpu(float_dtype=rt.float64)
LAYERS = {
    "linear": (nn.LinearConfig(4, 3), (5, 4)),
    "conv1d": (nn.Conv1dConfig(4, 2, 3, padding=1, groups=2), (2, 4, 5)),
    "conv2d": (nn.Conv2dConfig(2, 3, 2, dilation=2), (2, 2, 4, 4)),
    "conv_transpose": (nn.ConvTranspose2dConfig(2, 3, 3, stride=2), (2, 2, 3, 3)),
    "layer_norm": (nn.LayerNormConfig(4), (5, 4)),
    "rms_norm": (nn.RmsNormConfig(4), (5, 4)),
    "batch_norm": (nn.BatchNormConfig(4), (5, 4, 2)),
    "group_norm": (nn.GroupNormConfig(2, 4), (2, 4, 3)),
    "instance_norm": (nn.InstanceNormConfig(3, affine=True), (2, 3, 4)),
    "dropout": (nn.DropoutConfig(0.3), (5, 4)),
    "prelu": (nn.PReluConfig(4), (5, 4)),
    "swiglu": (nn.SwiGluConfig(4, 3), (5, 4)),
    "attention": (
        nn.MultiHeadAttentionConfig(4, 2, n_kv_heads=1, dropout=0.2, causal=True, rotary=nn.RotaryConfig(2)), (2, 3, 4)
    ),
    "rnn": (nn.RnnConfig(3, 2, num_layers=2), (2, 3, 3)),
    "gru": (nn.GruConfig(3, 2, bidirectional=True), (2, 3, 3)),
    "lstm": (nn.LstmConfig(3, 2), (2, 3, 3)),
    "encoder": (nn.TransformerEncoderConfig(4, 2, d_ff=5, n_layers=1, dropout=0.1, activation="gelu"), (2, 3, 4)),
    "max_pool": (nn.MaxPool2dConfig(2), (2, 2, 4, 4)),
    "avg_pool": (nn.AvgPool1dConfig(2, padding=1), (2, 2, 5)),
    "adaptive_pool": (nn.AdaptiveAvgPool2dConfig(2), (2, 2, 3, 5)),
}  # fmt: skip


def drawn(shape, seed):
    return rt.tensor(np.random.default_rng(seed).standard_normal(shape), device=CPU)


def pieces(name):
    config, shape = LAYERS[name]
    rt.random.seed(1)
    model, x = config.init(Autodiff(CPU)), drawn(shape, 0)

    def loss(model, x):
        rt.random.seed(3)
        y = model(x)
        y = y if isinstance(y, rt.Tensor) else y[0]
        return rt.sum(y * y * drawn(y.shape, 2))

    return model, x, loss


def close(found, gradient_at):
    """A Hessian-vector product beside the central difference of gradients."""
    step = 1e-5
    expected = (gradient_at(step) - gradient_at(-step)) / (2 * step)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(expected).max(initial=0.0)))


@pytest.mark.parametrize("name", LAYERS)
def test_by_the_input(name):
    model, x, loss = pieces(name)
    v = drawn(x.shape, 4)
    close(hvp(lambda x: loss(model, x), x, v).numpy(), lambda h: grad(lambda x: loss(model, x))(x + v * h).numpy())


@pytest.mark.parametrize("name", [name for name in LAYERS if pieces(name)[0].params()])
def test_by_the_parameters(name):
    model, x, loss = pieces(name)
    directions = [drawn(p.shape, 10 + i) for i, p in enumerate(model.params())]

    def gradient_at(h):
        moved = iter(directions)
        there = model.map(lambda p: p.like((p.detach() + next(moved) * h)._data))
        return flat(grad(lambda m: loss(m, x))(there))

    def flat(module):
        return np.concatenate([p.numpy().ravel() for p in module.map_tensors(lambda p: nn.Param(p)).params()])

    found = hvp(lambda m: loss(m, x), model, directions)
    close(flat(found), gradient_at)


def test_parameters_with_one_gradient_stay_two():
    """a + b hands the same gradient to both; as one tensor in two places of a module they would count as tied."""

    class Pair(nn.Module):
        a: nn.Param
        b: nn.Param

    pair = Pair(nn.Param(drawn(3, 0)), nn.Param(drawn(3, 1)))
    found = hvp(lambda m: rt.sum((m.a + m.b) ** 3), pair, [rt.ones(3, device=CPU), rt.zeros(3, device=CPU)])
    np.testing.assert_allclose(found.a.numpy(), 6 * (pair.a.numpy() + pair.b.numpy()))
    np.testing.assert_allclose(found.b.numpy(), found.a.numpy())
    tied = Pair(pair.a, pair.a)
    found = hvp(lambda m: rt.sum((m.a + m.b) ** 3), tied, [rt.ones(3, device=CPU)])
    np.testing.assert_allclose(found.a.numpy(), 48 * pair.a.numpy())


LOSSES = {
    "mse": (nn.MseLossConfig(), "numbers"),
    "huber": (nn.HuberLossConfig(0.7), "numbers"),
    "smooth_l1": (nn.SmoothL1LossConfig(0.5), "numbers"),
    "poisson": (nn.PoissonNllLossConfig(full=True), "rates"),
    "cross_entropy": (nn.CrossEntropyLossConfig(label_smoothing=0.1, weight=[1.0, 2, 3, 4, 0.5]), "ids"),
    "soft_cross_entropy": (nn.CrossEntropyLossConfig(), "distributions"),
    "binary": (nn.BinaryCrossEntropyLossConfig(logits=True, pos_weight=[2.0]), "probabilities"),
    "kl": (nn.KlDivLossConfig(reduction="batchmean"), "distributions"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_of_losses(name):
    config, kind = LOSSES[name]
    loss, x, y, v = config.init(CPU), drawn((4, 5), 0), drawn((4, 5), 1), drawn((4, 5), 2)
    targets = {
        "numbers": y, "rates": rt.abs(y) * 3, "distributions": rt.softmax(y), "probabilities": rt.sigmoid(y),
        "ids": rt.tensor([0, 4, -100, 2], device=CPU),
    }  # fmt: skip
    f = lambda x: loss(x, targets[kind])
    close(hvp(f, x, v).numpy(), lambda h: grad(f)(x + v * h).numpy())
