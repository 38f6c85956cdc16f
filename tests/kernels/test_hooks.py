"""Operations and their kernels, through the public functions: who runs, what comes out, and what is declined."""
from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import GraphConsumed, HigherDerivativeUnsupported, record
from ruda_autodiff.backward import backward
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS
from ruda_tensor.ops.dropout import kept

from ._hooks import CASES, inputs, launching, seed_of, widened

PAIRS = list(product((True, False), repeat=2))
UNIT = {rt.float64: 1e-13, rt.float32: 2e-6, rt.float16: 2e-3, rt.bfloat16: 1.6e-2}


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.fixture(params=[rt.float32, rt.bfloat16], ids=str)
def dtype(request):
    return request.param


def run(case, tensors, forward=True, then=True, order=1):
    """The result and the gradients of all inputs, and the kernels that ran in each direction."""
    leaves = [x.require_grad() for x in tensors]
    with use_fused(forward), record(order=order):
        before = Counter(HITS)
        y = case.call(tensors[0].device, *leaves)
        ahead = Counter(HITS) - before
    with use_fused(then):
        before = Counter(HITS)
        found = backward(y, seed=seed_of(y))
        behind = Counter(HITS) - before
    return [y.detach(), *[found[x] for x in leaves]], ahead, behind


def exact(case, tensors):
    """The same in float64 by the expressions, recorded for a second derivative: the route that has no kernels."""
    with use_fused(False):
        return run(case, widened(tensors), False, False, order=2)[0]


def agree(found, expected, dtype, slack=1.0):
    for i, (a, e) in enumerate(zip(found, expected, strict=True)):
        a, e = a.astype(rt.float64).numpy(), e.numpy()
        allowed = slack * UNIT[dtype] * (np.abs(e) + np.abs(e).max(initial=0.0))
        assert a.shape == e.shape and np.all(np.abs(a - e) <= allowed), (i, np.abs(a - e).max(), np.abs(e).max())


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_run_and_every_pairing_is_right(name, place, dtype):
    case = CASES[name]
    tensors = inputs(case, dtype, place)
    expected = exact(case, tensors)
    for forward, then in PAIRS:
        found, ahead, behind = run(case, tensors, forward, then)
        assert set(ahead) - {"cast"} == set(case.forward if forward else ()), "the kernels of the forward"
        assert case.backward is None or set(behind) - {"cast"} == set(case.backward if then else ()), "and of the backward"
        assert [y.dtype for y in found[1:]] == [x.dtype for x in tensors] and found[0].dtype == dtype
        agree(found, expected, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("other", [rt.float16, rt.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_other_dtypes(name, other):
    test_the_kernels_run_and_every_pairing_is_right(name, rt.Cuda(0), other)


@pytest.mark.parametrize("name", ["layer_norm", "softmax", "cross_entropy", "gelu", "silu_mul", "relu", "sum"])
def test_strided_inputs_are_copied_and_agree(name, place):
    case = CASES[name]
    tensors = inputs(case, rt.float32, place)

    def strided(x):
        """The same numbers in every other place, backwards."""
        with place.guard():
            view = place.xp.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::-2]
            view[...] = x._data
            return rt.Tensor._wrap(view, place)

    found, ahead, _ = run(case, [strided(x) for x in tensors])
    assert set(ahead) == set(case.forward)
    for a, b in zip(found, run(case, tensors)[0], strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()


def test_what_the_kernels_do_not_take_goes_to_the_plain_bodies(place):
    x = rt.tensor(np.random.default_rng(0).standard_normal((4, 6, 3)), dtype=rt.float32, device=place)
    empty = rt.zeros((0, 3), device=place)
    ids = rt.zeros((4, 3), dtype=rt.int64, device=place)
    HITS.clear()
    rt.softmax(x, axis=1)
    rt.cross_entropy(x, ids, axis=1)
    rt.sum(x, axis=(0, 1))  # three columns
    rt.sum(x, axis=(1, 2))
    rt.relu(rt.tensor([-1, 2], device=place))
    for f in (rt.softmax, rt.layer_norm, rt.gelu, rt.relu, rt.silu, lambda e: rt.silu_mul(e, e)):
        assert f(empty).shape == (0, 3)
    assert set(HITS) == {"check_ids"}


def test_a_float32_bias_alone_beside_a_half_input_keeps_its_gradient_in_float32(place):
    x = rt.tensor(np.ones((300, 40)), dtype=rt.bfloat16, device=place)
    b = rt.zeros(40, dtype=rt.float32, device=place).require_grad()
    y = rt.layer_norm(x, None, b)
    g = backward(y, seed=rt.full(y.shape, 1.0, dtype=rt.bfloat16, device=place))[b]
    assert g.dtype == rt.float32 and (g.numpy() == 300).all()


def test_the_second_derivative_goes_through_the_expressions(place):
    x = rt.tensor(np.linspace(-2.0, 2.0, 33), dtype=rt.float64, device=place).require_grad()
    HITS.clear()
    with record(order=2):
        y = rt.sum(rt.gelu(x) * rt.softmax(x))
    g = x.grad(y.backward(order=2))
    x.grad(rt.sum(g).backward())
    assert not HITS
    with pytest.raises(HigherDerivativeUnsupported, match="gelu"):
        rt.sum(rt.gelu(x)).backward(order=2)


def test_dropout_has_the_mask_of_every_device(place, dtype):
    x = rt.ones(1001, dtype=dtype, device=place)
    fused = rt.dropout(x, 0.3, training=True, seed=11)
    with use_fused(False):
        plain = rt.dropout(x, 0.3, training=True, seed=11)
    assert fused.astype(rt.float32).numpy().tobytes() == plain.astype(rt.float32).numpy().tobytes()


@pytest.mark.parametrize("start", [0, 7, 2**64 - 3])
def test_what_attention_keeps_is_the_draw_with_and_without_the_kernel(place, start):
    with place.guard():
        HITS.clear()
        fused = kept(place.xp, 1001, 0.3, 11, start)
        assert HITS["dropout"] == 1
        with use_fused(False):
            plain = kept(place.xp, 1001, 0.3, 11, start)
    assert fused.dtype == plain.dtype == np.bool_ and fused.tobytes() == plain.tobytes() and 0 < int(fused.sum()) < 1001


def test_relu_gives_nothing_where_it_is_off_whatever_the_gradient(place):
    x = rt.tensor([-1.0, 0.0, np.nan, 2.0], dtype=rt.float32, device=place).require_grad()
    for on in (True, False):
        with use_fused(on):
            y = rt.relu(x)
            g = backward(y, seed=rt.tensor([np.inf, -1.0, np.nan, 3.0], dtype=rt.float32, device=place))[x]
        assert g.numpy().tobytes() == np.array([0, 0, 0, 3], np.float32).tobytes()


def test_a_graph_may_be_pulled_twice_only_where_it_was_kept(place):
    x = rt.tensor([1.0, 2.0], dtype=rt.float32, device=place).require_grad()
    y = rt.sum(rt.silu(x))
    first = x.grad(y.backward(retain_graph=True)).tolist()
    assert x.grad(y.backward()).tolist() == first
    with pytest.raises(GraphConsumed):
        y.backward()
