"""Every kind of node: its bits are the eager operation's, and its numbers a float64 formula's."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.static.kinds import KINDS

from ._plans import DTYPES, EAGER, FLOAT64, inputs_for, same_bits, tensors

GraphOp, StaticGraph = rt.GraphOp, rt.StaticGraph
TABLE = (
    "copy relu exp log sqrt rsqrt sigmoid silu tanh sin cos abs sign floor ceil trunc reciprocal log1p sinh cosh asinh "
    "acosh atanh hardsigmoid hardswish neg add mul div silu_backward sigmoid_backward tanh_backward silu_mul add_scalar "
    "mul_scalar div_scalar mm bmm rms_norm softmax log_softmax softmax_backward log_softmax_backward sum_keepdim mean_keepdim"
)
TOLERANCE = {rt.float32: 2e-6, rt.float16: 1e-3, rt.bfloat16: 8e-3}


def test_the_kinds_are_those_of_the_table():
    assert set(KINDS) == set(TABLE.split()) == set(FLOAT64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", TABLE.split())
def test_a_kind_has_the_numbers_of_its_formula(device, rng, kind, dtype):
    for shape in ((3, 5), (64, 33), (2, 3, 40)) if kind not in ("mm", "bmm") else ((3, 5), (65, 33)):
        x, y, s = inputs_for(kind, rng, shape)
        given = tensors(device, dtype, x, y)
        plan = StaticGraph(given, [GraphOp(kind, "out", "x", None if y is None else "y", s)])
        stored = [rt.astype(t, rt.float64).numpy() for t in given.values()]
        expected = FLOAT64[kind](stored[0], stored[1] if y is not None else None, s)
        found = plan.replay()
        assert found.dtype == dtype and found.device == device
        scale = np.maximum(np.abs(expected), 1.0) * (4 if kind in ("mm", "bmm", "sum_keepdim") else 1)
        assert np.all(np.abs(rt.astype(found, rt.float64).numpy() - expected) <= TOLERANCE[dtype] * scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", sorted(EAGER))
def test_a_kind_has_the_bits_of_the_eager_operation(device, rng, kind, dtype):
    for shape in ((1, 1), (3, 5), (64, 33)):
        x, y, s = inputs_for(kind, rng, shape)
        given = tensors(device, dtype, x, y)
        plan = StaticGraph(given, [GraphOp(kind, "out", "x", None if y is None else "y", s)])
        expected = EAGER[kind](given["x"], given.get("y"), s)
        for run in (plan.replay, plan.run_eager, plan.replay):
            same_bits(run(), expected)
        assert device.kind != "cpu" or not any(np.shares_memory(plan.replay()._data, t._data) for t in given.values())


@pytest.mark.parametrize("kind", ["softmax", "log_softmax"])
def test_the_backward_of_a_softmax_has_the_bits_of_the_tape(device, rng, kind):
    for shape, axis in (((4, 7), 1), ((4, 7), 0), ((2, 3, 5), 1)):
        x = rt.tensor(rng.standard_normal(shape), dtype=rt.float32, device=device)
        g = rt.tensor(rng.standard_normal(shape), dtype=rt.float32, device=device)
        leaf = x.require_grad()
        out = getattr(rt, kind)(leaf, axis=axis)
        expected = leaf.grad(rt.sum(out * g).backward())
        plan = StaticGraph({"g": g, "p": out.detach()}, [GraphOp(f"{kind}_backward", "dx", "g", "p", axis)])
        same_bits(plan.replay(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_alpha_is_applied_before_the_one_rounding(device, rng, dtype):
    given = tensors(device, dtype, rng.standard_normal(50), rng.standard_normal(50))
    for alpha in (1.0, -1.0, 0.0, 0.3):
        out = StaticGraph(given, [GraphOp.add("z", "x", "y", alpha)]).replay()
        same_bits(out, EAGER["add"](given["x"], given["y"], alpha))
    same_bits(StaticGraph(given, [GraphOp.add("z", "x", "y")]).replay(), given["x"] + given["y"])
    same_bits(StaticGraph(given, [GraphOp("add", "z", "x", "y")]).replay(), given["x"] + given["y"] * 0.0)


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16], ids=str)
def test_RULE_72_silu_is_rounded_before_the_product(device, rng, dtype):
    given = tensors(device, dtype, rng.standard_normal(4096) * 3, rng.standard_normal(4096) * 3)
    out = StaticGraph(given, [GraphOp.silu_mul("z", "x", "y")]).replay()
    same_bits(out, rt.multiply(rt.silu(given["x"]), given["y"]))
    wide = [rt.astype(t, rt.float32) for t in given.values()]
    assert np.any((out != rt.astype(rt.silu(wide[0]) * wide[1], dtype)).numpy())


def test_special_values_come_through_without_a_warning(device):
    x = rt.tensor([rt.nan, rt.inf, -rt.inf, 0.0, -0.0, -1.0, 3e38], device=device)
    for kind in ("log", "sqrt", "rsqrt", "reciprocal", "exp", "acosh", "atanh", "cosh", "relu", "neg", "copy"):
        with np.errstate(all="ignore"):
            expected = EAGER[kind](x, None, 0.0)
        np.testing.assert_array_equal(StaticGraph({"x": x}, [GraphOp(kind, "y", "x")]).replay().numpy(), expected.numpy())
    squares = StaticGraph({"x": x}, [GraphOp.mul("y", "x", "x")]).replay().numpy()
    np.testing.assert_array_equal(squares, [rt.nan, rt.inf, rt.inf, 0, 0, 1, rt.inf])
    assert StaticGraph({"x": x}, [GraphOp("div_scalar", "y", "x", scalar=0.0)]).replay().numpy()[5] == -rt.inf


def test_reductions_take_a_mask_of_axes(device, rng):
    x = rt.tensor(rng.standard_normal((2, 3, 4)), dtype=rt.float32, device=device)
    for mask in range(1, 8):
        axes = tuple(i for i in range(3) if mask >> i & 1)
        for kind, f in (("sum_keepdim", rt.sum), ("mean_keepdim", rt.mean)):
            out = StaticGraph({"x": x}, [GraphOp(kind, "y", "x", scalar=mask)]).replay()
            same_bits(out, f(x, axis=axes, keepdims=True))


def test_views_and_all_ranks_are_taken(device, rng):
    base = rng.standard_normal((6, 10)).astype(np.float32)
    x = rt.tensor(base, device=device)
    for view in (x.mT, x[::2, 1::3], x[:, :1], rt.broadcast_to(x[:1], (6, 10))):
        same_bits(StaticGraph({"x": view}, [GraphOp("exp", "y", "x")]).replay(), rt.exp(view))
    for rank in range(1, 9):
        x = rt.tensor(rng.standard_normal((2,) * rank), dtype=rt.float32, device=device)
        same_bits(StaticGraph({"x": x}, [GraphOp("softmax", "y", "x", scalar=rank - 1)]).replay(), rt.softmax(x))


def test_what_the_constructors_of_nodes_make():
    assert GraphOp.copy("y", "x") == GraphOp("copy", "y", "x")
    assert GraphOp.add("z", "x", "y", alpha=2) == GraphOp("add", "z", "x", "y", 2)
    assert GraphOp.mul("z", "x", "y") == GraphOp("mul", "z", "x", "y")
    assert GraphOp.silu("y", "x") == GraphOp("silu", "y", "x")
    assert GraphOp.silu_mul("z", "x", "y") == GraphOp("silu_mul", "z", "x", "y")
    assert GraphOp.rms_norm("y", "x") == GraphOp("rms_norm", "y", "x", None, 1e-5)
    assert GraphOp.rms_norm("y", "x", "w", eps=1e-6) == GraphOp("rms_norm", "y", "x", "w", 1e-6)
