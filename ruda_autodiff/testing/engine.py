"""The check itself: a function on vectors and its pull-back against numerical derivatives.

Random directions come first: for v over all inputs and w over all outputs, <w, J v> (numerical) must equal
<J^T w, v> (analytic). The magnitudes of v and w lie between 1/2 and 3/2 of their scale with random signs, so an error
e in one entry of J moves the difference by |e v_j w_i| >= |e|/4 always: one direction sees it, wherever it is. Where
a direction disagrees, halving v leads to an entry, which is judged again with other steps (entries.py). Small
functions are compared entry by entry as well.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .differences import EPS, START, Curve, Estimate, derivatives, measure_noise
from .report import GradientMismatch, GradientReport, KinkNearby, LowPrecision, NonFinite, NotDeterministic, missing_error
from .structure import Space, element

SAFETY = 4.0  # how many times its estimated error a numerical derivative may be off
FLAT = 1e-6  # a slope this small beside the values of f counts as zero, so no relative error of it need be seen
ULPS = 64.0  # of f per unit of an input: what rounding may leave in a derivative that should be smaller, such as 1 - y^2
NOTHING = 1e-14  # an error this small needs no size to be compared with: derivatives of x^3 and x y at 0
FULL_COLUMNS, FULL_ENTRIES = 80, 600
MOST_KINKS = 16
MANY_OUTPUTS = 1000

Pull = Callable[[np.ndarray], tuple[np.ndarray, list[int]]]


class Function(Protocol):
    """What is checked. `linearize(x)` returns w -> (J^T w, the inputs that got no gradient)."""

    inputs: Space
    outputs: Space
    size: float  # of what its results are computed from, where that is larger than they are; else 0

    def evaluate(self, x: np.ndarray) -> np.ndarray: ...

    def linearize(self, x: np.ndarray) -> Pull: ...


@dataclass(frozen=True)
class Options:
    """The keyword arguments of check_gradients and check_vjp that concern the engine.

    `locate=False` raises at the first direction that disagrees, without looking for the entry: for mutation runs.
    """

    directions: int = 2
    full: bool | None = None
    seed: Any = 0
    rtol: float = 1e-8
    resolution: float = 1e-3
    precision: float = 1e-9
    step: float | None = None
    kinks: str = "raise"
    locate: bool = True

    def __post_init__(self) -> None:
        if self.directions < 0 or (self.directions == 0 and self.full is not True):
            raise ValueError(f"directions must be at least 1 (or 0 with full=True), got {self.directions!r}")
        if self.kinks not in ("raise", "ignore"):
            raise ValueError(f"kinks must be 'raise' or 'ignore', got {self.kinks!r}")
        for name in ("rtol", "resolution", "precision"):
            value = getattr(self, name)
            if not 0.0 <= value < 1.0:
                raise ValueError(f"{name} must be at least 0 and below 1, got {value!r}")
        if self.step is not None and not self.step > 0.0:
            raise ValueError(f"step must be positive, got {self.step!r}")


@dataclass
class Verdict:
    """One comparison: `resolved` says whether an error could have been seen; `size` is what errors are relative to."""

    agrees: bool
    resolved: bool
    analytic: float
    numerical: float
    error: float
    size: float

    @property
    def passed(self) -> bool:
        return self.agrees and self.resolved


class Checker:
    """One check at one point; infinities and NaN are what it looks for, so nothing warns of them."""

    @np.errstate(all="ignore")
    def __init__(self, function: Function, x: np.ndarray, options: Options, order: int = 1) -> None:
        self.function, self.x, self.options, self.order = function, x, options, order
        self.rng = np.random.default_rng(options.seed)
        self.report = GradientReport(order)
        at_x = self._at_the_point()
        self.inputs, self.outputs = function.inputs, function.outputs
        self.curve = Curve(function.evaluate, x, at_x)
        self.curve.size = np.maximum(self.curve.size, function.size)
        self.pull = function.linearize(x)
        self.scale = self.inputs.expand([_scale(part) for part in self.inputs.split(x)])
        self.start = options.step or START
        if options.step is None and self.outputs.size and not self.pull(self.draw(self.outputs.size))[0].any():
            self.start = START * 2.0**-9  # the rule says constant, as for floor: from afar that is a slope, so look closely

    @np.errstate(all="ignore")
    def run(self) -> GradientReport:
        from .entries import Judge

        n, m = self.inputs.size, self.outputs.size
        if n == 0 or m == 0:
            self.pull(np.zeros(m))  # still: it runs, and gives the right shapes and dtypes
            return self.report
        judge = Judge(self)
        for k in range(self.options.directions):
            self.direction(judge, first=k == 0)
        full = n <= FULL_COLUMNS and m <= FULL_COLUMNS and n * m <= FULL_ENTRIES
        if full if self.options.full is None else self.options.full:
            judge.all()
        self.report.evaluations = self.curve.evaluations + 2
        self.report.kinks = len(judge.kinks)
        if judge.kinks and self.options.kinks == "raise":
            raise KinkNearby(next(iter(judge.kinks.values())))
        return self.report

    def _at_the_point(self) -> np.ndarray:
        """f(x), after the checks that it is finite and comes out the same twice."""
        for name, part in zip(self.function.inputs.names, self.function.inputs.split(self.x)):
            if not np.isfinite(part).all():
                raise NonFinite(f"input '{name}' holds NaN or inf; a derivative needs a finite point")
        y, again = self.function.evaluate(self.x), self.function.evaluate(self.x)
        if y.shape != again.shape or not np.array_equal(y, again, equal_nan=True):
            raise NotDeterministic(
                "two evaluations at the same point differ; fix the random numbers inside f, for example "
                "rt.random.seed(0) as its first line, or pass them in as an input"
            )
        bad = np.flatnonzero(~np.isfinite(y))
        if bad.size:
            name = element(*self.function.outputs.locate(int(bad[0])))
            raise NonFinite(f"{name} is {y[bad[0]]} at the point; move the inputs into the domain of f, or leave it out")
        return y

    def draw(self, size: int) -> np.ndarray:
        """Random signs, magnitudes between 1/2 and 3/2: no entry has little weight, and two errors do not cancel."""
        return self.rng.choice([-1.0, 1.0], size) * self.rng.uniform(0.5, 1.5, size)

    def along(self, v: np.ndarray, curve: Curve | None = None) -> Estimate:
        return derivatives(self.curve if curve is None else curve, v[None], start=self.start)

    def direction(self, judge: Any, first: bool) -> None:
        """Compare <w, J v> with <J^T w, v>; where they differ, find the entry and have it judged."""
        v, w = self.draw(self.inputs.size) * self.scale, self.draw(self.outputs.size)
        g, missing = self.pull(w)
        found = self.along(v)
        if first:
            self.same_gradient_twice(w, g)
            if self.measure(v, found):
                found = self.along(v)
        self.check_missing(missing, w)
        verdict = self.compare(g, v, w, found)
        self.report.directions += 1
        for _ in range(MOST_KINKS):
            if verdict.passed:
                if verdict.size:
                    self.report.saw(abs(verdict.analytic - verdict.numerical) / verdict.size, verdict.error / verdict.size)
                return
            if not self.options.locate and not verdict.agrees:
                raise GradientMismatch(f"a random direction disagrees: {verdict}")
            j = self.halve(v, w, g)
            if judge.column(j, w):  # raises, unless all that is amiss is a kink: leave this input out
                v[j] = 0.0
            else:  # or nothing is: kinks that are met only together; leave these results out
                met = judge.along(v, verdict, j, w)
                w = np.where(met, 0.0, w)
                g, _ = self.pull(w)
            if not v.any() or not w.any():
                return
            verdict = self.compare(g, v, w, self.along(v))
        raise KinkNearby(f"more than {MOST_KINKS} inputs are at kinks; the first: {next(iter(judge.kinks.values()))}")

    def compare(self, g: np.ndarray, v: np.ndarray, w: np.ndarray, found: Estimate, values: np.ndarray | None = None) -> Verdict:
        """The verdict on a direction. Errors of components add up in quadrature, for the signs of w are random."""
        terms = g[v != 0.0] * v[v != 0.0]
        analytic, numerical = float(terms.sum()), float(w @ np.nan_to_num(found.value[0]))
        error = SAFETY * float(np.linalg.norm(w * found.error[0]))
        spread = float(np.linalg.norm(terms))
        sizes = self.curve.size if values is None else values
        rounding = ULPS * EPS * float(np.linalg.norm(w * sizes)) * max(1.0, float(np.abs(v).max()))
        allowed = error + rounding + self.options.rtol * spread
        agrees = bool(np.isfinite(analytic)) and abs(analytic - numerical) <= allowed
        size = max(abs(analytic), abs(numerical), spread)
        flat = FLAT * float(np.linalg.norm(w * sizes))
        seen = bool(np.isfinite(error)) and error <= max(NOTHING, self.options.resolution * max(size, flat))
        return Verdict(agrees, seen, analytic, numerical, error, size)

    def same_gradient_twice(self, w: np.ndarray, g: np.ndarray) -> None:
        if not np.array_equal(self.pull(w)[0], g, equal_nan=True):
            raise NotDeterministic(
                "two runs of the derivative rule with the same incoming gradient differ: it draws random numbers, or changes "
                "in place what it was given or kept"
            )

    def measure(self, v: np.ndarray, found: Estimate) -> bool:
        """Learn the noise of f, and say so where it has far fewer digits than float64; True where it is unusual."""
        noise = measure_noise(self.curve, v, found, self.start)
        unusual = False
        for k, name in enumerate(self.outputs.names):
            block = self.outputs.block(k)
            size = float(np.abs(self.curve.at_x[block]).max(initial=0.0))
            worst = float(noise[block].max(initial=0.0))
            if size and worst > self.options.precision * size:
                raise LowPrecision(
                    f"{name} is computed to {-np.log10(worst / size):.0f} digits only: beside the point it scatters by "
                    f"{worst:.1e}. Does f convert to float32, or subtract large numbers? Compute in the dtype of the inputs, "
                    f"or accept it: precision={4 * worst / size:.0e}"
                )
            if worst > 1e-13 * size:
                unusual = True
                noise[block] = 2.0 * worst  # a sample of noise may be small by chance: the largest stands for all
        self.curve.noise = noise
        return unusual

    def check_missing(self, missing: list[int], w: np.ndarray) -> None:
        """A missing gradient is right only where f does not change with that input."""
        for k in missing:
            block = self.inputs.block(k)
            v = np.zeros(self.inputs.size)
            v[block] = self.draw(v[block].size) * self.scale[block]
            if v.any():
                found = self.along(v)
                numerical = float(w @ np.nan_to_num(found.value[0]))
                if abs(numerical) > SAFETY * float(np.linalg.norm(w * found.error[0])):
                    raise missing_error(self.inputs.names[k], numerical, self.order)

    def halve(self, v: np.ndarray, w: np.ndarray, g: np.ndarray) -> int:
        """Return an input that disagrees on its own, by halving the set of inputs that are moved."""
        support = np.flatnonzero(v)
        while len(support) > 1:
            first, second = np.array_split(support, 2)
            verdict = self.half(v, w, g, first)
            if verdict.passed:
                other = self.half(v, w, g, second)
                # Where both pass alone, the one that is nearer to failing leads on.
                support = second if not other.passed or _excess(other) > _excess(verdict) else first
            else:
                support = first
        return int(support[0])

    def half(self, v: np.ndarray, w: np.ndarray, g: np.ndarray, moved: np.ndarray) -> Verdict:
        """The verdict on v with only the inputs `moved`; a long result is looked at where it moves as well."""
        part = np.zeros_like(v)
        part[moved] = v[moved]
        curve = self.curve
        if len(w) > MANY_OUTPUTS:
            live = np.flatnonzero((curve(self.start, part) != curve.at_x) | (curve(-self.start, part) != curve.at_x))
            w, curve = w[live], curve.restricted(live)
        return self.compare(g, part, w, self.along(part, curve), curve.size)


def _excess(v: Verdict) -> float:
    apart = abs(v.analytic - v.numerical)
    return apart / (v.error + 1e-300) if np.isfinite(apart) else np.inf


def _scale(part: np.ndarray) -> float:
    """How far an input is moved by a step of 1: the size of its values, since nothing else is known of it."""
    size = float(np.sqrt(np.mean(part**2))) if part.size else 0.0
    return max(size, 1e-3) if size else 1.0
