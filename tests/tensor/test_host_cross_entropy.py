"""The compiled cross-entropy and relu's slope against float64 and against the NumPy bodies."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import cross_entropy as compiled
from ruda_tensor.kernels.host import gate
from ruda_tensor.ops import _parallel, _select
from ruda_tensor.ops import cross_entropy as plain

pytestmark = pytest.mark.skipif(
    host.function("cross_entropy", "cross_entropy_forward", "ppnpppnn") is None, reason="no compiler"
)
SIZES = [(1, 1), (3, 1), (64, 10), (5, 15), (2, 16), (9, 17), (4, 33), (7, 100), (3, 1000), (40, 96)]
NEEDS = (True, False, False)


def made(rows, n, scale=3.0, seed=0):
    r = np.random.default_rng(seed)
    return (r.standard_normal((rows, n)) * scale).astype(np.float32), r.integers(0, n, rows)


def both(x, targets, g, ignore=None, reduction="mean", axis=1):
    """Loss and gradient through the bodies of the operation, whichever they are."""
    settings = {"axis": axis, "ignore": ignore, "smoothing": 0.0, "reduction": reduction}
    with np.errstate(all="ignore"):
        loss, top, whole = plain._forward(np, x, targets, None, **settings)
        dx, _, _ = plain._backward(np, g, x, targets, None, top, whole, needs=NEEDS, **settings)
    return loss, dx


def exact(x, targets, g, ignore, reduction):
    x = x.astype(np.float64)
    z = x - x.max(axis=1, keepdims=True)
    logs = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    rows, counted = np.arange(len(x)), np.ones(len(x), bool) if ignore is None else targets != ignore
    own = np.where(counted, targets, 0)
    loss, slope = np.where(counted, -logs[rows, own], 0.0), np.exp(logs)
    slope[rows, own] -= 1
    slope *= counted[:, None]
    share = 1 / max(1, counted.sum()) if reduction == "mean" else 1.0
    return (loss if reduction == "none" else loss.sum() * share), slope * share * (g[:, None] if g.ndim else g)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", ["none", "outside", "a class", "all"])
@pytest.mark.parametrize("size", SIZES)
def test_it_agrees_with_float64(size, ignored, reduction):
    x, targets = made(*size)
    ignore = {"none": None, "outside": -100, "a class": 0, "all": -100}[ignored]
    if ignore == -100:
        targets[:: 1 if ignored == "all" else 3] = -100
    g = np.random.default_rng(5).standard_normal(size[0] if reduction == "none" else ()).astype(np.float32)
    g = np.asarray(g, np.float32)
    assert compiled.forward(np, x, targets, axis=1, ignore=ignore, reduction=reduction) is not None
    (loss, dx), (right, slope) = both(x, targets, g, ignore, reduction), exact(x, targets, g, ignore, reduction)
    assert loss.dtype == dx.dtype == np.float32 and np.shape(loss) == np.shape(right)
    np.testing.assert_allclose(loss, right, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(dx, slope, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("forward_compiled", [False, True])
def test_either_forward_goes_with_either_backward(forward_compiled):
    x, targets = made(20, 37)
    g, settings = np.float32(0.7) * np.ones((), np.float32), {"axis": 1, "ignore": 3, "smoothing": 0.0, "reduction": "mean"}
    with host.use_host_kernels(forward_compiled):
        loss, top, whole = plain._forward(np, x, targets, None, **settings)
    with host.use_host_kernels(not forward_compiled):
        dx, _, _ = plain._backward(np, g, x, targets, None, top, whole, needs=NEEDS, **settings)
    right, slope = exact(x, targets, g, 3, "mean")
    np.testing.assert_allclose(loss, right, rtol=2e-6)
    np.testing.assert_allclose(dx, slope, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("n", [10, 40])
def test_special_rows_come_out_as_in_numpy(n):
    x, targets = made(12, n)
    x[0, 3], x[1, 5], x[2, 9], x[3], x[4, :5] = math.nan, math.inf, -math.inf, -math.inf, -math.inf
    x[5], x[6], x[7], x[8, 2], x[9, 1] = 3e38, -3e38, 0.0, 1e5, -1e5
    x[10], targets[10] = math.nan, -100
    targets[1], targets[4], targets[9] = 5, 0, 1
    found = both(x, targets, np.ones(12, np.float32), -100, "none")
    with host.use_host_kernels(False):
        right = both(x, targets, np.ones(12, np.float32), -100, "none")
    for a, b in zip(found, right):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)
    assert found[0][10] == 0 and not found[1][10].any() and np.isinf(found[0][4])


def test_views_along_the_last_of_several_axes_are_taken_and_other_axes_are_not():
    x, targets = made(24, 11)
    wide, ids = np.repeat(x, 2, axis=1)[:, ::2].reshape(4, 6, 11), np.asfortranarray(targets.reshape(4, 6))
    expected = both(x, targets, np.ones((), np.float32))
    loss, dx = both(wide, ids, np.ones((), np.float32), axis=2)
    assert loss == expected[0] and dx.shape == (4, 6, 11)
    np.testing.assert_array_equal(dx.reshape(24, 11), expected[1])
    turned = np.moveaxis(x.reshape(4, 6, 11), 2, 1)
    assert compiled.forward(np, turned, ids, axis=1, ignore=None, reduction="mean") is None
    assert compiled.forward(np, x.astype(np.float64), targets, axis=1, ignore=None, reduction="mean") is None
    assert compiled.forward(np, x[:0], targets[:0], axis=1, ignore=None, reduction="mean") is None
    np.testing.assert_allclose(both(turned, ids, np.ones((), np.float32), axis=1)[0], expected[0], rtol=1e-6)


def test_a_row_has_the_same_bits_in_any_batch_and_on_any_number_of_threads(monkeypatch):
    x, targets = made(300, 5000, seed=3)  # 6 MB: several blocks
    g = np.random.default_rng(1).standard_normal(300).astype(np.float32)
    loss, dx = both(x, targets, g, reduction="none")
    for count in (1, 3):
        monkeypatch.setattr(_parallel, "threads", lambda count=count: count)
        again = both(x, targets, g, reduction="none")
        np.testing.assert_array_equal(again[0], loss)
        np.testing.assert_array_equal(again[1], dx)
    for i in (0, 17, 299):
        one = both(x[i : i + 1], targets[i : i + 1], g[i : i + 1], reduction="none")
        assert one[0][0] == loss[i]
        np.testing.assert_array_equal(one[1][0], dx[i])


@pytest.mark.parametrize("dtype", [rt.float32, rt.float16, rt.bfloat16])
def test_the_operation_gives_what_it_gives_without_a_compiler(dtype):
    values, targets = made(30, 12)

    def run():
        x = rt.tensor(values, device=rt.Cpu()).astype(dtype).require_grad()
        loss = rt.cross_entropy(x, rt.tensor(targets, device=rt.Cpu()), ignore_index=2)
        return loss.astype(rt.float32).numpy(), loss.backward()[x].astype(rt.float32).numpy()

    found = run()
    with host.use_host_kernels(False):
        right = run()
    for a, b in zip(found, right):
        np.testing.assert_allclose(a, b, rtol=1e-6 if dtype == rt.float32 else 1e-2, atol=1e-7)


@pytest.mark.parametrize("shape", [(), (1,), (15,), (16,), (7, 33), (3, 5, 100)])
def test_the_slope_of_relu_is_the_bits_of_the_numpy_body(shape):
    r = np.random.default_rng(0)
    g, y = (r.standard_normal(shape, dtype=np.float32) for _ in range(2))
    g, y = np.array(g, np.float32), np.array(y, np.float32)
    if g.size > 10:
        g.flat[:6] = math.nan, math.inf, -math.inf, math.nan, -0.0, 5.0
        y.flat[:6] = -1.0, 0.0, -0.0, 2.0, 1.0, math.nan
    found = gate.keep_positive(np, g, y)
    with host.use_host_kernels(False):
        right = _select.keep_positive_forward(np, g, y)
    assert found.shape == right.shape == shape
    np.testing.assert_array_equal(found.view(np.int32), right.view(np.int32))
    assert gate.keep_positive(np, g.astype(np.float64), y.astype(np.float64)) is None
    if g.ndim == 2:
        assert gate.keep_positive(np, g.T, y.T) is None and gate.keep_positive(np, g, y[:1]) is None
