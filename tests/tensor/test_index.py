"""Indexing: NumPy's rules for keys, repeated and wrong indices, writing, segments; beside tests/specs/index.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

HALVES = [rt.float16, rt.bfloat16]


@st.composite
def arrays_with_keys(draw):
    """A shape and a key that NumPy takes for it: slices, integers, None, an ellipsis, masks and integer arrays."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    common = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))  # the shape of the index arrays
    key, axis = [], 0
    bound = st.none() | st.integers(-5, 5)
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["stop", "slice", "integer", "array", "mask", "none", "flag"]))
        if kind == "stop":
            break
        if kind == "none":
            key.append(None)
            continue
        if kind == "flag" and not any(isinstance(k, np.ndarray) for k in key):
            key.append(np.array(draw(st.booleans())))
            continue
        if kind == "slice":
            key.append(slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, -1, -2]))))
        elif kind == "mask" and not any(isinstance(k, np.ndarray) for k in key):
            rank = draw(st.integers(1, min(2, len(shape) - axis)))
            size = int(np.prod(shape[axis : axis + rank]))
            mask = np.zeros(size, bool)
            mask[: draw(st.integers(0, size))] = True
            key.append(mask[::-1].reshape(shape[axis : axis + rank]))
            axis += rank - 1
        elif kind == "array":
            size = int(np.prod(common))
            values = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            key.append(np.array(values, np.int64).reshape(common))
        else:
            key.append(draw(st.integers(-n, n - 1)))
        axis += 1
    if draw(st.booleans()):
        key.append(Ellipsis)
    return shape, tuple(key)


@given(arrays_with_keys())
def test_getitem_and_its_gradient_follow_numpy(case):
    shape, key = case
    values = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    x = rt.tensor(values).require_grad()
    try:
        expected = values[key]
    except IndexError:  # arrays and masks that do not broadcast together
        with pytest.raises(IndexError, match="do not broadcast"):
            x[key]
        return
    found = x[key]
    assert found.shape == expected.shape and np.array_equal(found.numpy(), expected)
    weights = np.cos(np.arange(expected.size)).reshape(expected.shape)
    wanted = np.zeros(shape)
    np.add.at(wanted, key, weights)
    close(rt.sum(found * rt.tensor(weights)).backward()[x], wanted, rtol=1e-12, atol=1e-12)


@given(arrays_with_keys(), st.booleans())
def test_slice_assign_and_its_gradients_follow_numpy(case, stretched):
    shape, key = case
    values = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    try:
        chosen = values[key]
    except IndexError:
        return
    update = -np.arange(1.0, 1 + chosen.size).reshape(chosen.shape)
    update = update[:1] if stretched and chosen.ndim else update
    if update.size == 0 and chosen.size:
        return
    wanted = values.copy()
    wanted[key] = update
    x, y = rt.tensor(values).require_grad(), rt.tensor(np.asarray(update)).require_grad()
    found = rt.slice_assign(x, key, y)
    assert np.array_equal(found.numpy(), wanted)
    weights = np.cos(np.arange(values.size)).reshape(shape)
    gradients = rt.sum(found * rt.tensor(weights)).backward()
    kept = wanted == values
    close(gradients[x], np.where(kept, weights, 0), rtol=1e-12, atol=1e-12)
    winners = np.zeros(update.shape)  # every written number is unique, so each can be found again
    for position in np.ndindex(update.shape):
        winners[position] = weights[wanted == update[position]].sum()
    close(gradients[y], winners, rtol=1e-12, atol=1e-12)


def test_INDEX_01_an_element_picked_twice_gets_both_gradients(device):
    scale = rt.tensor([1.0, 10.0, 100.0, 1000.0], device=device)
    close(gradient(lambda x: x[[1, 1, 3, 1]] * scale, [1, 2, 3, 4], device), [0, 1011, 0, 100])


def test_INDEX_02_of_values_written_to_one_place_the_last_wins_and_gets_the_gradient(device):
    z = rt.zeros((3, 2), device=device).require_grad()
    y = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=device).require_grad()
    out = rt.slice_assign(z, [0, 0], y)
    close(out, [[3, 4], [0, 0], [0, 0]])
    gradients = rt.sum(out).backward()
    close(gradients[y], [[0, 0], [1, 1]])
    close(gradients[z], [[0, 0], [1, 1], [1, 1]])
    many = rt.arange(5000, dtype=rt.float32, device=device)
    places = rt.astype(many, rt.int64) % 7
    close(rt.slice_assign(rt.zeros(7, device=device), places, many), [4998, 4999, 4993, 4994, 4995, 4996, 4997])
    close(rt.scatter(rt.zeros(7, device=device), places, many), [4998, 4999, 4993, 4994, 4995, 4996, 4997])


