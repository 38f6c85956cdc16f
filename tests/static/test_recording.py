"""What a recorded step does on the host: ticks, slots, what they take back, and what it refuses. Run on a stand-in for CUDA."""
from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Buffer, Module, Param
from ruda_optim import (
    AdamConfig,
    AdamWConfig,
    AdanConfig,
    CosineAnnealingLrSchedulerConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsParams,
    ParamGroup,
    SgdConfig,
)
from ruda_tensor import StaticGraph
from ruda_tensor.recording import CaptureError

from ._capture import recording_device


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    with recording_device(monkeypatch) as device:
        yield device


class Weights(Module):
    w: Param
    b: Param


RULES = {
    "sgd": lambda: SgdConfig(momentum=0.9).init(),
    "adam": lambda: AdamConfig().init(),
    "groups": lambda: AdamWConfig().init(groups=[ParamGroup("b", lr_scale=0.5, weight_decay=0.0)]),
    "masters": lambda: Fp32MasterOptimizer(AdamWConfig().build()).init(),
}


class Training:
    """A model whose gradients are the step's inputs, so that all that a replay computes is the optimizer's kernel."""

    def __init__(self, device: Any, rule: str = "adam") -> None:
        rng = np.random.default_rng(5)
        w, b = (rt.asarray(rng.normal(size=s).astype(np.float32), device=device) for s in ((5, 7), (7,)))
        self.model: Any = Weights(Param(w, id="w"), Param(b, id="b"))
        self.optimizer = RULES[rule]()
        self.schedule = CosineAnnealingLrSchedulerConfig(0.1, 50).init()

    def step(self, g: rt.Tensor, h: rt.Tensor) -> None:
        self.update(self.schedule.step(), g, h)

    def update(self, lr: Any, g: rt.Tensor, h: rt.Tensor) -> None:
        gradients = GradientsParams({self.model.w: g, self.model.b: h})
        self.model = self.optimizer.step(lr, self.model, gradients)

    def state(self) -> tuple:
        def plain(state: Any) -> Any:
            if isinstance(state, dict):
                return {k: plain(v) for k, v in state.items()}
            return state.tobytes() if hasattr(state, "tobytes") else state

        states = {k: plain(v) for k, v in self.optimizer.states.items()}
        return [p.numpy().tobytes() for p in self.model.params()], states, self.schedule.calls, rt.random.get_state()


def gradients(device: Any, count: int) -> list[tuple[rt.Tensor, rt.Tensor]]:
    rng = np.random.default_rng(8)
    return [tuple(rt.asarray(rng.normal(size=s).astype(np.float32), device=device) for s in ((5, 7), (7,))) for _ in range(count)]


@pytest.mark.parametrize("rule", RULES)
def test_replays_have_the_bits_of_eager_steps(place: Any, rule: str) -> None:
    data = gradients(place, 9)
    eager, captured = Training(place, rule), Training(place, rule)
    graph = StaticGraph(captured.step, *data[0])
    for i, batch in enumerate(data):
        eager.step(*batch)
        assert graph.replay(*batch) is None
        assert captured.state() == eager.state(), i
        assert graph.info["recorded"] == (i > 0)


class Rate:
    """A schedule of the user's own, which says any number."""

    def __init__(self, *rates: float) -> None:
        self.rates, self.config = rates, None

    def init(self) -> Any:
        from ruda_optim.schedules import LrScheduler

        return LrScheduler(self)

    def value(self, k: int) -> float:
        return self.rates[k]


def held(training: Training) -> tuple:
    return training.state(), training.optimizer._failed, training.optimizer._grouping.index


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


@pytest.mark.parametrize("where", ["schedule", "dropout first", "tick"])
def test_what_fails_at_replay_is_taken_back(place: Any, where: str) -> None:
    data = gradients(place, 6)
    captured = Training(place)
    captured.schedule = Rate(0.1, 0.1, 0.1, -1.0).init()

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


START = rt.random.get_state()


@pytest.fixture(autouse=True)
def seeded() -> None:
    rt.random.set_state(START)


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
    training, outer_calls = Training(place), 0
    inner = StaticGraph(training.step, *data[0])
    graph = StaticGraph(lambda g, h: inner.replay(g, h), *data[0])
    for k in range(3):
        graph = StaticGraph(lambda g, h: inner.replay(g, h), *data[0])
        graph.replay(*data[k])
        before = held(training)
        with pytest.raises(CaptureError, match="captured step"):
            graph.replay(*data[k])
        assert held(training) == before
    inner.replay(*data[4])


@pytest.mark.parametrize("number", [np.float32(0.1), np.float64(0.1), np.int64(1), True, np.bool_(True), "1", None, 1j])
def test_kinds_of_numbers(place: Any, number: Any) -> None:
    data = gradients(place, 3)
    training = Training(place)
    graph = StaticGraph(training.update, 0.1, *data[0])
    before = held(training)
    try:
        graph.replay(number, *data[0])
    except TypeError as error:
        print(error)
        assert held(training) == before
    for batch in data[1:]:
        graph.replay(0.1, *batch)


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
        return g, g, training.optimizer.states["w"]["time"], (), h[2:], g.T

    graph = StaticGraph(lambda g, h: step(training, g, h), *data[0])
    for i, batch in enumerate(data):
        out, expected = graph.replay(*batch), step(eager, *batch)
        assert len(out) == 6
        for a, b in zip(out, expected):
            assert not isinstance(b, rt.Tensor) or a.numpy().tobytes() == b.numpy().tobytes(), i
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


