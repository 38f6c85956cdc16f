"""Linear maps and feed-forward parts, through the public functions, where a GPU's products have their epilogues."""
from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff.backward import backward
from ruda_tensor.kernels import blaslt, gemm
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

from ._blaslt import FakeBlasLt
from ._hooks import Case, inputs, launching, seed_of
from .test_hooks import PAIRS, agree, exact, run

SUMS = ("columns_reduce", "columns_finish")
FEED = ((4, 3, 16), (16, 40), (40,), (40, 24), (24,))
NARROW = ((5, 16), (16, 24), (24, 8))


def feed(d, x, w1, b1, w2, b2, r=None, activation="gelu_tanh"):
    return rt.feed_forward(x, w1, b1, w2, b2, activation=activation, residual=r)


CASES = {  # the kernels are those of halves, with cuBLASLt
    "linear": Case(lambda d, x, w, b: rt.linear(x, w, b), ((6, 3, 5), (5, 40), (40,)), ("matmul_bias",), SUMS),
    "linear + residual": Case(
        lambda d, x, w, b, r: rt.linear(x, w, b, residual=r), ((6, 3, 5), (5, 40), (40,), (6, 3, 40)), ("matmul_bias",), SUMS
    ),
    "linear + residual, no bias": Case(
        lambda d, x, w, r: rt.linear(x, w, residual=r), ((7, 5), (5, 9), (7, 9)), ("matmul_none",), ()
    ),
    "feed_forward": Case(
        feed, FEED, ("matmul_gelu_aux_bias", "matmul_bias"), ("activation_again", *SUMS)
    ),
    "feed_forward + residual": Case(
        feed, (*FEED, (4, 3, 24)), ("matmul_gelu_aux_bias", "matmul_bias"), ("activation_again", *SUMS)
    ),
    **{
        f"feed_forward, {kind}": Case(
            partial(feed, activation=kind), FEED, ("matmul_bias", "activation_forward"), ("activation_again", *SUMS)
        )
        for kind in ("relu", "gelu", "silu")
    },
    "feed_forward, no bias": Case(
        lambda d, x, w1, w2: rt.feed_forward(x, w1, None, w2, None), NARROW, ("matmul_gelu_aux", "matmul_none"),
        ("activation_again",),
    ),
    "feed_forward of odd width": Case(
        feed, ((5, 6), (6, 33), (33,), (33, 40), (40,)), ("matmul_bias", "activation_forward"),
        ("activation_again", *SUMS),
    ),
}  # fmt: skip


SQUARE = Case(feed, ((5, 8), (8, 8), (8,)), (), ())


class Shadow(SimpleNamespace):
    """NumPy as an array module that is not the CPU's, so that operations take their way for a GPU."""

    __name__ = "numpy"

    def __getattr__(self, name):
        return getattr(np, name)


