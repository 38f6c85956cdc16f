"""One table of speed and memory next to the peers that are installed.

    python -m benchmarks                                  everything, on the CPU
    python -m benchmarks overhead mlp --rounds 31         some sections, longer
    python -m benchmarks --device cuda --json gpu.json
    OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 python -m benchmarks --clock cpu      where others use the machine too

A ratio is ours / peer, so below 1 is faster than the peer: the median over the rounds, with its quartiles.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ruda_tensor as rt

from . import checks, records
from .inputs import rows
from .measure import Times, interleave
from .worker import LIBRARIES, Library


@dataclass(frozen=True)
class Case:
    """A workload of `ours`: its section, what it is, and into how many pieces its time is split."""

    section: str
    title: str
    pieces: int = 1
    goal: str = ""


CASES = {
    "chain": Case("overhead", "400-op chain on 8x8, forward + backward, per op", 400, "<= 3.5 us on a CPU"),
    "linear": Case("step", "training step of Linear(2, 1), batch 32, Adam"),
    "mlp": Case("mlp", "training step of MLP 784-256-256-10, batch 64, Adam", 1, "<= torch fused"),
    "char_gpt": Case("gpt", "training step of char-GPT, 4 x 128, window 128, batch 16, AdamW", 1, "<= torch"),
    "adamw": Case("adamw", "AdamW update of 16.8 M parameters", 1, "<= torch fused"),
    "softmax": Case("kernels", "softmax, forward + backward", 1, "<= torch"),
    "layer_norm": Case("kernels", "layer_norm, forward + backward", 1, "<= torch"),
    "gelu": Case("kernels", "gelu (tanh), forward + backward", 1, "<= torch"),
    "conv2d": Case("kernels", "conv2d 32x16x28x28, 3x3 to 32 channels, forward + backward", 1, "<= torch"),
}
SECTIONS = ["overhead", "step", "mlp", "gpt", "adamw", "kernels", "records", "memory", "import", "copy"]
HEAD = ("case", "candidate", "time", "ours / it", "quartiles", "goal")
WIDTHS = (62, 34, 12, 9, 13, 18)


def show(*cells: str) -> None:
    """Print one line of the table."""
    print("| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS)) + " |", flush=True)


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"


def machine(device: rt.Device) -> str:
    """The processor, its cores, and the GPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    text = f"{(*names, platform.processor(), platform.machine())[0]}, {os.cpu_count()} cores"
    if device.kind == "cuda":
        text += f", {device.xp.cuda.runtime.getDeviceProperties(device.index)['name'].decode()}"
    return f"{text}; Python {platform.python_version()}"


def agree(results: dict[str, list]) -> None:
    """Refuse to compare with a peer that computes something else: every gradient must be the same to 0.1 %."""
    for name, theirs in results.items():
        for a, b in zip(results["ruda"], theirs):
            worst = float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30)
            if not worst < 1e-3:
                raise RuntimeError(f"ruda and {name} disagree by {worst:.2g} of the largest gradient")


def alike(sizes: dict[str, int]) -> None:
    """Refuse to compare with a peer that trains another model: it must have as many parameters."""
    for name, size in sizes.items():
        if size != sizes["ruda"]:
            raise RuntimeError(f"ruda trains {sizes['ruda']:,} parameters and {name} {size:,}, which is no comparison")


def run_case(name: str, case: Case, libraries: list[Library], on_gpu: bool, rounds: int) -> dict[str, Any]:
    """Time one case against its peers and print its lines."""
    results: dict[str, list] = {}
    sizes: dict[str, int] = {}
    turns: dict[str, Callable[[], float]] = {}
    for library in libraries:
        made, trained = library.make(name)
        results.update(made)
        sizes.update(trained)
        turns.update({label: lambda library=library, label=label: library.turn(label) for label in made})
    agree(results)
    alike(sizes)
    times: Times = interleave(turns, rounds)
    title = case.title
    if name in ("softmax", "layer_norm", "gelu"):
        title += ", " + " x ".join(map(str, rows(on_gpu)))
    lines = []
    for label in turns:
        low, middle, high = times.ratio("ruda", label)
        seconds = times.median(label) / case.pieces
        is_ours = label == "ruda"
        show(title if is_ours else "", label, duration(seconds), "" if is_ours else f"{middle:.2f}",
             "" if is_ours else f"{low:.2f} - {high:.2f}", case.goal if is_ours else "")
        lines.append({"candidate": label, "seconds": seconds, "ratio": [low, middle, high]})
    return {"case": name, "title": title, "goal": case.goal, "lines": lines}


