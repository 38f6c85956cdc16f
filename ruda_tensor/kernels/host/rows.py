"""softmax, log_softmax, layer_norm, rms_norm and sums: each function runs the compiled body and returns True, or declines.

Arrays are contiguous rows (rows, n) in float32; blocks of rows go to all cores. Which rows are taken depends on their
length alone, so that a row's result is the same bits in any company.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from . import FLOAT32, SMALL, address, function
from .pool import cut, run

LONG = 64  # columns; shorter rows, such as those of a few classes, are no reason to wait for a compiler


def _takes(xp: Any, x: Any, *more: Any) -> bool:
    return xp is np and x.dtype is FLOAT32 and x.ndim == 2 and x.shape[1] >= LONG and all(
        a is None or (a.dtype is FLOAT32 and a.flags.c_contiguous) for a in more
    )


def _each(call: Any, arrays: tuple, row_bytes: int) -> bool:
    """Call it for blocks of rows of the arrays, all of one shape."""
    rows, n = arrays[0].shape
    first, count = _blocks(rows, row_bytes)
    run(call, *[address(a) + first * (n * 4) for a in arrays], count, n)
    return True


def _blocks(rows: int, row_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Where blocks start, and how many rows each has."""
    starts = cut(rows, row_bytes)
    return starts[:-1], np.diff(starts)


def _sums(sums: Any, first: np.ndarray, count: np.ndarray) -> Any:
    """Where each block's sums go; 0 for nowhere."""
    return np.array([address(sums(slice(a, a + n))) for a, n in zip(first.tolist(), count.tolist())]) if sums else 0


def rowwise(symbol: str, xp: Any, *arrays: Any) -> bool:
    """softmax and log_softmax: `arrays` are the inputs and the result."""
    if not _takes(xp, *arrays):
        return False
    call = function("rows", symbol, "p" * len(arrays) + "nn")
    return call is not None and _each(call, arrays, 4 * arrays[0].shape[1])


def layer_forward(xp: Any, x: Any, w: Any, b: Any, out: Any, m: Any, shift: Any, r: Any, eps: float) -> bool:
    if not _takes(xp, x, w, b, out) or (call := function("rows", "layer_forward", "p" * 7 + "nnf")) is None:
        return False
    rows, n = x.shape
    source, weight, bias, target, *columns = [address(a) for a in (x, w, b, out, m, shift, r)]
    first, count = _blocks(rows, 4 * n)
    at, column = first * (n * 4), first * 4
    run(call, source + at, weight, bias, target + at, *[c + column for c in columns], count, n, number=eps)
    return True


def layer_backward(
    xp: Any, g: Any, x: Any, w: Any, m: Any, shift: Any, r: Any, more: Any, dx: Any, sums: Any
) -> bool:
    """`sums(block)` gives the zeros (2, n) that take the rows' parts of dw and db, or is None; dx may be None.

    `more` is added to dx, or None.
    """
    columns = (m, shift, r)
    if not _takes(xp, x, g, w, dx, more, *columns) or (call := function("rows", "layer_backward", "p" * 10 + "nn")) is None:
        return False
    rows, n = x.shape
    incoming, source, weight, other, target, *starts = [address(a) for a in (g, x, w, more, dx, *columns)]
    first, count = _blocks(rows, 8 * n)
    at, column, part = first * (n * 4), first * 4, _sums(sums, first, count)
    run(call, incoming + at, source + at, weight, *[c + column for c in starts], other and other + at, target and target + at,
        part, part + 4 * n if sums else 0, count, n)  # fmt: skip
    return True


def rms_forward(xp: Any, x: Any, w: Any, out: Any, r: Any, eps: float) -> bool:
    if not _takes(xp, x, w, out, r) or (call := function("rows", "rms_forward", "ppppnnf")) is None:
        return False
    rows, n = x.shape
    source, weight, target, column = [address(a) for a in (x, w, out, r)]
    first, count = _blocks(rows, 4 * n)
    at = first * (n * 4)
    run(call, source + at, weight, target + at, column + first * 4, count, n, number=eps)
    return True


def rms_backward(xp: Any, g: Any, x: Any, w: Any, r: Any, more: Any, dx: Any, sums: Any) -> bool:
    """`sums(block)` gives the zeros (n,) that take the rows' part of dw, or is None; dx and `more` may be None."""
    if not _takes(xp, x, g, w, r, dx, more) or (call := function("rows", "rms_backward", "p" * 7 + "nn")) is None:
        return False
    rows, n = x.shape
    incoming, source, weight, column, other, target = [address(a) for a in (g, x, w, r, more, dx)]
    first, count = _blocks(rows, 8 * n)
    at = first * (n * 4)
    run(call, incoming + at, source + at, weight, column + first * 4, other and other + at, target and target + at,
        _sums(sums, first, count), count, n)  # fmt: skip
    return True


def column_sums(x: Any) -> Any:
    """The sums of the columns of rows (rows, n), or None."""
    if not _takes(np, x, x) or x.size < SMALL or (call := function("rows", "column_sums", "ppnn")) is None:
        return None
    n = x.shape[1]
    first, count = _blocks(len(x), 4 * n)
    parts = np.zeros((len(first), n), FLOAT32)
    run(call, address(x) + first * (n * 4), address(parts) + np.arange(len(first)) * (n * 4), count, n)
    return parts[0] if len(parts) == 1 else parts.sum(axis=0)


def add_rows(x: Any, index: Any, out: Any) -> bool:
    """Add row i of x (rows, n) to out[index[i]]; the sums are in float64, so there must not be many more of them than rows."""
    if not _takes(np, x, x, out) or x.size < SMALL or len(out) > len(x) or index.min() < 0 or index.max() >= len(out):
        return False
    if (call := function("rows", "add_rows", "pppnn")) is None:
        return False
    sums, index = np.zeros(out.shape), np.ascontiguousarray(index, np.int64)
    call(address(x), address(index), address(sums), *x.shape)
    out += sums
    return True
