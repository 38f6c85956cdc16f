"""Neighbours of the dtype cases: state that is no float, integers that only Python holds exactly, one rounding."""
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import ruda_autodiff as ra
import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import GradientsAccumulator, GradientsParams, Optimizer, OptimizerConfig
from ruda_optim.rules import Rule
from tests.tensor._helpers import close, gradient

FLOATS = (rt.float16, rt.bfloat16, rt.float32, rt.float64)


class Point(Module):
    at: Param


class Masked(Rule):
    """Descends where a mask of bools says so, counts its steps in int32, and turns the mask round."""

    def start(self, xp, p):
        return {"mask": xp.arange(p.size).reshape(p.shape) % 2 == 0, "count": xp.zeros((), np.int32)}

    def update(self, xp, lr, p, g, state):
        p -= lr * g * state["mask"]
        state["mask"] = ~state["mask"]
        state["count"] += np.int32(1)


def test_DTYPE_09_accumulation_leaves_bool_and_int_state_alone(device):
    model, optimizer = Point(Param(rt.tensor([1.0, 1.0], device=device))), Optimizer(Masked(OptimizerConfig()))
    accumulator = GradientsAccumulator()

    def kinds():
        return {name: (a.dtype, a.shape) for name, a in optimizer.states[model.at.id].items()}

    optimizer.step(0.0, model, GradientsParams({model.at: rt.tensor([1.0, 1.0], device=device)}))
    model = Point(Param(rt.tensor([1.0, 1.0], device=device), id=model.at.id))
    before = kinds()
    assert before == {"mask": (rt.bool, (2,)), "count": (rt.int32, ())}
    for window in range(2):
        for micro in range(3):
            held = copy.deepcopy(optimizer.states[model.at.id])
            accumulator.accumulate(model, GradientsParams({model.at: rt.tensor([1.0, 2.0], device=device)}))
            state = optimizer.states[model.at.id]
            assert kinds() == before and int(state["count"]) == 1 + window, micro
            assert (state["mask"] == held["mask"]).all()  # untouched in the middle of a window
        model = optimizer.step(0.1, model, accumulator.grads())
        assert kinds() == before
    close(model.at.detach(), [0.7, 0.4])  # the second entry in the first window, the first in the second


@pytest.mark.parametrize("dtype", [*FLOATS, rt.bool, rt.uint8, rt.int32, rt.int64], ids=str)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_DTYPE_06_a_tensor_from_another_process_has_the_dtype_object_of_all_others(dtype, protocol, device):
    """Pickle makes a dtype object of its own; a mask that came through it must still be a mask."""
    x = rt.tensor([1, 0, 1], dtype=dtype, device=device)
    y = pickle.loads(pickle.dumps(x, protocol=protocol))
    assert y.dtype is x.dtype and y.tolist() == x.tolist()
    mask = pickle.loads(pickle.dumps(x.astype(rt.bool), protocol=protocol))
    assert rt.where(mask, 1.0, rt.zeros(3, device=device)).tolist() == [1, 0, 1]
    with pytest.raises(TypeError, match="negative: needs numbers, got bool"):
        rt.negative(mask)


def test_DTYPE_06_dlpack_brings_in_plain_arrays_of_the_one_dtype_object():
    a = pickle.loads(pickle.dumps(np.ones(2, np.float32)))
    assert rt.from_dlpack(a).dtype is rt.float32
    assert type(rt.from_dlpack(np.ma.masked_array([1.0, 2.0]))._data) is np.ndarray
    with pytest.raises(BufferError, match="other byte order"):
        rt.from_dlpack(np.ones(2, ">f4"))
    assert rt.tensor(np.ones(2, ">f4")).dtype is rt.float32


def test_DTYPE_08_whole_numbers_stay_exact_where_numpy_would_hold_them_as_floats(device):
    x = rt.tensor([2**63 + 1, 1], dtype=rt.uint64, device=device)
    assert x.tolist() == [2**63 + 1, 1]
    assert rt.tensor([[2**64 - 1], [0]], dtype=rt.uint64, device=device).tolist() == [[2**64 - 1], [0]]
    assert rt.tensor([1.7, -1.7], dtype=rt.int32, device=device).tolist() == [1, -1]
    for values, error in (([2**63, -1], OverflowError), ([float("nan")], ValueError), ([float("inf")], OverflowError)):
        with pytest.raises(error, match="give numbers that int64 holds"):
            rt.tensor(values, dtype=rt.int64, device=device)


def test_DTYPE_08_lerp_of_unsigned_integers_does_not_wrap(device):
    x, y = rt.tensor([200], dtype=rt.uint8, device=device), rt.tensor([100], dtype=rt.uint8, device=device)
    assert rt.lerp(x, y, 0.5).tolist() == [150] and rt.lerp(x, y, 0.5).dtype == rt.float32


def test_DTYPE_01_lerp_of_large_halves_is_rounded_once(device):
    x, y = (rt.tensor([v], dtype=rt.float16, device=device) for v in (60000.0, -60000.0))
    assert rt.lerp(x, y, 0.5).tolist() == [0] and rt.lerp(x, y, 0.25).dtype == rt.float16
    weight = rt.tensor([0.5], dtype=rt.float64, device=device)
    assert rt.lerp(x, y, weight).dtype == rt.float64


def test_DTYPE_01_values_beyond_a_float_type_are_infinite_without_a_warning(device):
    assert rt.tensor([1e39, -1e39], device=device).tolist() == [np.inf, -np.inf]
    assert rt.tensor([1e5], dtype=rt.float16, device=device).tolist() == [np.inf]


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16], ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_DTYPE_05_gelu_for_second_order_computes_in_float32_too(dtype, approximate, device):
    """Recorded by its expression it must give the values of the fused body: x**3 is beyond float16 from 41 on."""
    x = [-300.0, -2.7, -0.37, 0.53, 1.9, 300.0]
    def f(x):
        return rt.gelu(x, approximate)

    once = f(rt.tensor(x, dtype=dtype, device=device)).astype(rt.float64).numpy()
    slopes = gradient(f, x, device, dtype)
    leaf = rt.tensor(x, dtype=dtype, device=device).require_grad()
    with ra.record(order=2):
        twice = f(leaf)
    ulp = 2.0**-10 if dtype == rt.float16 else 2.0**-7
    close(twice.astype(rt.float64), once, rtol=ulp, atol=1e-4)
    close(rt.sum(twice).backward()[leaf].astype(rt.float64), slopes, rtol=2 * ulp, atol=1e-3)


def test_DTYPE_05_gelu_for_second_order_is_finite_at_every_size(device):
    for dtype in (rt.float32, rt.float64):
        x = rt.tensor([1e30, -1e30, 1e4, -1e4], dtype=dtype, device=device)
        g = ra.grad(lambda x: rt.sum(rt.gelu(x, "tanh")), order=2)(x)
        close(g, [1, 0, 1, 0])
        close(ra.grad(lambda x: rt.sum(ra.grad(lambda x: rt.sum(rt.gelu(x, "tanh")))(x)))(x), np.zeros(4))
