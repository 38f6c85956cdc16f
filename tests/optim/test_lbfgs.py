"""L-BFGS: against PyTorch, on hard functions, and its bookkeeping."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Module, Param, RecordMismatch
from ruda_optim import LBFGS, GradientsParams, LBFGSConfig
from ruda_record import BinBytesRecorder

from ._helpers import Pair, Point, param, point


def closure_of(loss_of, calls=None):
    def closure(model):
        loss = loss_of(model)
        if calls is not None:
            calls.append(loss.item())
        return loss.item(), GradientsParams.from_grads(loss.backward(), model)

    return closure


def rosenbrock(model):
    x, y = model.x[0], model.x[1]
    return (1.0 - x).square() + 100.0 * (y - x.square()).square()


def torch_rosenbrock(steps, lr, **options):
    import torch

    x = torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True)
    optimizer, calls = torch.optim.LBFGS([x], lr=lr, **options), []

    def closure():
        optimizer.zero_grad()
        loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        loss.backward()
        calls.append(loss.item())
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return x.detach().numpy(), calls


@pytest.mark.parametrize(
    ("lr", "options"),
    [
        (1.0, {"line_search": "strong_wolfe"}),
        (0.3, {"line_search": "strong_wolfe", "history_size": 3}),
        (1.0, {"line_search": "strong_wolfe", "max_iter": 5, "max_eval": 100}),
        (1e-3, {"line_search": None, "max_iter": 4}),
    ],
)
def test_the_path_is_that_of_torch(lr, options):
    pytest.importorskip("torch")
    expected, calls = torch_rosenbrock(3, lr, **{("line_search_fn" if k == "line_search" else k): v for k, v in options.items()})
    model, optimizer, mine = point([-1.2, 1.0], rt.float64), LBFGSConfig(**options).init(), []
    for _ in range(3):
        model, loss = optimizer.step(lr, model, closure_of(rosenbrock, mine))
    np.testing.assert_allclose(model.x.numpy(), expected, rtol=1e-6)
    if options["line_search"]:
        np.testing.assert_allclose(mine, calls, rtol=1e-5, atol=1e-12)  # every trial of every line search


def test_rosenbrock_is_solved_in_both_dtypes(device):
    for dtype, tolerance in ((rt.float64, 1e-7), (rt.float32, 1e-2)):
        optimizer = LBFGSConfig(max_iter=200, line_search="strong_wolfe", tolerance_change=1e-14).init()
        model, loss = optimizer.step(1.0, point([-1.2, 1.0], dtype, device), closure_of(rosenbrock))
        np.testing.assert_allclose(model.x.numpy(), [1.0, 1.0], atol=tolerance)
        assert loss == rosenbrock(model).item() and model.x.dtype == dtype and model.x.is_require_grad()


def test_OPTIM_12_a_region_of_nan_is_left_again(device):
    seen = []
    optimizer = LBFGSConfig(max_iter=50, line_search="strong_wolfe").init()

    def function(m):
        return (m.x - rt.log(m.x)).sum()

    model, loss = optimizer.step(1.0, point([10.0], rt.float64, device), closure_of(function, seen))
    assert loss == pytest.approx(1.0, abs=1e-12) and model.x.item() == pytest.approx(1.0, abs=1e-6)
    assert loss == min(value for value in seen if math.isfinite(value))
    model, loss = LBFGSConfig(max_iter=50, line_search="strong_wolfe").init().step(
        30.0, point([10.0], rt.float64, device), closure_of(function, far := [])
    )
    assert any(math.isnan(value) for value in far) and model.x.item() == pytest.approx(1.0, abs=1e-6)


def test_OPTIM_12_the_exact_minimum_is_returned_at_once():
    start = point([1.0], rt.float64)
    model, loss = LBFGSConfig(line_search="strong_wolfe").init().step(
        1.0, start, closure_of(lambda m: (m.x - rt.log(m.x)).sum(), calls := [])
    )
    assert len(calls) == 1 and loss == 1.0 and model.x.tolist() == [1.0]


def test_OPTIM_12_from_1e15_in_float32(device):
    seen = []
    optimizer = LBFGSConfig(max_iter=100, line_search="strong_wolfe").init()
    model, loss = optimizer.step(1.0, point([1e15], rt.float32, device), closure_of(lambda m: (0.5 * m.x * m.x).sum(), seen))
    assert abs(model.x.item()) < 1e-3 and loss < 1e-6 and all(map(math.isfinite, seen))


def test_a_step_that_meets_a_nan_without_a_line_search_keeps_the_point_before():
    optimizer = LBFGSConfig(max_iter=5).init()
    model, loss = optimizer.step(100.0, point([10.0], rt.float64), closure_of(lambda m: (m.x - rt.log(m.x)).sum()))
    assert math.isfinite(loss) and model.x.item() > 0
    model, again = optimizer.step(1.0, model, closure_of(lambda m: (m.x - rt.log(m.x)).sum()))
    assert again < loss  # the history that led there is forgotten


def test_the_loss_is_that_of_the_returned_model_and_the_old_one_is_consumed():
    start = point([-1.2, 1.0], rt.float64)
    for options in ({}, {"line_search": "strong_wolfe"}, {"max_iter": 0}, {"max_eval": 1}):
        kept = start.clone()
        model, loss = LBFGSConfig(**options).init().step(1e-3, start, closure_of(rosenbrock))
        assert loss == rosenbrock(model).item() and model.x.id == kept.x.id
        with pytest.raises(RuntimeError, match="consumed"):
            rosenbrock(start)
        start = kept


def test_contract_32_evaluations_are_bounded_and_pairs_without_curvature_dropped():
    for options, limit in (({"max_iter": 8}, 10), ({"max_iter": 8, "max_eval": 3}, 3), ({"max_iter": 4}, 5)):
        for search in (None, "strong_wolfe"):
            config = LBFGSConfig(line_search=search, tolerance_change=0.0, tolerance_grad=0.0, **options)
            config.init().step(1e-4, point([-1.2, 1.0], rt.float64), closure_of(rosenbrock, calls := []))
            assert len(calls) == (limit if search else min(limit, options["max_iter"] + 1))
    optimizer = LBFGSConfig(max_iter=5).init()  # a linear function: y = 0 every time
    model, _ = optimizer.step(0.1, point([1.0, 2.0], rt.float64), closure_of(lambda m: m.x.sum()))
    assert optimizer.history.pairs == () and optimizer.history.iterations == 5
    assert model.x.tolist() == pytest.approx([1.0 - 0.1 * 0.5 - 0.4, 2.0 - 0.1 * 0.5 - 0.4])
    optimizer = LBFGSConfig(max_iter=30, history_size=2, line_search="strong_wolfe").init()
    optimizer.step(1.0, point([-1.2, 1.0], rt.float64), closure_of(rosenbrock))
    assert len(optimizer.history.pairs) == 2


def test_a_record_continues_bit_for_bit(device):
    config = LBFGSConfig(max_iter=4, line_search="strong_wolfe")
    model, optimizer = point([-1.2, 1.0], rt.float64, device), config.init()
    for _ in range(2):
        model, _ = optimizer.step(1.0, model, closure_of(rosenbrock))
    recorder = BinBytesRecorder()
    stored, twin = recorder.load(recorder.save(optimizer.to_record())), config.init()
    twin.load_record(stored, model)
    copy = model.clone()
    for _ in range(3):
        model, loss = optimizer.step(1.0, model, closure_of(rosenbrock))
        copy, again = twin.step(1.0, copy, closure_of(rosenbrock))
        assert loss == again and model.x.numpy().tobytes() == copy.x.numpy().tobytes()
    fresh = config.init()
    fresh.load_record(config.init().to_record(), model)
    assert fresh.history is None
    with pytest.raises(RecordMismatch, match=r"max_iter: 4 \| 5"):
        config.with_max_iter(5).init().load_record(stored, model)
    with pytest.raises(RecordMismatch, match="other parameters"):
        twin.load_record(stored, point([1.0, 1.0], rt.float64))
    for name, value in (("t", "x"), ("pairs", 3), ("direction", None), ("pairs", [1])):
        with pytest.raises(RecordMismatch.__mro__[1], match="not valid"):
            config.init().load_record({**stored, "history": {**stored["history"], name: value}}, model)


def test_all_kinds_of_parameters_take_part():
    class Mixed(Module):
        half: Param
        tied: Param
        also: Param
        frozen: Param
        unused: Param
        scalar: Param

    shared = param([3.0, 1.0])
    model = Mixed(param([2.0], rt.bfloat16), shared, shared, param([5.0], trainable=False), param([7.0]), param(4.0))

    def loss(m):
        return m.half.astype(rt.float32).square().sum() + (m.tied * m.also).sum() + m.scalar.square() + m.frozen.sum()

    optimizer = LBFGSConfig(max_iter=40, line_search="strong_wolfe").init()
    model, value = optimizer.step(1.0, model, closure_of(loss))
    assert value == pytest.approx(5.0, abs=1e-6) and model.tied is model.also
    np.testing.assert_allclose(model.tied.numpy(), 0.0, atol=1e-3)
    assert (model.half.dtype, model.scalar.shape, model.unused.tolist(), model.frozen.tolist()) == (rt.bfloat16, (), [7.0], [5.0])


def test_a_closure_over_the_old_model_is_noticed_and_the_model_survives():
    model, optimizer = point([-1.2, 1.0], rt.float64), LBFGSConfig().init()
    with pytest.raises(RuntimeError, match="consumed"):
        optimizer.step(1.0, model, lambda _: closure_of(rosenbrock)(model))
    assert model.x.tolist() == [-1.2, 1.0] and optimizer.history is None
    attempts = []

    def failing(m):
        attempts.append(1)
        if len(attempts) == 3:
            raise KeyboardInterrupt
        return closure_of(rosenbrock)(m)

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(1e-4, model, failing)
    assert model.x.tolist() == [-1.2, 1.0] and optimizer.history is None


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda o, m: o.step(-1.0, m, closure_of(rosenbrock)), ValueError, "learning rate"),
        (lambda o, m: o.step(1.0, m, None), TypeError, "closure"),
        (lambda o, m: o.step(1.0, closure_of(rosenbrock), m), TypeError, "closure"),
        (lambda o, m: o.step(1.0, m, lambda p: rosenbrock(p)), TypeError, r"\(loss, gradients\)"),
        (lambda o, m: o.step(1.0, m, closure_of(lambda p: rosenbrock(p) * float("nan"))), ValueError, "loss .* is nan"),
    ],
)
def test_wrong_calls_are_refused_and_change_nothing(call, kind, message):
    model, optimizer = point([-1.2, 1.0], rt.float64), LBFGSConfig().init()
    with pytest.raises(kind, match=message):
        call(optimizer, model)
    assert model.x.tolist() == [-1.2, 1.0] and optimizer.history is None and isinstance(optimizer, LBFGS)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_model_with_nothing_to_train_comes_back_with_the_loss_of_one_call(search, device):
    model, optimizer, calls = point([-1.2, 1.0], rt.float64, device).no_grad(), LBFGSConfig(line_search=search).init(), []
    back, loss = optimizer.step(1.0, model, lambda m: calls.append(1) or closure_of(rosenbrock)(m))
    assert back is model and loss == pytest.approx(24.2) and calls == [1] and optimizer.history is None
    assert not model.x.trainable and model.x.tolist() == [-1.2, 1.0]
    fresh = LBFGSConfig(line_search=search).init()
    fresh.load_record(optimizer.to_record(model), model)
    thawed, loss = fresh.step(1.0, model.map(lambda p: p.require_grad()), closure_of(rosenbrock))  # later it trains
    assert loss < 24.2 and thawed.x.trainable

    class Empty(Module):
        scale: float

    empty = Empty(3.0)
    assert LBFGSConfig(line_search=search).init().step(1.0, empty, lambda m: (m.scale, GradientsParams())) == (empty, 3.0)


def test_another_model_needs_another_optimizer():
    optimizer = LBFGSConfig(max_iter=2).init()
    model, _ = optimizer.step(1e-4, point([-1.2, 1.0], rt.float64), closure_of(rosenbrock))
    with pytest.raises(ValueError, match="make a new optimizer"):
        optimizer.step(1e-4, Point(param([-1.2, 1.0])), closure_of(rosenbrock))
    two = Pair(model.x, param([1.0]))
    with pytest.raises(ValueError, match="make a new optimizer"):
        optimizer.step(1e-4, two, closure_of(lambda m: m.a.sum() + m.b.sum()))
