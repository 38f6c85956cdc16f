"""Attention on tensor cores: on the CPU through the shim, and on a GPU."""
from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import record
from ruda_autodiff.backward import backward
from ruda_nn import MultiHeadAttentionConfig
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ruda_tensor.kernels import attention
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS
from ruda_tensor.ops import _attend
from ruda_tensor.ops._packed import packed_attention

from . import _cases as cases
from ._attention import Case, check, compare, exact, inputs, place, run, taken
from ._hooks import launching
from ._shim import ALL, COMPILER, RUNTIME, on_shim

PLACES = ["shim", pytest.param("cuda", marks=pytest.mark.gpu)]
# Tails of every kind, one query or key, queries that see no key, shared heads.
CASES = [
    Case(1, 1, 1, 1, 1, 64, True), Case(2, 2, 1, 7, 7, 64, True, "packed"), Case(1, 2, 2, 65, 65, 64, False),
    Case(1, 2, 1, 129, 129, 64, True, "packed"), Case(1, 1, 1, 5, 130, 64, True), Case(1, 4, 2, 130, 5, 64, True, "heads"),
    Case(1, 4, 2, 66, 66, 32, True, "packed"), Case(2, 1, 1, 34, 70, 88, True), Case(1, 2, 2, 33, 9, 8, False, "heads"),
    Case(1, 1, 1, 64, 64, 128, True, "packed"), Case(1, 2, 1, 70, 127, 128, True), Case(1, 2, 2, 127, 70, 128, False, "shifted"),
]  # fmt: skip
SIZES = [1, 7, 64, 65, 127, 128, 129, 200, 511]


@pytest.fixture(params=PLACES)
def xp(request):
    if request.param == "cuda":
        rt.Cuda(0)
        poisoned = cases.Poisoned(backend.cupy())
        yield poisoned
        poisoned.check()
    elif COMPILER is None:
        pytest.skip("no g++ to run the CUDA sources with")
    else:
        with on_shim():
            poisoned = cases.Poisoned(np)
            yield poisoned
            poisoned.check()


@pytest.fixture(params=PLACES)
def device(request, monkeypatch):
    with launching(request.param, monkeypatch) as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_agrees_with_float64(xp, rng, case):
    check(xp, rng, BFLOAT16, case)
    if ALL or (case.layout == "packed" and case.t in (7, 64)):
        check(xp, rng, FLOAT16, case)


@pytest.mark.parametrize("d", attention.HEADS)
def test_scores_that_grow_from_key_to_key(xp, rng, d):
    """The running sums are rescaled more than once, and some rows end with one key that has all of the weight."""
    case = Case(1, 2, 1, 33, 300, d, False)
    q, k, v, g = inputs(rng, case, BFLOAT16)
    k = (k * np.linspace(0.1, 20, 300)[:, None]).astype(BFLOAT16)
    values, sizes = exact(q, k, v, g, d**-0.5, False)
    assert np.ptp(values[1]) > 16, "many powers of two"
    compare(run(xp, case, [q, k, v, g]), values, sizes, BFLOAT16)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("d", attention.HEADS)
def test_every_pair_of_sizes(rng, d, dtype):
    rt.Cuda(0)
    poisoned = cases.Poisoned(backend.cupy())
    for t, n, causal in product(SIZES, SIZES, (False, True) if dtype == BFLOAT16 else (True,)):
        check(poisoned, rng, dtype, Case(2, 4, 2, t, n, d, causal, "packed" if t == n else "rows"))
        poisoned.check()
    check(poisoned, rng, dtype, Case(3, 6, 1, 1100, 1300, d, True, "heads"))
    check(poisoned, rng, dtype, Case(1, 2, 2, 2048, 2048, d, True, "packed"))


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)])
def test_only_the_gradients_that_are_asked_for(xp, rng, needs):
    check(xp, rng, BFLOAT16, Case(1, 2, 1, 40, 40, 64, True), needs)


def test_gradients_are_written_where_they_are_wanted(xp, rng):
    case = Case(2, 4, 2, 70, 70, 64, True, "packed")
    arrays = inputs(rng, case, BFLOAT16)
    q, k, v, g = place(xp, case, arrays)
    static = {"scale": 0.125, "causal": True}
    joint, wanted = xp.empty((2, 70, 8, 64), BFLOAT16).transpose(0, 2, 1, 3), xp.empty((2, 4, 70, 64), BFLOAT16)
    into = joint[:, :4], joint[:, 4:6], joint[:, 6:]
    out, lse = taken(attention.forward(xp, q, k, v, out=wanted, **static))
    found = taken(attention.backward(xp, g, q, k, v, out, lse, into=into, **static))
    assert out is wanted and all(a is b for a, b in zip(found, into))
    compare([out, lse, *into], *exact(*arrays, **static), BFLOAT16)
    assert attention.forward(xp, q, k, v, out=xp.empty((2, 4, 70, 65), BFLOAT16)[..., 1:], **static) is None


