"""Cross-entropy between logits and classes, in one pass over the logits each way.

The forward keeps two numbers per row (its largest logit and its sum of exponentials), from which the backward makes
the probabilities again: nothing of the size of the logits is kept but the logits themselves.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import FLOAT32, FLOATING, HALF, INT64, INTEGER, UINT64
from ..kernels import cross_entropy as kernels
from ..kernels.host import cross_entropy as host
from ..kernels.ids import look
from ..operation import Composite, Fused, call
from ..recording import capturing
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, integer, normalize_axis, setting
from ._numerics import single, weigh
from .arithmetic import add, multiply, negative
from .reduce import mean
from .reduce import sum as add_up
from .shape import reshape
from .softmax import blockwise, log_softmax, row_sums, rows

__all__ = ["cross_entropy"]


def check_reduction(reduction: Any, name: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


class _Rows:
    """Classes and weights as the rows (n, classes, ...) of the logits need them, each kept with size 1 on that axis.

    `hit` weighs -log p of the row's own class and `each` that of every class; both are 0 in ignored rows. `factor` is
    the derivative of the reduction by each row's loss. What is the same for all rows is a number. `ignore` None says
    that all rows count.
    """

    def __init__(
        self, xp: Any, x: Any, targets: Any, weight: Any, ignore: int | None, smoothing: float, reduction: str
    ) -> None:
        self.classes = targets.reshape((x.shape[0], 1, *x.shape[2:]))
        self.counted, one = None, 1.0
        wrong = (self.classes < 0) | (self.classes >= x.shape[1]) if capturing() else None
        if ignore is not None:
            self.counted = self.classes != ignore
            self.classes = xp.where(self.counted, self.classes, 0)
            one = self.counted.astype(x.dtype)
        if wrong is not None:  # nobody has looked at the ids
            wrong = wrong if self.counted is None else wrong & self.counted
            one = xp.where(wrong, x.dtype.type(np.nan), one).astype(x.dtype)
            self.classes = xp.where(wrong, 0, self.classes)
        own, self.weight, self.mass = one, 1.0, x.shape[1]
        if weight is not None:
            weight = weight.astype(x.dtype, copy=False)
            own = one * weight[self.classes]
            self.weight, self.mass = weight.reshape((1, -1) + (1,) * (x.ndim - 2)), xp.sum(weight)
        self.factor = one
        if reduction == "mean":
            whole = self.classes.size if isinstance(own, float) else xp.sum(own)
            self.factor = one * ((whole != 0) / (whole + (whole == 0)))  # 0 where nothing counts
        self.hit = own * (1 - smoothing) if smoothing else own
        self.each = one * (smoothing / x.shape[1]) if smoothing else None

    def own(self, xp: Any, block: slice) -> tuple:
        """The index of each row's own class in a block of rows."""
        classes = self.classes[block]
        if classes.ndim == 2:
            return xp.arange(len(classes))[:, None], classes
        sizes = enumerate(classes.shape)
        index = [xp.arange(n).reshape([n if i == j else 1 for j in range(classes.ndim)]) for i, n in sizes]
        index[1] = classes
        return tuple(index)


def _part(a: Any, block: slice) -> Any:
    """The part of what is known per row that belongs to a block, or the number that all rows share."""
    return a[block] if getattr(a, "ndim", 0) else a


def _forward(
    xp: Any, logits: Any, targets: Any, weight: Any, *, axis: int, ignore: int | None, smoothing: float, reduction: str
) -> tuple:
    """Row by row: hit (log s - z_own) + each sum(w (log s - z)), where z = x - top and s = sum(exp(z))."""
    if weight is None and not smoothing:
        found = host.forward(xp, logits, targets, axis=axis, ignore=ignore, reduction=reduction)
        if found is not None:
            return found
    x = rows(xp, logits, axis)
    row = _Rows(xp, x, targets, weight, ignore, smoothing, reduction)
    top, whole, loss = (xp.empty(row.classes.shape, x.dtype) for _ in range(3))

    def body(block: slice) -> None:
        part = x[block]
        highest = top[block] = part.max(axis=1, keepdims=True)
        z = part - highest
        own = z[row.own(xp, block)]
        weighted = None if row.each is None else row_sums(xp, z * row.weight)
        xp.exp(z, out=z)
        sums = whole[block] = row_sums(xp, z)
        logs = xp.log(sums)
        loss[block] = _part(row.hit, block) * (logs - own)
        if row.each is not None:
            loss[block] += _part(row.each, block) * (row.mass * logs - weighted)

    blockwise(xp, x, body)
    if row.counted is not None:
        loss = xp.where(row.counted, loss, x.dtype.type(0))
    out = loss.reshape(targets.shape) if reduction == "none" else xp.sum(loss * row.factor)
    return out, top, whole


