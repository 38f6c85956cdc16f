"""Convolutions: against PyTorch, in every layout and size of block, at the edges, and their errors."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_tensor.ops import _convolve

from ._helpers import CPU, close


def drawn(rng, *shapes):
    return [rng.standard_normal(shape) for shape in shapes]


def gradients(call, arrays, weight, device=CPU, dtype=rt.float64):
    """The result of call and the gradients of its sum weighted by `weight`, as arrays."""
    leaves = [rt.tensor(a, dtype=dtype, device=device).require_grad() for a in arrays]
    y = call(*leaves)
    found = rt.sum(y * rt.tensor(weight, dtype=dtype, device=device)).backward()
    return [y.detach().numpy(), *(found[x].numpy() for x in leaves)]


def random_settings(rng):
    groups = int(rng.integers(1, 4))
    kernel = rng.integers(1, 4, 2)
    settings = {name: tuple(int(v) for v in rng.integers(low, high, 2)) for name, low, high in (
        ("stride", 1, 4), ("dilation", 1, 3), ("padding", 0, 4))}  # fmt: skip
    least = [max(1, (k - 1) * d + 1 - 2 * p) for k, d, p in zip(kernel, settings["dilation"], settings["padding"])]
    size = [int(rng.integers(n, n + 7)) for n in least]
    c, o = (int(rng.integers(1, 4)) * groups for _ in range(2))
    return (int(rng.integers(0, 4)), c, *size), (o, c // groups, *kernel), {"groups": groups, **settings}


@pytest.mark.parametrize("seed", range(40))
def test_conv2d_equals_torch(seed, monkeypatch):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(_convolve, "HOST_BLOCK", int(rng.choice([1, 4000, 2 << 20])))
    x_shape, w_shape, settings = random_settings(rng)
    arrays = drawn(rng, x_shape, w_shape, w_shape[:1])
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = torch.nn.functional.conv2d(*tensors, **settings)
    weight = rng.standard_normal(y.shape)
    y.backward(torch.tensor(weight))
    found = gradients(lambda x, w, b: rt.conv2d(x, w, b, **settings), arrays, weight)
    for a, b in zip(found, [y.detach(), *(t.grad for t in tensors)]):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_conv_transpose2d_equals_torch(seed, monkeypatch):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(_convolve, "HOST_BLOCK", int(rng.choice([1, 4000, 2 << 20])))
    _, w_shape, settings = random_settings(rng)
    groups, padding = settings["groups"], settings["padding"]
    settings["output_padding"] = tuple(
        int(rng.integers(0, max(s, d))) for s, d in zip(settings["stride"], settings["dilation"])
    )
    size = [1 + -(-2 * p // s) + int(rng.integers(0, 4)) for p, s in zip(padding, settings["stride"])]
    arrays = drawn(rng, (int(rng.integers(0, 3)), w_shape[0], *size), w_shape, (w_shape[1] * groups,))
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = torch.nn.functional.conv_transpose2d(*tensors, **settings)
    weight = rng.standard_normal(y.shape)
    y.backward(torch.tensor(weight))
    found = gradients(lambda x, w, b: rt.conv_transpose2d(x, w, b, **settings), arrays, weight)
    for a, b in zip(found, [y.detach(), *(t.grad for t in tensors)]):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-12, atol=1e-12)


def test_float32_equals_float64_to_rounding(device):
    rng = np.random.default_rng(0)
    x, w = (a.astype(np.float32) for a in drawn(rng, (8, 16, 28, 28), (32, 16, 3, 3)))
    weight = rng.standard_normal((8, 32, 28, 28)).astype(np.float32)
    call = lambda x, w: rt.conv2d(x, w, padding=1)
    narrow = gradients(call, [x, w], weight, device, rt.float32)
    wide = gradients(call, [x, w], weight)
    for a, b, terms in zip(narrow, wide, (144, 288, 6272)):
        assert a.dtype == np.float32
        assert np.abs(a - b).max() < 4 * 2.0**-24 * terms  # partial sums of `terms` products are a few sqrt(terms)


@pytest.mark.parametrize("stride", [1, 2])
def test_result_does_not_depend_on_the_size_of_blocks(stride, monkeypatch):
    x, w = drawn(np.random.default_rng(0), (7, 3, 9, 8), (4, 3, 3, 3))
    weight = np.random.default_rng(1).standard_normal((7, 4, -(-9 // stride), -(-8 // stride)))
    runs = []
    for block in (1, 20_000, 1 << 30):
        monkeypatch.setattr(_convolve, "HOST_BLOCK", block)
        runs.append(gradients(lambda x, w: rt.conv2d(x, w, padding=1, stride=stride), [x, w], weight))
    for run in runs[1:]:
        for a, b in zip(run, runs[0]):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


def test_conv_transpose2d_is_the_adjoint_of_conv2d(device):
    shapes = (2, 4, 7, 6), (6, 2, 3, 2), (2, 6, 3, 4)
    a, w, z = (rt.tensor(v, device=device) for v in drawn(np.random.default_rng(0), *shapes))
    settings = {"stride": 2, "groups": 2, "padding": (0, 1)}
    left = rt.sum(rt.conv2d(a, w, **settings) * z).item()
    right = rt.sum(a * rt.conv_transpose2d(z, w, **settings)).item()
    assert left == pytest.approx(right, rel=1e-12)


@pytest.mark.parametrize("order", [1, 2])
def test_second_derivative_through_conv_relu_conv(order):
    rng = np.random.default_rng(0)
    x, w, v = drawn(rng, (1, 2, 4, 4), (2, 2, 3, 3), (1, 2, 2, 2))

    def f(x, w, v):
        return rt.sum(rt.square(rt.conv2d(rt.tanh(rt.conv2d(x, w, padding=1)), v, stride=2)))

    from ruda_autodiff.testing import check_gradients

    check_gradients(f, *(rt.tensor(a, device=CPU) for a in (x, w, v)), order=order)


def test_SHAPE_09_negative_strides_and_transposes(device):
    rng = np.random.default_rng(0)
    x, w = drawn(rng, (2, 3, 6, 10), (4, 3, 3, 3))
    for view in (x[::-1, :, ::-1, ::-2], x.transpose(0, 1, 3, 2), np.broadcast_to(x[:1], (3, 3, 6, 10))):
        a = rt.conv2d(rt.Tensor._wrap(view, CPU), rt.Tensor._wrap(w[:, :, ::-1], CPU), padding=1)
        b = rt.conv2d(rt.tensor(view.copy(), device=CPU), rt.tensor(w[:, :, ::-1].copy(), device=CPU), padding=1)
        assert np.array_equal(a.numpy(), b.numpy())


def test_SHAPE_07_empty_batches_and_no_channels(device):
    def check(x_shape, w_shape, y_shape):
        x, w = (rt.zeros(s, device=device).require_grad() for s in (x_shape, w_shape))
        y = rt.conv2d(x, w, padding=1)
        found = rt.sum(y).backward()
        assert y.shape == y_shape and not y.numpy().any()
        assert found[x].shape == x_shape and found[w].shape == w_shape and not found[w].numpy().any()

    check((0, 2, 5, 5), (3, 2, 3, 3), (0, 3, 5, 5))
    check((2, 0, 5, 5), (3, 0, 3, 3), (2, 3, 5, 5))
    check((2, 2, 5, 5), (0, 2, 3, 3), (2, 0, 5, 5))
    assert rt.conv1d(rt.zeros((0, 2, 5), device=device), rt.zeros((3, 2, 2), device=device)).shape == (0, 3, 4)


def test_dtypes(device):
    x, w = rt.ones((1, 1, 3, 3), device=device), rt.ones((1, 1, 2, 2), device=device)
    assert rt.conv2d(x.astype(rt.int32), w).dtype == rt.float32
    assert rt.conv2d(x.astype(rt.bfloat16), w).dtype == rt.float32
    assert rt.conv2d(x.astype(rt.bfloat16), w.astype(rt.bfloat16)).dtype == rt.bfloat16
    assert rt.conv2d(x, w, rt.ones(1, dtype=rt.float64, device=device)).dtype == rt.float64


@pytest.mark.parametrize("kernel", [1, 3])
def test_half_types_are_rounded_once(kernel, device):
    rng = np.random.default_rng(0)
    arrays = drawn(rng, (2, 64, 5, 5), (3, 64, kernel, kernel), (3,))
    for dtype in (rt.float16, rt.bfloat16):
        halves = [rt.tensor(a, dtype=dtype, device=device) for a in arrays]
        wide = rt.conv2d(*(h.astype(rt.float32) for h in halves))
        assert np.array_equal(rt.conv2d(*halves).numpy(), wide.astype(dtype).numpy())
        halves[2] = halves[2][:1]
        wide = rt.conv_transpose2d(halves[0][:, :3], *(h.astype(rt.float32) for h in (halves[1][:, :1], halves[2])))
        found = rt.conv_transpose2d(halves[0][:, :3], halves[1][:, :1], halves[2])
        assert np.array_equal(found.numpy(), wide.astype(dtype).numpy())


def test_the_tape_keeps_no_columns():
    x = rt.ones((4, 8, 16, 16), device=CPU).require_grad()
    w = rt.ones((8, 8, 3, 3), device=CPU)
    y = rt.conv2d(x, w, padding=1)
    kept = [k for k in y._node.kept if isinstance(k, rt.Tensor)]
    assert len(kept) == 1 and kept[0] is w  # only what the one gradient that is wanted needs


def test_same_padding_puts_the_odd_remainder_after(device):
    x, w = rt.tensor([[[1.0, 2.0, 3.0]]], device=device), rt.tensor([[[1.0, 10.0]]], device=device)
    close(rt.conv1d(x, w, padding="same"), [[[21.0, 32.0, 3.0]]])
    assert rt.conv1d(x, rt.ones((1, 1, 3), device=device), padding="same", dilation=3).shape == (1, 1, 3)


X, W = rt.zeros((1, 4, 5, 5), device=CPU), rt.zeros((6, 2, 3, 3), device=CPU)


@pytest.mark.parametrize(
    "call,error,words",
    [
        (lambda: rt.conv2d(X, W), ValueError, ["conv2d", "4 channels", "(6, 2, 3, 3)", "groups=1"]),
        (lambda: rt.conv2d(X[0], W), ValueError, ["(4, 5, 5)", "expand_dims"]),
        (lambda: rt.conv2d(X, W, groups=4), ValueError, ["groups=4"]),
        (lambda: rt.conv2d(X, W, groups=0), ValueError, ["groups", "0"]),
        (lambda: rt.conv2d(X, W, groups=2, stride=0), ValueError, ["stride", "at least 1"]),
        (lambda: rt.conv2d(X, W, groups=2, stride=(1, 2, 3)), ValueError, ["stride=(1, 2, 3)"]),
        (lambda: rt.conv2d(X, W, groups=2, stride=1.5), TypeError, ["stride", "1.5"]),
        (lambda: rt.conv2d(X, W, groups=2, padding=-1), ValueError, ["padding", "at least 0"]),
        (lambda: rt.conv2d(X, W, groups=2, padding="full"), ValueError, ["'full'", "'same'"]),
        (lambda: rt.conv2d(X, W, groups=2, padding="same", stride=2), ValueError, ["same", "stride 1"]),
        (lambda: rt.conv2d(X, W, groups=2, dilation=3), ValueError, ["window of 7", "axis of 5", "padding=1"]),
        (lambda: rt.conv2d(X, W, rt.zeros(5, device=CPU), groups=2), ValueError, ["bias", "(5,)", "(6,)"]),
        (lambda: rt.conv2d(X, rt.zeros((6, 4, 0, 3), device=CPU)), ValueError, ["kernel", "empty"]),
        (lambda: rt.conv1d(X, W), ValueError, ["conv1d", "(N, C, L)"]),
        (lambda: rt.conv_transpose2d(X, W), ValueError, ["conv_transpose2d", "takes 6"]),
        (lambda: rt.conv_transpose2d(X, W[:4], output_padding=1), ValueError, ["output_padding=1", "(1, 1)"]),
        (lambda: rt.conv_transpose2d(X[:, :, :1, :1], W[:4], padding=3), ValueError, ["empty image", "padding=3"]),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_recorded_twice_gives_the_same_bits():
    rng = np.random.default_rng(0)
    arrays = drawn(rng, (8, 16, 14, 14), (32, 16, 3, 3))
    weight = rng.standard_normal((8, 32, 14, 14))
    call = lambda x, w: rt.conv2d(x, w, padding=1)
    first = gradients(call, arrays, weight, dtype=rt.float32)
    with ra.record(order=2):
        second = gradients(call, arrays, weight, dtype=rt.float32)
    for a, b in zip(first, second):
        assert np.array_equal(a, b)
