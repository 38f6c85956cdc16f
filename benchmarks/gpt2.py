"""One training step of GPT-2 on one GPU, beside PyTorch in the same run, and where ours spends its time.

    python -m benchmarks.gpt2                              124M, 16 windows of 1024, with PyTorch
    python -m benchmarks.gpt2 --no-peers --profile 30      ours alone, and its 30 longest kernels
    python -m benchmarks.gpt2 --size 350M --batch 8

A step is the forward, the backward, clipping by the global norm and AdamW, on windows that lie on the GPU. Times are of the
wall clock, the median over rounds of several steps with the GPU waited for at the ends. A peer's ratio is its time over
the shortest of ours, so above 1 ours is faster. Memory is the most that was allocated at one time, and what pools hold.
"""
from __future__ import annotations

import argparse
import gc
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ruda_tensor as rt
from ruda_tensor import backend

from .gpt2_torch import PEERS, torch_step
from .gpu_timing import checked_ms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
from _gpt2_data import Corpus
from _gpt2_model import SIZES
from _gpt2_report import memory_held
from _gpt2_training import Training, TrainingConfig

Step = Callable[[], Any]
GIB = 1 << 30


class Line(NamedTuple):
    """What was measured of one candidate."""

    name: str
    ms: float
    allocated: int
    held: int
    parameters: int


# What the example's `--no-graph` and `--graph` run.
OURS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "ruda, eager": lambda graph: graph.run_eager,
    "ruda": lambda graph: graph.replay,
}


def fresh(options: argparse.Namespace) -> tuple[Training, rt.Tensor, rt.Tensor]:
    """A run over random tokens, and windows of it on the GPU."""
    ids = np.random.default_rng(0).integers(0, 50257, 1 << 20).astype(np.uint16)
    config = TrainingConfig(
        options.size, options.length, "bfloat16", options.batch, 1, 10_000, 10, lr=SIZES[options.size].lr
    )  # fmt: skip
    run = Training(config, Corpus("tokens", ids), rt.Cuda())
    return (run, *run.batch())


def allocated(cp: Any, step: Step) -> int:
    """The most bytes of the pool that were in use at one time during a step."""

    class Watch(cp.cuda.MemoryHook):
        name = "Watch"

        def __init__(self) -> None:
            self.now = self.most = cp.get_default_memory_pool().used_bytes()

        def malloc_postprocess(self, **event: Any) -> None:
            self.now += event["mem_size"]
            self.most = max(self.most, self.now)

        def free_postprocess(self, **event: Any) -> None:
            self.now -= event["mem_size"]

    with Watch() as watch:
        step()
    return watch.most


def measure_ours(cp: Any, name: str, options: argparse.Namespace) -> Line:
    """Time one way of running our step; with `--profile` show its kernels."""
    run, x, y = fresh(options)
    graph = rt.StaticGraph(run.step, x, y)
    call = OURS[name](graph)

    def step() -> rt.Tensor:
        return call(x, y)

    first = step().item()
    if not abs(first - np.log(50257)) < 0.2:
        raise RuntimeError(f"{name}: the first loss is {first}, and should be near log(50257) = 10.825")
    ms = checked_ms(step, run.device.synchronize, options.rounds, options.calls)
    most = allocated(cp, step) + graph.info["workspace_bytes"]
    line = Line(name, ms, most, memory_held(run.device, graph) or 0, run.model.num_params())
    if options.profile:
        show_kernels(f"{name} ({graph.info})", step, run.device.synchronize, options.profile)
    graph.close()
    return line


def show_kernels(name: str, step: Step, wait: Callable[[], Any], count: int, calls: int = 3) -> None:
    """Print the kernels and copies of a step by their time, as PyTorch's profiler sees them in this process."""
    from torch.profiler import ProfilerActivity, profile

    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            step()
        wait()
    times, numbers = defaultdict(float), defaultdict(int)
    for event in seen.events() or ():
        if event.device_time_total > 0:
            times[event.name] += event.device_time_total / calls / 1e3
            numbers[event.name] += 1
    whole = sum(times.values())
    print(f"\n{name}: {whole:.2f} ms in {sum(numbers.values()) / calls:.0f} kernels and copies a step")
    print(f"| {'ms':>7} | {'share':>6} | {'calls':>5} | kernel |\n|--:|--:|--:|---|")
    for kernel in sorted(times, key=lambda k: -times[k])[:count]:
        ms = times[kernel]
        print(f"| {ms:7.3f} | {ms / whole:6.1%} | {numbers[kernel] / calls:5.0f} | `{kernel[:100]}` |")
    print(flush=True)


def peer_step(name: str, options: argparse.Namespace) -> tuple[Step, int]:
    """The step of one of PyTorch's, and how many parameters it has."""
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch_step(name, SIZES[options.size], options.batch, options.length)


def measure_peer(name: str, step: Step, parameters: int, options: argparse.Namespace) -> Line:
    """Time it."""
    import torch

    ms = checked_ms(step, torch.cuda.synchronize, options.rounds, options.calls)
    return Line(name, ms, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), parameters)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="124M")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5, help="steps in a round")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="show the N longest kernels of our step")
    parser.add_argument("--ours", nargs="+", choices=OURS, default=list(OURS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--no-peers", dest="peers", action="store_const", const=[])
    options = parser.parse_args()
    cp, lines = backend.cupy(), []
    for name in options.ours:
        lines.append(measure_ours(cp, name, options))
        gc.collect()  # nothing of it should be left, and what the pool keeps is not for the next
        cp.get_default_memory_pool().free_all_blocks()
    lines += [measure_peer(name, *peer_step(name, options), options) for name in options.peers]
    if len({line.parameters for line in lines}) != 1:
        raise RuntimeError(f"these are not the same model: {[(line.name, line.parameters) for line in lines]}")
    ours = min(line.ms for line in lines if line.name in OURS)
    tokens = options.batch * options.length
    print(f"GPT-2 {options.size}, {options.batch} x {options.length}, one training step")
    print("| candidate | ms | tokens/s | allocated GiB | held GiB | its time / ours |\n|---|--:|--:|--:|--:|--:|")
    for line in lines:
        rate, ratio = tokens / line.ms * 1e3, line.ms / ours
        memory = f"{line.allocated / GIB:.2f} | {line.held / GIB:.2f}"
        print(f"| {line.name} | {line.ms:.2f} | {rate:,.0f} | {memory} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
