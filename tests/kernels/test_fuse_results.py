"""Fused functions with several results: structures, every set of used results, launches, what is kept, and what is refused."""
from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_autodiff.backward import Walk
from ruda_autodiff.tape import _Setting
from ruda_autodiff.testing import check_gradients
from ruda_autodiff.trees import tensors_of
from ruda_tensor.fusion import FusionError
from ruda_tensor.kernels import generated
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

from ._hooks import launching, seed_of
from .test_fuse import DIMENSIONS, LAYOUTS, ONES, UNIT, draw, expressions, poison

Pair = namedtuple("Pair", "product gate")
ONE_EACH = Counter({"fused_forward": 1, "fused_backward": 1})


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        poison(device, monkeypatch)
        yield device


def gates(x, y):
    z = x * y
    return z, rt.where(x > y, rt.sigmoid(z) + y, rt.exp(-rt.abs(x))), rt.tanh(x) * 2.0


def walked(roots, retain=False):
    """The gradients of the leaves for one seed at each root, by one walk."""
    walk = Walk(retain, 1)
    with _Setting(recording=False, order=1):
        for y in roots:
            walk.add(y._node, seed_of(y))
        walk.run()
    return walk.leaves


def run(f, xs, used, forward=True, then=True, order=1):
    """All results, and the gradients (or None) through the `used` ones, with or without kernels in each direction."""
    leaves = [x.require_grad() for x in xs]
    with use_fused(forward), ra.record(order=order):
        ys = tensors_of(f(*leaves))
    with use_fused(then):
        found = walked([ys[i] for i in used if ys[i]._node is not None])
    return [y.detach() for y in ys], [found.get(x._node) for x in leaves]


def near(a, e, unit, what):
    a, e = a.astype(rt.float64).numpy(), e.astype(rt.float64).numpy()
    assert a.shape == e.shape, what
    assert np.all(np.abs(a - e) <= unit * (np.abs(e) + max(1.0, np.abs(e).max(initial=0.0)))), (what, np.abs(a - e).max(), unit)


def check(f, plain, xs, used, slack=2.0):
    """Values, gradients and dtypes of all four pairings against float64 and the plain function."""
    exact = run(plain, [x.astype(rt.float64) for x in xs], used, False, False, order=2)
    like = run(plain, xs, used, False, False, order=2)
    unit = slack * max(UNIT[t.dtype] for t in (*xs, *like[0]) if t.dtype in UNIT)
    for forward, then in product((True, False), repeat=2):
        found = run(f, xs, used, forward, then)
        for part, (got, wanted, theirs) in enumerate(zip(found, exact, like, strict=True)):
            for i, (a, e, b) in enumerate(zip(got, wanted, theirs, strict=True)):
                what = (("value", "gradient")[part], i, used, forward, then)
                assert (a is None) == (b is None), what
                if a is not None and b is not None:
                    assert a.dtype == b.dtype, what
                    near(a, e, unit * (1 if forward else 4), what)
    assert bits(run(f, xs, used)) == bits(run(f, xs, used))


def bits(found):
    return [None if t is None else t.numpy().tobytes() for part in found for t in part]


SUBSETS = [tuple(i for i in range(3) if bits >> i & 1) for bits in range(1, 8)]


@pytest.mark.parametrize("used", SUBSETS, ids=str)
@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_every_set_of_used_results(dtype, used, place):
    f = rt.fuse(gates)
    for shapes in (((5, 33), (5, 33)), ((6, 40), (6, 1)), ((3, 1, 16), (4, 1)), ((), ()), ((0, 3), (3,))):
        check(f, gates, draw(place, dtype, *shapes), used)


@pytest.mark.parametrize("used", SUBSETS, ids=str)
def test_one_launch_each_way_that_reads_what_arrived(used, place, monkeypatch):
    x, y = (t.require_grad() for t in draw(place, rt.float32, (9, 40), (9, 40)))
    read = []
    real = generated.run
    monkeypatch.setattr("ruda_tensor.fusion.kind.run", lambda xp, p, *a: read.append((p.name, len(p.inputs))) or real(xp, p, *a))
    before = Counter(HITS)
    outs = rt.fuse(gates)(x, y)
    found = walked([outs[i] for i in used])
    assert Counter(HITS) - before == ONE_EACH
    kept = 1 if used == (2,) else 2
    assert read == [("fused_forward", 2), ("fused_backward", kept + len(used))]
    assert (y._node in found) == (used != (2,))


