"""The tape: accumulation, consumption, depth, lifetime, modes. Ids are those of the project's case list."""
from __future__ import annotations

import copy
import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import GraphConsumed, enable_grad, grad, is_recording, no_grad, record
from ruda_autodiff.tape import mode


def leaf(values, dtype=rt.float64, device=None):
    return rt.tensor(values, dtype=dtype, device=device or rt.Cpu()).require_grad()


def test_fan_out_sums_and_never_writes_into_a_borrowed_gradient(device):
    x, y = leaf([1.0, 2.0], device=device), leaf([3.0, 4.0], device=device)
    a = x + y  # the same incoming gradient is handed to both
    loss = (a + x + x + x * 2.0 + y).sum()
    g = loss.backward()
    assert g[x].numpy().tolist() == [5.0, 5.0] and g[y].numpy().tolist() == [2.0, 2.0]


def test_many_uses_of_one_tensor_accumulate_in_place(device):
    x = leaf(np.ones(5), device=device)
    total = x
    for k in range(1, 50):
        total = total + x * float(k)
    assert total.sum().backward()[x].numpy().tolist() == [1.0 + sum(range(1, 50))] * 5


def test_the_sum_of_gradients_is_not_shared_with_the_parts(device):
    x = leaf([1.0], device=device)
    y = x * 1.0
    z = (y + y) + (x + x)
    g = z.backward()
    assert g[x].numpy().tolist() == [4.0]


@pytest.mark.parametrize("shape", [(1,), (), (1, 1, 1), (1, 4), (5, 1)])
def test_SHAPE_01_broadcasting_is_undone(shape, device):
    a = leaf(np.full(shape, 2.0), device=device)
    b = leaf(np.arange(20.0).reshape(5, 4), device=device)
    g = ((a * b) ** 2).sum().backward()
    full = 2 * 2.0 * np.arange(20.0).reshape(5, 4) ** 2
    expected = full
    while expected.ndim > len(shape):
        expected = expected.sum(0)
    for axis, n in enumerate(shape):
        if n == 1 and expected.ndim > axis:
            expected = expected.sum(axis, keepdims=True)
    assert g[a].shape == shape and g[b].shape == (5, 4)
    np.testing.assert_allclose(g[a].numpy().sum(), full.sum())
    if len(shape) <= 2:
        np.testing.assert_allclose(g[a].numpy(), expected.reshape(shape))


def test_SHAPE_01_row_against_column(device):
    a = leaf([[1.0], [2.0], [3.0], [4.0]], device=device)
    b = leaf([[1.0, 2.0, 3.0]], device=device)
    g = ((a * b) ** 2).sum().backward()
    assert g[a].numpy().tolist() == [[28.0], [56.0], [84.0], [112.0]] and g[b].numpy().tolist() == [[60.0, 120.0, 180.0]]


@pytest.mark.parametrize("shape", [(4, 1), (), (1, 1)])
def test_SHAPE_02_length_one_against_length_zero(shape, device):
    b = leaf(np.ones(shape), device=device)
    loss = (rt.zeros((4, 0), dtype=rt.float64, device=device) + b).sum()
    g = loss.backward()
    assert loss.item() == 0.0 and g[b].shape == shape and not g[b].numpy().any()


def test_TAPE_01_a_chain_of_200000_operations():
    x = leaf(1.0)
    y = x
    for _ in range(200_000):
        y = y + 0.0
    assert "()" in repr(y) or "1." in repr(y)
    assert copy.deepcopy(y).item() == 1.0
    assert y.backward()[x].item() == 1.0


def test_TAPE_01_a_deep_chain_recorded_for_second_order():
    x = leaf(2.0)
    with record(order=2):
        y = x
        for _ in range(20_000):
            y = y * 1.0
        y = y * y
    g = y.backward(order=2)[x]
    assert g.item() == 4.0 and g.backward()[x].item() == 2.0