@pytest.fixture(params=["no library", "library", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with ExitStack() as stack:
        device = stack.enter_context(launching("cuda" if request.param == "cuda" else "shim", monkeypatch))
        if request.param == "library":
            monkeypatch.setattr(rt.Cpu, "xp", Shadow())
            stack.enter_context(blaslt.substitute(FakeBlasLt()))
        yield device


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, rt.float16, rt.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_pairing_is_right(name, place, dtype):
    case = CASES[name]
    tensors = inputs(case, dtype, place)
    expected = exact(case, tensors)
    with_library = blaslt.machine(place.xp) is not None
    for forward, then in PAIRS:
        found, ahead, behind = run(case, tensors, forward, then)
        if with_library and dtype in (rt.float16, rt.bfloat16):
            assert set(ahead) == set(case.forward if forward else ()), "the kernels of the forward"
            assert set(behind) == set(case.backward if then else ()), "and of the backward"
        assert [y.dtype for y in found[1:]] == [x.dtype for x in tensors] and found[0].dtype == dtype
        agree(found, expected, dtype, slack=2.0 if "feed" in name else 1.0)  # two products, each with its roundings


@pytest.mark.parametrize("name", ["linear + residual", "feed_forward + residual"])
def test_only_the_gradients_that_are_wanted_are_computed(name, place):
    case = CASES[name]
    tensors = inputs(case, rt.bfloat16, place)
    whole = run(case, tensors)[0][1:]
    for wanted in product((False, True), repeat=len(tensors)):
        if sum(wanted) in (1, 2):
            leaves = [x.require_grad() if w else x for x, w in zip(tensors, wanted, strict=True)]
            y = case.call(place, *leaves)
            found = backward(y, seed=seed_of(y))
            for x, w, g in zip(leaves, wanted, whole, strict=True):
                assert (found[x].numpy().tobytes() == g.numpy().tobytes()) if w else found.get(x) is None


def test_the_input_may_be_the_residual(place):
    x, w, b = inputs(SQUARE, rt.float32, place)
    x = x.require_grad()
    y = rt.linear(x, w, b, residual=x)
    seed = seed_of(y)
    g = backward(y, seed=seed)[x].numpy()
    np.testing.assert_allclose(g, seed.numpy() @ w.numpy().T + seed.numpy(), rtol=1e-5, atol=1e-5)


def test_unlike_dtypes_are_the_operations_one_by_one(place):
    x, w, b = inputs(SQUARE, rt.bfloat16, place)
    wide = rt.ones((5, 8), dtype=rt.float32, device=place)
    y = rt.linear(x, w, b, residual=wide)
    assert y.dtype == rt.float32 and np.array_equal(y.numpy(), (wide + rt.linear(x, w, b)).numpy())
    y = rt.feed_forward(x, w, b, w, b.astype(rt.float32), residual=wide)
    assert y.dtype == rt.float32 and np.isfinite(y.numpy()).all()


def test_nothing_and_nan_go_through(place):
    w, b = rt.ones((8, 16), dtype=rt.bfloat16, device=place), rt.ones(16, dtype=rt.bfloat16, device=place)
    back, c = rt.ones((16, 8), dtype=rt.bfloat16, device=place), rt.ones(8, dtype=rt.bfloat16, device=place)
    for shape in ((0, 8), (2, 0, 8)):
        x = rt.zeros(shape, dtype=rt.bfloat16, device=place).require_grad()
        y = rt.feed_forward(x, w, b, back, c, residual=x)
        assert y.shape == shape and rt.sum(y).backward()[x].shape == shape
    nothing = rt.linear(rt.zeros((3, 0), dtype=rt.bfloat16, device=place), w[:0], b, residual=rt.ones_like(w)[:3])
    assert (nothing.astype(rt.float32).numpy() == 2).all()
    x = np.zeros((3, 8))
    x[1, 2], x[2, 3] = np.nan, np.inf
    with np.errstate(all="ignore"):  # NumPy stands in for CuPy, which never warns
        y = rt.feed_forward(rt.tensor(x, dtype=rt.bfloat16, device=place), w, b, back, c).astype(rt.float32).numpy()
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all() and (y[2] == np.inf).all()


def test_the_setting_for_tf32_is_that_of_when_backward_runs(place, monkeypatch):
    if blaslt.machine(place.xp) is None:
        pytest.skip("no cuBLASLt here")
    seen = []
    plain = gemm._Recipe.__init__
    monkeypatch.setattr(gemm._Recipe, "__init__", lambda self, *a: (plain(self, *a), seen.append(self.problem.compute))[0])
    monkeypatch.setattr(gemm.small_product, "product", lambda *_: None)  # which is full float32 always
    monkeypatch.setattr(gemm.small_product, "fits", lambda *_: False)
    gemm._recipes.known.clear()
    x = rt.ones((8, 8), device=place).require_grad()
    with rt.use_tf32():
        y = rt.sum(rt.linear(x, x))
        assert set(seen) == {blaslt.COMPUTE_TF32}
    seen.clear()
    y.backward()
    assert set(seen) == {blaslt.COMPUTE_32F}
    gemm._recipes.known.clear()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [rt.float64, rt.float32, rt.bfloat16, rt.float16], ids=str)
@pytest.mark.parametrize("m", [1, 7, 65, 257])
def test_products_of_odd_sizes_and_misaligned_views(m, dtype):
    cp = rt.Cuda(0).xp
    rng = np.random.default_rng(m)
    unit = {8: 1e-14, 4: 2e-6, 2: 1e-2 if dtype == rt.bfloat16 else 1e-3}[dtype.itemsize]
    for k, n, shift in product((1, 7, 65, 256), (1, 8, 65, 257), (0, 1)):
        x = cp.asarray(rng.standard_normal((2, m + 1, k + 1)).astype(dtype))[:, 1:, shift : shift + k]
        y = cp.asarray(rng.standard_normal((2, k, n + 1)).astype(dtype))[..., shift : shift + n]
        for a, b in ((x, y), (x[0], y[0]), (x, y[0]), (x[0], y), (y.swapaxes(1, 2), x.swapaxes(1, 2))):
            found = gemm.matmul(cp, a, b)
            e = cp.asnumpy(a).astype(float) @ cp.asnumpy(b).astype(float)
            assert np.abs(cp.asnumpy(found).astype(float) - e).max() <= unit * (1 + np.abs(e).max()), (k, n, shift)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [rt.float64, rt.float32, rt.bfloat16, rt.float16], ids=str)
