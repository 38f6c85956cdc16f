"""CTC: every path, impossible and empty targets, long inputs, half types, PyTorch, and errors."""
from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_autodiff.testing import check_gradients
from tests.specs.ctc import losses

from ._helpers import CPU, close

inf = math.inf


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def run(values, targets, frames=None, lengths=None, order=1, scale=None, device=CPU, dtype=rt.float64, **how):
    """The loss and the gradient of its sum (with weights `scale`) by the log-probabilities."""
    x = rt.tensor(values, dtype=dtype, device=device).require_grad()
    frames, lengths = (None if v is None else rt.tensor(np.asarray(v), device=device) for v in (frames, lengths))
    with ra.record(order=order):
        y = rt.ctc_loss(x, rt.tensor(np.asarray(targets), device=device), frames, lengths, **how)
    total = rt.sum(y if scale is None else y * rt.tensor(scale, dtype=y.dtype, device=device))
    return y, x.grad(total.backward())


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(0, 5), size=st.integers(0, 3), classes=st.integers(2, 3))
def test_the_loss_is_the_sum_over_every_path(seed, steps, size, classes):
    rng = np.random.default_rng(seed)
    blank = int(rng.integers(classes))
    labels = [c for c in range(classes) if c != blank]
    values, targets = log_softmax(rng.standard_normal((steps, 2, classes))), rng.choice(labels, (2, size))
    frames, lengths = rng.integers(0, steps + 1, 2), rng.integers(0, size + 1, 2)
    y, g = run(values, targets, frames, lengths, blank=blank, reduction="none")
    close(y, losses(values, targets, frames, lengths, blank), rtol=1e-10, atol=1e-12)
    used = np.arange(steps)[:, None] < frames
    possible = np.isfinite(y.numpy())
    close(g.numpy().sum(-1), np.where(used & possible, -1.0, 0.0), rtol=1e-10, atol=1e-12)  # posteriors add up to 1


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_hand_derived_body_agrees_with_its_expression(reduction, device):
    rng = np.random.default_rng(0)
    values, targets = rng.standard_normal((9, 6, 4)), rng.integers(1, 4, (6, 4))
    values[2, 0, 1] = values[:, 5, 0] = -inf  # a label and a blank that cannot be
    frames, lengths = [9, 7, 9, 0, 0, 9], [4, 2, 0, 0, 1, 1]
    scale = rng.standard_normal(6) if reduction == "none" else None
    how = {"scale": scale, "reduction": reduction, "zero_infinity": True, "device": device}
    for hand, plain in zip(*(run(values, targets, frames, lengths, order, **how) for order in (1, 2)), strict=True):
        np.testing.assert_allclose(hand.numpy(), plain.numpy(), rtol=1e-10, atol=1e-12)


def test_padding_and_frames_after_the_end_do_not_matter(device):
    values = np.random.default_rng(1).standard_normal((5, 2, 4))
    y, g = run(values, [[1, 2, 3], [3, 0, 99]], [5, 3], [3, 1], device=device, reduction="none")
    other = values.copy()
    other[3:, 1] = np.nan
    z, h = run(other, [[1, 2, 3], [3, -7, 0]], [5, 3], [3, 1], device=device, reduction="none")
    assert y.tolist() == z.tolist() and g.numpy().tobytes() == h.numpy().tobytes() and not h.numpy()[3:, 1].any()


@pytest.mark.parametrize("order", [1, 2])
def test_too_few_frames_cost_infinity_or_nothing_and_have_no_gradient(order, device):
    values = log_softmax(np.random.default_rng(2).standard_normal((3, 3, 3)))
    targets = [[1, 1, 1], [1, 2, 1], [1, 1, 2]]  # a repeated label needs a blank: 5, 3 and 4 frames
    y, g = run(values, targets, order=order, device=device, reduction="none")
    assert y.tolist()[0] == inf == y.tolist()[2]
    close(y.numpy()[1], -values[[0, 1, 2], 1, [1, 2, 1]].sum(), rtol=1e-12)
    assert np.isfinite(g.numpy()).all() and not g.numpy()[:, [0, 2]].any() and g.numpy()[:, 1].any()
    z, h = run(values, targets, order=order, device=device, zero_infinity=True)
    close(z, y.numpy()[1] / 9, rtol=1e-12)
    close(h.numpy(), g.numpy() / 9, rtol=1e-12)
    assert run(values, targets, order=order, device=device)[0].item() == inf


def test_no_labels_no_frames_no_rows(device):
    values = log_softmax(np.random.default_rng(3).standard_normal((4, 2, 3)))
    y, _ = run(values, np.zeros((2, 0), int), device=device, reduction="none")
    close(y, -values[:, :, 0].sum(0), rtol=1e-12)  # all blanks
    assert run(values[:0], [[1], [2]], device=device, lengths=[0, 1], reduction="none")[0].tolist() == [0, inf]
    assert run(values[:, :0], np.zeros((0, 3), int), device=device, reduction="sum")[0].item() == 0
    mean, _ = run(values, [[1], [1]], device=device, lengths=[0, 1])
    each, _ = run(values, [[1], [1]], device=device, lengths=[0, 1], reduction="none")
    close(mean, each.numpy().mean(), rtol=1e-12)  # no labels count as one


