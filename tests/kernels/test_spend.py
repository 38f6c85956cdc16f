"""The gradient of cross_entropy is written over the logits where nobody can see them again, and only there."""
from __future__ import annotations

import gc

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import GraphConsumed, anomaly_mode, checkpoint
from ruda_tensor.kernels import cross_entropy
from ruda_tensor.kernels.gate import use_fused

from ._hooks import launching

ROWS, WIDTH, CLASSES = 6, 5, 40


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.fixture
def spent(monkeypatch):
    """For each backward of cross_entropy, whether its gradient took the place of the logits."""
    seen: list[bool] = []
    plain = cross_entropy.backward

    def watched(*args, out=None, **static):
        seen.append(out is not None)
        return plain(*args, out=out, **static)

    monkeypatch.setattr(cross_entropy, "backward", watched)
    return seen


@pytest.fixture(params=[rt.float32, rt.bfloat16], ids=str)
def given(request, place):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, WIDTH)), rng.standard_normal((WIDTH, CLASSES))
    ids = rng.integers(0, CLASSES, ROWS)
    made = [rt.tensor(a, dtype=request.param, device=place).require_grad() for a in (x, w)]
    return *made, rt.tensor(ids, dtype=rt.int64, device=place)


def flat(logits):
    return rt.reshape(logits, (ROWS, CLASSES))


def loss_of(x, w, ids):
    return rt.cross_entropy(flat(rt.matmul(x, w)), ids)


def gradients(loss, *leaves, **options):
    found = loss.backward(**options)
    return [x.grad(found).astype(rt.float64).numpy().tobytes() for x in leaves]


@pytest.fixture
def expected(given):
    """The gradients where the logits are held all the time."""
    x, w, ids = given
    logits = rt.matmul(x, w)
    return gradients(rt.cross_entropy(flat(logits), ids), x, w)


def test_nobody_else_sees_them(given, expected, spent):
    x, w, ids = given
    spent.clear()
    assert gradients(loss_of(x, w, ids), x, w) == expected
    assert spent == [True], "also where they are a view of an array that died"

    def two_axes():
        return rt.matmul(rt.reshape(x, (ROWS, WIDTH)), w)

    held = two_axes()
    expected = gradients(rt.cross_entropy(held, ids), x, w)
    y = rt.cross_entropy(two_axes(), ids)  # outside of the assertion, which holds what it has computed
    assert gradients(y, x, w) == expected and spent == [True, False, True]


