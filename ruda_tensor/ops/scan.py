"""Scans: running sums, products and log-sum-exps along one axis, and differences.

Half types run in float32 and each result is rounded once. No derivative here divides by an element, so zeros need no
special case, to any order.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import BOOL, as_dtype
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, integer, normalize_axis
from ._numerics import share, single, weigh
from .arithmetic import multiply, subtract
from .reduce import accumulator
from .shape import broadcast_to, reshape

__all__ = ["cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff", "logcumsumexp"]


def along(axis: int, start: int | None, stop: int | None, step: int | None = None) -> tuple:
    """The index that slices one axis and leaves those before and after it whole."""
    return (slice(None),) * axis + (slice(start, stop, step),)


def one_axis(x: Tensor, axis: Any, name: str) -> int:
    """Return the axis to scan; it may be left out where there is only one."""
    if axis is None and x.ndim != 1:
        raise ValueError(f"{name}: the shape {x.shape} has {x.ndim} axes, so say which: rt.{name}(x, axis=-1)")
    return normalize_axis(0 if axis is None else axis, x.ndim, name)


# What recurrences are made of: a shift along the axis, and the recurrence itself.


def _shift_forward(xp: Any, x: Any, *, axis: int, by: int, fill: float) -> Any:
    out = xp.full(x.shape, fill, dtype=x.dtype)
    if by > 0:
        out[along(axis, by, None)] = x[along(axis, None, -by)]
    else:
        out[along(axis, None, by)] = x[along(axis, -by, None)]
    return out


_shift = Primitive("shift", _shift_forward, half="storage", dx=lambda g, axis, by: shift(g, axis, -by, 0.0))


def shift(x: Tensor, axis: int, by: int, fill: float) -> Tensor:
    """out[t] = x[t - by] along the axis, and `fill` where x has no such element."""
    return apply(_shift, (x,), {"axis": axis, "by": by, "fill": fill})


def _recur_forward(xp: Any, a: Any, b: Any, *, axis: int, reverse: bool) -> Any:
    out = xp.empty_like(b)
    a, b, h = (xp.moveaxis(v, axis, 0) for v in (a, b, out))
    steps = range(len(b))[::-1] if reverse else range(len(b))
    before = None
    for t in steps:
        here = h[t, ...]
        if before is None:
            here[...] = b[t]
        else:
            xp.multiply(a[t], before, out=here)
            xp.add(here, b[t], out=here)
        before = here
    return out


def _recur_db(g: Tensor, a: Tensor, axis: int, reverse: bool) -> Tensor:
    return recur(shift(a, axis, 1 if reverse else -1, 0.0), g, axis, not reverse)


def _recur_da(g: Tensor, a: Tensor, out: Tensor, axis: int, reverse: bool) -> Tensor:
    return multiply(_recur_db(g, a, axis, reverse), shift(out, axis, -1 if reverse else 1, 0.0))


# Derivatives of the recurrence are the same recurrence the other way round. The steps are taken one by one: products
# of many `a`, which a parallel scan forms, may overflow where no term of the answer does, and give 0 * inf.
_recur = Primitive("recur", _recur_forward, memory_bound=False, da=_recur_da, db=_recur_db)


def recur(a: Tensor, b: Tensor, axis: int, reverse: bool) -> Tensor:
    """h[t] = a[t] h[t-1] + b[t] along the axis, from zero; h[t+1] in place of h[t-1] if `reverse`."""
    return apply(_recur, (a, b), {"axis": axis, "reverse": reverse})


# sums


def _cumsum_forward(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    if not reverse:
        return xp.cumsum(x, axis=axis, dtype=x.dtype)
    back = along(axis, None, None, -1)
    return xp.ascontiguousarray(xp.cumsum(x[back], axis=axis, dtype=x.dtype)[back])


_cumsum = Primitive("cumulative_sum", _cumsum_forward, dx=lambda g, axis, reverse: _run(_cumsum, g, axis, not reverse))


def _run(op: Primitive, x: Tensor, axis: int, reverse: bool = False) -> Tensor:
    return apply(op, (x,), {"axis": axis, "reverse": reverse})


def _scan(op: Primitive, x: Any, axis: Any, dtype: Any, initial: int | None) -> Tensor:
    """Scan in a dtype wide enough, and put the value for no elements first if it is asked for."""
    x = as_tensor(x, None, op.name)
    axis = one_axis(x, axis, op.name)
    out = _run(op, cast(x, accumulator(x) if dtype is None else as_dtype(dtype)), axis)
    if initial is None:
        return out
    from ..creation import full
    from .join import concat

    first = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), initial, dtype=out.dtype, device=x.device)
    return concat([first, out], axis=axis)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Return the running sums along `axis`, which may be left out for one axis; with a leading 0 if `include_initial`.

    Small integers and bools are summed in the default integer dtype.

    >>> import ruda_tensor as rt
    >>> rt.cumulative_sum(rt.tensor([1.0, 2.0, 3.0], device=rt.Cpu())).numpy()
    array([1., 3., 6.], dtype=float32)
    """
    return _scan(_cumsum, x, axis, dtype, 0 if include_initial else None)


