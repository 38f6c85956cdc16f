"""What is measured once rather than against a peer: memory that backward leaves behind, import time, bandwidth."""
from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import ruda_tensor as rt

from .numpy_peer import big_copy
from .ours import make_mlp

IMPORT = """
import sys, time
import numpy
start = time.perf_counter()
import ruda_nn, ruda_optim
print(time.perf_counter() - start, "cupy" in sys.modules)
"""


def memory_left(device: rt.Device) -> tuple[int, int]:
    """Bytes that the forward of an MLP keeps for backward, and bytes that are left after it while the loss is held."""
    model, rows = make_mlp(device), 1024
    x = rt.random.normal((rows, 784), seed=0, device=device)
    classes = rt.random.integers((rows,), high=10, seed=1, device=device)
    rt.cross_entropy(model(x), classes).backward()  # what is made once, such as caches, is not the graph's
    on_gpu = device.kind == "cuda"
    gc.collect()
    if not on_gpu:
        tracemalloc.start()
    try:
        before = _used(device)
        loss = rt.cross_entropy(model(x), classes)
        kept = _used(device) - before
        loss.backward()
        left = _used(device) - before
    finally:
        tracemalloc.stop()
    return kept, left


def _used(device: rt.Device) -> int:
    """Bytes in use: every Python and NumPy allocation on the CPU, CuPy's pool on a GPU."""
    if device.kind == "cpu":
        return tracemalloc.get_traced_memory()[0]
    device.synchronize()
    with device.guard():
        return device.xp.get_default_memory_pool().used_bytes()


def import_seconds(times: int = 7) -> tuple[float, bool]:
    """Seconds that `import ruda_nn, ruda_optim` takes after NumPy, in new processes, and whether CuPy came along."""
    found = []
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        found.append(done.stdout.split())
    return statistics.median(float(seconds) for seconds, _ in found), any(cupy == "True" for _, cupy in found)


def copy_bandwidth(device: rt.Device) -> float:
    """Bytes read and written per second by a copy of 256 MiB: the best of several."""
    xp: Any = device.xp
    with device.guard():
        run, moved = big_copy(xp)
        run()
        best = float("inf")
        for _ in range(7):
            device.synchronize()
            start = time.perf_counter()
            run()
            device.synchronize()
            best = min(best, time.perf_counter() - start)
    return moved / best
