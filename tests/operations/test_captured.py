"""Every row inside a captured step: the bits of the eager operation, or a clear refusal where the host must read a number."""
from __future__ import annotations

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