def _backward(
    xp: Any, g: Any, logits: Any, targets: Any, weight: Any, top: Any, whole: Any, *, needs: tuple, axis: int,
    ignore: int | None, smoothing: float, reduction: str,
) -> tuple:  # fmt: skip
    """dx = g ((hit + each W) p - hit at the own class - each w), where p = exp(x - top) / s and W = sum(w)."""
    if weight is None and not smoothing:
        dx = host.backward(xp, g, logits, targets, top, whole, axis=axis, ignore=ignore, reduction=reduction)
        if dx is not None:
            return dx, None, None
    x = rows(xp, logits, axis)
    row = _Rows(xp, x, targets, weight, ignore, smoothing, reduction)
    g = (g.reshape(row.classes.shape) if reduction == "none" else g) * row.factor
    hit, each = g * row.hit, None if row.each is None else g * row.each
    pull = (hit if each is None else hit + each * row.mass) / whole
    out = xp.empty(logits.shape, x.dtype)
    target = rows(xp, out, axis)

    def body(block: slice) -> None:
        o = target[block]
        xp.subtract(x[block], top[block], out=o)
        xp.exp(o, out=o)
        xp.multiply(o, pull[block], out=o)
        if each is not None:
            xp.subtract(o, _part(each, block) * row.weight, out=o)
        o[row.own(xp, block)] -= _part(hit, block)

    blockwise(xp, x, body)
    if row.counted is not None:  # 0 also where an ignored row holds NaN
        xp.copyto(target, 0, where=~row.counted)
    return out, None, None


def _expression(
    logits: Tensor, targets: Tensor, weight: Tensor | None, *, axis: int, ignore: int | None, smoothing: float,
    reduction: str,
) -> Tensor:  # fmt: skip
    """-sum(q log_softmax(x)) with constant weights q."""
    device, x = logits.device, single(logits)
    with device.guard():
        xp, view = device.xp, rows(device.xp, x._data, axis)
        row = _Rows(xp, view, targets._data, None if weight is None else weight._data, ignore, smoothing, reduction)
        q = xp.zeros(view.shape, view.dtype)
        if row.each is not None:
            q += row.each * row.weight
        q[row.own(xp, slice(None))] += row.hit
        weights = Tensor._wrap((q * row.factor).reshape(x.shape), device)
    losses = negative(add_up(weigh(weights, log_softmax(x, axis)), axis=axis))
    return cast(losses if reduction == "none" else add_up(losses), logits.dtype)


def _fused_backward(xp: Any, g: Any, logits: Any, *kept: Any, needs: tuple, spend: bool = False, **static: Any) -> tuple | None:
    """The gradient is written over the logits where nobody reads them again."""
    out = logits if spend and logits.flags.c_contiguous else None
    dx = kernels.backward(xp, g, logits, *kept, **static, out=out)
    return None if dx is None else (dx, None, None)


_cross_entropy = Composite(
    "cross_entropy", _expression, _forward, _backward, keeps="logits targets weight",
    fused=Fused("cross_entropy.cu cross_entropy_reduce.cu", kernels.forward, _fused_backward, spends="logits"),
)  # fmt: skip


def _from_probabilities(
    logits: Tensor, targets: Tensor, weight: Tensor | None, axis: int, smoothing: float, reduction: str
) -> Tensor:
    x, q = single(logits), single(targets)
    if smoothing:
        q = add(multiply(q, 1 - smoothing), smoothing / x.shape[axis])
    if weight is not None:
        q = multiply(q, reshape(single(weight), (-1,) + (1,) * (x.ndim - 1 - axis)))
    losses = negative(add_up(weigh(cast(q, x.dtype), log_softmax(x, axis)), axis=axis))
    reduce = {"mean": mean, "sum": add_up}.get(reduction)
    return cast(losses if reduce is None else reduce(losses), logits.dtype)


