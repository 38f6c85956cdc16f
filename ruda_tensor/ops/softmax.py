"""softmax, log_softmax and logsumexp: exponentials of differences from the largest element, which cannot overflow.

The hand-derived bodies see the tensor as rows (outer, n) or (outer, n, inner) with the reduced axis second. Under
NumPy they run in cache-sized blocks of rows, so that memory is read and written once, and on all cores.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..dtypes import BOOL
from ..kernels import softmax as kernels
from ..kernels.host.rows import rowwise
from ..operation import Composite, Fused, Primitive, apply, call
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, normalize_axes, normalize_axis
from ._numerics import share_forward, single
from ._parallel import each_block
from ._sums import total
from .arithmetic import divide, multiply, negative, subtract
from .reduce import max as largest
from .reduce import spread
from .reduce import sum as add_up
from .shape import broadcast_to
from .transcendental import exp, log

__all__ = ["log_softmax", "logsumexp", "softmax"]


def rows(xp: Any, x: Any, axis: int) -> Any:
    """A contiguous view (outer, n) or (outer, n, inner) of an array, or of a copy of it, with `axis` second."""
    outer, n, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    return xp.ascontiguousarray(x).reshape((outer, n) if inner == 1 else (outer, n, inner))


def row_dots(xp: Any, x: Any, y: Any) -> Any:
    """The sum of x * y along the second axis, kept with size 1: BLAS dot products where NumPy has rows."""
    if xp is np and x.ndim == 2:
        return np.vecdot(x, y)[:, None]
    return total(xp, x * y, (1,), True)


def row_sums(xp: Any, x: Any) -> Any:
    """The sum of x along the second axis, kept with size 1: a dot product with ones is twice as fast as NumPy's sum."""
    if xp is np and x.ndim == 2:
        return np.vecdot(x, np.ones(x.shape[1], x.dtype))[:, None]
    return total(xp, x, (1,), True)


def blockwise(xp: Any, x: Any, body: Callable[[slice], None]) -> None:
    """Run `body` on blocks of rows."""
    each_block(xp, x.shape[0], x[:1].nbytes, body)


def _exponentials(xp: Any, x: Any, out: Any) -> Any:
    """Write exp(x - c) into `out` with some c for each row, and return its row sums.

    Any c gives the same softmax. Without one two passes of five are saved, and nothing is lost unless the sum is huge
    or tiny; those rows are done again with c the largest element. Looking costs a wait under CuPy, so there all are.
    """
    if xp is not np:
        return _exponentials_below_largest(xp, x, out)
    np.exp(x, out=out)
    sums = row_sums(np, out)
    again = ~((sums > 2.0**-20) & (sums < 2.0**100)).reshape(len(x), -1).all(axis=1)
    if again.any():
        part = np.empty_like(x[again])
        sums[again] = _exponentials_below_largest(np, x[again], part)
        out[again] = part
    return sums


def _exponentials_below_largest(xp: Any, x: Any, out: Any) -> Any:
    xp.subtract(x, xp.max(x, axis=1, keepdims=True), out=out)
    xp.exp(out, out=out)
    return row_sums(xp, out)


def _softmax_forward(xp: Any, x: Any, *, axis: int) -> Any:
    out = xp.empty(x.shape, x.dtype)
    source, target = rows(xp, x, axis), rows(xp, out, axis)
    if rowwise("softmax_forward", xp, source, target):
        return out

    def body(block: slice) -> None:
        o = target[block]
        xp.multiply(o, 1 / _exponentials(xp, source[block], o), out=o)

    if x.size:
        blockwise(xp, source, body)
    return out


