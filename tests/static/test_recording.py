"""What a recorded step does on the host: ticks, slots, what they take back, and what it refuses. Run on a stand-in for CUDA."""
from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_optim import (
    GradientsParams,
)
from ruda_optim.schedules import LrScheduler
from ruda_tensor import StaticGraph
from ruda_tensor.kernels.capture import Recording
from ruda_tensor.recording import CaptureError

from ._capture import recording_device
from ._recorded import RULES, Training, gradients, held

START = rt.random.get_state()


@pytest.fixture(autouse=True)
def seeded() -> None:
    rt.random.set_state(START)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    with recording_device(monkeypatch) as device:
        yield device


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_replays_have_the_bits_of_eager_steps(place: Any, rule: str, dtype: Any) -> None:
    data = gradients(place, 9, dtype)
    eager, captured = Training(place, rule, dtype), Training(place, rule, dtype)
    graph = StaticGraph(captured.step, *data[0])
    for i, batch in enumerate(data):
        eager.step(*batch)
        assert graph.replay(*batch) is None
        assert captured.state() == eager.state(), i
        assert graph.info["recorded"] == (i > 0)


class Rate:
    """A schedule of the user's own, which says any number."""

    def __init__(self, *rates: float) -> None:
        self.rates = rates

    def value(self, k: int) -> float:
        return self.rates[k]


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("rule", RULES)
def test_a_rate_that_eager_steps_refuse_is_refused_at_replay(place: Any, rule: str, bad: float) -> None:
    """Nothing is changed then, and the next replay works."""
    data = gradients(place, 6)
    captured, eager = Training(place, rule), Training(place, rule)
    graph = StaticGraph(captured.update, 0.1, *data[0])
    for batch in data[:3]:
        graph.replay(0.1, *batch)
        eager.update(0.1, *batch)
    before = held(captured)
    with pytest.raises((ValueError, OverflowError)):
        graph.replay(bad, *data[3])
    assert held(captured) == before
    graph.replay(0.2, *data[4])
    eager.update(0.2, *data[4])
    assert captured.state() == eager.state()


def test_what_fails_at_replay_is_taken_back(place: Any) -> None:
    data = gradients(place, 6)
    captured = Training(place)
    captured.schedule = LrScheduler(Rate(0.1, 0.1, 0.1, -1.0))  # type: ignore[arg-type]

    def step(g: rt.Tensor, h: rt.Tensor) -> rt.Tensor:
        y = rt.dropout(h, 0.5, training=True)
        captured.step(g, h)
        return rt.dropout(y, 0.5, training=True)

    graph = StaticGraph(step, *data[0])
    for batch in data[:3]:
        graph.replay(*batch)
    before = held(captured)
    for _ in range(2):
        with pytest.raises(ValueError, match="learning rate"):
            graph.replay(*data[3])
        assert held(captured) == before
    captured.schedule.config.rates = (0.1,) * 9
    graph.replay(*data[4])
    assert captured.schedule.calls == 4 and {s["time"] for s in captured.optimizer.states.values()} == {4}


POINTS = ["start", "schedule", "dropout", "optimizer", "assigned", "end"]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("rule", RULES)
def test_a_capture_that_fails_anywhere_changes_nothing(place: Any, rule: str, point: str, kind: type) -> None:
    data = gradients(place, 6)
    captured, eager = Training(place, rule), Training(place, rule)
    failing = None

    def step(training: Training, g: rt.Tensor, h: rt.Tensor) -> rt.Tensor:
        def passing(name: str) -> None:
            if failing == name:
                raise kind("here")

        passing("start")
        lr = training.schedule.step()
        passing("schedule")
        y = rt.dropout(g, 0.5, training=True)
        passing("dropout")
        new = training.optimizer.step(lr, training.model, GradientsParams({training.model.w: g, training.model.b: h}))
        passing("optimizer")
        training.model = new
        passing("assigned")
        y = rt.dropout(y, 0.5, training=True)
        passing("end")
        return y

    graph = StaticGraph(lambda g, h: step(captured, g, h), *data[0])
    graph.replay(*data[0])
    before, failing = held(captured), point
    for _ in range(2):
        with pytest.raises(kind, match="here"):
            graph.replay(*data[1])
        gc.collect()  # the traceback, whose frames hold the new model
        assert held(captured) == before
    failing = None
    got = [graph.replay(*batch).numpy().tobytes() for batch in data[1:]]
    rt.random.set_state(START)
    expected = [step(eager, *batch).numpy().tobytes() for batch in data]
    assert got == expected[1:] and captured.state() == eager.state()


