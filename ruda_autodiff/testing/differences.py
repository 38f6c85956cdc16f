"""Numerical derivatives that say how wrong they may be.

Central differences at steps h, h/2, h/4 ... are extrapolated to h = 0 in a table (Ridders 1982, Accurate computation
of F'(x) and F'(x)F''(x), with the ratio 2). Each entry of the table has an error estimate: how far it is from its
neighbours (what truncation leaves), plus what rounding in f can do at its step. The entry with the least is taken.
Everything is elementwise over several directions and all components of f, and NaN stands for "not defined there".
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

EPS = float(np.finfo(np.float64).eps)
START = 2.0**-4
COLUMNS = 5
STEPS = 44
DEFINITE = 1e-11  # an error this small beside the largest component of the same direction needs no smaller step


@dataclass
class Estimate:
    """Derivatives of m components in c directions: `value`, its `error`, and the `step` that gave it, all (c, m)."""

    value: np.ndarray
    error: np.ndarray
    step: np.ndarray


class Curve:
    """f along lines through x: counts evaluations, and turns what cannot be evaluated beside x into NaN.

    `noise` is how much of each component of f is not its own (rounding, or a narrower dtype inside), once measured;
    `size` the largest value that each has had.
    """

    def __init__(self, f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, at_x: np.ndarray) -> None:
        self.f, self.x, self.at_x = f, x, at_x
        self.evaluations = 0
        self.noise = np.zeros_like(at_x)
        self.size = np.abs(at_x)
        self.refused: Exception | None = None

    def restricted(self, rows: np.ndarray) -> Curve:
        """The same with some of the components only; its evaluations are counted here."""
        out = Curve(lambda x: self._count(x)[rows], self.x, self.at_x[rows])
        out.noise = self.noise[rows]
        return out

    def projected(self, w: np.ndarray) -> Curve:
        """The one component <w, f>; its evaluations are counted here."""
        out = Curve(lambda x: np.array([w @ self._count(x)]), self.x, np.array([w @ self.at_x]))
        out.noise = np.array([np.linalg.norm(w * np.maximum(self.noise, 4.0 * EPS * np.abs(self.at_x)))])
        return out

    def _count(self, x: np.ndarray) -> np.ndarray:
        self.evaluations += 1
        return self.f(x)

    def __call__(self, t: float, v: np.ndarray) -> np.ndarray:
        """f(x + t v). An error in reading arguments or in arithmetic means a point outside the domain of f."""
        self.evaluations += 1
        try:
            y = self.f(self.x + t * v)
        except (ValueError, ArithmeticError) as error:
            self.refused = error
            return np.full_like(self.at_x, np.nan)
        if y.shape != self.at_x.shape:
            return np.full_like(self.at_x, np.nan)
        y = np.where(np.isfinite(y), y, np.nan)
        self.size = np.fmax(self.size, np.abs(y))
        return y


def derivatives(curve: Curve, directions: np.ndarray, *, start: float = START, ratio: float = 2.0) -> Estimate:
    """Differentiate f along each row of `directions`, from steps of `start` downwards.

    A direction is finished when no component gains by a smaller step: its error is below the rounding bound of the
    current step, or below `DEFINITE` of the largest component. A component that was never defined has the error inf.
    """
    shape = (len(directions), len(curve.at_x))
    best = Estimate(np.full(shape, np.nan), np.full(shape, np.inf), np.full(shape, np.nan))
    active = np.arange(len(directions))
    reach = np.array([_reach(curve.x, v) for v in directions])
    row: list[np.ndarray] = []
    row_errors: list[np.ndarray] = []
    for k in range(STEPS):
        h = start * ratio**-k
        plus = np.stack([curve(h, v) for v in directions[active]])
        minus = np.stack([curve(-h, v) for v in directions[active]])
        central = (plus - minus) / (2.0 * h)
        noise = np.maximum(curve.noise, EPS * (np.abs(plus) + np.abs(minus)))
        bound = 2.0 * (noise + EPS * reach[active, None] * np.abs(central)) / h
        row, row_errors = _extend(row, row_errors, central, bound, ratio)
        for value, error in zip(row[1:], row_errors[1:], strict=True):
            better = np.nonzero(error < best.error[active])
            at = active[better[0]], better[1]
            best.value[at], best.error[at], best.step[at] = value[better], error[better], h
        largest = np.max(np.abs(np.nan_to_num(best.value[active])), axis=1, keepdims=True, initial=0.0)
        finished = (best.error[active] <= np.maximum(bound, DEFINITE * largest)).all(axis=1)
        if k >= 2 and finished.any():
            active = active[~finished]
            row, row_errors = [r[~finished] for r in row], [r[~finished] for r in row_errors]
        if not len(active):
            break
    return best


def _reach(x: np.ndarray, v: np.ndarray) -> float:
    """How large x is beside the change v, for the moved elements: x + h v is rounded, too."""
    moved = v != 0.0
    return float(np.median(np.abs(x[moved] / v[moved]))) if moved.any() else 0.0


def _extend(
    previous: list[np.ndarray], errors: list[np.ndarray], central: np.ndarray, bound: np.ndarray, ratio: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The next row of the table: column j removes the term h^(2j) of the truncation error.

    Two entries may agree by chance, but an error estimate cannot honestly fall faster than the removed term did.
    """
    row, row_errors = [central], [np.full_like(central, np.inf)]
    for j in range(1, min(len(previous), COLUMNS) + 1):
        power = ratio ** (2 * j)
        value = row[-1] + (row[-1] - previous[j - 1]) / (power - 1.0)
        error = np.maximum(np.abs(value - row[-1]), np.abs(value - previous[j - 1]))
        if j > 1:
            error = np.maximum(error, errors[j - 1] / (power * ratio * ratio))
        row.append(value)
        row_errors.append(error + bound)
    return row, row_errors


