"""Running a plan: whose memory the outputs are, other inputs, completion, closing."""
from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Param

from ._plans import eager, same_bits

GraphOp, StaticGraph = rt.GraphOp, rt.StaticGraph
NODES = [GraphOp("exp", "a", "x"), GraphOp("mul", "b", "a", "y"), GraphOp("sum_keepdim", "c", "b", scalar=2)]


def numbers(device, *shape, seed=0):
    return rt.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=rt.float32, device=device)


def pair(device, seed=0):
    return {"x": numbers(device, 4, 6, seed=seed), "y": numbers(device, 4, 6, seed=seed + 100)}


def test_RULE_81_outputs_are_overwritten_by_the_next_replay(device):
    plan = StaticGraph(pair(device), NODES, outputs=("b", "c"))
    first = plan.replay()
    kept = [t.copy() for t in first]
    for seed, run in ((1, plan.replay), (2, plan.run_eager), (3, plan.replay)):
        second = run(pair(device, seed))
        expected = eager(pair(device, seed), NODES)
        for old, new, before, name in zip(first, second, kept, "bc", strict=True):
            same_bits(new, expected[name])
            same_bits(old, expected[name])
            assert not np.array_equal(new.numpy(), before.numpy())


def test_outputs_come_as_they_were_asked_for(device):
    given = pair(device)
    values = eager(given, NODES)
    same_bits(StaticGraph(given, NODES).replay(), values["c"])
    same_bits(StaticGraph(given, NODES, "a").replay(), values["a"])
    (only,) = StaticGraph(given, NODES, ["a"]).replay()
    same_bits(only, values["a"])
    for found, name in zip(StaticGraph(given, NODES, ("c", "a")).replay(), "ca", strict=True):
        same_bits(found, values[name])


def test_outputs_and_inputs_share_no_memory(device):
    x = numbers(device, 3, 4)
    before = x.numpy()
    for kind in ("copy", "abs", "relu", "floor"):
        out = StaticGraph({"x": x}, [GraphOp(kind, "y", "x")]).replay()
        assert device.kind != "cpu" or not np.shares_memory(out._data, x._data)
    plan = StaticGraph({"x": x}, [GraphOp("neg", "y", "x")])
    out = plan.replay()
    same_bits(plan.replay({"x": out}), x)  # an output may be an input of the next run
    np.testing.assert_array_equal(x.numpy(), before)


def test_other_inputs_stay_bound_and_are_checked_all_together(device):
    plan = StaticGraph(pair(device), NODES)
    plan.replay(pair(device, 1))
    same_bits(plan.replay(), eager(pair(device, 1), NODES)["c"])
    mixed = {"x": pair(device, 2)["x"], "y": pair(device, 1)["y"]}
    same_bits(plan.replay({"x": mixed["x"]}), eager(mixed, NODES)["c"])
    expected = plan.replay().copy()
    for wrong in (
        {"x": numbers(device, 4, 5)}, {"x": numbers(device, 6, 4).mT[:3]}, {"q": numbers(device, 4, 6)},
        {"x": rt.astype(numbers(device, 4, 6), rt.float16)}, {"x": numbers(device, 4, 6).require_grad()}, {"x": None},
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match="StaticGraph"):
            plan.replay({"y": numbers(device, 4, 6, seed=9), **wrong})
        same_bits(plan.replay(), expected)
    view = numbers(device, 6, 4, seed=5).mT
    same_bits(plan.replay({"x": view}), eager({**mixed, "x": view}, NODES)["c"])


def test_memory_that_changes_under_an_input_is_read_again(device):
    base = device.xp.ones((3,), np.float32)
    plan = StaticGraph({"x": rt.Tensor._wrap(base, device)}, [GraphOp("mul_scalar", "y", "x", scalar=2.0)])
    assert plan.replay().tolist() == [2.0] * 3
    base[...] = 5.0
    assert plan.replay().tolist() == [10.0] * 3
    other = device.xp.full((3,), 7.0, np.float32)
    assert plan.replay({"x": rt.Tensor._wrap(other, device)}).tolist() == [14.0] * 3
    other[...] = 8.0
    assert plan.replay().tolist() == [16.0] * 3


