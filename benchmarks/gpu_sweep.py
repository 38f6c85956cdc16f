"""Other ways to share the work between threads, timed on one GPU: which plan the bindings should choose.

    python -m benchmarks.gpu_sweep                     everything
    python -m benchmarks.gpu_sweep norms columns       these families
    python -m benchmarks.gpu_sweep --top 3             the best ones of each kernel alone

`share` as in benchmarks/gpu_rows.py. All lines go to the file that --out names.
"""
from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32
from ruda_tensor.kernels import columns, cross_entropy, norms, optimizer, pointwise
from ruda_tensor.kernels.launch import Kernel, current
from ruda_tensor.kernels.plans import Plan, Stay, row

from .gpu_cases import TOKENS, VOCABULARY, optimizer_entries, random
from .gpu_timing import copy_bandwidth, graph_us, sets_for

ROWS = 16384
STATIC = {"axes": 1, "eps": 1e-5}


class Trial(NamedTuple):
    """One way to run a kernel: `install()` makes the bindings take it, `run(i)` works on set i."""

    kernel: str
    way: str
    install: Callable[[], None]
    run: Callable[[int], Any]
    moved: int
    compiled: tuple[Kernel, ...] = ()
    sets: int = 4


def stays(
    n: int, vector: int, arrays: int, plans: list[tuple[int, int]], residents: tuple[int, ...], stages: tuple[int, ...]
) -> Iterator[Stay]:
    """Plans of (vectors per thread, rows per block) with numbers of resident threads that they can fill."""
    for items, rows in plans:
        plan = row(n, vector, items, rows)
        size = plan.group * plan.rows
        for resident in sorted({max(1, resident // size) * size for resident in residents}):
            for stage in stages:
                if stage < 2 or stage * arrays * items * size * 16 <= 40_000:
                    yield Stay(plan, resident, stage)


def describe(stay: Stay) -> str:
    plan = stay.plan
    return f"{plan.group} x {plan.items}, {plan.rows} rows, {stay.resident} resident, {stay.stages} stages"


def norm_trials(cp: Any, dtype: Any, n: int, forward: tuple, backward: tuple) -> Iterator[Trial]:
    vector, w = 16 // dtype.itemsize, random(cp, n, dtype)
    count = sets_for(ROWS * n * dtype.itemsize)
    xs, gs = ([random(cp, (ROWS, n), dtype) for _ in range(count)] for _ in range(2))
    kept = norms.layer_forward(cp, xs[0], w, w, **STATIC)
    moved = xs[0].nbytes

    def install(name: str, stay: Stay) -> Callable[[], None]:
        return functools.partial(setattr, norms, name, lambda *_: stay)

    def go(i: int) -> Any:
        return norms.layer_forward(cp, xs[i], w, w, **STATIC)

    def back(i: int) -> Any:
        return norms.layer_backward(cp, gs[i], xs[i], w, *kept[1:], needs=(True, True, True), **STATIC)

    where = f"{n} {dtype}"
    for stay in stays(n, vector, 1, *forward):
        kernel = norms._forward(dtype, dtype, stay, 0)
        yield Trial(f"layer_norm forward {where}", describe(stay), install("norm_plan", stay), go, 2 * moved, (kernel,), count)
    for stay in stays(n, vector, 2, *backward):
        kernel = norms._backward(dtype, dtype, stay, 0, (True, True, True))
        yield Trial(f"layer_norm backward {where}", describe(stay), install("sums_plan", stay), back, 3 * moved, (kernel,), count)


def norms_family(cp: Any) -> Iterator[Trial]:
    warps, few = [(3, 4), (3, 6)], (384, 512, 576)
    yield from norm_trials(cp, BFLOAT16, 768, (warps, (512, 576, 768, 1024), (1, 2, 3)), ([(3, 2), *warps], few, (2, 3)))
    yield from norm_trials(cp, BFLOAT16, 768, ([(1, 1)], (1152, 1536), (1, 2, 3)), ([(1, 1)], (960, 1152), (1, 2)))
    blocks = [(2, 1), (1, 1)]
    yield from norm_trials(cp, BFLOAT16, 4096, (blocks, (768, 1024, 1280, 1536), (1, 2, 3)), (blocks, (512, 768, 1024), (1, 2)))
    yield from norm_trials(cp, FLOAT32, 768, ([(6, 4), (2, 1)], (512, 768), (0, 1, 2)), ([(6, 4), (2, 1)], (384, 576), (1,)))
    yield from norm_trials(cp, FLOAT32, 4096, ([(4, 1), (2, 1)], (768, 1024), (0, 1, 2)), ([(2, 1), (1, 1)], (512, 1024), (1,)))


def rms_trials(cp: Any, dtype: Any, n: int, plans: list[tuple[int, int]]) -> Iterator[Trial]:
    vector, w = 16 // dtype.itemsize, random(cp, n, dtype)
    count = sets_for(ROWS * n * dtype.itemsize)
    xs = [random(cp, (ROWS, n), dtype) for _ in range(count)]
    for stay in stays(n, vector, 1, plans, (768, 1024, 1280, 1536, 2048), (0, 1, 2, 3)):
        install = functools.partial(setattr, norms, "norm_plan", lambda *_, stay=stay: stay)
        kernel, name = norms._forward(dtype, dtype, stay, 1), f"rms_norm forward {n} {dtype}"
        run = lambda i: norms.rms_forward(cp, xs[i], w, **STATIC)
        yield Trial(name, describe(stay), install, run, 2 * xs[0].nbytes, (kernel,), count)


def rms_family(cp: Any) -> Iterator[Trial]:
    yield from rms_trials(cp, BFLOAT16, 768, [(3, 4), (1, 1)])
    yield from rms_trials(cp, BFLOAT16, 4096, [(1, 1), (2, 1), (4, 1)])
    yield from rms_trials(cp, FLOAT32, 4096, [(4, 1), (2, 1)])


def columns_trials(cp: Any, dtype: Any, n: int) -> Iterator[Trial]:
    vector, b = 16 // dtype.itemsize, random(cp, n, dtype)
    count = sets_for(ROWS * n * dtype.itemsize)
    xs, gs = ([random(cp, (ROWS, n), dtype) for _ in range(count)] for _ in range(2))

    def forward(i: int) -> Any:
        return columns.bias_activation_forward(cp, "gelu_tanh", xs[i], b)

    def backward(i: int) -> Any:
        return columns.bias_activation_backward(cp, "gelu_tanh", gs[i], xs[i], b, (True, True))

    def sums(i: int) -> Any:
        return columns.sum_columns(cp, gs[i], n, dtype)

    runs = {"bias_activation_forward": (2, 1, forward), "bias_activation_backward": (3, 1, backward)}
    runs |= {"columns_reduce": (1, -1, sums)}
    shapes = [(32, 8, 4), (32, 8, 8), (128, 2, 2), (128, 2, 4), (128, 2, 8)]
    for name, (times, kind, run) in runs.items():
        for wide, tall, batch in shapes:
            for share in (8, 16, 32) if name == "bias_activation_forward" else (4, 6, 8):
                tile = columns.Tile(wide, tall, batch, share)
                kernel = columns._kernel(name, dtype, dtype, vector, kind, tile)
                way = f"{wide} x {tall}, {batch} rows, {share} blocks"
                install = functools.partial(columns._TILES.update, {name: tile})
                yield Trial(f"{name} {n} {dtype}", way, install, run, times * xs[0].nbytes, (kernel,), count)


def columns_family(cp: Any) -> Iterator[Trial]:
    for dtype, n in ((BFLOAT16, 4096), (BFLOAT16, 3072), (FLOAT32, 4096)):
        yield from columns_trials(cp, dtype, n)


def flat_trials(cp: Any, dtype: Any) -> Iterator[Trial]:
    count = sets_for(ROWS * 4096 * dtype.itemsize)
    xs, ys, gs = ([random(cp, (ROWS, 4096), dtype) for _ in range(count)] for _ in range(3))
    runs: dict[str, tuple[int, Callable[[int], Any]]] = {
        "activation_forward": (2, lambda i: pointwise.activation_forward(cp, "gelu", xs[i])),
        "activation_backward": (3, lambda i: pointwise.activation_backward(cp, "gelu", gs[i], xs[i])),
        "silu_mul_forward": (3, lambda i: pointwise.silu_mul_forward(cp, xs[i], ys[i])),
        "silu_mul_backward": (5, lambda i: pointwise.silu_mul_backward(cp, gs[i], xs[i], ys[i], (True, True))),
        "dropout": (2, lambda i: pointwise.dropout(cp, xs[i], p=0.1, seed=1, offset=0)),
    }
    for name, (times, run) in runs.items():
        for batch in (1, 2, 4):
            install = functools.partial(pointwise.BATCHES.update, {name: batch})
            yield Trial(f"{name} {dtype}", f"{batch} vectors", install, run, times * xs[0].nbytes, sets=count)


def flat_family(cp: Any) -> Iterator[Trial]:
    for dtype in (BFLOAT16, FLOAT32):
        yield from flat_trials(cp, dtype)


def install_optimizer(**values: int) -> None:
    for name, value in values.items():
        setattr(optimizer, name, value)
    for cached in (optimizer._kernel, optimizer._rows_kernel):
        cached.cache_clear()


def optimizer_trials(cp: Any, dtype: Any) -> Iterator[Trial]:
    numbers, shape = optimizer.adam_numbers(1e-4, 5, (0.9, 0.999), 1e-8, 0.01, True), optimizer.Shape("adamw")
    entries = optimizer_entries(cp, dtype)
    gradients, size = [e.g for e in entries], sum(e.p.size for e in entries)

    def step(i: int) -> None:
        optimizer.update(cp, shape, numbers, entries)

    def clipped(i: int) -> None:
        optimizer.update(cp, shape, numbers, entries, report=optimizer.gradient_report(cp, gradients), max_norm=1.0)

    def report(i: int) -> Any:
        return optimizer.gradient_report(cp, gradients)

    for vector in (4, 8) if dtype == BFLOAT16 else (4,):
        for batch in (1, 2, 4):
            install = functools.partial(install_optimizer, VECTOR=vector, BATCH=batch)
            way = f"{vector} numbers, {batch} vectors"
            yield Trial(f"adamw {dtype}", way, install, step, 28 * size)
            yield Trial(f"adamw clipped {dtype}", way, install, clipped, (28 + dtype.itemsize) * size)
    for batch in (4, 8):
        for run in (8192, 16384, 32768, 65536):
            install = functools.partial(install_optimizer, _STATISTICS_BATCH=batch, STATISTICS_RUN=run)
            yield Trial(f"statistics {dtype}", f"{batch} vectors, {run} numbers", install, report, dtype.itemsize * size)


def optimizer_family(cp: Any) -> Iterator[Trial]:
    for dtype in (BFLOAT16, FLOAT32):
        yield from optimizer_trials(cp, dtype)


def entropy_trials(cp: Any, dtype: Any) -> Iterator[Trial]:
    x, ids = random(cp, (TOKENS, VOCABULARY), dtype), cp.random.randint(0, VOCABULARY, TOKENS).astype("int64")
    static = {"axis": 1, "ignore": None, "smoothing": 0.0, "reduction": "mean"}
    out, top, whole = cross_entropy.forward(cp, x, ids, None, **static)

    def forward(i: int) -> Any:
        return cross_entropy.forward(cp, x, ids, None, **static)

    def backward(i: int) -> Any:
        return cross_entropy.backward(cp, out, x, ids, None, top, whole, **static)

    for group in (128, 256, 512, 1024):
        install = functools.partial(setattr, cross_entropy, "_plan", lambda n, vector, group=group: Plan(vector, group, 1, 0))
        yield Trial(f"cross_entropy forward {dtype}", f"{group} threads", install, forward, x.nbytes)
        yield Trial(f"cross_entropy backward {dtype}", f"{group} threads", install, backward, 2 * x.nbytes)


def entropy_family(cp: Any) -> Iterator[Trial]:
    for dtype in (BFLOAT16, FLOAT32):
        yield from entropy_trials(cp, dtype)


FAMILIES = {
    "norms": norms_family, "rms": rms_family, "columns": columns_family, "flat": flat_family, "optimizer": optimizer_family,
    "entropy": entropy_family,
}  # fmt: skip


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--top", type=int, default=1000)
    parser.add_argument("--out", default="/dev/null")
    options = parser.parse_args()
    rt.Cuda(0)
    cp = backend.cupy()
    copy = copy_bandwidth(cp)
    print(f"a copy moves {copy / 1e3:.0f} GB/s", flush=True)
    with open(options.out, "w") as file:
        for family in options.families:
            found: dict[str, list[tuple[float, str]]] = {}
            trials = list(FAMILIES[family](cp))
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda kernel: kernel.compile(current()), [k for trial in trials for k in trial.compiled]))
            for trial in trials:
                trial.install()
                us = graph_us(cp, trial.run, trial.sets)
                line = f"{trial.kernel:40s} {trial.way:40s} {us:9.1f} us {trial.moved / us / copy:6.1%}"
                print(line, file=file, flush=True)
                found.setdefault(trial.kernel, []).append((us, line))
            for lines in found.values():
                print("\n".join(line for _, line in sorted(lines)[: options.top]), flush=True)
            del trials
            cp.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
