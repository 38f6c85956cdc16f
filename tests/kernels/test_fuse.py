"""Fused functions: layouts, dtypes, what is kept and counted, and the functions that are refused."""
from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_autodiff.backward import backward
from ruda_autodiff.testing import check_gradients
from ruda_tensor.dtypes import FLOATING, HALF
from ruda_tensor.fusion import FusionError
from ruda_tensor.kernels import generated
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

from ._hooks import launching, seed_of

UNIT = {rt.float64: 1e-13, rt.float32: 2e-6, rt.float16: 2e-3, rt.bfloat16: 1.6e-2}


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        poison(device, monkeypatch)
        yield device


def poison(device, monkeypatch):
    """Let new memory be full of NaN, so that what a kernel leaves out is seen."""
    xp, empty = device.xp, device.xp.empty

    def poisoned(*args, **kwargs):
        out = empty(*args, **kwargs)
        if out.dtype in FLOATING:
            out.fill(np.nan)
        return out

    monkeypatch.setattr(xp, "empty", poisoned)


def gated(x, y):
    return rt.where(x > y, x * rt.sigmoid(y * 1.702), rt.exp(-rt.abs(x)) + y)


def draw(device, dtype, *shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rt.tensor(rng.standard_normal(s) * 2, dtype=dtype, device=device) for s in shapes]


def run(f, xs, forward=True, then=True, order=1):
    """The value and the gradients, with or without kernels in each direction."""
    leaves = [x.require_grad() for x in xs]
    with use_fused(forward), ra.record(order=order):
        y = f(*leaves)
    with use_fused(then):
        g = backward(y, seed=seed_of(y))
    return [y.detach(), *[g[x] for x in leaves]]


def check(f, xs, dtype, slack=1.0):
    """Every pairing of kernel and plain body agrees with float64, and the kernels give the same bits again."""
    exact = run(f, [x.astype(rt.float64) for x in xs], False, False, order=2)
    for forward, then in product((True, False), repeat=2):
        found = run(f, xs, forward, then)
        for i, (a, e) in enumerate(zip(found, exact, strict=True)):
            assert a.dtype == dtype and a.shape == e.shape
            a, e = a.astype(rt.float64).numpy(), e.numpy()
            allowed = slack * UNIT[dtype] * (np.abs(e) + np.abs(e).max(initial=0.0))
            if not forward and dtype in HALF:
                allowed *= 4  # the operations one by one round each time
            assert np.all(np.abs(a - e) <= allowed), (i, forward, then, np.abs(a - e).max(), np.abs(e).max())
    again = run(f, xs)
    assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(run(f, xs), again, strict=True))