def run_records(rounds: int) -> list[dict[str, Any]]:
    """Save and load of a record beside plain reading and writing."""
    saves, cold, loads, one, peak, size = records.measured(rounds)
    found = []
    cases = (("saving", saves), ("loading from the disk", cold), ("loading from the system's memory", loads))
    for title, times in cases:
        lines = []
        for label in times.seconds:
            low, middle, high = times.ratio("ruda", label)
            ours = label == "ruda"
            show(f"{title}, a record of {size >> 20} MiB" if ours else "", label, duration(times.median(label)),
                 "" if ours else f"{middle:.2f}", "" if ours else f"{low:.2f} - {high:.2f}", "<= 1.25" if ours else "")
            lines.append({"candidate": label, "seconds": times.median(label), "ratio": [low, middle, high]})
        found.append({"case": title, "lines": lines})
    show(f"loading one of {records.ARRAYS} arrays of it", "ruda", duration(one), "", "", "not the rest")
    show("peak of memory while it is saved, beyond the model", "ruda", f"{100 * peak:.2f} %", "", "", "< 5 %")
    return [*found, {"case": "one array", "seconds": one}, {"case": "peak of a save", "share": peak}]


def run_checks(sections: list[str], device: rt.Device) -> list[dict[str, Any]]:
    """What has no peer: memory, import time, copy bandwidth."""
    found = []
    if "memory" in sections:
        kept, left = checks.memory_left(device)
        show("left after backward() of an MLP with the loss held", "ruda", f"{100 * left / kept:.3f} %", "",
             f"of {kept / 1e6:.1f} MB", "< 1 %")
        found.append({"case": "memory", "kept": kept, "left": left})
    if "import" in sections:
        seconds, cupy = checks.import_seconds()
        show("import ruda_nn, ruda_optim beyond NumPy", "ruda", f"{seconds * 1e3:.0f} ms", "",
             "imports CuPy" if cupy else "no CuPy", "< 250 ms")
        found.append({"case": "import", "seconds": seconds, "cupy": cupy})
    if "copy" in sections:
        speed = checks.copy_bandwidth(device)
        show("copy of 256 MiB, read + written", device.xp.__name__, f"{speed / 1e9:.1f} GB/s", "", "", "")
        found.append({"case": "copy", "bytes_per_second": speed})
    return found


def main() -> int:
    """Read the command line, measure, print, and write the JSON file."""
    summary, _, usage = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=summary, epilog=usage,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"{', '.join(SECTIONS)} (all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15, help="turns of every candidate (15)")
    parser.add_argument("--slot", type=float, default=0.06, help="seconds of a turn (0.06)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of all threads")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    unknown = [s for s in options.sections if s not in SECTIONS]
    if unknown:
        parser.error(f"unknown sections {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    if options.rounds < 2:
        parser.error("--rounds: at least 2, for a ratio needs quartiles")
    if options.device == "cuda" and options.clock == "cpu":
        parser.error("--clock cpu says nothing about a GPU")
    sections = options.sections or SECTIONS
    try:
        device = rt.Cuda() if options.device == "cuda" else rt.Cpu()
        device.xp  # noqa: B018  a machine without a usable GPU says so here
    except rt.NoUsableGpu as error:
        sys.exit(f"benchmarks: {error}")
    show_all(sections, device, options)
    return 0


def show_all(sections: list[str], device: rt.Device, options: argparse.Namespace) -> None:
    """Measure and print the chosen sections, and write the JSON file."""
    cases = {name: case for name, case in CASES.items() if case.section in sections}
    found = [Library(name, device, options.slot, options.clock) for name in LIBRARIES if cases]
    libraries = [library for library in found if not library.absent]
    about = [machine(device), *[library.said for library in found if library.said], f"{options.rounds} rounds"]
    print("; ".join([*about, f"{'processor' if options.clock == 'cpu' else 'wall'} time"]) + "\n")
    show(*HEAD)
    show(*["-" * width for width in WIDTHS])
    results = [run_case(n, c, libraries, device.kind == "cuda", options.rounds) for n, c in cases.items()]
    for library in libraries:
        library.close()
    if "records" in sections:
        results += run_records(options.rounds)
    results += run_checks(sections, device)
    if options.json:
        figures = {"about": about, "argv": sys.argv[1:], "cases": {c.pop("case"): c for c in results}}
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    sys.exit(main())
