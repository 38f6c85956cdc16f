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
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import ruda_tensor as rt

from . import checks, numpy_peer, ours
from .measure import Run, Times, interleave


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
    "adamw": Case("adamw", "AdamW update of 16.8 M parameters", 1, "<= torch fused"),
    "softmax": Case("kernels", "softmax, forward + backward", 1, "<= torch"),
    "layer_norm": Case("kernels", "layer_norm, forward + backward", 1, "<= torch"),
    "gelu": Case("kernels", "gelu (tanh), forward + backward", 1, "<= torch"),
    "conv2d": Case("kernels", "conv2d 32x16x28x28, 3x3 to 32 channels, forward + backward", 1, "<= torch"),
}
SECTIONS = ["overhead", "step", "mlp", "adamw", "kernels", "memory", "import", "copy"]
HEAD = ("case", "candidate", "time", "ours / it", "quartiles", "goal")
WIDTHS = (62, 34, 12, 9, 13, 18)


def show(*cells: str) -> None:
    """Print one line of the table."""
    print("| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS)) + " |", flush=True)


def duration(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds < 1e-2 else f"{seconds * 1e3:,.1f} ms"


def peers(device: rt.Device) -> tuple[list[dict[str, dict[str, Callable[[], Run]]]], list[str]]:
    """Every installed peer's workloads, and what is to be said about versions and absent ones."""
    found, said = [], [f"numpy {np.__version__}"]
    try:
        from . import torch_peer
    except ImportError:
        said.append("torch is not installed: left out")
    else:
        said.append(f"torch {torch_peer.VERSION}, {torch_peer.torch.get_num_threads()} threads")
        if device.kind == "cuda" and not torch_peer.torch.cuda.is_available():
            said.append("this torch cannot use the GPU: left out")
        else:
            found.append(torch_peer.workloads(device.kind))
    if device.kind == "cpu":
        found.append(numpy_peer.autograd_workloads())
        said.append("autograd" if found[-1] else "autograd is not installed: left out")
    return [*found, numpy_peer.floors(device.xp)], said


def machine(device: rt.Device) -> str:
    """The processor, its cores, and the GPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    text = f"{(*names, platform.processor(), platform.machine())[0]}, {os.cpu_count()} cores"
    if device.kind == "cuda":
        text += f", {device.xp.cuda.runtime.getDeviceProperties(device.index)['name'].decode()}"
    return f"{text}; Python {platform.python_version()}"


def agree(results: dict[str, Any]) -> None:
    """Refuse to compare with a peer that computes something else: every gradient must be the same to 0.1 %."""
    mine = ours.agreeing(results["ruda"])
    for name, theirs in results.items():
        if name.startswith("torch") and mine:
            from .torch_peer import agreeing

            for a, b in zip(mine, agreeing(theirs), strict=True):
                worst = float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30)
                if not worst < 1e-3:
                    raise RuntimeError(f"ruda and {name} disagree by {worst:.2g} of the largest gradient")


def run_case(name: str, case: Case, device: rt.Device, others: list, options: argparse.Namespace) -> dict[str, Any]:
    """Time one case against its peers and print its lines."""
    makers: dict[str, Callable[[], Run]] = {"ruda": lambda: ours.WORKLOADS[name](device)}
    for group in others:
        makers.update(group.get(name, {}))
    with device.guard():
        candidates = {label: make() for label, make in makers.items()}
        agree({label: run() for label, run in candidates.items()})
        clock = time.process_time if options.clock == "cpu" else time.perf_counter
        times: Times = interleave(candidates, device.synchronize, options.rounds, options.slot, clock)
    title = case.title
    if case.section == "kernels" and name != "conv2d":
        title += " " + "x".join(map(str, ours.rows(device.kind == "cuda")))
    lines = []
    for label in candidates:
        low, middle, high = times.ratio("ruda", label)
        seconds = times.median(label) / case.pieces
        is_ours = label == "ruda"
        show(title if is_ours else "", label, duration(seconds), "" if is_ours else f"{middle:.2f}",
             "" if is_ours else f"{low:.2f} - {high:.2f}", case.goal if is_ours else "")
        lines.append({"candidate": label, "seconds": seconds, "ratio": [low, middle, high]})
    return {"case": name, "title": title, "goal": case.goal, "lines": lines}


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
    others, said = peers(device)
    print(f"{machine(device)}; {'; '.join(said)}; {options.rounds} rounds, "
          f"{'processor' if options.clock == 'cpu' else 'wall'} time\n")
    show(*HEAD)
    show(*["-" * width for width in WIDTHS])
    results = [run_case(n, c, device, others, options) for n, c in CASES.items() if c.section in sections]
    results += run_checks(sections, device)
    if options.json:
        about = {"machine": machine(device), "versions": said, "rounds": options.rounds, "argv": sys.argv[1:]}
        options.json.write_text(json.dumps({"about": about, "cases": {c.pop("case"): c for c in results}}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