def test_a_float32_gradient_is_rounded_first(xp, rng):
    """Plain bodies hand on float32; the plain backward of attention would take many times as long."""
    case = Case(1, 1, 1, 20, 20, 64, True)
    q, k, v, g = place(xp, case, inputs(rng, case, BFLOAT16))
    out, lse = taken(attention.forward(xp, q, k, v, scale=0.125, causal=True))
    of_half, of_float = (
        taken(attention.backward(xp, a, q, k, v, out, lse, scale=0.125, causal=True)) for a in (g, g.astype(FLOAT32))
    )
    for a, b in zip(of_half, of_float):
        assert backend.to_host(a).tobytes() == backend.to_host(b).tobytes()


def test_the_joined_heads_are_a_view(xp, rng):
    out, _, dq, _, _ = check(xp, rng, BFLOAT16, Case(1, 2, 2, 9, 9, 64, False))
    assert out.transpose(0, 2, 1, 3).flags.c_contiguous and dq.transpose(0, 2, 1, 3).flags.c_contiguous


@pytest.mark.parametrize("d", attention.HEADS)
def test_inf_and_nan_reach_what_the_plain_body_lets_them_reach(xp, rng, d):
    """Without causal: what is hidden passes a NaN on or not by how the scores are cut into blocks, in either body."""
    case = Case(1, 4, 4, 40, 40, d, False)
    q, k, v, g = inputs(rng, case, BFLOAT16)
    q[0, 0, 3, 5], k[0, 1, 7, 2], v[0, 2, 11, 0], g[0, 2, 1, 1] = np.nan, np.inf, np.inf, np.nan
    k[0, 0, 9], q[0, 2, 4, 0] = 60000, np.inf
    found = run(xp, case, [q, k, v, g])
    Q, K, V, G = (a.astype(np.float32) for a in (q, k, v, g))
    static = {"scale": d**-0.5, "causal": False, "dropout": None}
    with use_fused(False):
        out, lse = _attend.attend(np, Q, K, V, None, **static)
        grads = _attend.attend_backward(np, G, Q, K, V, None, out, lse, needs=(True, True, True, False), **static)
    for name, a, b in zip(("out", "lse", "dq", "dk", "dv"), found, (out, lse, *grads)):
        assert np.array_equal(np.isnan(cases.wide(a)), np.isnan(b)), f"{name}: NaN in other places"
        assert np.isfinite(b[0, 3]).all() and np.isnan(b).any(), name


@pytest.mark.skipif(COMPILER is None, reason="no g++ to run the CUDA sources with")
@pytest.mark.parametrize("d", attention.HEADS)
def test_threads_in_the_other_order_give_the_same_bits(rng, d, monkeypatch):
    case = Case(1, 2, 1, 150, 150, d, True, "packed")
    arrays = inputs(rng, case, BFLOAT16)
    with on_shim():
        first = [a.tobytes() for a in run(np, case, arrays)]
        monkeypatch.setattr(RUNTIME, "order", 1)
        assert [a.tobytes() for a in run(np, case, arrays)] == first


@pytest.mark.gpu
@pytest.mark.parametrize("d", attention.HEADS)
def test_the_bits_are_the_same_20_times(rng, d):
    rt.Cuda(0)
    case = Case(2, 12, 3, 1000, 1000, d, True, "packed")
    arrays = inputs(rng, case, BFLOAT16)
    first = [backend.to_host(a).tobytes() for a in run(backend.cupy(), case, arrays)]
    for _ in range(19):
        assert [backend.to_host(a).tobytes() for a in run(backend.cupy(), case, arrays)] == first


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements(rng):
    rt.Cuda(0)
    cp = backend.cupy()
    x = cp.zeros((40_000, 8, 105, 64), BFLOAT16)
    assert x.size > 2**31
    x[-1] = cp.asarray(cases.draw(rng, x.shape[1:], BFLOAT16))

    def everything(a):
        out, lse = taken(attention.forward(cp, a, a, a, scale=0.125, causal=True))
        return [out, lse, *taken(attention.backward(cp, a, a, a, a, out, lse, scale=0.125, causal=True))]

    for a, b in zip(everything(x), everything(x[-1:])):
        assert backend.to_host(a[-1]).tobytes() == backend.to_host(b[0]).tobytes()


