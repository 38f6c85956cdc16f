"""Embeddings and their gradients: rows picked by number, and added by number without atomics."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import segments
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS
from ruda_tensor.ops import _keys, _picking, cross_entropy, index

from . import _cases as cases
from . import _segments
from ._hooks import launching
from ._shim import ALL


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.fixture
def xp(place):
    poisoned = cases.Poisoned(place.xp)
    yield poisoned
    poisoned.check()


@pytest.fixture
def captured(monkeypatch):
    """As in a step that is being captured, when no number may be read on the host."""
    for module in (_keys, _picking, index, cross_entropy):
        monkeypatch.setattr(module, "capturing", lambda: True)


# One block and its last places, few blocks, many, so many that their totals are scanned, and one to four digits.
SORTS = [(1, 1), (2, 300), (33, 7), (1024, 2**31 - 1), (1025, 300), (16384, 50304), (32_769, 70_000), (131_073, 9)]


@pytest.mark.parametrize(("n", "size"), SORTS)
def test_ids_are_sorted_and_equal_ones_keep_their_order(xp, rng, n, size):
    _segments.ordered(xp, rng, n, size)


SHAPES = [(1, 1, 1), (17, 3, 7), (100, 1, 8), (1000, 2000, 33), (300, 5, 264), (4001, 2, 40), (70_000, 3, 1)]


@pytest.mark.parametrize("dtype", cases.DTYPES if ALL else (FLOAT32, BFLOAT16), ids=str)
@pytest.mark.parametrize(("n", "size", "width"), SHAPES)
def test_rows_are_added_by_number(xp, rng, dtype, n, size, width):
    for bad, shift in ((False, 0), (True, 1)):
        _segments.added(xp, rng, dtype, n, size, width, bad=bad, shift=shift)
        _segments.picked(xp, rng, dtype, n, size, width, bad=bad, shift=shift)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.bool_, FLOAT64], ids=str)
def test_rows_of_any_dtype_are_picked(xp, rng, dtype):
    for width in (1, 3, 16):
        for shift in (0, 1):
            _segments.picked(xp, rng, np.dtype(dtype), 50, 9, width, bad=dtype is not np.bool_, shift=shift)


@pytest.mark.parametrize("edge", [0, 15, 31, 32, 33, 63, 64, 96])
def test_a_run_of_equal_ids_may_end_anywhere(xp, rng, edge):
    """Tiles have 32 places here: runs that end with one, go on into the next, or fill several."""
    ids = np.concatenate([np.full(edge, 3), np.full(40, 1), np.full(9, 0), np.full(32, 5), np.full(3, 9)])
    _segments.added(xp, rng, FLOAT32, len(ids), 7, 5, ids=rng.permutation(ids), bad=True)


def test_what_is_added_is_in_the_order_of_the_ids(xp):
    """In float32 1e8 + 1 - 1e8 is 0 and 1e8 - 1e8 + 1 is 1: bit by bit the sums of NumPy's own loop."""
    rows = np.array([1e8, 1, -1e8, 1e8, -1e8, 1], np.float32)[:, None]
    ids = np.array([2, 2, 2, 0, 0, 0])
    assert backend.to_host(segments.accumulate(xp, xp.asarray(rows), xp.asarray(ids), 3)).tolist() == [[1], [0], [0]]


def test_nan_and_inf_stay_in_their_rows(xp):
    rows = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, 1], [2, 1]], np.float32)
    for ids, expected in (([0, 1, 2, 3], rows), ([0, 1, 1, 3], [[np.nan, 1], [np.nan, 2], [0, 0], [2, 1]])):
        found = backend.to_host(segments.accumulate(xp, xp.asarray(rows), xp.asarray(np.array(ids)), 4))
        assert np.array_equal(found, expected, equal_nan=True)


def test_declined_are_integers_and_empty_arrays(place, xp):
    ids = xp.asarray(np.zeros(3, np.int64))
    assert segments.accumulate(xp, xp.ones((3, 2), np.int32), ids, 4) is None
    assert segments.accumulate(xp, xp.ones((3, 0), np.float32), ids, 4) is None
    assert segments.take(xp, xp.ones((4, 0), np.float32), ids, 0) is None
    assert segments.take(xp, xp.ones((4, 2), np.float32).T, ids, 0) is None, "strided"
    assert segments.take(xp, xp.ones((2, 4), np.float32), ids, 1) is None, "another axis"
    HITS.clear()
    for x, i in ((rt.zeros((3, 2), device=place), np.zeros((0, 4), int)), (rt.zeros((3, 0), device=place), [[0, 1]])):
        leaf = x.require_grad()
        y = rt.take(leaf, i, axis=0)
        assert leaf.grad(rt.sum(y).backward()).shape == x.shape
    assert not [name for name in HITS if "segment" in name or "take" in name]


@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16], ids=str)
def test_the_public_functions_use_them_and_agree_with_the_plain_bodies(place, dtype, rng):
    weight = rt.tensor(rng.standard_normal((50, 24)), dtype=dtype, device=place)
    ids = rt.tensor(rng.integers(-50, 50, (4, 9)), device=place)
    factor = rt.tensor(rng.integers(-8, 9, (4, 9, 24)) / 4.0, dtype=dtype, device=place)

    def run():
        leaf = weight.require_grad()
        y = rt.take(leaf, ids, axis=0)
        return y.detach().astype(rt.float64).numpy(), leaf.grad(rt.sum(y * factor).backward())

    HITS.clear()
    out, g = run()
    assert {"take_rows", "sort_ids_block", "segments_sum", "segments_finish"} <= set(HITS) and g.dtype == dtype
    with use_fused(False):
        expected = run()
    assert out.tobytes() == expected[0].tobytes()
    exact = np.zeros((50, 24))
    np.add.at(exact, ids.numpy().reshape(-1), factor.astype(rt.float64).numpy().reshape(-1, 24))
    for found in (g, expected[1]):
        assert found.astype(rt.float64).numpy().tobytes() == exact.tobytes(), "quarters are exact"


