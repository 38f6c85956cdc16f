"""What is said of a run of GPT-2 while it goes on and afterwards: rates, memory, and the curve."""
from __future__ import annotations

import sys
import time
from typing import Any

import ruda_tensor as rt

# Dense bfloat16 products in TFLOP/s, from NVIDIA's data sheets; the first name that is part of the device's counts.
PEAKS = {"H200": 989.0, "GH200": 989.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "A100": 312.0}


def memory_held(device: rt.Device, graph: Any) -> int | None:
    """Return the bytes of a GPU that the memory pool and a recorded step hold, or the most that the process ever had."""
    if device.launches:
        return int(device.xp.get_default_memory_pool().total_bytes()) + graph.info["workspace_bytes"]
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_rate(device: rt.Device, dtype: str) -> float | None:
    """Return the operations per second that a GPU can do at most in a dtype, None where that is not known."""
    if not device.launches or dtype != "bfloat16":
        return None
    name = device.xp.cuda.runtime.getDeviceProperties(device.index)["name"].decode()
    return next((peak * 1e12 for part, peak in PEAKS.items() if part in name), None)


class Meter:
    """Tokens per second and model FLOPs utilization of the updates between two marks, and of all; the most memory seen.

    The utilization is the operations that the model needs (`Gpt2Config.flops_per_token`, whatever is computed in truth)
    per second, over `peak`, those that the device could do.
    """

    def __init__(self, tokens: int, flops_per_token: int, peak: float | None) -> None:
        self.tokens, self.flops_per_token, self.peak = tokens, flops_per_token, peak
        self.seconds, self.updates = 0.0, 0
        self.rate = 0.0
        self.memory: int | None = None
        self.start()

    def start(self) -> None:
        """Begin to measure: what came since the last mark, such as a validation, does not count."""
        self.since = time.perf_counter()

    def mark(self, updates: int, memory: int | None = None) -> None:
        """End a stretch of so many updates, all of which are done, and begin another; `memory` is held now."""
        seconds = time.perf_counter() - self.since
        self.seconds, self.updates = self.seconds + seconds, self.updates + updates
        self.rate = updates * self.tokens / seconds
        self.memory = max(self.memory or 0, memory or 0) or None
        self.start()

    def mean_rate(self) -> float:
        """Tokens per second over all stretches."""
        return self.updates * self.tokens / self.seconds if self.seconds else 0.0

    def utilization(self, rate: float) -> float | None:
        """The share of the peak at so many tokens per second; None without a peak."""
        return None if self.peak is None else rate * self.flops_per_token / self.peak


def share(x: float | None) -> str:
    """A share in percent."""
    return "n/a" if x is None else f"{x:.1%}"


def gibibytes(count: int | None) -> str:
    """A number of bytes."""
    return "n/a" if count is None else f"{count / (1 << 30):.2f} GiB"
