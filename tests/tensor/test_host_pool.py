"""The threads that compiled bodies share."""
from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import pool, rows

run = host.function("pool", "run", "ppnnf")
pytestmark = pytest.mark.skipif(run is None, reason="no compiler")


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(pool, "threads", lambda: 3)
    monkeypatch.setattr(pool, "BLOCK_BYTES", 1024)  # many parts


def softmax(x: np.ndarray) -> np.ndarray:
    out = np.full_like(x, np.nan)
    assert rows.rowwise("softmax_forward", np, x, out)
    return out


def made(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((301, 100)).astype(np.float32)


def test_every_part_is_done_once_whoever_does_it(monkeypatch):
    shared = [softmax(made(i)) for i in range(200)]
    monkeypatch.setattr(pool, "threads", lambda: 1)
    for i, out in enumerate(shared):
        np.testing.assert_array_equal(out, softmax(made(i)))


def test_the_call_returns_when_the_last_part_is_done():
    """The caller has a short part, and a thread that is awake a long one, which would still hold NaN."""
    x = np.random.default_rng(0).standard_normal((4000, 100)).astype(np.float32)
    call, first, count = host.function("rows", "softmax_forward", "ppnn"), np.array([0, 100]), np.array([100, 3900])
    for _ in range(50):
        out = np.full_like(x, np.nan)
        at = first * 400
        pool.run(call, host.address(x) + at, host.address(out) + at, count, 100)
        assert not np.isnan(out[-1]).any() and not np.isnan(out).any()


def test_callers_in_several_threads_do_not_get_in_each_others_way():
    right, wrong = [softmax(made(i)) for i in range(4)], []

    def repeat(i: int) -> None:
        for _ in range(100):
            if not np.array_equal(softmax(made(i)), right[i]):
                wrong.append(i)

    callers = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_threads_that_have_gone_to_sleep_wake_up():
    import time

    right = softmax(made(0))
    for pause in (0.0, 1e-4, 1e-3, 1e-2):
        for _ in range(10):
            time.sleep(pause)
            np.testing.assert_array_equal(softmax(made(0)), right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_threads_of_its_own():
    script = """
import os, numpy as np
from ruda_tensor.kernels.host import pool, rows
pool.threads, pool.BLOCK_BYTES = (lambda: 3), 1024
x = np.random.default_rng(0).standard_normal((301, 100)).astype(np.float32)
def softmax():
    out = np.empty_like(x)
    assert rows.rowwise("softmax_forward", np, x, out)
    return out
right = softmax()
child = os.fork()
same = all(np.array_equal(softmax(), right) for _ in range(50))
tasks = "/proc/self/task"
same = same and (not os.path.isdir(tasks) or len(os.listdir(tasks)) > 2)
if not child:
    os._exit(0 if same else 3)
assert same and os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60, cwd=host.__path__[0] + "/../../..")


def test_nothing_to_do_and_no_compiled_pool(monkeypatch):
    empty = np.empty((0, 100), np.float32)
    assert softmax(empty).shape == (0, 100)
    right = softmax(made(1))
    monkeypatch.setattr(pool, "_shared", lambda: None)
    np.testing.assert_array_equal(softmax(made(1)), right)
