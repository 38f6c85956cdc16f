"""Roots, exponentials, angles and the error function: accuracy, infinities, singular slopes, dtypes."""
from __future__ import annotations

import numpy as np
import pytest
import scipy.special as sp

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf
UNARY = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan", "atanh": "arctanh",
    "cos": "cos", "cosh": "cosh", "exp": "exp", "expm1": "expm1", "log": "log", "log10": "log10", "log1p": "log1p",
    "log2": "log2", "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "tan": "tan", "tanh": "tanh",
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_special_values_are_those_of_numpy(name, device):
    x = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 30.0, -30.0, inf, -inf, nan, 1e-300, 1e300])
    with np.errstate(all="ignore"):
        expected = getattr(np, UNARY[name])(x)
    np.testing.assert_allclose(getattr(rt, name)(rt.tensor(x, device=device)).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", [*UNARY, "rsqrt", "erf", "erfc"])
def test_integers_and_bools_become_the_default_float(name, device):
    f = getattr(rt, name)
    assert f(rt.tensor([1], dtype=rt.int64, device=device)).dtype == rt.float32
    assert f(rt.tensor([True], device=device)).dtype == rt.float32
    wide = rt.Cpu(float_dtype=rt.float64)
    assert f(rt.tensor([1], device=wide)).dtype == rt.float64
    assert f(rt.tensor([1.0], dtype=rt.bfloat16, device=device)).dtype == rt.bfloat16
    assert f(rt.zeros((0, 2), device=device)).shape == (0, 2)


def spread(dtype):
    """Arguments over the whole range in which erfc is not zero, and down to the smallest numbers."""
    small = np.geomspace(1e-30, 1, 300)
    parts = [np.linspace(-27.5, 27.5, 801), small, -small, np.linspace(-1.2, 1.2, 300), [0.0]]
    return np.concatenate(parts).astype(dtype)


@pytest.mark.parametrize("name", ["erf", "erfc"])
@pytest.mark.parametrize("dtype,ulps", [(np.float64, 6), (np.float32, 6)])
def test_error_functions_are_right_to_a_few_roundings(name, dtype, ulps, device):
    mp = pytest.importorskip("mpmath")
    z = spread(dtype)
    with mp.workdps(40):
        exact = np.array([float(getattr(mp, name)(mp.mpf(float(v)))) for v in z])
    found = getattr(rt, name)(rt.tensor(z, device=device)).numpy().astype(np.float64)
    tiny, eps = float(np.finfo(dtype).tiny), float(np.finfo(dtype).eps)
    flushed = tiny if device.kind == "cuda" else 0.0  # CuPy compiles with -ftz=true: float32 below the normal range is 0
    assert np.all(np.abs(found - exact) <= ulps * eps * np.maximum(np.abs(exact), tiny) + flushed * (np.abs(exact) < tiny))


@pytest.mark.parametrize("size", [1, 7, 262144, 600001])
def test_blocks_and_threads_do_not_change_a_bit(size):
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    for f in (rt.erf, rt.erfc, rt.gelu, rt.silu):
        whole = f(rt.tensor(x, device=CPU)).numpy()
        parts = [f(rt.tensor(x[i : i + 1000], device=CPU)).numpy() for i in range(0, min(size, 5000), 1000)]
        np.testing.assert_array_equal(whole[: min(size, 5000)], np.concatenate(parts)[: min(size, 5000)])


def test_error_functions_at_special_values(device):
    x = rt.tensor([inf, -inf, nan, 0.0, -0.0, 1e30, -1e30], dtype=rt.float32, device=device)
    np.testing.assert_array_equal(rt.erf(x).numpy(), np.array([1, -1, nan, 0, -0.0, 1, -1], np.float32))
    assert np.signbit(rt.erf(x).numpy()[4])
    np.testing.assert_array_equal(rt.erfc(x).numpy(), np.array([0, 2, nan, 1, 1, 0, 2], np.float32))


def test_GRAD_12_logaddexp_with_infinities(device):
    cases = [
        (inf, 1.0, inf, [1, 0]), (1.0, inf, inf, [0, 1]), (-inf, -inf, -inf, [0.5, 0.5]), (inf, inf, inf, [0.5, 0.5]),
        (-inf, 2.0, 2.0, [0, 1]), (inf, -inf, inf, [1, 0]), (3.0, 3.0, 3.0 + np.log(2), [0.5, 0.5]),
    ]  # fmt: skip
    for a, b, value, shares in cases:
        x, y = (rt.tensor(v, dtype=rt.float64, device=device).require_grad() for v in (a, b))
        z = rt.logaddexp(x, y)
        found = z.backward()
        close(z, value)
        close([found[x].item(), found[y].item()], shares)
    x = rt.tensor([nan, inf, nan], device=device)
    assert np.isnan(rt.logaddexp(x, rt.tensor([inf, nan, nan], device=device)).numpy()).all()
    close(ra.grad(ra.grad(lambda x: rt.logaddexp(x, 3.0)))(rt.tensor(3.0, dtype=rt.float64, device=device)), 0.25)


def test_hypot_and_atan2_at_the_origin_and_far_out(device):
    for name in ("hypot", "atan2"):
        f = getattr(rt, name)
        x, y = (rt.tensor([0.0, 3.0], dtype=rt.float32, device=device).require_grad() for _ in range(2))
        found = rt.sum(f(x, y * 0.0 + y)).backward()
        assert found[x].numpy()[0] == 0 and found[y].numpy()[0] == 0
        x, y = (rt.tensor([v], dtype=rt.float32, device=device).require_grad() for v in (3e30, 4e30))
        found = f(x, y).backward()
        assert np.isfinite(found[x].numpy()).all() and np.isfinite(found[y].numpy()).all()
    close(gradient(lambda x: rt.hypot(x, 4e30), [3e30], device), [0.6])
    close(gradient(lambda x: rt.hypot(x, 4e-30), [3e-30], device), [0.6])
    close(gradient(lambda x: rt.atan2(x, 4e-3), [3e-3], device), [160.0])


def test_singular_slopes_are_those_that_the_docstrings_say(device):
    assert gradient(rt.sqrt, [0.0], device)[0] == inf
    assert gradient(rt.rsqrt, [0.0], device)[0] == -inf
    assert gradient(rt.log, [0.0], device)[0] == inf
    assert gradient(rt.acosh, [1.0], device)[0] == inf
    for end in (1.0, -1.0):
        assert gradient(rt.asin, [end], device)[0] == inf
        assert gradient(rt.acos, [end], device)[0] == -inf
        assert gradient(rt.atanh, [end], device)[0] == inf


def test_slopes_do_not_lose_digits(device):
    x = 1.0 - 1e-12
    close(gradient(rt.asin, [x], device, rt.float64), [1 / np.sqrt((1 - x) * (1 + x))], rtol=1e-12)
    close(gradient(rt.atanh, [x], device, rt.float64), [1 / ((1 - x) * (1 + x))], rtol=1e-12)
    close(gradient(rt.expm1, [-40.0], device, rt.float64), [np.exp(-40.0)], rtol=1e-12)
    close(gradient(rt.asinh, [1e200], device, rt.float64), [1e-200], rtol=1e-12)
    close(gradient(rt.erfc, [10.0], device, rt.float64), [-2 / np.sqrt(np.pi) * np.exp(-100.0)], rtol=1e-12)


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "logaddexp"])
def test_half_types_compute_in_float32(name, device):
    values = np.linspace(0.1, 4.0, 50)
    for dtype in (rt.float16, rt.bfloat16):
        x = rt.tensor(values, dtype=dtype, device=device)
        args = (x, x * 0.5) if name == "logaddexp" else (x,)
        wide = getattr(rt, name)(*[a.astype(rt.float32) for a in args]).astype(dtype)
        assert np.array_equal(getattr(rt, name)(*args).numpy(), wide.numpy())