def test_what_only_one_result_needs_is_kept_and_gradients_are_handed_on(place):
    x, y, z = (t.require_grad() for t in draw(place, rt.float32, (5, 8), (5, 8), (5, 8)))
    a, b = rt.fuse(lambda x, y, z: (x + 1.0, y * z))(x, y, z)
    owner = a._node.parents[0]
    assert owner.op.keeps == ("x1", "x2") and owner.op.name == "<lambda>" and ra.memory_report(a, b).total == 0
    before, found = Counter(HITS), walked([a, b])
    assert Counter(HITS) - before == Counter({"fused_backward": 1})
    assert found[x._node].numpy().tobytes() == seed_of(x).numpy().tobytes()
    a, _ = rt.fuse(lambda x, y, z: (x + 1.0, y * z))(x, y, z)
    before, found = Counter(HITS), walked([a])
    assert Counter(HITS) - before == Counter() and list(found) == [x._node]


STRUCTURES = {
    "tuple": lambda x, y: (x * y, x + y),
    "list": lambda x, y: [x * y, x + y],
    "dict": lambda x, y: {"b": x * y, "a": x + y, 3: None},
    "namedtuple": lambda x, y: Pair(x * y, x + y),
    "nested": lambda x, y: ({"a": [x * y, (x + y,)]}, Pair(x - y, ()), {}),
    "one in a tuple": lambda x, y: (x * y,),
    "constants": lambda x, y: (x * y, None, 3, 0.5, True, "text", x.shape, x.dtype, np.float32(2)),
}


def outline(value):
    """Everything about a structure but the numbers of its tensors."""
    if isinstance(value, rt.Tensor):
        return value.shape, value.dtype, value.is_require_grad(), value.numpy().tolist()
    if isinstance(value, dict):
        return type(value), [(k, outline(v)) for k, v in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), [outline(v) for v in value]
    return type(value), value


@pytest.mark.parametrize("name", STRUCTURES)
def test_results_come_back_as_the_function_returns_them(name, place):
    xs = draw(place, rt.float32, (4, 8), (8,))
    f, plain = rt.fuse(STRUCTURES[name]), STRUCTURES[name]
    before = Counter(HITS)
    found = f(*xs)
    assert Counter(HITS) - before == Counter({"fused_forward": 1})
    assert outline(found) == outline(plain(*xs))
    xs[0] = xs[0].require_grad()
    assert outline(f(*xs)) == outline(plain(*xs)) and outline(f(*xs[::-1])) == outline(plain(*xs[::-1]))


def test_inputs_constants_and_the_same_tensor_twice(place):
    def f(x, y):
        z = x * y
        return z, x, z, rt.zeros_like(x), x.detach(), (y, x * y), rt.ones_like(y) * 2.0

    x, y = (t.require_grad() for t in draw(place, rt.float32, (5, 8), (5, 8)))
    found, plain = rt.fuse(f)(x, y), f(x, y)
    assert outline(found) == outline(plain)
    assert found[1] is x and found[5][0] is y and found[2] is found[0] and found[5][1] is not found[0]
    for used in product((False, True), repeat=8):
        roots = [[t for t, there in zip(tensors_of(r), used) if there and t._node is not None] for r in (found, plain)]
        a, e = (walked(r, retain=True) for r in roots)
        assert set(a) == set(e)
        for node in a:
            np.testing.assert_allclose(a[node].numpy(), e[node].numpy(), rtol=1e-6)
    same = rt.fuse(lambda x, y: [y, x])
    before = Counter(HITS)
    assert same(x, y)[0] is y and Counter(HITS) == before


def test_results_that_depend_on_no_tracked_input_are_not_on_the_tape(place):
    x, y = draw(place, rt.float32, (5, 8), (5, 8))
    f = rt.fuse(lambda x, y: (x * 2.0, y * 3.0, x > y, (x * y).detach()))
    for a, b in ((x.require_grad(), y), (x, y.require_grad()), (x.require_grad(), y.require_grad()), (x, y)):
        assert [t.is_require_grad() for t in f(a, b)] == [a.is_require_grad(), b.is_require_grad(), False, False]


def shapes_and_dtypes(x, y):
    """Of inputs of shapes (n, m) and (m,): three shapes, four dtypes."""
    z = rt.exp(y * 0.25)
    return x * z, z + 1.0, (x > z), (x + y * 2.0).astype(rt.float32), y * y, (x * 3.0).astype(rt.int32)


