"""Models, optimizers and buffers that recorded steps train, and what else goes on beside. Run on a stand-in for CUDA."""
from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Buffer
from ruda_optim import (
    AdamWConfig,
    AdanConfig,
    GradientsAccumulator,
    GradientsParams,
    GradScaler,
)
from ruda_tensor import StaticGraph
from ruda_tensor.recording import CaptureError

from ._capture import recording_device
from ._recorded import RULES, Training, gradients, held


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    with recording_device(monkeypatch) as device:
        yield device


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
            graph, recorded = StaticGraph(training.step, *data[0]), 0
            for batch in data:
                graph.replay(*batch)
                recorded += graph.info["recorded"]
            assert recorded  # the stand-in may hold another thread's arrays for a moment, and its step is then an eager one
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
    lambda: AdanConfig().init(), lambda: AdamWConfig(fused_step=True).init(),
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


@pytest.mark.parametrize("where", ["before", "left", "within", "fails"])
def test_windows_of_gradients(place: Any, where: str) -> None:
    """A window of an accumulator is within a captured step or outside of it; what fails leaves it as it was."""
    data = gradients(place, 5)
    training, accumulator, failing = Training(place), GradientsAccumulator(), False

    def add(g: rt.Tensor, h: rt.Tensor) -> None:
        accumulator.accumulate(training.model, GradientsParams({training.model.w: g, training.model.b: h}))

    def step(g: rt.Tensor, h: rt.Tensor) -> rt.Tensor:
        add(g, h)
        if where == "within":
            total = accumulator.grads()
            return rt.dropout(total[training.model.w], 0.5, training=True, seed=None)
        if failing:
            raise ValueError("here")
        return h

    graph = StaticGraph(step, *data[0])
    graph.replay(*data[0])
    if where == "within":
        for batch in data:
            graph.replay(*batch)
        return
    if where == "before":
        with pytest.raises(CaptureError, match="window"):
            graph.replay(*data[1])
    else:
        accumulator.grads()
        failing = where == "fails"
        if failing:
            with pytest.raises(ValueError, match="here"):
                graph.replay(*data[1])
            assert len(accumulator) == 0
        else:
            graph.replay(*data[1])
            with pytest.raises(CaptureError, match="window"):
                add(*data[2])
            accumulator.load_record([], training.model)
    add(*data[2])
    assert len(accumulator) == 2


def test_a_scaler_stays_as_it_was(place: Any) -> None:
    scaler, (x, _) = GradScaler(), gradients(place, 1)[0]
    graph = StaticGraph(lambda x: scaler.scale(rt.sum(x)), x)
    graph.replay(x)
    before = repr(scaler)
    with pytest.raises(CaptureError, match="GradScaler"):
        graph.replay(x)
    assert repr(scaler) == before
    graph.run_eager(x)