def test_scatter_add_and_segment_sum(place, rng):
    x, y = rng.standard_normal((7, 3)).astype(np.float32), rng.standard_normal((200, 3)).astype(np.float32)
    ids = rng.integers(0, 7, (200, 3))
    expected = x.astype(float)
    np.add.at(expected, (ids, np.arange(3)[None]), y)
    HITS.clear()
    found = rt.scatter_add(*[rt.tensor(a, device=place) for a in (x, ids, y)], axis=0)
    cases.close(found.numpy(), expected, slack=64)
    ids = rng.integers(-1, 7, 200)
    sums = np.zeros((8, 3))
    np.add.at(sums, np.where(ids < 0, 7, ids), y)
    cases.close(rt.segment_sum(rt.tensor(y, device=place), rt.tensor(ids, device=place), 7).numpy(), sums[:7], slack=64)
    assert HITS["segments_sum"] == 2


def test_eager_indices_are_looked_at(place):
    table = rt.ones((5, 3), device=place)
    for wrong in (5, -6, 2**31):
        with pytest.raises(IndexError, match=f"take: index {wrong} is out of range for an axis of size 5"):
            rt.take(table, [0, wrong], axis=0)
    assert rt.take(table, [4, -5], axis=0).shape == (2, 3)


@pytest.mark.parametrize("on", [True, False], ids=["kernels", "plain bodies"])
def test_an_id_out_of_range_in_a_captured_step_gives_nan(place, captured, on):
    if place.kind == "cpu" and not on:
        pytest.skip("NumPy's own take refuses them")
    values = np.arange(15.0, dtype=np.float32).reshape(5, 3)
    table = rt.tensor(values, device=place).require_grad()
    with use_fused(on):
        y = rt.take(table, rt.tensor([0, 5, -1, -6], device=place), axis=0)
        found = y.numpy()
        assert np.array_equal(found[[0, 2]], values[[0, 4]]) and np.isnan(found[[1, 3]]).all()
        if on:
            g = table.grad(rt.sum(y).backward()).numpy()
            assert g.tolist() == [[1.0] * 3, [0.0] * 3, [0.0] * 3, [0.0] * 3, [1.0] * 3], "and touches no row"
        for picked in (
            rt.take_along_axis(table.detach(), rt.tensor([[2], [3], [0], [0], [-9]], device=place)),
            rt.gather(table.detach(), rt.tensor([[2], [3], [0], [0], [-9]], device=place), axis=1),
        ):
            assert np.isnan(picked.numpy().ravel()).tolist() == [False, True, False, False, True]
        x = table.detach()[rt.tensor([0, 9], device=place), rt.tensor([1, 1], device=place)]
        assert x.numpy()[0] == 1 and np.isnan(x.numpy()[1])
        if on:
            one = table[rt.tensor([7], device=place)]
            assert np.isnan(one.numpy()).all()
            assert not table.grad(rt.sum(one).backward()).numpy().any()


def test_other_ids_in_a_captured_step(place, captured):
    hot = rt.one_hot(rt.tensor([1, 3], device=place), 3).numpy()
    assert hot[0].tolist() == [0, 1, 0] and np.isnan(hot[1]).all()
    x = rt.tensor([1.0, 2.0], device=place)
    assert np.isnan(rt.segment_sum(x, rt.tensor([0, 2], device=place), 2).numpy()).all()
    assert rt.segment_sum(x, rt.tensor([0, -1], device=place), 2).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("on", [True, False], ids=["kernels", "plain bodies"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_class_out_of_range_in_a_captured_step_gives_nan(place, captured, on, reduction, smoothing, rng, monkeypatch):
    for name in ("forward", "backward"):  # the CPU's own bodies are never captured
        monkeypatch.setattr(cross_entropy.host, name, lambda *args, **static: None)
    logits = rt.tensor(rng.standard_normal((4, 6)), dtype=rt.float32, device=place).require_grad()
    static = {"reduction": reduction, "label_smoothing": smoothing}
    with use_fused(on):
        for ids, wrong in (([0, 5, -100, 3], []), ([0, 6, -100, 3], [1]), ([-4, 5, -100, 3], [0])):
            loss = rt.cross_entropy(logits, rt.tensor(ids, device=place), **static)
            assert np.isnan(loss.numpy()).any() == bool(wrong)
            g = logits.grad(rt.sum(loss).backward()).numpy()
            assert np.isnan(g[wrong]).all() and not g[2].any() and (wrong or np.isfinite(g).all())
            if reduction == "none":
                assert np.isnan(loss.numpy()).nonzero()[0].tolist() == wrong and np.isfinite(g).all(1).sum() == 4 - len(wrong)


def test_many_ids_of_few_rows_bit_by_bit(xp, rng):
    n = 100_000 if xp.xp is not np else 4000
    ids, rows = xp.asarray(rng.integers(0, 7, n)), xp.asarray(rng.standard_normal((n, 64)).astype(np.float32))
    found = {backend.to_host(segments.accumulate(xp, rows, ids, 7)).tobytes() for _ in range(20 if xp.xp is not np else 2)}
    xp.made.clear()
    assert len(found) == 1
