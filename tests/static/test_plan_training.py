"""The training form: independent outputs, snapshots of what was read, and gradients by computing the plan again."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_autodiff import Autodiff, HigherDerivativeUnsupported
from ruda_nn import LinearConfig
from ruda_optim import GradientsParams, SgdConfig
from ruda_tensor.static import plan as plan_module

from ._plans import DTYPES, EAGER, FLOAT64, eager, inputs_for, same_bits, tensors

GraphOp, StaticGraph = rt.GraphOp, rt.StaticGraph
GATE = [
    GraphOp("mm", "h", "x", "w"), GraphOp.silu("s", "h"), GraphOp.mul("p", "s", "h"), GraphOp("mean_keepdim", "m", "p", scalar=2),
]  # fmt: skip


def layer(device, dtype=rt.float32, seed=0):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((5, 4)), rng.standard_normal((4, 3))
    return {"x": rt.tensor(x, dtype=dtype, device=device), "w": rt.tensor(w, dtype=dtype, device=device).require_grad()}


def grads(y, *leaves):
    gradients = rt.sum(rt.astype(y, rt.float32)).backward()
    return [gradients.get(x) for x in leaves]


def test_RULE_81_training_outputs_are_independent(device):
    plan = StaticGraph(layer(device), GATE, ("h", "m"), training=True)
    first = plan.replay()
    kept = [y.copy() for y in first]
    second = plan.replay(layer(device, seed=1))
    for a, b, before in zip(first, second, kept, strict=True):
        assert a is not b
        same_bits(a, before)
        assert not np.array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_have_the_bits_of_the_eager_composition(device, dtype, optimize):
    given = layer(device, dtype)
    out = StaticGraph(given, GATE, optimize=optimize, training=True).replay()
    expected = eager(given, GATE)["m"]
    same_bits(out, expected)
    for mine, theirs in zip(grads(out, given["w"]), grads(expected, given["w"]), strict=True):
        if optimize and device.launches:  # silu_mul is one kernel there, whose backward rounds once where two did
            mine, theirs = (rt.astype(g, rt.float64).numpy() for g in (mine, theirs))
            eps = {rt.float32: 2.0**-22, rt.float16: 2.0**-9, rt.bfloat16: 2.0**-6}[dtype]
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=4 * eps * np.abs(theirs).max())
        else:
            same_bits(mine, theirs)


@pytest.mark.parametrize("kind", sorted(FLOAT64))
def test_a_kind_is_differentiated_by_finite_differences_of_its_formula(device, rng, kind):
    x, y, s = inputs_for(kind, rng)
    if kind in ("relu", "abs", "hardsigmoid", "hardswish"):
        x = x + 0.05 * np.sign(x)
    if kind in ("floor", "ceil", "trunc", "sign"):
        x = np.floor(x) + 0.5
    leaves = {n: t.require_grad() for n, t in tensors(device, rt.float32, x, y).items()}
    out = StaticGraph(leaves, [GraphOp(kind, "out", "x", "y" if "y" in leaves else None, s)], training=True).replay()
    weight = rng.standard_normal(out.shape)
    gradients = rt.sum(out * rt.tensor(weight, dtype=rt.float32, device=device)).backward()
    for i, leaf in enumerate(leaves.values()):
        arguments = [t.numpy().astype(np.float64) for t in leaves.values()]
        direction = rng.standard_normal(leaf.shape)

        def at(step, arguments=arguments, i=i, direction=direction):
            moved = [a + step * direction if j == i else a for j, a in enumerate(arguments)]
            return float((FLOAT64[kind](moved[0], moved[1] if len(moved) == 2 else None, s) * weight).sum())

        slope = (at(1e-5) - at(-1e-5)) / 2e-5
        found = float((gradients[leaf].numpy().astype(np.float64) * direction).sum())
        assert found == pytest.approx(slope, rel=2e-4, abs=2e-4)


def test_the_snapshot_is_what_was_read(device):
    """Memory that changes between the run and backward, as an optimizer's step does to it, changes no gradient."""
    memory = device.xp.full((3,), 2.0, np.float32)
    leaf = rt.Tensor._wrap(memory, device).require_grad()
    out = StaticGraph({"x": leaf}, [GraphOp.mul("y", "x", "x")], training=True).replay()
    memory[...] = 100.0
    assert grads(out, leaf)[0].tolist() == [4.0] * 3 and out.tolist() == [4.0] * 3