def cumsum(x: Tensor, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Return the running sums along `axis`: `cumulative_sum` by its NumPy name.

    >>> import ruda_tensor as rt
    >>> rt.cumsum(rt.tensor([[1, 2], [3, 4]], device=rt.Cpu()), axis=0).numpy()
    array([[1, 2],
           [4, 6]], dtype=int32)
    """
    return _scan(_cumsum, x, axis, dtype, None)


# products


def _cumprod_forward(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    if not reverse:
        return xp.cumprod(x, axis=axis, dtype=x.dtype)
    back = along(axis, None, None, -1)
    return xp.ascontiguousarray(xp.cumprod(x[back], axis=axis, dtype=x.dtype)[back])


def _cumprod_rule(g: Tensor, x: Tensor, out: Tensor, axis: int, reverse: bool) -> Tensor:
    """out[t] = x[t] out[t-1], so with G[t] = g[t] + x[t+1] G[t+1] the gradient is G[t] out[t-1]: no division.

    Where nothing arrives (G = 0) nothing goes on, though the product before may have overflowed.
    """
    ahead, behind = (1, -1) if reverse else (-1, 1)
    arriving = recur(shift(x, axis, ahead, 0.0), g, axis, not reverse)
    return weigh(arriving, shift(out, axis, behind, 1.0))


_cumprod = Primitive("cumulative_prod", _cumprod_forward, dx=_cumprod_rule)


def others_product(x: Tensor, axis: tuple[int, ...]) -> Tensor:
    """Return for each element the product of the others of its group, where `axis` forms the groups."""
    if len(axis) != 1:
        from .shape import permute_dims

        kept = tuple(i for i in range(x.ndim) if i not in axis)
        order = kept + axis
        moved = permute_dims(x, order)
        flat = reshape(moved, (*(x.shape[i] for i in kept), math.prod(x.shape[i] for i in axis)))
        out = others_product(flat, (len(kept),))
        return permute_dims(reshape(out, moved.shape), tuple(order.index(i) for i in range(x.ndim)))
    along_axis = axis[0]
    before = shift(_run(_cumprod, x, along_axis), along_axis, 1, 1.0)
    after = shift(_run(_cumprod, x, along_axis, True), along_axis, -1, 1.0)
    return multiply(before, after)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Return the running products along `axis`, which may be left out for one axis; with a leading 1 if asked for.

    The derivatives are right at zeros; backward takes one step after another along the axis. Small integers and bools
    are multiplied in the default integer dtype.

    >>> import ruda_tensor as rt
    >>> rt.cumulative_prod(rt.tensor([1.0, 2.0, 3.0], device=rt.Cpu()), include_initial=True).numpy()
    array([1., 1., 2., 6.], dtype=float32)
    """
    return _scan(_cumprod, x, axis, dtype, 1 if include_initial else None)


def cumprod(x: Tensor, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """Return the running products along `axis`: `cumulative_prod` by its NumPy name.

    >>> import ruda_tensor as rt
    >>> rt.cumprod(rt.tensor([[1, 2], [3, 4]], device=rt.Cpu()), axis=1).numpy()
    array([[ 1,  2],
           [ 3, 12]], dtype=int32)
    """
    return _scan(_cumprod, x, axis, dtype, None)


# log-sum-exps


def _logcumsumexp_forward(xp: Any, x: Any, *, axis: int) -> Any:
    """Join each prefix with the one `step` before it, doubling the step: log2(n) passes, and each stays in logs."""
    out, step = x.copy(), 1
    while step < x.shape[axis]:
        late, early = out[along(axis, step, None)], out[along(axis, None, -step)]
        with np.errstate(invalid="ignore"):  # inf - inf, where the two are equal and the difference is not used
            larger = xp.maximum(late, early)
            joined = xp.where(late == early, larger + math.log(2.0), larger + xp.log1p(xp.exp(-abs(late - early))))
        out = xp.concatenate([out[along(axis, None, step)], joined.astype(x.dtype, copy=False)], axis=axis)
        step *= 2
    return out


def _logcumsumexp_rule(g: Tensor, x: Tensor, out: Tensor, axis: int) -> Tensor:
    """exp(out[t]) = exp(out[t-1]) + exp(x[t]): the gradient splits between the two by their shares, at most 1 each."""
    carried = share(shift(out, axis, 1, -math.inf), out)
    return multiply(share(x, out), recur(shift(carried, axis, -1, 0.0), g, axis, True))


_logcumsumexp = Primitive("logcumsumexp", _logcumsumexp_forward, memory_bound=False, dx=_logcumsumexp_rule)


def logcumsumexp(x: Tensor, /, axis: int | None = None) -> Tensor:
    """Return log(sum of exp) of each prefix along `axis`, which may be left out for one axis; without overflow.

    A prefix of minus infinities gives minus infinity, with zero gradient. Backward takes one step after another.

    >>> import ruda_tensor as rt
    >>> rt.logcumsumexp(rt.tensor([-rt.inf, 1000.0, 1000.0], device=rt.Cpu())).numpy()
    array([     -inf, 1000.    , 1000.6932], dtype=float32)
    """
    x = floating(x, "logcumsumexp")
    out = apply(_logcumsumexp, (single(x),), {"axis": one_axis(x, axis, "logcumsumexp")})
    return cast(out, x.dtype)


def _end(end: Any, x: Tensor, axis: int) -> Tensor:
    """What `diff` joins to x: a number stands for one element in each line along the axis."""
    end = as_tensor(end, x, "diff")
    return broadcast_to(end, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if end.ndim == 0 and x.ndim else end


def diff(x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Tensor:
    """Return the differences x[t+1] - x[t] along `axis`, taken `n` times, after joining `prepend` and `append` to x.

    Errors: ValueError for a negative `n`; TypeError for bools.

    >>> import ruda_tensor as rt
    >>> rt.diff(rt.tensor([1.0, 4.0, 9.0], device=rt.Cpu())).numpy()
    array([3., 5.], dtype=float32)
    """
    x = as_tensor(x, None, "diff")
    axis = normalize_axis(axis, x.ndim, "diff")
    n = integer(n, "diff", "n", 0)
    if x.dtype == BOOL:
        raise TypeError("diff: bools have no difference; first: x.astype(rt.int32)")
    parts = [x if part is x else _end(part, x, axis) for part in (prepend, x, append) if part is not None]
    if len(parts) > 1:
        from .join import concat

        x = concat(parts, axis=axis)
    dtype, x = x.dtype, single(x) if n > 1 else x
    for _ in range(min(n, x.shape[axis])):  # then nothing is left
        x = subtract(x[along(axis, 1, None)], x[along(axis, None, -1)])
    return cast(x, dtype)
