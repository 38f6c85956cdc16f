"""One launch that updates all parameters: the bindings of optimizer.cu and statistics.cu."""
from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import FLOAT32, FLOATING, HALF
from .gate import CTYPES, ceil_div, fused, real_of
from .launch import Kernel, runtime

THREADS, BATCH, VECTOR = 256, 1, 4
BUCKETS = (8, 64, 512)  # tensors that a table holds: it is a parameter of the kernel, of at most 32,764 bytes (CUDA 12.1)
FAN_IN = 1024
STATISTICS_RUN = 65536  # numbers that a row of statistics holds, unless the tensor has more than FAN_IN of these
_STATISTICS_THREADS, _STATISTICS_BATCH = 256, 4


class Numbers(NamedTuple):
    """The numbers of one step, in the notation of ruda_optim/rules.py: rate and floor are Adam's corrected lr and eps.

    `shrink` is 1 - lr weight_decay of decoupled decay, `decay` the coupled one, `keep` 1 - dampening (1 at the first
    step); gradients are divided by `unscale`.
    """

    rate: float
    floor: float = 0.0
    shrink: float = 1.0
    decay: float = 0.0
    keep: float = 1.0
    unscale: float = 1.0
    first: float = 0.0  # momentum, or beta1
    second: float = 0.0  # beta2


def sgd_numbers(
    lr: float, time: int, momentum: float = 0.0, dampening: float = 0.0, decay: float = 0.0, unscale: float = 1.0
) -> Numbers:
    """The numbers of update `time` (1 is the first) by SGD."""
    keep = 1.0 if time == 1 else 1.0 - dampening
    return Numbers(lr, decay=decay, keep=keep, unscale=unscale, first=momentum)


def adam_numbers(
    lr: float, time: int, betas: tuple[float, float], eps: float, decay: float, decoupled: bool, unscale: float = 1.0
) -> Numbers:
    """The numbers of update `time` (1 is the first) by Adam, or by AdamW where the decay is decoupled."""
    root = math.sqrt(1.0 - betas[1] ** time)
    rate, floor = lr * root / (1.0 - betas[0] ** time), eps * root
    shrink, coupled = (1.0 - lr * decay, 0.0) if decoupled else (1.0, decay)
    return Numbers(rate, floor, shrink, coupled, unscale=unscale, first=betas[0], second=betas[1])


class Shape(NamedTuple):
    """Which update: rule "sgd", "adam" or "adamw", and what it has beyond the plain one."""

    rule: str
    decay: bool = False  # coupled
    momentum: bool = False
    nesterov: bool = False
    amsgrad: bool = False
    cautious: bool = False

    @property
    def states(self) -> int:
        """How many state arrays: the velocity, or the two moments and with amsgrad the largest second one."""
        return int(self.momentum) if self.rule == "sgd" else 2 + self.amsgrad

    def defines(self) -> dict[str, int]:
        flags = {"DECAY": self.decay, "MOMENTUM": self.momentum, "NESTEROV": self.nesterov}
        flags |= {"AMSGRAD": self.amsgrad, "CAUTIOUS": self.cautious}
        rule = ("sgd", "adam", "adamw").index(self.rule)
        return {"RULE": rule, "STATES": self.states, **{name: int(flag) for name, flag in flags.items()}}


class Entry(NamedTuple):
    """A parameter, its gradient, its float32 master (None without one) and its states: contiguous, updated in place."""

    p: Any
    g: Any
    master: Any
    states: Sequence[Any]


_COLUMNS = 6  # of addresses: p, g, master, and three states


@functools.cache
def _layout(tensors: int) -> struct.Struct:
    """The struct Table of optimizer.cu: addresses, sizes, first blocks, count, aligned."""
    return struct.Struct(f"@{_COLUMNS * tensors}Q {tensors}q {tensors + 2}I")


@functools.cache
def _kernel(shape: Shape, storage: np.dtype, gradient: np.dtype, master: bool, tensors: int) -> Kernel:
    r = "d" if real_of(storage).itemsize == 8 else "f"
    defines = {"STORAGE": CTYPES[storage], "GRADIENT": CTYPES[gradient], "MASTER": int(master), **shape.defines()}
    layout = {"VECTOR": 2 if r == "d" else VECTOR, "BATCH": BATCH, "TENSORS": tensors}
    signature = f"{_layout(tensors).size}s {' '.join([r] * 11)} P P P f"
    return Kernel("optimizer.cu", "optimizer_step", signature, defines | layout, ("--fmad=false",))


