"""Normalization: hand-derived bodies against the definitions, large means, constant rows, running statistics, errors."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close

CASES = {
    "layer_norm": [((3, 5), (5,)), ((2, 3, 5), (5,)), ((2, 3, 5), (3, 5)), ((5,), (5,)), ((0, 4), (4,)), ((700, 900), (900,))],
    "rms_norm": [((3, 5), (5,)), ((2, 3, 5), (3, 5)), ((5,), (5,)), ((0, 4), (4,)), ((700, 900), (900,))],
    "batch_norm": [((6, 5), (5,)), ((3, 5, 4), (5,)), ((2, 3, 4, 5), (3,)), ((0, 3, 2), (3,)), ((30, 130, 33), (130,))],
    "group_norm": [((2, 4, 3), (4,)), ((2, 4, 3, 5), (4,)), ((0, 2, 3), (2,))],
    "instance_norm": [((2, 4, 3), (4,)), ((2, 3, 4, 5), (3,))],
}
CALLS = {
    "layer_norm": lambda x, w, b: rt.layer_norm(x, w, b),
    "rms_norm": lambda x, w, b: rt.rms_norm(x, w, eps=1e-5) + b,
    "batch_norm": lambda x, w, b: rt.batch_norm(x, None, None, w, b, training=True)[0],
    "group_norm": lambda x, w, b: rt.group_norm(x, 2, w, b),
    "instance_norm": lambda x, w, b: rt.instance_norm(x, w, b),
}


def run(call, arrays, weight, order=1, dtype=rt.float64, device=CPU):
    """The result and the gradients of its weighted sum, as float64 arrays."""
    leaves = [rt.tensor(a, dtype=dtype, device=device).require_grad() for a in arrays]
    with ra.record(order=order):
        y = call(*leaves)
    found = rt.sum(y * rt.tensor(weight, dtype=dtype, device=device)).backward()
    return [t.detach().astype(rt.float64).numpy() for t in (y, *(found[x] for x in leaves))]


def drawn(shape, size, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s) for s in (shape, size, size)], rng.standard_normal(shape)


@pytest.mark.parametrize("name,shape,size", [(n, s, w) for n, cases in CASES.items() for s, w in cases])
def test_hand_derived_body_agrees_with_its_expression(name, shape, size, device):
    arrays, weight = drawn(shape, size)
    for hand, plain in zip(run(CALLS[name], arrays, weight, 1), run(CALLS[name], arrays, weight, 2)):
        np.testing.assert_allclose(hand, plain, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm"])
def test_equals_torch(name):
    torch = pytest.importorskip("torch")
    f = torch.nn.functional
    shape, size = {"layer_norm": ((2, 3, 5), (3, 5)), "rms_norm": ((2, 3, 5), (5,))}.get(name, ((3, 4, 5, 2), (4,)))
    arrays, weight = drawn(shape, size)
    theirs = {
        "layer_norm": lambda x, w, b: f.layer_norm(x, size, w, b),
        "rms_norm": lambda x, w, b: f.rms_norm(x, size, w, eps=1e-5) + b,
        "batch_norm": lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
        "group_norm": lambda x, w, b: f.group_norm(x, 2, w, b),
        "instance_norm": lambda x, w, b: f.instance_norm(x, weight=w, bias=b),
    }[name]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = theirs(*tensors)
    y.backward(torch.tensor(weight))
    for ours, t in zip(run(CALLS[name], arrays, weight), (y.detach(), *(t.grad for t in tensors))):
        np.testing.assert_allclose(ours, t.numpy(), rtol=1e-10, atol=1e-11)


def test_LAYER_01_a_large_mean_loses_nothing(device):
    x = [[30000.0, 30002.0, 30004.0, 30006.0]]
    y, dx = run(lambda x: rt.layer_norm(x), [x], [[1, 2, -1, 0.5]], dtype=rt.float32, device=device)
    close(y, [[-1.3416394, -0.4472131, 0.4472131, 1.3416394]], rtol=1e-6)
    close(dx, [[-0.1341633, 0.5142953, -0.6260986, 0.2459666]], rtol=1e-5)


@pytest.mark.parametrize("name", ["layer_norm", "batch_norm", "group_norm", "instance_norm"])
def test_LAYER_01_a_mean_that_float32_cannot_hold(name, device):
    rng = np.random.default_rng(0)
    x = (30000 + rng.standard_normal((4, 4, 257))).astype(np.float32).astype(np.float64)
    size = (257,) if name == "layer_norm" else (4,)
    arrays, weight = [x, *(rng.standard_normal(size).astype(np.float32) for _ in range(2))], rng.standard_normal(x.shape)
    weight = weight.astype(np.float32)
    narrow = run(CALLS[name], arrays, weight, dtype=rt.float32, device=device)
    for a, b in zip(narrow, run(CALLS[name], arrays, weight)):
        assert np.abs(a - b).max() < 2e-5 * max(1.0, np.abs(b).max())


@pytest.mark.parametrize("value", [1.0, 777.25, -3e4, 3.3, 1e8])
@pytest.mark.parametrize("name", ["layer_norm", "batch_norm", "group_norm", "instance_norm"])
def test_LAYER_02_constant_rows_give_the_bias(name, value, device):
    for dtype in (rt.float32, rt.bfloat16):
        size = (257,) if name == "layer_norm" else (2,)
        arrays = [np.full((3, 2, 257), value), np.ones(size), np.zeros(size)]
        y, *gradients = run(CALLS[name], arrays, np.random.default_rng(0).standard_normal((3, 2, 257)), 1, dtype, device)
        assert np.all(y == 0)
        assert all(np.isfinite(g).all() for g in gradients)
    arrays[2] += 0.5
    if value != 1e8:
        assert np.all(run(CALLS[name], arrays, np.ones((3, 2, 257)), 1, rt.float32, device)[0] == 0.5)


def test_LAYER_03_any_number_of_leading_axes(device):
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 3, 5))
    for name in ("layer_norm", "rms_norm"):
        for size in ((5,), (3, 5)):
            w, b = rng.standard_normal(size), rng.standard_normal(size)
            rows = (2, 15) if len(size) == 2 else (6, 5)
            deep = run(CALLS[name], [x, w, b], g, device=device)
            flat = run(CALLS[name], [x.reshape(rows), w.ravel(), b.ravel()], g.reshape(rows), device=device)
            for a, c in zip(deep, flat):
                assert np.array_equal(a.ravel(), c.ravel()) and np.any(a)
            assert [a.shape for a in deep] == [x.shape, x.shape, size, size]


def test_LAYER_05_running_variance_is_unbiased_and_one_value_raises(device):
    x = rt.tensor([[2.0], [4.0], [6.0], [8.0]], device=device)
    start = rt.zeros(1, device=device), rt.ones(1, device=device)
    y, mean, var = rt.batch_norm(x, *start, training=True, momentum=0.1)
    close(mean, [0.5])
    close(var, [1.5666667])
    close(y[:, 0], [-1.3416394, -0.4472131, 0.4472131, 1.3416394])
    with pytest.raises(ValueError, match="one value per channel"):
        rt.batch_norm(x[:1], mean, var, training=True)
    y, same_mean, same_var = rt.batch_norm(x[:1], mean, var)
    close(y, [[(2 - 0.5) / np.sqrt(1.5666667 + 1e-5)]])
    assert same_mean.tolist() == mean.tolist() and same_var.tolist() == var.tolist()
    assert [t.tolist() for t in start] == [[0.0], [1.0]]


def test_LAYER_05_inference_never_looks_at_the_batch(device):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 2))
    statistics = rt.tensor([1.0, 2.0, 3.0], device=device), rt.tensor([0.5, 1.0, 4.0], device=device)
    whole = rt.batch_norm(rt.tensor(x, dtype=rt.float32, device=device), *statistics)[0].numpy()
    for i in range(4):
        one = rt.batch_norm(rt.tensor(x[i : i + 1], dtype=rt.float32, device=device), *statistics)[0].numpy()
        assert np.array_equal(one[0], whole[i])


def test_running_statistics_are_untracked_and_an_empty_batch_leaves_them(device):
    x = rt.ones((2, 3), device=device).require_grad()
    mean, var = rt.zeros(3, device=device), rt.ones(3, device=device)
    y, new_mean, new_var = rt.batch_norm(x, mean, var, training=True)
    assert y.is_require_grad() and not new_mean.is_require_grad() and not new_var.is_require_grad()
    y, new_mean, new_var = rt.batch_norm(x[:0], mean, var, training=True)
    assert y.shape == (0, 3) and new_mean.tolist() == [0, 0, 0] and new_var.tolist() == [1, 1, 1]
    assert rt.batch_norm(x, training=True)[1:] == (None, None)


def test_DTYPE_05_squares_do_not_overflow_in_half(device):
    for dtype in (rt.float16, rt.bfloat16):
        x = rt.tensor([300.0, -300.0, 300.0, 300.0], dtype=dtype, device=device).require_grad()
        y = rt.rms_norm(x, eps=1e-6)
        assert y.dtype == dtype and y.tolist() == [1, -1, 1, 1]
        g = rt.sum(y).backward()[x]
        assert g.dtype == dtype and np.isfinite(g.astype(rt.float32).numpy()).all()
        wide = rt.rms_norm(rt.full((8192,), 300.0, dtype=dtype, device=device), eps=1e-6)
        assert set(wide.tolist()) == {1.0}


def test_half_x_takes_float32_vectors_and_keeps_its_dtype(device):
    rng = np.random.default_rng(0)
    x = rt.tensor(rng.standard_normal((4, 6)), dtype=rt.bfloat16, device=device).require_grad()
    w, b = (rt.tensor(rng.standard_normal(6), dtype=rt.float32, device=device).require_grad() for _ in range(2))
    y = rt.layer_norm(x, w, b)
    found = rt.sum(y).backward()
    assert (y.dtype, found[x].dtype, found[w].dtype) == (rt.bfloat16, rt.bfloat16, rt.float32)
    wide = rt.layer_norm(x.detach().astype(rt.float32), w.detach(), b.detach())
    assert np.array_equal(y.detach().numpy(), wide.astype(rt.bfloat16).numpy())
    assert rt.layer_norm(rt.ones((2, 6), device=device), w.detach().astype(rt.float64)).dtype == rt.float32
    assert rt.rms_norm(rt.tensor([3, 4], device=device)).dtype == rt.float32


def test_eps_of_none_is_that_of_the_dtype(device):
    for dtype, eps in ((rt.float32, 2.0**-23), (rt.bfloat16, 2.0**-7)):
        y = rt.rms_norm(rt.tensor([1e-4, 1e-4], dtype=dtype, device=device))
        close(y.astype(rt.float32), np.full(2, 1e-4 / np.sqrt(1e-8 + eps)), rtol=1e-2)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm", "group_norm"])
def test_SHAPE_09_strided_views_give_the_same_bits(name):
    base = np.random.default_rng(0).standard_normal((4, 6, 10)).astype(np.float32)
    for view in (base[::-1, :, ::-2], base.transpose(2, 1, 0), np.broadcast_to(base[:1], base.shape)[:, :, :5]):
        n = view.shape[-1] if name in ("layer_norm", "rms_norm") else view.shape[1]
        w, b = (rt.tensor(np.random.default_rng(s).standard_normal(n), dtype=rt.float32, device=CPU) for s in (1, 2))
        results = []
        for array in (view, view.copy()):
            x = rt.Tensor._wrap(array, CPU).require_grad()
            y = CALLS[name](x, w, b)
            results.append((y.detach().numpy(), rt.sum(y * y).backward()[x].numpy()))
        assert np.array_equal(results[0][0], results[1][0])
        np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 31, 33, 63, 65, 127, 129, 255, 257, 1023, 1025, 4097])
def test_CUDA_04_every_width(width, device):
    rng = np.random.default_rng(width)
    for rows in (1, 3):
        guarded = np.full((rows + 2, width + 2), np.nan, np.float32)
        guarded[1:-1, 1:-1] = rng.standard_normal((rows, width))
        x = rt.tensor(guarded, device=device)[1:-1, 1:-1]
        exact = guarded[1:-1, 1:-1].astype(np.float64)
        centred = exact - exact.mean(1, keepdims=True)
        close(rt.layer_norm(x), centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5), atol=2e-6)
        close(rt.rms_norm(x, eps=1e-5), exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5), atol=2e-6)


@pytest.mark.parametrize("width", [65535, 65537, 262147])
@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16, rt.float16])
def test_CUDA_05_very_wide_rows(width, dtype, device):
    rng = np.random.default_rng(width)
    x = rt.tensor(rng.standard_normal((2, width)), dtype=dtype, device=device)
    exact = x.astype(rt.float64).numpy()
    arrays, weight = [exact, np.ones(width), np.zeros(width)], rng.choice([-1.0, 1.0], (2, width))
    eps = {rt.float32: 1e-5, rt.float16: 2e-3, rt.bfloat16: 2e-2}[dtype]
    for name in ("layer_norm", "rms_norm"):
        narrow, wide = run(CALLS[name], arrays, weight, 1, dtype, device), run(CALLS[name], arrays, weight)
        for a, b in zip(narrow[:3], wide):
            np.testing.assert_allclose(a, b, rtol=eps, atol=eps)


def test_CUDA_06_empty_batches_have_zero_vector_gradients(device):
    x = rt.zeros((0, 5), device=device).require_grad()
    w, b = rt.ones(5, device=device).require_grad(), rt.ones(5, device=device).require_grad()
    found = rt.sum(rt.layer_norm(x, w, b)).backward()
    assert found[x].shape == (0, 5) and not found[w].numpy().any() and not found[b].numpy().any()
    assert found[w].shape == (5,)


def test_infinities_make_their_own_row_nan_and_no_other(device):
    x = rt.tensor([[1.0, np.inf, 2.0], [1.0, 2.0, 3.0]], device=device)
    y = rt.layer_norm(x).numpy()
    assert np.isnan(y[0]).any() and np.isfinite(y[1]).all()


def test_gradients_do_not_depend_on_the_number_of_threads(monkeypatch):
    from ruda_tensor.ops import _parallel

    arrays, weight = drawn((3000, 700), (700,))
    runs = []
    for count in (1, 3):
        monkeypatch.setattr(_parallel, "threads", lambda count=count: count)
        _parallel._pool.cache_clear()
        runs.append(run(CALLS["layer_norm"], arrays, weight, dtype=rt.float32))
    _parallel._pool.cache_clear()
    for a, b in zip(*runs):
        assert np.array_equal(a, b)


X = rt.zeros((2, 4), device=CPU)


@pytest.mark.parametrize(
    "call,error,words",
    [
        (lambda: rt.layer_norm(X, rt.ones(3, device=CPU)), ValueError, ["normalized_shape=(3,)", "(2, 4)"]),
        (lambda: rt.layer_norm(X, normalized_shape=(4, 2)), ValueError, ["(4, 2)", "(2, 4)"]),
        (lambda: rt.layer_norm(X, normalized_shape=()), ValueError, ["()"]),
        (lambda: rt.layer_norm(X, None, rt.ones(2, device=CPU)), ValueError, ["bias", "(2,)", "(4,)"]),
        (lambda: rt.layer_norm(X, rt.ones(4, dtype=rt.int32, device=CPU)), TypeError, ["weight", "int32"]),
        (lambda: rt.layer_norm(X, eps=-1.0), ValueError, ["eps", "-1.0"]),
        (lambda: rt.rms_norm(X, eps=float("nan")), ValueError, ["eps", "nan"]),
        (lambda: rt.layer_norm(X[0, 0]), ValueError, ["()"]),
        (lambda: rt.batch_norm(X[0], training=True), ValueError, ["(N, C, ...)", "(4,)"]),
        (lambda: rt.batch_norm(X), ValueError, ["running statistics"]),
        (lambda: rt.batch_norm(X, rt.ones(4, device=CPU), None, training=True), ValueError, ["running_mean", "running_var"]),
        (lambda: rt.batch_norm(X, rt.ones(3, device=CPU), rt.ones(3, device=CPU)), ValueError, ["(4,)"]),
        (lambda: rt.batch_norm(X, training=True, momentum=2), ValueError, ["momentum", "2"]),
        (lambda: rt.group_norm(X, 3), ValueError, ["groups", "4 channels", "3"]),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
