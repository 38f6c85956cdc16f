"""Numbers of a captured step: arithmetic waits for the replay, and what would freeze them is refused."""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.live import Live
from ruda_tensor.recording import CaptureError

OTHERS = [2, 3.5, True, np.float32(2), np.float64(3), np.int64(3), np.uint8(2), np.float16(0.5), Live(lambda: 4.0)]


@pytest.mark.parametrize("f", [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow])
@pytest.mark.parametrize("other", OTHERS, ids=lambda x: type(x).__name__)
def test_arithmetic_is_done_at_each_reading(f: Callable, other: Any) -> None:
    cell = [0.75]
    live = Live(lambda: cell[0])
    left, right = f(live, other), f(other, live)
    plain = other.read() if isinstance(other, Live) else other
    for value in (0.75, 2.5):
        cell[0] = value
        assert left.read() == f(value, plain) and right.read() == f(plain, value)
        assert (-live).read() == -value and abs(-live).read() == value and (+live).read() == value


FREEZING: dict[str, Callable[[Any], Any]] = {
    "float": float, "int": int, "bool": bool, "round": round, "sqrt": math.sqrt, "max": lambda x: max(x, 1.0),
    "less": lambda x: x < 1, "equal": lambda x: x == 1, "unequal": lambda x: 1 != x, "floor": lambda x: x // 2,
    "rest": lambda x: 2 % x, "numpy": lambda x: np.float64(1) == x, "index": lambda x: [1, 2][x],
    "times a tensor": lambda x: rt.ones(3) * x, "a tensor times": lambda x: x * rt.ones(3), "where": lambda x: rt.where(
        rt.ones(3) > 0, x, 0.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FREEZING)
def test_what_would_freeze_a_number_is_refused(name: str) -> None:
    with pytest.raises(CaptureError):
        FREEZING[name](Live(lambda: 0.5))
