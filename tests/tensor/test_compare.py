"""Comparisons, where, maximum, minimum and clip: ties, bounds, NaN, integers against numbers, gradients."""
from __future__ import annotations

import operator

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf
OPERATORS = {
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
ALL = (
    rt.bool, rt.int8, rt.int16, rt.int32, rt.int64, rt.uint8, rt.uint16, rt.uint32, rt.uint64, rt.float16, rt.bfloat16,
    rt.float32, rt.float64,
)  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [rt.int8, rt.uint8, rt.int32, rt.uint64, rt.int64], ids=str)
def test_integers_meet_python_numbers_exactly(name, dtype, device):
    info = rt.iinfo(dtype)
    values = [0, 1, 5, info.min, info.max, info.max - 1]
    x = rt.tensor(np.array(values, dtype), device=device)
    numbers = [
        0, 1, -1, 5, 300, -300, info.max, info.min, info.max + 1, info.min - 1, 2**70, -(2**70), 0.5, -0.5, 5.0, 4.999,
        1e30, -1e30, inf, -inf, nan, True, np.int64(5), np.float64(0.5), np.uint8(200),
    ]  # fmt: skip
    f, python = getattr(rt, name), OPERATORS[name]
    for n in numbers:
        exact = n.item() if isinstance(n, np.generic) else n
        assert f(x, n).numpy().tolist() == [python(v, exact) for v in values], n
        assert f(n, x).numpy().tolist() == [python(exact, v) for v in values], n
        assert f(x, n).dtype == rt.bool and f(x, n).shape == (6,)
        assert python(x, n).numpy().tolist() == f(x, n).numpy().tolist()


@pytest.mark.parametrize("name", OPERATORS)
def test_comparisons_of_special_values_are_those_of_numpy(name, device):
    special = np.array([0.0, -0.0, 1.0, -1.0, inf, -inf, nan])
    a, b = np.meshgrid(special, special)
    for dtype in (rt.float16, rt.bfloat16, rt.float32, rt.float64):
        x, y = (rt.tensor(v, dtype=dtype, device=device) for v in (a, b))
        assert np.array_equal(getattr(rt, name)(x, y).numpy(), getattr(np, name)(a, b))


def test_comparisons_are_not_tracked_and_mix_dtypes():
    x = rt.tensor([1.0, 2.0], device=CPU).require_grad()
    assert not (x > 1).is_require_grad()
    assert (rt.tensor([True, False], device=CPU) == True).numpy().tolist() == [True, False]  # noqa: E712
    assert (rt.tensor([1], dtype=rt.int8, device=CPU) < rt.tensor([2.5], device=CPU)).item()
    assert (x == "a") is False
    with pytest.raises(TypeError, match="uint64"):
        rt.less(rt.tensor([1], dtype=rt.uint64, device=CPU), rt.tensor([1], dtype=rt.int64, device=CPU))


def test_questions_about_floats(device):
    for dtype in (rt.float16, rt.bfloat16, rt.float32, rt.float64):
        x = rt.tensor([0.0, -0.0, -1.0, inf, -inf, nan], dtype=dtype, device=device)
        assert rt.isnan(x).numpy().tolist() == [False] * 5 + [True]
        assert rt.isinf(x).numpy().tolist() == [False] * 3 + [True] * 2 + [False]
        assert rt.isfinite(x).numpy().tolist() == [True] * 3 + [False] * 3
        assert rt.signbit(x).numpy().tolist()[:5] == [False, True, True, False, True]
    assert not rt.isnan(rt.tensor([1, 2], device=device)).numpy().any()


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (80, 70)])
def test_where_moves_bits_of_every_dtype(dtype, shape, device):
    rng = np.random.default_rng(0)
    a, b = (np.asarray(rng.integers(0, 2 if dtype == rt.bool else 100, s)).astype(dtype) for s in (shape, shape[1:]))
    c = rng.random((shape[0], 1)) < 0.5
    x, y, condition = rt.tensor(a, device=device), rt.tensor(b, device=device), rt.tensor(c, device=device)
    z = rt.where(condition, x, y)
    assert z.dtype == dtype and np.array_equal(z.numpy(), np.where(c, a, b))
    zero = rt.where(condition, x, 0)
    assert zero.dtype == rt.result_type(dtype, 0)
    assert np.array_equal(zero.numpy(), np.where(c, a, np.zeros((), a.dtype)))
    assert np.array_equal(rt.where(condition, 0, x).numpy(), np.where(c, np.zeros((), a.dtype), a))


