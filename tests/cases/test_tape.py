"""Neighbours of the tape cases: custom operations and checkpoints in the places of built-in ones."""
from __future__ import annotations

import asyncio
import gc
import pickle
import weakref

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, checkpoint, custom_gradient, grad, hessian, is_recording, no_grad, value_and_grad, vjp
from tests.tensor._helpers import close


@custom_gradient
def product(x, y):
    return x * y, lambda g: (g * y, g * x)


@custom_gradient
def double_and_place(x):
    """A differentiable result that the rule keeps, and an integer one."""
    y = x * 2.0
    return (y, rt.argmax(x)), lambda a, b: a * 2.0 + y * 0.0


def leaf(values, device):
    return rt.tensor(values, device=device).require_grad()


def test_TAPE_12_a_custom_operation_refuses_tracked_tensors_it_would_drop(device):
    x, w = leaf([1.0, 2.0], device), leaf([3.0, 4.0], device)
    pair = custom_gradient(lambda xs: (xs[0] * xs[1], lambda g: (g, g)))
    for call in (lambda: product(x, y=w), lambda: product(x.detach(), y=w), lambda: pair([x, w]), lambda: pair({0: x, 1: w})):
        with pytest.raises(TypeError, match="by position"):
            call()
    assert product(x.detach(), y=w.detach()).tolist() == [3, 8]
    with no_grad():
        assert product(x, y=w).tolist() == [3, 8]
    found = rt.sum(product(x, w)).backward()
    close(found[x], [3, 4])
    close(found[w], [1, 2])


def test_DTYPE_08_integer_results_of_a_custom_operation_are_constants(device):
    x = leaf([1.0, 3.0], device)
    y, place = double_and_place(x)
    assert y.is_require_grad() and not place.is_require_grad() and place.item() == 1
    close(rt.sum(y * rt.astype(place, y.dtype)).backward()[x], [2, 2])


@pytest.mark.parametrize("how", ["custom", "several results", "checkpoint", "balanced"])
def test_TAPE_03_own_operations_make_no_cycle(how, device):
    x = Autodiff(device, checkpointing="balanced").leaf(rt.ones(3, device=device)) if how == "balanced" else leaf([1.0], device)
    f = {
        "custom": lambda x: product(x, x), "several results": lambda x: double_and_place(x)[0],
        "checkpoint": checkpoint(lambda x: rt.exp(rt.sigmoid(x))), "balanced": lambda x: rt.softmax(rt.exp(x)),
    }[how]  # fmt: skip
    gc.collect()
    gc.disable()
    try:
        for backward in (False, True):
            y = f(x)
            tensor, node = weakref.ref(y), weakref.ref(y._node)
            if backward:
                rt.sum(y).backward()
            del y
            assert tensor() is None and node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["custom", "several results", "checkpoint", "balanced", "concat", "composite", "index"])
def test_TAPE_01_deep_graphs_of_every_kind_of_node(how, device):
    x = y = Autodiff(device, checkpointing="balanced" if how == "balanced" else "none").leaf(rt.ones(2, device=device) * 0.5)
    half = rt.tensor([0.5, 0.5], device=device)
    f = {
        "custom": lambda y: product(y, half) * 2.0, "several results": lambda y: double_and_place(y)[0] * 0.5,
        "checkpoint": checkpoint(lambda y: y * 1.0), "balanced": lambda y: rt.tanh(y) * 1.0,
        "concat": lambda y: rt.concat([y, y])[:2], "composite": rt.log_softmax, "index": lambda y: y[[1, 0]],
    }[how]  # fmt: skip
    for _ in range(2500):
        y = f(y)
    assert np.isfinite(rt.sum(y).backward()[x].numpy()).all()


def test_TAPE_05_no_buffer_of_pickle_reaches_the_memory_of_a_tensor():
    x = rt.tensor([2.0, 3.0], device=rt.Cpu()).require_grad()
    y, buffers = x * x, []
    data = pickle.dumps(x, protocol=5, buffer_callback=buffers.append)
    assert all(b.raw().readonly for b in buffers)
    own = [bytearray(b) for b in buffers]
    again = pickle.loads(data, buffers=own)
    squares = again * again
    for b in own:
        b[:] = bytes(len(b))
    assert again.tolist() == [2, 3] and squares.backward()[again].tolist() == [4, 6]
    assert y.backward()[x].tolist() == [4, 6]


def test_TAPE_12_transforms_take_integers_of_any_library(device):
    x, y = rt.tensor(3.0, device=device), rt.tensor(2.0, device=device)
    assert grad(lambda x, y: x * x * y, np.int64(1))(x, y).item() == 9
    first, second = grad(lambda x, y: x * x * y, (np.int64(0), 1))(x, y)
    assert (first.item(), second.item()) == (12, 9)
    with pytest.raises(TypeError):
        grad(lambda x: x, "x")(x)


