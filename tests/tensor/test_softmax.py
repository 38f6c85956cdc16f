"""softmax, log_softmax and logsumexp: infinities, NaN, layouts, and the hand-derived bodies against the definitions."""
from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close, gradient

nan, inf = rt.nan, rt.inf


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(
    "shape,axis", [((3, 5), 1), ((3, 5), 0), ((2, 3, 4), 1), ((7,), 0), ((300, 1000), 1), ((90, 40, 30), 1)]
)
def test_hand_derived_body_agrees_with_its_expression(name, shape, axis):
    rng = np.random.default_rng(0)
    values, weight = rng.standard_normal(shape), rt.tensor(rng.standard_normal(shape), device=CPU)

    def run(order):
        x = rt.tensor(values, device=CPU).require_grad()
        with ra.record(order=order):
            y = getattr(rt, name)(x, axis=axis)
        return y.numpy(), x.grad(rt.sum(y * weight).backward()).numpy()

    for hand, plain in zip(run(1), run(2), strict=True):
        np.testing.assert_allclose(hand, plain, rtol=1e-10, atol=1e-14)


def test_GRAD_11_logsumexp_of_rows_of_minus_infinity(device):
    x = [[0.0, np.log(3)], [-inf, -inf]]
    close(rt.logsumexp(rt.tensor(x, device=device), axis=1), [1.3862944, -inf])
    close(gradient(lambda x: rt.logsumexp(x, axis=1), x, device), [[0.25, 0.75], [0, 0]])
    close(gradient(lambda x: rt.logsumexp(x, axis=1)[0], x, device), [[0.25, 0.75], [0, 0]])
    with ra.record(order=2):
        close(gradient(lambda x: rt.logsumexp(x, axis=1), x, device), [[0.25, 0.75], [0, 0]])


def test_GRAD_12_logsumexp_of_infinity(device):
    for x, g in (([inf, 1.0], [1, 0]), ([inf, inf], [0.5, 0.5]), ([inf, -inf, inf, 1000.0], [0.5, 0, 0.5, 0])):
        assert rt.logsumexp(rt.tensor(x, device=device)).item() == inf
        close(gradient(rt.logsumexp, x, device), g)
    assert np.isnan(rt.logsumexp(rt.tensor([inf, nan], device=device)).item())


def test_GRAD_13_masked_logsumexp_is_blind_to_what_is_masked(device):
    where = rt.tensor([True, False, True], device=device)
    for hidden in (500.0, inf, nan, -inf):
        x = [1.0, hidden, 2.0]
        close(rt.logsumexp(rt.tensor(x, device=device), where=where), 2.3132617)
        close(gradient(lambda x: rt.logsumexp(x, where=where), x, device), [0.26894142, 0, 0.73105858])
    nothing = rt.tensor([False], device=device)
    assert rt.logsumexp(rt.tensor([1.0, 2.0], device=device), where=nothing).item() == -inf
    close(gradient(lambda x: rt.logsumexp(x, where=nothing), [1.0, 2.0], device), [0, 0])


def test_GRAD_13_masks_are_checked():
    x = rt.ones((2, 3), device=CPU)
    with pytest.raises(TypeError, match="where is a mask of bools"):
        rt.logsumexp(x, where=rt.ones((2, 3), device=CPU))
    with pytest.raises(ValueError, match="does not stretch"):
        rt.logsumexp(x, where=rt.tensor([True, False], device=CPU))


def test_SHAPE_08_softmax_and_logsumexp_of_nothing(device):
    empty = rt.zeros((2, 0), device=device)
    close(rt.logsumexp(empty, axis=1), [-inf, -inf])
    assert rt.logsumexp(empty, axis=0).shape == (0,)
    for function in (rt.softmax, rt.log_softmax):
        for axis in (0, 1):
            assert function(empty, axis=axis).shape == (2, 0)
            assert gradient(lambda x, f=function, a=axis: f(x, axis=a), np.zeros((2, 0)), device).shape == (2, 0)
    assert gradient(lambda x: rt.logsumexp(x, axis=1), np.zeros((2, 0)), device).shape == (2, 0)


def test_TIE_06_nan_survives_in_its_row_only(device):
    x = rt.tensor([[nan, -1.0, 2.0], [0.0, 0.0, 0.0]], device=device)
    for function in (rt.softmax, rt.log_softmax):
        found = function(x).numpy()
        assert np.isnan(found[0]).all() and np.isfinite(found[1]).all()
        g = gradient(lambda x, f=function: f(x)[1], x.numpy(), device)
        assert np.isfinite(g[1]).all()


