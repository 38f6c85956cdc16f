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

from .gpu_cases import ROWS, WIDTH, Case, inputs, sets
from .gpu_rows import distance, ratios
from .gpu_timing import copy_bandwidth, graph_us, sets_for


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


def cases(cp: Any, dtype: Any) -> Iterator[tuple[Case, Callable[[int], Any]]]:
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
    size = ROWS * WIDTH * dtype.itemsize
    count = sets_for(size)
    x, y, g = sets(cp, count, (ROWS, WIDTH), dtype, 3)
    xs, ys, seeds = ([rt.Tensor._wrap(a, rt.Cuda(0)) for a in arrays] for arrays in (x, y, g))
    for name, f, peer, arity, ahead, back in functions:
        operands = (xs, ys)[:arity]

        def forward(i: int, f: Any = f, operands: Any = operands) -> Any:
            return f(*(a[i] for a in operands))._data

        def both(i: int, f: Any = f, operands: Any = operands) -> Any:
            leaves = [a[i].require_grad() for a in operands]
            out = f(*leaves)
            found = backward(out, seed=seeds[i])
            return out._data, [found[a]._data for a in leaves]

        theirs = (peer, inputs(count, *(x, y)[:arity])), (peer, inputs(count, *(x, y)[:arity], g=g))
        yield Case(f"{name} forward", forward, ahead * size, count, theirs[0]), apart(forward)
        yield Case(f"{name} forward + backward", both, (ahead + back) * size, count, theirs[1]), apart(both)


def apart(run: Callable[[int], Any]) -> Callable[[int], Any]:
    def plain(i: int) -> Any:
        with use_fused(False):
            return run(i)

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
            error = "-" if options.no_peers else f"{distance(case):.1e}"
            ours, separate = graph_us(cp, case.ours, case.count), graph_us(cp, plain, case.count)
            theirs = ratios(case, ours, not options.no_peers)
            figures = f"{ours:8.1f} {case.moved / copy / ours:6.1%} {separate:8.1f} {theirs} {error:>9s}"
            print(f"{case.name:40s} {dtype!s:9s} {figures}", flush=True)


if __name__ == "__main__":
    main()
