"""Joining, splitting, repeating and padding, beside the rows of tests/specs/join.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff  # noqa: F401  (installs the tape)
import ruda_tensor as rt

from ._helpers import CPU, close, gradient


@pytest.mark.parametrize("join", [rt.concat, rt.stack])
def test_joined_tensors_take_their_common_dtype(device, join):
    def one(dtype):
        return rt.ones(2, dtype=dtype, device=device)

    assert join([one(rt.int8), one(rt.uint8)]).dtype == rt.int16
    assert join([one(rt.float16), one(rt.bfloat16)]).dtype == rt.float32
    assert join([one(rt.int64), one(rt.bfloat16)]).dtype == rt.bfloat16
    assert join([one(rt.bfloat16), one(rt.bfloat16)]).dtype == rt.bfloat16
    x = one(rt.float16).require_grad()
    assert rt.sum(join([x, one(rt.float32)])).backward()[x].dtype == rt.float16


def test_joining_takes_generators_and_numpy_arrays_but_not_one_tensor():
    x = rt.tensor([1.0, 2.0])
    assert rt.concat(x * float(i) for i in range(3)).tolist() == [0, 0, 1, 2, 2, 4]
    assert rt.concat([x, np.zeros(1, np.float32)]).tolist() == [1, 2, 0]
    with pytest.raises(TypeError, match="takes a list of tensors"):
        rt.concat(x)


def test_only_the_tracked_parts_get_gradient(device):
    x, y = rt.ones(2, device=device).require_grad(), rt.ones(3, device=device)
    gradients = rt.sum(rt.concat([y, x, y, x])).backward()
    assert len(gradients) == 1
    close(gradients[x], [2, 2])


@given(st.integers(1, 9), st.integers(1, 5), st.booleans())
def test_pieces_join_to_the_whole(n, count, chunked):
    x = rt.reshape(rt.arange(2 * n), (2, n))
    parts = rt.chunk(x, count, axis=1) if chunked else rt.split(x, count, axis=1)
    assert rt.concat(parts, axis=1).tolist() == x.tolist()
    assert rt.stack(rt.unstack(x, axis=1), axis=1).tolist() == x.tolist()
    if chunked:
        assert [p.shape[1] for p in parts] == [len(p) for p in np.array_split(np.arange(n), count)]


@given(st.lists(st.integers(0, 2), max_size=3), st.lists(st.integers(0, 3), max_size=4))
def test_tile_agrees_with_numpy(shape, times):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    assert np.array_equal(rt.tile(rt.tensor(values), tuple(times)).numpy(), np.tile(values, times))


@given(st.data())
def test_pad_agrees_with_numpy(data):
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    most = {"constant": [5] * 3, "edge": [5] * 3, "reflect": [n - 1 for n in shape], "wrap": shape}[mode]
    widths = [(data.draw(st.integers(0, m)), data.draw(st.integers(0, m))) for _, m in zip(shape, most)]
    values = np.arange(np.prod(shape)).reshape(shape)
    assert np.array_equal(rt.pad(rt.tensor(values), widths, mode=mode).numpy(), np.pad(values, widths, mode))


def test_pad_with_infinities_keeps_the_gradient_clean(device):
    close(gradient(lambda x: rt.max(rt.pad(x, 1, value=-rt.inf), axis=-1), [1.0, 3.0], device), [0, 1])


def test_repeat_by_counts_on_a_device_and_a_single_count(device):
    x = rt.tensor([1.0, 2.0], device=device)
    assert rt.repeat(x, rt.tensor([0, 3], device=device)).tolist() == [2, 2, 2]
    assert rt.repeat(x, rt.tensor([2], device=device)).tolist() == [1, 1, 2, 2]
    assert rt.repeat(x, 0).shape == (0,)
    close(gradient(lambda t: rt.repeat(t, [0, 3]), [1.0, 2.0], device), [0, 3])


X = rt.zeros((2, 3), device=CPU)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rt.concat([]), ValueError, "at least one tensor"),
        (lambda: rt.concat([X, X.mT]), ValueError, "must agree on every axis but axis 0"),
        (lambda: rt.concat([X, X[0]]), ValueError, "must agree"),
        (lambda: rt.concat([X], axis=2), IndexError, "axis 2 is out of range"),
        (lambda: rt.stack([X, X[0]]), ValueError, "must be equal"),
        (lambda: rt.stack([X], axis=3), IndexError, "axis 3 is out of range"),
        (lambda: rt.concat([rt.zeros(1, dtype=rt.uint64), rt.zeros(1, dtype=rt.int8)]), TypeError, "no integer dtype"),
        (lambda: rt.unstack(X[0, 0]), IndexError, "no axes"),
        (lambda: rt.split(X, [1, 1], axis=1), ValueError, "add up to 3"),
        (lambda: rt.split(X, [4, -1], axis=1), ValueError, "add up to 3"),
        (lambda: rt.split(X, 0), ValueError, "add up to 2"),
        (lambda: rt.chunk(X, 0), ValueError, "at least 1"),
        (lambda: rt.repeat(X, [1, 2], axis=1), ValueError, "needs 3 integers"),
        (lambda: rt.repeat(X, -1), ValueError, "at least 0"),
        (lambda: rt.tile(X, (2, -1)), ValueError, ">= 0"),
        (lambda: rt.pad(X, ((1, 1),)), ValueError, "do not fit 2 axes"),
        (lambda: rt.pad(X, -1), ValueError, "at least 0"),
        (lambda: rt.pad(X, 3, mode="reflect"), ValueError, "at most 1 elements to axis 0"),
        (lambda: rt.pad(X, 1, mode="mirror"), ValueError, "mode must be"),
        (lambda: rt.pad(X, 1, value="0"), TypeError, "must be a number"),
        (lambda: rt.pad(rt.zeros(2, dtype=rt.int32), 1, value=0.5), TypeError, "does not fit"),
        (lambda: rt.pad(rt.zeros(2, dtype=rt.int8), 1, value=300), OverflowError, "does not fit int8"),
    ],
)
def test_errors_say_what_was_given_and_what_is_needed(call, error, message):
    with pytest.raises(error, match=message):
        call()
