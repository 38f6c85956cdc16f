"""Fused functions with several results in captured steps, and in threads that walk backward at once."""
from __future__ import annotations

import sys
import threading

import pytest

import ruda_tensor as rt
from ruda_autodiff.backward import Walk
from ruda_autodiff.tape import _Setting
from ruda_tensor.fusion.kind import Generated
from ruda_tensor.fusion.results import Results, kind_of

from ..static._capture import recording_device
from .test_fuse import draw
from .test_fuse_results import SUBSETS, gates


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
def test_in_a_captured_step(dtype, monkeypatch):
    f = rt.fuse(lambda x, y: {"gates": gates(x, y), "x": x, "number": 3})

    def step(x, y, g):
        leaves = x.require_grad(), y.require_grad()
        made = f(*leaves)
        walk = Walk(False, 1)
        with _Setting(recording=False, order=1):
            walk.add(made["gates"][1]._node, g)
            walk.add(made["x"]._node, g)
            walk.run()
        return *[z.detach() for z in made["gates"]], walk.leaves[leaves[1]._node]

    with recording_device(monkeypatch) as device:
        graph = None
        for seed in range(4):
            inputs = draw(device, dtype, (6, 40), (6, 40), (6, 40), seed=seed)
            graph = rt.StaticGraph(step, *inputs) if graph is None else graph
            found, expected = graph.replay(*inputs), step(*inputs)
            assert [t.numpy().tobytes() for t in found] == [t.numpy().tobytes() for t in expected]
        assert graph is not None and graph.info["recorded"]


def operation() -> Generated:
    x = rt.ones((4, 32), device=rt.Cpu())
    made = kind_of(gates, [x, x], rt.Cpu())
    assert isinstance(made, Results)
    ((kind, _),) = made.kinds
    found = kind.operation((True, True))
    assert found.keeps == ("x0", "x1")
    return found


def test_threads_that_ask_for_other_sets_of_results_at_once():
    """They share one trace: the symbols of one set must not be taken for those of another."""
    sets = [tuple(i in used for i in range(3)) for used in SUBSETS]
    alone = {arrived: operation().partly(arrived).program.lines for arrived in sets}
    before, wrong = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            shared, start = operation(), threading.Barrier(len(sets))

            def ask(arrived, shared=shared, start=start):
                start.wait()
                if shared.partly(arrived).program.lines != alone[arrived]:
                    wrong.append(arrived)

            threads = [threading.Thread(target=ask, args=(arrived,)) for arrived in sets]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