@pytest.mark.parametrize("used", [(0,), (1,), (4,), (0, 1), (1, 3), (0, 1, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_results_of_other_shapes_and_dtypes(dtype, used, place):
    f = rt.fuse(shapes_and_dtypes)
    xs = draw(place, dtype, (6, 40), (40,))
    check(f, shapes_and_dtypes, xs, used)
    before = Counter(HITS)
    roots = tensors_of(f(*[x.require_grad() for x in xs]))
    assert HITS["fused_forward"] - before["fused_forward"] == 2, "one for each shape"
    walked([roots[i] for i in used])
    launched = (Counter(HITS) - before)["fused_backward"]
    assert launched == bool({0, 3} & {*used}) + bool({1, 4} & {*used})


def test_a_half_gradient_of_two_results_is_rounded_once(place):
    (x,) = draw(place, rt.bfloat16, (64,))
    leaf = x.require_grad()
    roots = rt.fuse(lambda x: (x * 1.0625, x * 1.0078125))(leaf)
    g = walked(roots)[leaf._node].astype(rt.float32).numpy()
    whole = rt.tensor(seed_of(x).astype(rt.float32).numpy() * np.float32(2.0703125), device=place).astype(rt.bfloat16)
    assert g.tolist() == whole.astype(rt.float32).numpy().tolist()


def test_a_half_result_beside_it_does_not_make_a_float32_result_quick(place):
    def f(x):
        z = rt.tanh(x) / (x * x + 0.3)
        return z.astype(rt.bfloat16), z

    (x,) = draw(place, rt.float32, (5000,))
    for used in ((1,), (0, 1)):
        values, gradients = run(rt.fuse(f), [x], used)
        exact, slopes = run(f, [x.astype(rt.float64)], used, False, False, order=2)
        near(values[1], exact[1], 4e-7, used)
        near(gradients[0], slopes[0], 2e-6, used)
    operation = rt.fuse(f)(x.require_grad())[1]._node.parents[0].op
    assert not operation.kind.program.quick and not operation.derivative.program.quick
    assert operation.partly((True, False)).program.quick, "its only result is rounded to a half type"


@pytest.mark.parametrize("name", LAYOUTS)
def test_views_are_read_where_they_lie(name, place):
    f = rt.fuse(gates)
    for dtype in (rt.float32, rt.bfloat16):
        x, y = draw(place, dtype, (12, 16), (12, 16))
        strange = rt.Tensor._wrap(LAYOUTS[name](x._data), place)
        for xs in ((strange, y), (y, strange)):
            straight = run(f, [x if t is strange else t for t in xs], (0, 1, 2))
            assert bits(run(f, xs, (0, 1, 2))) == bits(straight)


def test_too_many_unlike_axes_go_to_the_function_itself(place):
    (x,) = draw(place, rt.float32, (2, 3) * 5)
    turned = rt.permute_dims(x, tuple(range(8, -1, -2)) + tuple(range(9, 0, -2)))
    xs = [turned, rt.reshape(x, turned.shape)]
    before = Counter(HITS)
    run(rt.fuse(gates), xs, (0, 1))
    check(rt.fuse(gates), gates, xs, (0, 1))
    assert "fused_backward" not in Counter(HITS) - before


def test_two_structures_of_one_function_are_two_kinds(place):
    runs = []

    def f(x, how):
        runs.append(how)
        return {"pair": (x * 2.0, x * 3.0), "swapped": (x * 3.0, x * 2.0), "named": {"a": x * 2.0}, "one": x * 2.0}[how]

    g = rt.fuse(f)
    (x,) = draw(place, rt.float32, (4, 8))
    twice, thrice = (x * 2.0).tolist(), (x * 3.0).tolist()
    for _ in range(2):
        assert [t.tolist() for t in g(x, "pair")] == [twice, thrice] and [t.tolist() for t in g(x, "swapped")] == [thrice, twice]
        assert g(x, "named")["a"].tolist() == g(x, "one").tolist() == twice
    assert runs == ["pair", "swapped", "named", "one"]
    assert len(g(x[:2], "pair")) == 2 and len(runs) == 5


def test_texts_do_not_depend_on_what_was_asked_before(place, monkeypatch):
    texts = []
    for order in (SUBSETS, SUBSETS[::-1]):
        monkeypatch.setattr(generated, "_kernels", {})
        f, xs = rt.fuse(gates), draw(place, rt.float32, (9, 40), (9, 40))
        for used in order:
            run(f, xs, used)
        texts.append(sorted(generated._kernels))
    assert texts[0] == texts[1] and len(texts[0]) == 8
    (forward,) = [text for text in texts[0] if "fused_forward" in text]
    assert "const float v2 = v0 * v1;" in forward and all(f"b{k}.at[k]);" in forward for k in range(3))


def test_second_derivatives_go_by_the_function(place):
    x, y = draw(place, rt.float64, (3, 4), (4,))
    f = rt.fuse(lambda x, y: {"a": rt.tanh(x * y), "b": [y * y * y, x]})

    def total(f, x, y):
        out = f(x, y)
        return rt.sum(out["a"] * out["b"][1]) + rt.sum(out["b"][0])

    check_gradients(lambda x, y: total(f, x, y), x, y, order=2)
    second = ra.grad(lambda y: rt.sum(ra.grad(lambda y: rt.sum(f(x, y)["b"][0]))(y)))(y)
    np.testing.assert_allclose(second.numpy(), 6 * y.numpy(), rtol=1e-12)
    with pytest.raises(ra.HigherDerivativeUnsupported, match="<lambda>"):
        total(f, x.require_grad(), y).backward(order=2)


def test_checkpointing_gives_the_same_bits(place):
    f = rt.fuse(gates)
    xs = draw(place, rt.float32, (6, 40), (40,))
    assert bits(run(ra.checkpoint(f), xs, (0, 2))) == bits(run(f, xs, (0, 2)))
    results = []
    for strategy in ("none", "balanced"):
        leaves = [ra.Autodiff(place, checkpointing=strategy).leaf(t) for t in xs]
        a, b, c = f(rt.exp(leaves[0] * 0.1), leaves[1])
        a, _, c = f(b * rt.sin(a), c)
        root = rt.exp(a * 0.1) * c
        found = walked([root])
        results.append([found[t._node].numpy().tobytes() for t in leaves])
        if strategy == "balanced":
            assert a._node.recipe is not None and ra.memory_report(root).total == 0, "the results are computed again"
    assert results[0] == results[1]


def test_no_grad_retained_graphs_and_nan(place):
    x, y = (t.require_grad() for t in draw(place, rt.float32, (5, 8), (5, 8)))
    f = rt.fuse(gates)
    with ra.no_grad():
        assert not any(t.is_require_grad() for t in f(x, y))
    a, b, _ = f(x, y)
    first = walked([a, b], retain=True)
    assert first[x._node].tolist() == walked([a, b])[x._node].tolist()
    with pytest.raises(ra.GraphConsumed, match="retain_graph=True"):
        walked([a])
    with ra.anomaly_mode():
        z, w = rt.fuse(lambda x: (rt.sqrt(x) * 0.0, x + 1.0))(rt.zeros(3, dtype=rt.float32, device=place).require_grad())
        with pytest.raises(ra.AnomalyError, match="the derivative of '<lambda>' made the first NaN"):
            walked([z, w])


OUTSIDE = rt.ones(3)
REFUSED = {
    "a result that is ndarray": lambda x: (x, np.ones(3)),
    "a result that is OrderedDict": lambda x: OrderedDict(a=x * 2.0),
    "a result that is generator": lambda x: (y for y in (x, x)),
    "a result that is tuple without a tensor": lambda x: (None, 3.0),
    "a result that is a tensor from elsewhere": lambda x: (x * 2.0, OUTSIDE),
    "a result that is dict with tensors as keys": lambda x: {x: x * 2.0},
    "a result that is object": lambda x: {"a": [x, object()]},
    "'sum' is not elementwise": lambda x: (x * 2.0, rt.sum(x)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_a_result_is_named(message, place):
    (x,) = draw(place, rt.float32, (3,))
    with pytest.raises(FusionError, match=message) as caught:
        rt.fuse(REFUSED[message])(x)
    assert "rt.fuse(" in str(caught.value)


def test_on_a_plain_device_the_function_itself_runs():
    x = rt.ones(3, device=rt.Cpu())
    assert rt.fuse(lambda x: (x, OUTSIDE, rt.sum(x).item()))(x) == (x, OUTSIDE, 3.0)


@settings(max_examples=15)
@given(data=st.data(), shape=DIMENSIONS)
def test_any_results_agree_with_float64(data, shape):
    """Results of any expressions, shapes and dtypes, any of them used."""
    with pytest.MonkeyPatch.context() as patch, launching("shim", patch) as device:
        poison(device, patch)
        some = st.builds(lambda k, ones: tuple(n if one else 1 for n, one in zip(shape, ones))[k:], st.integers(0, 3), ONES)
        dtypes = st.sampled_from([rt.float32, rt.bfloat16, rt.float16])
        seed, wide = data.draw(st.integers(0, 99)), data.draw(st.booleans())
        xs = [draw(device, rt.float64 if wide else data.draw(dtypes), data.draw(some), seed=seed + i)[0] for i in range(3)]
        count = data.draw(st.integers(1, 4))
        texts = [f"({data.draw(expressions())}) * 0.5 + {data.draw(st.sampled_from('xyz'))}" for _ in range(count)]
        casts = [data.draw(st.none() | dtypes) for _ in texts]
        used = tuple(sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=1))))
        code = [compile(text, text, "eval") for text in texts]

        def f(x, y, z):
            values = [eval(c, {"rt": rt, "x": x, "y": y, "z": z}) for c in code]
            return [v if d is None or x.dtype == rt.float64 else v.astype(d) for v, d in zip(values, casts)]

        check(rt.fuse(f), f, xs, used, slack=8.0)
