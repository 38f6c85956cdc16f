"""What is said of a run of GPT-2 while it goes on and afterwards: rates, memory, and the curve."""
from __future__ import annotations

import sys

import ruda_tensor as rt

# Dense bfloat16 products in TFLOP/s, from NVIDIA's data sheets; the first name that is part of the device's counts.
PEAKS = {"H200": 989.0, "GH200": 989.0, "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "A100": 312.0}


def device_peak(device: rt.Device) -> int | None:
    """Return the most bytes held so far: by the memory pool of a GPU, which keeps what it had, else by the process."""
    if device.launches:
        return int(device.xp.get_default_memory_pool().total_bytes())
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