def test_the_older_interface_has_the_same_products(dtype, monkeypatch):
    cp = rt.Cuda(0).xp
    rng = np.random.default_rng(0)
    x, y = (cp.asarray(rng.integers(-3, 4, shape).astype(dtype)) for shape in ((3, 33, 65), (3, 65, 17)))
    pairs = [(x, y), (x, y[0]), (x[0, ::2], y), (y.swapaxes(1, 2), x.swapaxes(1, 2)), (x[:, :0], y), (x[..., :0], y[:, :0])]
    expected = [gemm.matmul(cp, a, b, rt.float32 if dtype.itemsize == 2 else None) for a, b in pairs]
    monkeypatch.setitem(blaslt._found, "cupy", None)
    for (a, b), e in zip(pairs, expected, strict=True):
        found = gemm.matmul(cp, a, b, e.dtype)
        assert found.dtype == e.dtype and np.array_equal(cp.asnumpy(found), cp.asnumpy(e)), "integers are exact in both"


@pytest.mark.gpu
def test_a_captured_graph_has_its_workspace_and_replays_the_same_bits():
    cp = rt.Cuda(0).xp
    rng = np.random.default_rng(0)
    x, w1, w2 = (cp.asarray(rng.standard_normal(s).astype(rt.bfloat16)) for s in ((512, 768), (768, 3072), (3072, 768)))
    b1, b2 = w1[0].copy(), w2[0].copy()

    def step():
        a, h = gemm.affine_gelu(cp, x, w1, b1)
        y = gemm.affine(cp, a, w2, b2, x)
        total = gemm.matmul(cp, x.T, h)
        assert gemm.accumulate(cp, x.T, a, total)
        return y, h, total

    expected = [cp.asnumpy(a).tobytes() for a in step()]
    for _ in range(20):
        assert [cp.asnumpy(a).tobytes() for a in step()] == expected
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    cp.cuda.Device().synchronize()
    with cp.cuda.using_allocator(pool.malloc), stream, blaslt.private_workspace(cp) as workspace:
        stream.begin_capture()
        results = step()
        graph = stream.end_capture()
    assert workspace.nbytes == blaslt.WORKSPACE
    for _ in range(3):
        for a in results:
            a.fill(float("nan"))
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert [cp.asnumpy(a).tobytes() for a in results] == expected


@pytest.mark.gpu
def test_hits_count_what_cublaslt_did_and_use_fused_turns_it_off():
    device = rt.Cuda(0)
    x = rt.ones((8, 8), dtype=rt.bfloat16, device=device)
    HITS.clear()
    rt.linear(x, x, x[0])
    assert HITS == {"matmul_bias": 1}
    with use_fused(False):
        rt.linear(x, x, x[0])
    assert HITS == {"matmul_bias": 1}