def test_what_the_kernels_do_not_take(xp, rng):
    q, k, v, _ = place(xp, CASES[0], inputs(rng, CASES[0], BFLOAT16))
    assert attention.forward(xp, q, k, v, scale=1.0, causal=True) is not None
    assert attention.takes(xp, q, k, v, 1.0) and not attention.takes(xp, q[..., :32], k[..., :32], v[..., :32], 1.0)
    for scale in (0.0, -1.0, 1e38):
        assert attention.forward(xp, q, k, v, scale=scale, causal=True) is None
    for dtype, d in ((FLOAT32, 64), (BFLOAT16, 136), (BFLOAT16, 65)):
        a = xp.zeros((1, 1, 4, d), dtype)
        assert attention.forward(xp, a, a, a, scale=1.0, causal=True) is None
    a, empty = xp.zeros((1, 1, 4, 64), BFLOAT16), xp.zeros((1, 1, 0, 64), BFLOAT16)
    assert attention.forward(xp, a, empty, empty, scale=1.0, causal=True) is None
    assert attention.forward(xp, a, a.astype(FLOAT16), a, scale=1.0, causal=True) is None
    with use_fused(False):
        assert attention.forward(xp, a, a, a, scale=1.0, causal=True) is None


def call(function, leaves, forward=True, then=True, order=1):
    """The result and the gradients, and the kernels that ran ahead and back."""
    leaves = [x.require_grad() for x in leaves]
    with use_fused(forward), record(order=order):
        HITS.clear()
        y = function(*leaves)
        ahead = set(HITS)
    seed = rt.tensor(np.random.default_rng(9).integers(-8, 9, y.shape) / 4.0, dtype=y.dtype, device=y.device)
    with use_fused(then):
        HITS.clear()
        found = backward(y, seed=seed)
    return [y.detach(), *[found[x] for x in leaves]], ahead, set(HITS)


def of_attention(names):
    """Those of attention; which kernels they are depends on the GPU."""
    return {name for name in names if name.startswith("attention")}


def agree(found, expected):
    for a, e in zip(found, expected, strict=True):
        a, e = a.astype(rt.float64).numpy(), e.numpy()
        assert a.shape == e.shape and np.abs(a - e).max() <= 2e-2 * np.abs(e).max()


@pytest.mark.parametrize("packed", [False, True])
def test_every_pairing_of_fused_and_plain(device, packed):
    rng = np.random.default_rng(0)
    if packed:
        shapes, function = [(2, 40, 4 * 64)], lambda x: packed_attention(x, 2, 1, causal=True)
    else:
        shapes = [(2, 2, 40, 64), (2, 1, 50, 64), (2, 1, 50, 64)]
        function = lambda q, k, v: rt.scaled_dot_product_attention(q, k, v, causal=True)  # noqa: E731
    leaves = [rt.tensor(rng.standard_normal(s), dtype=rt.bfloat16, device=device) for s in shapes]
    with use_fused(False):
        expected, *_ = call(function, [x.astype(rt.float64) for x in leaves], False, False, order=2)
    for forward, then in product((True, False), repeat=2):
        found, ahead, behind = call(function, leaves, forward, then)
        assert bool(ahead) == forward and bool(behind) == then and of_attention(ahead | behind) == ahead | behind
        agree(found, expected)


def test_a_mask_or_dropout_goes_to_the_plain_body(device):
    q = rt.tensor(np.random.default_rng(0).standard_normal((1, 1, 8, 64)), dtype=rt.bfloat16, device=device)
    every: list[dict[str, Any]] = [{"mask": rt.ones((8, 8), device=device) > 0}, {"dropout_p": 0.5, "seed": 1}]
    for options in every:
        _, ahead, behind = call(lambda x, options=options: rt.scaled_dot_product_attention(x, x, x, **options), [q])
        assert not of_attention(ahead | behind)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_the_layer_uses_the_packed_form(device, n_kv_heads):
    config = MultiHeadAttentionConfig(d_model=128, n_heads=2, n_kv_heads=n_kv_heads, causal=True)
    layer = config.init(device).to_dtype(rt.bfloat16)
    x = rt.tensor(np.random.default_rng(0).standard_normal((2, 9, 128)), dtype=rt.bfloat16, device=device)
    found, ahead, behind = call(layer, [x])
    assert of_attention(ahead) and of_attention(behind)
    plain, *_ = call(layer, [x], False, False)
    agree(found, [a.astype(rt.float64) for a in plain])


def test_packed_on_a_cpu_has_the_bits_of_the_parts():
    x = rt.tensor(np.random.default_rng(0).standard_normal((2, 12, 8 * 16)), dtype=rt.float32, device=rt.Cpu())

    def parts(a):
        cut = rt.split(rt.reshape(a, (2, 12, 8, 16)), [4, 2, 2], axis=2)
        y = rt.scaled_dot_product_attention(*[rt.permute_dims(c, (0, 2, 1, 3)) for c in cut], causal=True)
        return rt.reshape(rt.permute_dims(y, (0, 2, 1, 3)), (2, 12, 64))

    found, expected = call(lambda a: packed_attention(a, 4, 2, causal=True), [x])[0], call(parts, [x])[0]
    assert [a.numpy().tobytes() for a in found] == [a.numpy().tobytes() for a in expected]
