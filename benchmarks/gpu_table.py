"""What `benchmarks.gpu` measures, the goals, and how figures become one table."""
from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

OURS = "ruda"
KERNELS = ("layer_norm", "rms_norm", "softmax", "silu_mul", "bias + gelu_tanh", "cross_entropy")
DTYPES = ("float32", "bfloat16")
ATTENTION = {"8x12x1024x64": "flash", "4x16x4096x128": "flash", "16x12x1024x64": None}  # size: what is to be reached
EAGER, COMPILED = "torch eager", "torch.compile"
STEP, STEP_EAGER, MEMORY = (f"GPT-2 124M, 16 x 1024, {what}" for what in ("captured step", "eager step", "peak memory"))
MLP, MLP_EAGER = (f"MLP 784-256-256-10, batch 64, Adam, {how}" for how in ("captured", "eager"))
ADAMW, CLIPPED = "AdamW 124 M", "AdamW 124 M, clipped"


class Figure(NamedTuple):
    """A measured value, in the unit of its row; `floor` is what the ceilings of this GPU allow at best."""

    what: str
    who: str
    value: float | None
    floor: float | None = None
    failed: str = ""


class Target(NamedTuple):
    """A row: who is measured beside ours, and what is wanted.

    Ours takes at most `most`; at most what the peer `reach` takes; the fastest peer's time is at least `ratio` times ours;
    at least `share` of the ceiling is reached.
    """

    what: str
    unit: str
    peers: tuple[str, ...]
    most: float | None = None
    reach: str | None = None
    ratio: float | None = None
    share: float | None = None

    def goal(self) -> str:
        """The goal in words."""
        found = [] if self.most is None else [f"<= {self.most:g} {self.unit}"]
        found += [] if self.reach is None else [f"<= {self.reach}"]
        found += [] if self.share is None else [f"share >= {self.share:.0%}"]
        found += [] if self.ratio is None else [f"ratio >= {self.ratio:g}"]
        return ", ".join(found)

    def verdict(self, figures: dict[str, Figure]) -> str:
        """ "met", "not met", "open" where a peer's figure is missing, or nothing where there is no goal."""
        if not self.goal():
            return ""
        ours = figures.get(OURS)
        if ours is None or ours.value is None:
            return "not met"
        value, peers = ours.value, [figures[p].value if p in figures else None for p in self.peers]
        checks: list[bool | None] = []
        if self.most is not None:
            checks.append(value <= self.most)
        if self.reach is not None:
            limit = figures[self.reach].value if self.reach in figures else None
            checks.append(None if limit is None else value <= limit)
        if self.share is not None:
            checks.append(None if ours.floor is None else ours.floor / value >= self.share)
        if self.ratio is not None:
            known = [p for p in peers if p is not None]
            enough = [p / value >= self.ratio for p in known]
            checks.append(False if not all(enough) else True if len(known) == len(peers) else None)
        return "not met" if False in checks else "open" if None in checks else "met"


def _rows() -> list[Target]:
    names = [f"{kernel} {way}, {dtype}" for dtype in DTYPES for kernel in KERNELS for way in ("forward", "forward + backward")]
    return [Target(name, "us", (EAGER, COMPILED), share=0.85, ratio=1.3) for name in names]


def conv_name(captured: bool, tf32: bool) -> str:
    """The name of a row of the convolutional network."""
    return f"CIFAR-size convnet, batch 256, {'captured' if captured else 'eager'}, {'tf32' if tf32 else 'float32'}"


def attention_name(size: str) -> str:
    """The name of a row of attention."""
    return f"causal attention {size} forward + backward, bfloat16"