def test_numbers_that_change_are_numbers_in_the_results(place: Any) -> None:
    data = gradients(place, 6)
    training = Training(place)

    def step(g: rt.Tensor, h: rt.Tensor, scale: float) -> dict[str, Any]:
        lr = training.schedule.step() * scale
        training.update(lr, g, h)
        return {"lr": lr, "rest": [scale, g, training.schedule.peek()]}

    graph = StaticGraph(step, *data[0], 1.0)
    results = [graph.replay(*batch, float(i)) for i, batch in enumerate(data)]
    for i, out in enumerate(results):
        assert out["lr"] == training.schedule.value(i) * i and type(out["lr"]) is float
        assert out["rest"][0] == i and out["rest"][2] == training.schedule.value(i + 1)
        assert out["rest"][1].numpy().tobytes() == data[i][0].numpy().tobytes()


def test_a_graph_inside_a_captured_step_is_refused(place: Any) -> None:
    data = gradients(place, 6)
    training = Training(place)
    inner = StaticGraph(training.step, *data[0])
    for k in range(3):
        graph = StaticGraph(lambda g, h: inner.replay(g, h), *data[0])
        graph.replay(*data[k])
        before = held(training)
        with pytest.raises(CaptureError, match="captured step"):
            graph.replay(*data[k])
        assert held(training) == before
    inner.replay(*data[4])


@pytest.mark.parametrize("number", [np.float32(0.1), np.int64(1), True, np.bool_(True), "1", None, 1j])
def test_what_is_no_number_of_python_is_refused(place: Any, number: Any) -> None:
    data = gradients(place, 3)
    training = Training(place)
    graph = StaticGraph(training.update, 0.1, *data[0])
    for batch in data:
        before = held(training)
        with pytest.raises(TypeError, match="is a number"):
            graph.replay(number, *batch)
        assert held(training) == before
        graph.replay(np.float64(0.1), *batch)


def test_closing(place: Any) -> None:
    data = gradients(place, 4)
    training = Training(place)
    graph = StaticGraph(training.step, *data[0])
    for batch in data:
        graph.replay(*batch)
    graph.close()
    graph.close()
    with pytest.raises(RuntimeError, match="closed"):
        graph.replay(*data[0])


def test_results_of_all_kinds(place: Any) -> None:
    data = gradients(place, 6)
    eager, training = Training(place), Training(place)

    def step(training: Training, g: rt.Tensor, h: rt.Tensor) -> Any:
        training.step(g, h)
        return g, g, training.model.w, training.model.b, training.optimizer.states["w"]["time"], (), h[2:], g.T

    graph = StaticGraph(lambda g, h: step(training, g, h), *data[0])
    for i, batch in enumerate(data):
        out, expected = graph.replay(*batch), step(eager, *batch)
        assert len(out) == 8
        for a, b in zip(out, expected):
            assert not isinstance(b, rt.Tensor) or type(a) is rt.Tensor and a.numpy().tobytes() == b.numpy().tobytes(), i
        assert graph.info["recorded"] == (i > 0)
    assert training.state() == eager.state()


def test_inputs_of_all_kinds(place: Any) -> None:
    rng = np.random.default_rng(0)
    base = rt.asarray(rng.normal(size=(6, 8)).astype(np.float32), device=place)
    examples = [base[::2, 1:], base.T, base[0, 0], base[:0], base]
    graph = StaticGraph(lambda *xs: [rt.dropout(x, 0.5, training=True, seed=1) for x in xs], *examples)
    for k in range(4):
        base = rt.asarray(rng.normal(size=(6, 8)).astype(np.float32), device=place)
        inputs = [base[::2, 1:], base.T, base[0, 0], base[:0], base]
        for x, y in zip(inputs, graph.replay(*inputs)):
            expected = rt.dropout(x, 0.5, training=True, seed=1)
            assert y.shape == expected.shape and y.numpy().tobytes() == expected.numpy().tobytes(), k


def test_a_table_is_brought_beside_the_capture_and_stays(place: Any) -> None:
    """In memory of the common pool: the graph's own is written to again at every launch."""
    made = Recording(0)
    with made.capturing():
        with pytest.raises(RuntimeError, match="capturing"):
            made.cp.asarray(np.arange(3))
        table = made.constant(np.arange(3))
        assert made.held[-1] is table and table.tolist() == [0, 1, 2]
        with pytest.raises(RuntimeError, match="capturing"):  # the stream that is captured is current again
            made.cp.asarray(np.arange(3))
    assert made.cp.get_default_memory_pool().made == [table] and not made.pool.made
    assert made.bytes >= table.nbytes
    made.close()
    assert made.held == []