def takes(xp: Any, storage: np.dtype, gradient: np.dtype) -> bool:
    """True where kernels may run, and this one reads such a parameter and gradient."""
    if not fused() or runtime(xp) is None or storage not in FLOATING:
        return False
    return gradient == storage or (real_of(storage) == FLOAT32 and (gradient in HALF or gradient == FLOAT32))


def fits(entry: Entry, real: np.dtype) -> bool:
    """True where all arrays are contiguous, and states and master in the dtype of computation."""
    p, g, master, states = entry
    if not (p.flags.c_contiguous and g.flags.c_contiguous):
        return False
    for a in states if master is None else (master, *states):
        if a.dtype != real or not a.flags.c_contiguous:
            return False
    return True


def update(
    xp: Any, shape: Shape, numbers: Numbers, entries: Sequence[Entry], *, scale: Any = 1.0, report: Any = None,
    max_norm: float | None = None, device_numbers: Any = None,
) -> None:  # fmt: skip
    """Update all entries, which `takes` and `fits` let in, by one launch per combination of dtypes (and 512 parameters).

    Gradients are multiplied by `scale` once they are unscaled: a number, or a 0-d array on the device.
    `report` (from `gradient_report`): a bad gradient skips the update, and a norm above `max_norm` scales all gradients
    by max_norm / (norm + 1e-6). `device_numbers`: rate, floor, shrink, decay, keep, unscale on the device, which replace
    those of `numbers`: a captured step reads them anew.
    """
    machine = runtime(xp)
    assert machine is not None
    groups: dict[tuple, list[tuple[int, ...]]] = {}
    address = machine.address
    for entry in entries:
        p, g, master, states = entry
        if size := p.size:
            at = (address(p), address(g), 0 if master is None else address(master), *map(address, states))
            key = p.dtype, g.dtype, master is not None, functools.reduce(operator.or_, at) & 15 == 0
            if key not in groups:
                groups[key] = []
            groups[key].append((size, *at))
    n = numbers
    rest = (1.0 - n.first, n.second, 1.0 - n.second)
    scalars = (n.rate, n.floor, n.shrink, n.decay, n.keep, n.unscale, n.first, *rest)
    for (storage, gradient, master, straight), members in groups.items():
        for start in range(0, len(members), BUCKETS[-1]):
            part = tuple(members[start : start + BUCKETS[-1]])
            tensors = next(b for b in BUCKETS if b >= len(part))
            kernel = _kernel(shape, storage, gradient, master, tensors)
            table, blocks = _table(part, tensors, THREADS * BATCH * kernel.defines["VECTOR"], straight)
            limit = -1.0 if max_norm is None else max_norm
            number, array = (scale, None) if isinstance(scale, float) else (1.0, xp.asarray(scale, real_of(storage)))
            kernel((blocks, 1), (THREADS, 1), table, *scalars, number, array, device_numbers, report, limit)


@functools.lru_cache(maxsize=64)  # an allocator that is asked for the same in every step gives the same places
def _table(part: tuple[tuple[int, ...], ...], tensors: int, chunk: int, straight: bool) -> tuple[bytes, int]:
    """The struct Table for entries (size, addresses of p, g, master or 0, and states), and how many blocks they take."""
    sizes, *columns = zip(*part)
    ends = list(accumulate([ceil_div(size, chunk) for size in sizes]))
    rest = [0] * (tensors - len(part))
    fields = [number for column in columns for number in (*column, *rest)]
    fields += [0] * (tensors * (_COLUMNS - len(columns)))
    table = _layout(tensors).pack(*fields, *sizes, *rest, 0, *ends[:-1], *rest, len(part), straight)
    return table, ends[-1]


