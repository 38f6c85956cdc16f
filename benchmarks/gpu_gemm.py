"""Matrix products on one GPU: rates, GPT-2's products and epilogues, with PyTorch beside them in the same run.

    python -m benchmarks.gpu_gemm                  everything
    python -m benchmarks.gpu_gemm rates host       some parts: rates, gpt2, epilogues, feed_forward, host

Times are medians in us of calls in a captured graph, so that they hold no host time; PyTorch's are captured too. A ratio is
PyTorch's time over ours, so above 1 is faster than PyTorch. Every timed product is first compared with PyTorch's.
"""
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32
from ruda_tensor.kernels import columns, gemm, pointwise
from ruda_tensor.kernels.blaslt import private_workspace
from ruda_tensor.ops import feed_forward

from .gpu_cases import to_torch

ROWS = 16384  # GPT-2: 16 sequences of 1024
GPT2 = {"qkv": (768, 2304), "attention out": (768, 768), "feed-forward in": (768, 3072), "feed-forward out": (3072, 768),
        "vocabulary": (768, 50304)}  # fmt: skip
RATES = {"bfloat16": BFLOAT16, "float16": FLOAT16, "tf32": FLOAT32, "float32": FLOAT32}
_CALLS, _ROUNDS = 5, 15


def random(cp: Any, *shape: int, dtype: Any = BFLOAT16, scale: float = 1.0) -> Any:
    return (cp.random.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(dtype)


def median_us(cp: Any, replay: Callable[[Any], Any], stream: Any) -> float:
    times, a, b = [], cp.cuda.Event(), cp.cuda.Event()
    for i in range(_ROUNDS + 2):
        a.record(stream)
        replay(stream)
        b.record(stream)
        b.synchronize()
        if i > 1:
            times.append(cp.cuda.get_elapsed_time(a, b) * 1e3 / _CALLS)
    return statistics.median(times)


def ours(cp: Any, run: Callable[[], Any]) -> float:
    """Microseconds of a call on the GPU: several of them captured, and the graph replayed."""
    run()
    stream, pool = cp.cuda.Stream(non_blocking=True), cp.cuda.MemoryPool()
    cp.cuda.Device().synchronize()
    with cp.cuda.using_allocator(pool.malloc), stream, private_workspace(cp):
        stream.begin_capture()
        for _ in range(_CALLS):
            run()
        graph = stream.end_capture()
        return median_us(cp, graph.launch, stream)


def theirs(cp: Any, run: Callable[[], Any]) -> float:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(_CALLS):
                run()
    stream = cp.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        return median_us(cp, lambda _: graph.replay(), stream)


def against(cp: Any, mine: Callable[[], Any], peer: Callable[[], Any]) -> tuple[float, float]:
    a, b = to_torch(mine()).float(), peer().float()
    assert (a - b).norm() <= 1e-2 * b.norm(), "PyTorch has another result"
    first = ours(cp, mine), theirs(cp, peer)  # twice in turns: the GPU slows down as it gets warm
    return min(first[0], ours(cp, mine)), min(first[1], theirs(cp, peer))


def product_rates(cp: Any, name: str, n: int = 8192) -> list[float]:
    """Operations per microsecond that ours and PyTorch's products of one of RATES reach."""
    import torch

    x, y = random(cp, n, n, dtype=RATES[name]), random(cp, n, n, dtype=RATES[name])
    a, b = to_torch(x), to_torch(y)
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    with rt.use_tf32(name == "tf32"):
        return [2 * n**3 / t for t in against(cp, lambda: gemm.matmul(cp, x, y), lambda: a @ b)]


def rates(cp: Any) -> None:
    print("\nproducts of 8192, TFLOP/s: ours, PyTorch")
    for name in RATES:
        print(f"  {name:10} " + "  ".join(f"{rate / 1e6:6.0f}" for rate in product_rates(cp, name)))


def gpt2(cp: Any) -> None:
    print(f"\nGPT-2's products, {ROWS} rows, bfloat16, us (ratio to PyTorch): forward, dx, dw")
    for name, (k, n) in GPT2.items():
        x, w, g = random(cp, ROWS, k), random(cp, k, n), random(cp, ROWS, n)
        a, b, c = (to_torch(t) for t in (x, w, g))
        pairs = (
            (lambda x=x, w=w: gemm.matmul(cp, x, w), lambda a=a, b=b: a @ b),
            (lambda g=g, w=w: gemm.matmul(cp, g, w.T), lambda c=c, b=b: c @ b.T),
            (lambda x=x, g=g: gemm.matmul(cp, x.T, g), lambda a=a, c=c: a.T @ c),
        )
        found = [against(cp, mine, peer) for mine, peer in pairs]
        print(f"  {name:18} {k:5} {n:5}  " + "  ".join(f"{m:7.1f} ({p / m:4.2f})" for m, p in found))


def epilogues(cp: Any) -> None:
    print(f"\nepilogues beside kernels of their own, {ROWS} rows, bfloat16, us")
    for name, (k, n) in list(GPT2.items())[:4]:
        x, w, b = random(cp, ROWS, k), random(cp, k, n, scale=k**-0.5), random(cp, n)
        g, h, r, y = random(cp, ROWS, n), random(cp, ROWS, k), random(cp, ROWS, n), random(cp, ROWS, n)
        once, large = random(cp, ROWS, k), (random(cp, ROWS, k) + 12).astype(BFLOAT16)  # slopes of 1, written over `once`
        runs: dict[str, Callable[[], Any]] = {
            "product": lambda x=x, w=w: gemm.matmul(cp, x, w),
            "+ bias": lambda x=x, w=w, b=b: gemm.affine(cp, x, w, b),
            "+ bias + residual": lambda x=x, w=w, b=b, r=r: gemm.affine(cp, x, w, b, r),
            "gelu, kept": lambda x=x, w=w, b=b: gemm.affine_gelu(cp, x, w, b),
            "[gelu]": lambda r=r: pointwise.activation_forward(cp, "gelu_tanh", r),
            "[gelu']": lambda h=h, x=x: pointwise.activation_backward(cp, "gelu_tanh", h, x),
            "[gelu, gelu', sums]": lambda h=large, x=once: columns.activation_again(cp, "gelu_tanh", x, h, (True, True)),
            "[gelu', sums]": lambda h=large, x=once: columns.activation_again(cp, "gelu_tanh", x, h, (False, True)),
            "[sums]": lambda g=g, n=n: columns.sum_columns(cp, g, n, BFLOAT16),
            "[add]": lambda r=r, g=g, y=y: cp.add(r, g, out=y),
        }
        print(f"  {name}: " + ", ".join(f"{what} {ours(cp, run):.1f}" for what, run in runs.items()))


def feed_forward_part(cp: Any) -> None:
    print(f"\nfeed-forward part, {ROWS} x 768 x 3072, bfloat16, us: one operation, its parts one by one")
    x, g, r = (random(cp, ROWS, 768) for _ in range(3))
    w1, w2 = random(cp, 768, 3072, scale=768**-0.5), random(cp, 3072, 768, scale=3072**-0.5)
    b1, b2 = random(cp, 3072), random(cp, 768)
    h = gemm.affine(cp, x, w1, b1)
    a = pointwise.activation_forward(cp, "gelu_tanh", h)
    how: Any = {"activation": "gelu_tanh", "storage": BFLOAT16}

    def parts_forward() -> Any:
        z = pointwise.activation_forward(cp, "gelu_tanh", gemm.affine(cp, x, w1, b1))
        return cp.add(r, gemm.affine(cp, z, w2, b2))

    def backward(kept: bool) -> Any:
        z = a if kept else pointwise.activation_forward(cp, "gelu_tanh", h)
        dh = pointwise.activation_backward(cp, "gelu_tanh", gemm.matmul(cp, g, w2.T), h)
        sums = columns.sum_columns(cp, dh, 3072, BFLOAT16), columns.sum_columns(cp, g, 768, BFLOAT16)
        return gemm.matmul(cp, z.T, g), gemm.matmul(cp, dh, w1.T), gemm.matmul(cp, x.T, dh), sums

    def one_backward() -> Any:
        return feed_forward._fused_backward(cp, g, x, w1, w2, h, needs=(True,) * 6, **how)

    def one_forward() -> Any:
        return feed_forward._fused_forward(cp, x, w1, b1, w2, b2, r, **how)

    print(f"  forward {ours(cp, one_forward):.1f}, parts {ours(cp, parts_forward):.1f}")
    print(f"  backward {ours(cp, one_backward):.1f}; parts, with gelu made again {ours(cp, lambda: backward(False)):.1f}, "
          f"with gelu kept {ours(cp, lambda: backward(True)):.1f}")  # fmt: skip
    print(f"  kept for backward: h {h.nbytes >> 20} MiB; with gelu(h) {(h.nbytes + a.nbytes) >> 20} MiB")


def host(cp: Any) -> None:
    """Host time of calls whose kernels are short."""
    x, b = random(cp, 64, 64), random(cp, 64)

    def cost(run: Callable[[], Any]) -> float:
        times = []
        for _ in range(10):
            start = time.perf_counter()
            for _ in range(200):
                run()
            times.append((time.perf_counter() - start) / 200 * 1e6)
            cp.cuda.Device().synchronize()
        return min(times)

    a = to_torch(x)
    print(f"\nhost time of a 64 x 64 product, us: ours {cost(lambda: gemm.matmul(cp, x, x)):.1f}, with a bias "
          f"{cost(lambda: gemm.affine(cp, x, x, b)):.1f}, cupy.matmul {cost(lambda: cp.matmul(x, x)):.1f}, "
          f"PyTorch {cost(lambda: a @ a):.1f}, an empty array {cost(lambda: cp.ndarray((64, 64), BFLOAT16)):.1f}")  # fmt: skip


PARTS = {"rates": rates, "gpt2": gpt2, "epilogues": epilogues, "feed_forward": feed_forward_part, "host": host}


def main() -> None:
    cp = backend.cupy()
    for name in sys.argv[1:] or PARTS:
        PARTS[name](cp)


if __name__ == "__main__":
    main()
