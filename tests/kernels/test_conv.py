"""Convolutions, batch_norm and max_pool2d by kernels: against float64, in every pairing with the plain bodies, and bit by bit."""
from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import record
from ruda_autodiff.backward import backward
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import batch_norm, conv, pool
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS
from ruda_tensor.ops import pool as plain_pool

from . import _cases as cases
from . import _convs as convs
from ._blaslt import on_fake
from ._hooks import launching, seed_of

PAIRS = list(product((True, False), repeat=2))
UNIT = {rt.float64: 1e-12, rt.float32: 4e-6, rt.float16: 3e-3, rt.bfloat16: 2.4e-2}
DTYPES = [FLOAT32, BFLOAT16, FLOAT16, FLOAT64]


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device, products(request.param):
        yield device


@contextmanager
def products(kind):
    """The GPU's matrix products, or a stand-in beside the shim."""
    if kind == "cuda":
        yield
    else:
        with on_fake():
            yield


@pytest.fixture
def xp(place):
    poisoned = cases.Poisoned(place.xp)
    yield poisoned
    poisoned.check()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", convs.CONVS)
def test_convolutions_and_both_adjoints(xp, rng, name, dtype):
    convs.convolution(xp, rng, dtype, convs.CONVS[name])
    convs.convolution(xp, rng, dtype, convs.CONVS[name], shift=1, bias=False)


@pytest.mark.parametrize("name", ["3x3", "three channels in, fewer out", "groups", "stride 2", "many rows of columns"])
def test_images_in_chunks_give_the_same(xp, rng, name, monkeypatch):
    for dtype in (FLOAT32, FLOAT16):
        monkeypatch.setattr(conv, "CHUNK", 1)
        convs.convolution(xp, rng, dtype, convs.CONVS[name])
        monkeypatch.setattr(conv, "CHUNK", 2 * 4 * 8 * 9 * 64)
        convs.convolution(xp, rng, dtype, convs.CONVS[name])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 16), (3, 2, 64), (1, 5, 17), (7, 3, 33), (5, 9, 1200), (40, 2, 520)])
def test_batch_norm(xp, rng, shape, dtype):
    for weights in ("same", "real", "none"):
        convs.batch(xp, rng, dtype, shape, weights=weights)
    convs.batch(xp, rng, dtype, shape, shift=1, needs=False)


def test_batch_norm_far_from_zero_and_of_constants(xp, rng):
    found = convs.batch(xp, rng, FLOAT32, (6, 3, 640), offset=3e4)
    assert np.isfinite(cases.wide(found[3])).all()
    x = cases.put(xp, np.full((4, 2, 64), 12345.678, np.float32))
    m, shift, variance = batch_norm.moments(xp, x)
    out, _ = batch_norm.forward(xp, x, None, None, m, shift, variance, eps=1e-5)
    assert (cases.wide(variance) <= 1e-6).all() and (np.abs(cases.wide(out)) <= 1e-3).all()


def test_a_nan_or_an_inf_spoils_its_own_channel(xp):
    x = np.random.default_rng(0).standard_normal((3, 3, 32)).astype(np.float32)
    x[1, 0, 5], x[2, 2, 7] = np.nan, np.inf
    x = cases.put(xp, x)
    out = cases.wide(batch_norm.forward(xp, x, None, None, *batch_norm.moments(xp, x), eps=1e-5)[0])
    assert np.isnan(out[:, [0, 2]]).all() and np.isfinite(out[:, 1]).all()


POOLS = {
    "2 by 2": ((2, 3, 8, 8), ((2, 2, 1, 0), (2, 2, 1, 0)), (4, 4)),
    "3 by 3, stride 2, padded": ((2, 9, 11), ((3, 2, 1, 1), (3, 2, 1, 1)), (5, 6)),
    "overlapping": ((3, 7, 12), ((3, 1, 1, 0), (2, 1, 1, 1)), (5, 13)),
    "dilated": ((2, 9, 16), ((2, 2, 3, 1), (3, 1, 2, 2)), (4, 16)),
    "beyond the end": ((1, 2, 5, 5), ((2, 2, 1, 0), (2, 2, 1, 0)), (3, 3)),
    "gaps": ((2, 8, 8), ((2, 3, 1, 0), (1, 4, 1, 0)), (3, 2)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", POOLS)
def test_max_pool(xp, rng, name, dtype):
    shape, windows, counts = POOLS[name]
    g = cases.draw(rng, (*shape[:-2], *counts), dtype)
    convs.pool_case(xp, cases.draw(rng, shape, dtype), g, windows, counts)
    ties = rng.integers(-1, 2, shape).astype(dtype)
    convs.pool_case(xp, ties, g, windows, counts, shift=1)
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0], shape, p=[0.1, 0.1, 0.4, 0.2, 0.2]).astype(dtype)
    convs.pool_case(xp, special, g, windows, counts)
    static = {"windows": windows, "counts": counts, "size": shape[-2:]}
    for array in (ties, special):  # the plain body keeps the same, of which halves arrive widened
        plain, taps = plain_pool._max2_forward(np, array.astype(float), **static)
        found, found_taps = pool.max_forward(xp, cases.put(xp, array), **static)
        assert np.array_equal(cases.wide(found), plain, equal_nan=True)
        assert np.array_equal(backend.to_host(found_taps), taps)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("name", [name for name in POOLS if name != "dilated"])
