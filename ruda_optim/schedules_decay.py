"""Learning-rate schedules that fall: linearly, along a cosine, exponentially, and with the inverse square root."""
from __future__ import annotations

import math

from .schedules import LrSchedulerConfig


class LinearLrSchedulerConfig(LrSchedulerConfig):
    """From `initial_lr` at call 0 along a line to `final_lr` at call `num_iters`, and `final_lr` from then on.

    `initial_lr` is in (0, 1], `final_lr` in [0, 1]; it may lie above `initial_lr`.

    >>> scheduler = LinearLrSchedulerConfig(0.5, 0.1, 4).init()
    >>> [round(scheduler.step(), 9) for _ in range(6)]
    [0.5, 0.4, 0.3, 0.2, 0.1, 0.1]
    """

    initial_lr: float
    final_lr: float
    num_iters: int

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_within("initial_lr", 1.0)
        self.require_within("final_lr", 1.0, zero=True)
        self.require_count("num_iters")

    def value(self, k: int) -> float:
        """Return the rate of call k."""
        return between(self.final_lr, self.initial_lr, max(0.0, 1.0 - k / self.num_iters))


class CosineAnnealingLrSchedulerConfig(LrSchedulerConfig):
    """min_lr + (initial_lr - min_lr) (1 + cos(pi k / num_iters)) / 2 (Loshchilov and Hutter 2017): `min_lr` (0).

    The minimum comes at call `num_iters`, exactly. `past_end` says what follows it: "mirror" (the default, PyTorch's
    closed form) climbs back the same way, with period 2 num_iters; "hold" stays at `min_lr`, which is what training a
    language model wants; "restart" begins again, with period num_iters + 1, as the reference system does.
    `initial_lr` is in (0, 1], `min_lr` in [0, initial_lr].

    >>> scheduler = CosineAnnealingLrSchedulerConfig(0.8, 4).init()
    >>> [round(scheduler.step(), 7) for _ in range(9)]
    [0.8, 0.6828427, 0.4, 0.1171573, 0.0, 0.1171573, 0.4, 0.6828427, 0.8]
    """

    initial_lr: float
    num_iters: int
    min_lr: float = 0.0
    past_end: str = "mirror"

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_within("initial_lr", 1.0)
        self.require_count("num_iters")
        self.require_within("min_lr", self.initial_lr, zero=True)
        self.require(self.past_end in ("mirror", "hold", "restart"), "past_end", "'mirror', 'hold' or 'restart'")

    def value(self, k: int) -> float:
        """Return the rate of call k."""
        n = self.num_iters
        if self.past_end == "restart":
            k %= n + 1
        elif self.past_end == "hold":
            k = min(k, n)
        else:
            k = n - abs(n - k % (2 * n))  # folded while it is an integer: far from the start nothing is lost
        return between(self.min_lr, self.initial_lr, 0.5 * (1.0 + math.cos(math.pi * k / n)))


class ExponentialLrSchedulerConfig(LrSchedulerConfig):
    """initial_lr gamma^k at call k: `initial_lr` in (0, 1], `gamma` in (0, 1].

    >>> scheduler = ExponentialLrSchedulerConfig(0.5, 0.5).init()
    >>> [scheduler.step() for _ in range(3)]
    [0.5, 0.25, 0.125]
    """

    initial_lr: float
    gamma: float

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_within("initial_lr", 1.0)
        self.require_within("gamma", 1.0)

    def value(self, k: int) -> float:
        """Return the rate of call k."""
        return self.initial_lr * self.gamma**k


class NoamLrSchedulerConfig(LrSchedulerConfig):
    """factor model_size^-1/2 min(s^-1/2, s warmup_steps^-3/2) with s = k + 1 at call k (Vaswani et al. 2017).

    It rises for `warmup_steps` (4000) calls and then falls as 1 / sqrt(s); `model_size` (512) is the model's width.

    >>> scheduler = NoamLrSchedulerConfig(1.0).init()
    >>> [round(scheduler.value(s - 1), 11) for s in (1, 4000, 8000)]
    [1.7469e-07, 0.00069877124, 0.00049410588]
    """

    factor: float
    warmup_steps: int = 4000
    model_size: int = 512

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require_number("factor", open=True)
        self.require_count("warmup_steps")
        self.require_count("model_size")

    def value(self, k: int) -> float:
        """Return the rate of call k."""
        s = k + 1
        return self.factor * self.model_size**-0.5 * min(s**-0.5, s * self.warmup_steps**-1.5)


def between(low: float, high: float, weight: float) -> float:
    """Return high where weight is 1, low where it is 0, both exactly, and what is between them between."""
    return high * weight + low * (1.0 - weight)
