"""A captured step is the eager one, bit for bit, and says so where it cannot be."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_optim import AdanConfig, GradientsParams
from ruda_tensor import StaticGraph
from ruda_tensor.devices import Device
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.recording import CaptureError, capturing

from ._steps import Training, batches


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(x.tobytes() == y.tobytes() for x, y in zip(a, b))


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw", "by value", "one by one", "masters"])
@pytest.mark.parametrize("options", [{}, {"p": 0.5}, {"norm": True}], ids=["plain", "dropout", "batch_norm"])
def test_replays_have_the_bits_of_eager_steps(device: Device, rule: str, options: dict[str, Any]) -> None:
    count = 100 if rule == "adamw" else 12
    dtype = rt.bfloat16 if rule == "masters" else rt.float32
    data = batches(device, count, dtype)
    eager = Training(device, rule, dtype=dtype, **options)
    expected = [eager.step(x, y).item() for x, y in data]
    captured = Training(device, rule, dtype=dtype, **options)
    with StaticGraph(captured.step, *data[0]) as graph:
        losses = [graph.replay(x, y) for x, y in data]
        assert graph.info["recorded"] == device.launches
        assert [loss.item() for loss in losses] == expected  # each in memory of its own
    assert same(captured.state(), eager.state())
    assert captured.schedule.calls == eager.schedule.calls == count
    times = [s["inner"]["time"] if rule == "masters" else s["time"] for s in captured.optimizer.states.values()]
    assert set(times) == {count}


def test_numbers_are_inputs_that_change(device: Device) -> None:
    data = batches(device, 6)
    rates = [0.1, 0.05, 0.2, 0.0, 0.3, 0.1]
    results = []
    for captured in (False, True):
        training = Training(device, "sgd")

        def step(x: rt.Tensor, y: rt.Tensor, rate: float, training: Training = training) -> rt.Tensor:
            loss = rt.cross_entropy(training.model(x), y)
            gradients = GradientsParams.from_grads(loss.backward(), training.model)
            training.model = training.optimizer.step(2 * rate, training.model, gradients)
            return loss

        run = StaticGraph(step, *data[0], 0.1).replay if captured else step
        results.append([run(x, y, rate).item() for (x, y), rate in zip(data, rates)])
    assert results[0] == results[1]


def test_eager_steps_and_snapshots_in_between(device: Device) -> None:
    data = batches(device, 10)
    eager, captured = Training(device, "adam"), Training(device, "adam")
    graph = StaticGraph(captured.step, *data[0])
    for i, (x, y) in enumerate(data):
        snapshot = captured.model.valid() if i == 5 else None
        before = captured.state()
        (graph.run_eager if i == 3 else graph.replay)(x, y)
        eager.step(x, y)
        assert same(captured.state(), eager.state())
        if snapshot is not None:
            assert same([p.numpy() for p in snapshot.params()], before)
    assert graph.info["recorded"] == device.launches


def test_a_record_continues_outside(device: Device) -> None:
    data = batches(device, 8)
    captured, other = Training(device, "adam", p=0.3), Training(device, "adam", p=0.3)
    graph = StaticGraph(captured.step, *data[0])
    for x, y in data[:5]:
        graph.replay(x, y)
    other.model = other.model.load_record(captured.model.to_record())
    other.optimizer.load_record(captured.optimizer.to_record(captured.model), other.model)
    other.schedule.load_record(captured.schedule.to_record())
    place = rt.random.get_state()
    expected = [graph.replay(x, y).item() for x, y in data[5:]]
    rt.random.set_state(place)
    assert [other.step(x, y).item() for x, y in data[5:]] == expected


@pytest.mark.gpu
def test_a_replaced_model_is_noticed() -> None:
    device = rt.Cuda(0)
    data = batches(device, 5)
    training = Training(device, "adam")
    graph = StaticGraph(training.step, *data[0])
    for x, y in data[:3]:
        graph.replay(x, y)
    training.model = training.model.load_record(training.model.to_record())
    with pytest.raises(RuntimeError, match="replaced since"):
        graph.replay(*data[3])
    graph.run_eager(*data[3])
    graph.replay(*data[4])
    assert graph.info["recorded"]


@pytest.mark.gpu
@pytest.mark.parametrize("what", ["item", "array", "draw", "rule", "plain", "float"])
def test_what_cannot_be_recorded_is_refused_and_changes_nothing(what: str) -> None:
    device = rt.Cuda(0)
    data = batches(device, 2)
    training = Training(device, "adam", p=0.5)
    if what == "rule":
        training.optimizer = AdanConfig().init()

    def step(x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
        loss = training.step(x, y)
        if what == "item":
            loss.item()
        elif what == "array":
            loss = loss + rt.asarray(np.ones(3, np.float32), device=device)
        elif what == "draw":
            loss = loss + rt.random.uniform((3,), device=device)
        elif what == "float":
            loss = loss * float(training.schedule.peek())
        return loss

    graph = StaticGraph(step, *data[0])
    graph.replay(*data[0])
    before, place, calls = training.state(), rt.random.get_state(), training.schedule.calls
    with use_fused(what != "plain"), pytest.raises(CaptureError):
        graph.replay(*data[1])
    assert not capturing()
    assert same(training.state(), before)
    assert rt.random.get_state() == place and training.schedule.calls == calls
    assert (rt.ones(3, device=device) + 1).tolist() == [2.0, 2.0, 2.0]


def test_inputs_unlike_the_examples_are_refused(device: Device) -> None:
    (x, y), = batches(device, 1)
    training = Training(device, "sgd")
    graph = StaticGraph(training.step, x, y)
    with pytest.raises(ValueError, match="fixed sizes"):
        graph.replay(x[:3], y[:3])
    with pytest.raises(ValueError, match="float64"):
        graph.replay(x.astype(rt.float64), y)
    with pytest.raises(TypeError, match="takes 2 inputs"):
        graph.replay(x)
    with pytest.raises(TypeError, match="a tensor"):
        graph.replay(x, [1, 2])
    with pytest.raises(TypeError, match="tape"):
        StaticGraph(training.step, x.require_grad(), y)
    with pytest.raises(TypeError, match="tape"):
        graph.replay(x.require_grad(), y)
    with pytest.raises(TypeError, match="enclosing"):
        StaticGraph(training.step, training.model, x, y)
    assert training.schedule.calls == 0


def test_a_closed_graph_refuses_work_and_its_results_stay(device: Device) -> None:
    data = batches(device, 4)
    training = Training(device, "adam")
    with StaticGraph(training.step, *data[0]) as graph:
        losses = [graph.replay(x, y) for x, y in data]
        expected = [loss.item() for loss in losses]
    with pytest.raises(RuntimeError, match="closed"):
        graph.replay(*data[0])
    with pytest.raises(RuntimeError, match="closed"):
        graph.run_eager(*data[0])
    assert [loss.item() for loss in losses] == expected and not graph.info["recorded"]
    training.step(*data[0])


def test_structures_of_results(device: Device) -> None:
    x = rt.asarray(np.arange(3.0, dtype=np.float32), device=device)
    graph = StaticGraph(lambda x: {"double": 2 * x, "all": (x.sum(), [x, None], "text")}, x)
    for k in range(4):
        out = graph.replay(x + k)
        assert out["double"].tolist() == [2.0 * (i + k) for i in range(3)]
        assert out["all"][0].item() == 3.0 + 3 * k and out["all"][1][1] is None and out["all"][2] == "text"
