"""Copies by kernels: the bits of NumPy's, for every dtype, layout and alignment."""
from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import copies
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

from . import _cases as cases
from ._hooks import launching
from ._shim import ALL, COMPILER, on_shim

FLOATS = (FLOAT32, FLOAT16, BFLOAT16)


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


def every_number(dtype):
    """All halves, or float32 of all exponents, with the middles between halves, infinities and NaN."""
    if dtype != FLOAT32:
        return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(dtype)
    bits = np.arange(0, 2**32, 4097 * 8, dtype=np.uint32)
    middles = np.arange(0, 2**32, 2**21, dtype=np.uint32)
    near = np.concatenate([middles + d for d in (0, 2**12, 2**12 - 1, 2**12 + 1, 2**15, 2**15 - 1, 2**15 + 1)])
    x = np.concatenate([bits, near]).view(np.float32)
    return x[(np.abs(x) >= 2.0**-126) | (x == 0) | np.isnan(x)]  # kernels count smaller ones as 0


@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_casts_of_every_number(place, source, target):
    xp = cases.Poisoned(place.xp)
    x = every_number(source)
    with np.errstate(all="ignore"):
        expected = x.astype(np.float32).astype(target)
    for shift in (0, 1):
        found = copies.cast(xp, cases.put(xp, x, shift), target)
        if source == target:
            assert found is None
            continue
        found, nan = backend.to_host(found), np.isnan(expected.astype(np.float32))
        assert found.dtype == target and np.isnan(found[nan].astype(np.float32)).all()
        assert found[~nan].tobytes() == expected[~nan].tobytes()
    for size in (1, 7, 4097):
        assert backend.to_host(copies.cast(xp, cases.put(xp, x[:size]), FLOAT32 if source != FLOAT32 else FLOAT16)).size == size
    xp.check()


def test_what_is_no_cast_between_these_is_declined(place):
    xp = place.xp
    for x, target in ((xp.zeros(3, FLOAT64), FLOAT32), (xp.zeros(3, np.int32), FLOAT16), (xp.zeros(0, FLOAT32), FLOAT16),
                      (xp.zeros(3, FLOAT32), np.dtype(np.int32)), (xp.zeros(3, FLOAT32), FLOAT64)):  # fmt: skip
        assert copies.cast(xp, x, target) is None
    with use_fused(False):
        assert copies.cast(xp, xp.zeros(3, FLOAT32), FLOAT16) is None


def test_astype_runs_the_kernel(place):
    before = Counter(HITS)
    x = rt.tensor([[1.0, 2.5], [3.0, -4.0]], dtype=rt.float32, device=place).require_grad()
    y = x.mT.astype(rt.bfloat16)
    assert y.astype(rt.float32).tolist() == [[1.0, 3.0], [2.5, -4.0]]
    g = rt.sum(y * 2.0).backward()[x]
    assert (Counter(HITS) - before)["cast"] >= 2 and g.dtype == rt.float32 and g.tolist() == [[2.0, 2.0]] * 2


DTYPES = [np.dtype(np.uint8), FLOAT16, FLOAT32, FLOAT64]


def check(xp, base, view):
    """The copy of `view(base)` has NumPy's bits."""
    expected = np.ascontiguousarray(view(base))
    found = copies.straight(xp, view(xp.asarray(base) if xp.__name__ != "numpy" else base))
    assert found.flags.c_contiguous and found.shape == expected.shape and found.dtype == expected.dtype
    assert backend.to_host(found).tobytes() == expected.tobytes()


VIEWS = {
    "transposed": lambda a: a.reshape(a.shape[0], -1).T,
    "last two": lambda a: a.swapaxes(-1, -2),
    "heads": lambda a: a.swapaxes(1, 2),
    "reversed axes": lambda a: a.transpose(3, 2, 1, 0),
    "first to last": lambda a: a.transpose(1, 2, 3, 0),
    "a part of each row": lambda a: a[..., 1:],
    "a part, transposed": lambda a: a[..., 1:, 1:].swapaxes(-1, -2),
    "every other row": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1],
    "last axis backwards": lambda a: a[..., ::-1],
    "every other number": lambda a: a[..., ::2],
    "read twice": lambda a: a[:, [0]].swapaxes(0, 1)[:, :, 1:],
}
SHAPES = [(3, 5, 4, 16), (2, 33, 3, 8), (1, 70, 1, 66), (2, 3, 5, 7), (1, 1, 1, 1), (5, 1, 1, 3)]


@pytest.mark.parametrize("view", VIEWS)
def test_copies_of_views(place, rng, view):
    for shape in SHAPES:
        for dtype in DTYPES if ALL or place.kind != "cpu" else DTYPES[1:3]:
            base = (rng.standard_normal(shape) * 100).astype(np.int8).astype(dtype)
            check(place.xp, base, VIEWS[view])


@pytest.mark.skipif(COMPILER is None, reason="no g++ to run the CUDA sources with")
@settings(max_examples=60 if ALL else 12)
@given(st.permutations(range(4)), st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(0, 2), st.sampled_from([2, 4]))
def test_any_order_of_axes(order, shape, cut, width):
    with on_shim():
        base = np.arange(int(np.prod(shape)), dtype=np.uint16 if width == 2 else np.uint32).reshape(shape)
        check(np, base, lambda a: a.transpose(order)[..., min(cut, a.shape[order[-1]] - 1) :])


def test_which_kernel_copies(place):
    xp = place.xp
    x = xp.zeros((64, 6, 32), FLOAT32)
    for view, kernel in ((x.swapaxes(0, 1), "permute_rows"), (x.swapaxes(1, 2), "permute_tiles"), (x[..., :7], "permute_rows")):
        before = Counter(HITS)
        copies.straight(xp, view)
        assert Counter(HITS) - before == {kernel: 1}
    before = Counter(HITS)
    assert copies.straight(xp, x) is x
    with use_fused(False):
        copies.straight(xp, x.swapaxes(0, 1))
    copies.straight(xp, x[..., ::2])
    assert not Counter(HITS) - before


def test_a_reshape_copies_by_a_kernel_only_where_it_must(place, rng):
    data = rng.standard_normal((2, 6, 4, 8)).astype(np.float32)
    x = rt.tensor(data, device=place)
    for order, shape, kernel in (
        ((0, 2, 1, 3), (2, 4, 48), "permute_rows"),
        ((0, 2, 1, 3), (8, 6, 8), "permute_rows"),
        ((0, 2, 1, 3), (2, 2, 2, 6, 8), None),
        ((0, 1, 3, 2), (-1,), "permute_tiles"),
        ((2, 3, 0, 1), (32, 12), None),
        ((2, 3, 0, 1), (4, 8, 12), None),
    ):
        view = rt.permute_dims(x, order)
        before = Counter(HITS)
        found = rt.reshape(view, shape)
        expected = data.transpose(order).reshape(shape)
        ran = Counter(HITS) - before
        assert found.shape == expected.shape and found.numpy().tobytes() == expected.tobytes()
        assert set(ran) == ({kernel} if kernel else set()), (order, shape, ran)


@pytest.mark.gpu
def test_large_transposes(rng):
    rt.Cuda(0)
    cp = backend.cupy()
    for dtype in (FLOAT16, FLOAT32):
        for shape in ((1000, 1002), (4097, 513), (1 << 16, 64)):
            a = cp.asarray(rng.standard_normal(shape).astype(dtype))
            assert backend.to_host(copies.straight(cp, a.T)).tobytes() == np.ascontiguousarray(backend.to_host(a).T).tobytes()
