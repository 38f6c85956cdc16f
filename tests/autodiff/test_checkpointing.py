"""checkpoint and balanced checkpointing: bit-equal gradients, less memory, the same random numbers."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, HigherDerivativeUnsupported, anomaly_mode, checkpoint, grad, memory_report
from ruda_autodiff.anomaly import AnomalyError


def network(x, w1, w2, b):
    h = rt.tanh(x @ w1 + b)
    h = rt.gelu(h * 1.5) + h
    h = rt.layer_norm(h)
    return rt.softmax(h @ w2, axis=-1) * rt.exp(-h @ w2)


def parts(device, kind, rng):
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((16, 8), (8, 32), (32, 8), (32,))]
    x, *weights = [rt.tensor(a, device=device) for a in arrays]
    record = Autodiff(device, checkpointing=kind)
    return x, [record.leaf(w) for w in weights]


def gradients(f, x, weights):
    loss = f(x, *weights).sum()
    kept = memory_report(loss).total
    g = loss.backward()
    return [g[w].numpy().tobytes() for w in weights], kept


def test_balanced_and_checkpoint_are_bit_equal_and_keep_less(device):
    plain, kept = gradients(network, *parts(device, "none", np.random.default_rng(0)))
    balanced, kept_balanced = gradients(network, *parts(device, "balanced", np.random.default_rng(0)))
    again, _ = gradients(checkpoint(network), *parts(device, "none", np.random.default_rng(0)))
    assert plain == balanced == again
    assert kept_balanced < kept / 2


def test_balanced_long_pointwise_chain_is_linear_in_time_and_keeps_nothing():
    x = Autodiff(rt.Cpu(), checkpointing="balanced").leaf(rt.tensor(np.linspace(0.1, 1, 50), device=rt.Cpu()))
    y = x
    for _ in range(2000):
        y = rt.sin(y) + 0.01
    loss = y.sum()
    assert memory_report(loss).total == 0
    plain = rt.tensor(np.linspace(0.1, 1, 50), device=rt.Cpu()).require_grad()
    z = plain
    for _ in range(2000):
        z = rt.sin(z) + 0.01
    assert loss.backward()[x].numpy().tobytes() == z.sum().backward()[plain].numpy().tobytes()
    assert memory_report(loss).total == 0


def test_balanced_first_order_graph_refuses_a_second_derivative_and_transforms_give_it():
    x = Autodiff(rt.Cpu(), checkpointing="balanced").leaf(rt.tensor([0.5], device=rt.Cpu()))
    with pytest.raises(HigherDerivativeUnsupported, match="balanced"):
        rt.sin(x).sum().backward(order=2)
    w = Autodiff(rt.Cpu(), checkpointing="balanced").leaf(rt.tensor([2.0], dtype=rt.float64, device=rt.Cpu()))
    g = grad(lambda x: (rt.sin(x * w)).sum(), order=2)(rt.tensor([0.3], dtype=rt.float64, device=rt.Cpu()))
    np.testing.assert_allclose(g.sum().backward()[w].item(), np.cos(0.6) - 0.6 * np.sin(0.6), rtol=1e-12)


def test_checkpoint_draws_the_same_random_numbers_and_leaves_the_stream_alone():
    def noisy(x):
        return rt.dropout(rt.exp(x), 0.5, training=True)

    def run(f):
        rt.random.seed(5)
        x = rt.tensor(np.linspace(0, 1, 64).astype(np.float32), device=rt.Cpu()).require_grad()
        y = f(x)
        g = y.sum().backward()[x].numpy()
        return y.detach().numpy().tobytes(), g.tobytes(), rt.random.normal((3,), device=rt.Cpu()).numpy().tobytes()

    assert run(noisy) == run(checkpoint(noisy))


def test_checkpoint_of_captured_weights_and_several_results():
    w = rt.tensor([3.0], device=rt.Cpu()).require_grad()
    x = rt.tensor([2.0], device=rt.Cpu())
    a, b, n = checkpoint(lambda x: (x * w, rt.exp(w), 7))(x)
    g = (a * 10.0 + b).backward()
    np.testing.assert_allclose(g[w].item(), 20.0 + np.exp(3.0), rtol=1e-6)
    assert n == 7


@pytest.mark.parametrize(
    "later, words",
    [
        (lambda x: rt.sum(x * 2.0, keepdims=True), r"\(1,\)"),
        (lambda x: rt.astype(x * 2.0, rt.float32), "float32"),
        (lambda x: (x * 2.0, x), r"\(3,\), 'float64'\), \(\(3,\)"),
        (lambda x: x.detach(), r"\[\]"),
    ],
)
def test_a_function_that_gives_other_results_when_it_runs_again_is_refused(later, words):
    functions = iter([lambda x: x * 2.0, later])
    x = rt.tensor([1.0, 2.0, 3.0], dtype=rt.float64, device=rt.Cpu()).require_grad()
    y = checkpoint(lambda x: next(functions)(x))(x)
    with pytest.raises(RuntimeError, match="checkpoint: the function gave.*" + words):
        y.sum().backward()


def test_nested_checkpoints_and_second_order():
    f = checkpoint(lambda x: checkpoint(lambda y: y * y * y)(x) * x)
    x = rt.tensor(2.0, dtype=rt.float64, device=rt.Cpu())
    assert grad(f)(x).item() == 32.0 and grad(grad(f))(x).item() == 48.0


def test_anomaly_mode_names_the_operation_and_shows_the_forward_line():
    x = rt.tensor([0.0, 1.0], device=rt.Cpu()).require_grad()
    with anomaly_mode(), pytest.raises(AnomalyError) as caught:
        y = rt.sqrt(x)  # the line to be found
        (y * rt.tensor([0.0, 1.0], device=rt.Cpu())).sum().backward()
    text = str(caught.value)
    assert "'sqrt'" in text and "the line to be found" in text


def test_strategies_are_checked():
    with pytest.raises(ValueError, match="balanced"):
        Autodiff(rt.Cpu(), checkpointing="some")
    with pytest.raises(TypeError, match="plain"):
        Autodiff(Autodiff(rt.Cpu()))
    assert Autodiff(rt.Cpu()) == Autodiff("cpu") and Autodiff(rt.Cpu()) != Autodiff(rt.Cpu(), checkpointing="balanced")
