"""Time of GPU work without the host's: many calls are captured in one CUDA graph, over several sets of inputs and outputs.

Back to back calls from Python measure the host where a kernel takes less than a launch, and one set of arrays that fits
in the cache measures the cache. Here each call of a graph has arrays of its own until they are several times the cache.
"""
from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CACHE = 60 << 20  # bytes of the L2 of an H200


def copy_bandwidth(cp: Any) -> float:
    """Bytes read and written per microsecond by a copy of 4 GiB; in a graph it would be slower."""
    x = cp.zeros(1 << 30, np.float32)
    y = cp.empty_like(x)
    x += 1
    times, a, b = [], cp.cuda.Event(), cp.cuda.Event()
    for _ in range(12):
        a.record()
        cp.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, 3, 0)
        b.record()
        b.synchronize()
        times.append(cp.cuda.get_elapsed_time(a, b) * 1e3)
    return 2 * x.nbytes / statistics.median(times)


def sets_for(moved: int) -> int:
    """How many sets of arrays are several times the cache together."""
    return max(2, min(20, -(-8 * CACHE // max(1, moved))))


def graph_us(cp: Any, run: Callable[[int], Any], count: int = 20, rounds: int = 10) -> float:
    """The median time of one call `run(i)`, of which a graph holds one for each i < count; results stay apart."""
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        for _ in range(2):  # compiles, and leaves the pool with all that the capture will ask for
            held = [run(i) for i in range(count)]
            stream.synchronize()
            del held
        stream.begin_capture()
        held = [run(i) for i in range(count)]
        graph = stream.end_capture()
        times, a, b = [], cp.cuda.Event(), cp.cuda.Event()
        for round in range(rounds + 2):
            a.record(stream)
            graph.launch(stream)
            b.record(stream)
            b.synchronize()
            if round >= 2:
                times.append(cp.cuda.get_elapsed_time(a, b) * 1e3 / count)
        del held
    return statistics.median(times)


def torch_graph_us(run: Callable[[int], Any], count: int = 20, rounds: int = 10) -> float:
    """The same for work that PyTorch launches."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            for i in range(count):
                run(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = [run(i) for i in range(count)]
    times = []
    for round in range(rounds + 2):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        if round >= 2:
            times.append(a.elapsed_time(b) * 1e3 / count)
    del held
    return statistics.median(times)


def checked_ms(step: Callable[[], Any], wait: Callable[[], Any], rounds: int, calls: int) -> float:
    """The median over rounds of the time of one training step by the host's clock, with the GPU waited for at the ends.

    A step returns its loss on inputs that stay the same. RuntimeError where it does not fall.
    """
    first = step().item()
    for _ in range(3):
        step()
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        wait()
        times.append((time.perf_counter() - start) / calls * 1e3)
    last = step().item()
    if not last < first:
        raise RuntimeError(f"the loss went from {first} to {last} on inputs that stayed the same")
    return statistics.median(times)
