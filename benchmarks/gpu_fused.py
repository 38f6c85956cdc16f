"""Generated elementwise kernels on one GPU: fused functions and half primitives, beside their separate launches and PyTorch.

    python -m benchmarks.gpu_fused                   everything
    python -m benchmarks.gpu_fused mish backward     what has one of these words in its name
    python -m benchmarks.gpu_fused --no-peers        ours alone

The columns are those of `benchmarks.gpu_rows`; `apart` is the time of the same operations launched one by one.
"""
from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import ruda_tensor as rt
from ruda_autodiff.backward import backward
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32
from ruda_tensor.kernels.gate import use_fused

from .gpu_rows import ROWS, WIDTH, Case, compare, copy_bandwidth, leaf, median_us, peer_times, random, to_torch


@rt.fuse
def mish_by_hand(x: rt.Tensor) -> rt.Tensor:
    return x * rt.tanh(rt.softplus(x))


@rt.fuse
def huber_terms(x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
    d = rt.abs(x - y)
    return rt.where(d < 1.0, d * d * 0.5, d - 0.5)


@rt.fuse
def quick_gelu_plus(x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
    return x * rt.sigmoid(x * 1.702) + y


def cases(cp: Any, dtype: Any) -> Iterator[tuple[Case, Callable[[], Any]]]:
    """Each case, and the same with separate launches. Arrays moved: forward, and backward after it."""
    import torch
    import torch.nn.functional as F

    def t_huber(x: Any, y: Any) -> Any:
        d = torch.abs(x - y)
        return torch.where(d < 1.0, d * d * 0.5, d - 0.5)

    functions = [
        ("mish", rt.mish, F.mish, 1, 2, 3),
        ("x tanh(softplus(x))", mish_by_hand, lambda x: x * torch.tanh(F.softplus(x)), 1, 2, 3),
        ("huber terms", huber_terms, t_huber, 2, 3, 5),
        ("x sigmoid(1.702 x) + y", quick_gelu_plus, lambda x, y: x * torch.sigmoid(x * 1.702) + y, 2, 3, 3),
        ("x y", rt.multiply, torch.mul, 2, 3, 5),
        ("exp", rt.exp, torch.exp, 1, 2, 3),
    ]
    arrays = [random(cp, (ROWS, WIDTH), dtype) for _ in range(3)]
    xs, seed = [rt.Tensor._wrap(a, rt.Cuda(0)) for a in arrays[:2]], rt.Tensor._wrap(arrays[2], rt.Cuda(0))
    for name, f, peer, count, ahead, back in functions:
        inputs, size = xs[:count], arrays[0].nbytes
        theirs = (*[leaf(a) for a in arrays[:count]], to_torch(arrays[2]))

        def forward(f: Any = f, inputs: Any = inputs) -> Any:
            return f(*inputs)._data

        def both(f: Any = f, inputs: Any = inputs) -> Any:
            leaves = [x.require_grad() for x in inputs]
            y = f(*leaves)
            g = backward(y, seed=seed)
            return y._data, [g[x]._data for x in leaves]

        yield Case(f"{name} forward", forward, ahead * size, (peer, theirs, False)), apart(forward)
        yield Case(f"{name} forward + backward", both, (ahead + back) * size, (peer, theirs, True)), apart(both)


def apart(run: Callable[[], Any]) -> Callable[[], Any]:
    def plain() -> Any:
        with use_fused(False):
            return run()

    return plain


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    cp = backend.cupy()
    copy = copy_bandwidth(cp)
    cp.get_default_memory_pool().free_all_blocks()
    print(f"{cp.cuda.runtime.getDeviceProperties(0)['name'].decode()}; a copy moves {copy / 1e3:.0f} GB/s")
    print(f"{'function':40s} {'dtype':9s} {'us':>8s} {'share':>6s} {'apart':>8s} {'eager':>6s} {'compil':>6s} {'error':>9s}")
    for dtype in (FLOAT32, BFLOAT16):
        for case, plain in cases(cp, dtype):
            if options.words and not any(word in case.name for word in options.words):
                continue
            error = "-" if options.no_peers else compare(case)
            ours = median_us(cp, case.ours)
            peers = (None, None) if options.no_peers else peer_times(cp, case)
            ratios = " ".join("     -" if p is None else f"{p / ours:6.2f}" for p in peers)
            figures = f"{ours:8.1f} {case.moved / copy / ours:6.1%} {median_us(cp, plain):8.1f} {ratios} {error:>9s}"
            print(f"{case.name:40s} {dtype!s:9s} {figures}", flush=True)


if __name__ == "__main__":
    main()