def test_masked_classes_and_large_logits(device):
    x = [[-inf, 0.0, 0.0], [1e4, 0.0, -1e4], [3e38, -3e38, 0.0]]
    p = [[0, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]
    close(rt.softmax(rt.tensor(x, device=device)), p)
    close(np.exp(rt.log_softmax(rt.tensor(x, device=device)).numpy()), p)
    assert rt.log_softmax(rt.tensor(x[1], device=device)).tolist() == [0.0, -1e4, -2e4]
    for function in (rt.softmax, rt.log_softmax, lambda x: rt.logsumexp(x, axis=1)):
        assert np.isfinite(gradient(function, x, device)).all()
    assert np.isnan(rt.softmax(rt.tensor([-inf, -inf], device=device)).numpy()).all()


def test_SHAPE_09_views_give_the_bits_of_copies(device):
    base = rt.arange(24.0, device=device).reshape(4, 6)
    for view in (base[::-1, ::-2], base[::-1, ::-2].T):
        before = view.numpy()
        for function in (rt.softmax, rt.log_softmax, lambda x, axis: rt.logsumexp(x, axis=axis)):
            for axis in (0, 1):
                assert np.array_equal(function(view, axis=axis).numpy(), function(view.copy(), axis=axis).numpy())
                grads = []
                for x in (view.require_grad(), view.copy().require_grad()):
                    y = function(x, axis=axis)
                    grads.append(x.grad(rt.sum(y * y).backward()).numpy())
                assert np.array_equal(*grads)
        assert np.array_equal(view.numpy(), before)


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_halves_are_computed_in_float32(device, dtype):
    x = rt.astype(rt.tensor(np.random.default_rng(0).uniform(80, 100, (4, 300)), device=device), dtype)
    wide = rt.astype(x, rt.float64).numpy()
    eps = 2.0**-10 if dtype == rt.float16 else 2.0**-7
    for function, reference in (
        (rt.softmax, scipy.special.softmax(wide, axis=1)),
        (rt.log_softmax, scipy.special.log_softmax(wide, axis=1)),
        (lambda x: rt.logsumexp(x, axis=1), scipy.special.logsumexp(wide, axis=1)),
    ):
        assert function(x).dtype == dtype
        close(rt.astype(function(x), rt.float64), reference, rtol=eps, atol=1e-6)
    g = gradient(lambda x: rt.logsumexp(x, axis=1), wide, device, dtype)
    close(g, scipy.special.softmax(wide, axis=1), rtol=eps, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3, 255, 256, 257, 1025])
def test_rows_do_not_depend_on_their_neighbours(rows):
    x = np.random.default_rng(rows).standard_normal((rows, 700)).astype(np.float32)
    together = rt.softmax(rt.tensor(x, device=CPU)).numpy()
    for i in {0, rows // 2, rows - 1}:
        assert np.array_equal(rt.softmax(rt.tensor(x[i : i + 1], device=CPU)).numpy()[0], together[i])
    close(together.sum(1), np.ones(rows))


def test_softmax_keeps_its_result_without_a_cycle():
    import gc
    import weakref

    x = rt.ones((4, 4), device=CPU).require_grad()
    gc.disable()
    try:
        y = rt.softmax(x)
        alive = weakref.ref(y)
        del y
        assert alive() is None
    finally:
        gc.enable()


def test_axis_errors():
    for function in (rt.softmax, rt.log_softmax, rt.logsumexp):
        with pytest.raises(IndexError, match="axis 2 is out of range"):
            function(rt.ones((2, 3), device=CPU), axis=2)
    for function in (rt.softmax, rt.log_softmax):
        with pytest.raises(IndexError, match="0-d"):
            function(rt.tensor(1.0, device=CPU))
    assert rt.logsumexp(rt.tensor(3.0, device=CPU)).item() == 3.0
    assert rt.softmax(rt.tensor([1, 1], device=CPU)).dtype == rt.float32


def test_against_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values, weight = rng.standard_normal((5, 6, 7)), rng.standard_normal((5, 6, 7))
    for axis in range(3):
        for name in ("softmax", "log_softmax"):
            x, y = rt.tensor(values, device=CPU).require_grad(), torch.tensor(values, requires_grad=True)
            ours, theirs = getattr(rt, name)(x, axis=axis), getattr(torch, name)(y, axis)
            close(ours, theirs.detach().numpy(), rtol=1e-12)
            (theirs * torch.tensor(weight)).sum().backward()
            g = x.grad(rt.sum(ours * rt.tensor(weight, device=CPU)).backward())
            close(g, y.grad.numpy(), rtol=1e-10, atol=1e-14)
