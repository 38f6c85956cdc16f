"""CPU against GPU: values and gradients of every row, in every float type, and the same bits from run to run."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.kernels.gate import use_fused

from ._rows import ROWS, arrays_of, each, gradients_of, is_float, results, tensors

pytestmark = pytest.mark.gpu

# Operations with kernels of their own are compared with them and without.
FUSED = {"layer_norm", "rms_norm", "group_norm", "instance_norm", "softmax", "log_softmax", "cross_entropy", "gelu", "silu",
         "relu", "silu_mul", "dropout", "sum", "linear"}  # fmt: skip
TOLERANCE = {"float64": (1e-11, 1e-12), "float32": (5e-5, 5e-6), "float16": (4e-3, 4e-3), "bfloat16": (3e-2, 3e-2)}


def wide(y: rt.Tensor) -> np.ndarray:
    return y.astype(rt.float64).numpy() if y.dtype in (rt.float16, rt.bfloat16) else y.numpy()


def with_and_without_kernels(rows):
    pairs = [(row, fused) for row in rows for fused in ((True, False) if row.name in FUSED else (True,))]
    ids = [f"{row}{'' if fused else ' without kernels'}" for row, fused in pairs]
    return pytest.mark.parametrize(("row", "fused"), pairs, ids=ids)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@with_and_without_kernels(ROWS)
def test_values(row, fused, dtype):
    if dtype in ("float16", "bfloat16") and not row.half:
        pytest.skip("the row is not for half types")
    arrays, (rtol, atol) = arrays_of(row), TOLERANCE[dtype]
    rt.random.seed(3)
    on_cpu = results(row.call(*tensors(arrays, rt.Cpu(), getattr(rt, dtype))))
    rt.random.seed(3)
    with use_fused(fused):
        on_gpu = results(row.call(*tensors(arrays, rt.Cuda(0), getattr(rt, dtype))))
    assert len(on_cpu) == len(on_gpu)
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and b.device == rt.Cuda(0)
        np.testing.assert_allclose(wide(b), wide(a), rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@with_and_without_kernels([row for row in ROWS if row.order >= 1])
def test_gradients(row, fused, dtype):
    if dtype == "bfloat16" and not row.half:
        pytest.skip("the row is not for half types")
    arrays, (rtol, atol) = arrays_of(row), TOLERANCE[dtype]
    rt.random.seed(3)
    on_cpu = gradients_of(row, tensors(arrays, rt.Cpu(), getattr(rt, dtype)))
    rt.random.seed(3)
    with use_fused(fused):
        on_gpu = gradients_of(row, tensors(arrays, rt.Cuda(0), getattr(rt, dtype)))
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            scale = float(np.abs(wide(a)).max(initial=0.0)) + 1.0
            np.testing.assert_allclose(wide(b), wide(a), rtol=rtol, atol=atol * scale)


@each([row for row in ROWS if row.order >= 1])
def test_CUDA_14_gradients_are_the_same_bits_on_every_run(row):
    inputs = tensors([np.asarray(a, np.float32) if is_float(a) else a for a in arrays_of(row)], rt.Cuda(0))

    def run():
        rt.random.seed(3)
        return [None if g is None else g.numpy().tobytes() for g in gradients_of(row, inputs)]

    first = run()
    assert all(run() == first for _ in range(3))