SHAPES = [
    ((5, 33), (5, 33)), ((4096,), (4096,)), ((1025,), (1025,)), ((6, 40), (40,)), ((40,), (6, 40)), ((7, 9), (7, 1)),
    ((3, 1, 16), (4, 1)), ((2, 3, 4, 8), (3, 1, 8)), ((64, 64), ()), ((), ()), ((1,), (1,)), ((1, 1), (3, 1)), ((0, 3), (0, 3)),
    ((0, 3), (3,)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_shapes_and_broadcasting(dtype, place):
    f = rt.fuse(gated)
    for shapes in SHAPES if dtype in (rt.float32, rt.bfloat16) else SHAPES[:6]:
        check(f, draw(place, dtype, *shapes), dtype)


LAYOUTS = {
    "transposed": lambda a: a.swapaxes(0, 1).copy().swapaxes(0, 1),
    "every other": lambda a: np.repeat(a, 2, axis=1)[:, ::2] if isinstance(a, np.ndarray) else a.repeat(2, axis=1)[:, ::2],
    "backwards": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "a window": lambda a: _window(a),
}


def _window(a):
    """The same values one element into wider rows: misaligned, and not contiguous."""
    wide = (np if isinstance(a, np.ndarray) else rt.Cuda(0).xp).zeros((a.shape[0] + 1, a.shape[1] + 3), a.dtype)
    wide[1:, 1:-2] = a
    return wide[1:, 1:-2]


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_read_where_they_lie(name, place):
    f = rt.fuse(gated)
    for dtype in (rt.float32, rt.bfloat16):
        x, y = draw(place, dtype, (12, 16), (12, 16))
        strange = rt.Tensor._wrap(LAYOUTS[name](x._data), place)
        for xs in ((strange, y), (x, strange), (strange, strange)):
            straight = run(f, [x if t is strange else t for t in xs] if xs[0] is not xs[1] else [x, x])
            for a, b in zip(run(f, xs), straight, strict=True):
                assert a.numpy().tobytes() == b.numpy().tobytes()


def test_what_is_not_aligned_is_read_one_by_one(place):
    memory = draw(place, rt.float32, (64,))[0]._data
    for start in range(5):
        x = rt.Tensor._wrap(memory[start : start + 40], place)
        check(rt.fuse(gated), [x, x], rt.float32)


def test_vectors_need_rows_that_begin_where_vectors_do():
    made = generated.Program("f", (rt.float32, rt.float32), (), (rt.float32,), (), False)

    def vector(sizes, strides, addresses=(0, 0)):
        return generated.reading(made, sizes, strides, list(addresses)).vector

    assert vector([4096], [[1], [1]]) == 4 and vector([4095], [[1], [1]]) == 4 and vector([4096], [[1], [0]]) == 4
    assert vector([8, 16], [[16, 1], [0, 1]]) == 4 and vector([8, 18], [[18, 1], [0, 1]]) == 1
    assert vector([8, 16], [[19, 1], [0, 1]]) == 1, "row 1 is not aligned"
    assert vector([8, 16], [[19, 2], [0, 1]]) == 4, "what is gathered may begin anywhere"
    assert vector([4096], [[1], [1]], (4, 0)) == 1 and vector([4096], [[1], [0]], (0, 4)) == 4


def test_0_and_minus_0_are_two_numbers(place):
    (x,) = draw(place, rt.float32, (64,))
    y = rt.fuse(lambda x: x * 0.0 + rt.copysign(x, x * -0.0))(x)
    assert y.numpy().tolist() == (-x.numpy()).tolist()


def test_64_bit_positions(place, monkeypatch):
    real = generated.reading
    monkeypatch.setattr(generated, "reading", lambda *a: real(*a)._replace(wide=True))
    check(rt.fuse(gated), draw(place, rt.float32, (6, 40), (6, 1)), rt.float32)


def test_integers_and_masks_take_part(place):
    def f(x, mask, ids, scale):
        return rt.where(mask, x * ids.astype(x.dtype), rt.maximum(x, 0.5)) + (ids % 3 == 1) * scale

    x, scale = draw(place, rt.float32, (9, 7), ())
    rng = np.random.default_rng(1)
    mask, ids = rt.tensor(rng.random((9, 1)) > 0.5, device=place), rt.tensor(rng.integers(-9, 9, (9, 7)), device=place)
    y = rt.fuse(f)(x, mask, ids, scale)
    counts = rt.fuse(lambda i, m: (i // 4) * 3 - i % 5 + m.astype(i.dtype))
    with use_fused(False):
        np.testing.assert_allclose(y.numpy(), f(x, mask, ids, scale).numpy(), rtol=1e-6)
        expected = counts(ids, mask)
    assert counts(ids, mask).numpy().tobytes() == expected.numpy().tobytes()


def test_one_launch_each_way_and_only_what_the_derivative_reads_is_kept(place):
    x, y = draw(place, rt.float32, (9, 40), (9, 40))
    a, b = x.require_grad(), y.require_grad()
    before = Counter(HITS)
    out = rt.fuse(lambda x, y: x * rt.sigmoid(x * 1.702) + y)(a, b)
    assert out._node.op.keeps == ("x0",) and out._node.op.name == "<lambda>"
    seed = seed_of(out)
    g = backward(out, seed=seed)
    assert Counter(HITS) - before == Counter({"fused_forward": 1, "fused_backward": 1})
    assert g[b].numpy().tobytes() == seed.numpy().tobytes()
    with pytest.raises(ra.GraphConsumed):
        backward(out, seed=seed)


def test_a_function_is_run_once_for_each_kind_of_arguments(place):
    runs = []

    def f(x, p, *, bias=None):
        runs.append(p)
        return x * p if bias is None else x * p + bias

    g = rt.fuse(f)
    x, y = draw(place, rt.float32, (4, 8), (4, 8))
    assert g(x, 2.0).numpy().tobytes() == (x.numpy() * 2).astype(np.float32).tobytes()
    g(y, 2.0)
    assert runs == [2.0]
    assert (g(x, -0.0).numpy() == 0).all() and np.signbit(g(x, -0.0).numpy()).tolist() == (x.numpy() > 0).tolist()
    assert not np.signbit(g(x, 0.0).numpy()[x.numpy() > 0]).any() and len(runs) == 3
    np.testing.assert_array_equal(g(x, 2.0, bias=y).numpy(), x.numpy() * 2 + y.numpy())
    g(x.astype(rt.float64), 2.0), g(x[:2], 2.0), g(x, 2)
    assert len(runs) == 7


def test_second_derivatives_go_by_the_function(place):
    x, y = draw(place, rt.float64, (3, 4), (3, 4))
    f = rt.fuse(lambda x, y: rt.tanh(x * y) * x)
    before = HITS["fused_backward"]
    check_gradients(f, x, y)
    assert HITS["fused_backward"] > before, "the kernel's own derivative is what finite differences were compared with"
    check_gradients(f, x, y, order=2)
    a = ra.grad(lambda x: rt.sum(ra.grad(lambda x: rt.sum(f(x, y)))(x) ** 2))(x)
    with use_fused(False):
        b = ra.grad(lambda x: rt.sum(ra.grad(lambda x: rt.sum(f(x, y)))(x) ** 2))(x)
    np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-12)
    out = f(x.require_grad(), y)
    with pytest.raises(ra.HigherDerivativeUnsupported):
        out.sum().backward(order=2)


def test_checkpointing_gives_the_same_bits(place):
    f = rt.fuse(gated)
    x, y = draw(place, rt.float32, (6, 40), (40,))
    expected = run(f, [x, y])
    for variant in (ra.checkpoint(f), lambda x, y: ra.checkpoint(lambda z: f(z, y) * 1.0)(x)):
        for a, b in zip(run(variant, [x, y]), expected, strict=True):
            assert a.numpy().tobytes() == b.numpy().tobytes()
    f = rt.fuse(lambda x, y: gated(rt.exp(gated(x, y) * 0.1), y))
    results = []
    for strategy in ("none", "balanced"):
        leaves = [ra.Autodiff(place, checkpointing=strategy).leaf(t) for t in (x, y)]
        out = rt.exp(f(f(*leaves) * 0.1, leaves[1]) * 0.1)
        g = backward(out, seed=seed_of(out))
        results.append([g[t].numpy().tobytes() for t in leaves])
    assert results[0] == results[1]


def test_no_grad_inside_and_outside(place):
    def f(x):
        with ra.no_grad():
            frozen = rt.exp(x)
        return x * frozen

    (x,) = draw(place, rt.float32, (5, 8))
    g = rt.fuse(f)
    with ra.no_grad():
        assert not g(x.require_grad()).is_require_grad()
    leaf = x.require_grad()
    np.testing.assert_allclose(leaf.grad(g(leaf).sum().backward()).numpy(), np.exp(x.numpy()), rtol=1e-6)
    assert leaf.grad(rt.fuse(lambda x: x.detach() * 2.0 + x)(leaf).sum().backward()).numpy().tolist() == np.ones((5, 8)).tolist()


def test_inputs_without_a_part_have_no_gradient_and_the_identity_is_a_copy(place):
    x, y = (t.require_grad() for t in draw(place, rt.float32, (5, 8), (5, 8)))
    g = backward(rt.fuse(lambda x, y: x * 2.0 + rt.floor(y).detach())(x, y), seed=seed_of(x))
    assert g.get(y) is None and g[x].numpy().tolist() == (seed_of(x).numpy() * 2).tolist()
    same = rt.fuse(lambda x: x)(x)
    assert same.numpy().tobytes() == x.numpy().tobytes() and same._data is not x._data
    assert not rt.fuse(lambda x: x > 0)(x).is_require_grad()


OUTSIDE = rt.ones(3)
REFUSED = {
    "'sum' is not elementwise": lambda x: x * x.sum(),
    "'matmul' is not elementwise": lambda x: x @ x,
    "'softmax' is not elementwise": lambda x: rt.softmax(x),
    "'dropout' is not elementwise": lambda x: rt.dropout(x, 0.5, training=True),
    "'normal' is not elementwise": lambda x: x + rt.random.normal(x.shape, device=x.device),
    "'reshape' (needs a change of shape|is not elementwise)": lambda x: rt.reshape(x, (9,)),
    "'T' is not elementwise": lambda x: x.T,
    "'getitem' needs indexing": lambda x: x[0],
    "'numpy' needs the value of a tensor": lambda x: x * x.numpy(),
    "'concat' is not elementwise": lambda x: rt.concat([x, x]),
    "a result that is float": lambda x: 3.0,
    "'multiply' uses a tensor that is not among the arguments": lambda x: x * OUTSIDE,
    "an operation with a derivative rule of its own": lambda x: ra.custom_gradient(lambda x: (x * 2.0, lambda g: g))(x),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_one_kernel_is_named(message, place):
    (x,) = draw(place, rt.float32, (3, 3))
    f = REFUSED[message]
    with pytest.raises(FusionError, match=message) as caught:
        rt.fuse(f)(x.require_grad())
    assert "rt.fuse(" in str(caught.value)


def test_errors_of_the_function_itself_are_its_own(place):
    x, y = draw(place, rt.float32, (3, 3), (2,))
    with pytest.raises(ValueError, match="do not broadcast"):
        rt.fuse(gated)(x, y)
    with pytest.raises(TypeError, match=r"takes tensors and hashable values, got Tensor, list"):
        rt.fuse(lambda x, n: x)(x, [1])


def test_on_a_plain_device_the_function_itself_runs():
    calls = []
    f = rt.fuse(lambda x: calls.append(1) or rt.sum(x))
    assert f(rt.ones(3)).item() == 3.0 and f(rt.ones(3)).item() == 3.0 and len(calls) == 2
    assert rt.fuse(gated).__name__ == "gated"


LEAVES = st.sampled_from(["x", "y", "z"])
ONE = st.sampled_from(
    ["rt.tanh({})", "rt.sigmoid({})", "rt.abs({})", "rt.softplus({})", "rt.square({})", "-({})", "({} * 1.5)", "(0.25 - {})"]
)
TWO = st.sampled_from(["({} + {})", "({} - {})", "({} * {})", "rt.maximum({}, {})", "({} / (rt.square({}) + 1.0))"])


def expressions():
    def grow(inner):
        one = st.builds(lambda f, a: f.format(a), ONE, inner)
        two = st.builds(lambda f, a, b: f.format(a, b), TWO, inner, inner)
        three = st.builds(lambda c, a, b: f"rt.where({c} > 0.3, {a}, {b})", inner, inner, inner)
        return one | two | three

    return st.recursive(LEAVES, grow, max_leaves=8)


ONES = st.lists(st.booleans(), min_size=3, max_size=3)
DIMENSIONS = st.lists(st.sampled_from([1, 2, 3, 8, 33]), min_size=1, max_size=3)


@settings(max_examples=12)
@given(text=expressions(), shape=DIMENSIONS, data=st.data(), dtype=st.sampled_from(list(UNIT)))
def test_any_expression_agrees_with_float64(text, shape, data, dtype):
    """Expressions that no branch of a comparison can turn: the inputs keep away from ties by being drawn at random."""
    with pytest.MonkeyPatch.context() as patch, launching("shim", patch) as device:
        poison(device, patch)
        some = st.builds(lambda k, ones: tuple(n if one else 1 for n, one in zip(shape, ones))[k:], st.integers(0, 3), ONES)
        xs = draw(device, dtype, *[data.draw(some) for _ in range(3)], seed=data.draw(st.integers(0, 99)))
        f = eval(f"lambda x, y, z: x * 0.5 + y * z + ({text})", {"rt": rt})
        wide = [x.astype(rt.float64) for x in xs]
        found, exact = run(rt.fuse(f), xs), run(f, wide, False, False, order=2)
        for a, e in zip(found, exact, strict=True):
            a, e = a.astype(rt.float64).numpy(), e.numpy()
            assert np.all(np.abs(a - e) <= 8 * UNIT[dtype] * (np.abs(e) + max(1.0, np.abs(e).max(initial=0.0)))), text


def test_numbers_in_tuples_are_told_apart(place):
    """1, 1.0 and True are equal, and so are 0.0 and -0.0, but what is computed with them is not."""
    f = rt.fuse(lambda x, options: x * options[0][0])
    ints, floats = rt.tensor([1, 2], device=place), rt.tensor([1.0, 2.0], device=place)
    for number in (2, 2.0, True, 0.0, -0.0, np.float32(0.0), np.float32(-0.0), np.float32("nan")):
        for x in (ints, floats):
            for options in (((number,),), ((number, "more"), 3)):
                got, expected = f(x, options), x * number
                assert got.dtype == expected.dtype and got.numpy().tobytes() == expected.numpy().tobytes()
