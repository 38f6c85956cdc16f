"""Timing several candidates against each other on a machine that is never quiet.

Candidates take turns, A B C, C B A, A B C ..., so that whatever slows the machine slows all of them; what is reported
of two is the median over the rounds of their ratio within a round, which drift cancels out of.
"""
from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Run = Callable[[], object]
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


class Trained:
    """A training step, with the number of parameters that it trains: only models of one size are compared."""

    def __init__(self, run: Run, parameters: int) -> None:
        self.run, self.parameters = run, parameters

    def __call__(self) -> object:
        return self.run()


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


def interleave(turns: dict[str, Callable[[], float]], rounds: int) -> Times:
    """Let every candidate take a turn, which returns its seconds per call, in each of `rounds` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name in list(turns)[:: 1 if number % 2 == 0 else -1]:
            seconds[name].append(turns[name]())
    return Times(seconds)


class Turns:
    """One candidate's turns: each lasts about `slot` seconds, and one call at the least.

    The clock "cpu" counts processor seconds of all threads, which a busy machine stretches far less than wall time.
    """

    def __init__(self, run: Run, synchronize: Run, slot: float, clock: str) -> None:
        self.run, self.synchronize, self.clock = run, synchronize, CLOCKS[clock]
        for _ in range(3):
            run()
        self.calls = max(1, round(slot / self._time(1, time.perf_counter)))

    def take(self) -> float:
        """Return seconds per call of one turn."""
        gc.collect()
        gc.disable()  # a collection would fall on whoever happens to run
        time.sleep(0.01)  # the threads of the one before may still spin for more work
        try:
            self.run()  # its data come back into the caches, its threads wake up
            return self._time(self.calls, self.clock)
        finally:
            gc.enable()

    def _time(self, calls: int, clock: Clock) -> float:
        self.synchronize()
        start = clock()
        for _ in range(calls):
            self.run()
        self.synchronize()
        return (clock() - start) / calls
