"""Whose numbers: the process's generator, seeds and keys, saving and resuming, threads, forked and spawned workers."""
from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor import philox


@pytest.fixture(autouse=True)
def restore_process_generator():
    state = rt.random.get_state()
    yield
    rt.random.set_state(state)


def python(code, *arguments):
    """Run code in a new process and return what it prints as JSON."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_seeding_again_repeats_and_drawing_moves_on(device):
    rt.random.seed(7)
    a, b = rt.random.normal((9,), device=device), rt.random.normal((9,), device=device)
    rt.random.seed(7)
    assert rt.random.normal((9,), device=device).tolist() == a.tolist() != b.tolist()


def test_every_draw_moves_on_by_the_counters_it_uses():
    rt.random.seed(7)
    draws = [
        (lambda: rt.random.normal((9,)), 3),
        (lambda: rt.random.normal((9,), dtype=rt.float64), 5),
        (lambda: rt.random.uniform((4,)), 1),
        (lambda: rt.random.uniform((4,), dtype=rt.float64), 2),
        (lambda: rt.random.bernoulli((5,)), 2),
        (lambda: rt.random.bernoulli((5,), p=0), 2),
        (lambda: rt.random.integers((5,), high=9), 3),
        (lambda: rt.random.integers((5,), high=2**40, dtype=rt.int64), 5),
        (lambda: rt.random.permutation(5), 3),
        (lambda: rt.random.normal((0,)), 0),
        (lambda: rt.random.reserve(17), 5),
    ]
    offset = 0
    for draw, used in draws:
        draw()
        offset += used
        assert rt.random.get_state()["offset"] == offset


def test_consecutive_draws_share_no_word(device):
    generator = rt.random.Generator(7)
    whole = rt.random.bits_at((64,), 7, 0, device).tolist()
    for n in (3, 4, 5, 1):
        seed, offset = generator.reserve(n)
        assert rt.random.bits_at((n,), seed, offset, device).tolist() == whole[4 * offset : 4 * offset + n]
    assert generator.get_state()["offset"] == 1 + 1 + 2 + 1


def test_explicit_seeds_and_keys_leave_the_process_generator_alone(device):
    rt.random.seed(7)
    before = rt.random.get_state()
    a = rt.random.normal((5,), seed=3, device=device).tolist()
    assert a == rt.random.normal((5,), key=rt.random.key(3), device=device).tolist()
    assert a == rt.random.Generator(3).normal((5,), device=device).tolist()
    assert a == rt.random.Generator(rt.random.key(3)).normal((5,), device=device).tolist()
    rt.random.permutation(5, seed=1, device=device)
    rt.random.bits_at((5,), 1, 0, device)
    assert rt.random.get_state() == before


def test_keys_follow_the_documented_counters():
    key = rt.random.key(7)

    def derived(data, purpose):
        w0, w1, _, _ = philox.philox4x32((data % 2**32, data >> 32, 0, purpose), 7)
        return w0 | w1 << 32

    assert rt.random.fold_in(key, 2**40 + 5).seed == derived(2**40 + 5, 1)
    assert [k.seed for k in rt.random.split(key, 3)] == [derived(i, 2) for i in range(3)]
    assert rt.random.split(key, 5)[:3] == rt.random.split(key, 3)
    assert rt.random.fold_in(key, 0) != rt.random.split(key, 1)[0] != key
    assert len({rt.random.fold_in(key, i) for i in range(2000)} | set(rt.random.split(key, 2000))) == 4000


def test_state_is_plain_and_survives_json(device):
    rt.random.seed(2**64 - 1)
    rt.random.normal((5,), device=device)
    state = json.loads(json.dumps(rt.random.get_state()))
    assert all(type(v) in (int, str) for v in state.values())
    after = rt.random.normal((5,), device=device).tolist()
    rt.random.seed(0)
    rt.random.set_state(state)
    assert rt.random.normal((5,), device=device).tolist() == after


def test_generators_copy_and_pickle_with_their_position():
    generator = rt.random.Generator(7)
    generator.normal((5,))
    twins = [pickle.loads(pickle.dumps(generator)), copy.deepcopy(generator)]
    wanted = generator.normal((5,)).tolist()
    assert [t.normal((5,)).tolist() for t in twins] == [wanted, wanted]


def test_offset_wraps_at_the_end_of_the_stream():
    generator = rt.random.Generator(7)
    generator.set_state(generator.get_state() | {"offset": 2**64 - 1})
    assert generator.reserve(8) == (7, 2**64 - 1) and generator.reserve(1) == (7, 1)


def test_threads_never_get_the_same_numbers():
    rt.random.seed(7)
    taken: list[int] = []
    start = threading.Barrier(4)

    def work():
        start.wait(10)
        mine = [rt.random.reserve(5)[1] for _ in range(2000)]
        taken.extend(mine)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(switch)
    assert sorted(taken) == list(range(0, 16000, 2))


WORKERS = """
import json, multiprocessing, sys
import ruda_tensor as rt