def test_two_updates_in_one_step(place: Any) -> None:
    data = gradients(place, 5)
    eager, captured = Training(place), Training(place)

    def step(training: Training, g: rt.Tensor, h: rt.Tensor) -> None:
        training.step(g, h)
        training.step(g, h)

    graph = StaticGraph(lambda g, h: step(captured, g, h), *data[0])
    for batch in data:
        graph.replay(*batch)
        step(eager, *batch)
        assert captured.state() == eager.state()
    assert graph.info["recorded"]


def test_two_graphs_train_one_model(place: Any) -> None:
    """As for the last batch of an epoch, which is smaller."""
    data = gradients(place, 14)
    eager, captured = Training(place), Training(place)

    def halved(g: rt.Tensor, h: rt.Tensor) -> None:
        captured.update(0.01, g, h)

    one, two = StaticGraph(captured.step, *data[0]), StaticGraph(halved, *data[0])
    for i, batch in enumerate(data):
        if i % 3 == 2:
            two.replay(*batch)
            eager.update(0.01, *batch)
        else:
            one.replay(*batch)
            eager.step(*batch)
        assert captured.state() == eager.state()
    assert one.info["recorded"] and two.info["recorded"]


class Statistics:
    """A buffer that a step moves on by a kernel, and a training beside it."""

    def __init__(self, device: Any) -> None:
        self.training = Training(device)
        self.buffer = Buffer(rt.asarray(np.linspace(1, 2, 64).astype(np.float32), device=device))

    def step(self, g: rt.Tensor, h: rt.Tensor) -> None:
        self.training.step(g, h)
        self.buffer.set(rt.dropout(self.buffer.value, 0.01, training=True, seed=int(self.training.model.w.shape[0])))

    def state(self) -> tuple:
        return self.training.state(), self.buffer.numpy().tobytes()


def test_a_buffer_moves_on(place: Any) -> None:
    """With two graphs, eager steps beside them, and somebody who keeps a value for a while."""
    data = gradients(place, 24)
    eager, captured = Statistics(place), Statistics(place)
    graphs = [StaticGraph(captured.step, *data[0]), StaticGraph(captured.step, *data[0])]
    kept = snapshot = None
    recorded = set()
    for i, batch in enumerate(data):
        if i % 8 == 5:
            captured.step(*batch)
        else:
            graph = graphs[i % 3 == 2]
            graph.replay(*batch)
            recorded |= {graph} if graph.info["recorded"] else set()
        eager.step(*batch)
        assert captured.state() == eager.state(), i
        assert kept is None or kept.numpy().tobytes() == snapshot
        kept = captured.buffer.value if i == 12 else None if i == 16 else kept
        snapshot = None if kept is None else captured.buffer.numpy().tobytes() if i == 12 else snapshot
    assert recorded == set(graphs)


def test_snapshots_of_the_model_stay(place: Any) -> None:
    data = gradients(place, 12)
    eager, captured = Training(place), Training(place)
    graph = StaticGraph(captured.step, *data[0])
    snapshots: list[Any] = []
    for i, batch in enumerate(data):
        graph.replay(*batch)
        eager.step(*batch)
        assert captured.state() == eager.state()
        for model, before in snapshots:
            assert [p.numpy().tobytes() for p in model.params()] == before
        if i in (0, 1, 4, 8):
            snapshots.append((captured.model.valid(), captured.state()[0]))
        if i == 6:
            snapshots.clear()
    assert graph.info["recorded"]


def test_another_model_is_noticed_and_not_trained(place: Any) -> None:
    data = gradients(place, 6)
    training = Training(place)
    graph = StaticGraph(training.step, *data[0])
    for batch in data[:3]:
        graph.replay(*batch)
    training.model = training.model.load_record(training.model.to_record())
    before = held(training)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="replaced since"):
            graph.replay(*data[3])
        assert held(training) == before
    graph.run_eager(*data[3])
    graph.replay(*data[4])
    assert graph.info["recorded"] and training.schedule.calls == 5


def test_threads_record_graphs_of_their_own(place: Any) -> None:
    data = gradients(place, 8)
    eager = [Training(place, rule) for rule in RULES]
    for training in eager:
        for batch in data:
            training.step(*batch)
    captured, errors = [Training(place, rule) for rule in RULES], []

    def run(training: Training) -> None:
        try:
            graph = StaticGraph(training.step, *data[0])
            for batch in data:
                graph.replay(*batch)
            assert graph.info["recorded"]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(training,)) for training in captured]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [t.state() for t in captured] == [t.state() for t in eager]


@pytest.mark.parametrize("make", [
    lambda: AdanConfig().init(), lambda: AdamConfig(grad_clipping=GradientClippingConfig.value(0.1)).init(),
    lambda: AdamWConfig(fused_step=True).init(),
])  # fmt: skip
def test_an_optimizer_that_cannot_be_recorded_stays_as_it_was(place: Any, make: Any) -> None:
    data = gradients(place, 4)
    training = Training(place)
    training.optimizer = make()
    graph = StaticGraph(training.step, *data[0])
    graph.replay(*data[0])
    before = held(training)
    for _ in range(2):
        with pytest.raises(CaptureError, match="captured step"):
            graph.replay(*data[1])
        gc.collect()
        assert held(training) == before
    graph.run_eager(*data[2])
    training.step(*data[3])
    assert training.schedule.calls == 3