def test_avg_pool(xp, rng, name, include, dtype):
    shape, windows, counts = POOLS[name]
    windows = tuple((k, s, 1, p) for k, s, _, p in windows)
    for shift in (0, 1):
        x, g = cases.draw(rng, shape, dtype), cases.draw(rng, (*shape[:-2], *counts), dtype)
        convs.means(xp, x, g, windows, counts, include, shift)


def net(x, w, b, scale, bias):
    """A convolution, a normalization and a pooling."""
    y = rt.conv2d(x, w, b, padding=1)
    y, _, _ = rt.batch_norm(y, None, None, scale, bias, training=True)
    return rt.max_pool2d(y, 2, padding=1)


SHAPES = ((3, 3, 7, 8), (5, 3, 3, 3), (5,), (5,), (5,))
FORWARD = {"conv_columns", "batch_moments", "batch_moments_finish", "batch_norm_forward", "max_pool_forward"}
BACKWARD = {"max_pool_backward", "batch_norm_backward", "batch_sums", "columns_finish", "conv_columns", "conv_images",
            "columns_reduce"}  # fmt: skip


def run(tensors, forward, then, order=1):
    leaves = [x.require_grad() for x in tensors]
    before = Counter(HITS)
    with use_fused(forward), record(order=order):
        y = net(*leaves)
    ahead = Counter(HITS) - before
    before = Counter(HITS)
    with use_fused(then):
        found = backward(y, seed=seed_of(y))
    return [y.detach(), *[found[x] for x in leaves]], set(ahead), set(Counter(HITS) - before)


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, pytest.param(rt.float16, marks=pytest.mark.gpu)], ids=str)
def test_every_pairing_is_right(place, dtype):
    rng = np.random.default_rng(3)
    tensors = [rt.tensor(rng.standard_normal(s), dtype=dtype, device=place) for s in SHAPES]
    with use_fused(False):
        expected = run([x.astype(rt.float64) for x in tensors], False, False, order=2)[0]
    for forward, then in PAIRS:
        found, ahead, behind = run(tensors, forward, then)
        assert ahead - {"cast"} == (FORWARD if forward else set())
        if then:
            assert behind >= BACKWARD - {"permute_rows", "columns_reduce"}
        else:
            assert not behind - {"cast"}
        if dtype != rt.float32 and forward is False:
            continue  # the plain bodies round between the steps, and other windows win
        for i, (a, e) in enumerate(zip(found, expected, strict=True)):
            a, e = a.astype(rt.float64).numpy(), e.numpy()
            if dtype == rt.float32:
                assert np.abs(a - e).max() <= 64 * UNIT[dtype] * np.abs(e).max() + 1e-4, (i, forward, then)


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
def test_each_operation_in_every_pairing(place, dtype):
    rng = np.random.default_rng(4)
    x, w, b, v = (rt.tensor(rng.standard_normal(s), dtype=dtype, device=place) for s in ((3, 3, 7, 8), (5, 3, 3, 3), (5,), (3,)))
    back = rt.tensor(rng.standard_normal((3, 5, 7, 8)), dtype=dtype, device=place)
    calls = {
        "conv2d": (lambda x, w, b: rt.conv2d(x, w, b, padding=1), (x, w, b)),
        "conv_transpose2d": (lambda y, w, b: rt.conv_transpose2d(y, w, b, padding=1), (back, w, v)),
        "conv1d": (lambda x, w, b: rt.conv1d(x, w, b, stride=2), (x[:, :, 0], w[:, :, 0], b)),
        "batch_norm": (lambda x, s, b: rt.batch_norm(x, None, None, s, b, training=True)[0], (x, v, v)),
        "batch_norm, bare": (lambda x: rt.batch_norm(x, training=True)[0], (x,)),
        "avg_pool2d": (lambda x: rt.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True), (x,)),
        "avg_pool2d, padding left out": (lambda x: rt.avg_pool2d(x, (2, 3), padding=1, count_include_pad=False), (x,)),
        "max_pool2d": (lambda x: rt.max_pool2d(x, 3, stride=2, padding=1), (x,)),
    }  # fmt: skip
    for name, (call, inputs) in calls.items():
        with use_fused(False):
            wide = [a.astype(rt.float64).require_grad() for a in inputs]
            with record(order=2):
                y = call(*wide)
            g = backward(y, seed=seed_of(y))
            expected = [y.detach(), *[g[a] for a in wide]]
        for forward, then in PAIRS:
            leaves = [a.require_grad() for a in inputs]
            with use_fused(forward):
                y = call(*leaves)
            with use_fused(then):
                g = backward(y, seed=seed_of(y))
            for i, (a, e) in enumerate(zip([y.detach(), *[g[a] for a in leaves]], expected, strict=True)):
                assert a.dtype == dtype, (name, i)
                a, e = a.astype(rt.float64).numpy(), e.numpy()
                assert np.abs(a - e).max() <= 4 * UNIT[dtype] * np.abs(e).max(), (name, i, forward, then)


