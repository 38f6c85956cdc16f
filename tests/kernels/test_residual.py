"""The sum of two tensors and its norm by one kernel, and gradients that are added to what has arrived."""
from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import record
from ruda_autodiff.backward import Walk, backward
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import norms
from ruda_tensor.kernels.gate import real_of, use_fused
from ruda_tensor.kernels.launch import HITS

from . import _cases as cases
from ._hooks import launching

UNIT = {rt.float32: 4e-6, rt.bfloat16: 2.5e-2}


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.mark.parametrize(
    ("dtype", "n", "weights"),
    [(FLOAT32, 67, "same"), (BFLOAT16, 264, "real"), (FLOAT16, 33, "none"), (FLOAT64, 32, "same"), (BFLOAT16, 33000, "same")],
    ids=str,
)
@pytest.mark.parametrize("rms", [False, True])
def test_the_kernels_against_float64(place, rng, dtype, n, weights, rms):
    xp = cases.Poisoned(place.xp)
    for rows, shift in ((1, 0), (19, 0), (19, 1)) if n < 1000 else ((2, 0),):
        cases.residual(xp, rng, dtype, rows, n, rms=rms, weights=weights, shift=shift)
    cases.residual(xp, rng, dtype, 3, n, rms=rms, weights=weights, added=real_of(dtype))
    xp.check()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 3, 64, 768, 1025, 4096, 40_000])
@pytest.mark.parametrize("dtype", cases.DTYPES, ids=str)
def test_more_widths(rng, dtype, n):
    rt.Cuda(0)
    xp = cases.Poisoned(backend.cupy())
    for needs in ((1, 1, 1), (1, 0, 0), (1, 0, 1)):
        cases.residual(xp, rng, dtype, 517, n, needs=needs)
        cases.residual(xp, rng, dtype, 517, n, rms=True, needs=needs)
    xp.check()


def test_what_does_not_fit_is_declined(place):
    x = rt.zeros((4, 8), device=place)._data
    static = {"axes": 1, "eps": 1e-5}
    assert norms.layer_forward_add(place.xp, x, x[:1], None, None, **static) is None
    assert norms.layer_forward_add(place.xp, x, x.astype(FLOAT16), None, None, **static) is None
    kept = norms.layer_forward(place.xp, x, None, None, **static)[1:]
    needs = (True, False, False)
    assert norms.layer_backward(place.xp, x, x, None, *kept, needs=needs, **static, add=x.astype(FLOAT16)) is None
    assert norms.layer_backward(place.xp, x, x, None, *kept, needs=(False, False, False), **static, add=x) is None
    assert norms.layer_backward(place.xp, x, x, None, *kept, needs=needs, **static, add=x[:1]) is None


def tensors(place, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((9, 40), (9, 40), (40,), (40,))
    return [rt.tensor(rng.standard_normal(shape) + 0.5, dtype=dtype, device=place) for shape in shapes]


def block(rms, x, y, w, b=None):
    """A residual stream: its sum goes on beside its norm, and is added to."""
    s, normed = rt.add_rms_norm(x, y, w) if rms else rt.add_layer_norm(x, y, w, b)
    return rt.add_layer_norm(s, rt.gelu(normed))[0] * 0.5


def gradients(place, dtype, rms, fused, order=1):
    leaves = [x.require_grad() for x in (tensors(place, dtype)[: 3 if rms else 4])]
    with use_fused(fused), record(order=order):
        before = Counter(HITS)
        z = block(rms, *leaves)
        ahead = Counter(HITS) - before
        seed = rt.tensor(np.random.default_rng(9).integers(-8, 9, z.shape) / 4.0, dtype=dtype, device=place)
        with record(order=1):
            found = backward(z, seed=seed)
    return [z.detach(), *[found[x] for x in leaves]], ahead


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
@pytest.mark.parametrize("rms", [False, True])
def test_through_the_tape(place, dtype, rms, monkeypatch):
    taken = []
    original = Walk.pull_onto

    def seen(self, *arguments):
        found = original(self, *arguments)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(Walk, "pull_onto", seen)
    found, ahead = gradients(place, dtype, rms, True)
    assert ahead["norm_forward"] == 2 and taken == [True], "one kernel forward, and the residual gradient rides along"
    plain, _ = gradients(place, dtype, rms, False)
    assert taken == [True, False]
    exact, _ = gradients(place, rt.float64, rms, False)
    for mine, theirs, right in zip(found, plain, exact, strict=True):
        right = right.numpy()
        for a in (mine, theirs):
            assert a.dtype == dtype and a.shape == right.shape
            error = np.abs(a.astype(rt.float64).numpy() - right)
            assert (error <= UNIT[dtype] * (np.abs(right) + np.abs(right).max())).all(), error.max()


def test_the_operations_are_those_two(place):
    x, y, w, b = tensors(place, rt.float32)
    for fused in (True, False):
        with use_fused(fused):
            s, normed = rt.add_layer_norm(x, y, w, b)
            assert s.numpy().tobytes() == (x + y).numpy().tobytes()
            np.testing.assert_allclose(normed.numpy(), rt.layer_norm(x + y, w, b).numpy(), rtol=1e-5, atol=1e-6)
    s, normed = rt.add_layer_norm(x, y[0], w, b)  # a broadcast sum is left to the two operations
    assert s.numpy().tobytes() == (x + y[0]).numpy().tobytes() and normed.shape == x.shape


def test_a_kept_graph_may_be_pulled_again(place):
    x, y, w, b = [t.require_grad() for t in tensors(place, rt.float32)]
    z = rt.sum(block(False, x, y, w, b))
    first = z.backward(retain_graph=True)
    second = z.backward()
    for leaf in (x, y, w, b):
        assert first[leaf].numpy().tobytes() == second[leaf].numpy().tobytes()


def test_second_derivatives_go_through_the_expressions(place):
    x, y, w, b = [t.require_grad() for t in tensors(place, rt.float64)]
    HITS.clear()
    with record(order=2):
        z = rt.sum(block(False, x, y, w, b))
    g = z.backward(order=2)[x]
    assert rt.sum(g * g).backward()[x].shape == x.shape
    assert set(HITS) <= {"columns_reduce", "columns_finish"}


def test_errors_are_those_of_the_operations(place):
    x = rt.zeros((2, 3), device=place)
    with pytest.raises(ValueError, match="eps must be a number >= 0"):
        rt.add_layer_norm(x, x, eps=-1.0)
    with pytest.raises(ValueError, match="weight has shape"):
        rt.add_rms_norm(x, x, rt.zeros(2, device=place), normalized_shape=3)
