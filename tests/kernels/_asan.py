"""Runs every kernel once under AddressSanitizer: `test_sanitizer.py` starts it with the library preloaded."""
from __future__ import annotations

import numpy as np

import ruda_autodiff  # noqa: F401  (the tape)
import ruda_tensor as rt
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ruda_tensor.kernels import copies
from ruda_tensor.kernels.launch import HITS, Kernel, KernelError, substitute

from . import _attention, _convs, _optimizers, _segments
from . import _cases as cases
from ._blaslt import on_fake
from ._shim import ALL, HostRuntime


def fused(rng: np.random.Generator) -> None:
    """Generated kernels: vectors and their rest, rows, columns, and views."""
    f = rt.fuse(lambda x, y: x * rt.sigmoid(y) + rt.exp(-rt.abs(x)))
    rt.Cpu.launches = True
    for shapes in (((1001,), (1001,)), ((9, 40), (40,)), ((9, 41), (9, 1)), ((3, 1, 16), (4, 1))):
        x, y = (rt.tensor(rng.standard_normal(s), dtype=BFLOAT16, device=rt.Cpu()).require_grad() for s in shapes)
        f(x, y).sum().backward()
    x = rt.tensor(rng.standard_normal((9, 82)), dtype=FLOAT32, device=rt.Cpu())
    f(x[:, ::2], x[:, 1::2])
    f(x.T, x.T[::-1])
    rt.Cpu.launches = False


def main() -> None:
    """Print how many kernels ran; the sanitizer ends the process where one reads or writes outside its arrays."""
    runtime, rng = HostRuntime(flags=("-fsanitize=address",)), np.random.default_rng(0)
    with substitute(runtime):
        for dtype, n, shift in ((BFLOAT16, 264, 0), (FLOAT32, 67, 0), (FLOAT16, 40, 1))[: None if ALL else 1]:
            rows = 33
            cases.norm(np, rng, dtype, rows, n, shift=shift)
            cases.norm(np, rng, dtype, rows, n, rms=True, shift=shift)
            cases.softmaxes(np, rng, dtype, rows, n, log=False, shift=shift)
            cases.entropy(np, rng, dtype, rows, n, weighted=True, smoothing=0.1, ignore=True, shift=shift)
            cases.activations(np, rng, dtype, "gelu", rows, n, shift=shift)
            cases.activations(np, rng, dtype, "silu", rows, n, bias="same", shift=shift)
            cases.gated(np, rng, dtype, 1001, shift=shift)
            cases.dropped(np, rng, dtype, 1001, 0.5, 1, 2, shift=shift)
            cases.summed(np, rng, dtype, 100, n, shift=shift)
            cases.residual(np, rng, dtype, rows, n, shift=shift)
            cases.reduced(np, rng, dtype, 100, n, "max", last=False, shift=shift)
            cases.reduced(np, rng, BFLOAT16, 257, n, "mean", last=True, shift=shift)
            copies.cast(np, cases.put(np, cases.draw(rng, (rows, n), dtype), shift), FLOAT16 if dtype != FLOAT16 else FLOAT32)
            for order in ((0, 2, 1, 3), (0, 3, 1, 2), (3, 2, 1, 0)):
                view = cases.put(np, cases.draw(rng, (2, 5, 6, n), dtype), shift).transpose(order)
                assert copies.straight(np, view).tobytes() == view.tobytes()
        for n, size, width in ((1000, 40, 33), (100, 300, 8), (16_500, 3, 1)):
            _segments.added(np, rng, FLOAT32, n, size, width, bad=True)
            _segments.picked(np, rng, BFLOAT16, n, size, width, bad=True, shift=1)
        for case in (_attention.Case(1, 2, 1, 70, 33, 64, True), _attention.Case(1, 1, 1, 131, 131, 128, True, "packed")):
            _attention.check(np, rng, BFLOAT16, case)
        with on_fake():
            _convs.each(np, rng, FLOAT32)
        if ALL:
            cases.norm(np, rng, FLOAT32, 2, 33_000)
        for layout in _optimizers.LAYOUTS[:: 2 if ALL else 5]:
            _optimizers.steps(np, rng, "adamw, cautious", layout, [1, 5, 2049])
        _optimizers.report(np, [rng.standard_normal(n).astype(np.float32) for n in (1, 33, 40_000)])
        fused(rng)
        print("kernels", len(HITS))
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
    main()