def test_a_consumed_parameter_is_named():
    p = Param(rt.ones(3, device=rt.Cpu()), trainable=False)
    plan = StaticGraph({"w": p}, [GraphOp("relu", "y", "w")])
    plan.replay()
    p.consume()
    with pytest.raises(RuntimeError, match=r"input 'w' was consumed .*graph.replay\(\{\"w\": model.weight\}\)"):
        plan.replay()
    assert plan.replay({"w": rt.ones(3, device=rt.Cpu())}).tolist() == [1.0] * 3


def test_dependencies_are_inferred(device):
    given = pair(device)
    shuffled = [NODES[2], NODES[0], NODES[1]]
    plan = StaticGraph(given, shuffled, infer_dependencies=True)
    same_bits(plan.replay(), eager(given, NODES)["b"])  # the last node of the list as it was given
    deep = [GraphOp("add_scalar", f"n{i}", f"n{i - 1}" if i else "x", scalar=1.0) for i in range(256)]
    same_bits(
        StaticGraph(given, deep[::-1], outputs="n255", infer_dependencies=True).replay(), StaticGraph(given, deep).replay()
    )


def test_completion_is_tracked_where_it_was_asked_for(device):
    plain, plan = StaticGraph(pair(device), NODES), StaticGraph(pair(device), NODES, track_completion=True)
    for call in (plain.query_completion, plain.wait_completion):
        with pytest.raises(RuntimeError, match="track_completion=True"):
            call()
    plan.wait_completion()
    assert plan.query_completion()
    plan.replay()
    plan.wait_completion()
    assert plan.query_completion()
    plan.synchronize()
    assert plan.query() and plain.query()


def test_a_closed_plan_refuses_work_and_its_outputs_live_on(device):
    with StaticGraph(pair(device), NODES, track_completion=True) as plan:
        out = plan.replay()
        expected = out.copy()
    same_bits(out, expected)
    for what in ("replay", "run_eager", "synchronize", "query", "query_completion", "wait_completion"):
        with pytest.raises(RuntimeError, match=f"{what} was asked of a closed graph"):
            getattr(plan, what)()
    with pytest.raises(RuntimeError, match="closed"), plan:
        pass
    plan.close()
    assert plan.info["nodes"] == 3 and "closed" in repr(plan)
    numbers(device, 4, 6)
    same_bits(out, expected)


def test_closing_lets_the_inputs_go(device):
    given = pair(device)
    watch = weakref.ref(given["x"])
    plan = StaticGraph(given, NODES)
    plan.replay()
    del given
    assert watch() is not None
    plan.close()
    gc.collect()
    assert watch() is None


def test_an_exception_inside_with_closes_too():
    with pytest.raises(ZeroDivisionError), StaticGraph(pair(rt.Cpu()), NODES) as plan:
        _ = 1 / 0
    with pytest.raises(RuntimeError, match="closed"):
        plan.replay()


@pytest.mark.gpu
def test_on_a_gpu_a_plan_is_one_graph():
    device = rt.Cuda(0)
    plan = StaticGraph(pair(device), NODES)
    assert plan.info["graph_nodes"] >= 3 and plan.info["graph_bytes"] > 0
    out = plan.replay()
    place = out._data.data.ptr
    for seed in range(4):  # the first other input makes the plan record once more; the outputs stay where they are
        found = plan.replay(pair(device, seed))
        assert found is out and out._data.data.ptr == place
        same_bits(found, eager(pair(device, seed), NODES)["c"])


def test_inside_a_captured_step_a_plan_becomes_part_of_it(device):
    plan = StaticGraph(pair(device), NODES)
    outside = plan.replay().copy()
    step = StaticGraph(lambda x, y: plan.replay({"x": x, "y": y}) * 2.0, *pair(device).values())
    for seed in range(4):
        given = pair(device, seed)
        same_bits(step.replay(*given.values()), eager(given, NODES)["c"] * 2.0)
    same_bits(plan.replay(pair(device)), outside)
    plan.close()
    step.close()


@pytest.mark.gpu
def test_a_plan_is_not_made_inside_a_captured_step():
    device = rt.Cuda(0)
    given = pair(device)
    step = StaticGraph(lambda x, y: StaticGraph({"x": x, "y": y}, NODES).replay(), *given.values())
    step.replay(*given.values())  # the first run of a step is eager
    with pytest.raises(rt.CaptureError, match="making a plan cannot be part of a captured step"):
        step.replay(*given.values())
    same_bits(StaticGraph(given, NODES).replay(), eager(given, NODES)["c"])