def test_several_outputs_give_one_gradient(device):
    given = layer(device)
    outputs = ("h", "p", "m")
    for wanted in ((0,), (2,), (0, 1), (0, 1, 2), (2, 0)):
        found, expected = StaticGraph(given, GATE, outputs, training=True).replay(), eager(given, GATE)
        mine = sum(rt.sum(found[i]) for i in wanted).backward()[given["w"]]
        theirs = sum(rt.sum(expected[outputs[i]]) for i in wanted).backward()[given["w"]]
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_only_outputs_of_tracked_inputs_are_tracked(device):
    given = layer(device)
    nodes = [*GATE, GraphOp("exp", "e", "x")]
    m, e = StaticGraph(given, nodes, ("m", "e"), training=True).replay()
    assert m.is_require_grad() and not e.is_require_grad()
    with ra.no_grad():
        assert not StaticGraph(given, GATE, training=True).replay().is_require_grad()
    plain = {name: x.detach() for name, x in given.items()}
    plan = StaticGraph(plain, GATE, training=True)
    assert not plan.replay().is_require_grad()
    assert plan.replay({"w": given["w"]}).is_require_grad()


def test_gradients_flow_on_to_what_made_the_inputs(device):
    leaf = layer(device)["w"]

    def loss(run):
        return rt.sum(rt.tanh(run({"x": layer(device)["x"], "w": rt.exp(leaf)})))

    plan = StaticGraph({"x": layer(device)["x"], "w": leaf}, GATE, training=True)
    mine, theirs = loss(plan.replay).backward()[leaf], loss(lambda given: eager(given, GATE)["m"]).backward()[leaf]
    same_bits(mine, theirs)


def test_first_order_only(device):
    leaf = layer(device)["w"]
    plan = StaticGraph({**layer(device), "w": leaf}, GATE, training=True)
    with ra.record(order=2):
        out = plan.replay()
    with pytest.raises(HigherDerivativeUnsupported, match="'StaticGraph' has first derivatives only"):
        rt.sum(out).backward(order=2)
    with pytest.raises(HigherDerivativeUnsupported):
        ra.grad(lambda w: rt.sum(ra.grad(lambda v: rt.sum(plan.replay({"w": v})))(w)))(leaf.detach())


def test_backward_consumes_the_graph_and_can_keep_it(device):
    given = layer(device)
    out = rt.sum(StaticGraph(given, GATE, training=True).replay())
    first = out.backward(retain_graph=True)[given["w"]]
    same_bits(out.backward()[given["w"]], first)
    with pytest.raises(ra.GraphConsumed):
        out.backward()


def test_the_plan_is_computed_again_and_only_what_is_needed(device, monkeypatch):
    given = layer(device)
    plan = StaticGraph(given, [*GATE, GraphOp("exp", "e", "x")], ("m", "e"), training=True)
    calls = []
    real = plan_module.evaluate
    m, _ = plan.replay()
    monkeypatch.setattr(plan_module, "evaluate", lambda steps, *rest: calls.append(len(steps)) or real(steps, *rest))
    rt.sum(m).backward()
    assert calls == [4]


def test_balanced_checkpointing_gives_the_same_gradient(device):
    given = layer(device)
    recorded = Autodiff(device, checkpointing="balanced")
    w = rt.tensor(given["w"].numpy(), device=recorded).require_grad()
    out, plain = (StaticGraph({**given, "w": x}, GATE, training=True).replay() for x in (w, given["w"]))
    same_bits(grads(out, w)[0], grads(plain, given["w"])[0])


def test_after_close_the_outputs_have_their_gradients_still(device):
    given = layer(device)
    with StaticGraph(given, GATE, training=True) as plan:
        out = plan.replay()
    expected = eager(given, GATE)["m"]
    same_bits(grads(out, given["w"])[0], grads(expected, given["w"])[0])


def test_a_training_step_with_the_optimizer_outside(device):
    """The optimizer reuses the old parameter's memory; the new one is bound, and the plan learns as eager code does."""
    x = rt.tensor(np.random.default_rng(3).standard_normal((8, 2)), dtype=rt.float32, device=device)
    nodes = [GraphOp("mm", "y", "x", "w"), GraphOp.mul("square", "y", "y"), GraphOp("mean_keepdim", "loss", "square", scalar=3)]

    def train(planned):
        model = LinearConfig(2, 3).init(Autodiff(device))
        model = model.load_record(start.to_record())
        optimizer, plan = SgdConfig().init(), None
        for _ in range(5):
            given = {"x": x, "w": model.weight}
            if planned:
                plan = plan or StaticGraph(given, nodes, training=True)
                loss = plan.replay({"w": model.weight})
            else:
                loss = eager(given, nodes)["loss"]
            model = optimizer.step(0.1, model, GradientsParams.from_grads(rt.sum(loss).backward(), model))
        return model.weight

    start = LinearConfig(2, 3).init(Autodiff(device))
    same_bits(train(True).detach(), train(False).detach())


def test_every_kind_was_differentiated():
    assert set(EAGER) | {"softmax_backward", "log_softmax_backward"} == set(FLOAT64)
