"""Running mutants: does a gradient check of some row fail for each of them?"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.creation import tensor
from ruda_tensor.devices import Cpu
from ruda_tensor.operation import Composite, Primitive
from ruda_tensor.tensor import Tensor

from ..functional import Recording
from .engine import Options
from .gradients import OnTape, check, named_results
from .mutation import Mutant, mutants_of, mutated
from .report import GradientMismatch, Inconclusive, NotDeterministic

SAME = 1e-7  # gradients this near, relative to the largest element, are the same rule at this point


@dataclass
class MutationReport:
    """What became of the mutants.

    `killed`: a check raised. `crashed`: the wrong rule could not even run (shapes that do not fit).
    `survived`: a mutant gave another gradient, and the check did not see it: a defect of the checker. `unseen`: no row
    gave it another gradient, with the reason: its gradient is zero or never asked for, or both rules agree there (a sign
    cancels where the operation is applied twice).

    >>> MutationReport().total
    0
    """

    killed: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    survived: list[str] = field(default_factory=list)
    unseen: list[tuple[str, str]] = field(default_factory=list)
    operations: int = 0
    rows: int = 0

    @property
    def total(self) -> int:
        return len(self.killed) + len(self.crashed) + len(self.survived) + len(self.unseen)

    def counts_by_kind(self) -> dict[str, int]:
        """How many mutants of each kind were caught, by a mismatch or a crash."""
        kinds = Counter(_kind(name) for name in self.killed + self.crashed)
        return dict(sorted(kinds.items(), key=lambda pair: -pair[1]))

    def __str__(self) -> str:
        reasons = Counter(reason for _, reason in self.unseen)
        lines = [
            f"{self.total} mutants of the rules of {self.operations} operations, against {self.rows} rows",
            f"  caught by the check   {len(self.killed)}",
            f"  caught by an error    {len(self.crashed)}",
            f"  survived              {len(self.survived)}",
            *[f"  same as the rule      {count} ({reason})" for reason, count in sorted(reasons.items())],
            "  caught, by kind: " + ", ".join(f"{kind} {count}" for kind, count in self.counts_by_kind().items()),
        ]
        return "\n".join(lines + [f"  SURVIVED {name}" for name in self.survived])


def _kind(name: str) -> str:
    kind = name.partition(": ")[2]
    return "dropped term" if "became" in kind else "swapped" if kind.startswith("swapped") else kind


@dataclass
class Row:
    """One function at one point, its gradient there, and the operations that it records."""

    name: str
    f: Callable
    inputs: tuple
    gradient: np.ndarray
    operations: list[Any]


def prepare(specs: Iterable[Any], seed: int = 0) -> list[Row]:
    """Evaluate each row once: its float64 inputs, its gradient, and the operations on its tape.

    A row has `name`, `call(*tensors)`, `make(rng) -> arrays` and `order` (0: not differentiable, left out).
    """
    rows = []
    for spec in specs:
        if getattr(spec, "order", 1) < 1:
            continue
        arrays = spec.make(np.random.default_rng(seed))
        inputs = tuple(tensor(np.asarray(a), device=Cpu()) for a in arrays)
        function = OnTape(spec.call, inputs, None)
        x = function.start()
        function.evaluate(x)
        recording = function.record(function.at(x))
        roots = [y for _, y in named_results(recording.value)]
        rows.append(Row(str(spec), spec.call, inputs, gradient_of(spec.call, inputs), operations_on(roots, recording)))
    return rows


def stretched(row: Row) -> Iterator[Row]:
    """The row with all inputs in the shape of its result but one, which is cut to its first row and broadcasts back.

    Only where the function then gives the same shape, so that broadcasting is what happened.
    """
    with np.errstate(all="ignore"):
        shape = getattr(row.f(*row.inputs), "shape", ())
        if not shape or shape[0] < 2 or len(row.inputs) < 2:
            return
        for k in range(len(row.inputs)):
            try:
                wide = [rt.broadcast_to(x, shape) for x in row.inputs]
                inputs = tuple((x[:1] if i == k else x).copy() for i, x in enumerate(wide))
                if row.f(*inputs).shape == shape:
                    yield Row(f"{row.name}, stretched", row.f, inputs, gradient_of(row.f, inputs), row.operations)
            except (ValueError, TypeError, IndexError, AssertionError):
                continue  # it does not broadcast


def operations_on(roots: list[Tensor], recording: Recording) -> list[Any]:
    """The operations with rules between the results and the inputs of a recording."""
    waiting = [y._node for y in roots if y._node is not None]
    seen, found = set(), {}
    while waiting:
        node = waiting.pop()
        if id(node) in seen or node.age > recording.until:
            continue
        seen.add(id(node))
        if isinstance(node.op, (Primitive, Composite)) and node.op.name != "input":
            found[id(node.op)] = node.op
        waiting += [p for p in node.parents or () if p is not None]
    return list(found.values())


def gradient_of(f: Callable, inputs: tuple) -> np.ndarray:
    """J^T w for a fixed random w."""
    function = OnTape(f, inputs, None)
    x = function.start()
    function.evaluate(x)
    w = np.random.default_rng(5).uniform(0.5, 1.5, function.outputs.size)
    return function.linearize(x)(w)[0]


def fate(mutant: Mutant, rows: list[Row]) -> str:
    """ "killed", "crashed", "survived" or "unseen": the first row that shows another gradient decides.

    A check that cannot tell has not caught the mutant either, unless that of another row does.
    """
    doubtful = False
    for row in rows:
        with mutated(mutant), np.errstate(all="ignore"):
            try:
                g = gradient_of(row.f, row.inputs)
            except Exception:
                return "crashed"
            size = float(np.abs(row.gradient).max(initial=0.0))
            if not size and not np.abs(g).max(initial=0.0) or bool((np.abs(g - row.gradient) <= SAME * size).all()):
                continue
            try:
                check(row.f, row.inputs, 1, None, Options(full=False, locate=False))
            except (GradientMismatch, NotDeterministic):  # the latter where a term less makes a rule work in place
                return "killed"
            except Inconclusive:
                doubtful = True
                continue
            return "survived"
    return "survived" if doubtful else "unseen"


def run_mutants(
    specs: Iterable[Any], *, sample: int | None = None, seed: int = 0, only: Callable[[Mutant], bool] | None = None
) -> MutationReport:
    """Mutate every rule that the rows use, and report which mutants their gradient checks catch.

    A row is any object with `name`, `call(*tensors)`, `make(rng) -> arrays` and `order`. `sample` takes that many mutants
    at random (all by default); `only` selects some.

    >>> import ruda_tensor as rt
    >>> class Row:
    ...     name, order, call = "exp", 1, staticmethod(rt.exp)
    ...     make = staticmethod(lambda rng: (rng.standard_normal((2, 3)),))
    >>> report = run_mutants([Row()])
    >>> report.survived, len(report.killed) >= 4
    ([], True)
    """
    rows = prepare(specs, seed)
    users: dict[int, list[Row]] = {}
    operations: dict[int, Any] = {}
    for row in rows:
        for op in row.operations:
            operations[id(op)] = op
            users.setdefault(id(op), []).append(row)
    mutants = [m for op in operations.values() for m in mutants_of(op) if only is None or only(m)]
    if sample is not None and sample < len(mutants):
        picked = np.random.default_rng(seed).choice(len(mutants), sample, replace=False)
        mutants = [mutants[i] for i in sorted(picked)]
    report = MutationReport(operations=len(operations), rows=len(rows))
    for mutant in mutants:
        # Rows that use the fewest operations show an operation's gradient most plainly.
        mine = sorted(users[id(mutant.op)], key=lambda row: len(row.operations))
        what = fate(mutant, mine)
        if what == "unseen" and mutant.kind.startswith("broadcast"):
            wider = [new for row in mine for new in stretched(row)]
            what = fate(mutant, wider)
            if what == "unseen" and not wider:
                report.unseen.append((mutant.name, "its inputs do not broadcast"))
                continue
        if what == "unseen":
            report.unseen.append((mutant.name, why_unseen(mutant, mine)))
        else:
            getattr(report, what).append(mutant.name)
    return report


def why_unseen(mutant: Mutant, rows: list[Row]) -> str:
    """Whether the rule ran at all on these rows, and gave anything but zeros: a scaled one would show it."""
    probes = [m for m in mutants_of(mutant.op) if m.input == mutant.input and m.kind == "scale 1.01"]
    for probe in probes:
        if fate(probe, rows) != "unseen":
            return "the same gradient on every row"
    return "its gradient is zero, or never asked for, on every row"
