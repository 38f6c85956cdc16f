"""Matrix products: shapes, layouts, half types, integers and errors, beside the rows of tests/specs/matmul.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close

HALVES = [rt.float16, rt.bfloat16]


def normal(*shape, dtype=rt.float32, device=CPU, seed=0):
    return rt.tensor(np.random.default_rng(seed).standard_normal(shape), dtype=dtype, device=device)


@given(st.data())
def test_shapes_follow_numpy(data):
    m, k, n = (data.draw(st.integers(0, 3)) for _ in range(3))
    batch = data.draw(st.lists(st.integers(0, 3), max_size=2))
    first = tuple(data.draw(st.sampled_from([1, b])) for b in batch[data.draw(st.integers(0, len(batch))) :])
    second = tuple(data.draw(st.sampled_from([1, b])) for b in batch)
    x = (k,) if not first and data.draw(st.booleans()) else (*first, m, k)
    y = (k,) if not second and data.draw(st.booleans()) else (*second, k, n)
    a, b = (np.arange(np.prod(s)).reshape(s) % 5 - 2.0 for s in (x, y))
    expected = a @ b
    x, y = rt.tensor(a).require_grad(), rt.tensor(b).require_grad()
    out = x @ y
    assert out.shape == expected.shape and np.array_equal(out.numpy(), expected)
    gradients = rt.sum(out).backward()
    assert gradients[x].shape == a.shape and gradients[y].shape == b.shape


def test_SHAPE_05_vectors(device):
    a = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=device).require_grad()
    b = rt.tensor([5.0, 6.0], device=device).require_grad()
    weight = rt.tensor([1.0, 10.0], device=device)
    gradients = rt.sum((a @ b) * weight).backward()
    close(gradients[a], [[5, 6], [50, 60]])
    close(gradients[b], [31, 42])
    gradients = rt.sum((b @ a) * weight).backward()
    close(gradients[a], [[5, 50], [6, 60]])
    close(gradients[b], [21, 43])
    c = rt.tensor([7.0, 8.0], device=device).require_grad()
    out = b @ c
    assert out.shape == () and out.item() == 83
    gradients = out.backward()
    close(gradients[b], [7, 8])
    close(gradients[c], [5, 6])


def test_SHAPE_06_a_weight_shared_by_a_batch(device):
    a = rt.tensor([[[1.0, 0.0], [2.0, 1.0]], [[0.0, 3.0], [1.0, 1.0]]], device=device)
    b = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=device).require_grad()
    close(rt.sum(a @ b).backward()[b], [[4, 4], [5, 5]])
    a, b = normal(2, 1, 2, 2, device=device).require_grad(), normal(3, 2, 2, device=device).require_grad()
    gradients = rt.sum(a @ b).backward()
    assert gradients[a].shape == (2, 1, 2, 2) and gradients[b].shape == (3, 2, 2)
    close(gradients[b], np.broadcast_to(a.numpy().sum((0, 1, 2))[:, None], (3, 2, 2)), rtol=1e-5)


def test_a_weight_gradient_over_a_batch_is_one_matrix_product(monkeypatch):
    calls, multiply = [], np.matmul
    monkeypatch.setattr(np, "matmul", lambda x, y: calls.append((x.shape, y.shape)) or multiply(x, y))
    x, w, b = (normal(*s).require_grad() for s in ((8, 16, 4), (4, 5), (5,)))
    for out in (x @ w, rt.linear(x, w, b)):
        calls.clear()
        rt.sum(out).backward()
        assert sorted(calls) == [((4, 128), (128, 5)), ((128, 5), (5, 4))]


def test_SHAPE_07_a_contraction_over_nothing_keeps_its_history(device):
    a, b = rt.zeros((2, 0), device=device).require_grad(), rt.zeros((0, 3), device=device).require_grad()
    c = a @ b
    assert c.shape == (2, 3) and not c.numpy().any()
    loss = rt.sum(rt.square(c + 1.0))
    assert loss.item() == 6
    gradients = loss.backward()
    assert gradients[a].shape == (2, 0) and gradients[b].shape == (0, 3)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "shapes", [((5, 300), (300, 4)), ((2, 5, 300), (2, 300, 4)), ((2, 5, 300), (300, 4)), ((300,), (300,))]
)
def test_halves_are_multiplied_in_float32_and_rounded_once(device, dtype, shapes):
    x, y = (normal(*s, dtype=dtype, device=device, seed=i) for i, s in enumerate(shapes))
    wide = [t.detach().numpy().astype(np.float64) for t in (x, y)]
    expected = np.matmul(*wide)
    out = x @ y
    assert out.dtype == dtype
    step = 2.0 ** (-11 if dtype == rt.float16 else -8)  # half a unit in the last place, and float32's error in the sum
    np.testing.assert_allclose(out.numpy().astype(np.float64), expected, rtol=step * 1.01, atol=1e-4)
    x, y = x.require_grad(), y.require_grad()
    gradients = rt.sum(x @ y).backward()
    assert gradients[x].dtype == gradients[y].dtype == dtype


@pytest.mark.parametrize("dtype", HALVES)
def test_linear_rounds_a_half_once_after_the_bias(device, dtype):
    x, w = rt.ones((1, 1), dtype=dtype, device=device), rt.ones((1, 1), dtype=dtype, device=device)
    step = 2.0 ** (-10 if dtype == rt.float16 else -7)
    x, w = x * (1 + step), w * (1 + step)
    b = rt.tensor([-1 - 2 * step], dtype=dtype, device=device)
    assert rt.linear(x, w, b).item() == step**2  # the product rounded to half first would leave 0


def test_a_bias_gradient_over_many_rows_is_summed_in_float32(device):
    b = rt.zeros(3, dtype=rt.float16, device=device).require_grad()
    x, w = rt.zeros((2500, 2), dtype=rt.float16, device=device), rt.zeros((2, 3), dtype=rt.float16, device=device)
    assert rt.sum(rt.linear(x, w, b)).backward()[b].tolist() == [2500, 2500, 2500]


def test_linear_is_matmul_and_add_with_their_gradients(device):
    for shape in ((4, 3), (2, 4, 3), (3,), (0, 3)):
        values = normal(*shape, device=device), normal(3, 5, device=device, seed=1), normal(5, device=device, seed=2)
        found = ra.value_and_grad(lambda *t: rt.sum(rt.square(rt.linear(*t))), argnums=(0, 1, 2))(*values)
        expected = ra.value_and_grad(lambda x, w, b: rt.sum(rt.square(x @ w + b)), argnums=(0, 1, 2))(*values)
        close(found[0], expected[0].numpy(), rtol=1e-5)
        for a, b in zip(found[1], expected[1]):
            close(a, b.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [rt.int8, rt.uint8, rt.int32, rt.int64])
def test_integers_are_multiplied_exactly_in_their_dtype(device, dtype):
    x, y = rt.tensor([[1, 2], [3, 4]], dtype=dtype, device=device), rt.tensor([5, 6], dtype=dtype, device=device)
    assert (x @ y).dtype == dtype and (x @ y).tolist() == [17, 39]
    batch = rt.stack([x, x])
    assert (batch @ batch).tolist() == [[[7, 10], [15, 22]]] * 2
    assert rt.vecdot(y, y).item() == 61 and rt.outer(y, y).tolist() == [[25, 30], [30, 36]]
    assert (x @ rt.tensor([0.5, 0.5], device=device)).dtype == rt.float32


@pytest.mark.parametrize(
    "key", [(slice(None, None, -1),), (slice(None), slice(None, None, -2)), (slice(None, None, 3),)]
)
def test_SHAPE_09_strided_operands_give_the_bits_of_copies(device, key):
    x = normal(60, 60, device=device)[key]
    y = normal(x.shape[1], 17, device=device)[:, ::-1]
    for a, b in ((x, y), (rt.stack([x, x])[::-1], y), (rt.broadcast_to(x[0, 0], x.shape), y)):
        assert np.array_equal((a @ b).numpy(), (a.copy() @ b.copy()).numpy())


def test_a_product_with_numpy_arrays_and_of_mixed_floats():
    x = rt.ones((2, 2))
    assert (x @ np.eye(2, dtype=np.float32)).tolist() == (np.eye(2, dtype=np.float32) @ x).tolist() == [[1, 1], [1, 1]]
    assert (x @ rt.ones((2, 2), dtype=rt.float64)).dtype == rt.float64
    assert (rt.ones((1, 2), dtype=rt.float16) @ rt.ones((2, 1), dtype=rt.bfloat16)).dtype == rt.float32


def test_infinities_and_overflow_are_results_and_no_warnings(device):
    x = rt.tensor([[rt.inf, 1.0], [1.0, 2.0]], device=device)
    y = rt.tensor([[0.0, 1.0], [1.0, -rt.inf]], device=device)
    expected = [[rt.nan, rt.nan], [2, -rt.inf]]
    close(x @ y, expected)
    close(rt.einsum("ij,jk->ik", x, y), expected)
    close(rt.linear(x, y, rt.zeros(2, device=device)), expected)
    close(rt.vecdot(x, y.mT), [rt.nan, -rt.inf])
    large = rt.full((1, 1), 300.0, dtype=rt.float16, device=device)
    assert (large @ large).item() == rt.linear(large, large, large[0]).item() == rt.inf
    close(rt.segment_sum(rt.tensor([rt.inf, -rt.inf], device=device), [0, 0], 2), [rt.nan, 0])


def test_the_namespace_linalg_has_the_products():
    assert rt.linalg.matmul is rt.matmul and rt.linalg.tensordot is rt.tensordot
    assert rt.linalg.vecdot is rt.vecdot and rt.linalg.matrix_transpose is rt.matrix_transpose


X = rt.zeros((2, 3), device=CPU)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: X @ X, ValueError, r"matmul: shapes \(2, 3\) and \(2, 3\): the last axis of x has size 3.*x @ w.mT"),
        (lambda: X @ rt.zeros(2), ValueError, "contracted axis of y 2"),
        (lambda: X @ rt.tensor(1.0), ValueError, "multiply with x \\* y"),
        (lambda: rt.zeros((2, 2, 3)) @ rt.zeros((3, 3, 1)), ValueError, "batch axes"),
        (lambda: (X == 0) @ X.mT, TypeError, "bools are not multiplied"),
        (lambda: X @ "a", TypeError, "unsupported operand"),
        (lambda: rt.linear(X, rt.zeros((2, 3)), rt.zeros(3)), ValueError, "w.mT"),
        (lambda: rt.linear(X, rt.zeros((3, 2)), rt.zeros(3)), ValueError, r"bias \(3,\) do not fit"),
        (lambda: rt.linear(X, rt.zeros((3, 2)), rt.zeros((1, 2))), ValueError, "do not fit"),
        (lambda: rt.linear(X, X.mT, residual=rt.zeros(2)), ValueError, r"residual \(2,\) does not fit the result \(2, 2\)"),
        (lambda: rt.feed_forward(X, X.mT, None, X.mT, None), ValueError, "do not fit"),
        (lambda: rt.feed_forward(X, X.mT, None, X, None, activation="tanh"), ValueError, "one of relu, .* got 'tanh'"),
        (lambda: rt.feed_forward(X, X.mT, None, X, None, residual=rt.zeros(3)), ValueError, "nothing broadcasts"),
        (lambda: rt.vecdot(X, rt.zeros(2)), ValueError, "must be equal"),
        (lambda: rt.vecdot(X, rt.tensor(1.0)), ValueError, "holds no vector"),
        (lambda: rt.tensordot(X, X.mT), ValueError, "pairs must be equal"),
        (lambda: rt.tensordot(X, X, axes=3), ValueError, "needs 0 to 2"),
        (lambda: rt.outer(X, X), ValueError, "two 1-D tensors"),
    ],
)
def test_errors_say_what_was_given_and_what_is_needed(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ((64, 48), (48, 80)), ((3, 64, 48), (3, 48, 80)), ((2, 3, 5, 7), (7, 9)), ((2, 1, 17, 33), (3, 33, 1)),
        ((4, 0), (0, 3)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_half_products_on_a_gpu_agree_with_the_cpu(dtype, x, y, turned):
    gpu = rt.Cuda(0)
    a, b = normal(*x, dtype=dtype), normal(*y, dtype=dtype, seed=1)
    if turned:  # the same numbers in another layout
        left, right = (rt.tensor(t.mT.numpy(), device=gpu).mT for t in (a, b))
    else:
        left, right = a.to_device(gpu), b.to_device(gpu)
    found = left @ right
    assert found.dtype == dtype
    step = 2.0 ** (-11 if dtype == rt.float16 else -8)
    expected = np.matmul(a.numpy().astype(np.float64), b.numpy().astype(np.float64))
    np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol=step * 1.01, atol=1e-4)
    assert np.array_equal(found.numpy(), (left @ right).numpy())


@pytest.mark.gpu
def test_float32_products_on_a_gpu_are_full_float32():
    x = normal(256, 256, device=rt.Cuda(0))
    for a, b in ((x, x), (rt.stack([x, x]), rt.stack([x, x]))):
        expected = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
        assert np.abs((a @ b).numpy() - expected).max() < 1e-4  # TF32 would be wrong by about 1e-2
