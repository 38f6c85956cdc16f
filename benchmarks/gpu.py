"""Every goal on a GPU in one table: ours, the peers in the same run, and shares of what the GPU can do.

    python -m benchmarks.gpu                          everything
    python -m benchmarks.gpu --only gpt2 attention    some parts: gpt2, mlp, rows, adamw, attention, conv
    python -m benchmarks.gpu --quick                  fewer rounds, and nothing that PyTorch must compile
    python -m benchmarks.gpu --json figures.json      the figures in a file as well

Each part is measured in processes of its own, which compile at the same time and then measure one after the other, alone on
the GPU. Times are medians: of training steps by the host's clock, many at a time; of kernels in a CUDA graph. `its / ours` is a
peer's time (or memory) over ours, so above 1 ours is better. `share` is what the ceiling allows over our time: for rows and
AdamW the bytes that must move at the rate of a copy, else the operations of the products at the rate of a large product, both
measured in this run. A peer that cannot be measured is `failed`, with the reason; a goal that depends on it is `open`.
"""
from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import gpu_steps
from .gpu_jobs import Job, hold, prepared
from .gpu_steps import Ceilings, Measure
from .gpu_table import ATTENTION, COMPILED, DTYPES, TARGETS, Figure, table

MARK = "figure "
PREPARE, MEASURE = 150.0, 90.0  # seconds until all must be ready, and for one of them to measure


class Part(NamedTuple):
    """What one process measures for a group of rows."""

    group: str
    prepare: Callable[[bool], Measure]
    compiled: bool = False  # only by compiling


def parts() -> dict[str, Part]:
    """All of them by name, in the order of measuring; the modules of kernels are imported where one is prepared."""

    def kernels(name: str, *arguments: str) -> Callable[[bool], Measure]:
        def prepare(quick: bool) -> Measure:
            from . import gpu_parts

            return getattr(gpu_parts, name)(quick, *arguments)

        return prepare

    found = {
        "gpt2": Part("gpt2", gpu_steps.gpt2_ours),
        "gpt2 torch.compile": Part("gpt2", functools.partial(gpu_steps.gpt2_torch, compiled=True), True),
        "gpt2 torch": Part("gpt2", functools.partial(gpu_steps.gpt2_torch, compiled=False)),
        "mlp": Part("mlp", gpu_steps.mlp_ours),
        "mlp torch": Part("mlp", gpu_steps.mlp_torch),
        "mlp jax": Part("mlp", gpu_steps.mlp_jax),
        "conv": Part("conv", gpu_steps.conv_ours),
        "conv torch": Part("conv", gpu_steps.conv_torch),
        "adamw": Part("adamw", kernels("adamw")),
    }
    found |= {f"attention {size}": Part("attention", kernels("attention", size)) for size in ATTENTION}
    families = ("norms", "softmax", "silu_mul", "bias", "cross_entropy")
    return found | {f"{f} {dtype}": Part("rows", kernels("rows", f, dtype)) for f in families for dtype in DTYPES}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and nothing that PyTorch must compile")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures there")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def child(name: str, quick: bool) -> None:
    """Prepare one part, wait, measure, and print the figures."""
    if name == "ceilings":
        from . import gpu_parts

        hold()
        print(MARK + json.dumps(gpu_parts.ceilings()))
        return
    measure = parts()[name].prepare(quick)
    for figure in measure(Ceilings(*json.loads(hold()))):
        print(MARK + json.dumps(figure), flush=True)


def answers(lines: list[str]) -> list[Any]:
    """What a process printed for us."""
    return [json.loads(line[len(MARK) :]) for line in lines if line.startswith(MARK)]


def collect(options: argparse.Namespace) -> tuple[Ceilings, list[Figure], dict[str, str]]:
    """Run the processes; returns the ceilings, the figures, and why processes failed (see `table`)."""
    chosen = {name: p for name, p in parts().items() if p.group in options.only and not (options.quick and p.compiled)}
    quick = ["--quick"] if options.quick else []
    first, *jobs = [Job(name, "benchmarks.gpu", "--part", name, *quick) for name in ("ceilings", *chosen)]
    figures: list[Figure] = []
    why: dict[str, str] = {}
    start = time.perf_counter()
    try:
        prepared([first, *jobs], PREPARE)
        print(f"{len(jobs)} processes are prepared after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        found = answers(first.measure("", MEASURE))
        if not found:
            raise SystemExit(f"the ceilings of this GPU cannot be measured: {first.why}")
        ceilings = Ceilings(*found[0])
        for job in jobs:
            figures += [Figure(*f) for f in answers(job.measure(json.dumps(ceilings), MEASURE))]
            if job.why:
                why[f"{chosen[job.name].group}: {job.name}"] = job.why
            if options.json:  # now, in case that a later one is interrupted
                write(options.json, ceilings, figures, why)
    finally:
        for job in (first, *jobs):
            job.close()
    return ceilings, figures, why


def write(path: Path, ceilings: Ceilings, figures: list[Figure], why: dict[str, str]) -> None:
    """Write what was measured as JSON."""
    raw = {"ceilings": ceilings._asdict(), "figures": [f._asdict() for f in figures], "failed": why}
    path.write_text(json.dumps(raw, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print the table."""
    options = parse(arguments)
    if options.part:
        return child(options.part, options.quick)
    start = time.perf_counter()
    ceilings, figures, why = collect(options)
    rates = ", ".join(f"{name} {getattr(ceilings, name) / 1e6:.0f}" for name in Ceilings._fields[1:])
    print(f"a copy moves {ceilings.copy / 1e3:.0f} GB/s; products reach, in TFLOP/s: {rates}\n")
    print(table(options.only, figures, why, skipped=(COMPILED,) if options.quick else ()))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
