"""Rows picked and added by number, against float64, over any array module."""
from __future__ import annotations

from typing import Any

import numpy as np

from ruda_tensor import backend
from ruda_tensor.kernels import segments

from ._cases import close, draw, put


def draw_ids(rng: Any, n: int, size: int, bad: bool) -> np.ndarray:
    """Ids of rows, from both ends, and where `bad` some that are none."""
    ids = rng.integers(-size, size, n)
    if bad:
        ids[::5], ids[1::7], ids[2::11] = size, -size - 1, -(2**63)
    return ids


def valid(ids: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows that ids mean, and which ids mean one."""
    with np.errstate(over="ignore"):
        rows = np.where(ids < 0, ids + size, ids)
    fine = (rows >= 0) & (rows < size)
    return np.where(fine, rows, size), fine


def ordered(xp: Any, rng: Any, n: int, size: int, bad: bool = True) -> list:
    """The stable sort of ids."""
    ids = draw_ids(rng, n, size, bad)
    found = backend.to_host(segments.sort_ids(xp, xp.asarray(ids), size))
    rows, _ = valid(ids, size)
    order = np.argsort(rows, kind="stable")
    assert np.array_equal(found[:n], rows[order]) and np.array_equal(found[n:], order)
    return [found]


def added(xp: Any, rng: Any, dtype: np.dtype, n: int, size: int, width: int, *, bad: bool = False, shift: int = 0,
          ids: Any = None) -> list:  # fmt: skip
    """Sums of rows by number, from nothing and onto something; rows without ids are 0 and untouched."""
    ids = draw_ids(rng, n, size, bad) if ids is None else ids
    rows, base = draw(rng, (n, width), dtype), draw(rng, (size, width), dtype)
    at, fine = valid(ids, size)
    sums = np.zeros((size, width))
    np.add.at(sums, at[fine], rows[fine].astype(float))
    counts = np.bincount(at[fine], minlength=size)
    x, where = put(xp, rows, shift), xp.asarray(ids)
    out, onto = segments.accumulate(xp, x, where, size), segments.add(xp, x, where, put(xp, base))
    scale = 4 * np.sqrt(1 + counts.max(initial=0))
    close(out, sums, slack=16, scale=scale, name="sums")
    close(onto, base.astype(float) + sums, slack=16, scale=scale, name="added")
    assert not backend.to_host(out)[counts == 0].astype(float).any(), "rows without ids are exactly 0"
    assert backend.to_host(onto)[counts == 0].tobytes() == base[counts == 0].tobytes()
    return [out, onto]


def picked(xp: Any, rng: Any, dtype: np.dtype, n: int, size: int, width: int, *, bad: bool = False, shift: int = 0) -> list:
    """Rows by number: their very bits, and bits of 1 where an id is no row."""
    ids, x = draw_ids(rng, n, size, bad), (rng.standard_normal((size, width)) * 100).astype(dtype)
    at, fine = valid(ids, size)
    out = segments.take(xp, put(xp, x, shift), xp.asarray(ids), 0)
    found = backend.to_host(out)
    assert found[fine].tobytes() == x[at[fine]].tobytes()
    assert (found[~fine].view(np.uint8) == 255).all()
    return [out]