def test_a_thousand_frames_keep_their_digits(device):
    """One label, frames all alike: sum over starts and ends of the label, in closed form."""
    p, steps = math.exp(-4.0), 1000
    values = np.full((steps, 1, 2), [math.log1p(-p), -4.0])
    exact = -math.log(sum((steps - k + 1) * math.exp(k * -4.0 + (steps - k) * math.log1p(-p)) for k in range(1, 60)))
    y, g = run(values, [[1]], device=device)
    close(y, exact, rtol=1e-12)
    close(g.numpy().sum(-1), -1.0, rtol=1e-10)
    single, h = run(values, [[1]], device=device, dtype=rt.float32)
    assert single.dtype == rt.float32 == h.dtype
    close(single, exact, rtol=1e-5)  # the values themselves are rounded
    close(h.numpy().sum(-1), -1.0, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_rounded_once(dtype, device):
    half, rng = getattr(rt, dtype), np.random.default_rng(4)
    values = rt.tensor(log_softmax(rng.standard_normal((7, 3, 5))), dtype=half, device=device)
    targets = rng.integers(1, 5, (3, 3))
    for reduction in ("none", "mean"):
        y, g = run(values, targets, device=device, dtype=half, reduction=reduction)
        z, h = run(values.astype(rt.float32), targets, device=device, dtype=rt.float32, reduction=reduction)
        assert y.dtype == half == g.dtype
        assert y.tolist() == z.astype(half).tolist() and g.tolist() == h.astype(half).tolist()


def test_gradients_through_log_softmax_to_second_order():
    x = rt.tensor(np.random.default_rng(5).standard_normal((5, 2, 3)), device=CPU)
    targets = rt.tensor([[1, 1], [2, 1]], device=CPU)
    check_gradients(lambda v: rt.ctc_loss(rt.log_softmax(v), targets, target_lengths=[2, 1]), x, order=2)


def test_published_values():
    """Two sequences of the TensorFlow CTC tests: the loss and its gradient by the logits."""
    p = np.array([
        [0.633766, 0.221185, 0.0917319, 0.0129757, 0.0142857, 0.0260553],
        [0.111121, 0.588392, 0.278779, 0.0055756, 0.00569609, 0.010436],
        [0.0357786, 0.633813, 0.321418, 0.00249248, 0.00272882, 0.0037688],
        [0.0663296, 0.643849, 0.280111, 0.00283995, 0.0035545, 0.00331533],
        [0.458235, 0.396634, 0.123377, 0.00648837, 0.00903441, 0.00623107],
    ])  # fmt: skip
    x = rt.tensor(np.log(p)[:, None], device=CPU).require_grad()
    y = rt.ctc_loss(rt.log_softmax(x), rt.tensor([[0, 1, 2, 1, 0]], device=CPU), blank=5, reduction="sum")
    close(y, 3.34211, rtol=2e-6)
    expected = np.array([
        [-0.366234, 0.221185, 0.0917319, 0.0129757, 0.0142857, 0.0260553],
        [0.111121, -0.411608, 0.278779, 0.0055756, 0.00569609, 0.010436],
        [0.0357786, 0.633813, -0.678582, 0.00249248, 0.00272882, 0.0037688],
        [0.0663296, -0.356151, 0.280111, 0.00283995, 0.0035545, 0.00331533],
        [-0.541765, 0.396634, 0.123377, 0.00648837, 0.00903441, 0.00623107],
    ])  # fmt: skip
    close(x.grad(y.backward()).numpy()[:, 0], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_against_torch(reduction):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    values, targets = rng.standard_normal((30, 4, 7)), rng.integers(1, 7, (4, 9))
    frames, lengths = [30, 25, 4, 12], [9, 5, 9, 0]
    theirs = torch.tensor(values, requires_grad=True)
    expected = torch.nn.functional.ctc_loss(
        theirs.log_softmax(-1), torch.tensor(targets), torch.tensor(frames), torch.tensor(lengths), zero_infinity=True,
        reduction=reduction,
    )  # fmt: skip
    expected.sum().backward()
    x = rt.tensor(values, device=CPU).require_grad()
    y = rt.ctc_loss(
        rt.log_softmax(x), rt.tensor(targets, device=CPU), frames, lengths, zero_infinity=True, reduction=reduction
    )
    close(y, expected.detach().numpy(), rtol=1e-10)
    close(x.grad(rt.sum(y).backward()), theirs.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"log_probs": (4, 3)}, ValueError, r"\[frames, rows, classes\].*got \(4, 3\) and \(2, 3\)"),
        ({"log_probs": (2, 4, 3)}, ValueError, r"got \(2, 4, 3\) and \(2, 3\).*permute_dims"),
        ({"targets": [1, 2]}, ValueError, r"got .* and \(2,\)"),
        ({"targets": np.ones((2, 3))}, TypeError, "targets must be integers, got float64"),
        ({"targets": [[1, 2, 1], [1, 3, 1]]}, IndexError, "the target 3 is no label: labels are 0 to 2"),
        ({"targets": [[1, 2, 1], [1, -1, 1]]}, IndexError, "the target -1 is no label"),
        ({"targets": [[1, 2, 1], [1, 0, 1]]}, IndexError, "the target 0 is no label.*without the blank 0"),
        ({"input_lengths": [5, 4]}, ValueError, "input_lengths must be from 0 to 4, got 5"),
        ({"input_lengths": [1]}, ValueError, r"input_lengths must have the shape \(2,\)"),
        ({"target_lengths": [1, -1]}, ValueError, "target_lengths must be from 0 to 3, got -1"),
        ({"target_lengths": np.ones(2)}, TypeError, "target_lengths must be integers"),
        ({"blank": 3}, ValueError, "blank must be one of the classes 0 to 2, got 3"),
        ({"blank": True}, ValueError, "blank must be"),
        ({"reduction": "max"}, ValueError, "reduction must be"),
    ],
)
def test_errors(change, error, message):
    given = {"log_probs": (4, 2, 3), "targets": [[1, 2, 1], [1, 1, 1]]} | change
    with pytest.raises(error, match=message):
        rt.ctc_loss(rt.zeros(given.pop("log_probs"), device=CPU), given.pop("targets"), **given)
