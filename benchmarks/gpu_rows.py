"""The hand-written kernels on one GPU: time, share of the copy bandwidth, and PyTorch beside them in the same run.

    python -m benchmarks.gpu_rows                        everything
    python -m benchmarks.gpu_rows layer_norm adamw       what has these words in its name
    python -m benchmarks.gpu_rows --no-peers             ours alone
    python -m benchmarks.gpu_rows --together             compiles PyTorch's functions in many processes at once

Compiling takes most of the time. With --together a process per family and dtype compiles, and says when it is done; then one
after the other measures, alone on the GPU.

`share` is the bytes that must move (each input read once, each output written once) over the time and over what a copy
of 4 GiB reaches here. A peer's ratio is its time over ours, so above 1 is faster than the peer. Times are medians in us of
launches in a CUDA graph, ours and the peers', on several sets of arrays (benchmarks/gpu_timing.py); every timed result is
first compared with PyTorch's.
"""
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32
from ruda_tensor.kernels import launch, norms, pointwise

from .gpu_cases import FAMILIES, Case, optimizer_entries, to_torch
from .gpu_jobs import Job, hold, prepared
from .gpu_timing import copy_bandwidth, graph_us, torch_graph_us


def peer_run(function: Callable[..., Any], sets: list[tuple]) -> Callable[[int], Any]:
    """PyTorch's forward, or forward and backward where there is an incoming gradient."""
    import torch

    def run(i: int) -> Any:
        *inputs, g = sets[i]
        if g is None:
            with torch.no_grad():
                return function(*inputs)
        out = function(*inputs)
        return out, torch.autograd.grad(out, [x for x in inputs if x.requires_grad], g)

    return run


def peer_us(case: Case, compiled: bool) -> float:
    """Microseconds of PyTorch."""
    import torch

    assert case.peer is not None
    function, sets = case.peer
    return torch_graph_us(peer_run(torch.compile(function) if compiled else function, sets), case.count)


def ratios(case: Case, us: float, peers: bool) -> str:
    """The times of PyTorch eager and compiled over ours, as two columns."""
    found = []
    for compiled in (False, True):
        try:
            found.append(f"{peer_us(case, compiled) / us:6.2f}" if peers and case.peer else "     -")
        except Exception as error:
            print(f"  {case.name}: a peer failed: {error!r:.150}")
            found.append("failed")
    return " ".join(found)


def distance(case: Case) -> float:
    """The largest distance of our results, gradients too, from PyTorch's in float32, relative to their norms."""
    assert case.peer is not None
    function, (first, *_) = case.peer
    wide = [x.detach().float().requires_grad_(x.requires_grad) for x in first[:-1]]
    g = None if first[-1] is None else first[-1].float()
    expected, mine = peer_run(function, [(*wide, g)])(0), case.ours(0)
    pairs = [(mine, expected)] if g is None else [(mine[0], expected[0]), *zip(mine[1], expected[1], strict=True)]
    near = [(to_torch(a).detach().float(), e.detach().float()) for a, e in pairs]
    return max(float((a - e).norm() / e.norm()) for a, e in near)


def report(cp: Any, case: Case, dtype: Any, copy: float, peers: bool) -> None:
    """Print one line of the table."""
    error = f"{distance(case):.1e}" if peers and case.peer else "-"
    us = graph_us(cp, case.ours, case.count)
    share, floor = case.moved / us / copy, case.moved / copy
    print(f"{case.name:42s} {dtype!s:9s} {us:9.1f} {floor:9.1f} {share:6.1%} {ratios(case, us, peers)} {error:>9s}", flush=True)


def host_us(cp: Any, run: Callable[[], Any], calls: int = 100) -> float:
    """The median host time of a call, in a loop that never fills the queue."""
    run()
    found = []
    for _ in range(20):
        cp.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        found.append((time.perf_counter() - start) * 1e6 / calls)
    return statistics.median(found)


