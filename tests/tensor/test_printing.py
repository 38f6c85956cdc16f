"""repr: what is shown, and that it is quick on large tensors and deep graphs."""
from __future__ import annotations

import time

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.printing import describe

from ._helpers import CPU


def test_values_and_what_the_tensor_is(device):
    x = rt.tensor([[1.0, 2.5], [3.0, -4.0]], device=device)
    values = "[[ 1. ,  2.5],\n        [ 3. , -4. ]]"
    expected = f"Tensor({values}, shape=(2, 2), dtype=float32, device={device!r}, untracked)"
    assert repr(x) == describe(x) == str(x) == expected


def test_the_place_on_the_tape_is_named():
    x = rt.tensor([1.0], device=CPU).require_grad()
    assert repr(x).endswith("device=Cpu(), tracked leaf)")
    assert repr(rt.exp(x)).endswith("tracked, made by exp)")
    assert repr(rt.gelu(x)).endswith("tracked, made by gelu)")
    assert repr(rt.concat([x, x])).endswith("tracked, made by concat)")
    assert repr(x.detach()).endswith("untracked)")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "bfloat16", "float64"])
def test_every_kind_of_dtype(dtype, device):
    x = rt.tensor([True, False], device=device).astype(dtype)
    shown = "[ True, False]" if dtype == "bool" else "[1., 0.]" if "float" in dtype else "[1, 0]"
    assert repr(x) == f"Tensor({shown}, shape=(2,), dtype={dtype}, device={device!r}, untracked)"


def test_special_shapes_and_values(device):
    assert repr(rt.tensor(2.5, device=device)).startswith("Tensor(2.5, shape=(), ")
    assert repr(rt.zeros((0, 3), device=device)).startswith("Tensor([], shape=(0, 3), ")
    assert repr(rt.tensor([rt.nan, rt.inf, -rt.inf, -0.0], device=device)).startswith("Tensor([ nan,  inf, -inf,  -0.]")
    assert "subnormal" not in repr(rt.tensor([1e-42], device=device))


@pytest.mark.parametrize("shape", [(1001,), (40, 30), (7, 200), (2, 3, 500), (11, 11, 11)])
def test_many_elements_are_abbreviated_as_numpy_does(shape, device):
    a = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    expected = np.array2string(a, separator=", ", prefix="Tensor(", threshold=0)
    assert repr(rt.tensor(a, device=device)).startswith(f"Tensor({expected}, shape={shape}, ")


def test_a_large_tensor_is_shown_at_once(device):
    x = rt.broadcast_to(rt.ones((1, 1), device=device), (200_000, 200_000))
    start = time.perf_counter()
    shown = repr(x)
    assert len(shown) < 600 and time.perf_counter() - start < 1.0


def test_TAPE_01_the_end_of_a_deep_graph_is_shown():
    x = y = rt.tensor(1.0, device=CPU).require_grad()
    for _ in range(20_000):
        y = y + 0.0
    assert repr(y) == "Tensor(1., shape=(), dtype=float32, device=Cpu(), tracked, made by add)"
    assert repr(x).endswith("tracked leaf)")