@functools.cache
def _rows_kernel(dtype: np.dtype, tensors: int, scaled: bool) -> Kernel:
    layout = {"VECTOR": 16 // dtype.itemsize, "BATCH": _STATISTICS_BATCH, "THREADS": _STATISTICS_THREADS, "TENSORS": tensors}
    signature = f"{_gradient_table_type(tensors).itemsize}s P f i"
    return Kernel("statistics.cu", "statistics_rows", signature, {"STORAGE": CTYPES[dtype], "SCALED": int(scaled), **layout})


@functools.cache
def _reduce_kernel() -> Kernel:
    layout = {"VECTOR": 4, "BATCH": 1, "THREADS": FAN_IN, "TENSORS": 8, "SCALED": 0}
    return Kernel("statistics.cu", "statistics_reduce", "P P I i", {"STORAGE": "float", **layout})


def statistics_rows(size: int) -> int:
    """How many rows of statistics a gradient of so many numbers has."""
    return min(max(ceil_div(size, STATISTICS_RUN), 1), FAN_IN)


def statistics_plan(rows: int) -> list[int]:
    """The rows that each stage between the first statistics and the report leaves.

    >>> statistics_plan(1024), statistics_plan(1025), statistics_plan(4_194_304)
    ([], [2], [4096, 4])
    """
    stages = []
    while rows > FAN_IN:
        rows = ceil_div(rows, FAN_IN)
        stages.append(rows)
    return stages


def gradient_report(xp: Any, gradients: Sequence[Any], unscale: float = 1.0) -> Any:
    """Three float32 on the device: bad (1 where any number is not finite), magnitude, squares.

    The norm of all gradients, divided by `unscale` first, is magnitude sqrt(squares); it neither overflows nor
    underflows. None where the gate is shut, a gradient is neither float32 nor half, or `unscale` is no power of two,
    whose reciprocal would not be exact. Nothing waits.
    """
    machine = runtime(xp)
    if not fused() or machine is None or math.frexp(unscale)[0] != 0.5:
        return None
    if any(g.dtype != FLOAT32 and g.dtype not in HALF for g in gradients):
        return None
    groups: dict[tuple, list[tuple[Any, int]]] = {}
    total = 0
    for g in gradients:
        if g.size:
            g = g if g.flags.c_contiguous else xp.ascontiguousarray(g)
            address = machine.address(g)
            groups.setdefault((g.dtype, address & 15 == 0), []).append((g, address))
            total += statistics_rows(g.size)
    if not groups:
        return xp.zeros(3, FLOAT32)
    rows, done = xp.empty((total, 3), FLOAT32), 0
    for (dtype, straight), members in groups.items():
        for start in range(0, len(members), BUCKETS[-1]):
            part = members[start : start + BUCKETS[-1]]
            tensors = next(b for b in BUCKETS if b >= len(part))
            table, blocks = _gradient_table(part, dtype, tensors)
            kernel = _rows_kernel(dtype, tensors, unscale != 1.0)
            kernel((blocks, 1), (_STATISTICS_THREADS, 1), table, rows[done:], 1.0 / unscale, int(straight))
            done += blocks
    for left in statistics_plan(total):
        out = xp.empty((left, 3), FLOAT32)
        _reduce_kernel()((left, 1), (FAN_IN, 1), rows, out, len(rows), 0)
        rows = out
    report = xp.empty(3, FLOAT32)
    _reduce_kernel()((1, 1), (FAN_IN, 1), rows, report, len(rows), 1)
    return report


@functools.cache
def _gradient_table_type(tensors: int) -> np.dtype:
    """The struct Table of statistics.cu."""
    fields = [("g", np.uint64, (tensors,)), ("size", np.int64, (tensors,)), ("run", np.int64, (tensors,))]
    return np.dtype([*fields, ("first", np.uint32, (tensors + 1,)), ("count", np.uint32)])


def _gradient_table(members: list[tuple[Any, int]], dtype: np.dtype, tensors: int) -> tuple[bytes, int]:
    table, count, width = np.zeros((), _gradient_table_type(tensors)), len(members), 16 // dtype.itemsize
    sizes = [g.size for g, _ in members]
    rows = [statistics_rows(size) for size in sizes]
    table["g"][:count], table["size"][:count] = [address for _, address in members], sizes
    table["run"][:count] = [ceil_div(ceil_div(size, parts), width) * width for size, parts in zip(sizes, rows)]
    table["first"][1 : count + 1] = np.cumsum(rows)
    table["count"] = count
    return table.tobytes(), sum(rows)
