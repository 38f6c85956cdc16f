"""The one place that knows CuPy: finding a usable GPU cheaply, and moving arrays between host and device.

Nothing here imports CuPy until a CUDA device is first used.
"""
from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from typing import Any

import numpy as np

from .recording import refuse_while_capturing

_FORK: dict[str, int | None] = {"pid": None}  # the process that initialized CUDA: a forked child cannot use it


class NoUsableGpu(RuntimeError):
    """A CUDA device was asked for where none can be used; the message says why."""


def keep_host_memory() -> None:
    """Let glibc keep freed memory for the next array, as device pools do, instead of giving it back at once.

    By default every array of more than 128 KiB is mapped anew, and most of the time of a large NumPy operation goes
    into the kernel clearing its pages: three times the time for an `exp` of 16 MiB. Up to 512 MiB stay with the
    process. Does nothing where glibc is not the allocator, or where MALLOC_TRIM_THRESHOLD_ has been set.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
        mallopt(trim_threshold, 512 * 2**20)
        mallopt(mmap_threshold, 256 * 2**20)


@functools.cache
def gpu_problem() -> str | None:
    """Say why no GPU can be used here, or None if one can; asks the cheap questions first, and only once.

    Without CuPy or without a driver the answer comes in a few milliseconds and CuPy is never imported.
    """
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (pip install 'ruda[cuda13]')"
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver was found (libcuda.so.1 cannot be loaded)"
    try:
        import cupy as cp
    except Exception as error:
        return f"CuPy cannot be imported ({error})"
    try:
        count = cp.cuda.runtime.getDeviceCount()
    except Exception as error:
        return f"the CUDA driver reports no device ({error})"
    if count == 0:
        return "the CUDA driver reports no device"
    try:
        major, _ = cp.cuda.nvrtc.getVersion()
    except Exception as error:
        return f"the CUDA run-time compiler (NVRTC) cannot be loaded ({error})"
    problem = too_old(int(cp.cuda.Device(0).compute_capability), major)
    if problem is not None:
        return problem
    _FORK["pid"] = os.getpid()
    return None


def too_old(capability: int, major: int) -> str | None:
    """Say why a GPU of a compute capability (times 10: 75) is of no use with a version of CUDA, or None if it is."""
    least = 75 if major >= 13 else 70
    if capability >= least:
        return None
    way = "pip install 'ruda[cuda12]'" if capability >= 70 else "a newer GPU is needed"
    return f"the GPU has compute capability {capability / 10}, and {least / 10} is the least with CUDA {major} ({way})"


@functools.cache
def cupy() -> Any:
    """Return the CuPy module, or raise NoUsableGpu with the reason."""
    check_fork()
    problem = gpu_problem()
    if problem is not None:
        raise NoUsableGpu(f"no usable GPU: {problem}; use device=Cpu(), or mend this and try again")
    import cupy as cp

    return cp


def check_fork() -> None:
    """Raise where a forked child would use the CUDA context of its parent, which hangs or fails obscurely."""
    if _FORK["pid"] not in (None, os.getpid()):
        raise RuntimeError(
            "CUDA was initialized before this process was forked; start workers with multiprocessing.get_context('spawn')"
        )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cupy.cache_clear)  # the child asks again and meets check_fork


def cuda_array_module(index: int) -> Any:
    """Return CuPy after checking that GPU `index` exists and this process may use it."""
    check_fork()
    cp = cupy()
    count = cp.cuda.runtime.getDeviceCount()
    if not 0 <= index < count:
        raise NoUsableGpu(f"Cuda({index}) was asked for, and this process sees {count} GPU(s): Cuda(0) to Cuda({count - 1})")
    problem = too_old(int(cp.cuda.Device(index).compute_capability), cp.cuda.nvrtc.getVersion()[0])
    if problem is not None:
        raise NoUsableGpu(f"Cuda({index}): {problem}")
    return cp


def is_cupy_array(x: Any) -> bool:
    """True for a CuPy array; never imports CuPy."""
    module = sys.modules.get("cupy")
    return module is not None and isinstance(x, module.ndarray)


def to_host(array: Any) -> np.ndarray:
    """Copy a device array to host memory (synchronizes), or return a host array as it is."""
    if isinstance(array, np.ndarray):
        return array
    refuse_while_capturing("reading values on the host", "return the tensor from the step, and read it after replay")
    return cupy().asnumpy(array) if is_cupy_array(array) else array.host()


def cuda_index(array: Any) -> int:
    return int(array.device.id)


def use_device(index: int) -> Any:
    """A context in which CuPy allocates and launches on GPU `index`."""
    check_fork()
    return cupy().cuda.Device(index)


def synchronize(index: int) -> None:
    refuse_while_capturing("waiting for the device", "synchronize after replay")
    cupy().cuda.Device(index).synchronize()


def release_memory(index: int) -> None:
    """Give free memory of the default pool back to the driver, so that another pool can have it."""
    with use_device(index):
        cupy().get_default_memory_pool().free_all_blocks()