def draw(queue, epoch, worker, key):
    queue.put((epoch, worker, rt.random.integers((20,), high=10**6, device=rt.Cpu(), key=key).tolist()))

def run(method, seed, keyed):
    if seed is not None:
        rt.random.seed(seed)
    context = multiprocessing.get_context(method)
    found = []
    for epoch in range(2):
        queue, workers = context.SimpleQueue(), []
        for worker in range(4):
            key = rt.random.fold_in(rt.random.fold_in(rt.random.key(seed), epoch), worker) if keyed else None
            workers.append(context.Process(target=draw, args=(queue, epoch, worker, key)))
            workers[-1].start()
        found += [queue.get() for _ in workers]
        for w in workers:
            w.join()
    own = rt.random.integers((20,), high=10**6, device=rt.Cpu()).tolist()
    return [numbers for _, _, numbers in sorted(found)], own

if __name__ == "__main__":
    seed = json.loads(sys.argv[2])
    print(json.dumps(run(sys.argv[1], seed, sys.argv[3] == "keyed")))
"""


@pytest.mark.parametrize("seed", ["11", "null"])
def test_RNG_01_forked_workers_have_streams_of_their_own(seed):
    """Four workers in two epochs draw from the process's generator: eight streams, the same again under a seed."""
    streams, parent = python(WORKERS, "fork", seed, "plain")
    assert len({tuple(s) for s in [*streams, parent]}) == 9
    again, _ = python(WORKERS, "fork", seed, "plain")
    assert (streams == again) == (seed != "null")
    if seed != "null":
        assert parent == rt.random.integers((20,), high=10**6, seed=11).tolist()  # forking moves the parent nowhere


def test_RNG_01_keys_give_each_worker_and_epoch_a_stream(tmp_path):
    """With a key for (epoch, worker) it does not matter how workers are started, or what else they draw."""
    forked, _ = python(WORKERS, "fork", "11", "keyed")
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    command = [sys.executable, str(script), "spawn", "11", "keyed"]
    environment = os.environ | {"PYTHONPATH": str(Path(philox.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == forked and len({tuple(s) for s in forked}) == 8


def test_RNG_01_ranks_agree_on_weights_and_differ_in_dropout(device):
    weights, masks = [], []
    for rank in range(4):
        initial, dropout = rt.random.split(rt.random.key(5))
        weights.append(rt.random.normal((50,), key=initial, device=device).numpy().tobytes())
        masks.append(rt.random.bernoulli((50,), key=rt.random.fold_in(dropout, rank), device=device).numpy().tobytes())
    assert len(set(weights)) == 1 and len(set(masks)) == 4


RESUME = """
import json, sys
import ruda_tensor as rt

device = {"cpu": rt.Cpu(), "cuda": rt.Cuda(0)}[sys.argv[1]]
first, last, state = int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
if state is None:
    rt.random.seed(11)
else:
    rt.random.set_state(state)
steps = []
for step in range(first, last):
    order = rt.random.permutation(10, device=device).tolist()
    mask = rt.random.bernoulli((3, 5), p=0.9, device=device).tolist()
    noise = rt.random.normal((7,), device=device).numpy().tobytes().hex()
    steps.append([step, order, mask, noise])
print(json.dumps([steps, rt.random.get_state()]))
"""


def test_RNG_02_a_new_process_resumes_the_stream(device):
    """Six steps straight against three, save, a new process, three: data order, masks and noise bit for bit."""
    straight, end = python(RESUME, device.kind, "0", "6", "null")
    head, saved = python(RESUME, device.kind, "0", "3", "null")
    tail, end_again = python(RESUME, device.kind, "3", "6", json.dumps(saved))
    assert head + tail == straight and end == end_again
    assert len({json.dumps(step[1:]) for step in straight}) == 6


def test_RNG_02_forked_workers_resume_with_the_state():
    """The count of forks is in the state, so workers forked after a resume are those of the run that was not broken."""
    code = """
import json, os
import ruda_tensor as rt

def child():
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, json.dumps(rt.random.get_state()["seed"]).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(r, 100))

rt.random.seed(3)
first = child()
state = rt.random.get_state()
second = child()
rt.random.seed(99)
rt.random.set_state(state)
print(json.dumps([first, second, child()]))
"""
    first, second, resumed = python(code)
    assert first != second == resumed
    assert [first, second] == [philox.derive(3, i, philox.FORK) for i in range(2)]


def test_unseeded_processes_differ():
    code = "import json, ruda_tensor as rt; print(json.dumps(rt.random.get_state()['seed']))"
    assert len({python(code) for _ in range(3)}) == 3


def test_drawing_under_another_default_device_changes_nothing(device):
    rt.set_default_device(device)
    try:
        x = rt.random.uniform((5,), seed=7)
    finally:
        rt.set_default_device(None)
    assert x.device == device and np.array_equal(x.numpy(), rt.random.uniform((5,), seed=7, device=rt.Cpu()).numpy())
