"""Kernels of `benchmarks.gpu`: rows, AdamW, attention; and the ceilings that they are compared with.

As in benchmarks/gpu_steps.py a function prepares and returns what measures. Kernels are timed in CUDA graphs, ours and the
peers', over several sets of arrays, after the results have been compared.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ruda_tensor import backend
from ruda_tensor.dtypes import FLOAT32
from ruda_tensor.kernels import optimizer

from . import gpu_attention
from .gpu_cases import FAMILIES, Case, optimizer_cases, optimizer_entries, to_torch
from .gpu_rows import distance, fused_adamw, peer_us, warm
from .gpu_steps import Ceilings, Measure
from .gpu_table import ADAMW, CLIPPED, COMPILED, EAGER, KERNELS, OURS, Figure, attention_name, figure
from .gpu_timing import copy_bandwidth, graph_us, torch_graph_us

LIMITS = {"float32": 1e-5, "bfloat16": 1e-2}  # how far ours may be from PyTorch's in float32, relative to the norm
ROWS = {  # the families that hold the kernels of the table
    "norms": "layer_norm rms_norm",
    "softmax": "softmax log_softmax",
    "silu_mul": "silu_mul gelu dropout elementwise",
    "bias": "bias columns",
    "cross_entropy": "cross_entropy",
}


def ceilings() -> Ceilings:
    """Measure what this GPU reaches."""
    from .gpu_gemm import product_rates

    cp = backend.cupy()
    copy = copy_bandwidth(cp)
    cp.get_default_memory_pool().free_all_blocks()
    sizes = {"bfloat16": 8192, "tf32": 8192, "float32": 4096}  # in float32 a product of 8192 takes long, and reaches no more
    return Ceilings(copy, *(max(product_rates(cp, name, n)) for name, n in sizes.items()))


def case_us(cp: Any, case: Case, limit: float) -> float:
    """The time of ours, if it computes what PyTorch does."""
    if not (found := distance(case)) < limit:
        raise RuntimeError(f"ours is {found:.2g} of the norm away from PyTorch's in float32")
    return graph_us(cp, case.ours, case.count)


def rows(quick: bool, family: str, dtype: str) -> Measure:
    cp = backend.cupy()
    wanted = {f"{kernel} {way}" for kernel in KERNELS for way in ("forward", "forward + backward")}
    cases = [case for case in FAMILIES[ROWS[family]](cp, np.dtype(dtype)) if case.name in wanted]
    warm(cp, cases, compiled=not quick)

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        for case in cases:
            what, floor = f"{case.name}, {dtype}", case.moved / ceilings.copy
            yield figure(what, OURS, case_us, cp, case, LIMITS[dtype], floor=floor)
            yield figure(what, EAGER, peer_us, case, False)
            if not quick:
                yield figure(what, COMPILED, peer_us, case, True)

    return measure


def adamw(quick: bool) -> Measure:
    cp = backend.cupy()
    entries = optimizer_entries(cp, FLOAT32)
    cases = dict(zip((ADAMW, CLIPPED), optimizer_cases(cp, FLOAT32)))
    for case in cases.values():
        case.ours(0)

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        error = adamw_distance(cp, entries[:4])
        for what, case in cases.items():
            if error < 3e-2:
                yield figure(what, OURS, graph_us, cp, case.ours, case.count, floor=case.moved / ceilings.copy)
            else:
                yield Figure(what, OURS, None, failed=f"ours is {error:.2g} of an update away from PyTorch's")
            yield figure(what, "torch fused", fused_adamw, entries, what == CLIPPED)

    return measure


def adamw_distance(cp: Any, entries: list[Any]) -> float:
    """How far update 5 of ours and of PyTorch's are apart, relative to it; a number is rounded at a hundredth of its update."""
    import torch

    params = [torch.nn.Parameter(to_torch(e.p).clone()) for e in entries]
    before = [p.detach().clone() for p in params]
    rule = torch.optim.AdamW(params, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, fused=True)
    for p, e in zip(params, entries):
        p.grad = to_torch(e.g).clone()
        first, second = (to_torch(s).reshape(p.shape).clone() for s in e.states)
        rule.state[p] = {"step": torch.tensor(4.0, device="cuda"), "exp_avg": first, "exp_avg_sq": second}
    rule.step()
    optimizer.update(cp, optimizer.Shape("adamw"), optimizer.adam_numbers(1e-4, 5, (0.9, 0.999), 1e-8, 0.01, True), entries)
    return max(float((to_torch(e.p) - p.detach()).norm() / (p.detach() - b).norm()) for e, p, b in zip(entries, params, before))


def attention(quick: bool, size: str) -> Measure:
    cp = backend.cupy()
    sets = gpu_attention.arrays(cp, size)
    mine = gpu_attention.ours(cp, sets)[1]
    mine(0)

    def theirs(name: str) -> float:
        run = gpu_attention.peer(name, sets)[1]
        gpu_attention.compare(mine(0), run(0))
        return torch_graph_us(run, len(sets))

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        what, floor = attention_name(size), 3.5 * gpu_attention.work(size) / ceilings.bfloat16
        yield figure(what, OURS, graph_us, cp, mine, len(sets), floor=floor)
        for name in gpu_attention.PEERS:
            yield figure(what, name, theirs, name)

    return measure