HOLDERS = {
    "the tensor": lambda logits: logits,
    "the tensor it is a view of": lambda logits: logits,
    "a view": lambda logits: logits[0],
    "a detached tensor": lambda logits: logits.detach(),
    "its array": lambda logits: logits._data,
    "a list": lambda logits: [logits],
    "a part of its array": lambda logits: logits._data[1:, ::2],
    "another operation": lambda logits: rt.softmax(logits) * 2.0,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_somebody_holds_them(name, given, expected, spent):
    x, w, ids = given
    logits = rt.matmul(x, w)
    before = logits.detach().astype(rt.float64).numpy().copy()
    view = flat(logits)
    if name == "the tensor":
        held, before = view, before.reshape(ROWS, CLASSES)
    else:
        held = HOLDERS[name](logits)
    loss = rt.cross_entropy(view, ids)
    del logits, view
    assert gradients(loss, x, w) == expected
    assert spent == [name == "another operation"], "multiplication by a number and softmax keep other arrays"
    if name == "the tensor":
        assert held.detach().astype(rt.float64).numpy().tobytes() == before.tobytes()
    elif name == "the tensor it is a view of":
        assert held.detach().astype(rt.float64).numpy().tobytes() == before.tobytes()
    elif name == "a part of its array":
        with x.device.guard():
            part = rt.Tensor._wrap(held.copy(), x.device).astype(rt.float64).numpy()
        assert part.tobytes() == before[1:, ::2].tobytes()


@pytest.mark.parametrize("first", [True, False])
def test_another_node_keeps_them(first, given, spent):
    """A penalty on the logits: its derivative needs them, before or after cross_entropy's own."""
    x, w, ids = given

    def both(held=None):
        logits = flat(rt.matmul(x, w))
        if held is not None:
            held.append(logits)
        terms = [lambda: rt.mean(logits * logits), lambda: rt.cross_entropy(logits, ids)]
        parts = [term() for term in (terms if first else terms[::-1])]
        return parts[0] + parts[1]

    kept: list = []
    expected = gradients(both(kept), x, w)
    assert gradients(both(), x, w) == expected
    # Pulled last, cross_entropy may have them: the other node is empty then.
    assert spent == [False, not first]


def test_the_operation_before_keeps_its_result(given, spent):
    x, w, ids = given

    def loss():
        return rt.cross_entropy(rt.softmax(flat(rt.matmul(x, w))), ids)

    with use_fused(False):
        expected = gradients(loss(), x, w)
    found = gradients(loss(), x, w)
    assert spent[-1] is False
    for a, b in zip(found, expected):
        a, b = np.frombuffer(a), np.frombuffer(b)
        assert np.abs(a - b).max() <= 2e-2 * np.abs(b).max()


def test_a_graph_that_is_kept(given, expected, spent):
    x, w, ids = given
    loss = loss_of(x, w, ids)
    assert gradients(loss, x, w, retain_graph=True) == expected
    assert gradients(loss, x, w, retain_graph=True) == expected
    assert spent == [False, False]
    assert gradients(loss, x, w) == expected and spent[2] is True, "the last time they may go"
    with pytest.raises(GraphConsumed):
        loss.backward()


def test_two_losses_of_the_same_logits(given, spent):
    x, w, ids = given
    logits = flat(rt.matmul(x, w))
    losses = [rt.cross_entropy(logits, ids), rt.cross_entropy(logits, (ids + 1) % CLASSES)]
    held = flat(rt.matmul(x, w))
    expected = gradients(rt.cross_entropy(held, ids) + rt.cross_entropy(held, (ids + 1) % CLASSES), x, w)
    del logits
    spent.clear()
    total = losses[0] + losses[1]
    del losses
    assert gradients(total, x, w) == expected
    assert spent == [False, True], "the second pull is the last reader"


def test_logits_that_are_the_caller_s_own_array(place, spent):
    values = np.linspace(-2.0, 2.0, ROWS * CLASSES, dtype=np.float32).reshape(ROWS, CLASSES)
    ids = rt.tensor(np.arange(ROWS), dtype=rt.int64, device=place)
    array = place.put(values.copy())
    leaf = rt.Tensor._wrap(array, place).require_grad()
    rt.cross_entropy(leaf, ids).backward()
    assert spent == [False]
    assert rt.Tensor._wrap(array, place).numpy().tobytes() == values.tobytes()


def test_memory_that_another_library_lent(place, spent):
    ids = rt.tensor(np.arange(ROWS), dtype=rt.int64, device=place)
    source = place.xp.ones((ROWS, CLASSES), np.float32)
    loss = rt.cross_entropy(rt.from_dlpack(source).require_grad(), ids)
    loss.backward()
    assert spent == [False] and bool((source == 1).all())
    if place.kind == "cpu":
        memory = bytearray(source.nbytes)
        lent = rt.Tensor._wrap(np.frombuffer(memory, np.float32).reshape(ROWS, -1), place)
        rt.cross_entropy(lent.require_grad(), ids).backward()
        assert spent == [False, False] and not any(memory)


def test_anomaly_mode_keeps_what_it_may_have_to_show(given, expected, spent):
    x, w, ids = given
    with anomaly_mode():
        assert gradients(loss_of(x, w, ids), x, w) == expected
    assert spent == [False]


def test_a_backward_that_fails_leaves_a_consumed_graph(given, spent, monkeypatch):
    x, w, ids = given
    loss = loss_of(x, w, ids)
    watched = cross_entropy.backward

    def failing(*args, **static):
        watched(*args, **static)
        raise MemoryError("full")

    with monkeypatch.context() as patch:
        patch.setattr(cross_entropy, "backward", failing)
        with pytest.raises(MemoryError):
            loss.backward()
    assert spent == [True]
    with pytest.raises(GraphConsumed, match="cross_entropy"):
        loss.backward()


def test_checkpointed_logits(given, expected, spent):
    x, w, ids = given
    assert gradients(checkpoint(loss_of)(x, w, ids), x, w) == expected
    logits = checkpoint(lambda x, w: rt.matmul(x, w))(x, w)
    assert gradients(rt.cross_entropy(flat(logits), ids), x, w) == expected
    assert spent[-1] is False


def test_the_buffer_is_the_gradient_s(given, spent):
    """Peak memory is the point: the gradient that reaches the product has the address of the logits."""
    x, w, ids = given
    loss = loss_of(x, w, ids)
    (kept, _), _ = loss._node.kept
    at = kept[0]._data.ctypes.data if x.device.kind == "cpu" else kept[0]._data.data.ptr
    del kept
    seen = []
    plain = cross_entropy.backward

    def watched(*args, **static):
        dx = plain(*args, **static)
        seen.append(dx.ctypes.data if x.device.kind == "cpu" else dx.data.ptr)
        return dx

    cross_entropy.backward = watched
    try:
        loss.backward()
    finally:
        cross_entropy.backward = plain
    assert seen == [at]
    gc.collect()
