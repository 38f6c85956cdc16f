"""softmax, log_softmax, layer_norm and rms_norm: each function runs the compiled body and returns True, or declines.

Arrays are contiguous rows (rows, n) in float32; blocks of rows go to all cores. Which rows are taken depends on their
length alone, so that a row's result is the same bits in any company.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import each_block
from . import FLOAT32, address, function

LONG = 64  # columns; shorter rows, such as those of a few classes, are no reason to wait for a compiler


def _takes(xp: Any, x: Any, *more: Any) -> bool:
    return xp is np and x.dtype is FLOAT32 and x.ndim == 2 and x.shape[1] >= LONG and all(
        a is None or (a.dtype is FLOAT32 and a.flags.c_contiguous) for a in more
    )


def _each(call: Any, arrays: tuple, row_bytes: int) -> bool:
    """Call it for blocks of rows of the arrays, all of one shape."""
    rows, n = arrays[0].shape
    starts = [address(a) for a in arrays]

    def body(block: slice) -> None:
        call(*[start + block.start * n * 4 for start in starts], block.stop - block.start, n)

    each_block(np, rows, row_bytes, body)
    return True


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

    def body(block: slice) -> None:
        at = block.start * n * 4
        parts = [column + block.start * 4 for column in columns]
        call(source + at, weight, bias, target + at, *parts, block.stop - block.start, n, eps)

    each_block(np, rows, 4 * n, body)
    return True


def layer_backward(
    xp: Any, g: Any, x: Any, w: Any, m: Any, shift: Any, r: Any, dx: Any, sums: Any
) -> bool:
    """`sums(block)` gives the zeros (2, n) that take the rows' parts of dw and db, or is None; dx may be None."""
    columns = (m, shift, r)
    if not _takes(xp, x, g, w, dx, *columns) or (call := function("rows", "layer_backward", "p" * 9 + "nn")) is None:
        return False
    rows, n = x.shape
    incoming, source, weight, target, *starts = [address(a) for a in (g, x, w, dx, *columns)]

    def body(block: slice) -> None:
        at = block.start * n * 4
        part = address(sums(block)) if sums else 0
        offsets = [start + block.start * 4 for start in starts]
        call(incoming + at, source + at, weight, *offsets, target and target + at, part, part and part + 4 * n,
             block.stop - block.start, n)  # fmt: skip

    each_block(np, rows, 8 * n, body)
    return True


def rms_forward(xp: Any, x: Any, w: Any, out: Any, r: Any, eps: float) -> bool:
    if not _takes(xp, x, w, out, r) or (call := function("rows", "rms_forward", "ppppnnf")) is None:
        return False
    rows, n = x.shape
    source, weight, target, column = [address(a) for a in (x, w, out, r)]

    def body(block: slice) -> None:
        at = block.start * n * 4
        call(source + at, weight, target + at, column + block.start * 4, block.stop - block.start, n, eps)

    each_block(np, rows, 4 * n, body)
    return True


def rms_backward(xp: Any, g: Any, x: Any, w: Any, r: Any, dx: Any, sums: Any) -> bool:
    """`sums(block)` gives the zeros (n,) that take the rows' part of dw, or is None; dx may be None."""
    if not _takes(xp, x, g, w, r, dx) or (call := function("rows", "rms_backward", "ppppppnn")) is None:
        return False
    rows, n = x.shape
    incoming, source, weight, column, target = [address(a) for a in (g, x, w, r, dx)]

    def body(block: slice) -> None:
        at = block.start * n * 4
        part = address(sums(block)) if sums else 0
        call(incoming + at, source + at, weight, column + block.start * 4, target and target + at, part,
             block.stop - block.start, n)  # fmt: skip

    each_block(np, rows, 8 * n, body)
    return True