@pytest.mark.parametrize("name", "exp log sqrt tanh sin erf rsqrt log1p asinh hypot atan2".split())
def test_gradients_agree_with_pytorch(name):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.2, 3.0, (3, 4)) for _ in range(2 if name in ("hypot", "atan2") else 1)]
    ours = [rt.tensor(a, device=CPU).require_grad() for a in arrays]
    found = rt.sum(rt.exp(getattr(rt, name)(*ours))).backward()
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    torch.exp(getattr(torch, name)(*theirs)).sum().backward()
    for x, t in zip(ours, theirs, strict=True):
        close(found[x], t.grad.numpy(), rtol=1e-10)


def test_references_of_scipy_hold_for_erf():
    x = np.linspace(-3, 3, 101)
    close(rt.erf(rt.tensor(x, device=CPU)), sp.erf(x), rtol=1e-14)


@pytest.mark.parametrize("name, factor", [("asin", 1.0), ("acos", -1.0), ("atanh", 2.0)])
@pytest.mark.parametrize("dtype, rtol", [(rt.float32, 1e-6), (rt.float64, 1e-14)], ids=str)
def test_second_derivatives_keep_the_digits_of_a_small_argument(name, factor, dtype, rtol, device):
    small = np.array([1e-20, -1e-12, 1e-6, 1e-4])
    x = rt.tensor(small, dtype=dtype, device=device)
    found = ra.hessian(lambda x: getattr(rt, name)(x).sum())(x).numpy().diagonal()
    power = 2.0 if name == "atanh" else 1.5
    np.testing.assert_allclose(found, factor * small / (1 - small**2) ** power, rtol=rtol)