def test_INDEX_04_broadcast_index_arrays_with_repeats(device):
    x = np.arange(12.0).reshape(3, 4)
    wanted = [[0, 2, 0, 1], [0, 0, 0, 0], [0, 2, 0, 1]]
    close(gradient(lambda t: t[[[0], [2]], [[1, 1, 3]]], x, device), wanted)
    close(gradient(lambda t: t[np.array([True, False, True])][:, [1, 1, 3]], x, device), wanted)
    close(gradient(lambda t: t[::2, [1, 1, 3]], x, device), wanted)
    close(gradient(lambda t: t[:, [1, 1, 3]][rt.tensor([True, False, True], device=device)], x, device), wanted)


def test_INDEX_05_negative_segment_ids_are_dropped_in_value_and_gradient(device):
    ids = rt.tensor([0, -1, 0], device=device)
    x = rt.tensor([1.0, 2.0, 4.0], device=device).require_grad()
    out = rt.segment_sum(x, ids, 1)
    assert out.tolist() == [5]
    close(rt.sum(out).backward()[x], [1, 0, 1])
    with pytest.raises(IndexError, match="id 1 is out of range for 1 segments"):
        rt.segment_sum(x, rt.tensor([0, 1, 0], device=device), 1)
    none = rt.zeros(0, dtype=rt.int64, device=device)
    assert rt.segment_sum(rt.zeros((0, 2), device=device), none, 3).shape == (3, 2)


@pytest.mark.parametrize("wrong", [5, -6, 2**31])
def test_INDEX_08_ids_outside_the_table_raise_and_later_calls_work(device, wrong):
    table = rt.reshape(rt.arange(15, dtype=rt.float32, device=device), (5, 3))
    ids = rt.tensor([0, wrong], dtype=rt.int64, device=device)
    for pick in (
        lambda: rt.take(table, ids, axis=0), lambda: table[ids], lambda: table[:, 0][ids], lambda: table[wrong],
        lambda: table[wrong, [0]], lambda: rt.gather(table[:, 0], ids), lambda: rt.slice_assign(table, ids, 0.0),
        lambda: rt.scatter_add(table[:, 0], ids, 1.0),
        lambda: rt.take_along_axis(table[:, 0], ids),
    ):  # fmt: skip
        with pytest.raises(IndexError, match="out of"):
            pick()
    for ids in (wrong, -1):
        with pytest.raises(IndexError, match="must lie in 0 to 4"):
            rt.one_hot(rt.tensor([ids], dtype=rt.int64, device=device), 5)
    assert rt.take(table, rt.tensor([4, -5], device=device), axis=0).tolist() == [[12, 13, 14], [0, 1, 2]]


@pytest.mark.parametrize("dtype", [rt.int8, rt.uint8, rt.int32, rt.uint64, rt.int64])
def test_every_integer_dtype_is_an_index(device, dtype):
    x = rt.tensor([10.0, 20.0, 30.0], device=device)
    i = rt.tensor([2, 0], dtype=dtype, device=device)
    assert x[i].tolist() == rt.take(x, i).tolist() == rt.gather(x, i).tolist() == [30, 10]
    one = rt.tensor(1, dtype=dtype, device=device)
    assert x[one].item() == 20 and x[one].shape == () and x[one:].tolist() == [20, 30]
    assert rt.one_hot(i, 3).tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_added_in_float32_and_rounded_once(device, dtype):
    ids = rt.zeros(4096, dtype=rt.int64, device=device)
    ones = rt.ones(4096, dtype=dtype, device=device)
    for total in (
        rt.segment_sum(ones, ids, 2)[0], rt.scatter_add(rt.zeros(2, dtype=dtype, device=device), ids, ones)[0],
        rt.segment_sum(rt.broadcast_to(ones[:, None], (4096, 3)), ids, 1)[0, 1],
    ):  # fmt: skip
        assert total.dtype == dtype and total.item() == 4096  # adding ones in half precision stops at 2048 or 256
    x = rt.ones(3, dtype=dtype, device=device).require_grad()
    found = rt.sum(rt.astype(x[ids], rt.float32)).backward()[x]
    assert found.dtype == dtype and found.tolist() == [4096, 0, 0]


