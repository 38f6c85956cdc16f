"""The primitives of indexing: picking by a key or an index, and writing or adding back.

Picking (`take_index`) and adding back (`accumulate_index`) are each other's adjoints, so gradients of any order stay
in this pair. Where an element is picked more than once its gradients are added in a fixed order on every device: no
atomics, so the same input gives the same bits.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import FLOATING
from ..kernels import segments
from ..kernels.host import rows as host
from ..operation import Primitive, apply, round_to, widen
from ..recording import capturing
from ._sums import total
from .shape import reshape

slice_key = Primitive(
    "getitem",
    lambda xp, x, *, key: x[key],
    half="storage",
    dx=lambda g, x_shape, key: apply(unslice_key, (g,), {"key": key, "shape": x_shape}),
)


def _unslice_forward(xp: Any, g: Any, *, key: Any, shape: tuple[int, ...]) -> Any:
    out = xp.zeros(shape, g.dtype)
    out[key] = g
    return out


unslice_key = Primitive(
    "unslice", _unslice_forward, half="storage", dg=lambda g, key: apply(slice_key, (g,), {"key": key})
)


def _assign_forward(xp: Any, x: Any, y: Any, *, key: Any) -> Any:
    out = x.copy()
    out[key] = y
    return out


assign_key = Primitive(
    "slice_assign",
    _assign_forward,
    half="storage",
    dx=lambda g, key: apply(assign_key, (g, 0), {"key": key}),
    dy=lambda g, key: apply(slice_key, (g,), {"key": key}),
)


def poisoned(xp: Any, out: Any, wrong: Any) -> Any:
    """`out`, a floating array, with NaN where `wrong` holds."""
    return xp.where(wrong, np.float32(np.nan), out).astype(out.dtype)


def _take_forward(xp: Any, x: Any, index: Any, *, axis: int, distinct: bool) -> Any:
    out = segments.take(xp, x, index, axis)
    if out is None:
        out = x.take(index, axis)
        if capturing() and x.dtype in FLOATING:  # nobody has looked at the indices
            size = x.shape[axis]
            wrong = (index < -size) | (index >= size)
            out = poisoned(xp, out, wrong.reshape(index.shape + (1,) * (x.ndim - 1 - axis)))
    return out


take_index = Primitive(
    "take",
    _take_forward,
    half="storage",
    dx=lambda g, index, x_shape, axis, distinct: apply(
        accumulate_index, (g, index), {"size": x_shape[axis], "axis": axis, "distinct": distinct}
    ),
)


def add_rows(xp: Any, rows: Any, index: Any, out: Any) -> Any:
    """Add rows[i] to out[index[i]] for each i, in this order, and return `out`: (n, width), (n,), (size, width)."""
    n, width = rows.shape
    if not rows.size:
        return out
    if segments.add(xp, rows, index, out) is not None:
        return out
    if xp is not np:
        return segments.add_rows(rows, index, out)
    if host.add_rows(rows, index, out):
        return out
    if n * width > 750 * min(n, len(out)):  # few long segments: whole rows are summed at a time
        order = np.argsort(index, kind="stable")
        index = index[order]
        starts = np.flatnonzero(np.diff(index, prepend=-1)).tolist()
        rows = rows[order]
        for i, start, stop in zip(index[starts].tolist(), starts, [*starts[1:], n]):
            out[i] += total(np, rows[start:stop], (0,), False)
    elif width == 1:
        np.add.at(out.reshape(-1), index, rows.reshape(-1))
    else:  # NumPy adds elements much faster than rows
        flat = index[:, None] * width + np.arange(width)
        np.add.at(out.reshape(-1), flat.reshape(-1), rows.reshape(-1))
    return out


def _accumulate_forward(xp: Any, g: Any, index: Any, *, size: int, axis: int, distinct: bool) -> Any:
    before, after = g.shape[:axis], g.shape[axis + index.ndim :]
    g = g.reshape((*before, index.size, *after))
    index = index.reshape(-1)
    if distinct and not capturing():  # where nobody has looked at the indices, some may be no row
        out = xp.zeros((*before, size, *after), g.dtype)
        out[(slice(None),) * axis + (index,)] = g
        return out
    width = math.prod(before) * math.prod(after)
    rows = (xp.moveaxis(g, axis, 0) if axis else g).reshape((len(index), width))
    out = segments.accumulate(xp, rows, index, size)
    if out is None:
        (rows,), half = widen([rows])
        out = add_rows(xp, rows, index, xp.zeros((size, width), rows.dtype))
        out = out if half is None else round_to(out, half)
    out = out.reshape((size, *before, *after))
    return xp.moveaxis(out, 0, axis) if axis else out


accumulate_index = Primitive(
    "accumulate",
    _accumulate_forward,
    half="storage",
    poles=True,
    dg=lambda g, index, axis, distinct: apply(take_index, (g, index), {"axis": axis, "distinct": distinct}),
)


def _scatter_add_forward(xp: Any, x: Any, y: Any, index: Any) -> Any:
    out = xp.array(x, order="C")
    add_rows(xp, y.reshape(-1, 1), index.reshape(-1), out.reshape(-1, 1))
    return out


scatter_add_flat = Primitive(
    "scatter_add",
    _scatter_add_forward,
    poles=True,
    dx=lambda g: g,
    dy=lambda g, index: apply(take_index, (reshape(g, (-1,)), index), {"axis": 0, "distinct": False}),
)


def _put_forward(xp: Any, x: Any, y: Any, index: Any, *, axis: int) -> Any:
    out = x.copy()
    out[(slice(None),) * axis + (index,)] = y
    return out


put_index = Primitive(
    "put",
    _put_forward,
    half="storage",
    dx=lambda g, index, axis: apply(put_index, (g, 0, index), {"axis": axis}),
    dy=lambda g, index, axis: apply(take_index, (g, index), {"axis": axis, "distinct": True}),
)
