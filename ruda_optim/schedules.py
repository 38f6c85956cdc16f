"""Learning-rate schedules: each a pure function of how often it was called. Warm-up and combinations of others.

A configuration is the formula: `value(k)` is the rate of call k = 0, 1, ..., computed from k alone, so that it neither
drifts nor depends on where training was interrupted. One class, `LrScheduler`, holds the position of all of them. The
schedules that only fall are in `schedules_decay`.
"""
from __future__ import annotations

import math
from typing import Any

from ruda_nn import Config
from ruda_nn.config import is_whole, plain
from ruda_nn.records import broken, compare
from ruda_tensor.live import every_replay

MOST_CALLS = 2**53  # above it, a count is no longer a float


class LrScheduler:
    """A schedule and its position: how often `step()` was called.

    Call `step()` once per update, not once per micro-batch. Reading makes no step: `peek()` is the rate of the next
    update, `last` the rate of the update before (None at the start), `value(k)` that of any call.

    >>> scheduler = StepLrSchedulerConfig(1.0, 2).with_gamma(0.5).init()
    >>> [scheduler.step() for _ in range(5)], scheduler.peek()
    ([1.0, 1.0, 0.5, 0.5, 0.25], 0.25)
    """

    def __init__(self, config: LrSchedulerConfig) -> None:
        self.config, self.calls = config, 0

    def value(self, k: int) -> float:
        """Return the learning rate of call k = 0, 1, ...; nothing is changed. Errors: ValueError for another k."""
        if not is_whole(k) or k < 0:
            raise ValueError(f"value: calls are counted 0, 1, ..., got {k!r}; scheduler.value(0) is the rate of the first")
        return float(self.config.value(k))

    def peek(self) -> float:
        """Return the learning rate that the next `step()` returns; nothing is changed."""
        return every_replay(lambda: self.value(self.calls))

    @property
    def last(self) -> float | None:
        """The learning rate that the last `step()` returned, None before the first."""
        return every_replay(lambda: self.value(self.calls - 1)) if self.calls else None

    def step(self) -> float:
        """Return the learning rate of the next update; call it once per update.

        In a captured step the schedule moves on at every replay, and what is returned is the rate of each.
        """
        return every_replay(self._next, self._back)

    def _next(self) -> float:
        rate = self.value(self.calls)
        self.calls += 1
        return rate

    def _back(self) -> None:
        self.calls -= 1

    def to_record(self) -> dict[str, Any]:
        """Return the configuration and the number of calls so far."""
        return {"config": plain(self.config), "calls": self.calls}

    def load_record(self, record: dict[str, Any]) -> None:
        """Take the position of a record; RecordMismatch, and no change, where it was configured differently."""
        if not isinstance(record, dict) or set(record) != {"config", "calls"}:
            broken("its schedule should hold config and calls")
        compare(record["config"], plain(self.config), "schedule")
        if not is_whole(record["calls"]) or not 0 <= record["calls"] < MOST_CALLS:
            broken(f"its schedule was called {record['calls']!r} times")
        self.calls = int(record["calls"])

    def __repr__(self) -> str:
        return f"LrScheduler({self.config}, {self.calls} calls)"


StepLrScheduler = LrScheduler  # what the reference system calls the type of a step schedule


class LrSchedulerConfig(Config):
    """Base of schedules' configurations; a schedule of one's own says in `value` what the rate of call k is.

    >>> class Harmonic(LrSchedulerConfig):
    ...     lr: float
    ...     def value(self, k):
    ...         return self.lr / (k + 1)
    >>> scheduler = Harmonic(1.0).init()
    >>> [scheduler.step() for _ in range(4)]
    [1.0, 0.5, 0.3333333333333333, 0.25]
    """

    def check(self) -> None:
        """Refuse settings outside their range."""

    def value(self, k: int) -> float:
        """Return the learning rate of call k = 0, 1, ..."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its rates are; define value(self, k)")

    def init(self) -> LrScheduler:
        """Return the schedule at its first call."""
        self.check()
        return LrScheduler(self)

    def with_warmup(self, warmup_steps: int) -> WarmupLrSchedulerConfig:
        """Return this schedule after a linear rise of so many calls; it starts at its own beginning then."""
        return WarmupLrSchedulerConfig(warmup_steps, self)

    def require_schedule(self, field: str, schedule: Any) -> None:
        """Refuse anything but a valid schedule's configuration; name its place where it is not valid."""
        if not isinstance(schedule, LrSchedulerConfig):
            where, what = f"{type(self).__name__}: {field}", type(schedule).__name__
            raise ValueError(f"{where} should be a configuration, such as StepLrSchedulerConfig(1e-3, 100), not a {what}")
        try:
            schedule.check()
        except ValueError as error:
            raise ValueError(f"{type(self).__name__}: in {field}: {error}") from None