def second_opinion(curve: Curve, directions: np.ndarray, first: Estimate, *, start: float = START) -> Estimate:
    """Differentiate again with much smaller steps and another ratio; the error covers any disagreement."""
    other = derivatives(curve, directions, start=start * 2.0**-9, ratio=1.7)
    apart = np.abs(first.value - other.value)
    error = np.maximum(first.error, np.where(apart > 4.0 * (first.error + other.error), apart, 0.0))
    missing = ~np.isfinite(first.error)
    pick = lambda a, b: np.where(missing, b, a)
    return Estimate(pick(first.value, other.value), pick(error, other.error), pick(first.step, other.step))


def measure_noise(curve: Curve, v: np.ndarray, found: Estimate, start: float = START) -> np.ndarray:
    """Return the part of f that is no function of t at the smallest scales, per component.

    Third differences over six points 1e-7 apart remove what is smooth and leave rounding, as More and Wild 2011
    (Estimating computational noise) use them; where they are large, smaller distances tell curvature, which falls, from
    noise, which does not. The smaller of the two sides is taken, since a kink or a jump at x is no noise. A component
    that does not move at all there, though it has a slope, is a staircase with wider steps.
    """
    noise, stuck = np.full_like(curve.at_x, np.inf), np.zeros(curve.at_x.shape, bool)
    first = 1.3 * 2.0**-19 * start  # no power of two, at which narrow sums may be exact
    for level in range(4):
        third, still = _scatter(curve, v, first * 2.0 ** (-10 * level))
        stuck = still if level == 0 else stuck
        noise = np.minimum(noise, third)
        if not (noise[~stuck] > 1e-12 * curve.size[~stuck]).any():
            break
    slope = np.abs(found.value[0]) - 4.0 * found.error[0]
    staircase = 5.0 * first * np.nan_to_num(np.maximum(slope, 0.0), nan=0.0, posinf=0.0)
    return np.where(stuck, staircase, np.where(np.isinf(noise), 0.0, noise))


def _scatter(curve: Curve, v: np.ndarray, t: float) -> tuple[np.ndarray, np.ndarray]:
    """Third differences (inf where undefined or not moving), the smaller of two sides; and where neither side moves."""
    sides, still = [], np.ones(curve.at_x.shape, bool)
    for sign in (t, -t):
        points = np.stack([curve(sign * k, v) for k in range(1, 7)])
        third = np.max(np.abs(np.diff(points, 3, axis=0)), axis=0) / 4.0
        constant = (points == points[0]).all(axis=0)
        still &= constant
        sides.append(np.where(constant | np.isnan(third), np.inf, third))
    return np.minimum(*sides), still


@dataclass
class Kinks:
    """Where the slopes on the two sides differ: `jump` is right minus left, per component; `sudden` where f itself jumps."""

    found: np.ndarray
    jump: np.ndarray
    sudden: np.ndarray
    step: float


def find_kinks(curve: Curve, v: np.ndarray, start: float = START) -> Kinks:
    """Compare the slopes to the left and to the right along v at falling steps.

    (f(h) - 2 f(0) + f(-h)) / h falls like h where f is smooth, stays where it has a kink nearer than h, and grows
    like 1/h where it jumps. A kink is reported where it does not fall over a sixteenfold smaller step.
    """
    steps = [start * 2.0**-k for k in range(0, 33, 4)]
    middle = curve.at_x
    jumps = [(curve(h, v) - 2.0 * middle + curve(-h, v)) / h for h in steps]
    shape = middle.shape
    out = Kinks(np.zeros(shape, bool), np.zeros(shape), np.zeros(shape, bool), steps[0])
    for wide, narrow, h in zip(jumps, jumps[1:], steps[1:], strict=False):
        noise = 16.0 * np.maximum(curve.noise, 4.0 * EPS * np.abs(middle)) / h
        seen = (np.abs(narrow) > noise) & (np.abs(narrow) > 0.5 * np.abs(wide))
        # The finest step that still shows it says most about this point.
        out.found |= seen
        out.jump = np.where(seen, narrow, out.jump)
        out.sudden = np.where(seen, np.abs(narrow) > 4.0 * np.abs(wide), out.sudden)
        out.step = h if seen.any() else out.step
    return out
