"""Every row while a step is recorded, on a stand-in: no list, no array and no number goes between host and device."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.recording import CaptureError

from ._captured import READS, made
from ._rows import ROWS, arrays_of, each, tensors
from ._strict import recorded, strict_device


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Any:
    with strict_device(monkeypatch) as device:
        yield device


def bits(found: Any) -> list[Any]:
    """What a step returned, as bytes."""
    return [None if y is None else y._data.tobytes() for part in found for y in part]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@each(ROWS)
def test_a_row_takes_nothing_from_the_host_while_recorded(place, row, dtype):
    if dtype == "bfloat16" and not row.half:
        dtype = "float64"
    inputs = tensors(arrays_of(row), place, getattr(rt, dtype))
    step = made(row, inputs)
    rt.random.seed(3)
    expected = bits(step(*inputs))
    rt.random.seed(3)
    with recorded():
        if str(row) in READS:
            with pytest.raises(CaptureError, match=READS[str(row)]):
                step(*inputs)
        else:
            assert bits(step(*inputs)) == expected
