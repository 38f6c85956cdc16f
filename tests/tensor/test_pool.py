"""Pooling: against PyTorch, padding, ties, NaN, integers, layouts and errors."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf


def random_settings(rng):
    kernel = tuple(int(v) for v in rng.integers(1, 4, 2))
    stride = tuple(int(v) for v in rng.integers(1, 4, 2))
    padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
    size = [int(rng.integers(max(1, k - 2 * p), 9)) for k, p in zip(kernel, padding)]
    return kernel, {"stride": stride, "padding": padding, "ceil_mode": bool(rng.integers(2))}, (2, 3, *size)


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("seed", range(40))
def test_equals_torch(name, seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    kernel, settings, shape = random_settings(rng)
    if name == "avg_pool2d":
        settings["count_include_pad"] = bool(rng.integers(2))
    values = rng.integers(-3, 4, shape).astype(np.float64) if seed % 2 else rng.standard_normal(shape)
    t = torch.tensor(values, requires_grad=True)
    expected = getattr(torch.nn.functional, name)(t, kernel, **settings)
    weight = rng.standard_normal(expected.shape)
    expected.backward(torch.tensor(weight))
    x = rt.tensor(values, device=CPU).require_grad()
    y = getattr(rt, name)(x, kernel, **settings)
    found = rt.sum(y * rt.tensor(weight, device=CPU)).backward()
    close(y, expected.detach().numpy(), rtol=1e-13)
    close(found[x], t.grad.numpy(), rtol=1e-12, atol=1e-13)  # ties included: the first in row-major order


def test_max_pool2d_with_dilation_equals_torch():
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal((1, 2, 9, 8))
    expected = torch.nn.functional.max_pool2d(torch.tensor(values), (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 3))
    found = rt.max_pool2d(rt.tensor(values, device=CPU), (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 3))
    close(found, expected.numpy())


def test_LAYER_09_padding_never_wins(device):
    x = [-5.0, -1.0, -7.0, -2.0, -9.0]
    pool = lambda x: rt.max_pool1d(x, 3, stride=2, padding=1)
    close(pool(rt.tensor(x, device=device)), [-1, -1, -2])
    close(gradient(pool, x, device), [0, 2, 0, 1, 0])
    for dtype in (rt.int8, rt.int32, rt.int64):
        y = pool(rt.tensor([-5, -1, -7, -2, -9], dtype=dtype, device=device))
        assert y.dtype == dtype and y.tolist() == [-1, -1, -2]
    y = pool(rt.tensor([5, 1, 7, 2, 9], dtype=rt.uint8, device=device))
    assert y.dtype == rt.uint8 and y.tolist() == [5, 7, 9]
    assert pool(rt.tensor([True, False, False, False, False], device=device)).tolist() == [True, False, False]


def test_TIE_06_nan_wins_its_windows_only(device):
    x = [[nan, -1.0, 2.0, 0.5], [1.0, -2.0, 3.0, 0.25]]
    y = rt.max_pool2d(rt.tensor(x, device=device), 2)
    assert np.isnan(y.numpy()[0, 0]) and y.numpy()[0, 1] == 3.0
    close(gradient(lambda x: rt.max_pool2d(x, 2), x, device), [[1, 0, 0, 0], [0, 0, 1, 0]])
    assert np.isnan(rt.max_pool1d(rt.tensor([nan, -1.0, 2.0], device=device), 3).item())
    assert np.isnan(rt.avg_pool1d(rt.tensor([nan, -1.0, 2.0], device=device), 3).item())


def test_TIE_02_the_first_of_equal_elements_wins_alone(device):
    ones = np.ones((4, 4))
    close(gradient(lambda x: rt.max_pool2d(x, 2), ones, device), np.kron(np.ones((2, 2)), [[1, 0], [0, 0]]))
    close(gradient(lambda x: rt.max_pool2d(x, 2), [[0.0, 3.0], [3.0, 3.0]], device), [[0, 1], [0, 0]])
    close(gradient(lambda x: rt.max_pool2d(x, 2), [[-0.0, 0.0], [0.0, -0.0]], device), [[1, 0], [0, 0]])
    close(gradient(lambda x: rt.max_pool2d(x, 2), np.full((2, 2), -inf), device), [[1, 0], [0, 0]])


def test_an_infinite_gradient_reaches_the_winner_only(device):
    x = rt.tensor([1.0, 3.0, 2.0], device=device).require_grad()
    y = rt.sum(rt.max_pool1d(x, 3) * inf)
    close(y.backward()[x], [0, inf, 0])


def test_SHAPE_11_overlapping_windows_add(device):
    x = rt.arange(6.0, device=device)
    close(gradient(lambda x: 4 * rt.avg_pool1d(x, 4, stride=1), np.arange(6.0), device), [1, 2, 3, 3, 2, 1])
    close(rt.avg_pool1d(x, 4, stride=1), [1.5, 2.5, 3.5])


def test_a_window_of_padding_alone_is_minus_infinity_and_passes_no_gradient(device):
    pool = lambda x: rt.max_pool1d(x, 2, stride=1, padding=2, dilation=4)
    assert pool(rt.tensor([7.0], device=device)).tolist() == [-inf]
    close(gradient(pool, [7.0], device), [0.0])


def test_leading_axes_and_empty_batches(device):
    x = rt.zeros((0, 3, 4, 4), device=device).require_grad()
    for pool in (rt.max_pool2d, rt.avg_pool2d):
        y = pool(x, 2)
        assert y.shape == (0, 3, 2, 2) and rt.sum(y).backward()[x].shape == x.shape
        assert pool(rt.zeros((2, 1, 3, 4, 4), device=device), 2).shape == (2, 1, 3, 2, 2)
        assert pool(rt.zeros((4, 4), device=device), 2).shape == (2, 2)


def test_SHAPE_09_negative_strides(device):
    values = np.random.default_rng(0).standard_normal((2, 6, 12))
    for view in (values[::-1, ::-1, ::-2], values.transpose(2, 1, 0)):
        for pool in (rt.max_pool2d, rt.avg_pool2d):
            a = pool(rt.Tensor._wrap(view, CPU), 2, padding=1)
            assert np.array_equal(a.numpy(), pool(rt.tensor(view.copy(), device=CPU), 2, padding=1).numpy())


def test_large_windows_have_room_for_the_number_of_their_taps():
    x = np.zeros(1000)
    x[[200, 900]] = 1.0, 2.0
    close(gradient(lambda x: rt.max_pool1d(x, 300, stride=300, ceil_mode=True), x)[[0, 200, 300, 600, 900]], [0, 1, 1, 1, 1])


def test_DTYPE_01_mean_in_half_types_does_not_overflow(device):
    for dtype in (rt.float16, rt.bfloat16):
        y = rt.avg_pool2d(rt.full((40, 40), 200.0, dtype=dtype, device=device), 40)
        assert y.dtype == dtype and y.item() == 200.0
    assert rt.avg_pool1d(rt.tensor([1, 2], device=device), 2).item() == 1.5


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda x: rt.max_pool2d(x, 0), ["kernel_size", "at least 1"]),
        (lambda x: rt.max_pool2d(x, 2, padding=2), ["padding=2", "window of 2", "padding=1"]),
        (lambda x: rt.max_pool2d(x, 9), ["window of 9", "axis of 4"]),
        (lambda x: rt.avg_pool2d(x, 2, stride=0), ["avg_pool2d", "stride"]),
        (lambda x: rt.avg_pool2d(x[0], 2), ["avg_pool2d", "(4,)"]),
        (lambda x: rt.max_pool1d(x[0, 0], 2), ["max_pool1d", "()"]),
        (lambda x: rt.max_pool2d(x, (1, 2, 3)), ["(1, 2, 3)"]),
    ],
)
def test_errors_say_what_is_wrong(call, words):
    with pytest.raises(ValueError) as caught:
        call(rt.zeros((4, 4), device=CPU))
    for word in words:
        assert word in str(caught.value)