class ConstantLrSchedulerConfig(LrSchedulerConfig):
    """The same learning rate `lr` at every call.

    >>> ConstantLrSchedulerConfig(1e-3).init().step()
    0.001
    """

    lr: float

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_number("lr")

    def value(self, k: int) -> float:
        """Return lr."""
        return self.lr


class StepLrSchedulerConfig(LrSchedulerConfig):
    """lr gamma^floor(k / step_size) at call k = 0, 1, ...: settings `lr`, `step_size` in calls, `gamma` (0.1).

    >>> StepLrSchedulerConfig(1e-3, 100).init().step()
    0.001
    """

    lr: float
    step_size: int
    gamma: float = 0.1

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_number("lr")
        self.require_count("step_size")
        self.require_number("gamma", open=True)

    def value(self, k: int) -> float:
        """Return lr gamma^floor(k / step_size)."""
        try:
            return self.lr * self.gamma ** (k // self.step_size)
        except OverflowError:  # a gamma above 1, long enough: a step refuses an infinite rate, and 0 stays 0
            return math.inf if self.lr else 0.0


class WarmupLrSchedulerConfig(LrSchedulerConfig):
    """A linear rise over `warmup_steps` calls to where `schedule` begins, and then `schedule` from its beginning.

    With s(k) the schedule and w = warmup_steps: s(0) (k + 1) / (w + 1) for k < w, then s(k - w). The first update
    moves already, and the peak is reached once, at call w. `schedule.with_warmup(w)` is the short form:

    >>> from ruda_optim import CosineAnnealingLrSchedulerConfig
    >>> language_model = CosineAnnealingLrSchedulerConfig(3e-4, 1000, min_lr=3e-5, past_end="hold").with_warmup(99)
    >>> scheduler = language_model.init()
    >>> [round(scheduler.value(k), 9) for k in (0, 99, 1099, 9999)]
    [3e-06, 0.0003, 3e-05, 3e-05]
    """

    warmup_steps: int
    schedule: LrSchedulerConfig

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_count("warmup_steps", low=0)
        self.require_schedule("schedule", self.schedule)

    def value(self, k: int) -> float:
        """Return the warm-up's rate, or the schedule's once that is over."""
        if k < self.warmup_steps:
            return self.schedule.value(0) * (k + 1) / (self.warmup_steps + 1)
        return self.schedule.value(k - self.warmup_steps)


class ComposedLrSchedulerConfig(LrSchedulerConfig):
    """Several schedules at the same call, combined: `schedules` (none), `reduction` ("product", "sum" or "avg").

    No schedule at all is 1 as a product, and 0 as a sum or an average.

    >>> from ruda_optim import ExponentialLrSchedulerConfig, LinearLrSchedulerConfig
    >>> rise, fall = LinearLrSchedulerConfig(0.5, 1.0, 2), ExponentialLrSchedulerConfig(0.5, 0.5)
    >>> scheduler = ComposedLrSchedulerConfig().with_schedule(rise).with_schedule(fall).init()
    >>> [scheduler.step() for _ in range(4)]
    [0.25, 0.1875, 0.125, 0.0625]
    """

    schedules: tuple[LrSchedulerConfig, ...] = ()
    reduction: str = "product"

    def with_schedule(self, schedule: LrSchedulerConfig) -> ComposedLrSchedulerConfig:
        """Return this combination with one more schedule, after the others."""
        return ComposedLrSchedulerConfig((*self.schedules, schedule), self.reduction)

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require(isinstance(self.schedules, (tuple, list)), "schedules", "a list of schedules' configurations")
        self.require(self.reduction in ("product", "sum", "avg"), "reduction", "'product', 'sum' or 'avg'")
        for i, schedule in enumerate(self.schedules):
            self.require_schedule(f"schedules[{i}]", schedule)

    def value(self, k: int) -> float:
        """Return the product, sum or average of the schedules at call k."""
        rates = [schedule.value(k) for schedule in self.schedules]
        if self.reduction == "product":
            return math.prod(rates, start=1.0)
        return math.fsum(rates) / (max(1, len(rates)) if self.reduction == "avg" else 1)
