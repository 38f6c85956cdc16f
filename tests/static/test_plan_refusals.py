"""What a plan refuses, and that it refuses it before anything is computed."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.static import plan as plan_module
from ruda_tensor.static.kinds import KINDS

GraphOp, StaticGraph = rt.GraphOp, rt.StaticGraph
CPU = rt.Cpu()
REFUSED = (ValueError, TypeError)


@pytest.fixture(autouse=True)
def nothing_is_computed(monkeypatch):
    """Refusals come first: the operations of a plan that is refused never run."""

    def run(*args):
        raise AssertionError("computed before the plan was checked")

    monkeypatch.setattr(plan_module, "evaluate", run)


def ones(*shape, dtype=rt.float32):
    return rt.ones(shape, dtype=dtype, device=CPU)


def inputs():
    shapes = {"x": (2, 3), "y": (2, 3), "m": (3, 4), "w": (3,), "b": (2, 3, 4)}
    return {name: ones(*shape) for name, shape in shapes.items()} | {"h": ones(2, 3, dtype=rt.float16)}


def refused(match, nodes, given=None, **options):
    with pytest.raises(REFUSED, match=match) as caught:
        StaticGraph(inputs() if given is None else given, nodes, **options)
    message = str(caught.value)
    assert message.startswith("StaticGraph: ") and len(message) > 40
    return message


@pytest.mark.parametrize("kind", sorted(k for k, v in KINDS.items() if not v.scalar))
def test_RULE_80_an_unused_scalar_is_plus_zero(kind):
    left, right = {"mm": ("x", "m"), "bmm": ("b", "b")}.get(kind, ("x", "y" if KINDS[kind].right else None))
    for value in (-0.0, 1.0, 1e-60, math.nan, math.inf, np.float32(-0.0)):
        refused("scalar", [GraphOp(kind, "out", left, right, value)])


def test_RULE_80_nothing_broadcasts():
    for kind in (k for k, v in KINDS.items() if v.right and k not in ("mm", "bmm")):
        for right in ("w", "m", "b"):
            message = refused("nothing broadcasts", [GraphOp(kind, "out", "x", right)])
            assert "node 0" in message and repr("out") in message


def test_RULE_80_names_are_new():
    refused("'x' is an input already", [GraphOp("relu", "x", "x")])
    refused("'a' is the result of node 0 already", [GraphOp("relu", "a", "x"), GraphOp("exp", "a", "y")])
    refused("'a' is the result of node 0 already", [GraphOp("relu", "a", "x"), GraphOp("exp", "a", "a")], infer_dependencies=True)


def test_RULE_80_inputs_come_earlier():
    refused("'b2' is made by this node or a later one", [GraphOp("relu", "a", "b2"), GraphOp("exp", "b2", "x")])
    refused("'a' is made by this node or a later one", [GraphOp("relu", "a", "a")])
    refused("there is no tensor named 'q'", [GraphOp("relu", "a", "q")])
    refused("there is no tensor named 'q'", [GraphOp("mul", "a", "x", "q")], infer_dependencies=True)


def test_RULE_80_at_most_256_nodes_and_512_tensors():
    chain = [GraphOp("add_scalar", f"n{i}", "x" if i == 0 else f"n{i - 1}", scalar=1.0) for i in range(257)]
    refused("1 to 256 nodes, got 257", chain)
    refused("1 to 256 nodes, got 0", [])
    many = {f"x{i}": ones(1) for i in range(257)}
    refused("at most 512 tensors", [GraphOp("relu", f"n{i}", "x0") for i in range(256)], given=many)
    with pytest.raises(AssertionError, match="computed"):
        StaticGraph(inputs(), chain[:256]).replay()
    del many["x256"]
    StaticGraph(many, [GraphOp("relu", f"n{i}", "x0") for i in range(256)])


def test_RULE_80_outputs_are_unique_results():
    nodes = [GraphOp("relu", "a", "x"), GraphOp("exp", "c", "a")]
    refused("twice", nodes, outputs=("a", "a"))
    refused(r"\['x'\] are none", nodes, outputs=("a", "x"))
    refused(r"\['q'\] are none", nodes, outputs="q")
    refused("at least one", nodes, outputs=())
    refused(r"\[3\] are none", nodes, outputs=3)
    refused(r"\[\['a'\]\] are none", nodes, outputs=[["a"]])


@pytest.mark.parametrize("optimize", [False, True])
def test_RULE_80_a_node_that_nobody_uses_is_checked_too(optimize):
    good = GraphOp("relu", "a", "x")
    for bad in (
        GraphOp("mul", "u", "x", "w"), GraphOp("relu", "u", "x", scalar=-0.0), GraphOp("mm", "u", "x", "y"),
        GraphOp("softmax", "u", "x", scalar=2), GraphOp("rms_norm", "u", "x", "w", 0.0), GraphOp("nothing", "u", "x"),
    ):  # fmt: skip
        refused("'u'", [bad, good], optimize=optimize)
        refused("'u'", [good, bad], outputs="a", optimize=optimize)


def test_scalars_are_finite_in_float32():
    for value in (math.inf, -math.inf, math.nan, 1e39, -1e300, 10**400):
        for kind in ("add_scalar", "mul_scalar", "div_scalar"):
            refused("finite in float32", [GraphOp(kind, "a", "x", scalar=value)])
        refused("finite in float32", [GraphOp("add", "a", "x", "y", value)])
    for value in (True, "1", None, 1j, ones(1)):
        refused("scalar must be a number", [GraphOp("mul_scalar", "a", "x", scalar=value)])  # type: ignore[arg-type]


def test_rms_norm_has_an_eps_above_zero_and_a_fitting_weight():
    for eps in (0.0, -0.0, -1e-5, 1e-60, math.nan):
        refused("scalar", [GraphOp("rms_norm", "a", "x", scalar=eps)])
    refused("last size", [GraphOp.rms_norm("a", "x", "y")])
    refused("last size", [GraphOp.rms_norm("a", "b", "w")])
    refused("one dtype", [GraphOp.rms_norm("a", "h", "w")])


def test_axes_and_masks():
    for axis in (-1.0, -0.0, 2.0, 0.5, 1e9):
        for kind, right in (("softmax", None), ("log_softmax", None), ("softmax_backward", "y"), ("log_softmax_backward", "y")):
            refused("axis from 0 to 1", [GraphOp(kind, "a", "x", right, axis)])
    for mask in (0.0, -0.0, 4.0, -1.0, 1.5):
        for kind in ("sum_keepdim", "mean_keepdim"):
            refused("bit mask of axes from 1 to 3", [GraphOp(kind, "a", "x", scalar=mask)])


def test_products_have_their_ranks_and_sizes():
    for left, right in (("x", "y"), ("x", "b"), ("b", "b"), ("w", "m"), ("b", "m")):
        refused("mm takes shapes", [GraphOp("mm", "a", left, right)])
    for left, right in (("x", "m"), ("b", "b"), ("b", "m")):
        refused("bmm takes shapes", [GraphOp("bmm", "a", left, right)])
    given = {"p": ones(2, 3, 4), "q": ones(1, 4, 5)}
    refused("bmm takes shapes", [GraphOp("bmm", "a", "p", "q")], given=given)


def test_two_tensors_have_one_dtype_and_number_as_the_kind_needs():
    refused("one dtype", [GraphOp("mul", "a", "x", "h")])
    refused("right is None", [GraphOp("mul", "a", "x")])
    refused("leave right out", [GraphOp("relu", "a", "x", "y")])
    refused("no such kind", [GraphOp("gelu", "a", "x")])


def test_inputs_are_tensors_of_the_dtypes_and_sizes_taken():
    nodes = [GraphOp("relu", "a", "x")]
    for dtype in (rt.float64, rt.int32, rt.bool):
        refused("float32, float16 and bfloat16", nodes, given={"x": ones(2, dtype=dtype)})
    for shape in ((), (0,), (2, 0), (1,) * 9):
        refused("1 to 8 axes", nodes, given={"x": ones(*shape)})
    huge = rt.broadcast_to(ones(1, 1), (2**16, 2**16))
    refused("4294967295 elements", nodes, given={"x": huge})
    StaticGraph({"x": huge[1:]}, nodes)
    tall = rt.broadcast_to(ones(1, 1), (2**16, 1))
    refused("4294967295 elements", [GraphOp("mm", "a", "x", "t")], given={"x": tall, "t": tall.mT})
    refused("must be a tensor", nodes, given={"x": np.ones(2)})
    refused("not empty", nodes, given={"": ones(2)})
    refused("at least one", nodes, given={})
    refused("Cuda", nodes, given={"x": ones(2), "y": _elsewhere()})


def _elsewhere():
    """A tensor that says it is on a GPU."""
    return rt.Tensor._wrap(np.ones(2, np.float32), rt.Cuda(0))


def test_nodes_are_graph_ops_with_names():
    refused("nodes is a list of GraphOp", [("relu", "a", "x")])
    refused("nodes is a list of GraphOp", "relu")
    refused("nodes is a list of GraphOp", [GraphOp("relu", "a", "x"), None])
    refused("output is a string", [GraphOp("relu", "", "x")])
    refused("left is a string", [GraphOp("relu", "a", None)])  # type: ignore[arg-type]
    refused("right is a string", [GraphOp("mul", "a", "x", "")])


def test_circles_are_shown():
    nodes = [GraphOp("mul", "a", "x", "c"), GraphOp("relu", "b2", "a"), GraphOp("exp", "c", "b2"), GraphOp("exp", "d", "x")]
    message = refused("circle", nodes, infer_dependencies=True)
    assert all(f"'{name}'" in message for name in ("a", "b2", "c")) and "'d'" not in message


def test_tracked_inputs_need_the_training_form():
    refused("training=True", [GraphOp("relu", "a", "x")], given={"x": ones(2).require_grad()})
    refused("training=True", [GraphOp("relu", "a", "x")], given={"x": ones(2), "unused": ones(2).require_grad()})


def test_the_first_argument_says_which_form_it_is():
    for wrong in (None, 3, [ones(2)], "x"):
        with pytest.raises(TypeError, match="StaticGraph: the first argument"):
            StaticGraph(wrong, [])
    assert StaticGraph(inputs=inputs(), nodes=[GraphOp("relu", "a", "x")]).info["nodes"] == 1