def test_TAPE_12_functions_that_return_their_input_or_a_constant(device):
    x = rt.tensor([1.0, 2.0], device=device)
    value, g = value_and_grad(lambda x: x)(x[0])
    assert (value.item(), g.item()) == (1, 1)
    assert vjp(lambda x: (x, x), x)[1](x, x)[0].tolist() == [2, 4]
    assert grad(lambda x: rt.tensor(5.0, device=device))(x).tolist() == [0, 0]
    assert not hessian(lambda x: rt.tensor(1.0, device=device))(x).numpy().any()
    t = leaf([1.0, 2.0], device)
    close(rt.sum(checkpoint(lambda x: x)(t)).backward()[t], [1, 1])
    a, b = checkpoint(lambda x: (x, x * 2.0))(t)
    close(rt.sum(a * b).backward()[t], [4, 8])


def test_TAPE_08_operations_with_several_results_can_be_walked_twice(device):
    x = leaf([1.0, 2.0], device)
    y = rt.sum(double_and_place(x)[0] * x)
    first = y.backward(retain_graph=True)[x].tolist()
    assert first == y.backward()[x].tolist() == [4, 8]
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()


def test_TAPE_10_a_coroutine_has_no_grad_only_while_it_runs():
    @no_grad()
    async def load(seen):
        seen.append(is_recording())
        await asyncio.sleep(0)
        seen.append(is_recording())
        return "loaded"

    async def main():
        seen, own = [], []
        task = asyncio.gather(load(seen), load(seen))
        while not task.done():
            own.append(is_recording())
            await asyncio.sleep(0)
        return seen, own, task.result()

    seen, own, found = asyncio.run(main())
    assert seen == [False] * 4 and own and all(own) and found == ["loaded", "loaded"]
    with pytest.raises(TypeError, match="decorates functions, not a class"):
        no_grad()(type("Model", (), {}))


SETTINGS = {
    "full": lambda x, s: rt.full((2,), s),
    "full_like": lambda x, s: rt.full_like(x, s),
    "linspace": lambda x, s: rt.linspace(0.0, s, 3),
    "arange": lambda x, s: rt.arange(0.0, s, 0.25),
    "leaky_relu": lambda x, s: rt.leaky_relu(x, s),
    "elu": lambda x, s: rt.elu(x, s),
    "softplus": lambda x, s: rt.softplus(x, s),
    "smooth_l1": lambda x, s: rt.smooth_l1(x, 3.0, beta=s),
    "huber": lambda x, s: rt.huber(x, 3.0, delta=s),
    "cross_entropy": lambda x, s: rt.cross_entropy(x, rt.tensor([0, 1], device=x.device), label_smoothing=s),
    "batch_norm": lambda x, s: rt.batch_norm(x, rt.zeros_like(x[0]), rt.ones_like(x[0]), training=True, momentum=s)[1],
    "layer_norm": lambda x, s: rt.layer_norm(x, eps=s),
    "dropout": lambda x, s: rt.dropout(x, s, training=True),
    "norm": lambda x, s: rt.norm(x, ord=s),
    "pad": lambda x, s: rt.pad(x, 1, value=s),
    "attention": lambda x, s: rt.scaled_dot_product_attention(x, x, x, scale=s),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_TAPE_12_a_number_that_is_a_tracked_tensor_is_not_dropped_unseen(name):
    x = rt.tensor([[0.5, -1.0], [2.0, 3.0]], device=rt.Cpu())
    number = 2.0 if name == "norm" else 0.5
    found = []
    for same in (number, np.float32(number)):  # NumPy's numbers are as good as Python's
        rt.random.seed(3)
        found.append(SETTINGS[name](x, same).numpy())
    np.testing.assert_array_equal(*found)
    with pytest.raises((TypeError, ValueError), match=r"number.*tracked|numbers, and.*would lose its gradient"):
        SETTINGS[name](x, rt.tensor(number, device=rt.Cpu()).require_grad())


def test_filling_with_a_tracked_number_is_fine_where_nothing_is_recorded():
    x = rt.tensor(0.5, dtype=rt.float64, device=rt.Cpu()).require_grad()
    with no_grad():
        assert rt.full(2, x, device=rt.Cpu()).tolist() == [0.5, 0.5] and rt.full(2, x, device=rt.Cpu()).dtype == rt.float64
    assert rt.full(2, x.detach(), device=rt.Cpu()).tolist() == [0.5, 0.5]
