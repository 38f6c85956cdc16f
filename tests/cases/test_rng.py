"""Neighbours of the random cases: what checkpoint runs again draws what it drew, whoever else draws meanwhile."""
from __future__ import annotations

import sys
import threading

import pytest

import ruda_tensor as rt
from ruda_autodiff import checkpoint


def leaf(device, n=64):
    return rt.ones(n, device=device).require_grad()


def test_RNG_02_checkpoints_in_several_threads_meet_their_own_masks(device):
    """All threads draw from the process's generator; a replay must not depend on where the others have moved it."""
    wrong, interval = [], sys.getswitchinterval()

    def work():
        for _ in range(60):
            x = leaf(device)
            y = checkpoint(lambda x: rt.dropout(x, 0.5, training=True))(x)
            if rt.sum(y).backward()[x].tolist() != y.tolist():
                wrong.append(1)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


@pytest.mark.parametrize("source", ["process", "generator", "seed", "key", "seeded inside"])
def test_RNG_02_checkpoints_replay_every_source_and_move_none(source, device):
    generator = rt.random.Generator(3)

    def f(x):
        if source == "seeded inside":
            rt.random.seed(11)
        mask = {
            "process": lambda: rt.random.bernoulli((64,), device=device),
            "generator": lambda: generator.bernoulli((64,), device=device),
            "seed": lambda: rt.random.bernoulli((64,), seed=5, device=device),
            "key": lambda: rt.random.bernoulli((64,), key=rt.random.key(5), device=device),
            "seeded inside": lambda: rt.random.bernoulli((64,), device=device),
        }[source]()
        return x * rt.astype(mask, x.dtype)

    rt.random.seed(1)
    x = leaf(device)
    plain = f(x)
    rt.random.seed(1)
    generator.seed(3)
    inner, outer = checkpoint(f)(x), checkpoint(lambda x: checkpoint(f)(x) + checkpoint(f)(x))
    assert inner.tolist() == plain.tolist()
    both = outer(x)
    state, own = rt.random.get_state(), generator.get_state()
    assert rt.sum(inner).backward()[x].tolist() == inner.tolist()
    assert rt.sum(both).backward()[x].tolist() == both.tolist()
    assert rt.random.get_state() == state and generator.get_state() == own


def test_RNG_02_a_function_that_draws_otherwise_the_second_time_is_refused(device):
    calls = []

    def f(x):
        calls.append(1)
        return rt.dropout(x, 0.5, training=True) if len(calls) == 1 else rt.dropout(rt.concat([x, x]), 0.5, training=True)

    x = leaf(device)
    y = checkpoint(f)(x)
    with pytest.raises(RuntimeError, match="draws other random numbers"):
        rt.sum(y).backward()
    assert len(rt.random.normal((2,), device=device).tolist()) == 2  # the replay is over, whatever happened in it