def test_where_keeps_nan_payloads_infinities_and_minus_zero(device):
    x = rt.tensor([nan, -0.0, inf, -inf], device=device)
    for y in (0.0, -0.0, rt.full_like(x, 7.0)):
        z = rt.where(rt.tensor([True, True, True, False], device=device), x, y).numpy()
        assert np.isnan(z[0]) and np.signbit(z[1]) and z[2] == inf
    assert np.signbit(rt.where(rt.tensor([False], device=device), 1.0, rt.tensor([-0.0], device=device)).item())
    assert np.signbit(rt.where(rt.tensor([False], device=device), x[:1], -0.0).numpy()[0])


def test_where_arguments(device):
    c = rt.tensor([True, False], device=device)
    assert rt.where(c, 1, 2).dtype == rt.int32 and rt.where(c, 1.0, 2).dtype == rt.float32
    assert rt.where(c, True, False).dtype == rt.bool
    assert rt.where(c, rt.tensor([1, 2], device=device), 0.5).dtype == rt.float32
    assert rt.where(True, rt.tensor([1.0], device=device), 0.0).item() == 1.0
    with pytest.raises(TypeError, match="condition must be bool, got float32.*!= 0"):
        rt.where(rt.ones(2, device=device), 1.0, 2.0)
    with pytest.raises(ValueError, match="where: shapes"):
        rt.where(c, rt.ones(3, device=device), 0.0)
    with pytest.raises(ValueError, match="where: shapes"):
        rt.where(c, rt.ones(3, device=device), rt.ones(3, device=device))


def test_where_gives_no_gradient_to_what_was_not_chosen(device):
    c = rt.tensor([[True], [False]], device=device)
    x, y = (rt.tensor(v, device=device).require_grad() for v in ([1.0, 2.0, 3.0], 4.0))
    found = rt.sum(rt.where(c, x, y) * 2.0).backward()
    close(found[x], [2, 2, 2])
    close(found[y], 6)
    _, pull = ra.vjp(lambda x: rt.where(x > 0, x, 0.0), rt.tensor([-1.0, -2.0], device=device))
    close(pull(rt.tensor([inf, nan], device=device))[0], [0, 0])


def test_GRAD_01_where_safe_of_a_root_of_negative_numbers(device):
    f = lambda x: rt.where_safe(x > 0, rt.sqrt, x, lambda x: 3 * x)
    close(gradient(f, [-2.25, 0.0, 4.0], device), [3, 3, 0.25], atol=0)
    plain = gradient(lambda x: rt.where(x > 0, rt.sqrt(x), 3 * x), [-2.25, 0.0, 4.0], device)
    assert np.isnan(plain[:2]).all() and plain[2] == 0.25  # documented: NaN there, and it does not spread


def test_GRAD_03_where_safe_of_a_division(device):
    n = rt.tensor([0.0, 2.0, 4.0], device=device)
    f = lambda x: rt.where_safe(n != 0, lambda n: x / n, n)
    close(gradient(f, [5.0, 1.0, 3.0], device), [0, 0.5, 0.25], atol=0)


def test_GRAD_04_where_safe_of_an_overflow(device):
    close(gradient(lambda x: rt.where_safe(x < 0, rt.exp, x, lambda x: 2 * x), [-1.0, 200.0], device), [0.36787944, 2])
    close(ra.grad(ra.grad(lambda x: rt.where_safe(x < 0, rt.exp, x, 5.0)))(rt.tensor(200.0, device=device)), 0)


def test_TIE_01_maximum_and_minimum_share_ties(device):
    for f, sign in ((rt.maximum, 1), (rt.minimum, -1)):
        a, b = (rt.tensor([sign * 1.0, sign * v], device=device).require_grad() for v in (2.0, 3.0))
        found = rt.sum(f(a, b)).backward()
        close(found[a], [0.5, 0])
        close(found[b], [0.5, 1])
        close(found[a].numpy() + found[b].numpy(), [1, 1])
        close(gradient(lambda a, f=f: f(a, a), [1.0, 2.0], device), [1, 1])
        close(gradient(lambda a, f=f: f(a, 0.0), [0.0, -0.0], device), [0.5, 0.5])