@pytest.mark.parametrize("shape", [(3000, 40), (3000, 1), (40, 3)])
@pytest.mark.parametrize("size", [5, 2000])
def test_rows_are_added_exactly_and_in_the_same_order_every_time(device, shape, size):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, size, shape[0])
    i = rt.tensor(ids, device=device)
    whole = rng.integers(-99, 99, shape)  # sums of whole numbers are exact in float32, in any order
    expected = np.zeros((size, shape[1]))
    np.add.at(expected, ids, whole)
    assert np.array_equal(rt.segment_sum(rt.tensor(whole, dtype=rt.float32, device=device), i, size).numpy(), expected)
    x = rt.tensor(rng.standard_normal(shape), dtype=rt.float32, device=device)
    first = rt.segment_sum(x, i, size).numpy()
    for _ in range(3):
        assert np.array_equal(rt.segment_sum(x, i, size).numpy(), first)


def test_picked_infinities_and_nans_stay_in_their_lanes(device):
    g = rt.tensor([rt.inf, 1.0, rt.nan, 2.0], device=device)
    found = gradient(lambda x: x[[0, 1, 2, 1]] * g, [1.0, 1.0, 1.0, 1.0], device)
    assert found[0] == np.inf and found[1] == 3 and np.isnan(found[2]) and found[3] == 0


def test_gather_and_scatter_add_are_adjoint(device):
    rng = np.random.default_rng(0)
    i = rt.tensor(rng.integers(-4, 4, (3, 5)), device=device)
    x, y = (rt.tensor(rng.standard_normal(s), device=device) for s in ((3, 4), (3, 5)))
    left = rt.sum(rt.gather(x, i, axis=1) * y)
    right = rt.sum(x * rt.scatter_add(rt.zeros((3, 4), dtype=rt.float64, device=device), i, y, axis=1))
    close(left, right.numpy(), rtol=1e-12)


def test_gather_and_scatter_agree_with_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, values = rng.standard_normal((3, 4, 2)), rng.standard_normal((2, 3, 2))
    for axis in range(3):
        i = rng.integers(0, x.shape[axis], (2, 3, 2))
        a, b, c = (torch.from_numpy(t) for t in (x, i, values))
        ours = rt.tensor(x), rt.tensor(i), rt.tensor(values)
        assert np.array_equal(rt.gather(*ours[:2], axis=axis).numpy(), torch.gather(a, axis, b).numpy())
        assert np.array_equal(rt.scatter_add(*ours, axis=axis).numpy(), torch.scatter_add(a, axis, b, c).numpy())


def test_second_derivatives_run_through_repeated_indices(device):
    scale = rt.tensor([1.0, 2.0, 3.0], dtype=rt.float64, device=device)
    x = rt.tensor([0.5, -1.5], dtype=rt.float64, device=device)
    hessian = ra.hessian(lambda t: rt.sum(t[[0, 1, 0]] * t[[1, 1, 1]] * scale))(x)
    close(hessian, [[0, 4], [4, 4]], rtol=1e-12)


def test_views_are_views_and_arrays_of_others_are_copied():
    x = rt.tensor(np.arange(6.0)).require_grad()
    assert np.shares_memory(x[1:-1:2]._data, x._data)
    mine = np.array([0, 1])
    y = x[mine]
    mine[:] = 5
    close(rt.sum(y).backward()[x], [1, 1, 0, 0, 0, 0])


def test_an_assignment_leaves_its_inputs_alone(device):
    x, key = rt.zeros(4, device=device), rt.tensor([1, 1], device=device)
    for out in (
        rt.slice_assign(x, slice(1, 3), 5.0), rt.slice_assign(x, key, 5.0), rt.scatter(x, key, 5.0),
        rt.scatter_add(x, key, 5.0), x.slice_assign(..., 5),
    ):  # fmt: skip
        assert rt.sum(out).item() > 0
    assert x.tolist() == [0, 0, 0, 0]
    with pytest.raises(TypeError, match="slice_assign"):
        x[0] = 1.0


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (rt.float64, [0.1], 0.1), (rt.float64, 0.1, 0.1), (rt.float32, np.array([0.1]), float(np.float32(0.1))),
        (rt.int8, 100, 100), (rt.int8, [100], 100), (rt.bool, True, True), (rt.float32, True, 1.0),
        (rt.int32, False, 0),
        (rt.float16, rt.tensor([2], dtype=rt.int32), 2.0), (rt.int64, rt.tensor([2], dtype=rt.uint8), 2),
    ],
)  # fmt: skip
def test_what_is_written_takes_the_dtype_of_the_tensor(dtype, value, expected):
    out = rt.slice_assign(rt.zeros(2, dtype=dtype), slice(0, 1), value)
    assert out.dtype == dtype and out.tolist() == [expected, 0]


