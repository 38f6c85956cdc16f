"""Single entries of the Jacobian: compared one by one, judged, and explained where they are wrong or at a kink."""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from .differences import EPS, Estimate, Kinks, derivatives, find_kinks, second_opinion
from .engine import FLAT, FULL_COLUMNS, NOTHING, SAFETY, ULPS, Verdict
from .hints import hint_for
from .report import Entry, GradientMismatch, Inconclusive, NonFinite
from .structure import element

if TYPE_CHECKING:
    from .engine import Checker

ADVICE = "move the point away from it, or leave such entries out: kinks='ignore'"
ROUNDING = 1e-13  # of the largest entry: what summing in another order leaves in an entry that should be 0


class Judge:
    """Judges entries d f_i / d x_j for a Checker, and remembers those at kinks by (i, j)."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self.kinks: dict[tuple[int, int], str] = {}
        self.met = 0

    # all entries of a small function
    def all(self) -> None:
        """Compare the whole Jacobian: the numerical one by columns, the analytic one by rows."""
        c = self.checker
        n, m = c.inputs.size, c.outputs.size
        found = derivatives(c.curve, np.diag(c.scale), start=c.start)
        numerical, error = (found.value / c.scale[:, None]).T, (found.error / c.scale[:, None]).T
        analytic = np.stack([c.pull(row)[0] for row in np.eye(m)])
        c.report.entries = n * m
        worst: list[tuple[float, Entry, Verdict, int]] = []
        for j in [j for j in range(n) if not self.column_passes(j, analytic, numerical, error)]:
            for entry, verdict in self.amiss(j, self.estimate(j), analytic[:, j], range(m), self.largest(analytic, j)):
                worst.append((entry.relative_error if not verdict.agrees else -1.0, entry, verdict, j))
        if worst:
            _, entry, verdict, j = max(worst, key=lambda w: w[0])
            count = sum(not w[2].agrees for w in worst)
            raise self.error(entry, verdict, j, how="comparing every entry", wrong=f" ({count} of {n * m} entries are)")

    def amiss(
        self, j: int, numerical: Estimate, analytic: np.ndarray, rows: Iterable[int], largest: float = 0.0
    ) -> list[tuple[Entry, Verdict]]:
        """The entries of column j that did not pass and are at no kink, after another look at them."""
        c = self.checker
        undefined = np.flatnonzero(~np.isfinite(numerical.error[0]))
        if undefined.size:
            raise self.edge(int(undefined[0]), j)
        kinks = find_kinks(c.curve, self.unit(j), c.start)
        found = []
        for i in rows:
            entry = self.entry(i, j, analytic[i], numerical.value[0, i], numerical.error[0, i])
            verdict = self.verdict(entry, largest)
            if not verdict.passed and not self.at_kink(entry, verdict, kinks, i, j):
                found.append((entry, verdict))
        return found

    def largest(self, analytic: np.ndarray, j: int) -> float:
        """The largest finite entry of the Jacobian by the input that j belongs to."""
        block = np.abs(analytic[:, self.checker.inputs.block(self.checker.inputs.owner(j))])
        return float(block.max(where=np.isfinite(block), initial=0.0))

    def column_passes(self, j: int, analytic: np.ndarray, numerical: np.ndarray, error: np.ndarray) -> bool:
        """Compare one column of three (m, n) arrays, and note in the report what was seen."""
        c = self.checker
        a, n, e = analytic[:, j], numerical[:, j], SAFETY * error[:, j]
        largest = self.largest(analytic, j)
        size = np.maximum(np.abs(a), np.abs(n))
        apart = np.abs(a - n)
        near = c.options.resolution * np.maximum(np.maximum(size, largest), FLAT * c.curve.size / c.scale[j])
        seen = e <= np.maximum(near, NOTHING)
        rounding = ROUNDING * largest + ULPS * EPS * c.curve.size * max(1.0, 1.0 / c.scale[j])
        agrees = np.isfinite(a) & (apart <= e + c.options.rtol * size + rounding)
        if not (agrees & seen & np.isfinite(e)).all():
            return False
        if largest:
            c.report.saw(float(apart.max() / largest), float(e.max() / largest))
        return True

    # one column, where a random direction led to
    def column(self, j: int, w: np.ndarray) -> bool:
        """Judge the derivatives of all outputs by input j: raise for a wrong one; whether there were kinks, and only they."""
        numerical = self.estimate(j)
        analytic, rows = self.analytic_column(j, w, numerical)
        before = self.met
        largest = float(np.abs(analytic).max(where=np.isfinite(analytic), initial=0.0))
        for entry, verdict in self.amiss(j, numerical, analytic, rows, largest):
            raise self.error(entry, verdict, j, how="halving a random direction")
        return self.met > before

    def along(self, v: np.ndarray, direction: Verdict, j: int, w: np.ndarray) -> np.ndarray:
        """Which outputs have kinks along v, noted; raises where there are none to explain a disagreement."""
        c = self.checker
        kinks = find_kinks(c.curve, v, c.start)
        if not (kinks.found & (w != 0.0)).any():
            raise self.unlocated(direction, j, w)
        for i in np.flatnonzero(kinks.found & (w != 0.0)):
            name = element(*c.outputs.locate(int(i)))
            what = "jumps" if kinks.sudden[i] else f"has a kink (slopes that differ by {abs(kinks.jump[i]):.6g})"
            self.kinks[int(i), -1] = f"{name} {what} beside the point along a random direction; {ADVICE}"
        return kinks.found

    def unit(self, j: int) -> np.ndarray:
        v = np.zeros(self.checker.inputs.size)
        v[j] = self.checker.scale[j]
        return v

    def estimate(self, j: int) -> Estimate:
        """d f / d x_j, by two runs with different steps."""
        c, v = self.checker, self.unit(j)[None]
        found = second_opinion(c.curve, v, derivatives(c.curve, v, start=c.start), start=c.start)
        return Estimate(found.value / c.scale[j], found.error / c.scale[j], found.step * c.scale[j])

    def analytic_column(self, j: int, w: np.ndarray, numerical: Estimate) -> tuple[np.ndarray, list[int]]:
        """The analytic d f_i / d x_j, for every output where they are few, else for the one that halving w leads to."""
        c, m = self.checker, self.checker.outputs.size
        out = np.zeros(m)
        rows = np.arange(m)
        while len(rows) > 1 and m > FULL_COLUMNS:
            halves = []
            for half in np.array_split(rows, 2):
                part = np.zeros(m)
                part[half] = w[half]
                apart = abs(c.pull(part)[0][j] - part @ np.nan_to_num(numerical.value[0]))
                error = float(np.linalg.norm(part * numerical.error[0]))
                halves.append((apart / (error + 1e-300) if np.isfinite(apart) else np.inf, half))
            rows = max(halves, key=lambda pair: pair[0])[1]
        for i in rows:
            unit = np.zeros(m)
            unit[i] = 1.0
            out[i] = c.pull(unit)[0][j]
        return out, [int(i) for i in rows]

    # one entry
    def entry(self, i: int, j: int, analytic: float, numerical: float, error: float) -> Entry:
        c = self.checker
        return Entry(
            *c.inputs.locate(j), *c.outputs.locate(i), float(analytic), float(numerical), float(error),
            at=float(c.x[j]), scale=float(c.scale[j]), result=float(c.curve.size[i]),
        )  # fmt: skip

    def verdict(self, entry: Entry, largest: float = 0.0) -> Verdict:
        """`largest` is the size of the entry's neighbours, whose rounding it shares."""
        options = self.checker.options
        a, n = entry.analytic, entry.numerical
        size, error = max(abs(a), abs(n)), SAFETY * entry.estimate
        rounding = ROUNDING * largest + ULPS * EPS * entry.result * max(1.0, 1.0 / entry.scale)
        agrees = bool(np.isfinite(a)) and abs(a - n) <= error + options.rtol * size + rounding
        seen = bool(np.isfinite(error)) and error <= max(
            NOTHING, options.resolution * max(size, largest, FLAT * entry.result / entry.scale)
        )
        return Verdict(agrees, seen, a, n, error, max(size, largest))

    def at_kink(self, entry: Entry, verdict: Verdict, kinks: Kinks, i: int, j: int) -> bool:
        """True, and noted, where f has a kink and the rule gives a slope between those of the two sides."""
        jump = abs(kinks.jump[i]) / entry.scale
        # The numerical value is the middle of the two slopes, or anything between where a step straddles the kink.
        if not kinks.found[i] or not (verdict.agrees or abs(verdict.analytic - verdict.numerical) <= 1.05 * jump):
            return False
        name, of = element(entry.input, entry.index), element(entry.output, entry.output_index)
        self.met += 1
        what = "jumps" if kinks.sudden[i] else f"has a kink (the slopes on its two sides differ by {jump:.6g})"
        self.kinks[i, j] = (
            f"{of} {what} at or near {name} = {entry.at!r}, so no finite difference can confirm the rule's slope of "
            f"{entry.analytic:.6g}; {ADVICE}"
        )
        return True

    def error(self, entry: Entry, verdict: Verdict, j: int, *, how: str, wrong: str = "") -> Exception:
        """What to raise for an entry that did not pass and is at no kink."""
        if not verdict.agrees:
            hint = hint_for(self.checker, j)
            return GradientMismatch.of(entry, order=self.checker.order, wrong=wrong, hint=hint, how=how)
        name, of = element(entry.input, entry.index), element(entry.output, entry.output_index)
        return Inconclusive(
            f"d {of} / d {name} is known only to +- {entry.estimate:.1e} (about {entry.numerical:.6g}) by finite differences: f "
            f"changes too fast or is too noisy near {name} = {entry.at!r}; choose another point or a first step: step=1e-4"
        )

    def edge(self, i: int, j: int) -> NonFinite:
        c = self.checker
        refused = f" (it raised {c.curve.refused!r})" if c.curve.refused else ""
        return NonFinite(
            f"{element(*c.outputs.locate(i))} is finite at the point, but not on both sides of {element(*c.inputs.locate(j))} = "
            f"{float(c.x[j])!r}: the edge of its domain{refused}; move the point inside"
        )

    def unlocated(self, v: Verdict, j: int, w: np.ndarray) -> Exception:
        """A disagreement that no single entry with a unit incoming gradient shows."""
        c, numerical = self.checker, self.estimate(j)
        here = float(w @ np.nan_to_num(numerical.value[0]))
        analytic, error = float(c.pull(w)[0][j]), SAFETY * float(np.linalg.norm(w * numerical.error[0]))
        name = element(*c.inputs.locate(j))
        if not v.resolved or abs(analytic - here) <= error + c.options.rtol * abs(here):
            return Inconclusive(
                f"the derivative along a random direction is known only to +- {v.error:.1e} (about {v.numerical:.6g}), or "
                "estimates with different steps disagree; choose another point or a first step: step=1e-4"
            )
        hint = hint_for(c, j)
        if not np.allclose(c.pull(2.0 * w)[0], 2.0 * c.pull(w)[0], rtol=1e-10, atol=1e-10 * float(np.abs(c.pull(w)[0]).max())):
            hint = "the rule is not linear in g: twice the incoming gradient does not give twice the gradient"
        out = GradientMismatch(
            f"the derivative of order {c.order} by {name} is wrong for a random incoming gradient\n"
            f"  analytic       {analytic!r}\n  numerical      {here!r} +- {error:.1e}\n  hint           {hint}"
        )
        out.input, out.index = c.inputs.locate(j)
        out.analytic, out.numerical, out.estimate, out.order, out.hint = analytic, here, error, c.order, hint
        return out