def test_TIE_03_clip_relu6_and_hardtanh_have_one_slope_at_the_bounds(device):
    for f in (lambda x: rt.clip(x, 0, 6), lambda x: rt.clip(x, 0.0, 6.0), rt.relu6, lambda x: rt.hardtanh(x, 0.0, 6.0)):
        close(gradient(f, [0.0, 6.0, -1.0, 7.0, 3.0], device), [0, 0, 0, 0, 1])
    for f in (lambda x: rt.clip(x, -1.0, 1.0), rt.hardtanh, lambda x: rt.clip(rt.clip(x, min=-1), max=1)):
        close(gradient(f, [-1.0, 1.0, 0.0], device), [0, 0, 1])
    x = rt.tensor([-5.0, 0.5, 5.0], device=device)
    assert rt.clip(x, 2.0, 1.0).numpy().tolist() == [1, 1, 1]
    assert rt.clip(x, rt.tensor(2.0, device=device), rt.tensor(1.0, device=device)).numpy().tolist() == [1, 1, 1]
    close(gradient(lambda x: rt.clip(x, 2.0, 1.0), [-5.0, 1.5, 5.0], device), [0, 0, 0])


def test_clip_gives_the_gradient_to_one_of_its_three_arguments(device):
    x, low, high = ([-3.0, -1.0, 0.0, 1.0, 3.0], [-1.0] * 5, [1.0] * 5)
    x, low, high = (rt.tensor(v, device=device).require_grad() for v in (x, low, high))
    found = rt.sum(rt.clip(x, low, high)).backward()
    close(found[x], [0, 0, 1, 0, 0])
    close(found[low], [1, 1, 0, 0, 0])
    close(found[high], [0, 0, 0, 1, 1])
    for bounds in ((2.0, 1.0), (1.0, 1.0)):
        low, high = (rt.tensor(v, device=device).require_grad() for v in bounds)
        found = rt.sum(rt.clip(x, low, high)).backward()
        close(found[high], 5)
        close(found[low], 0)
        close(found[x], [0] * 5)


def test_TIE_06_nan_survives_and_healthy_lanes_are_right(device):
    x = [nan, -1.0, 2.0]
    for f, slopes in (
        (lambda x: rt.maximum(x, 0.0), [0, 1]), (lambda x: rt.minimum(0.0, x), [1, 0]),
        (lambda x: rt.clip(x, -1.5, 1.5), [1, 0]),
        (rt.relu, [0, 1]), (rt.relu6, [0, 1]), (rt.leaky_relu, [0.01, 1]), (rt.hardtanh, [0, 0]),
    ):  # fmt: skip
        for dtype in (rt.float32, rt.float64, rt.bfloat16):
            y = f(rt.tensor(x, dtype=dtype, device=device)).astype(rt.float64).numpy()
            assert np.isnan(y[0]) and np.isfinite(y[1:]).all()
        close(gradient(f, x, device)[1:], slopes)


def test_clip_of_integers(device):
    x = rt.tensor([0, 100, 255], dtype=rt.uint8, device=device)
    assert rt.clip(x, -5, 300).numpy().tolist() == [0, 100, 255]
    assert rt.clip(x, 50, 200).numpy().tolist() == [50, 100, 200] and rt.clip(x, 50, 200).dtype == rt.uint8
    assert rt.clip(x, 0.5, 2.5).dtype == rt.float32
    assert rt.clip(x).numpy().tolist() == [0, 100, 255]
    with pytest.raises(OverflowError, match="uint8"):
        rt.clip(x, 300)


def test_clip_broadcasts_its_bounds(device):
    x = rt.tensor([[1.0, 2.0, 3.0]], device=device)
    low = rt.tensor([[0.0], [2.5]], device=device)
    assert rt.clip(x, low).numpy().tolist() == [[1, 2, 3], [2.5, 2.5, 3]]
    with pytest.raises(ValueError, match="clip: shapes"):
        rt.clip(x, rt.ones(2, device=device))


def test_empty_and_0d(device):
    for shape in ((0,), (0, 3), ()):
        x = rt.ones(shape, device=device).require_grad()
        for y in (rt.maximum(x, x), rt.clip(x, -1, 2), rt.where(x > 0, x, 0.0), rt.where(x > 0, x, x)):
            assert y.shape == shape and x.grad(y.backward()).shape == shape
        assert (x > 0).shape == shape and type(x > 0) is rt.Tensor
