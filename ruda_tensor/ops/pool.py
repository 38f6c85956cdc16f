"""Pooling, one axis at a time: the largest or the sum of each window along an axis, and the adjoints.

A window over two axes is a window over columns and then one over rows: fewer reads, and the same winners.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtypes import BOOL, FLOATING, INT8, INT32, UINT8
from ..kernels import pool as kernels
from ..operation import Composite, Fused, Primitive, apply, call
from ..recording import constant
from ..tensor import Tensor
from ._common import as_tensor, cast, floating
from ._numerics import single
from ._windows import meet, per_axis, window_count
from .dropout import masked

__all__ = ["avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d"]


def _taps(size: int, count: int, window: tuple[int, int, int, int], axis: int, ndim: int) -> Iterator[tuple]:
    """Yield (tap, key of the outputs that it reaches, key of the inputs that it reads), tap by tap.

    `window` is (kernel, stride, dilation, padding before); outputs whose tap lies in the padding are left out.
    """
    kernel, stride, dilation, low = window
    for tap in range(kernel):
        outputs, inputs = meet(size, count, tap * dilation - low, stride)
        yield tap, _key(outputs, axis, ndim), _key(inputs, axis, ndim)


def _key(part: slice, axis: int, ndim: int) -> tuple:
    return (slice(None),) * axis + (part,) + (slice(None),) * (ndim - axis - 1)


def _shape(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _lowest(dtype: Any) -> Any:
    if dtype in FLOATING:
        return dtype.type(-np.inf)
    return False if dtype == BOOL else np.iinfo(dtype).min


def _max_forward(xp: Any, x: Any, *, axis: int, window: tuple, count: int) -> Any:
    out = xp.full(_shape(x.shape, axis, count), _lowest(x.dtype), x.dtype)
    for _, to, of in _taps(x.shape[axis], count, window, axis, x.ndim):
        xp.maximum(out[to], x[of], out=out[to])  # the maximum with NaN is NaN
    return out


def _winner_forward(xp: Any, x: Any, out: Any, *, axis: int, window: tuple, count: int) -> Any:
    """The tap that won each window: the first that equals its maximum, or is NaN; the kernel size where none does.

    Counting the taps of windows that are still undecided takes no branches, which random winners would make slow.
    """
    taps = xp.zeros(out.shape, INT8 if window[0] < 2**7 else INT32)
    undecided = xp.ones(out.shape, BOOL)
    for _, to, of in _taps(x.shape[axis], count, window, axis, x.ndim):
        lost = x[of] != out[to]
        if x.dtype in FLOATING:
            lost &= x[of] == x[of]
        undecided[to] &= lost
        taps += undecided
    return taps


def _place_forward(xp: Any, y: Any, taps: Any, *, axis: int, window: tuple, size: int) -> Any:
    x = xp.zeros(_shape(y.shape, axis, size), y.dtype)
    for tap, to, of in _taps(size, y.shape[axis], window, axis, y.ndim):
        x[of] += masked(xp, y[to], taps[to] == tap)
    return x


def _pick_forward(xp: Any, x: Any, taps: Any, *, axis: int, window: tuple, count: int) -> Any:
    out = xp.zeros(taps.shape, x.dtype)
    for tap, to, of in _taps(x.shape[axis], count, window, axis, x.ndim):
        out[to] += masked(xp, x[of], taps[to] == tap)
    return out


def _sum_forward(xp: Any, x: Any, *, axis: int, window: tuple, count: int) -> Any:
    out = xp.zeros(_shape(x.shape, axis, count), x.dtype)
    for _, to, of in _taps(x.shape[axis], count, window, axis, x.ndim):
        out[to] += x[of]
    return out


def _spread_forward(xp: Any, y: Any, *, axis: int, window: tuple, size: int) -> Any:
    x = xp.zeros(_shape(y.shape, axis, size), y.dtype)
    for _, to, of in _taps(size, y.shape[axis], window, axis, y.ndim):
        x[of] += y[to]
    return x


_winner = Primitive("max_pool_winner", _winner_forward)
_max = Primitive(
    "max_pool",
    _max_forward,
    dx=lambda g, x, out, axis, window, count: apply(
        _place,
        (g, apply(_winner, (x, out), {"axis": axis, "window": window, "count": count})),
        {"axis": axis, "window": window, "size": x.shape[axis]},
    ),
)
_place = Primitive(
    "max_pool_place",
    _place_forward,
    dy=lambda g, taps, axis, window: apply(
        _pick, (g, taps), {"axis": axis, "window": window, "count": taps.shape[axis]}
    ),
)
_pick = Primitive(
    "max_pool_pick",
    _pick_forward,
    dx=lambda g, taps, x_shape, axis, window: apply(
        _place, (g, taps), {"axis": axis, "window": window, "size": x_shape[axis]}
    ),
)
_sum = Primitive(
    "window_sum",
    _sum_forward,
    dx=lambda g, x_shape, axis, window: apply(_spread, (g,), {"axis": axis, "window": window, "size": x_shape[axis]}),
)
_spread = Primitive(
    "window_spread",
    _spread_forward,
    dy=lambda g, y_shape, axis, window: apply(_sum, (g,), {"axis": axis, "window": window, "count": y_shape[axis]}),
)


def _taps2(size: tuple, counts: tuple, windows: tuple) -> Iterator[tuple]:
    """Yield (number of the tap in row-major order, outputs that it reaches, inputs that it reads) over two axes."""
    (kernel, stride, dilation, low), columns = windows
    for i in range(kernel):
        to, of = meet(size[0], counts[0], i * dilation - low, stride)
        for j in range(columns[0]):
            to_columns, of_columns = meet(size[1], counts[1], j * columns[2] - columns[3], columns[1])
            yield i * columns[0] + j, (..., to, to_columns), (..., of, of_columns)


_NOBODY = 255  # no tap has won yet


def _max2_expression(x: Tensor, *, windows: tuple, counts: tuple, size: tuple) -> Tensor:
    y = single(x)
    for back in (1, 2):
        y = apply(_max, (y,), {"axis": x.ndim - back, "window": windows[-back], "count": counts[-back]})
    return cast(y, x.dtype)


def _max2_forward(xp: Any, x: Any, *, windows: tuple, counts: tuple, size: tuple) -> tuple:
    """The largest numbers, and the taps that won; a NaN wins."""
    shape = (*x.shape[:-2], *counts)
    out, taps = xp.full(shape, _lowest(x.dtype), x.dtype), xp.full(shape, _NOBODY, UINT8)
    for tap, to, of in _taps2(size, counts, windows):
        value, best = x[of], out[to]
        wins = (value > best) | (taps[to] == _NOBODY) | ((value != value) & (best == best))
        out[to] = xp.where(wins, value, best)
        taps[to] = xp.where(wins, UINT8.type(tap), taps[to])
    return out, taps


def _max2_backward(xp: Any, g: Any, taps: Any, *, needs: tuple, windows: tuple, counts: tuple, size: tuple) -> tuple:
    x = xp.zeros((*g.shape[:-2], *size), g.dtype)
    for tap, to, of in _taps2(size, counts, windows):
        x[of] += masked(xp, g[to], taps[to] == tap)
    return (x,)


# Both axes at once where there are kernels: it keeps a byte per window in the place of x and two results.
_max2 = Composite(
    "max_pool2d", _max2_expression, _max2_forward, _max2_backward, keeps="",
    fused=Fused("pool.cu", kernels.max_forward, kernels.max_backward),
)  # fmt: skip


def _windows(
    name: str, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, axes: int
) -> list[tuple[int, tuple, int]]:
    """Check the settings and return (axis, window, number of windows) for each pooled axis, the last axis first."""
    if x.ndim < axes:
        raise ValueError(f"{name}: x needs {axes} axes or more to pool over, got shape {x.shape}; add one: x[None]")
    kernels = per_axis(kernel, axes, name, "kernel_size", 1)
    strides = kernels if stride is None else per_axis(stride, axes, name, "stride", 1)
    lows, dilations = per_axis(padding, axes, name, "padding", 0), per_axis(dilation, axes, name, "dilation", 1)
    found = []
    for axis, k, s, low, d in zip(range(x.ndim - axes, x.ndim), kernels, strides, lows, dilations):
        n, reach = x.shape[axis], (k - 1) * d + 1
        if 2 * low > reach:
            raise ValueError(
                f"{name}: padding={padding!r} is more than half of a window of {reach}, so some windows would hold "
                f"padding only; write padding={reach // 2}"
            )
        beyond = s - 1 if ceil_mode else 0  # how far the last window may reach beyond the end; it must start inside
        count = window_count(n, k, s, low, low + beyond, d, name)
        count -= ceil_mode and (count - 1) * s >= n + low
        found.append((axis, (k, s, d, low), count))
    return found[::-1]


def _max_pool(
    name: str, x: Any, axes: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Tensor:
    x = as_tensor(x, None, name)
    windows = _windows(name, x, kernel, stride, padding, dilation, ceil, axes)
    if axes == 2 and x.device.launches and x.dtype in FLOATING:
        (_, across, v), (_, along, u) = windows
        if across[0] * along[0] <= kernels.MOST_TAPS:
            return call(_max2, (x,), {"windows": (along, across), "counts": (u, v), "size": x.shape[-2:]})
    y = single(x)
    for axis, window, count in windows:
        y = apply(_max, (y,), {"axis": axis, "window": window, "count": count})
    return cast(y, x.dtype)


def max_pool2d(
    x: Tensor, kernel_size: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """Return the largest element of each window over the last two axes of x (..., H, W), in the dtype of x.

    Windows start every `stride` (the kernel size if None), and padding never wins. A NaN wins its window. Of equal
    elements the first in row-major order wins and alone gets the gradient. With `ceil_mode` a last window may reach
    beyond the end. Settings are one integer, or one for each axis. Integers keep their dtype.

    Errors: ValueError for a window that does not fit, or padding of more than half of it.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 2.0, 0.0, 5.0], [4.0, 3.0, -1.0, -2.0]], device=rt.Cpu())
    >>> rt.max_pool2d(x, 2).tolist()
    [[4.0, 5.0]]
    """
    return _max_pool("max_pool2d", x, 2, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool1d(
    x: Tensor, kernel_size: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Tensor:
    """Return the largest element of each window over the last axis of x (..., L); see `max_pool2d`.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([-5.0, -1.0, -7.0, -2.0, -9.0], device=rt.Cpu())
    >>> rt.max_pool1d(x, 3, stride=2, padding=1).tolist()
    [-1.0, -1.0, -2.0]
    """
    return _max_pool("max_pool1d", x, 1, kernel_size, stride, padding, dilation, ceil_mode)


def _covered(size: int, count: int, window: tuple, include_pad: bool) -> np.ndarray:
    """How many elements of an axis each window averages over."""
    kernel, stride, _, low = window
    start = np.arange(count) * stride - low
    if include_pad:
        return np.minimum(start + kernel, size + low) - start
    return np.minimum(start + kernel, size) - np.maximum(start, 0)


def _avg_pool(
    name: str, x: Any, axes: int, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool
) -> Tensor:
    x = floating(x, name)
    windows = _windows(name, x, kernel, stride, padding, 1, ceil, axes)
    if axes == 2 and x.device.launches:
        (_, across, v), (_, along, u) = windows
        static = {"windows": (along, across), "counts": (u, v), "size": x.shape[-2:], "include": bool(include)}
        return call(_avg2, (x,), static)
    return _averaged(x, windows, include)


def _averaged(x: Tensor, windows: list[tuple[int, tuple, int]], include: bool) -> Tensor:
    """The means, one axis at a time."""
    y, counts = single(x), np.ones((1,) * len(windows))
    for axis, window, count in windows:
        y = apply(_sum, (y,), {"axis": axis, "window": window, "count": count})
        covered = _covered(x.shape[axis], count, window, include)
        counts = counts * covered.reshape((-1,) + (1,) * (x.ndim - axis - 1))
    if (counts == counts.flat[0]).all():
        y = y / float(counts.flat[0])
    else:
        y = y / Tensor._wrap(x.device.constant(counts.astype(y.dtype)), x.device)
    return cast(y, x.dtype)


def _avg2_expression(x: Tensor, *, windows: tuple, counts: tuple, size: tuple, include: bool) -> Tensor:
    return _averaged(x, [(x.ndim - back, windows[-back], counts[-back]) for back in (1, 2)], include)


def _areas(xp: Any, dtype: Any, windows: tuple, counts: tuple, size: tuple, include: bool) -> Any:
    """How many numbers each window averages over."""
    rows, columns = (_covered(n, count, window, include) for n, count, window in zip(size, counts, windows))
    areas = np.multiply.outer(rows, columns)
    return float(areas.flat[0]) if (areas == areas.flat[0]).all() else constant(xp, areas.astype(dtype))


def _avg2_forward(xp: Any, x: Any, *, windows: tuple, counts: tuple, size: tuple, include: bool) -> Any:
    out = xp.zeros((*x.shape[:-2], *counts), x.dtype)
    for _, to, of in _taps2(size, counts, windows):
        out[to] += x[of]
    out /= _areas(xp, x.dtype, windows, counts, size, include)
    return out


def _avg2_backward(
    xp: Any, g: Any, *, needs: tuple, windows: tuple, counts: tuple, size: tuple, include: bool
) -> tuple:
    x = xp.zeros((*g.shape[:-2], *size), g.dtype)
    g = g / _areas(xp, g.dtype, windows, counts, size, include)
    for _, to, of in _taps2(size, counts, windows):
        x[of] += g[to]
    return (x,)


_avg2 = Composite(
    "avg_pool2d", _avg2_expression, _avg2_forward, _avg2_backward, keeps="",
    fused=Fused("pool.cu", kernels.avg_forward, kernels.avg_backward),
)  # fmt: skip


def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window over the last two axes of x (..., H, W), accumulated in float32 or wider.

    Padding counts as zeros, or is left out of the mean where `count_include_pad` is False. What lies beyond the
    padding, which the last windows of `ceil_mode` may reach, is never counted.

    Errors: ValueError for a window that does not fit, or padding of more than half of it.

    >>> import ruda_tensor as rt
    >>> rt.avg_pool2d(rt.tensor([[1.0, 2.0], [3.0, 6.0]], device=rt.Cpu()), 2).tolist()
    [[3.0]]
    """
    return _avg_pool("avg_pool2d", x, 2, kernel_size, stride, padding, ceil_mode, count_include_pad)


def avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    *,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Return the mean of each window over the last axis of x (..., L); see `avg_pool2d`.

    >>> import ruda_tensor as rt
    >>> rt.avg_pool1d(rt.tensor([1.0, 2.0, 6.0], device=rt.Cpu()), 2, stride=1).tolist()
    [1.5, 4.0]
    """
    return _avg_pool("avg_pool1d", x, 1, kernel_size, stride, padding, ceil_mode, count_include_pad)
