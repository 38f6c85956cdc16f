"""Cross-entropy of rows of logits, without weights and smoothing: the compiled body, or None where it declines."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ops._parallel import each_block
from . import FLOAT32, address, function

NO_CLASS = -(1 << 63)


def _takes(xp: Any, logits: Any, axis: int) -> bool:
    return xp is np and logits.dtype is FLOAT32 and axis == logits.ndim - 1 and logits.size > 0


def _share(targets: Any, ignore: int | None, reduction: str) -> float:
    """The derivative of the reduction by the loss of a row that counts; 0 where none does."""
    if reduction != "mean":
        return 1.0
    count = targets.size if ignore is None else np.count_nonzero(targets != ignore)
    return 1.0 / count if count else 0.0


def forward(xp: Any, logits: Any, targets: Any, *, axis: int, ignore: int | None, reduction: str) -> tuple | None:
    """The result, and each row's largest logit and sum of exponentials."""
    if not _takes(xp, logits, axis):
        return None
    if (call := function("cross_entropy", "cross_entropy_forward", "ppnpppnn")) is None:
        return None
    rows, n = targets.size, logits.shape[-1]
    logits, targets, columns = np.ascontiguousarray(logits), np.ascontiguousarray(targets), np.empty((3, rows, 1), FLOAT32)
    x, classes, at = address(logits), address(targets), address(columns)
    skipped = NO_CLASS if ignore is None else ignore

    def body(block: slice) -> None:
        i = block.start
        top = at + 4 * i
        call(x + 4 * i * n, classes + 8 * i, skipped, top, top + 4 * rows, top + 8 * rows, block.stop - i, n)

    each_block(np, rows, 4 * n, body)
    top, whole, loss = columns
    if reduction == "none":
        return loss.reshape(targets.shape), top, whole
    return np.add.reduce(loss, axis=None) * FLOAT32.type(_share(targets, ignore, reduction)), top, whole


def backward(
    xp: Any, g: Any, logits: Any, targets: Any, top: Any, whole: Any, *, axis: int, ignore: int | None, reduction: str
) -> Any:
    """The gradient of the logits."""
    if not _takes(xp, logits, axis):
        return None
    if (call := function("cross_entropy", "cross_entropy_backward", "pnppnpppnnf")) is None:
        return None
    rows, n = targets.size, logits.shape[-1]
    dx, apart = np.empty(logits.shape, FLOAT32), int(reduction == "none")
    together = [np.ascontiguousarray(a) for a in (g, logits, targets, top, whole)]
    incoming, x, classes, high, sums, out = [address(a) for a in (*together, dx)]
    skipped, factor = NO_CLASS if ignore is None else ignore, _share(targets, ignore, reduction)

    def body(block: slice) -> None:
        i = block.start
        call(incoming + 4 * apart * i, apart, x + 4 * i * n, classes + 8 * i, skipped, high + 4 * i, sums + 4 * i,
             out + 4 * i * n, block.stop - i, n, factor)  # fmt: skip

    each_block(np, rows, 4 * n, body)
    return dx