def _softmax_backward(xp: Any, g: Any, out: Any, *, needs: tuple, axis: int) -> tuple:
    """dx = p (g - sum(g p)), from dp_i/dx_j = p_i (delta_ij - p_j)."""
    dx = xp.empty(out.shape, out.dtype)
    incoming, p, target = rows(xp, g, axis), rows(xp, out, axis), rows(xp, dx, axis)
    if rowwise("softmax_backward", xp, incoming, p, target):
        return (dx,)

    def body(block: slice) -> None:
        g, q, o = incoming[block], p[block], target[block]
        xp.subtract(g, row_dots(xp, g, q), out=o)
        xp.multiply(o, q, out=o)

    blockwise(xp, p, body)
    return (dx,)


def _softmax_expression(x: Tensor, *, axis: int) -> Tensor:
    e = exp(_below_largest(x, axis))
    return cast(divide(e, add_up(e, axis=axis, keepdims=True)), x.dtype)


def _below_largest(x: Tensor, axis: int) -> Tensor:
    """x minus its largest along the axis, in float32 or wider. The shift cancels in the result, so it is a constant."""
    x = single(x)
    return subtract(x, largest(x.detach(), axis=axis, keepdims=True)) if x.size else x


def _fused(log: bool) -> Fused:
    def forward(xp: Any, x: Any, *, axis: int) -> Any:
        return kernels.forward(xp, x, axis=axis, log=log)

    def backward(xp: Any, g: Any, out: Any, *, needs: tuple, axis: int) -> tuple | None:
        dx = kernels.backward(xp, g, out, axis=axis, log=log)
        return None if dx is None else (dx,)

    return Fused("softmax.cu", forward, backward)


_softmax = Composite(
    "softmax", _softmax_expression, _softmax_forward, _softmax_backward, keeps="out", fused=_fused(False)
)


def softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return exp(x) / sum(exp(x)) along `axis`: positive numbers that sum to one.

    An element of -inf gets 0, and a NaN, an inf or a row of -inf alone makes its row NaN. Half types are computed in
    float32 and rounded once.

    Errors: IndexError for an axis that the tensor does not have.

    >>> import ruda_tensor as rt
    >>> rt.softmax(rt.tensor([0.0, 1000.0, 1000.0], device=rt.Cpu())).numpy()
    array([0. , 0.5, 0.5], dtype=float32)
    """
    x = floating(x, "softmax")
    return call(_softmax, (x,), {"axis": normalize_axis(axis, x.ndim, "softmax")})


def _log_softmax_forward(xp: Any, x: Any, *, axis: int) -> Any:
    out = xp.empty(x.shape, x.dtype)
    source, target = rows(xp, x, axis), rows(xp, out, axis)
    if rowwise("log_softmax_forward", xp, source, target):
        return out

    def body(block: slice) -> None:
        b, o = source[block], target[block]
        xp.subtract(b, xp.max(b, axis=1, keepdims=True), out=o)
        xp.subtract(o, xp.log(row_sums(xp, xp.exp(o))), out=o)

    if x.size:
        blockwise(xp, source, body)
    return out


def _log_softmax_backward(xp: Any, g: Any, out: Any, *, needs: tuple, axis: int) -> tuple:
    """dx = g - p sum(g), with p = exp(out)."""
    dx = xp.empty(out.shape, out.dtype)
    incoming, logs, target = rows(xp, g, axis), rows(xp, out, axis), rows(xp, dx, axis)
    if rowwise("log_softmax_backward", xp, incoming, logs, target):
        return (dx,)

    def body(block: slice) -> None:
        g, o = incoming[block], target[block]
        xp.exp(logs[block], out=o)
        xp.multiply(o, row_sums(xp, g), out=o)
        xp.subtract(g, o, out=o)

    blockwise(xp, logs, body)
    return (dx,)


def _log_softmax_expression(x: Tensor, *, axis: int) -> Tensor:
    y = _below_largest(x, axis)
    return cast(subtract(y, log(add_up(exp(y), axis=axis, keepdims=True))), x.dtype)


_log_softmax = Composite(
    "log_softmax", _log_softmax_expression, _log_softmax_forward, _log_softmax_backward, keeps="out", fused=_fused(True)
)


def log_softmax(x: Tensor, /, axis: int = -1) -> Tensor:
    """Return x - log(sum(exp(x))) along `axis`: the logarithm of softmax, exact where softmax itself underflows.

    An element of -inf stays -inf, and a NaN, an inf or a row of -inf alone makes its row NaN.

    Errors: IndexError for an axis that the tensor does not have.

    >>> import ruda_tensor as rt
    >>> rt.log_softmax(rt.tensor([0.0, 1000.0], device=rt.Cpu())).numpy()
    array([-1000.,     0.], dtype=float32)
    """
    x = floating(x, "log_softmax")
    return call(_log_softmax, (x,), {"axis": normalize_axis(axis, x.ndim, "log_softmax")})


def _logsumexp_forward(xp: Any, x: Any, mask: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    if mask is not None:
        x = xp.where(mask, x, x.dtype.type(-math.inf))
    if x.size == 0:
        shape = [1 if i in axis else n for i, n in enumerate(x.shape) if keepdims or i not in axis]
        return xp.full(shape, -math.inf, x.dtype)
    top = xp.max(x, axis=axis, keepdims=True)
    top = xp.where(xp.isfinite(top), top, x.dtype.type(0))  # infinities stay themselves: inf - inf would be NaN
    with np.errstate(over="ignore", divide="ignore"):
        e = xp.asarray(x - top)
        xp.exp(e, out=e)
        out = xp.log(total(xp, e, axis, True)) + top
    return out if keepdims else xp.squeeze(out, axis=axis)


def _shares_forward(xp: Any, x: Any, mask: Any, whole: Any, *, axis: tuple[int, ...]) -> Any:
    e = share_forward(xp, x, whole)
    infinite = x == math.inf
    if mask is not None:
        e, infinite = xp.where(mask, e, x.dtype.type(0)), infinite & mask
    return e / xp.maximum(xp.sum(infinite, axis=axis, keepdims=True, dtype=x.dtype), x.dtype.type(1))


# Each element's share of the sum of a group, which infinities divide equally and -inf or no element has none of.
_shares = Primitive(
    "shares", _shares_forward, dx=lambda g, out: multiply(g, out), dwhole=lambda g, out: negative(multiply(g, out))
)


def _logsumexp_rule(g: Tensor, x: Tensor, mask: Any, out: Tensor, axis: tuple[int, ...], keepdims: bool) -> Tensor:
    whole = spread(out, x.shape, axis, keepdims)
    return multiply(spread(g, x.shape, axis, keepdims), apply(_shares, (x, mask, whole), {"axis": axis}))


_logsumexp = Primitive("logsumexp", _logsumexp_forward, dx=_logsumexp_rule)


def logsumexp(x: Tensor, /, axis: Any = None, *, keepdims: bool = False, where: Any = None) -> Tensor:
    """Return log(sum(exp(x))) over `axis` (all by default), over the elements where the bool mask `where` is true.

    The gradient is softmax(x). Over no elements, or -inf alone, the value is -inf and the gradient 0; elements of inf
    share the gradient equally. A masked element has no effect and gradient 0, whatever it is.

    Errors: TypeError where the mask is not bool, ValueError where its shape does not stretch to that of x.

    >>> import ruda_tensor as rt
    >>> rt.logsumexp(rt.tensor([1000.0, 1000.0], device=rt.Cpu())).item()
    1000.6931762695312
    """
    x = floating(x, "logsumexp")
    static = {"axis": normalize_axes(axis, x.ndim, "logsumexp"), "keepdims": bool(keepdims)}
    mask = None if where is None else _mask(x, where)
    return cast(apply(_logsumexp, (single(x), mask), static), x.dtype)


def _mask(x: Tensor, where: Any) -> Tensor:
    mask = as_tensor(where, x, "logsumexp")
    if mask.dtype != BOOL:
        raise TypeError(f"logsumexp: where is a mask of bools, got {mask.dtype}; for example where=(x > 0.0)")
    return broadcast_to(mask, x.shape)
