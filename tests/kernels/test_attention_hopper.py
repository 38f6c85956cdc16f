"""Attention by the products of Hopper's warpgroups: on a GPU of compute capability 9.0; elsewhere the binding declines."""
from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16
from ruda_tensor.kernels import attention, attention_hopper
from ruda_tensor.kernels.gate import capability, use_fused
from ruda_tensor.ops import _attend

from . import _cases as cases
from ._attention import Case, compare, exact, inputs, place, taken
from ._shim import COMPILER, on_shim

SIZES = [1, 7, 64, 65, 127, 128, 129, 200, 511]
# Tails of every kind, one query or key, queries that see no key, shared heads, views of joint arrays.
CASES = [
    Case(1, 1, 1, 1, 1, 64, True), Case(2, 2, 1, 7, 7, 64, True, "packed"), Case(1, 2, 2, 65, 65, 64, False),
    Case(1, 2, 1, 129, 129, 64, True, "packed"), Case(1, 1, 1, 5, 130, 64, True), Case(1, 4, 2, 130, 5, 64, True, "heads"),
    Case(1, 1, 1, 64, 64, 128, True, "packed"), Case(1, 2, 1, 70, 127, 128, True), Case(1, 2, 2, 127, 70, 128, False, "shifted"),
    Case(1, 6, 2, 300, 700, 64, False), Case(1, 6, 2, 700, 300, 128, True),
]  # fmt: skip


@pytest.fixture
def xp():
    rt.Cuda(0)
    cp = backend.cupy()
    if capability(cp) != 90:
        pytest.skip("these kernels are for compute capability 9.0")
    poisoned = cases.Poisoned(cp)
    yield poisoned
    poisoned.check()


def run(xp: Any, case: Case, arrays: list, *, needs: tuple = (True, True, True), ways: Any = (attention_hopper,) * 2) -> list:
    """[out, lse, dq, dk, dv] by a binding for forward and one for backward."""
    q, k, v, g = place(xp, case, arrays)
    static = {"scale": case.d**-0.5, "causal": case.causal}
    out, lse = taken(ways[0].forward(xp, q, k, v, **static))
    return [out, lse, *taken(ways[1].backward(xp, g, q, k, v, out, lse, needs=needs, **static))]


def check(xp: Any, rng: Any, dtype: np.dtype, case: Case, **how: Any) -> None:
    arrays = inputs(rng, case, dtype)
    found = run(xp, case, arrays, **how)
    assert tuple(a is not None for a in found[2:]) == how.get("needs", (True, True, True))
    compare(found, *exact(*[a.astype(float) for a in arrays], case.d**-0.5, case.causal), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_agrees_with_float64(xp, rng, case, dtype):
    check(xp, rng, dtype, case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_tiles_for_many_rows_agree_as_well(xp, rng, case, monkeypatch):
    monkeypatch.setattr(attention_hopper, "FEW", 0)
    check(xp, rng, BFLOAT16, case)


@pytest.mark.gpu
@pytest.mark.parametrize("d", attention.HEADS)
def test_every_pair_of_sizes(xp, rng, d):
    for t, n, causal in product(SIZES, SIZES, (False, True)):
        check(xp, rng, BFLOAT16, Case(2, 4, 2, t, n, d, causal, "packed" if t == n else "rows"))
        xp.check()
    check(xp, rng, BFLOAT16, Case(3, 6, 1, 1100, 1300, d, True, "heads"))
    check(xp, rng, FLOAT16, Case(1, 2, 2, 2100, 2100, d, True, "packed"))


@pytest.mark.gpu
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (False, True, True)])
def test_only_the_gradients_that_are_asked_for(xp, rng, needs):
    check(xp, rng, BFLOAT16, Case(1, 2, 1, 140, 140, 64, True), needs=needs)


@pytest.mark.gpu
@pytest.mark.parametrize("ways", [(attention, attention_hopper), (attention_hopper, attention)], ids=["before", "after"])
def test_either_kernels_backward_follows_either_forward(xp, rng, ways):
    check(xp, rng, BFLOAT16, Case(2, 4, 2, 150, 190, 64, True), ways=ways)


