"""Every row inside a captured step: the bits of the eager operation, or a clear refusal where the host must read a number."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.recording import CaptureError

from ._captured import READS, made
from ._rows import ROWS, arrays_of, each, tensors

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each(ROWS)
def test_a_captured_operation_has_the_bits_of_the_eager_one(row, dtype):
    if dtype == "bfloat16" and not row.half:
        dtype = "float64"
    inputs = tensors(arrays_of(row), rt.Cuda(0), getattr(rt, dtype))
    step = made(row, inputs)

    def bits(call):
        rt.random.seed(3)
        runs = [call(*inputs) for _ in range(3)]
        return [[None if y is None else y.numpy().tobytes() for part in run for y in part] for run in runs]

    expected = bits(step)
    with rt.StaticGraph(step, *inputs) as graph:
        if str(row) in READS:
            with pytest.raises(CaptureError, match=READS[str(row)]):
                bits(graph.replay)
        else:
            assert bits(graph.replay) == expected
            assert graph.info["recorded"]
    assert bits(step) == expected  # a refusal leaves everything as it was


def blend(x: rt.Tensor) -> rt.Tensor:
    """Numbers, a list as an index, tables of weights and places, and an assignment by a mask."""
    y = rt.interpolate(rt.reshape(x, (1, 1, 4, 4)), size=(7, 5), mode="bicubic")
    y = rt.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")[0, 0, [2, 0, 5]]
    return rt.where(y > 0.1, y, -0.25) + rt.slice_assign(y, y < 0, 2.5)


def drop(x: rt.Tensor) -> rt.Tensor:
    return rt.scaled_dot_product_attention(x, x, x, dropout_p=0.4) + rt.dropout(x, 0.4, training=True)


@pytest.mark.parametrize("f", [blend, drop])
def test_replays_go_on_as_eager_steps_do(f):
    """While others take and fill the memory that is free, and the process's generator moves on."""
    device = rt.Cuda(0)
    inputs = [rt.tensor(np.random.default_rng(i).standard_normal((4, 4)), dtype=rt.float32, device=device) for i in range(5)]

    def step(x: rt.Tensor) -> list[rt.Tensor]:
        leaf = x.require_grad()
        y = f(leaf)
        return [y, rt.sum(y * y).backward()[leaf]]

    def bits(call) -> list[list[bytes]]:
        rt.random.seed(3)
        found = []
        for x in inputs:
            found.append([y.numpy().tobytes() for y in call(x)])
            for n in (1, 16, 128, 1024):
                rt.full((n,), 7.0, device=device)
        return found

    expected = bits(step)
    with rt.StaticGraph(step, inputs[0]) as graph:
        assert bits(graph.replay) == expected and graph.info["recorded"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "int64", "uint64", "bool"])
def test_a_number_is_recorded_with_all_its_bits(dtype):
    kind = getattr(rt, dtype)
    numbers = [-0.0, 0.1, float("nan"), float("-inf"), 2.0**-24] if "float" in dtype else [0, 1]
    numbers += {"int8": [-128], "int64": [-(2**63)], "uint64": [2**64 - 1]}.get(dtype, [])
    x = rt.ones(1, device="cuda")
    with rt.StaticGraph(lambda x: [rt.full((), n, dtype=kind, device=x.device) for n in numbers], x) as graph:
        found = [graph.replay(x) for _ in range(2)][1]
    assert [y.numpy().tobytes() for y in found] == [np.asarray(n, kind).tobytes() for n in numbers]


@pytest.mark.parametrize("name", ["getitem", "slice_assign"])
def test_a_mask_that_picks_is_refused(name):
    calls = {"getitem": lambda x: x[x > 0], "slice_assign": lambda x: rt.slice_assign(x, x > 0, x[:1])}
    x = rt.tensor([1.0, -1.0, 2.0], device="cuda")
    with rt.StaticGraph(calls[name], x) as graph:
        graph.replay(x)
        with pytest.raises(CaptureError, match=f"{name} by a mask.* rt.where"):
            graph.replay(x)
