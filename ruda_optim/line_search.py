"""A line search for the strong Wolfe conditions (Nocedal and Wright 2006, algorithms 3.5 and 3.6)."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DECREASE, CURVATURE = 1e-4, 0.9  # c1 and c2 of the conditions
TRIALS = 25


@dataclass(frozen=True)
class Trial:
    """A step length `t`, and there: the value, the slope along the direction, the gradient."""

    t: float
    value: float
    slope: float
    gradient: Any

    def finite(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.slope)


def strong_wolfe(evaluate: Callable[[float], Trial], start: Trial, t: float, budget: int, smallest: float) -> Trial:
    """Return a trial that satisfies the conditions, or the lowest one found (`start` itself where none is lower).

    `evaluate(t)` is called at most `budget` times. A value or slope that is not finite counts as too high, so the
    search comes back from it. `smallest` is the width of a bracket that is not worth dividing.
    """
    budget = min(budget, TRIALS)
    if budget <= 0:
        return start
    low, high, left = _bracket(evaluate, start, t, budget)
    if high is None:
        return low
    return _zoom(evaluate, start, low, high, left, smallest)


def _too_high(start: Trial, trial: Trial) -> bool:
    return not trial.finite() or trial.value > start.value + DECREASE * trial.t * start.slope


def _flat(start: Trial, trial: Trial) -> bool:
    return abs(trial.slope) <= -CURVATURE * start.slope


def _bracket(evaluate: Callable, start: Trial, t: float, budget: int) -> tuple[Trial, Trial | None, int]:
    """Step outwards until an interval holds a good point: (lower end, other end or None if good already, calls left)."""
    before, trial = start, evaluate(t)
    for used in range(1, budget + 1):
        left = budget - used
        # So short a step that rounding lost it says nothing: the next is as long as it may be.
        lost = trial.value == before.value and trial.slope == before.slope
        if not lost and (_too_high(start, trial) or (used > 1 and trial.value >= before.value)):
            return before, trial, left
        if _flat(start, trial):
            return trial, None, left
        if trial.slope >= 0.0:
            return trial, before, left
        if left == 0:
            break
        near, far = trial.t + 0.01 * (trial.t - before.t), 10.0 * trial.t
        t = far if lost else _cubic(before, trial, near, far)
        before, trial = trial, evaluate(t)
    return trial, None, 0


def _zoom(evaluate: Callable, start: Trial, low: Trial, high: Trial, left: int, smallest: float) -> Trial:
    """Narrow the interval from `low`, its lower end, to `high` until a trial satisfies both conditions."""
    stalled = False
    for _ in range(left):
        width = abs(high.t - low.t)
        if width < smallest:
            break
        inner, outer = min(low.t, high.t), max(low.t, high.t)
        t = _cubic(low, high, inner, outer)
        # Close to an end twice, the interval would hardly shrink: then a tenth of it is the least.
        margin = 0.1 * width
        if min(outer - t, t - inner) < margin:
            if stalled or t <= inner or t >= outer:
                t = outer - margin if outer - t < t - inner else inner + margin
                stalled = False
            else:
                stalled = True
        else:
            stalled = False
        trial = evaluate(t)
        if _too_high(start, trial) or trial.value >= low.value:
            high = trial
            continue
        if _flat(start, trial):
            return trial
        if trial.slope * (high.t - low.t) >= 0.0:
            high = low
        low = trial
    return low


def _cubic(a: Trial, b: Trial, least: float, most: float) -> float:
    """The minimum of the cubic through both values and slopes, within bounds; their middle where there is none."""
    middle = 0.5 * (least + most)
    if not a.finite() or not b.finite():
        return middle
    if a.t > b.t:
        a, b = b, a
    if a.t == b.t:
        return middle
    d1 = a.slope + b.slope - 3.0 * (a.value - b.value) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not math.isfinite(square) or square < 0.0:
        return middle
    d2 = math.sqrt(square)
    bottom = b.slope - a.slope + 2.0 * d2
    if bottom == 0.0:
        return middle
    return min(max(b.t - (b.t - a.t) * (b.slope + d2 - d1) / bottom, least), most)