def cross_entropy(
    logits: Tensor, targets: Any, /, *, axis: int = -1, weight: Any = None, ignore_index: int = -100,
    label_smoothing: float = 0.0, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return the cross-entropy -log softmax(logits)[target] between logits, with the classes along `axis`, and targets.

    `targets` are class ids (integers, of the shape of the logits without `axis`), or probabilities (floats, of the
    shape of the logits, differentiable too). With label smoothing s over C classes and class weights w, a row of
    class t costs (1 - s) w[t] (-log p[t]) + s/C sum_c w[c] (-log p[c]). Rows whose id is `ignore_index` cost 0 and
    get zero gradient; the class of that number, if there is one, still competes in the softmax.

    "mean" divides by the weights w[t] of the rows that count (by the number of rows for probabilities), and is 0,
    with zero gradient, where nothing counts. Logits may be large, and -inf for impossible classes. The weights are
    constants.

    Errors: ValueError for shapes that do not belong together, IndexError for an id that is no class (reading the ids
    waits for a GPU; in a captured step nothing can wait, and such a row's loss and gradient are NaN), TypeError for
    bool targets.

    Source: Szegedy et al., Rethinking the Inception Architecture (2016), section 7, for label smoothing.

    >>> import ruda_tensor as rt
    >>> logits = rt.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]], device=rt.Cpu())
    >>> rt.cross_entropy(logits, rt.tensor([0, 1], device=rt.Cpu()), reduction="none").numpy().round(4)
    array([0.4076, 0.0949], dtype=float32)
    """
    logits = floating(logits, "cross_entropy")
    targets = as_tensor(targets, logits, "cross_entropy")
    axis = normalize_axis(axis, logits.ndim, "cross_entropy")
    check_reduction(reduction, "cross_entropy")
    label_smoothing = setting(label_smoothing, "cross_entropy", "label_smoothing")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"cross_entropy: label_smoothing must be from 0 to 1, got {label_smoothing!r}")
    classes = logits.shape[axis]
    if weight is not None:
        weight = as_tensor(weight, logits, "cross_entropy").detach()
        if weight.shape != (classes,):
            raise ValueError(f"cross_entropy: weight must have the shape ({classes},), got {weight.shape}")
        weight = cast(weight, FLOAT32 if logits.dtype in HALF else logits.dtype)
    if targets.dtype in FLOATING:
        if targets.shape != logits.shape:
            raise ValueError(
                f"cross_entropy: probabilities must have the shape {logits.shape} of the logits, got {targets.shape}; "
                "class ids must be integers: targets.astype(rt.int64)"
            )
        return _from_probabilities(logits, targets, weight, axis, label_smoothing, reduction)
    ids, ignore = _checked_ids(logits, targets, axis, integer(ignore_index, "cross_entropy", "ignore_index"))
    static = {"axis": axis, "ignore": ignore, "smoothing": label_smoothing, "reduction": reduction}
    return call(_cross_entropy, (logits, ids, weight), static)


def _checked_ids(logits: Tensor, targets: Tensor, axis: int, ignore: int) -> tuple[Tensor, int | None]:
    """The class ids as int64, after checking their dtype, shape and range; and `ignore`, or None where all rows count."""
    expected, classes = logits.shape[:axis] + logits.shape[axis + 1 :], logits.shape[axis]
    if targets.dtype not in INTEGER:
        raise TypeError(f"cross_entropy: targets must be integer class ids or float probabilities, got {targets.dtype}")
    if targets.shape != expected:
        raise ValueError(
            f"cross_entropy: logits {logits.shape} with classes along axis {axis} need class ids of shape {expected}, "
            f"got {targets.shape}; say where the classes are: rt.cross_entropy(logits, targets, axis=1)"
        )
    device, all_count = targets.device, ignore if 0 <= ignore < classes else None
    if device.launches:
        if capturing():
            return cast(targets, INT64), ignore
        with device.entered():
            seen = look(device.xp, targets._data, classes, ignore)
        if seen is not None and not seen.wrong:
            ids = targets if seen.ids is targets._data else Tensor._wrap(seen.ids, device)
            return ids, ignore if seen.outside else all_count
    ids = cast(targets, INT64)
    with device.entered():
        t = ids._data
        unsigned = t.view(UINT64)  # what is negative is a huge number there
        if t.size == 0 or (np.maximum.reduce(unsigned, axis=None) if device.xp is np else unsigned.max()) < classes:
            return ids, all_count
        wrong = (unsigned >= classes) & (t != ignore)
        if wrong.any():
            raise IndexError(
                f"cross_entropy: the target {int(t[wrong][0])} is no class: the ids of {classes} classes are "
                f"0 to {classes - 1}, and ignore_index={ignore} marks rows to leave out"
            )
    return ids, ignore
