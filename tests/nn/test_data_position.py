"""The loader's position: resuming, leaving and seeking, one iteration at a time, and the end of every thread."""
from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_nn import RecordMismatch
from ruda_record import BinFileRecorder, FullPrecisionSettings, RecorderError

from ._loaders import CPU, ids, loader_of, threads


@pytest.mark.parametrize("prefetch", [0, 2])
def test_RNG_02_resumed_at_every_position_of_two_epochs_the_rest_is_the_same(prefetch, tmp_path):
    def noisy(x, y, key):
        return x + rt.random.normal(x.shape, key=key, device=CPU).numpy(), y

    def make(prefetch):
        return loader_of(prefetch=prefetch, transform=noisy)

    def bits(batches):
        return [(x.numpy().tobytes(), y.tolist()) for x, y in batches]

    straight = make(0)
    whole = bits(itertools.islice(straight.forever(), 12))
    loader, recorder = make(prefetch), BinFileRecorder(FullPrecisionSettings)
    received = 0
    for epoch in range(2):
        for number, _ in enumerate(loader, 1):
            received += 1
            recorder.save({"data": loader.to_record()}, tmp_path / "at")
            again = make(2 - prefetch)
            again.load_record(recorder.load(tmp_path / "at")["data"])
            assert (again.epoch, again.batch) == (loader.epoch, loader.batch) == (epoch, number)
            assert bits(itertools.islice(again.forever(), 12 - received)) == whole[received:]
    assert received == 8 and (loader.epoch, loader.batch) == (2, 0)
    del again
    assert not threads()


@given(steps=st.lists(st.tuples(st.sampled_from(["leave", "resume", "hold"]), st.integers(0, 6)), max_size=6))
def test_however_iterations_are_left_and_resumed_the_batches_are_the_same(steps):
    whole = ids(itertools.islice(loader_of().forever(), 36))
    loader, received, held = loader_of(), [], None
    for number, (action, count) in enumerate(steps):
        if action == "resume":
            record, loader = loader.to_record(), loader_of(prefetch=number % 3)
            loader.load_record(record)
        elif action == "leave":
            held = None
        held = loader.forever() if held is None or action == "resume" else held
        received += ids(itertools.islice(held, count))
    assert received == whole[: len(received)] and len(received) == sum(count for _, count in steps)


def test_the_position_is_what_was_received_not_what_was_fetched():
    fetched = []
    loader = loader_of(size=1, shuffle=False, transform=lambda x, y: fetched.append(int(y[0])) or (x, y), prefetch=4)
    batches = iter(loader)
    next(batches)
    until = time.monotonic() + 5
    while len(fetched) < 5 and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(0.05)
    assert fetched == [0, 1, 2, 3, 4]  # one received, and four ahead
    assert (loader.epoch, loader.batch) == (0, 1) and loader.to_record()["batch"] == 1


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_iteration_that_was_left_is_finished_by_the_next(prefetch):
    loader = loader_of(shuffle=False, prefetch=prefetch)
    first = []
    for _, y in loader:
        first.append(y.tolist())
        if len(first) == 2:
            break
    assert first == [[0, 1, 2], [3, 4, 5]] and (loader.epoch, loader.batch) == (0, 2)
    assert ids(loader) == [[6, 7, 8], [9]] and (loader.epoch, loader.batch) == (1, 0)


def test_the_last_batch_does_not_end_the_epoch_but_asking_for_more_does():
    loader = loader_of(shuffle=False)
    batches = iter(loader)
    assert ids(itertools.islice(batches, 4))[-1] == [9] and (loader.epoch, loader.batch) == (0, 4)
    other = loader_of(shuffle=False)
    other.load_record(loader.to_record())
    assert ids(other) == [] and ids(other)[0] == [0, 1, 2] and other.epoch == 2
    assert ids(batches) == [] == ids(batches) and (loader.epoch, loader.batch) == (1, 0)


def test_seek_and_forever():
    loader = loader_of()
    whole = ids(itertools.islice(loader.forever(), 12))
    loader.seek(1, 2)
    assert ids(itertools.islice(loader.forever(), 6)) == whole[6:]
    loader.seek(2)
    assert ids(loader) == whole[8:]
    for epoch, batch in ((-1, 0), (0, 5), (0, -1), (0.0, 0), (True, 0)):
        with pytest.raises(ValueError, match="DataLoader.seek: .* is not allowed; give an integer"):
            loader.seek(epoch, batch)
    assert (loader.epoch, loader.batch) == (3, 0)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("end", [iter, lambda loader: loader.seek(0), lambda loader: loader.load_record(loader.to_record())])
def test_there_is_one_iteration_at_a_time(end, prefetch):
    loader = loader_of(prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    second = end(loader)
    with pytest.raises(RuntimeError, match="ended by a later one, by seek, or by load_record; .* make two loaders"):
        next(batches)
    if second is not None:
        assert len(list(second)) == 3
    assert not threads()


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"n": 11}, "length: 10 | 11"),
        ({"size": 4}, "batch_size: 3 | 4"),
        ({"seed": 6}, "seed: 5 | 6"),
        ({"shuffle": False}, "shuffle: True | False"),
        ({"drop_last": True}, "drop_last: False | True"),
    ],
)
def test_a_record_of_another_order_is_refused_with_both_sides(how, line):
    saved = loader_of()
    next(iter(saved))
    loader = loader_of(**how)
    loader.seek(3, 1)
    with pytest.raises(RecordMismatch) as caught:
        loader.load_record(saved.to_record())
    assert f"(record | here):\n  {line}" in str(caught.value)
    assert (loader.epoch, loader.batch) == (3, 1)
    loader_of(prefetch=0, transform=lambda *batch: batch).load_record(saved.to_record())  # these do not change the order


@pytest.mark.parametrize(
    "change",
    [{"epoch": -1}, {"epoch": 1.0}, {"epoch": True}, {"batch": 5}, {"batch": "1"}, {"config": None}, {"more": 1}],
)
def test_a_broken_record_is_refused(change):
    loader = loader_of()
    with pytest.raises(RecorderError, match="its data (position|loader)"):
        loader.load_record({**loader.to_record(), **change})
    with pytest.raises(RecorderError, match="its data (position|loader)"):
        loader.load_record(None)
    assert (loader.epoch, loader.batch) == (0, 0)


# threads


def test_threads_end_with_their_iteration():
    loader = loader_of(n=1000, size=1)
    list(loader)
    assert not threads()
    for _ in loader:
        break
    assert not threads()
    batches = iter(loader)
    next(batches)
    del batches
    assert not threads()
    batches = loader.forever()
    next(batches)
    assert len([t for t in threading.enumerate() if t.name == "ruda-prefetch"]) == 1
    batches.close()
    assert not threads()
    batches = iter(loader)
    next(batches)
    del loader, batches
    gc.collect()
    assert not threads()


def test_a_program_may_end_in_the_middle_of_an_iteration():
    program = (
        "import numpy as np, ruda_tensor as rt\n"
        "from ruda_nn import ArrayDataset, DataLoader\n"
        "batches = iter(DataLoader(ArrayDataset(np.arange(100)), 1, device=rt.Cpu()))\n"
        "print(next(batches)[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1,)\n", "")
