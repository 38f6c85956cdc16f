"""optimize and reuse_workspace: what they change, what they leave alone, and what the plan says it holds."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.static.checks import checked
from ruda_tensor.static.passes import fused, last_uses, pruned, workspace

from ._plans import DTYPES, eager, same_bits

GraphOp, StaticGraph = rt.GraphOp, rt.StaticGraph
CPU = rt.Cpu()


def given(device=CPU, dtype=rt.float32):
    rng = np.random.default_rng(0)
    return {name: rt.tensor(rng.standard_normal((4, 6)) * 3, dtype=dtype, device=device) for name in "xyz"}


def optimized(nodes, outputs):
    """The kinds that run, in order."""
    steps = checked(given(), nodes, False)
    return [step.kind for step in fused(pruned(steps, outputs), outputs)]


GATED = [GraphOp.silu("s", "x"), GraphOp.mul("p", "s", "y")]


def test_a_silu_on_the_left_that_nobody_else_sees_is_fused():
    assert optimized(GATED, ("p",)) == ["silu_mul"]
    between = [GATED[0], GraphOp("exp", "e", "y"), GraphOp.mul("p", "s", "e")]
    assert optimized(between, ("p",)) == ["exp", "silu_mul"]
    twice = [*GATED, GraphOp.silu("t", "p"), GraphOp.mul("q", "t", "y")]
    assert optimized(twice, ("q",)) == ["silu_mul", "silu_mul"]


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (GATED, ("p", "s")),  # requested
        ([*GATED, GraphOp("exp", "e", "s")], ("p", "e")),  # shared
        ([GATED[0], GraphOp.mul("p", "s", "s")], ("p",)),  # shared with itself
        ([GATED[0], GraphOp.mul("p", "y", "s")], ("p",)),  # on the right
        ([GATED[0], GraphOp("div", "p", "s", "y")], ("p",)),  # not a product
        ([GraphOp("sigmoid", "s", "x"), GATED[1]], ("p",)),  # not a silu
    ],
)
def test_another_silu_is_left_alone(nodes, outputs):
    assert optimized(nodes, outputs) == [node.kind for node in nodes]


def test_a_silu_whose_other_user_is_pruned_is_fused():
    assert optimized([*GATED, GraphOp("exp", "e", "s")], ("p",)) == ["silu_mul"]


def test_what_no_output_needs_is_left_out():
    nodes = [GraphOp("exp", "a", "x"), GraphOp("relu", "dead", "a"), GraphOp("neg", "worse", "dead"), GraphOp("sin", "b", "a")]
    assert optimized(nodes, ("b",)) == ["exp", "sin"]
    assert optimized(nodes, ("worse",)) == ["exp", "relu", "neg"]
    plan = StaticGraph(given(), nodes, "b", optimize=True)
    assert plan.info["nodes"] == 2 and StaticGraph(given(), nodes, "b").info["nodes"] == 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fusing_changes_no_bit(device, dtype):
    tensors = given(device, dtype)
    nodes = [*GATED, GraphOp("softmax", "q", "p", scalar=1)]
    expected = eager(tensors, nodes)["q"]
    for optimize in (False, True):
        same_bits(StaticGraph(tensors, nodes, optimize=optimize).replay(), expected)


def sizes(nodes, outputs=None, **options):
    info = StaticGraph(given(), nodes, outputs, **options).info
    return info["workspace_bytes"], info["logical_workspace_bytes"], info["unoptimized_workspace_bytes"]


def test_the_bytes_of_a_chain():
    one = 4 * 6 * 4
    chain = [GraphOp("add_scalar", f"n{i}", f"n{i - 1}" if i else "x", scalar=1.0) for i in range(10)]
    assert sizes(chain) == (10 * one,) * 3
    # two buffers that alternate, and one of the output's own
    assert sizes(chain, reuse_workspace=True) == (3 * one, 10 * one, 10 * one)
    assert sizes(chain, "n4", reuse_workspace=True) == (3 * one, 10 * one, 10 * one)
    assert sizes(chain, "n4", optimize=True) == (5 * one, 5 * one, 10 * one)
    assert sizes(chain, "n4", optimize=True, reuse_workspace=True) == (3 * one, 5 * one, 10 * one)
    every = tuple(f"n{i}" for i in range(10))
    assert sizes(chain, every, optimize=True, reuse_workspace=True) == (10 * one,) * 3
    assert sizes(GATED, optimize=True) == (one, one, 2 * one)


def test_only_whole_buffers_of_one_shape_and_dtype_are_used_again():
    nodes = [
        GraphOp("sum_keepdim", "row", "x", scalar=1), GraphOp("exp", "row2", "row"), GraphOp("exp", "full", "x"),
        GraphOp("sum_keepdim", "row3", "full", scalar=1), GraphOp("exp", "out", "row3"),
    ]  # fmt: skip
    row, full = 6 * 4, 4 * 6 * 4
    # row and row2 are free when row3 comes; `full` takes neither, and `out` is an output
    assert sizes(nodes, reuse_workspace=True) == (3 * row + full, 4 * row + full, 4 * row + full)


def test_a_result_never_takes_the_buffer_of_what_its_node_reads():
    steps = checked(given(), [GraphOp("exp", b, a) for a, b in ("xa", "ab", "bc", "cd")], False)
    dead = last_uses(steps, ("d",))
    assert dead == [(), ("a",), ("b",), ("c",)]
    assert workspace(steps, ("d",), dead) == 3 * steps[0].nbytes  # c takes that of a, and d is an output
    assert workspace(steps, ("d",), None) == 4 * steps[0].nbytes


@pytest.mark.parametrize("optimize", [False, True])
def test_an_unused_result_is_freed_at_once_and_an_output_never(optimize):
    nodes = [GraphOp("exp", "a", "x"), GraphOp("neg", "unused", "x"), GraphOp("mul", "b", "a", "a"), GraphOp("sin", "c", "b")]
    outputs = ("a", "c")
    steps = checked(given(), nodes, False)
    if optimize:
        steps = pruned(steps, outputs)
    freed = [name for names in last_uses(steps, outputs) for name in names]
    assert sorted(freed) == (["b"] if optimize else ["b", "unused"])
    plan = StaticGraph(given(), nodes, outputs, optimize=optimize, reuse_workspace=True)
    for found, name in zip(plan.replay(), outputs, strict=True):
        same_bits(found, eager(given(), nodes)[name])


@pytest.mark.gpu
def test_reused_memory_is_less_memory_on_a_gpu():
    x = {"x": rt.ones((1 << 20,), device=rt.Cuda(0))}
    chain = [GraphOp("add_scalar", f"n{i}", f"n{i - 1}" if i else "x", scalar=1.0) for i in range(16)]
    plain, reused = (StaticGraph(x, chain, reuse_workspace=reuse) for reuse in (False, True))
    assert plain.info["workspace_bytes"] == 64 << 20 and reused.info["workspace_bytes"] == 12 << 20
    assert reused.info["graph_bytes"] < 16 << 20 < 60 << 20 < plain.info["graph_bytes"]
    for plan in (plain, reused):
        assert plan.replay().numpy()[[0, -1]].tolist() == [17.0, 17.0]
