"""The rotary kernel against complex numbers in float64, on the layouts that heads come in."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import record
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import rotary
from ruda_tensor.kernels.gate import real_of, use_fused
from ruda_tensor.kernels.launch import HITS

from . import _cases as cases
from ._hooks import launching
from ._shim import ALL


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.fixture
def xp(place):
    poisoned = cases.Poisoned(place.xp)
    yield poisoned
    poisoned.check()


def turned(x, angles, turn):
    half = angles.shape[1]
    pairs = (x[..., :half] + 1j * x[..., half : 2 * half]) * np.exp(turn * 1j * angles)
    return np.concatenate([pairs.real, pairs.imag, x[..., 2 * half :]], axis=-1)


def tables(angles, dtype):
    return [f(angles).astype(real_of(dtype)) for f in (np.cos, np.sin)]


def check(xp, rng, dtype, x, half, shift=0):
    """Both directions, x as it lies in memory."""
    angles = rng.uniform(-3, 3, (x.shape[-2], half))
    cosines, sines = (cases.put(xp, a, shift) for a in tables(angles, dtype))
    X = cases.wide(x)
    for turn in (1, -1):
        found = rotary.rotary(xp, x, cosines, sines, turn)
        assert found.flags.c_contiguous
        cases.close(found, turned(X, angles, turn), slack=4, scale=np.abs(X).max(), name=f"turn {turn}")
        rest = [np.ascontiguousarray(backend.to_host(a)[..., 2 * half :]).tobytes() for a in (found, x)]
        assert rest[0] == rest[1]


# (outer, heads, positions, width, half): GPT's, odd ones, one of each, more heads than a thread takes, a rest.
SHAPES = [(2, 3, 5, 64, 32), (1, 1, 1, 2, 1), (3, 4, 70, 8, 4), (1, 9, 3, 40, 8), (2, 5, 1, 7, 3), (1, 2, 300, 33, 16),
          (1, 1, 2, 520, 256)]  # fmt: skip


@pytest.mark.parametrize("dtype", cases.DTYPES if ALL else (FLOAT32, BFLOAT16), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_in_every_layout(xp, rng, dtype, shape):
    outer, heads, length, width, half = shape
    made = cases.put(xp, cases.draw(rng, (outer, heads, length, width), dtype))
    check(xp, rng, dtype, made, half)
    check(xp, rng, dtype, cases.put(xp, cases.draw(rng, (outer, heads, length, width), dtype), 1), half, shift=1)
    tall = cases.put(xp, cases.draw(rng, (outer, length, heads, width), dtype))
    check(xp, rng, dtype, tall.transpose(0, 2, 1, 3), half)
    packed = cases.put(xp, cases.draw(rng, (outer, length, 3 * heads * width), dtype))  # q, k and v side by side
    keys = packed[..., heads * width : 2 * heads * width].reshape(outer, length, heads, width)
    check(xp, rng, dtype, keys.transpose(0, 2, 1, 3), half)
    check(xp, rng, dtype, made[:, ::-1, ::-1], half)
    check(xp, rng, dtype, made[..., ::-1], half)
    check(xp, rng, dtype, xp.broadcast_to(made[:, :1], made.shape), half)


def test_any_number_of_leading_axes(xp, rng):
    for shape in ((5, 8), (3, 5, 8), (2, 3, 2, 2, 5, 8)):
        check(xp, rng, FLOAT32, cases.put(xp, cases.draw(rng, shape, FLOAT32)), 4)


def test_what_is_declined_goes_to_the_plain_body(xp):
    x, table = xp.ones((2, 3, 4), np.float32), xp.ones((3, 2), np.float64)
    assert rotary.rotary(xp, x, table, table, 1) is None, "tables of another dtype"
    assert rotary.rotary(xp, x, table[:, :0].astype(np.float32), table[:, :0].astype(np.float32), 1) is None
    assert rotary.rotary(xp, x[:0], table.astype(np.float32), table.astype(np.float32), 1) is None


def test_nan_and_inf_stay_in_their_pair(xp):
    x = np.ones((2, 1, 4), np.float32)
    x[0, 0, 1], x[1, 0, 2] = np.nan, np.inf
    tables = xp.asarray(np.full((1, 2), 0.5, np.float32))
    found = backend.to_host(rotary.rotary(xp, xp.asarray(x), tables, tables, 1))
    assert np.isnan(found[0, 0]).tolist() == [False, True, False, True]
    assert found[1, 0].tolist() == [-np.inf, 0, np.inf, 1]


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, rt.float64], ids=str)
def test_fused_and_plain_agree_and_the_second_derivative_has_no_kernel(place, dtype, rng):
    x = rt.tensor(rng.standard_normal((2, 3, 5, 12)), dtype=dtype, device=place)
    angles = rng.uniform(-3, 3, (5, 4))
    cosines, sines = (rt.tensor(a, device=place) for a in tables(angles, np.dtype(dtype)))
    HITS.clear()
    found = rt.rotary(x, cosines, sines).astype(rt.float64).numpy()
    assert HITS["rotary"] == 1
    with use_fused(False):
        plain = rt.rotary(x, cosines, sines).astype(rt.float64).numpy()
    unit = {rt.float32: 1e-6, rt.bfloat16: 8e-3, rt.float64: 1e-14}[dtype]
    assert np.abs(found - plain).max() <= unit * np.abs(plain).max()
    leaf = x.astype(rt.float64).require_grad()
    HITS.clear()
    with record(order=2):
        y = rt.sum(rt.rotary(leaf, *[rt.tensor(a, device=place) for a in tables(angles, FLOAT64)]) ** 2)
    g = leaf.grad(y.backward(order=2))
    second = leaf.grad(rt.sum(g * g).backward()).numpy()
    np.testing.assert_allclose(second, 8 * leaf.numpy(), rtol=1e-12)
    assert not HITS, "a rotation keeps lengths: sum(y^2) is sum(x^2)"


def test_wrong_tables_are_refused(place):
    x = rt.ones((2, 3, 4), device=place)
    for cosines, sines, words in (
        ((3, 2), (3, 1), r"cosines \(3, 2\) and sines \(3, 1\) must both be"),
        ((2, 2), (2, 2), r"tables \(2, 2\) turn 4 features of 2 positions, and x is \(2, 3, 4\)"),
        ((3, 3), (3, 3), "turn 6 features"),
        ((3,), (3,), "must both be"),
    ):
        with pytest.raises(ValueError, match=words):
            rt.rotary(x, rt.ones(cosines, device=place), rt.ones(sines, device=place))
    assert rt.rotary(x[:0], rt.ones((3, 2), device=place), rt.ones((3, 2), device=place)).shape == (0, 3, 4)
    assert FLOAT64 == rt.rotary(x.astype(rt.float64), rt.ones((3, 2), device=place), rt.ones((3, 2), device=place)).dtype