def test_running_statistics_are_those_of_the_plain_body(place):
    x = rt.tensor(np.random.default_rng(1).standard_normal((4, 3, 5, 6)) + 7, dtype=rt.float32, device=place)
    found = []
    for on in (True, False):
        with use_fused(on):
            mean, var = rt.zeros(3, device=place), rt.ones(3, device=place)
            found.append([a.numpy() for a in rt.batch_norm(x, mean, var, training=True) if a is not None])
    for a, e in zip(*found, strict=True):
        assert np.allclose(a, e, rtol=1e-5, atol=1e-5)


def test_every_run_gives_the_same_bits(xp):
    for dtype in (FLOAT32, BFLOAT16):
        first = None
        for _ in range(3):
            rng = np.random.default_rng(5)
            found = convs.each(xp, rng, dtype)
            bits = [backend.to_host(a).tobytes() for a in found]
            assert first is None or bits == first
            first = bits


def test_what_the_kernels_do_not_take_goes_to_the_plain_bodies(place):
    before = Counter(HITS)
    x = rt.tensor(np.random.default_rng(0).standard_normal((2, 3, 4, 3)), dtype=rt.float32, device=place)
    with use_fused(False):
        rt.conv2d(x, rt.ones((2, 3, 3, 3), device=place))
    assert rt.conv2d(x[:0], rt.ones((2, 3, 3, 3), device=place)).shape == (0, 2, 2, 1)
    rt.batch_norm(x[:, :, 0, 0], training=True)
    assert rt.max_pool2d(rt.tensor([[1, 2], [3, 4]], device=place), 2).tolist() == [[4]]
    assert rt.max_pool2d(x[:0], 2).shape == (0, 3, 2, 1)
    assert not set(Counter(HITS) - before) & (FORWARD | {"max_pool_forward"})


def test_second_derivatives_of_convolutions_run_the_kernels_too(place):
    rng = np.random.default_rng(2)
    shapes = (2, 2, 5, 6), (3, 2, 3, 3)
    x, w = (rt.tensor(rng.standard_normal(s), dtype=rt.float64, device=place).require_grad() for s in shapes)
    found = []
    for on in (True, False):
        with use_fused(on):
            with record(order=2):
                y = rt.sum(rt.square(rt.conv2d(x, w, padding=1)))
            g = y.backward(order=2)
            second = rt.sum(g[x] * rt.cos(x)).backward()
            found.append([second[x].numpy(), second[w].numpy()])
    for a, e in zip(*found, strict=True):
        assert np.allclose(a, e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [(0, 6), (6, 0)])
def test_images_without_area_are_declined(xp, size):
    """As the gradient of a convolution of padding alone has them."""
    y, w = xp.ones((2, 3, 8, 8), np.float32), xp.ones((3, 4, 3, 3), np.float32)
    static = {"low": (2, 2), "dilation": (1, 1), "groups": 1}
    for stride in ((1, 1), (2, 2)):
        assert conv.transpose(xp, y, w, None, size=size, stride=stride, **static) is None
