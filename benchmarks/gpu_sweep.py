"""Other ways to share rows between threads, timed on one GPU: which plan `ruda_tensor/kernels/plans.py` should choose.

    python -m benchmarks.gpu_sweep

`share` as in benchmarks/gpu_rows.py.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32
from ruda_tensor.kernels import cross_entropy, norms, optimizer, softmax
from ruda_tensor.kernels.plans import Plan

from .gpu_rows import TOKENS, VOCABULARY, copy_bandwidth, median_us, optimizer_cases, random

ROWS = 16384
STATIC = {"axes": 1, "eps": 1e-5}


def show(cp: Any, copy: float, name: str, dtype: Any, run: Callable[[], Any], moved: int) -> None:
    """Print one line."""
    us = median_us(cp, run)
    print(f"{name:60s} {dtype!s:9s} {us:9.1f} us {moved / us / copy:6.1%}", flush=True)


def candidates(n: int, vector: int) -> list[Plan]:
    """A block per row, with one to eight vectors per thread."""
    plans = [Plan(vector, -(-n // vector // items // 32) * 32, 1, items) for items in (1, 2, 4, 8)]
    return [plan for plan in plans if 64 <= plan.group <= 1024]


def rows(cp: Any, copy: float, n: int, dtype: Any) -> None:
    """Norms and softmax over rows of n."""
    x, g, w = random(cp, (ROWS, n), dtype), random(cp, (ROWS, n), dtype), random(cp, n, dtype)
    kept = norms.layer_forward(cp, x, w, w, **STATIC)
    chosen = norms.sums_plan, norms.row_plan, softmax.row_plan

    def backward() -> Any:
        return norms.layer_backward(cp, g, x, w, *kept[1:], needs=(True, True, True), **STATIC)

    def forward() -> Any:
        return norms.layer_forward(cp, x, w, w, **STATIC)

    def smooth() -> Any:
        return softmax.forward(cp, x, axis=1, log=False)

    show(cp, copy, f"layer_norm backward {n}: as chosen", dtype, backward, 3 * x.nbytes)
    try:
        for plan in candidates(n, 16 // dtype.itemsize):
            for resident in (512, 768, 1024, 1536, 2048):
                if resident >= plan.group:
                    norms.sums_plan = lambda n, vector, choice=(plan, resident): choice
                    name = f"layer_norm backward {n}: {plan.group} x {plan.items}, {resident} resident"
                    show(cp, copy, name, dtype, backward, 3 * x.nbytes)
            norms.row_plan = softmax.row_plan = lambda n, vector, kept, choice=plan: choice
            show(cp, copy, f"layer_norm forward {n}: {plan.group} x {plan.items}", dtype, forward, 2 * x.nbytes)
            show(cp, copy, f"softmax forward {n}: {plan.group} x {plan.items}", dtype, smooth, 2 * x.nbytes)
    finally:
        norms.sums_plan, norms.row_plan, softmax.row_plan = chosen


def entropy(cp: Any, copy: float, dtype: Any) -> None:
    """Cross-entropy with blocks of several sizes."""
    x, ids = random(cp, (TOKENS, VOCABULARY), dtype), cp.random.randint(0, VOCABULARY, TOKENS).astype("int64")
    static, chosen = {"axis": 1, "ignore": None, "smoothing": 0.0, "reduction": "mean"}, cross_entropy._plan
    out, top, whole = cross_entropy.forward(cp, x, ids, None, **static)

    def forward() -> Any:
        return cross_entropy.forward(cp, x, ids, None, **static)

    def backward() -> Any:
        return cross_entropy.backward(cp, out, x, ids, None, top, whole, **static)

    try:
        for group in (128, 256, 512, 1024):
            cross_entropy._plan = lambda n, vector, group=group: Plan(vector, group, 1, 0)
            show(cp, copy, f"cross_entropy forward, {group} threads", dtype, forward, x.nbytes)
            show(cp, copy, f"cross_entropy backward, {group} threads", dtype, backward, 2 * x.nbytes)
    finally:
        cross_entropy._plan = chosen


def main() -> None:
    """Print all."""
    rt.Cuda(0)
    cp = backend.cupy()
    copy = copy_bandwidth(cp)
    for dtype in (BFLOAT16, FLOAT32):
        for n in (768, 4096):
            rows(cp, copy, n, dtype)
        entropy(cp, copy, dtype)
        cp.get_default_memory_pool().free_all_blocks()
    for batch in (1, 2, 4):
        optimizer.BATCH = batch
        optimizer._kernel.cache_clear()
        case = optimizer_cases(cp, FLOAT32)[0]
        show(cp, copy, f"{case.name}, {batch} vectors per thread", FLOAT32, case.ours, case.moved)


if __name__ == "__main__":
    main()
