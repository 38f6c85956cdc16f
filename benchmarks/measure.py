"""Timing several candidates against each other on a machine that is never quiet.

Candidates run in turns, A B C, C B A, A B C ..., so that whatever slows the machine slows all of them; what is
reported of two is the median over the rounds of their ratio within a round, which drift cancels out of.
"""
from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Times:
    """Seconds per call of each candidate in each round."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """The median over the rounds, in seconds per call."""
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, other: str) -> tuple[float, float, float]:
        """Quartiles (25 %, median, 75 %) of name / other within a round."""
        ratios = [a / b for a, b in zip(self.seconds[name], self.seconds[other])]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, middle, high


def interleave(
    candidates: dict[str, Run], synchronize: Run, rounds: int = 15, slot: float = 0.06, clock: Clock = time.perf_counter
) -> Times:
    """Time every candidate in each of `rounds` rounds, for about `slot` seconds (one call at the least) a turn.

    `clock` may be `time.process_time`: processor seconds of all threads, which a busy machine stretches far less.
    """
    calls = {name: _calls(run, synchronize, slot) for name, run in candidates.items()}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    gc.collect()
    gc.disable()  # a collection would fall on whoever happens to run
    try:
        for turn in range(rounds):
            for name in list(candidates)[:: 1 if turn % 2 == 0 else -1]:
                time.sleep(0.005)  # the one before may have worker threads that spin for more work
                candidates[name]()  # its data come back into the caches, its threads wake up
                seconds[name].append(_time(candidates[name], synchronize, calls[name], clock))
    finally:
        gc.enable()
    return Times(seconds)


def _calls(run: Run, synchronize: Run, slot: float) -> int:
    for _ in range(3):
        run()
    return max(1, round(slot / _time(run, synchronize, 1, time.perf_counter)))


def _time(run: Run, synchronize: Run, calls: int, clock: Clock) -> float:
    synchronize()
    start = clock()
    for _ in range(calls):
        run()
    synchronize()
    return (clock() - start) / calls
