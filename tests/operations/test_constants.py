"""Every row while a step is recorded, on a stand-in: no list, no array and no number goes between host and device."""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.ops import _attend
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


def host(x: rt.Tensor) -> np.ndarray:
    return x._data.view(np.ndarray).copy()


def mask_of(x: rt.Tensor) -> rt.Tensor:
    return x > 0


def values(place: Any) -> rt.Tensor:
    return rt.tensor(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32), device=place)


PICKING = {
    "getitem": lambda x: x[mask_of(x)],
    "getitem of rows": lambda x: x[mask_of(x)[:, 0]],
    "getitem by a list": lambda x: x[[True, False, True]],
    "slice_assign": lambda x: rt.slice_assign(x, mask_of(x), x[0, :1]),
    "slice_assign of as many": lambda x: rt.slice_assign(x, mask_of(x)[:, 0], x),
}


@pytest.mark.parametrize("name", PICKING)
def test_a_mask_that_picks_is_refused(place, name):
    x = values(place)
    with recorded(), pytest.raises(CaptureError, match=f"{name.split()[0]} by a mask.* rt.where"):
        PICKING[name](x)


ASSIGNED = {
    "a number": (mask_of, lambda x: 2.5),
    "a 0-d tensor": (mask_of, lambda x: x[0, 0]),
    "rows": (lambda x: mask_of(x)[:, 0], lambda x: x[1]),
    "a row of one": (lambda x: mask_of(x)[:, 0], lambda x: x[1, :1]),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_what_is_the_same_for_all_that_a_mask_picks_is_assigned(place, name):
    mask, value = ASSIGNED[name]

    def step(x: rt.Tensor) -> Any:
        leaf = x.require_grad()
        y = rt.slice_assign(leaf, mask(x), value(x))
        return [y], [rt.sum(y * y).backward()[leaf]]

    x = values(place)
    expected = bits(step(x))
    with recorded():
        assert bits(step(x)) == expected


def test_an_index_that_is_no_place_writes_nothing(place):
    x, wrong = values(place), rt.tensor([[1, 9, -7, -4]], device=place)
    with recorded():
        out = rt.scatter(x, wrong, 7.0, axis=1)
        assigned = rt.slice_assign(x, (slice(None), [5]), 7.0)
    expected = host(x)
    expected[0, [0, 1]] = 7.0
    assert np.array_equal(host(out), expected) and np.array_equal(host(assigned), host(x))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "uint8", "int64", "uint64", "bool"])
def test_a_number_is_filled_in_with_all_its_bits(place, dtype):
    kind = np.dtype(getattr(rt, dtype))
    numbers = [-0.0, 0.1, math.nan, -math.inf, 2.0**-24] if dtype in ("float64", "float32", "float16", "bfloat16") else [0, 1]
    numbers += {"int8": [-128], "int64": [-(2**63)], "uint8": [255], "uint64": [2**64 - 1]}.get(dtype, [])
    for value in numbers:
        with recorded():
            found = [rt.full((), value, dtype=kind, device=place), rt.tensor(value, dtype=kind, device=place)]
        assert {x._data.tobytes() for x in found} == {np.asarray(value, kind).tobytes()}
        assert all(x.dtype == kind and x.shape == () for x in found)


HOST = {
    "a list": lambda x: rt.tensor([1.0, 2.0], device=x.device),
    "an array": lambda x: rt.asarray(np.ones(2), device=x.device),
    "an index": lambda x: x[np.array([0, 1])],
    "a tensor": lambda x: rt.ones(2, device=rt.Cpu()).to_device(x.device),
}


@pytest.mark.parametrize("name", HOST)
def test_an_array_of_the_users_own_is_refused(place, name):
    x = values(place)
    with recorded(), pytest.raises(CaptureError, match="the same at every replay"):
        HOST[name](x)


def test_a_row_of_ctc_that_an_eager_step_refuses_is_nan(place):
    scores = rt.tensor(np.random.default_rng(2).standard_normal((5, 6, 3)), device=place)
    good = rt.tensor([[1, 2]] * 6, device=place), rt.tensor([5] * 6, device=place), rt.tensor([2] * 6, device=place)
    ids = rt.tensor([[1, 2], [1, 3], [0, 1], [-1, 1], [1, 2], [1, 2]], device=place)
    frames, lengths = rt.tensor([5] * 4 + [6, 5], device=place), rt.tensor([2] * 5 + [3], device=place)

    def step(*how: rt.Tensor) -> tuple[np.ndarray, np.ndarray]:
        leaf = scores.require_grad()
        losses = rt.ctc_loss(rt.log_softmax(leaf), *how, reduction="none")
        return host(losses), host(rt.sum(losses).backward()[leaf])

    expected, slope = step(*good)
    with pytest.raises(ValueError):
        step(ids, frames, lengths)
    with recorded():
        found, gradient = step(ids, frames, lengths)
    assert found[0] == expected[0] and np.isnan(found[1:]).all()
    assert np.array_equal(gradient[:, 0], slope[:, 0]) and np.isnan(gradient[:, 1:]).all()


@pytest.mark.parametrize("rows", [(2, 1, 3, 5), (1, 2, 4, 4)])
def test_attention_drops_by_the_place_of_each_replay(place, rows, monkeypatch):
    """In blocks that start anywhere in the draw."""
    monkeypatch.setattr(_attend, "DEVICE_BLOCK", 48)
    b, h, t, n = rows
    rng = np.random.default_rng(3)
    q, k, v = (rt.tensor(rng.standard_normal((b, h, m, 2)), device=place) for m in (t, n, n))

    def step() -> Any:
        leaves = [x.require_grad() for x in (q, k, v)]
        out = rt.scaled_dot_product_attention(*leaves, dropout_p=0.4)
        found = rt.sum(out * out).backward()
        return [out], [found[x] for x in leaves]

    rt.random.seed(5)
    first, second = bits(step()), bits(step())
    rt.random.seed(5)
    with recorded():
        assert [bits(step()), bits(step())] == [first, second]
    assert first != second
