"""Devices: where a tensor's numbers live, and the default dtypes of numbers that arrive without one."""
from __future__ import annotations

import functools
import os
from contextlib import nullcontext
from typing import Any

import numpy as np

from . import backend
from .dtypes import FLOAT32, INT32, as_dtype, is_floating, is_integer
from .recording import constant, number, refuse_while_capturing

_HERE = nullcontext()


class Device:
    """A place for tensors. Two devices are equal when they are the same place, whatever their default dtypes.

    >>> isinstance(Cpu(), Device), Cpu() == Cuda(0)
    (True, False)
    """

    kind = "device"
    index = 0
    guarded = False  # True where operations must run inside `guard()`
    launches = False  # True where operations try their CUDA kernels first
    symbolic = False  # True where arrays are expressions (see ruda_tensor/fusion)
    xp: Any
    array_type: Any
    float_dtype: np.dtype
    int_dtype: np.dtype
    numbers: dict[tuple, Any] = {}  # (dtype, number) -> 0-d array, for the hot path; stays empty for CUDA
    _known: dict[tuple, Any] = {}

    @classmethod
    def _intern(cls, index: int, float_dtype: Any, int_dtype: Any) -> Any:
        float_dtype, int_dtype = as_dtype(float_dtype), as_dtype(int_dtype)
        if not is_floating(float_dtype) or not is_integer(int_dtype):
            raise ValueError(f"{cls.__name__}: float_dtype={float_dtype} must be a float and int_dtype={int_dtype} an integer")
        key = (cls, index, float_dtype, int_dtype)
        found = Device._known.get(key)
        if found is None:
            found = object.__new__(cls)
            found.index, found.float_dtype, found.int_dtype = index, float_dtype, int_dtype
            found.guarded = index != 0
            found = Device._known.setdefault(key, found)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.kind, self.index) == (other.kind, other.index)

    def __hash__(self) -> int:
        return hash((self.kind, self.index))

    def guard(self) -> Any:
        return nullcontext()

    def entered(self) -> Any:
        """`guard()` where operations must run in it: entering one costs as much as a launch."""
        return self.guard() if self.guarded else _HERE

    def put(self, array: np.ndarray) -> Any:
        """Return a host array as an array of this device (itself on the CPU)."""
        return array

    def number(self, array: np.ndarray) -> Any:
        """Return a number, as a 0-d host array, as an array of this device, in a captured step too."""
        return self.put(array)

    def constant(self, array: np.ndarray) -> Any:
        """Return a host array that follows from shapes and settings as one of this device, in a captured step too."""
        return self.put(array)

    def synchronize(self) -> None:
        """Wait until all work queued on the device is done."""


class Cpu(Device):
    """Host memory, computed by NumPy.

    >>> Cpu() == Cpu(), Cpu().float_dtype
    (True, dtype('float32'))
    """

    kind = "cpu"
    xp = np
    array_type = np.ndarray
    numbers: dict[tuple, Any] = {}

    def __new__(cls, *, float_dtype: Any = FLOAT32, int_dtype: Any = INT32) -> Cpu:
        return cls._intern(0, float_dtype, int_dtype)

    def __repr__(self) -> str:
        return "Cpu()"

    def __reduce__(self) -> tuple:
        return functools.partial(Cpu, float_dtype=self.float_dtype, int_dtype=self.int_dtype), ()


class Cuda(Device):
    """One NVIDIA GPU, computed by CuPy; `index` is its number in this process. Making one touches no GPU yet.

    Errors: NoUsableGpu, with the reason, when it is first used where no GPU can be.

    >>> Cuda(1)
    Cuda(1)
    """

    kind = "cuda"
    launches = True

    def __new__(cls, index: int = 0, *, float_dtype: Any = FLOAT32, int_dtype: Any = INT32) -> Cuda:
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise ValueError(f"Cuda: index must be an integer >= 0, got {index!r}; for the first GPU: Cuda(0)")
        return cls._intern(index, float_dtype, int_dtype)

    @functools.cached_property
    def xp(self) -> Any:  # type: ignore[override]
        return backend.cuda_array_module(self.index)

    @functools.cached_property
    def array_type(self) -> Any:  # type: ignore[override]
        return self.xp.ndarray

    def guard(self) -> Any:
        return backend.use_device(self.index)

    def put(self, array: np.ndarray) -> Any:
        refuse_while_capturing(
            "an array or list from the host",
            "its values would be the same at every replay; make it a tensor before the step, or give it to the step as an input",
        )
        if array.ndim == 0:
            return self.number(array)
        with self.guard():
            return self.xp.asarray(array)

    def number(self, array: np.ndarray) -> Any:
        with self.guard():
            return number(self.xp, array)

    def constant(self, array: np.ndarray) -> Any:
        with self.guard():
            return constant(self.xp, array)

    def synchronize(self) -> None:
        backend.synchronize(self.index)

    def __repr__(self) -> str:
        return f"Cuda({self.index})"

    def __reduce__(self) -> tuple:
        return functools.partial(Cuda, self.index, float_dtype=self.float_dtype, int_dtype=self.int_dtype), ()


CudaDevice = Cuda


def _forget_cuda_after_fork() -> None:
    for device in Device._known.values():
        if isinstance(device, Cuda):
            device.__dict__.pop("xp", None)
            device.__dict__.pop("array_type", None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_cuda_after_fork)

_default: dict[str, Device | None] = {"device": None}


def parse_device(name: str) -> Device:
    """Return the device that a name such as "cpu", "cuda" or "cuda:1" means."""
    kind, _, index = name.strip().lower().partition(":")
    if kind == "cpu" and not index:
        return Cpu()
    if kind == "cuda" and (not index or index.isdigit()):
        return Cuda(int(index or 0))
    raise ValueError(f"unknown device {name!r}; write 'cpu', 'cuda' or 'cuda:1'")


def default_device() -> Device:
    """Return the device used where none is named: set_default_device, else RUDA_DEVICE, else the first usable GPU or Cpu().

    >>> import ruda_tensor as rt
    >>> rt.default_device() in (rt.Cpu(), rt.Cuda(0))
    True
    """
    if _default["device"] is None:
        named = os.environ.get("RUDA_DEVICE")
        _default["device"] = parse_device(named) if named else (Cuda(0) if backend.gpu_problem() is None else Cpu())
    return _default["device"]


def set_default_device(device: Any) -> None:
    """Make `device` the one used where none is named; None goes back to finding one.

    >>> import ruda_tensor as rt
    >>> rt.set_default_device(rt.Cpu())
    >>> rt.default_device()
    Cpu()
    >>> rt.set_default_device(None)
    """
    _default["device"] = None if device is None else resolve_device(device)


def resolve_device(device: Any) -> Device:
    """Return the plain device for a Device, a name, None (the default), or a recording device that wraps one."""
    if device is None:
        return default_device()
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return parse_device(device)
    plain = getattr(device, "plain", None)
    if isinstance(plain, Device):
        return plain
    raise TypeError(f"expected a device such as Cpu() or Cuda(0), got {device!r}")
