"""Looking at ids by a kernel: what it says of them, and the errors of those who ask it."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.ids import look
from ruda_tensor.kernels.launch import HITS

from ._hooks import launching

DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 255, 1025, 70_000])
@pytest.mark.parametrize("bad", [None, "first", "last", "ignored", "both"])
def test_what_is_seen_is_what_numpy_says(place, rng, dtype, n, bad):
    if place.kind == "cpu" and n > 2000 and dtype != "int32":
        n = 2000
    count, ignore, info = 100, 101, np.iinfo(dtype)
    ids = rng.integers(0, count, n).astype(dtype)
    beyond = [v for v in (info.min, info.max, count) if not 0 <= v < count]
    for at, name in ((0, "first"), (-1, "last")):
        if bad in (name, "both"):
            ids[at] = beyond[n % len(beyond)]
    if bad in ("ignored", "both"):
        ids[n // 2] = ignore
    for x in (ids, np.repeat(ids, 2)[::2]):  # the second is strided
        seen = look(place.xp, place.xp.asarray(x) if place.kind == "cuda" else x, count, ignore)
        assert seen is not None
        wide = ids.astype(np.int64)
        outside = wide.view(np.uint64) >= count
        assert np.array_equal(backend.to_host(seen.ids), wide) and seen.ids.dtype == np.int64
        assert seen.outside == outside.any() and seen.wrong == (outside & (wide != ignore)).any()


def test_what_is_not_looked_at(place):
    ids = place.xp.zeros(3, np.int64)
    assert look(place.xp, ids, 5) is not None
    assert look(place.xp, ids[:0], 5) is None and look(place.xp, ids, 5, 1 << 63) is None
    assert look(place.xp, ids.astype(np.bool_), 5) is None
    with use_fused(False):
        assert look(place.xp, ids, 5) is None


@pytest.mark.parametrize("dtype", [rt.int32, rt.int64, rt.uint8], ids=str)
def test_cross_entropy_and_take_raise_as_without_it(place, dtype):
    logits, table = rt.ones((4, 3), device=place), rt.ones((3, 2), device=place)

    def outcome(values, fused):
        ids, found = rt.tensor(values, dtype=dtype, device=place), []
        with use_fused(fused):
            for f in (
                lambda: rt.cross_entropy(logits, ids).item(),
                lambda: rt.cross_entropy(logits, ids, ignore_index=9).item(),
                lambda: rt.cross_entropy(logits, ids, ignore_index=1).item(),
                lambda: rt.take(table, ids, axis=0).tolist(),
            ):
                try:
                    found.append(f())
                except IndexError as error:
                    found.append(str(error))
        return found

    signed = [] if dtype == rt.uint8 else [[0, -1, 2, 1], [0, -100, 2, -5]]
    for values in ([0, 1, 2, 2], [0, 1, 2, 3], [9, 9, 1, 0], [9, 3, 1, 1], *signed):
        before = HITS["check_ids"]
        with_kernel, without = outcome(values, True), outcome(values, False)
        assert HITS["check_ids"] > before
        for a, b in zip(with_kernel, without, strict=True):
            assert a == b if isinstance(a, (str, list)) else a == pytest.approx(b, rel=1e-6)


def test_an_id_after_a_bad_one_is_seen_anew(place):
    logits = rt.ones((2, 3), device=place)
    with pytest.raises(IndexError, match="target 5 is no class"):
        rt.cross_entropy(logits, rt.tensor([0, 5], device=place))
    assert rt.cross_entropy(logits, rt.tensor([0, 2], device=place)).item() == pytest.approx(np.log(3), rel=1e-6)
