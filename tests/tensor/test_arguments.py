"""Arguments of the wrong kind: the message names the operation and shows what was given, whatever that was."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt

X = rt.tensor(np.arange(12.0).reshape(3, 4), device=rt.Cpu())
V, IDS = X[0], rt.tensor([0, 1, 2], device=rt.Cpu())

CALLS = {
    "reshape": lambda bad: rt.reshape(X, bad),
    "broadcast_to": lambda bad: rt.broadcast_to(V, bad),
    "permute_dims": lambda bad: rt.permute_dims(X, bad),
    "expand_dims": lambda bad: rt.expand_dims(X, axis=bad),
    "squeeze": lambda bad: rt.squeeze(X[None], axis=[bad]),
    "moveaxis": lambda bad: rt.moveaxis(X, bad, 0),
    "swap_dims": lambda bad: rt.swap_dims(X, bad, 0),
    "flip": lambda bad: rt.flip(X, axis=[bad]),
    "roll": lambda bad: rt.roll(X, bad, axis=0),
    "tile": lambda bad: rt.tile(X, bad),
    "concat": lambda bad: rt.concat([X], axis=[bad]),
    "stack": lambda bad: rt.stack([X], axis=bad),
    "split": lambda bad: rt.split(X, bad),
    "chunk": lambda bad: rt.chunk(X, bad),
    "sum": lambda bad: rt.sum(X, axis=[bad]),
    "softmax": lambda bad: rt.softmax(X, axis=bad),
    "sort": lambda bad: rt.sort(X, axis=bad),
    "topk": lambda bad: rt.topk(X, bad),
    "diff": lambda bad: rt.diff(X, n=bad),
    "one_hot": lambda bad: rt.one_hot(IDS, bad),
    "segment_sum": lambda bad: rt.segment_sum(X, IDS, bad),
    "cross_entropy": lambda bad: rt.cross_entropy(X, IDS, ignore_index=bad),
    "einsum": lambda bad: rt.einsum(bad, X),
    "diag": lambda bad: rt.diag(X, bad),
    "tril": lambda bad: rt.tril(X, k=bad),
    "eye": lambda bad: rt.eye(3, k=bad),
    "linspace": lambda bad: rt.linspace(0, 1, bad),
}
WRONG = {
    "None": None, "a string": "a", "a float": 1.5, "a whole float": 2.0, "NumPy's float": np.float32(2.0), "complex": 1j,
    "an object": object(), "a tensor of floats": rt.tensor(1.5, device=rt.Cpu()), "a list of floats": [2.0, 6.0],
    "a tuple of floats": (4.0, 3.0), "a list of None": [None],
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_the_wrong_kind_is_named(name, wrong):
    with pytest.raises((TypeError, ValueError), match=f"^{name}: "):
        CALLS[name](WRONG[wrong])


@pytest.mark.parametrize("join", [rt.concat, rt.stack])
@pytest.mark.parametrize("wrong", [None, 3, 1.5, "xy", object()], ids=["None", "3", "1.5", "xy", "object"])
def test_joining_something_that_is_no_list_is_named(join, wrong):
    with pytest.raises(TypeError, match=f"^{join.__name__}: takes a list of tensors"):
        join(wrong)


def test_integers_of_any_library_do():
    two, axes = np.int64(2), np.array([1, 0])
    assert rt.reshape(X, np.array([4, 3])).shape == rt.reshape(X, (np.int64(4), two + 1)).shape == (4, 3)
    assert all(type(n) is int for n in rt.broadcast_to(V, (two, np.int8(4))).shape)
    assert rt.permute_dims(X, axes).shape == (4, 3) and rt.permute_dims(X, rt.tensor([1, 0], device=rt.Cpu())).shape == (4, 3)
    assert rt.expand_dims(X, axis=np.array([0, 3])).shape == (1, 3, 4, 1) and rt.expand_dims(X, axis=()).shape == (3, 4)
    assert rt.sum(X, axis=axes).shape == () and rt.softmax(X, axis=np.int32(-1)).shape == (3, 4)
    assert len(rt.chunk(X, two)) == 2 and rt.one_hot(IDS, np.uint8(3)).shape == (3, 3) and rt.diff(X, n=two).shape == (3, 2)
    assert rt.roll(X, two, axis=np.array([0])).shape == rt.tile(X, np.array([1, 1])).shape == (3, 4)
    assert [part.shape[0] for part in rt.split(X, np.array([1, 2]))] == [1, 2]


def test_differences_of_more_than_there_is_end_at_once():
    assert rt.diff(X, n=2**62).shape == (3, 0)


def test_a_range_needs_ends():
    for ends in ((0.0, float("inf")), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="^linspace: needs finite ends"):
            rt.linspace(*ends, 3)


def test_biases_of_a_feed_forward_may_be_arrays_and_lists():
    rng = np.random.default_rng(0)
    x, w1, b1, w2, b2 = (rng.normal(size=s).astype(np.float32) for s in ((3, 4), (4, 5), (5,), (5, 2), (2,)))
    tensors = [rt.tensor(a, device=rt.Cpu()) for a in (x, w1, b1, w2, b2)]
    expected = rt.feed_forward(*tensors).numpy()
    np.testing.assert_array_equal(rt.feed_forward(tensors[0], tensors[1], b1, tensors[3], b2.tolist()).numpy(), expected)


@pytest.mark.parametrize("wrong", [None, 1.5, (), "ab", ((0,),), (1, 2, 3)], ids=repr)
def test_pairs_of_axes_are_two_lists(wrong):
    x, y = rt.ones((2, 3, 4), device=rt.Cpu()), rt.ones((3, 4, 5), device=rt.Cpu())
    with pytest.raises(TypeError, match="tensordot: ax"):
        rt.tensordot(x, y, axes=wrong)


KINDS = [np.float32, np.int64, np.asarray, lambda n: rt.tensor(n, device=rt.Cpu()), lambda n: np.array([n, n])]


@pytest.mark.parametrize("kind", KINDS, ids=["float32", "int64", "array", "tensor", "two"])
def test_sizes_and_factors_of_any_library_do(kind):
    x = rt.ones((1, 1, 4, 4), device=rt.Cpu())
    assert rt.interpolate(x, scale_factor=kind(2)).shape == (1, 1, 8, 8)
    if kind is not np.float32:
        assert rt.interpolate(x, size=kind(8)).shape == (1, 1, 8, 8)
        assert rt.max_pool2d(x, kind(2), stride=kind(2)).shape == (1, 1, 2, 2)
        assert rt.conv2d(x, x, stride=kind(1), padding=kind(1), dilation=kind(1)).shape == (1, 1, 3, 3)
