"""unfold, fold and interpolate: against PyTorch, as adjoints, at borders, and their errors."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf


def check_against(torch, call, torch_call, values, rng):
    t = torch.tensor(values, requires_grad=True)
    x = rt.tensor(values, device=CPU).require_grad()
    expected, y = torch_call(t), call(x)
    weight = rng.standard_normal(expected.shape)
    expected.backward(torch.tensor(weight))
    close(y, expected.detach().numpy(), rtol=1e-12, atol=1e-12)
    close(rt.sum(y * rt.tensor(weight, device=CPU)).backward()[x], t.grad.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_unfold_and_fold_equal_torch(seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    kernel = tuple(int(v) for v in rng.integers(1, 4, 2))
    settings = {
        "stride": tuple(int(v) for v in rng.integers(1, 4, 2)),
        "padding": tuple(int(v) for v in rng.integers(0, 3, 2)),
        "dilation": tuple(int(v) for v in rng.integers(1, 3, 2)),
    }
    size = tuple(
        max(1, (k - 1) * d + 1 - 2 * p) + int(rng.integers(0, 5))
        for k, d, p in zip(kernel, settings["dilation"], settings["padding"])
    )
    f = torch.nn.functional
    values = rng.standard_normal((2, 2, *size))
    check_against(torch, lambda x: rt.unfold(x, kernel, **settings), lambda x: f.unfold(x, kernel, **settings), values, rng)
    columns = rng.standard_normal(f.unfold(torch.tensor(values), kernel, **settings).shape)
    check_against(
        torch, lambda x: rt.fold(x, size, kernel, **settings), lambda x: f.fold(x, size, kernel, **settings), columns, rng
    )


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("seed", range(20))
def test_interpolate_equals_torch(mode, seed):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((2, 2, *rng.integers(2, 9, 2)))
    settings = {"mode": mode} if mode == "nearest" else {"mode": mode, "align_corners": bool(rng.integers(2))}
    if seed % 2:
        settings["size"] = tuple(int(v) for v in rng.integers(1, 14, 2))
    else:
        settings["scale_factor"] = tuple(float(v) for v in rng.choice([0.5, 1.0, 1.5, 2.0, 2.5, 3.0], 2))
    f = torch.nn.functional
    check_against(torch, lambda x: rt.interpolate(x, **settings), lambda x: f.interpolate(x, **settings), values, rng)


def test_SHAPE_11_overlapping_windows_add(device):
    def windows(x):
        return rt.unfold(rt.reshape(x, (1, 1, 1, 6)), (1, 4))

    close(gradient(windows, np.arange(6.0), device), [1, 2, 3, 3, 2, 1])
    close(gradient(lambda x: rt.square(windows(x)), np.arange(6.0), device), [0, 4, 12, 18, 16, 10])


def test_fold_undoes_unfold_of_windows_that_do_not_overlap(device):
    x = rt.tensor(np.random.default_rng(0).standard_normal((2, 3, 6, 4)), device=device)
    assert np.array_equal(rt.fold(rt.unfold(x, 2, stride=2), (6, 4), 2, stride=2).numpy(), x.numpy())


def test_unfold_times_weight_is_convolution(device):
    rng = np.random.default_rng(0)
    x, w = (rt.tensor(rng.standard_normal(s), device=device) for s in ((2, 3, 5, 6), (4, 3, 3, 2)))
    y = rt.matmul(rt.reshape(w, (4, 18)), rt.unfold(x, (3, 2), padding=1, stride=2))
    close(rt.reshape(y, (2, 4, 3, 4)), rt.conv2d(x, w, padding=1, stride=2).numpy(), rtol=1e-12, atol=1e-12)


def test_nearest_keeps_integers_and_takes_no_part_of_its_neighbours(device):
    x = rt.tensor([[[1, 2, 3]]], dtype=rt.uint8, device=device)
    y = rt.interpolate(x, size=5)
    assert y.dtype == rt.uint8 and y.tolist() == [[[1, 1, 2, 2, 3]]]
    y = rt.interpolate(rt.tensor([[[nan, inf, 3.0]]], device=device), size=6).numpy()
    np.testing.assert_array_equal(y, [[[nan, nan, inf, inf, 3, 3]]])


def test_what_is_not_read_has_a_zero_gradient_even_beside_infinities(device):
    x = rt.tensor([[[1.0, 2.0, 3.0, 4.0]]], device=device).require_grad()
    y = rt.interpolate(x, size=2) * rt.tensor([inf, 1.0], device=device)
    close(rt.sum(y).backward()[x], [[[inf, 0, 1, 0]]])
    y = rt.interpolate(rt.tensor([[[inf, 1.0, 2.0]]], device=device), size=5, mode="linear", align_corners=True)
    close(y[0, 0, 2:], [1, 1.5, 2])


def test_linear_interpolation_in_half_types_rounds_once(device):
    values = np.random.default_rng(0).standard_normal((1, 1, 5, 7))
    for dtype in (rt.float16, rt.bfloat16):
        x = rt.tensor(values, dtype=dtype, device=device)
        wide = rt.interpolate(x.astype(rt.float32), size=(9, 4), mode="bilinear")
        assert np.array_equal(rt.interpolate(x, size=(9, 4), mode="bilinear").numpy(), wide.astype(dtype).numpy())
        columns = rt.tensor(np.ones((1, 9, 4)) / 3, dtype=dtype, device=device)
        wide = rt.fold(columns.astype(rt.float32), (4, 4), 3)
        assert np.array_equal(rt.fold(columns, (4, 4), 3).numpy(), wide.astype(dtype).numpy())
    assert rt.interpolate(rt.tensor([[[1, 2]]], device=device), size=3, mode="linear").dtype == rt.float32


def test_empty_batches(device):
    x = rt.zeros((0, 2, 3, 3), device=device).require_grad()
    for f in (lambda x: rt.unfold(x, 2), lambda x: rt.interpolate(x, size=(2, 5), mode="bilinear")):
        y = f(x)
        assert y.shape[0] == 0 and rt.sum(y).backward()[x].shape == x.shape


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: rt.unfold(rt.zeros((3, 4, 4), device=CPU), 2), ["unfold", "(N, C, H, W)", "(3, 4, 4)"]),
        (lambda: rt.unfold(rt.zeros((1, 1, 4, 4), device=CPU), 5), ["window of 5", "axis of 4"]),
        (lambda: rt.fold(rt.zeros((1, 9, 5), device=CPU), (4, 4), 3), ["fold", "(1, 9, 5)", "(N, C * 9, 4)"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU), size=2, mode="bilinear"), ["'bilinear'", "'linear'"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU)), ["size or scale_factor"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU), size=2, scale_factor=2.0), ["one of them"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU), size=0), ["size", "at least 1"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU), scale_factor=0.1), ["0.1", "(4,)"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU), scale_factor=-2), ["positive", "-2"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 0), device=CPU), size=2), ["(1, 1, 0)", "empty"]),
        (lambda: rt.interpolate(rt.zeros((1, 1, 4), device=CPU), size=2, align_corners=True), ["align_corners"]),
    ],
)
def test_errors_say_what_is_wrong(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
