"""Primitives as generated kernels: those of several calls, and all elementwise ones of half tensors."""
from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import HigherDerivativeUnsupported, grad, record
from ruda_autodiff.backward import backward
from ruda_tensor.fusion import function
from ruda_tensor.fusion.codegen import program
from ruda_tensor.fusion.trace import Trace
from ruda_tensor.kernels import generated
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS
from ruda_tensor.operation import Primitive, apply

from ._hooks import launching, seed_of

HALF = {rt.float16: 2.0**-11, rt.bfloat16: 2.0**-8}
ONE = Counter({"fused_forward": 1})
BOTH = Counter({"fused_forward": 1, "fused_backward": 1})


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


def draw(device, dtype, *shapes):
    rng = np.random.default_rng(0)
    return [rt.tensor(rng.standard_normal(s) * 2, dtype=dtype, device=device) for s in shapes]


def launched(f, *xs):
    before = Counter(HITS)
    y = f(*xs)
    return y, Counter(HITS) - before


OPERATIONS = {
    "add": lambda x, y: x + y, "multiply": lambda x, y: x * y, "divide": lambda x, y: x / (y * y + 1.0),
    "number": lambda x, y: x * 2.5, "number first": lambda x, y: 1.0 - x, "exp": lambda x, y: rt.exp(x),
    "clip": lambda x, y: rt.clip(x, -1.0, 1.5), "clip by one": lambda x, y: rt.clip(x, max=0.5), "pow": lambda x, y: x**3,
    "maximum": lambda x, y: rt.maximum(x, y), "atan2": lambda x, y: rt.atan2(x, y), "elu": lambda x, y: rt.elu(x, 0.7),
    "compare": lambda x, y: x > y, "sigmoid": lambda x, y: rt.sigmoid(x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_halves_are_read_and_written_once_and_rounded_once(name, dtype, place):
    f, xs = OPERATIONS[name], draw(place, dtype, (5, 33), (5, 33))
    leaves = [x.require_grad() for x in xs]
    y, kernels = launched(f, *leaves)
    several = 3 if name == "divide" else 1
    assert kernels == Counter({"fused_forward": several})
    with use_fused(False), record(order=2):
        wide = [x.astype(rt.float64).require_grad() for x in xs]
        exact = f(*wide)
    a, e = y.astype(rt.float64).numpy(), exact.astype(rt.float64).numpy()
    assert np.all(np.abs(a - e) <= several * 1.01 * HALF[dtype] * np.abs(e) + 2e-7)
    assert y.is_require_grad() == exact.is_require_grad()
    if y.is_require_grad():
        seed = seed_of(y)
        found, kernels = launched(lambda: backward(y, seed=seed))
        assert set(kernels) <= {"fused_backward", "fused_forward"}
        with use_fused(False):
            expected = backward(exact, seed=seed.astype(rt.float64))
        for x, z in zip(leaves, wide, strict=True):
            assert (found.get(x) is None) == (expected.get(z) is None)
            if found.get(x) is not None:
                a, e = found[x].astype(rt.float64).numpy(), expected[z].numpy()
                assert found[x].dtype == dtype and np.all(np.abs(a - e) <= 4 * HALF[dtype] * (np.abs(e) + np.abs(e).max() / 8))


def test_one_kernel_is_for_all_shapes_and_all_numbers(place, monkeypatch):
    (x,) = draw(place, rt.bfloat16, (64, 64))
    x * 2.5, x * x[:, :1], x * x[0]
    made = []
    monkeypatch.setattr(function, "Kind", lambda *a: made.append(a))
    real = generated.kernel
    monkeypatch.setattr(generated, "kernel", lambda *a: made.append(a))
    for number in (3, 0.1, -7.25, 0.0, 1e300):
        with np.errstate(over="ignore"):
            expected = (x.numpy().astype(np.float32) * np.float32(number)).astype(x.dtype)
        assert (x * number).numpy().tobytes() == expected.tobytes()
    monkeypatch.setattr(generated, "kernel", real)  # rows of another length may be read in other vectors
    for a, b in ((x[:5, :8], x[:5, :1]), (x[:3, :7], x[0, :7])):
        with use_fused(False):
            expected = a * b
        assert (a * b).numpy().tobytes() == expected.numpy().tobytes()
    assert not made


@pytest.mark.parametrize("then", [True, False])
def test_a_backward_of_other_shapes_than_the_first(place, then):
    x, y = draw(place, rt.bfloat16, (6, 8), (6, 1))
    for n in (8, 5, 1):
        a, b = x[:, :n].copy().require_grad(), y.require_grad()
        out = a * b
        with use_fused(then):
            g = backward(out, seed=rt.full(out.shape, 1.0, dtype=rt.bfloat16, device=place))
        np.testing.assert_array_equal(g[a].numpy(), np.broadcast_to(y.numpy(), (6, n)))
        wide = a.detach().astype(rt.float64).numpy().sum(1, keepdims=True)
        np.testing.assert_allclose(g[b].astype(rt.float64).numpy(), wide, rtol=2.0**-8, atol=2.0**-8)


def test_contributions_to_a_half_gradient_are_added_in_float32_by_one_kernel_each(place):
    x, y = (t.require_grad() for t in draw(place, rt.bfloat16, (5, 33), (5, 33)))
    out = x + x + y + x
    seed = rt.full(out.shape, 1.0 + 2.0**-7, dtype=rt.bfloat16, device=place)
    g, kernels = launched(lambda: backward(out, seed=seed))
    # The third makes a sum of the first two in float32, which it is added to; then the whole is rounded.
    assert kernels["fused_forward"] == 1 and set(kernels) <= {"fused_forward", "cast"}
    assert (g[x].astype(rt.float32).numpy() == rt.full((5, 33), 3 + 3 * 2.0**-7, dtype=rt.bfloat16, device=place).numpy()).all()
    assert g[x].dtype == g[y].dtype == rt.bfloat16 and (g[y].numpy() == seed.numpy()).all()


def test_broadcast_halves_give_gradients_of_their_own_shape(place):
    x, row, column = (t.require_grad() for t in draw(place, rt.bfloat16, (300, 40), (40,), (300, 1)))
    y = x * row + column
    g = backward(y, seed=rt.full(y.shape, 1.0, dtype=rt.bfloat16, device=place))
    np.testing.assert_allclose(g[row].astype(rt.float64).numpy(), x.astype(rt.float64).numpy().sum(0), rtol=5e-3, atol=0.05)
    assert (g[column].astype(rt.float32).numpy() == 40).all() and g[column].shape == (300, 1)
    np.testing.assert_array_equal(g[x].numpy(), np.broadcast_to(row.numpy(), (300, 40)))


def test_float32_operations_of_several_calls_are_one_kernel_each_way(place):
    x, y = (t.require_grad() for t in draw(place, rt.float32, (5, 33), (5, 33)))
    for f in (rt.softplus, rt.sigmoid, rt.logsigmoid, rt.elu, rt.leaky_relu, rt.mish, rt.tanh, rt.erf, rt.erfc, rt.rsqrt,
              lambda x: rt.clip(x, -1, 1), lambda x: rt.logaddexp(x, y), rt.relu6):  # fmt: skip
        out, kernels = launched(f, x)
        assert kernels == ONE
        _, kernels = launched(lambda out=out: backward(out, seed=seed_of(out)))
        assert kernels == Counter({"fused_backward": 1})
    for f in (rt.mse, rt.mae, rt.huber, rt.smooth_l1, rt.binary_cross_entropy_with_logits):
        out, kernels = launched(lambda f=f: backward(f(x, y), seed=rt.ones((), dtype=rt.float32, device=place)))
        assert kernels == BOTH


def test_what_is_not_elementwise_stays_as_it_is(place):
    (x,) = draw(place, rt.bfloat16, (6, 6))
    for f in (lambda x: x @ x, lambda x: rt.max(x, axis=1), lambda x: rt.cumulative_sum(x, axis=1)):
        _, kernels = launched(f, x)
        assert "fused_forward" not in kernels
    with pytest.raises(ValueError, match="do not broadcast"):
        x + x[:4]


def test_second_derivatives_and_the_switch(place):
    (x,) = draw(place, rt.bfloat16, (3, 8))
    with use_fused(False):
        _, kernels = launched(lambda: rt.exp(x) * x)
    assert not kernels
    second = grad(lambda x: rt.sum(grad(lambda x: rt.sum(x * x * x))(x)))(x)
    np.testing.assert_allclose(second.astype(rt.float32).numpy(), 6 * x.astype(rt.float32).numpy(), rtol=0.03)
    with pytest.raises(HigherDerivativeUnsupported, match="multiply"):
        (x.require_grad() * 3.0).sum().backward(order=2)


def test_a_primitive_of_one_s_own_is_generated_too(place):
    softsign = Primitive("softsign", lambda xp, x: x / (1.0 + xp.abs(x)), dx=lambda g, x: g / (1.0 + rt.abs(x)) ** 2)
    (x,) = draw(place, rt.float16, (4, 9))
    leaf = x.require_grad()
    y, kernels = launched(lambda: apply(softsign, (leaf,)))
    assert kernels == ONE and y._node.op.name == "softsign"
    g, kernels = launched(lambda: backward(y, seed=seed_of(y)))
    assert kernels == Counter({"fused_backward": 1})
    x, seed = x.numpy().astype(float), seed_of(y).numpy().astype(float)
    np.testing.assert_allclose(g[leaf].numpy(), seed / (1 + np.abs(x)) ** 2, rtol=2e-3, atol=1e-6)


def test_numpy_s_other_names_and_operators_in_a_body(place):
    def body(xp, x):
        return xp.absolute(x) ** 2 + xp.clip(x, -0.5, 0.5) ** 3 - xp.divide(xp.square(x), 2.0) + xp.reciprocal(x + 9.0) + -x

    op = Primitive("several", body, dx=lambda g: g)
    (x,) = draw(place, rt.bfloat16, (4, 9))
    y, kernels = launched(lambda: apply(op, (x,)))
    assert kernels == ONE
    with use_fused(False):
        np.testing.assert_allclose(y.numpy().astype(float), apply(op, (x,)).numpy().astype(float), rtol=2.0**-7)


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
def test_too_many_unlike_axes_go_to_the_plain_bodies(place, dtype):
    (x,) = draw(place, dtype, (2, 3) * 5)
    turned = rt.permute_dims(x, tuple(range(8, -1, -2)) + tuple(range(9, 0, -2)))
    f = rt.fuse(lambda x, y: x * y + 1.0)
    leaf, other = turned.require_grad(), rt.reshape(x, turned.shape)
    for g in (f, lambda x, y: x * y + 1.0):
        y, kernels = launched(lambda g=g: g(leaf, other))
        a, b, c = (t.detach().astype(rt.float32).numpy() for t in (y, turned, other))
        np.testing.assert_allclose(a, b * c + 1, rtol=0.02, atol=0.02)
        dx = backward(y, seed=rt.full(y.shape, 1.0, dtype=dtype, device=place))[leaf]
        assert kernels["fused_forward"] <= 1 and (dx.numpy() == other.numpy()).all() and dx.dtype == dtype


QUICK = {
    "exp": (lambda x, y: rt.exp(x), (-86.0, 86.0)), "tanh": (lambda x, y: rt.tanh(x), (-12.0, 12.0)),
    "small tanh": (lambda x, y: rt.tanh(x), (-0.3, 0.3)), "log1p": (lambda x, y: rt.log1p(x), (-0.9, 50.0)),
    "small log1p": (lambda x, y: rt.log1p(x), (-0.2, 0.2)), "quotient": (lambda x, y: x / y, (-9.0, 9.0)),
    "inverse": (lambda x, y: 1.0 / y, (-9.0, 9.0)), "quotient by a number": (lambda x, y: x / 3.0, (-9.0, 9.0)),
    "large quotient": (lambda x, y: (x * 1e37) / (y * 2e37), (-9.0, 9.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_quick_functions_are_far_better_than_half_types(name, place):
    """What rounding to a half type hides, seen in float32."""
    f, (low, high) = QUICK[name]
    rng = np.random.default_rng(0)
    x, y = (rt.tensor(rng.uniform(low, high, 5000), dtype=rt.float32, device=place) for _ in range(2))
    (out,) = Trace(f, [x, y], place).outs
    made, reads, _ = program("fused_forward", [out], True)
    (found,) = generated.run(place.xp, made, x.shape, [(x, y)[i]._data for i in reads])
    with np.errstate(all="ignore"):
        exact = f(*(t.astype(rt.float64).to_device(rt.Cpu()) for t in (x, y)))._data
    found = rt.Tensor._wrap(found, place).numpy().astype(float)
    assert np.all(np.abs(found - exact) <= 2.0**-17 * np.abs(exact))
