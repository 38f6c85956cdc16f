"""Shape operations: views, layouts, empty and 0-d tensors, and errors, beside the rows of tests/specs/shape.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff  # noqa: F401  (installs the tape)
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

DTYPES = [rt.bool, rt.int8, rt.uint64, rt.float16, rt.bfloat16, rt.float32, rt.float64]
MOVES = {
    "reshape": lambda x: rt.reshape(x, (3, 8)),
    "flatten": lambda x: rt.flatten(x),
    "broadcast_to": lambda x: rt.broadcast_to(x, (2, 4, 6)),
    "expand_dims": lambda x: rt.expand_dims(x, axis=1),
    "squeeze": lambda x: rt.squeeze(x),
    "permute_dims": lambda x: rt.permute_dims(x, (1, 0)),
    "matrix_transpose": lambda x: x.mT,
    "flip": lambda x: rt.flip(x, axis=0),
    "roll": lambda x: rt.roll(x, 1, axis=0),
    "sliding_windows": lambda x: rt.sliding_windows(x, 3, axis=0),
    "concat": lambda x: rt.concat([x, x]),
    "stack": lambda x: rt.stack([x, x], axis=1),
    "tile": lambda x: rt.tile(x, (2, 2)),
    "repeat": lambda x: rt.repeat(x, 2, axis=0),
    "pad": lambda x: rt.pad(x, 1),
    "take": lambda x: rt.take(x, [2, 0], axis=0),
    "getitem": lambda x: x[1:, [0, 2]],
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_data_movement_keeps_every_dtype(device, name, dtype):
    values = np.arange(24).reshape(4, 6) % 3
    expected = MOVES[name](rt.tensor(values, dtype=rt.int64))
    found = MOVES[name](rt.astype(rt.tensor(values, device=device), dtype))
    assert found.dtype == dtype and found.device == device and found.shape == expected.shape
    wanted = expected.numpy() != 0 if dtype == rt.bool else expected.numpy()
    assert np.array_equal(rt.astype(found, rt.int64).numpy(), wanted)


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("turned", [False, True])
def test_SHAPE_09_views_with_negative_strides_give_the_bits_of_a_copy(device, name, turned):
    base = rt.reshape(rt.tensor(np.random.default_rng(0).standard_normal(48), dtype=rt.float32, device=device), (4, 12))
    before = base.numpy()
    view = base[::-1, ::-2]
    if turned:
        view = rt.reshape(view, (6, 4)).mT
    f = MOVES[name]
    assert np.array_equal(f(view).numpy(), f(view.copy()).numpy())
    assert np.array_equal(base.numpy(), before)
    weights = [f(view), f(view.copy())]
    found, expected = [gradient(lambda x, w=w: f(x) * w, view.numpy(), device) for w in weights]
    assert np.array_equal(found, expected)


def test_SHAPE_01_a_gradient_has_the_shape_of_its_input(device):
    a = rt.tensor([[1.0], [2.0], [3.0], [4.0]], device=device).require_grad()
    b = rt.tensor([[1.0, 2.0, 3.0]], device=device).require_grad()
    gradients = rt.sum(rt.square(a * b)).backward()
    close(gradients[a], [[28], [56], [84], [112]])
    close(gradients[b], [[60, 120, 180]])
    for shape in ((1,), (), (1, 1, 1)):
        a = rt.ones(shape, device=device).require_grad()
        y = a * rt.ones((5, 4), device=device)
        gradient_of_a = rt.sum(y).backward()[a]
        assert gradient_of_a.shape == shape
        assert gradient_of_a.item() == 20


@pytest.mark.parametrize("shape", [(4, 1), (), (1, 1)])
def test_SHAPE_02_size_1_against_size_0(device, shape):
    b = rt.ones(shape, device=device).require_grad()
    loss = rt.sum(rt.zeros((4, 0), device=device) + b)
    assert loss.item() == 0
    found = loss.backward()[b]
    assert found.shape == shape and not found.numpy().any()


def test_SHAPE_11_overlapping_windows_add(device):
    x = np.arange(6.0)
    close(gradient(lambda t: rt.sliding_windows(t, 4), x, device), [1, 2, 3, 3, 2, 1])
    close(gradient(lambda t: rt.square(rt.sliding_windows(t, 4)), x, device), [0, 4, 12, 18, 16, 10])


def test_overlapping_windows_of_halves_are_summed_in_float32(device):
    x = rt.ones(3000, dtype=rt.bfloat16, device=device).require_grad()
    found = rt.sum(rt.sliding_windows(x, 1500)).backward()[x]
    assert found.dtype == rt.bfloat16 and rt.max(rt.astype(found, rt.float32)).item() == 1504  # 1500 rounded once


def test_views_share_memory_and_reshape_says_when_it_cannot():
    x = rt.zeros((4, 6))
    for view in (x.mT, x[::2], rt.reshape(x, 24), rt.broadcast_to(x, (2, 4, 6)), rt.flip(x), rt.sliding_windows(x, 3)):
        assert np.shares_memory(view._data, x._data)
    assert not np.shares_memory(rt.reshape(x, (24,), copy=True)._data, x._data)
    assert np.shares_memory(rt.reshape(x, (24,), copy=False)._data, x._data)
    with pytest.raises(ValueError, match="leave out copy=False"):
        rt.reshape(x.mT, (24,), copy=False)


@given(st.data())
def test_moveaxis_permute_roll_and_flip_agree_with_numpy(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=4)))
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    x, axes = rt.tensor(values), list(range(len(shape)))
    order = data.draw(st.permutations(axes))
    assert np.array_equal(rt.permute_dims(x, order).numpy(), values.transpose(order))
    assert np.array_equal(rt.transpose(x).numpy(), values.T)
    picked = order[: data.draw(st.integers(0, len(axes)))]
    targets = data.draw(st.permutations(axes))[: len(picked)]
    assert np.array_equal(rt.moveaxis(x, picked, targets).numpy(), np.moveaxis(values, picked, targets))
    assert np.array_equal(rt.flip(x, axis=picked).numpy(), np.flip(values, picked))
    shift = data.draw(st.integers(-7, 7))
    assert np.array_equal(rt.roll(x, shift).numpy(), np.roll(values, shift))
    if picked:
        assert np.array_equal(rt.roll(x, shift, axis=picked).numpy(), np.roll(values, shift, picked))


@given(st.lists(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3), min_size=1, max_size=4))
def test_broadcast_arrays_agree_with_numpy(shapes):
    arrays = [np.zeros(shape) for shape in shapes]
    try:
        expected = np.broadcast_shapes(*[a.shape for a in arrays])
    except ValueError:
        with pytest.raises(ValueError, match="do not broadcast"):
            rt.broadcast_arrays(*[rt.tensor(a) for a in arrays])
    else:
        assert [x.shape for x in rt.broadcast_arrays(*[rt.tensor(a) for a in arrays])] == [expected] * len(arrays)


X = rt.zeros((2, 3), device=CPU)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rt.reshape(X, (4, 2)), ValueError, r"reshape: \(2, 3\) has 6 elements and cannot become \(4, 2\)"),
        (lambda: rt.reshape(X, (-1, -1)), ValueError, "one of them may be -1"),
        (lambda: rt.reshape(X, (-1, 4)), ValueError, "must multiply to 6"),
        (lambda: rt.reshape(X, (-2, -3)), ValueError, "must multiply to 6"),
        (lambda: rt.reshape(X, "ab"), TypeError, "a shape is an integer or several"),
        (lambda: rt.broadcast_to(X, (3, 3)), ValueError, "only axes of size 1"),
        (lambda: rt.broadcast_to(X, (3,)), ValueError, "does not stretch"),
        (lambda: rt.broadcast_arrays(X, X.mT), ValueError, r"axis -2 has 2 and 3"),
        (lambda: rt.expand_dims(X, axis=4), IndexError, "axis 4 is out of range"),
        (lambda: rt.expand_dims(X, axis=(0, 0)), ValueError, "twice"),
        (lambda: rt.squeeze(X, axis=0), ValueError, "has size 2, not 1"),
        (lambda: rt.permute_dims(X, (0,)), ValueError, "each of the 2 axes"),
        (lambda: rt.permute_dims(X, (0, 0)), ValueError, "twice"),
        (lambda: rt.matrix_transpose(X[0]), ValueError, "at least 2 axes"),
        (lambda: X[0].T, ValueError, "needs 2 axes"),
        (lambda: rt.moveaxis(X, (0, 1), 0), ValueError, "as many of each"),
        (lambda: rt.flatten(X, 1, 0), ValueError, "swap the two"),
        (lambda: rt.flip(X, axis=2), IndexError, "axis 2 is out of range"),
        (lambda: rt.roll(X, (1, 2, 3), axis=(0, 1)), ValueError, "one for each axis"),
        (lambda: rt.sliding_windows(X, 4), ValueError, "size <= 3"),
        (lambda: rt.sliding_windows(X, 2, step=0), ValueError, "step >= 1"),
        (lambda: rt.sliding_windows(X, (2, 2)), ValueError, "one per axis"),
    ],
)
def test_errors_say_what_was_given_and_what_is_needed(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_0_d_and_empty_tensors_pass_through():
    zero = rt.tensor(3.0)
    for y in (rt.flip(zero), rt.roll(zero, 2), rt.transpose(zero), rt.squeeze(zero), rt.broadcast_to(zero, ())):
        assert y.shape == () and y.item() == 3
    empty = rt.zeros((0, 3))
    assert rt.flip(empty).shape == rt.roll(empty, 1).shape == (0, 3)
    assert rt.flatten(empty).shape == (0,) and empty.mT.shape == (3, 0)
    assert gradient(lambda x: rt.reshape(x, (3, 0)), np.zeros((0, 3))).shape == (0, 3)
