"""Losses: masks, smoothing, weights, saturation, dtypes and errors beside the rows of tests/specs/loss.py."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

inf, nan = rt.inf, rt.nan
Z = [[2.0, 0, 1], [0, 3, 0], [1, 1, 1], [0, 0, 5]]
LN2, LN3, LN5 = np.log([2.0, 3.0, 5.0])


def loss(z, t, device=CPU, dtype=rt.float32, weight=None, **how):
    weight = None if weight is None else rt.tensor(weight, device=device)
    return rt.cross_entropy(rt.tensor(z, dtype=dtype, device=device), rt.tensor(t, device=device), weight=weight, **how)


# cross-entropy


@pytest.mark.parametrize(
    "shape,axis", [((6, 5), -1), ((5,), 0), ((2, 5, 3, 2), 1), ((5, 4), 0), ((400, 300), 1), ((0, 5), 1)]
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_hand_derived_body_agrees_with_its_expression(shape, axis, reduction, smoothing, weighted):
    rng = np.random.default_rng(0)
    values, classes = rng.standard_normal(shape), shape[axis]
    ids = rng.integers(-1, classes, [n for i, n in enumerate(shape) if i != axis % len(shape)])
    scale = rt.tensor(rng.standard_normal(ids.shape if reduction == "none" else ()), device=CPU)
    weight = rt.tensor(rng.random(classes), device=CPU) if weighted else None

    def run(order):
        x = rt.tensor(values, device=CPU).require_grad()
        with ra.record(order=order):
            y = rt.cross_entropy(
                x, rt.tensor(ids, device=CPU), axis=axis, weight=weight, ignore_index=-1, label_smoothing=smoothing,
                reduction=reduction,
            )  # fmt: skip
        return y.numpy(), x.grad(rt.sum(y * scale).backward()).numpy()

    for hand, plain in zip(run(1), run(2), strict=True):
        assert hand.shape == plain.shape
        np.testing.assert_allclose(hand, plain, rtol=1e-10, atol=1e-14)


def test_LOSS_01_every_target_ignored(device):
    z, t = np.random.default_rng(0).standard_normal((4, 3)), [-100] * 4
    for smoothing in (0.0, 0.1):
        assert loss(z, t, device, reduction="none", label_smoothing=smoothing).tolist() == [0, 0, 0, 0]
        for reduction in ("sum", "mean"):
            assert loss(z, t, device, reduction=reduction, label_smoothing=smoothing).item() == 0
        for order in (1, 2):
            for reduction in ("mean", "sum", "none"):
                targets = rt.tensor(t, device=device)
                with ra.record(order=order):
                    g = gradient(lambda x, t=targets, r=reduction: rt.cross_entropy(x, t, reduction=r), z, device)
                assert not g.any()
    assert loss(np.zeros((0, 3)), np.zeros(0, int), device).item() == 0


def test_LOSS_02_smoothing_leaves_out_ignored_rows(device):
    t = [0, -100, 2, 1]
    close(loss(Z, t, device, label_smoothing=0.2), 2.12875694)
    close(loss(Z, t, device, label_smoothing=0.2, reduction="sum"), 6.38627082)
    g = gradient(lambda x: rt.cross_entropy(x, rt.tensor(t, device=device), label_smoothing=0.2), Z, device)
    assert not g[1].any() and g[[0, 2, 3]].all()


def test_LOSS_03_smoothing_weights_and_ignored_rows(device):
    t, w = [0, -100, 2, 1], [1.0, 2.0, 4.0]
    close(loss(Z, t, device, weight=w, label_smoothing=0.2), 2.01507764)
    close(loss(Z, t, device, weight=w, label_smoothing=0.2, reduction="sum"), 14.10554348)
    close(loss(Z, t, device, weight=w), 2.11840385)


def test_LOSS_04_other_ignored_values(device):
    close(loss(Z, [0, 255, 2, 1], device, ignore_index=255, reduction="none"), [0.40760596, 0, 1.09861229, 5.0133859])
    close(loss([[2.0, 1, 1], [2, 1, 1], [0, 0, 3]], [1, 2, 0], device, ignore_index=0), 1.55144471)


def test_LOSS_06_each_row_meets_its_own_upstream_gradient(device):
    z, t = [[0, LN2, LN5], [0, 0, 0], [1, 2, 3]], rt.tensor([2, 0, 1], device=device)
    upstream = rt.tensor([1.0, 0.0, 2.0], device=device)

    def total(x):
        return rt.sum(rt.cross_entropy(x, t, reduction="none") * upstream)

    close(total(rt.tensor(z, device=device)), 3.28521556)
    dz = [[0.125, 0.25, -0.375], [0, 0, 0], [0.18006115, -1.51054306, 1.33048191]]
    close(gradient(total, z, device), dz)
    w = rt.tensor([[1.0, 0], [0, 1], [1, 1]], device=device).require_grad()
    b = rt.zeros((3,), device=device).require_grad()
    x = rt.tensor([[1.0, 2], [0, 1], [1, 0]], device=device)
    found = total(rt.matmul(x, rt.matrix_transpose(w)) + b).backward()
    close(found[w], [[0.93466817, 0.18006115], [-1.44454672, 0.48945694], [0.50987855, -0.66951809]])
    close(found[b], [0.9346682, -1.4445467, 0.5098786])


@pytest.mark.parametrize("target", [-4, -1, 3, 2**31])
def test_INDEX_08_a_target_that_is_no_class_raises_and_later_calls_work(device, target):
    for reduction in ("mean", "none"):
        with pytest.raises(IndexError, match=f"the target {target} is no class: the ids of 3 classes are 0 to 2"):
            loss(Z, np.array([0, 1, target, 2]), device, reduction=reduction)
    close(loss(Z, [0, -100, 2, 1], device, weight=[1.0, 2, 4]), 2.11840385)


def test_masked_classes_and_large_logits(device):
    z = [[0.0, -inf, 0.0], [1e4, 0.0, -1e4], [1e4, 9999.0, -inf]]
    t = [2, 1, 0]
    close(loss(z, t, device, reduction="none"), [LN2, 1e4, np.log1p(np.exp(-1.0))], rtol=1e-6)
    g = gradient(lambda x: rt.cross_entropy(x, rt.tensor(t, device=device), reduction="sum"), z, device)
    p = 1 / (1 + np.exp(-1.0))
    close(g, [[0.5, 0, -0.5], [1, -1, 0], [p - 1, 1 - p, 0]], rtol=1e-6)
    assert loss(z, [1, 0, 0], device, reduction="none")[0].item() == inf
    q = [[0.5, 0.0, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    close(loss(z, q, device, reduction="none"), [LN2, 0, np.log1p(np.exp(-1.0))], rtol=1e-6)
    assert np.isfinite(gradient(lambda x: rt.cross_entropy(x, rt.tensor(q, device=device)), z, device)).all()


def test_ignored_rows_may_hold_anything(device):
    z, t = [[0.0, 1.0], [nan, inf], [-inf, -inf]], rt.tensor([0, -100, -100], device=device)
    close(rt.cross_entropy(rt.tensor(z, device=device), t), np.log1p(np.e))
    g = gradient(lambda x: rt.cross_entropy(x, t), z, device)
    assert np.isfinite(g).all() and not g[1:].any() and g[0].all()


def test_SHAPE_09_views_give_the_bits_of_copies(device):
    view = rt.arange(24.0, device=device).reshape(4, 6)[::-1, ::-2]
    before, found = view.numpy(), []
    for x in (view.require_grad(), view.copy().require_grad()):
        y = rt.cross_entropy(x, rt.tensor([0, 1, 2, 0], device=device))
        found.append((y.numpy(), x.grad(y.backward()).numpy()))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert np.array_equal(view.numpy(), before)


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_half_logits_are_reduced_in_float32(device, dtype):
    x = rt.astype(rt.tensor(np.random.default_rng(0).standard_normal((5000, 8)) * 4, device=device), dtype)
    t = rt.tensor(np.random.default_rng(1).integers(0, 8, 5000), device=device)
    exact = rt.cross_entropy(rt.astype(x, rt.float64), t).item()
    found = rt.cross_entropy(x, t)
    assert found.dtype == dtype and found.item() == rt.tensor(exact, dtype=dtype).item()
    tracked = x.require_grad()
    g = tracked.grad(rt.cross_entropy(tracked, t, reduction="sum").backward())
    assert g.dtype == dtype and g.shape == x.shape


def test_cross_entropy_errors():
    z = rt.tensor(Z, device=CPU)
    with pytest.raises(ValueError, match=r"need class ids of shape \(4,\), got \(3,\)"):
        rt.cross_entropy(z, rt.tensor([0, 1, 2], device=CPU))
    with pytest.raises(ValueError, match="probabilities must have the shape"):
        rt.cross_entropy(z, rt.tensor([0.0, 1, 2, 0], device=CPU))
    with pytest.raises(TypeError, match="integer class ids or float probabilities, got bool"):
        rt.cross_entropy(z, rt.tensor([True] * 4, device=CPU))
    with pytest.raises(ValueError, match="reduction must be 'mean', 'sum' or 'none', got 'avg'"):
        rt.cross_entropy(z, rt.tensor([0, 1, 2, 0], device=CPU), reduction="avg")
    with pytest.raises(ValueError, match="label_smoothing must be from 0 to 1"):
        rt.cross_entropy(z, rt.tensor([0, 1, 2, 0], device=CPU), label_smoothing=1.5)
    with pytest.raises(ValueError, match=r"weight must have the shape \(3,\)"):
        rt.cross_entropy(z, rt.tensor([0, 1, 2, 0], device=CPU), weight=[1.0, 2.0])
    with pytest.raises(IndexError, match="axis 2 is out of range"):
        rt.cross_entropy(z, rt.tensor([0, 1, 2, 0], device=CPU), axis=2)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_against_torch(reduction):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values, weight = rng.standard_normal((4, 5, 3)), rng.random(5)
    ids, q = rng.integers(0, 5, (4, 3)), np.abs(rng.standard_normal((4, 5, 3)))
    ids[0, 1] = ids[2, 2] = -100
    for targets in (ids, q):
        for how in ({}, {"label_smoothing": 0.2}, {"weight": weight}, {"weight": weight, "label_smoothing": 0.2}):
            x, y = rt.tensor(values, device=CPU).require_grad(), torch.tensor(values, requires_grad=True)
            ours = rt.cross_entropy(x, rt.tensor(targets, device=CPU), axis=1, reduction=reduction, **how)
            how = {k: torch.tensor(v) if k == "weight" else v for k, v in how.items()}
            theirs = torch.nn.functional.cross_entropy(y, torch.tensor(targets), reduction=reduction, **how)
            close(ours, theirs.detach().numpy(), rtol=1e-10)
            theirs.sum().backward()
            close(x.grad(rt.sum(ours).backward()), y.grad.numpy(), rtol=1e-10, atol=1e-14)


# other losses


def test_LOSS_08_smooth_l1_with_and_without_a_corner(device):
    d = np.array([0, 1e-8, -3, 0.5])
    for beta, value, g in ((0.0, 3.50000001, [0, 1, -1, 1]), (1.0, 2.625, [0, 1e-8, -1, 0.5])):
        close(rt.smooth_l1(rt.tensor(d, device=device), 0.0, beta=beta, reduction="sum"), value, rtol=1e-9)
        close(gradient(lambda x, b=beta: rt.smooth_l1(x, 0.0, beta=b, reduction="sum"), d, device), g, atol=1e-12)
    close(gradient(lambda x: rt.mae(x, 0.0, reduction="sum"), d, device), [0, 1, -1, 1])


def test_GRAD_18_relative_entropy_of_impossible_targets(device):
    p = [0.0, 0.5, 0.5]
    for first in (np.log(0.2), -inf):
        log_q = [first, np.log(0.3), np.log(0.5)]
        close(rt.kl_div(rt.tensor(log_q, device=device), rt.tensor(p, device=device)), 0.25541281)
        close(gradient(lambda x: rt.kl_div(x, rt.tensor(p, device=device)), log_q, device), [0, -0.5, -0.5])
        g = gradient(lambda x, q=log_q: rt.kl_div(rt.tensor(q, device=device), x), p, device)
        close(g, [0, 1.5108256, 1.0])


def test_GRAD_22_binary_cross_entropy_saturates_exactly(device):
    z = [-40.0, 0.0, 40.0]
    close(rt.binary_cross_entropy_with_logits(rt.tensor(z, device=device), 1.0, reduction="none"), [40, LN2, 0])
    close(gradient(lambda x: rt.binary_cross_entropy_with_logits(x, 1.0, reduction="sum"), z, device), [-1, -0.5, 0])
    found = rt.binary_cross_entropy_with_logits(rt.tensor(z, dtype=rt.float64, device=device), 1.0, reduction="none")
    close(found[2], np.exp(-40.0), rtol=1e-12, atol=0)
    far = rt.tensor([inf, -inf], device=device)
    close(rt.binary_cross_entropy_with_logits(far, rt.tensor([1.0, 0.0], device=device), reduction="none"), [0, 0])
    ends = [0.0, 1.0]
    t = rt.tensor(ends, device=device)
    close(rt.binary_cross_entropy(rt.tensor(ends, device=device), t, reduction="none"), [0, 0])
    close(gradient(lambda x: rt.binary_cross_entropy(x, t, reduction="sum"), ends, device), [1, -1])
    close(rt.binary_cross_entropy(rt.tensor([0.0], device=device), 1.0), 100)
    g = gradient(lambda x: rt.binary_cross_entropy(x, 1.0), [0.0], device)
    assert np.isfinite(g).all() and g[0] < -1e6


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_DTYPE_01_mse_of_large_halves(device, dtype):
    x = rt.full((16,), 200, dtype=dtype, device=device)
    found = rt.mse(x, 0.0)
    close(rt.astype(found, rt.float64), 40000, rtol=4e-3)
    assert found.dtype == dtype
    mixed = rt.tensor([300.0, 1.0], dtype=dtype, device=device)
    close(rt.astype(rt.mse(mixed, 0.0), rt.float64), 45000.5, rtol=4e-3)


def test_DTYPE_08_errors_of_small_integers_do_not_wrap(device):
    x, y = rt.tensor([0], dtype=rt.uint8, device=device), rt.tensor([20], dtype=rt.uint8, device=device)
    assert rt.mse(x, y).item() == 400 and rt.mae(x, y).item() == 20
    assert rt.mse(y, x).item() == 400 and rt.mae(y, x).item() == 20
    assert rt.mse(x, y).dtype == rt.float32
    assert rt.mse(x, 20).item() == 400


@pytest.mark.parametrize("name", ["mse", "mae", "smooth_l1", "huber", "binary_cross_entropy", "kl_div"])
def test_shapes_must_be_equal(name):
    with pytest.raises(ValueError, match=rf"{name}: .* must have one shape, got \(3, 1\) and \(3,\)"):
        getattr(rt, name)(rt.ones((3, 1), device=CPU), rt.ones((3,), device=CPU))
    with pytest.raises(ValueError, match=f"{name}: reduction must be"):
        getattr(rt, name)(rt.ones((3,), device=CPU), rt.ones((3,), device=CPU), reduction="batchmean")


def test_parameters_are_checked():
    x = rt.ones((3,), device=CPU)
    for beta in (-1.0, inf, nan):
        with pytest.raises(ValueError, match="beta must be"):
            rt.smooth_l1(x, x, beta=beta)
    with pytest.raises(ValueError, match="delta must be"):
        rt.huber(x, x, delta=0.0)
    with pytest.raises(ValueError, match="do not broadcast"):
        rt.binary_cross_entropy_with_logits(x, x, pos_weight=rt.ones((2,), device=CPU))


def test_pointwise_losses_against_torch():
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    rng = np.random.default_rng(0)
    a, b, p = rng.standard_normal((3, 4)) * 2, rng.standard_normal((3, 4)), rng.random((3, 4))
    weight = rng.random(4)
    pairs = [
        (rt.mse, functional.mse_loss, a, b, {}),
        (rt.mae, functional.l1_loss, a, b, {}),
        (lambda x, y, **k: rt.smooth_l1(x, y, beta=0.6, **k), functional.smooth_l1_loss, a, b, {"beta": 0.6}),
        (lambda x, y, **k: rt.huber(x, y, delta=0.6, **k), functional.huber_loss, a, b, {"delta": 0.6}),
        (rt.binary_cross_entropy, functional.binary_cross_entropy, rng.random((3, 4)), p, {}),
        (
            lambda x, y, **k: rt.binary_cross_entropy_with_logits(x, y, pos_weight=rt.tensor(weight, device=CPU), **k),
            functional.binary_cross_entropy_with_logits, a, p, {"pos_weight": torch.tensor(weight)},
        ),
    ]  # fmt: skip
    for ours, theirs, first, second, how in pairs:
        for reduction in ("mean", "sum", "none"):
            x, y = rt.tensor(first, device=CPU).require_grad(), torch.tensor(first, requires_grad=True)
            found = ours(x, rt.tensor(second, device=CPU), reduction=reduction)
            expected = theirs(y, torch.tensor(second), reduction=reduction, **how)
            close(found, expected.detach().numpy(), rtol=1e-10)
            expected.sum().backward()
            close(x.grad(rt.sum(found).backward()), y.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, rt.float64])
def test_large_errors_of_huber_and_smooth_l1_are_not_squared_on_the_way(dtype, device):
    """Their square overflows, which the branch that is not taken must neither warn of nor pass on."""
    big = float(np.float64(2.0) ** (900 if dtype == rt.float64 else 120))
    x = rt.tensor([big, -big, 0.25, float("inf")], dtype=dtype, device=device).require_grad()
    for losses, expected, slope in (
        (rt.huber(x, 0.0, delta=2.0, reduction="none"), [2 * big, 2 * big, 0.03125], [2.0, -2.0, 0.25, 2.0]),
        (rt.smooth_l1(x, 0.0, beta=2.0, reduction="none"), [big, big, 0.015625], [1.0, -1.0, 0.125, 1.0]),
    ):
        assert losses.tolist() == [*expected, float("inf")]
        assert losses.sum().backward()[x].tolist() == slope


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16], ids=str)
def test_DTYPE_a_number_met_in_float32_is_not_rounded_to_a_half_type(dtype):
    values = np.random.default_rng(0).uniform(-0.9, 0.9, (40, 3)).astype(np.float32)
    x = rt.tensor(values, dtype=dtype, device=CPU)
    wide = x.astype(rt.float32)
    calls = {
        "mse": lambda x: rt.mse(x, 0.3, reduction="none"),
        "mae": lambda x: rt.mae(x, np.float64(0.3), reduction="none"),
        "huber": lambda x: rt.huber(x, 0.3, delta=0.5, reduction="none"),
        "binary_cross_entropy_with_logits": lambda x: rt.binary_cross_entropy_with_logits(x, 0.3, reduction="none"),
        "lerp": lambda x: rt.lerp(x, rt.flip(x), 0.3),
    }
    for name, call in calls.items():
        assert call(x).dtype == dtype
        np.testing.assert_array_equal(call(x).tolist(), call(wide).astype(dtype).tolist(), err_msg=name)
