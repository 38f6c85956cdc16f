"""Blocks of rows on several threads: every row once, the same bits for any number of them, and alive after a fork."""
from __future__ import annotations

import multiprocessing
import os
import threading

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.ops import _parallel

from ._helpers import CPU


@pytest.fixture
def with_threads(monkeypatch):
    """Set the number of threads, with a pool of its own, and put both back."""

    def use(n):
        _parallel._pool.cache_clear()
        monkeypatch.setattr(_parallel, "threads", lambda: n)

    yield use
    _parallel._pool.cache_clear()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("rows,row_bytes", [(0, 8), (1, 8), (3, 0), (1000, 4096), (1001, 4096), (7, 2**20), (2**20, 4)])
def test_every_row_is_visited_once(with_threads, count, rows, row_bytes):
    with_threads(count)
    seen = np.zeros(rows, int)
    lock = threading.Lock()

    def body(block):
        with lock:
            seen[block] += 1

    _parallel.each_block(np, rows, row_bytes, body)
    assert (seen == 1).all()


def test_results_are_the_same_bits_for_any_number_of_threads(with_threads):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1500, 1024)).astype(np.float32)
    x[5] += 500.0
    targets = rt.tensor(rng.integers(0, 1024, 1500), device=CPU)
    found = []
    for count in (1, 2, 4):
        with_threads(count)
        leaf, parts = rt.tensor(x, device=CPU).require_grad(), []
        for y in (rt.softmax(leaf), rt.log_softmax(leaf), rt.cross_entropy(leaf, targets, label_smoothing=0.1)):
            parts += [y.numpy(), leaf.grad(rt.sum(y * y).backward()).numpy()]
        found.append(parts)
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_an_error_in_a_block_reaches_the_caller(with_threads):
    with_threads(3)

    def body(block):
        raise ValueError(f"no {block.start}")

    with pytest.raises(ValueError, match="no "):
        _parallel.each_block(np, 4096, 4096, body)
    _parallel.each_block(np, 4096, 4096, lambda block: None)


def _softmax_in_child():
    x = rt.tensor(np.ones((4096, 512), np.float32), device=CPU)
    os._exit(0 if abs(rt.sum(rt.softmax(x)).item() - 4096) < 1 else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(with_threads):
    with_threads(2)
    x = rt.tensor(np.ones((4096, 512), np.float32), device=CPU)
    rt.softmax(x)
    child = multiprocessing.get_context("fork").Process(target=_softmax_in_child)
    child.start()
    child.join(30)
    alive = child.is_alive()
    if alive:
        child.kill()
    assert not alive and child.exitcode == 0


@pytest.mark.parametrize(
    "settings,expected", [({"RUDA_THREADS": "3"}, 3), ({"OPENBLAS_NUM_THREADS": "2"}, 2), ({}, None)]
)
def test_the_number_of_threads_follows_the_environment(monkeypatch, settings, expected):
    for name in ("RUDA_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    _parallel.threads.cache_clear()
    try:
        assert _parallel.threads() == expected if expected else _parallel.threads() >= 1
    finally:
        _parallel.threads.cache_clear()
