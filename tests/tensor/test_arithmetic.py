"""Operators, powers and rounding: singular points, dtypes, weak numbers, errors, and NumPy and PyTorch as oracles."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf
FLOATS = (rt.float16, rt.bfloat16, rt.float32, rt.float64)
INTEGERS = (rt.int8, rt.int16, rt.int32, rt.int64, rt.uint8, rt.uint16, rt.uint32, rt.uint64)


def leaves(*values, dtype=rt.float64, device=CPU):
    return [rt.tensor(v, dtype=dtype, device=device).require_grad() for v in values]


def test_GRAD_08_power_at_zero_bases_and_negative_bases(device):
    b, e = leaves([0.0, 0.0, 0.0, 2.0], [0.0, 1.0, 2.0, 3.0], device=device)
    found = rt.sum(b**e).backward()
    close(b.grad(found), [0, 1, 0, 12])
    close(e.grad(found), [0, 0, 0, 5.5451774])
    for n, slope in ((2, -4.0), (3, 12.0), (2.0, -4.0), (0, 0.0), (1, 1.0), (-1, -0.25), (-2, 0.25)):
        close(gradient(lambda x, n=n: x**n, [-2.0], device), [slope])
    for n, slope in ((0, 0.0), (1, 1.0), (2, 0.0), (3, 0.0), (4, 0.0), (1.5, 0.0), (0.0, 0.0)):
        close(gradient(lambda x, n=n: x**n, [0.0, -0.0], device), [slope, slope])
        close(gradient(lambda x, n=n: x ** rt.full_like(x, n), [0.0, -0.0], device), [slope, slope])
    assert gradient(lambda x: x**0.5, [0.0], device)[0] == inf


def test_GRAD_08_a_negative_base_does_not_poison_the_exponent(device):
    b, e = leaves([-2.0, 3.0], 2.0, device=device)
    found = rt.sum(b**e).backward()
    close(b.grad(found), [-4, 6])
    close(e.grad(found), 9 * np.log(3))
    assert np.isnan(gradient(lambda e: rt.tensor([nan], dtype=e.dtype, device=device) ** e, 2.0, device))


def test_GRAD_08_second_derivatives_of_powers(device):
    for b, n, second in ((0.0, 2, 2.0), (0.0, 3, 0.0), (0.0, 1, 0.0), (0.0, 0, 0.0), (-2.0, 3, -12.0), (0.5, 0, 0.0)):
        x = rt.tensor(b, dtype=rt.float64, device=device)
        close(ra.grad(ra.grad(lambda x, n=n: x**n))(x), second)
        close(ra.grad(ra.grad(lambda x, n=n: x ** rt.full_like(x, n)))(x), second)
    x, y = (rt.tensor(v, dtype=rt.float64, device=device) for v in (3.0, 0.0))
    mixed = ra.grad(lambda y: ra.grad(lambda x: x**y)(x))(y)
    close(mixed, 1 / 3)  # d/dy (y x^(y-1)) at y = 0 is 1 / x


def test_powers_with_whole_exponents_are_exact(device):
    x = rt.tensor([3.0, -7.0, 0.1, 1.5], dtype=rt.float32, device=device)
    v = x.numpy()
    for n in range(10):
        power = np.ones_like(v)
        for _ in range(n):
            power = power * v
        np.testing.assert_allclose((x**n).numpy(), power, rtol=3e-7)
    assert (x**2).numpy().tolist() == (v * v).tolist()
    assert (x**4).numpy().tolist() == ((v * v) * (v * v)).tolist()
    assert (x**5)[0].item() == 243.0 and (x**7)[1].item() == -823543.0
    assert (x**True).numpy().tolist() == v.tolist()
    for n in (65, 100, -3, -70):
        close(rt.tensor([1.1, -0.9], device=device) ** n, np.array([1.1, -0.9]) ** float(n), rtol=1e-4)


def test_integer_powers_stay_integers_and_refuse_negative_exponents(device):
    x = rt.tensor([-3, 0, 2], device=device)
    assert (x**3).numpy().tolist() == [-27, 0, 8] and (x**3).dtype == rt.int32
    assert (x**0).numpy().tolist() == [1, 1, 1]
    assert (x ** rt.tensor([2, 0, 5], device=device)).numpy().tolist() == [9, 1, 32]
    assert (2 ** rt.tensor([0, 5], device=device)).numpy().tolist() == [1, 32]
    assert (rt.tensor([2], dtype=rt.int8, device=device) ** 2000).item() == 0  # wraps, as products do
    assert (x**2.0).dtype == rt.float32 and (x**0.5).dtype == rt.float32
    assert (rt.tensor([True, False], device=device) ** 2).dtype == rt.int32
    for y in (-1, rt.tensor([1, -1, 1], device=device)):
        with pytest.raises(ValueError, match="negative integer powers.*astype"):
            x**y
    with pytest.raises(TypeError, match="bool"):
        rt.tensor([True], device=device) ** rt.tensor([True], device=device)


def test_TIE_05_abs_and_sign(device):
    x = [-0.0, 0.0, -2.0, 3.0]
    close(gradient(rt.abs, x, device), [0, 0, -1, 1])
    close(gradient(rt.sign, x, device), [0, 0, 0, 0])
    assert np.isnan(rt.sign(rt.tensor([nan], device=device)).item())
    assert rt.sign(rt.tensor([3, 0], dtype=rt.uint8, device=device)).numpy().tolist() == [1, 0]


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "sign"])
def test_TAPE_12_functions_constant_in_pieces_have_the_gradient_zero(name, device):
    close(gradient(getattr(rt, name), [-1.5, 0.0, 0.25, 2.0], device), [0, 0, 0, 0])
    x = rt.tensor([3, -2], device=device)
    assert getattr(rt, name)(x).dtype == rt.int32


def test_TAPE_12_both_operands_of_a_piecewise_function_have_a_gradient(device):
    for name in ("floor_divide", "remainder", "copysign", "nextafter"):
        x, y = leaves([5.3, -5.3], [2.0], device=device)
        found = rt.sum(getattr(rt, name)(x, y)).backward()
        assert found[x].shape == (2,) and found[y].shape == (1,)
    x, y = leaves([5.3, -5.3], [2.0], device=device)
    found = rt.sum(x % y).backward()
    close(found[x], [1, 1])
    close(found[y], [-(2 - 3)])
    close(gradient(lambda x: rt.copysign(x, -1.0), [2.0, -2.0, 0.0], device), [-1, 1, 0])


def test_GRAD_03_dividing_by_zero_in_lanes_that_are_not_used(device):
    n = rt.tensor([0.0, 2.0, 4.0], device=device)
    safe = lambda x: rt.where(n == 0, 0.0, x / rt.where(n == 0, 1.0, n))
    close(gradient(safe, [5.0, 1.0, 3.0], device), [0, 0.5, 0.25], rtol=0, atol=0)
    assert rt.divide(1.0, n).numpy()[0] == inf
    assert rt.divide(rt.tensor([0.0], device=device), 0).numpy().tolist() == pytest.approx([nan], nan_ok=True)


def test_DTYPE_06_numbers_never_widen(device):
    x = rt.ones((3,), device=device)
    scalar = rt.tensor(1.5, dtype=rt.float32, device=device)
    numbers = (np.float64(2), np.float32(2), np.int64(2), np.array(2.0), np.array(2), 2, 2.0, True, np.bool_(True))
    for a in (x, scalar, x.astype(rt.bfloat16), x.astype(rt.float16)):
        for n in numbers:
            for y in (a * n, n * a, a + n, n - a, a / n, n / a, a**n, n**a, a % n, a // n, rt.maximum(a, n)):
                assert y.dtype == a.dtype, (a.dtype, n)
                assert type(y) is rt.Tensor
    assert (x.sum() * 2.0).dtype == rt.float32
    assert (rt.tensor([1], dtype=rt.int8, device=device) + np.int64(3)).dtype == rt.int8
    assert (rt.tensor([1], dtype=rt.int8, device=device) * 0.5).dtype == rt.float32
    assert (rt.tensor([True], device=device) + 1).dtype == rt.int32


@pytest.mark.parametrize("a", FLOATS + INTEGERS, ids=str)
@pytest.mark.parametrize("b", FLOATS + INTEGERS, ids=str)
def test_binary_results_have_the_promoted_dtype(a, b):
    x, y = rt.tensor([3], dtype=a, device=CPU), rt.tensor([2], dtype=b, device=CPU)
    if {a, b} & {rt.uint64} and {a, b} & {rt.int8, rt.int16, rt.int32, rt.int64}:
        with pytest.raises(TypeError, match="uint64"):
            x + y
        return
    expected = rt.result_type(a, b)
    values = {"add": 5, "subtract": 1, "multiply": 6, "floor_divide": 1, "remainder": 1, "pow": 9}
    for name, value in values.items():
        z = getattr(rt, name)(x, y)
        assert z.dtype == expected and z.item() == value
    assert (x / y).item() == 1.5
    assert (x / y).dtype == (expected if expected in FLOATS else rt.float32)


def test_integers_that_do_not_fit_are_refused(device):
    x = rt.tensor([1], dtype=rt.uint8, device=device)
    for f in (lambda: x + 300, lambda: x - -1, lambda: 256 * x):
        with pytest.raises(OverflowError, match="uint8.*astype"):
            f()
    assert (x - 2).item() == 255  # unsigned arithmetic wraps, as in NumPy


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16], ids=str)
def test_nextafter_of_half_types_walks_every_neighbour(dtype, device):
    every = np.arange(-(2**15), 2**15).astype(np.int16).view(dtype)
    with np.errstate(invalid="ignore"):
        values = np.unique(every[np.isfinite(every.astype(np.float32))].astype(np.float32))
    x = rt.tensor(values, device=device).astype(dtype)
    up = rt.nextafter(x, rt.full_like(x, inf)).astype(rt.float32).numpy()
    down = rt.nextafter(x, rt.full_like(x, -inf)).astype(rt.float32).numpy()
    assert np.array_equal(up[:-1], values[1:]) and up[-1] == inf
    assert np.array_equal(down[1:], values[:-1]) and down[0] == -inf
    assert np.array_equal(rt.nextafter(x, x).astype(rt.float32).numpy(), values)
    assert np.isnan(rt.nextafter(x[:1], rt.full_like(x[:1], nan)).astype(rt.float32).item())


def test_shapes_that_do_not_broadcast_are_named(device):
    x, y = rt.ones((2, 3), device=device), rt.ones((2, 4), device=device)
    for name in ("add", "divide", "pow", "remainder", "maximum", "equal", "atan2"):
        with pytest.raises(ValueError, match=rf"{name}: shapes \(2, 3\) and \(2, 4\).*axis -1 is 3 and 4"):
            getattr(rt, name)(x, y)


def test_what_is_no_number_is_refused():
    x = rt.ones(2, device=CPU)
    for other in ("a", None, {}, object()):
        with pytest.raises(TypeError):
            x + other
    with pytest.raises(TypeError, match="abs: needs numbers, got bool"):
        rt.abs(rt.tensor([True], device=CPU))
    with pytest.raises(TypeError, match="negative: needs numbers"):
        -rt.tensor([True], device=CPU)
    mask = rt.tensor([True], device=CPU)
    for x, y in ((mask, mask), (mask, True), (True, mask)):
        with pytest.raises(TypeError, match="subtract: needs numbers, got bool"):
            rt.subtract(x, y)


def test_numpy_arrays_on_either_side_give_tensors():
    x, a = rt.tensor([1.0, 2.0], device=CPU), np.array([10.0, 20.0])
    for y in (x + a, a + x):
        assert isinstance(y, rt.Tensor) and y.dtype == rt.float64
        close(y, [11, 22])


def test_empty_and_0d(device):
    for shape in ((0,), (0, 3), (2, 0), ()):
        x = rt.ones(shape, device=device).require_grad()
        for y in (x + x, x * 2, x / x, x**2, x**x, x % 2, abs(x), -x, rt.lerp(x, x, 0.5)):
            assert y.shape == shape and y.dtype == rt.float32
            assert x.grad(y.backward()).shape == shape


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "divide", "pow", "copysign", "nextafter"])
def test_special_values_are_those_of_numpy(name):
    special = np.array([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, inf, -inf, nan])
    a, b = (m.ravel() for m in np.meshgrid(special, special))
    expected = getattr(np, name if name != "pow" else "power")
    with np.errstate(all="ignore"):
        want = expected(a, b)
    found = getattr(rt, name)(rt.tensor(a, device=CPU), rt.tensor(b, device=CPU)).numpy()
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[~np.isnan(want)]), np.signbit(want[~np.isnan(want)]))


@pytest.mark.parametrize("name", ["pow", "remainder", "lerp", "copysign", "maximum"])
def test_gradients_agree_with_pytorch(name):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(0.5, 3.0, shape) for shape in ((4, 5), (5,), (4, 1))[: 3 if name == "lerp" else 2]]
    ours = leaves(*arrays)
    found = rt.sum(getattr(rt, name)(*ours) ** 2).backward()
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    (getattr(torch, name)(*theirs) ** 2).sum().backward()
    for x, t in zip(ours, theirs, strict=True):
        close(found[x], t.grad.numpy(), rtol=1e-12)
