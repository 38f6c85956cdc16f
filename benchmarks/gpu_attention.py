"""Scaled dot-product attention on one GPU, causal, bfloat16: ours, and PyTorch's backends beside it in the same run.

    python -m benchmarks.gpu_attention                        the three sizes
    python -m benchmarks.gpu_attention 2x8x2048x64            batches x heads x positions x numbers of a head
    python -m benchmarks.gpu_attention --no-peers             ours alone

Times are medians in us, in a CUDA graph (benchmarks/gpu_timing.py). TFLOP/s count 2 B H T^2 D forward and 3.5 times that with
the backward, as FlashAttention's authors do, whatever is computed again. A ratio is a peer's time over ours: above 1 we are
faster.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16
from ruda_tensor.ops import attention

from .gpu_cases import random, to_torch
from .gpu_timing import graph_us, sets_for, torch_graph_us

SIZES = ["16x12x1024x64", "8x12x1024x64", "4x16x4096x128"]
PEERS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}

Run = Callable[[int], Any]


def work(size: str) -> float:
    """The operations of a forward; with its backward 3.5 times as many."""
    b, h, t, d = (int(n) for n in size.split("x"))
    return 2.0 * b * h * t * t * d


def arrays(cp: Any, size: str) -> list[list[Any]]:
    """Sets of q, k, v and the incoming gradient, as heads lie in the output of a linear layer."""
    b, h, t, d = (int(n) for n in size.split("x"))
    make = lambda: random(cp, (b, t, h, d), BFLOAT16).transpose(0, 2, 1, 3)
    return [[make() for _ in range(4)] for _ in range(sets_for(8 * 2 * b * h * t * d))]


def ours(cp: Any, sets: list[list[Any]]) -> tuple[Run, Run]:
    """What the operation calls, forward and with its backward."""
    static = {"scale": sets[0][0].shape[3] ** -0.5, "causal": True, "dropout": None}
    fused = attention._attention.fused
    assert fused is not None

    def forward(i: int) -> Any:
        found = fused.forward(cp, *sets[i][:3], None, **static)
        if found is None:
            raise RuntimeError("the kernel does not take these arrays")
        return found

    def both(i: int) -> Any:
        q, k, v, g = sets[i]
        out, lse = forward(i)
        return out, *fused.backward(cp, g, q, k, v, None, out, lse, needs=(True, True, True, False), **static)[:3]

    return forward, both


def peer(name: str, sets: list[list[Any]]) -> tuple[Run, Run]:
    """PyTorch's operation with one of its backends."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend_of = getattr(SDPBackend, PEERS[name])
    copies = [[to_torch(a).detach().clone() for a in arrays] for arrays in sets]
    leaves = [[a.detach().requires_grad_() for a in arrays[:3]] for arrays in copies]

    def attend(*inputs: Any) -> Any:
        with sdpa_kernel(backend_of):
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)

    def both(i: int) -> Any:
        out = attend(*leaves[i])
        return out, *torch.autograd.grad(out, leaves[i], copies[i][3])

    return lambda i: attend(*copies[i][:3]), both


def compare(found: Any, expected: Any) -> None:
    """Refuse to time what is wrong."""
    for a, b in zip(found, expected, strict=True):
        a, b = to_torch(a).float(), b.detach().float()
        error = float((a - b).norm() / b.norm())
        if not error < 1e-2:
            raise RuntimeError(f"ours and the peer's are {error:.2g} apart")


def measure(cp: Any, size: str, peers: bool) -> None:
    sets = arrays(cp, size)
    mine = ours(cp, sets)
    times = {"ours": [graph_us(cp, run, len(sets)) for run in mine]}
    for name in PEERS if peers else ():
        theirs = peer(name, sets)
        compare(mine[1](0), theirs[1](0))
        times[name] = [torch_graph_us(run, len(sets)) for run in theirs]
    for name, (forward, both) in times.items():
        ratios = [theirs / mine for theirs, mine in zip((forward, both), times["ours"])]
        print(
            f"{size:16} {name:6} {forward:8.1f} {work(size) / forward / 1e6:6.0f} {ratios[0]:6.2f}"
            f" {both:9.1f} {3.5 * work(size) / both / 1e6:6.0f} {ratios[1]:6.2f}",
            flush=True,
        )


def main() -> None:
    """Print the table."""
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
