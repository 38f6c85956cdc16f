"""Random plans: the bits of the eager operations, whatever the options, and the gradients of the eager composition."""
from __future__ import annotations

import math
import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import ruda_tensor as rt

from ._plans import DTYPES, EAGER, eager, same_bits

GraphOp, StaticGraph = rt.GraphOp, rt.StaticGraph
# Those whose values stay tame when they are chained; the others have their tests one by one.
UNARY = "copy relu sigmoid silu tanh sin cos abs sign floor ceil trunc asinh hardsigmoid hardswish neg".split()
BINARY = "mul silu_mul sigmoid_backward tanh_backward add".split()
ALONG = ["softmax", "log_softmax"]
SMOOTH = [kind for kind in UNARY if kind not in ("sign", "floor", "ceil", "trunc")]


def _product(x, y):
    """True where x @ y is a product without broadcasting, of matrices or of batches."""
    return len(x) == len(y) and len(x) in (2, 3) and x[:-2] == y[:-2] and x[-1] == y[-2]


@st.composite
def plans(draw, unary=tuple(UNARY), most=12):
    """(shapes of inputs, nodes, names of outputs)."""
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    shapes = {f"x{i}": shape for i in range(draw(st.integers(1, 3)))}
    if rank > 1:
        shapes["w"] = (*shape[:-2], shape[-1], draw(st.integers(1, 5)))
    known = dict(shapes)
    nodes = []
    for i in range(draw(st.integers(1, most))):
        left = draw(st.sampled_from(sorted(known)))
        partners = sorted(name for name, s in known.items() if s == known[left])
        factors = sorted(name for name, s in known.items() if _product(known[left], s))
        others = ["silu", "mul", "sum_keepdim", "mean_keepdim", "mul_scalar", "rms_norm"]
        kind = draw(st.sampled_from([*unary, *BINARY, *ALONG, *others, *(["mm" if rank == 2 else "bmm"] * 4 if factors else [])]))
        right, scalar, out = None, 0.0, known[left]
        if kind in BINARY:
            right = draw(st.sampled_from(partners))
        if kind in ("mm", "bmm"):
            right = draw(st.sampled_from(factors))
            out = (*out[:-1], known[right][-1])
        elif kind == "rms_norm":
            scalar = 0.1
        elif kind in ("add", "mul_scalar"):
            scalar = draw(st.sampled_from([1.0, 0.5, -0.3]))
        elif kind in ALONG:
            scalar = float(draw(st.integers(0, rank - 1)))
        elif kind.endswith("keepdim"):
            mask = draw(st.integers(1, (1 << rank) - 1))
            scalar, out = float(mask), tuple(1 if mask >> j & 1 else n for j, n in enumerate(out))
        name = f"n{i}"
        nodes.append(GraphOp(kind, name, left, right, scalar))
        known[name] = out
    made = [node.output for node in nodes]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return shapes, nodes, tuple(outputs)


def values(shapes, dtype, device, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rt.tensor(rng.standard_normal(shape), dtype=dtype, device=device) for name, shape in shapes.items()}


def agree(plan, dtype, device, seed):
    shapes, nodes, outputs = plan
    inputs = values(shapes, dtype, device)
    with np.errstate(all="ignore"):
        first = eager(inputs, nodes)
        other = values(shapes, dtype, device, seed=1)
        second = eager(other, nodes)
    shuffled = random.Random(seed).sample(nodes, len(nodes))
    for options in (
        {}, {"optimize": True}, {"reuse_workspace": True}, {"optimize": True, "reuse_workspace": True},
        {"infer_dependencies": True, "optimize": True, "reuse_workspace": True}, {"training": True},
    ):  # fmt: skip
        with StaticGraph(inputs, shuffled if "infer_dependencies" in options else nodes, outputs, **options) as graph:
            found = graph.replay()
            for y, name in zip(found, outputs, strict=True):
                same_bits(y, first[name])
            for y, name in zip(graph.run_eager(), outputs, strict=True):
                same_bits(y, first[name])
            for y, name in zip(graph.replay(other), outputs, strict=True):
                same_bits(y, second[name])
            info = graph.info
            assert info["workspace_bytes"] <= info["logical_workspace_bytes"] <= info["unoptimized_workspace_bytes"]
            assert info["workspace_bytes"] >= sum(y.nbytes for y in found)


@settings(max_examples=150)
@given(plan=plans(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 9))
def test_a_plan_has_the_bits_of_its_eager_operations(plan, dtype, seed):
    agree(plan, dtype, rt.Cpu(), seed)


@pytest.mark.gpu
@settings(max_examples=25)
@given(plan=plans(), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 9))
def test_a_plan_on_a_gpu_has_the_bits_of_its_eager_operations(plan, dtype, seed):
    agree(plan, dtype, rt.Cuda(0), seed)


def gradients_agree(plan, dtype, device, optimize):
    shapes, nodes, outputs = plan
    leaves = {name: x.require_grad() for name, x in values(shapes, dtype, device).items()}
    found = StaticGraph(leaves, nodes, outputs, optimize=optimize, training=True).replay()
    expected = eager(leaves, nodes)
    results = []
    for ys in (found, [expected[name] for name in outputs]):
        if not any(y.is_require_grad() for y in ys):
            results.append(dict.fromkeys(leaves))
            continue
        loss = sum(rt.sum(rt.astype(y, rt.float32) * (i + 1.0)) for i, y in enumerate(ys))
        gradients = loss.backward()
        results.append({name: gradients.get(x) for name, x in leaves.items()})
    for name in leaves:
        mine, theirs = (r[name] for r in results)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            tolerance = {rt.float32: 2e-5, rt.float16: 1e-2, rt.bfloat16: 8e-2}[dtype]
            mine, theirs = (rt.astype(g, rt.float64).numpy() for g in (mine, theirs))
            scale = max(1.0, float(np.abs(theirs).max()))
            assert not np.isnan(theirs).any() and math.isfinite(scale)
            np.testing.assert_allclose(mine, theirs, atol=tolerance * scale, rtol=0)


@given(plan=plans(tuple(SMOOTH), most=6), dtype=st.sampled_from(DTYPES), optimize=st.booleans())
def test_the_gradients_are_those_of_the_eager_composition(plan, dtype, optimize):
    gradients_agree(plan, dtype, rt.Cpu(), optimize)


@pytest.mark.gpu
@settings(max_examples=20)
@given(plan=plans(tuple(SMOOTH), most=6), dtype=st.sampled_from(DTYPES), optimize=st.booleans())
def test_the_gradients_on_a_gpu_are_those_of_the_eager_composition(plan, dtype, optimize):
    gradients_agree(plan, dtype, rt.Cuda(0), optimize)


def test_the_kinds_drawn_are_kinds():
    assert {*UNARY, *BINARY, *ALONG} <= {*EAGER}