@pytest.mark.gpu
def test_gradients_are_written_where_they_are_wanted(xp, rng):
    case = Case(2, 4, 2, 70, 70, 64, True, "packed")
    arrays = inputs(rng, case, BFLOAT16)
    q, k, v, g = place(xp, case, arrays)
    static = {"scale": 0.125, "causal": True}
    joint, wanted = xp.empty((2, 70, 8, 64), BFLOAT16).transpose(0, 2, 1, 3), xp.empty((2, 4, 70, 64), BFLOAT16)
    into = joint[:, :4], joint[:, 4:6], joint[:, 6:]
    out, lse = taken(attention_hopper.forward(xp, q, k, v, out=wanted, **static))
    found = taken(attention_hopper.backward(xp, g, q, k, v, out, lse, into=into, **static))
    assert out is wanted and all(a is b for a, b in zip(found, into))
    compare([out, lse, *into], *exact(*[a.astype(float) for a in arrays], **static), BFLOAT16)
    assert attention_hopper.forward(xp, q, k, v, out=xp.empty((2, 4, 70, 65), BFLOAT16)[..., 1:], **static) is None


@pytest.mark.gpu
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


@pytest.mark.gpu
@pytest.mark.parametrize("d", attention.HEADS)
def test_the_same_bits_every_time(xp, rng, d):
    case = Case(3, 6, 2, 700, 700, d, True)
    arrays = inputs(rng, case, BFLOAT16)
    first = [backend.to_host(a).tobytes() for a in run(xp, case, arrays)]
    for _ in range(20):
        assert [backend.to_host(a).tobytes() for a in run(xp, case, arrays)] == first


@pytest.mark.gpu
def test_strides_that_a_copy_cannot_follow_are_copied_first(xp, rng):
    case = Case(2, 4, 4, 70, 70, 64, False)
    q, k, v, g = inputs(rng, case, BFLOAT16)
    k[:], v[:] = k[:1, :1], v[:1, :1]
    q, g = q[:, :, ::-1], g[:, :, ::-1]
    one = [xp.broadcast_to(cases.put(xp, a[:1, :1]), a.shape) for a in (k, v)]
    back = [cases.put(xp, a[:, :, ::-1])[:, :, ::-1] for a in (q, g)]
    static = {"scale": 0.125, "causal": False}
    out, lse = taken(attention_hopper.forward(xp, back[0], *one, **static))
    grads = taken(attention_hopper.backward(xp, back[1], back[0], *one, out, lse, **static))
    compare([out, lse, *grads], *exact(*[a.astype(float) for a in (q, k, v, g)], **static), BFLOAT16)


@pytest.mark.gpu
def test_what_it_declines(xp, rng):
    case = Case(1, 2, 2, 9, 9, 64, False)
    q, k, v, _ = place(xp, case, inputs(rng, case, BFLOAT16))
    assert attention_hopper.forward(xp, q, k, v, scale=-1.0, causal=False) is None
    assert attention_hopper.forward(xp, q.astype(np.float32), k, v, scale=1.0, causal=False) is None
    with use_fused(False):
        assert attention_hopper.forward(xp, q, k, v, scale=1.0, causal=False) is None


@pytest.mark.skipif(COMPILER is None, reason="no g++ to run the CUDA sources with")
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("d", attention.HEADS)
def test_rows_have_lse_to_the_base_2_and_delta(rng, d, dtype):
    b, h, t, padded = 2, 3, 70, 128
    g, out = (rng.standard_normal((b, t, h, d)).astype(dtype).transpose(0, 2, 1, 3) for _ in range(2))
    lse, rows = rng.standard_normal((b, h, t, 1)).astype(np.float32), np.full((2, b, h, padded), np.nan, np.float32)
    lse[0, 0, 0] = np.inf
    strides = [stride // 2 for a in (g, out) for stride in a.strides[:3]]
    blocks = b * h * -(-padded // (2048 // d))
    with on_shim():
        attention_hopper._rows(dtype, d)((blocks, 1), (256, 1), g, out, lse, rows, *strides, t, padded, h, b)
    assert np.allclose(rows[0, ..., :t], lse[..., 0] / np.log(2), rtol=1e-6) and np.isposinf(rows[0, ..., t:]).all()
    exact = (g.astype(float) * out.astype(float)).sum(-1)
    assert np.allclose(rows[1, ..., :t], exact, rtol=1e-5, atol=1e-5) and not rows[1, ..., t:].any()


@pytest.mark.skipif(COMPILER is None, reason="no g++ to run the CUDA sources with")
def test_arrays_on_the_cpu_are_declined(rng):
    q = k = v = np.ones((1, 1, 9, 64), BFLOAT16)
    with on_shim():
        assert attention.takes(np, q, k, v, 1.0)
        assert attention_hopper.forward(np, q, k, v, scale=1.0, causal=False) is None
        assert attention_hopper.backward(np, q, q, k, v, q, None, scale=1.0, causal=False) is None