X = rt.zeros((2, 3), device=CPU)
I = rt.tensor([0, 1], device=CPU)  # noqa: E741


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: X[2], IndexError, r"index 2 is out of bounds.*shape is \(2, 3\)"),
        (lambda: X[0, 0, 0], IndexError, "too many indices|indices for"),
        (lambda: X[0, [0], 0], IndexError, "3 indices for a tensor of shape"),
        (lambda: X[..., [0], ...], IndexError, "only one"),
        (lambda: X[1.0], TypeError, "is no index"),
        (lambda: X["a"], TypeError, "is no index"),
        (lambda: X[rt.ones(2)], TypeError, "integers or bools, not float32"),
        (lambda: X[[0.5]], TypeError, "integers or bools"),
        (lambda: X[[[0], [1, 2]]], TypeError, "rectangle"),
        (lambda: X[np.ones(3, bool)], IndexError, r"a mask of shape \(3,\) does not fit"),
        (lambda: X[[0, 1], [0, 1, 2]], IndexError, "do not broadcast"),
        (lambda: rt.take(X, I), ValueError, "needs an axis"),
        (lambda: rt.take(X, rt.ones(2), axis=0), TypeError, "indices must be integers"),
        (lambda: rt.take(rt.zeros(0), [0]), IndexError, "the axis is empty"),
        (lambda: rt.gather(X, I), ValueError, "as many axes"),
        (lambda: rt.gather(X, rt.zeros((3, 1), dtype=rt.int64)), ValueError, "reach beyond"),
        (lambda: rt.take_along_axis(X, rt.zeros((3, 1), dtype=rt.int64)), ValueError, "do not broadcast"),
        (lambda: rt.scatter(X, rt.zeros((2, 2), dtype=rt.int64), rt.zeros((3, 2))), ValueError, "do not broadcast"),
        (lambda: rt.scatter_add(X == 0, rt.zeros((2, 2), dtype=rt.int64), True), TypeError, "bools cannot be added"),
        (lambda: rt.slice_assign(X, 0, rt.zeros(2)), ValueError, r"values of shape \(2,\) do not broadcast"),
        (lambda: rt.slice_assign(X, [0], rt.zeros(2)), ValueError, "do not broadcast"),
        (lambda: rt.slice_assign(X, 3, 0.0), IndexError, "slice_assign: index 3"),
        (lambda: rt.slice_assign(I, 0, 0.5), TypeError, "float values do not fit a tensor of int32"),
        (lambda: rt.slice_assign(I, 0, [0.5]), TypeError, "do not fit"),
        (lambda: rt.slice_assign(I, 0, rt.tensor(1, dtype=rt.int64)), TypeError, "int64 values do not fit"),
        (lambda: rt.slice_assign(rt.astype(I, rt.int8), 0, 300), OverflowError, "does not fit int8"),
        (lambda: rt.one_hot(rt.ones(2), 2), TypeError, "must be integers"),
        (lambda: rt.segment_sum(X, [0], 2), ValueError, "one id for each row"),
        (lambda: rt.segment_sum(X, rt.ones(2), 2), TypeError, "must be integers"),
    ],
)
def test_errors_say_what_was_given_and_what_is_needed(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.gpu
def test_indices_on_another_device_are_refused():
    with pytest.raises(ValueError, match="move them"):
        rt.zeros(3, device=rt.Cuda(0))[I]


class _FakeCupy:
    """NumPy under CuPy's name, with the kernel of kernels/segments.py as a loop: tests what the host prepares."""

    __name__ = "cupy"

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def argsort(x, **kwargs):
        return np.argsort(x, kind="stable")


def _loop(rows, order, start, width, out):
    assert rows.flags.c_contiguous and out.flags.c_contiguous and width == rows.shape[1]
    for s in range(len(out)):
        for r in range(start[s], start[s + 1]):
            out[s] += rows[order[r]]


@pytest.mark.parametrize(("n", "size"), [(7, 3), (1500, 1), (1500, 2), (1024, 3), (20, 40)])
def test_segments_on_a_gpu_are_cut_and_put_together_right(monkeypatch, n, size):
    from ruda_tensor.kernels import segments

    monkeypatch.setattr(segments.backend, "cupy", _FakeCupy)
    monkeypatch.setattr(segments, "_kernel", lambda: _loop)
    rng = np.random.default_rng(0)
    rows, ids = rng.integers(-9, 9, (n, 2)), rng.integers(0, size, n)
    start = rng.integers(-9, 9, (size, 2))
    expected = start.copy()
    np.add.at(expected, ids, rows)
    assert np.array_equal(segments.add_rows(rows, ids, start.copy()), expected)
