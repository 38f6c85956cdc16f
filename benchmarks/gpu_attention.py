"""Scaled dot-product attention on one GPU, causal, bfloat16: ours, and PyTorch's backends beside it in the same run.

    python -m benchmarks.gpu_attention                        the three sizes
    python -m benchmarks.gpu_attention 2x8x2048x64            batches x heads x positions x numbers of a head
    python -m benchmarks.gpu_attention --no-peers             ours alone

Times are medians in us. TFLOP/s count 2 B H T^2 D forward and 3.5 times that with the backward, as FlashAttention's
authors do, whatever is computed again. A ratio is a peer's time over ours: above 1 we are faster.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16
from ruda_tensor.ops import attention

from .gpu_rows import median_us, random, to_torch

SIZES = ["16x12x1024x64", "8x12x1024x64", "4x16x4096x128"]
PEERS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def ours(cp: Any, q: Any, k: Any, v: Any, g: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What the operation calls, forward and with its backward."""
    static = {"scale": q.shape[3] ** -0.5, "causal": True, "dropout": None}
    fused = attention._attention.fused
    assert fused is not None

    def forward() -> Any:
        return fused.forward(cp, q, k, v, None, **static)

    def both() -> Any:
        out, lse = forward()
        return out, *fused.backward(cp, g, q, k, v, None, out, lse, needs=(True, True, True, False), **static)[:3]

    return forward, both


def peer(name: str, arrays: list) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """PyTorch's operation with one of its backends."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend_of = getattr(SDPBackend, PEERS[name])
    q, k, v, g = (to_torch(a).detach().clone() for a in arrays)
    leaves = [a.detach().requires_grad_() for a in (q, k, v)]

    def attend(*inputs: Any) -> Any:
        with sdpa_kernel(backend_of):
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)

    def both() -> Any:
        out = attend(*leaves)
        return out, *torch.autograd.grad(out, leaves, g)

    return lambda: attend(q, k, v), both


def compare(found: Any, expected: Any) -> None:
    """Refuse to time what is wrong."""
    for a, b in zip(found, expected, strict=True):
        a, b = to_torch(a).float(), b.detach().float()
        error = float((a - b).norm() / b.norm())
        assert error < 1e-2, f"off by {error:.2g} of the peer's"


def measure(cp: Any, size: str, peers: bool) -> None:
    b, h, t, d = (int(n) for n in size.split("x"))
    arrays = [random(cp, (b, t, h, d), BFLOAT16).transpose(0, 2, 1, 3) for _ in range(4)]
    work, rows = 2 * b * h * t * t * d, {"ours": ours(cp, *arrays)}
    for name in PEERS if peers else ():
        rows[name] = peer(name, arrays)
        compare(rows["ours"][1](), rows[name][1]())
    times = {name: [median_us(cp, run) for run in runs] for name, runs in rows.items()}
    for name, (forward, both) in times.items():
        ratios = [theirs / mine for theirs, mine in zip((forward, both), times["ours"])]
        print(
            f"{size:16} {name:6} {forward:8.1f} {work / forward / 1e6:6.0f} {ratios[0]:6.2f}"
            f" {both:9.1f} {3.5 * work / both / 1e6:6.0f} {ratios[1]:6.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    rt.Cuda(0)
    print(f"{'size':16} {'':6} {'forward':>8} {'TF/s':>6} {'ratio':>6} {'both':>9} {'TF/s':>6} {'ratio':>6}")
    for size in options.sizes:
        measure(backend.cupy(), size, not options.no_peers)


if __name__ == "__main__":
    main()
