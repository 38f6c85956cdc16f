"""Learning-rate schedules: each a function of how often it was called."""
from __future__ import annotations

from typing import Any

from ruda_nn import Config
from ruda_nn.config import is_number, is_whole
from ruda_nn.records import broken

from .optimizer import compare


class StepLrScheduler:
    """lr gamma^floor(k / step_size) at call k = 0, 1, ...

    >>> scheduler = StepLrSchedulerConfig(1.0, 2).with_gamma(0.5).init()
    >>> [scheduler.step() for _ in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    def __init__(self, config: StepLrSchedulerConfig) -> None:
        self.config, self.calls = config, 0

    def step(self) -> float:
        """Return the learning rate of the next update; call it once per update."""
        value = float(self.config.lr * self.config.gamma ** (self.calls // self.config.step_size))
        self.calls += 1
        return value

    def to_record(self) -> dict[str, Any]:
        """Return the configuration and the number of calls so far."""
        return {"config": self.config.describe(), "calls": self.calls}

    def load_record(self, record: dict[str, Any]) -> None:
        """Take the position of a record; RecordMismatch, and no change, where it was configured differently."""
        if not isinstance(record, dict) or set(record) != {"config", "calls"}:
            broken("its schedule should hold config and calls")
        compare(record["config"], self.config.describe(), "schedule")
        if not is_whole(record["calls"]) or record["calls"] < 0:
            broken(f"its schedule was called {record['calls']!r} times")
        self.calls = int(record["calls"])

    def __repr__(self) -> str:
        return f"StepLrScheduler({self.config}, {self.calls} calls)"


class StepLrSchedulerConfig(Config):
    """Settings of `StepLrScheduler`: `lr`, `step_size` in calls, `gamma` (0.1).

    >>> StepLrSchedulerConfig(1e-3, 100).init().step()
    0.001
    """

    lr: float
    step_size: int
    gamma: float = 0.1

    def init(self) -> StepLrScheduler:
        """Return the schedule at its first call."""
        self.require(is_number(self.lr) and self.lr >= 0.0, "lr", "a finite number >= 0")
        self.require(is_whole(self.step_size) and self.step_size > 0, "step_size", "an integer >= 1")
        self.require(is_number(self.gamma) and self.gamma > 0.0, "gamma", "a finite number > 0")
        return StepLrScheduler(self)
