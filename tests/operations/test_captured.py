"""Every row inside a captured step: the bits of the eager operation, or a clear refusal where the host must read a number."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.recording import CaptureError

from ._rows import ROWS, arrays_of, each, results, tensors

pytestmark = pytest.mark.gpu
READS: set[str] = set()  # operations whose result has a shape that only its values know, or which check values


def made(row, inputs):
    """A step that returns the row's results and the gradients of a fixed combination of them."""
    rng = np.random.default_rng(1000)
    floating = [x.dtype in (rt.float16, rt.bfloat16, rt.float32, rt.float64) for x in inputs]
    tracked = [x.require_grad() if f and row.order else x for x, f in zip(inputs, floating)]
    weights = [
        rt.tensor(rng.standard_normal(y.shape), dtype=y.dtype, device=y.device) if y.is_require_grad() else None
        for y in results(row.call(*tracked))
    ]

    def step(*xs):
        leaves = [x.require_grad() if f and row.order else x for x, f in zip(xs, floating)]
        out = results(row.call(*leaves))
        terms = [rt.sum(y * w) for y, w in zip(out, weights, strict=True) if w is not None]
        if not terms:
            return out, []
        total = terms[0]
        for term in terms[1:]:
            total = total + rt.astype(term, total.dtype)
        found = total.backward()
        return out, [found.get(x) for x in leaves if x.is_require_grad()]

    return step


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
        if row.name in READS:
            with pytest.raises(CaptureError):
                bits(graph.replay)
        else:
            assert bits(graph.replay) == expected
            assert graph.info["recorded"]
    assert bits(step) == expected  # a refusal leaves everything as it was