TARGETS: dict[str, list[Target]] = {
    "gpt2": [
        Target(STEP, "ms", (COMPILED, EAGER), most=28),
        Target(STEP_EAGER, "ms", (EAGER,)),
        Target(MEMORY, "GiB", (COMPILED, EAGER), most=8),
    ],
    "mlp": [
        Target(MLP, "us", ("torch CUDA graph", "JAX jit"), most=57),
        Target(MLP_EAGER, "us", ("torch", "torch fused Adam"), most=600),
    ],
    "rows": _rows(),
    "adamw": [
        Target(ADAMW, "us", ("torch fused",), most=1000),
        Target(CLIPPED, "us", ("torch fused",), most=1200),
    ],
    "attention": [Target(attention_name(size), "us", ("flash", "cudnn"), reach=reach) for size, reach in ATTENTION.items()],
    "conv": [
        Target(conv_name(captured, tf32), "ms", ("torch",), reach="torch" if captured and tf32 else None)
        for tf32 in (True, False)
        for captured in (True, False)
    ],
}  # fmt: skip


def figure(what: str, who: str, measure: Callable[..., float], *arguments: Any, floor: float | None = None) -> Figure:
    """What `measure(*arguments)` returns as a figure; an exception becomes a figure that says why there is none."""
    try:
        return Figure(what, who, measure(*arguments), floor)
    except Exception as error:
        return Figure(what, who, None, floor, f"{type(error).__name__}: {error}")


HEADER = ("what", "ours", "goal", "peer", "its time", "its / ours", "share", "")


def lines(target: Target, figures: dict[str, Figure], lost: bool, skipped: Container[str] = ()) -> list[tuple[str, ...]]:
    """The cells of one row: a line for each peer, of which the first has what is ours.

    A missing figure has failed where a process was `lost`, unless it was to be `skipped`.
    """
    ours = figures.get(OURS)
    value = ours.value if ours else None
    front = (target.what, _shown(ours, target.unit, lost), target.goal())
    back = (f"{ours.floor / value:.0%}" if ours and ours.floor and value else "-", target.verdict(figures))
    found = []
    for peer in target.peers:
        theirs = figures.get(peer)
        ratio = f"{theirs.value / value:.2f}" if theirs and theirs.value and value else "-"
        cells = (peer, _shown(theirs, target.unit, lost and peer not in skipped), ratio)
        found.append((*front, *cells, *back))
        front, back = ("", "", ""), ("", "")
    return found


def table(groups: Iterable[str], figures: Iterable[Figure], why: dict[str, str], skipped: Container[str] = ()) -> str:
    """The table of these groups, the reasons of what failed, and how many goals are met.

    `why` has the reason of each process that failed, by a name that begins with its group and a colon.
    """
    by_row: dict[str, dict[str, Figure]] = {}
    for f in (figures := list(figures)):
        by_row.setdefault(f.what, {})[f.who] = f
    cells, verdicts = [HEADER], []
    for group in groups:
        lost = any(name.startswith(f"{group}: ") for name in why)
        for target in TARGETS[group]:
            row = by_row.get(target.what, {})
            cells += lines(target, row, lost, skipped)
            verdicts.append(target.verdict(row))
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADER))]
    right = [name in ("ours", "its time", "its / ours", "share") for name in HEADER]
    drawn = ["| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right)) + "|"
    notes = [f"failed: {f.who}, {f.what}: {_line(f.failed)}" for f in figures if f.failed]
    notes += [f"failed: {name}: {_line(reason)}" for name, reason in why.items()]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in ("met", "not met", "open"))
    return "\n".join([drawn[0], rule, *drawn[1:], *([""] if notes else []), *notes, "", f"goals: {counts}"])


def _shown(f: Figure | None, unit: str, lost: bool) -> str:
    if f is None or f.value is None:
        return "failed" if f or lost else "-"
    return f"{f.value:,.{1 if unit == 'us' else 2}f} {unit}"


def _line(reason: str, most: int = 160) -> str:
    """The first line of a reason."""
    line = reason.strip().split("\n")[0]
    return line if len(line) <= most else line[: most - 3] + "..."