def test_TAPE_02_a_deep_graph_dies_quietly_even_on_a_small_stack():
    program = """
import gc, threading
import ruda_tensor as rt, ruda_autodiff
def build():
    y = rt.tensor(1.0, device=rt.Cpu()).require_grad()
    for _ in range(200_000):
        y = y * 1.0
    return y
y = build(); del y; gc.collect()
threading.stack_size(256 * 1024)
holder = [build()]
thread = threading.Thread(target=holder.clear)
thread.start(); thread.join(); gc.collect()
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.strip() == "alive", done.stderr


@pytest.mark.parametrize("name", ["exp", "sigmoid", "softmax", "tanh", "sqrt"])
def test_TAPE_03_operations_that_keep_their_result_make_no_cycle(name):
    x = leaf([0.5, 0.25])
    gc.collect()
    gc.disable()
    try:
        for backward in (False, True):
            y = getattr(rt, name)(x)
            ref, node = weakref.ref(y), weakref.ref(y._node)
            if backward:
                y.sum().backward()
            del y
            assert ref() is None and node() is None
    finally:
        gc.enable()


def test_TAPE_04_differentiable_gradients_leave_nothing_behind():
    gc.collect()
    gc.disable()
    try:
        x = leaf([0.5])
        with record(order=2):
            y = rt.tanh(x).sum()
        node = weakref.ref(y._node)
        g = y.backward(order=2)
        del y, g
        assert node() is None
    finally:
        gc.enable()


def test_TAPE_05_kept_values_cannot_be_changed_from_outside():
    x = leaf([2.0, 3.0])
    y = x * x
    shared = np.asarray(x.detach())
    with pytest.raises(ValueError, match="read-only"):
        shared[...] = 10.0
    with pytest.raises(ValueError, match="read-only"):
        shared.T[...] = 10.0
    with pytest.raises(TypeError, match="immutable"):
        x[0] = 10.0
    assert y.backward()[x].numpy().tolist() == [4.0, 6.0]


def test_TAPE_05_a_source_array_is_copied():
    source = np.array([2.0, 3.0])
    x = rt.tensor(source, device=rt.Cpu()).require_grad()
    y = x * x
    source[...] = 10.0
    assert y.backward()[x].numpy().tolist() == [4.0, 6.0]


def test_TAPE_08_a_second_backward_raises_or_repeats_the_first():
    x = leaf(3.0)
    z = (x * x) * (x * x)
    first = z.backward(retain_graph=True)[x].item()
    assert first == 108.0 and z.backward()[x].item() == 108.0
    with pytest.raises(GraphConsumed, match="retain_graph=True"):
        z.backward()


def test_a_graph_that_shares_a_consumed_part_raises_and_names_the_operation():
    x = leaf([1.0])
    middle = rt.exp(x)
    other = (middle * 2.0).sum()
    middle.sum().backward()
    with pytest.raises(GraphConsumed, match="'exp'"):
        other.backward()


def test_TAPE_10_a_generator_has_no_grad_only_while_it_runs():
    @no_grad()
    def produce():
        yield is_recording()
        yield is_recording()

    seen = []
    for inside in produce():
        seen.append((inside, is_recording()))
    assert seen == [(False, True), (False, True)]


def test_TAPE_10_modes_come_back_after_an_exception():
    with pytest.raises(KeyError), no_grad():
        raise KeyError("x")
    assert is_recording()
    with pytest.raises(KeyError), record(order=2):
        raise KeyError("x")
    assert mode.order == 1


def test_TAPE_10_threads_do_not_share_their_mode():
    with no_grad(), ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: is_recording(), range(4))) == [True] * 4
    barrier, seen = threading.Barrier(2), {}

    def toggle(name, manager):
        with manager:
            barrier.wait()
            seen[name] = is_recording()
            barrier.wait()

    threads = [threading.Thread(target=toggle, args=a) for a in (("off", no_grad()), ("on", enable_grad()))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == {"off": False, "on": True}


def test_two_threads_walk_graphs_that_share_a_leaf():
    x = leaf(np.arange(100.0))

    def work(k):
        return [(x * float(k)).sum().backward()[x].numpy()[0] for _ in range(50)]

    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(work, range(4))):
            assert found == [float(k)] * 50


def test_memory_after_backward_with_the_loss_still_held():
    from ruda_autodiff import memory_report

    x = leaf(np.ones(1000))
    y = x
    for _ in range(10):
        y = rt.exp(-y)
    loss = y.sum()
    before = memory_report(loss).total
    loss.backward()
    assert before >= 10 * 8000 and memory_report(loss).total == 0


@pytest.mark.parametrize("dtype", [rt.int32, rt.bool, rt.uint8])
def test_DTYPE_08_integers_cannot_require_gradients(dtype):
    with pytest.raises(TypeError, match="astype"):
        rt.zeros((2,), dtype=dtype, device=rt.Cpu()).require_grad()


def test_errors_of_backward_and_gradients():
    x, other = leaf([1.0, 2.0]), leaf([1.0])
    with pytest.raises(RuntimeError, match="require_grad"):
        rt.ones(2, device=rt.Cpu()).backward()
    with pytest.raises(ValueError, match="order"):
        x.sum().backward(order=3)
    g = (x * 2.0).backward()
    assert other.grad(g) is None and g.get(other) is None and other not in g and x in g and len(g) == 1
    with pytest.raises(KeyError, match="took part"):
        g[other]
    with pytest.raises(KeyError, match="not tracked"):
        g[rt.ones(2, device=rt.Cpu())]
    g.replace(x, rt.zeros(2, dtype=rt.float64, device=rt.Cpu()))
    assert g[x].numpy().tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="leaf"):
        g.replace(x, rt.zeros(3, dtype=rt.float64, device=rt.Cpu()))
    assert g.remove(x) is not None and g.remove(x) is None


def test_an_error_inside_a_rule_leaves_the_mode_as_it_was():
    from ruda_autodiff import custom_gradient

    @custom_gradient
    def broken(x):
        def rule(g):
            raise ZeroDivisionError

        return x * 1.0, rule

    x = leaf([1.0])
    with pytest.raises(ZeroDivisionError):
        broken(x).sum().backward()
    assert is_recording() and (x * 2.0).is_require_grad()


def test_half_precision_gradients_are_half_and_computed_in_float32(device):
    for dtype in (rt.float16, rt.bfloat16):
        x = leaf([0.1, 0.25], dtype=dtype, device=device)
        g = rt.tanh(x * 3.0).sum().backward()[x]
        assert g.dtype == dtype
        exact = 3.0 * (1 - np.tanh(3.0 * np.array([0.1, 0.25])) ** 2)
        np.testing.assert_allclose(g.astype(rt.float32).numpy(), exact, rtol=0.03)


def test_gradient_through_a_cast_comes_back_in_the_input_s_dtype(device):
    x = leaf([1.0, 2.0], dtype=rt.float16, device=device)
    g = (x.astype(rt.float64) ** 3).sum().backward()[x]
    assert g.dtype == rt.float16 and g.astype(rt.float32).numpy().tolist() == [3.0, 12.0]


def test_nested_gradient_of_a_captured_tensor():
    x = leaf([2.0])

    def outer(t):
        return (grad(lambda u: (u * u * t).sum())(x.detach()) * t).sum()  # d/du (u^2 t) = 2 u t

    assert grad(outer)(x.detach()).item() == 2 * 2 * 2.0 * 2.0


def test_TAPE_10_settings_may_end_in_any_order():
    def inside():
        with no_grad():
            yield
            yield

    a, b = inside(), inside()
    next(a)
    next(b)
    a.close()
    assert not is_recording()
    b.close()
    assert is_recording()


@pytest.mark.parametrize("uses", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("retain", [False, True])
def test_a_half_gradient_of_several_uses_is_rounded_once(device, uses, retain):
    weights = [1.0, 2.0**-8, 2.0**-8, 2.0**-8, 2.0**-8][:uses]  # bfloat16 has 8 bits: one by one, all but the first are lost
    expected = rt.tensor([sum(weights)], device=device).astype(rt.bfloat16).astype(rt.float32).tolist()
    parts = [rt.tensor([w], dtype=rt.bfloat16, device=device) for w in weights]

    def f(x):
        y = x * 1.0
        total = y * parts[0]
        for part in parts[1:]:
            total = total.astype(rt.float32) + (y * part).astype(rt.float32)
        return total.astype(rt.float32).sum()

    x = leaf([1.0], dtype=rt.bfloat16, device=device)
    assert f(x).backward(retain_graph=retain)[x].astype(rt.float32).tolist() == expected
    assert grad(f)(x.detach()).astype(rt.float32).tolist() == expected
    several = grad(lambda x: sum((x * part).astype(rt.float32).sum() for part in parts))(x.detach())
    assert several.astype(rt.float32).tolist() == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_DTYPE_02_a_leaf_used_many_times_sums_its_gradient_in_float32(dtype, device):
    x = leaf([1.0], dtype=getattr(rt, dtype), device=device)
    y = x
    for _ in range(4095):
        y = y + x
    g = y.backward()[x]
    assert g.dtype == getattr(rt, dtype) and g.astype(rt.float32).item() == 4096.0


@pytest.mark.parametrize("cut", ["iter", "unstack", "split"])
def test_pieces_of_a_tensor_share_one_gradient_node(cut, device):
    x = leaf(np.arange(12.0).reshape(4, 3), device=device)
    parts = {"iter": list, "unstack": rt.unstack, "split": lambda x: rt.split(x, [1, 2, 1])}[cut](x)
    owners = {part._node.parents[0] for part in parts}
    assert len(owners) == 1
    loss = (parts[0] * 2.0).sum() + (parts[2] * parts[2]).sum()  # parts[1] takes no part
    g = loss.backward()[x].numpy()
    row = 2 if cut != "split" else 3
    expected = np.zeros((4, 3))
    expected[0], expected[row] = 2.0, 2.0 * np.arange(12.0).reshape(4, 3)[row]
    np.testing.assert_array_equal(g, expected)
    cubes = grad(lambda t: sum(((row * row * row).sum() for row in t), rt.zeros((), dtype=t.dtype, device=device)))
    np.testing.assert_allclose(grad(lambda t: cubes(t).sum())(x.detach()).numpy(), 6.0 * np.arange(12.0).reshape(4, 3))


@pytest.mark.parametrize("launches", [False, True])
def test_who_writes_to_a_gradient_spoils_no_later_one(device, monkeypatch, launches):
    """As another library may, by way of DLPack: the gradients of a sum are views of its seed."""
    if device.kind == "cpu":
        monkeypatch.setattr(rt.Cpu, "launches", launches)
    for root in (lambda x: x, lambda x: x.reshape(())):
        x = rt.tensor(2.0, device=device).require_grad()
        root(x).backward()[x]._data[...] = 5.0
        assert root(x).backward()[x].item() == 1.0