def overhead(cp: Any) -> None:
    """Host time of one launch."""
    x, out = cp.ones(4, np.float32), cp.empty(4, np.float32)
    kernel = pointwise._kernel("activation.cu", "activation_forward", FLOAT32, 4, 4, 0)
    runs = {
        "a launch alone": lambda: kernel((1, 1), (256, 1), x, out, 4),
        "a binding (gate, allocation, launch)": lambda: pointwise.activation_forward(cp, "relu", x),
        "layer_norm forward (4 allocations)": lambda: norms.layer_forward(cp, x.reshape(1, 4), None, None, axes=1, eps=1e-5),
        "cp.add(x, x, out)": lambda: cp.add(x, x, out),
    }
    for name, run in runs.items():
        print(f"host time: {name:40s} {host_us(cp, run):6.2f} us")


def fused_adamw(entries: list[Any], clip: bool) -> float:
    """Microseconds of PyTorch's fused AdamW on such parameters, and of clipping by the global norm before it."""
    import torch

    params = [torch.nn.Parameter(to_torch(e.p).clone()) for e in entries]
    for p, e in zip(params, entries):
        p.grad = to_torch(e.g).clone()
    rule = torch.optim.AdamW(params, lr=1e-4, fused=True, capturable=True)

    def run(i: int) -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
        rule.step()

    return torch_graph_us(run, 2)


def warm(cp: Any, cases: list[Case], compiled: bool = True) -> None:
    """Run each of ours and each compiled peer once, so that all is compiled; others may have the memory meanwhile."""
    import torch

    for case in cases:
        case.ours(0)
        if compiled and case.peer is not None:
            try:
                peer_run(torch.compile(case.peer[0]), case.peer[1])(0)
            except Exception as error:  # measuring it fails again, and is reported then
                print(f"  {case.name}: {error!r:.150}")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    cp.get_default_memory_pool().free_all_blocks()


def together(chosen: list[str]) -> None:
    """A process per family and dtype: all compile at once, then they measure one by one."""
    jobs = [
        Job(f"{name}, {dtype}", "benchmarks.gpu_rows", "--family", name, "--dtype", dtype, "--held")
        for name in chosen
        for dtype in ("float32", "bfloat16")
    ]
    try:
        prepared(jobs, 300)
        for job in jobs:
            lines = job.measure("", 300)
            print("\n".join([*lines, *([f"  {job.name} failed: {job.why}"] if job.why else [])]), flush=True)
    finally:
        for job in jobs:
            job.close()


def measure(cp: Any, name: str, options: argparse.Namespace, copy: float) -> None:
    """Print the lines of one family."""
    for dtype in (FLOAT32, BFLOAT16):
        if options.dtype not in (None, str(dtype)):
            continue
        cases = FAMILIES[name](cp, dtype)
        if options.held:
            warm(cp, cases)
            hold()
            copy = copy_bandwidth(cp)
        for case in cases:
            report(cp, case, dtype, copy, not options.no_peers)
        del cases
        cp.get_default_memory_pool().free_all_blocks()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--family", choices=list(FAMILIES))
    parser.add_argument("--held", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    rt.Cuda(0)
    cp = backend.cupy()
    if options.held:
        return measure(cp, options.family, options, 0.0)
    chosen = [name for name in FAMILIES if not options.words or any(word in name for word in options.words)]
    copy = copy_bandwidth(cp)
    cp.get_default_memory_pool().free_all_blocks()
    print(f"{cp.cuda.runtime.getDeviceProperties(0)['name'].decode()}; a copy moves {copy / 1e3:.0f} GB/s")
    overhead(cp)
    print(f"{'kernel':42s} {'dtype':9s} {'us':>9s} {'floor':>9s} {'share':>6s} {'eager':>6s} {'compil':>6s} {'error':>9s}")
    if options.together:
        together(chosen)
    else:
        for name in chosen:
            measure(cp, name, options, copy)
    if not options.no_peers and any("adamw" in name for name in chosen):
        entries = optimizer_entries(cp, FLOAT32)
        figures = [fused_adamw(entries, clip) for clip in (False, True)]
        print(f"torch fused AdamW {figures[0]:.0f} us, clipped {figures[1]:.0f} us (float32)")
    print("launches:", dict(sorted(launch.HITS.items())))


if __name__ == "__main__":
    main()
