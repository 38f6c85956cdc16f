"""Runs every kernel once, for a tool that watches their memory.

On the CPU that is AddressSanitizer: `test_sanitizer.py` starts this with its library preloaded. On a GPU, from the command line:

    compute-sanitizer --tool memcheck python -m tests.kernels._asan cuda     (and --tool racecheck)
"""
from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np

import ruda_autodiff  # noqa: F401  (the tape)
import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ruda_tensor.kernels import attention_hopper, copies, small_product
from ruda_tensor.kernels.gate import capability
from ruda_tensor.kernels.launch import HITS, Kernel, KernelError, substitute

from . import _attention, _convs, _optimizers, _segments
from . import _cases as cases
from ._blaslt import on_fake
from ._shim import ALL, HostRuntime


def fused(rng: np.random.Generator, device: rt.Device) -> None:
    """Generated kernels: vectors and their rest, rows, columns, and views."""
    f = rt.fuse(lambda x, y: x * rt.sigmoid(y) + rt.exp(-rt.abs(x)))
    for shapes in (((1001,), (1001,)), ((9, 40), (40,)), ((9, 41), (9, 1)), ((3, 1, 16), (4, 1))):
        x, y = (rt.tensor(rng.standard_normal(s), dtype=BFLOAT16, device=device).require_grad() for s in shapes)
        f(x, y).sum().backward()
    x = rt.tensor(rng.standard_normal((9, 82)), dtype=FLOAT32, device=device)
    f(x[:, ::2], x[:, 1::2])
    f(x.T, x.T[::-1])


def rows(xp: Any, rng: np.random.Generator, dtype: np.dtype, n: int, shift: int) -> None:
    """Kernels of rows, columns and elements."""
    count = 33
    cases.norm(xp, rng, dtype, count, n, shift=shift)
    cases.norm(xp, rng, dtype, count, n, rms=True, shift=shift)
    cases.softmaxes(xp, rng, dtype, count, n, log=False, shift=shift)
    cases.entropy(xp, rng, dtype, count, n, weighted=True, smoothing=0.1, ignore=True, shift=shift)
    cases.activations(xp, rng, dtype, "gelu", count, n, shift=shift)
    cases.activations(xp, rng, dtype, "silu", count, n, bias="same", shift=shift)
    cases.gated(xp, rng, dtype, 1001, shift=shift)
    cases.dropped(xp, rng, dtype, 1001, 0.5, 1, 2, shift=shift)
    cases.summed(xp, rng, dtype, 100, n, shift=shift)
    cases.residual(xp, rng, dtype, count, n, shift=shift)
    cases.reduced(xp, rng, dtype, 100, n, "max", last=False, shift=shift)
    cases.reduced(xp, rng, BFLOAT16, 257, n, "mean", last=True, shift=shift)
    copies.cast(xp, cases.put(xp, cases.draw(rng, (count, n), dtype), shift), FLOAT16 if dtype != FLOAT16 else FLOAT32)
    for order in ((0, 2, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0)):
        view = cases.put(xp, cases.draw(rng, (2, 5, 6, n), dtype), shift).transpose(order)
        assert backend.to_host(copies.straight(xp, view)).tobytes() == backend.to_host(view).tobytes()


def products(xp: Any, rng: np.random.Generator) -> None:
    """Small products, attention, convolution and pooling."""
    for m, n, k in ((1, 1, 1), (7, 10, 33), (33, 65, 129)):
        x, y, b = (xp.asarray(rng.standard_normal(shape).astype(np.float32)) for shape in ((m, k), (k, n), n))
        small_product.product(xp, x, y, b)
        small_product.product(xp, xp.asarray(x.T.copy()).T, y)
        g = xp.ones((m, n), np.float32)
        for needs in ((True, True, True), (False, True, False), (False, False, True)):
            small_product.linear_backward(xp, g, x, y, needs)
    for case in (_attention.Case(1, 2, 1, 70, 33, 64, True), _attention.Case(1, 1, 1, 131, 131, 128, True, "packed")):
        _attention.check(xp, rng, BFLOAT16, case)
        if xp is not np and capability(xp) == 90:
            q, k, v, g = _attention.place(xp, case, _attention.inputs(rng, case, BFLOAT16))
            out, lse = _attention.taken(attention_hopper.forward(xp, q, k, v, scale=0.1, causal=True))
            _attention.taken(attention_hopper.backward(xp, g, q, k, v, out, lse, scale=0.1, causal=True))
    with on_fake() if xp is np else contextlib.nullcontext():
        _convs.each(xp, rng, FLOAT32)


def everything(xp: Any, rng: np.random.Generator, device: rt.Device) -> None:
    """Every kernel, at small sizes that are no multiples of its tiles."""
    for dtype, n, shift in ((BFLOAT16, 264, 0), (FLOAT32, 67, 0), (FLOAT16, 40, 1))[: None if ALL else 1]:
        rows(xp, rng, dtype, n, shift)
    for n, size, width in ((1000, 40, 33), (100, 300, 8), (16_500, 3, 1)):
        _segments.added(xp, rng, FLOAT32, n, size, width, bad=True)
        _segments.picked(xp, rng, BFLOAT16, n, size, width, bad=True, shift=1)
    products(xp, rng)
    if ALL:
        cases.norm(xp, rng, FLOAT32, 2, 33_000)
    for layout in _optimizers.LAYOUTS[:: 2 if ALL else 5]:
        _optimizers.steps(xp, rng, "adamw, cautious", layout, [1, 5, 2049])
    _optimizers.report(xp, [rng.standard_normal(n).astype(np.float32) for n in (1, 33, 40_000)])
    fused(rng, device)
    print("kernels", len(HITS))


def on_gpu() -> None:
    """Each array has memory of its own, or a tool would not see what leaves it for the rest of a pool."""
    device = rt.Cuda(0)
    cp = backend.cupy()
    cp.cuda.set_allocator(None)
    everything(cp, np.random.default_rng(0), device)
    device.synchronize()
    print(*sorted(HITS))


def on_cpu() -> None:
    """The sanitizer ends the process where a kernel reads or writes outside its arrays; the last one does."""
    with substitute(HostRuntime(flags=("-fsanitize=address",))):
        rt.Cpu.launches = True
        everything(np, np.random.default_rng(0), rt.Cpu())
        rt.Cpu.launches = False
        small, large = np.zeros(64, np.float32), np.zeros(68, np.float32)
        defines = {"STORAGE": "float", "VECTOR": 1, "BATCH": 1, "KIND": 0}
        kernel = Kernel("activation.cu", "activation_forward", "P P q", defines)
        print("now outside", flush=True)
        try:
            kernel((1, 1), (256, 1), large, small, 68)  # writes beyond `small`
        except KernelError as error:
            print(error)
    print("not seen")


if __name__ == "__main__":
    on_gpu() if "cuda" in sys.argv else on_cpu()
