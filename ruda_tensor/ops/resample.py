"""Windows laid out and added back (unfold, fold), and resizing: linear maps along one axis at a time, with adjoints."""
from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..operation import Primitive, apply
from ..recording import constant
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, scalar_of
from ._numerics import single
from ._windows import meet, per_axis, window_count
from .shape import permute_dims, reshape

__all__ = ["fold", "interpolate", "unfold"]


def _unfold_forward(xp: Any, x: Any, *, axis: int, window: tuple, count: int) -> Any:
    """An axis of x becomes (kernel, count): the places of each tap."""
    kernel, stride, dilation, low = window
    out = xp.zeros((*x.shape[:axis], kernel, count, *x.shape[axis + 1 :]), x.dtype)
    ahead = (slice(None),) * axis
    for tap in range(kernel):
        to, of = meet(x.shape[axis], count, tap * dilation - low, stride)
        out[(*ahead, tap, to)] = x[(*ahead, of)]
    return out


def _fold_forward(xp: Any, y: Any, *, axis: int, window: tuple, size: int) -> Any:
    """The adjoint of unfolding: axes (kernel, count) are added up where they came from, in an axis of `size`."""
    kernel, stride, dilation, low = window
    x = xp.zeros((*y.shape[:axis], size, *y.shape[axis + 2 :]), y.dtype)
    ahead = (slice(None),) * axis
    for tap in range(kernel):
        to, of = meet(size, y.shape[axis + 1], tap * dilation - low, stride)
        x[(*ahead, of)] += y[(*ahead, tap, to)]
    return x


_unfold = Primitive(
    "unfold",
    _unfold_forward,
    half="storage",
    dx=lambda g, x_shape, axis, window: apply(_fold, (g,), {"axis": axis, "window": window, "size": x_shape[axis]}),
)
_fold = Primitive(
    "fold",
    _fold_forward,
    dy=lambda g, y_shape, axis, window: apply(
        _unfold, (g,), {"axis": axis, "window": window, "count": y_shape[axis + 1]}
    ),
)


def _layout(
    name: str, size: tuple, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Return (kernel, stride, dilation, padding) and the number of windows for each of two axes."""
    kernels, strides = per_axis(kernel, 2, name, "kernel_size", 1), per_axis(stride, 2, name, "stride", 1)
    lows, dilations = per_axis(padding, 2, name, "padding", 0), per_axis(dilation, 2, name, "dilation", 1)
    windows = list(zip(kernels, strides, dilations, lows))
    return windows, [window_count(n, k, s, low, low, d, name) for n, (k, s, d, low) in zip(size, windows)]


def unfold(x: Tensor, kernel_size: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1) -> Tensor:
    """Return the windows of images x (N, C, H, W) as columns (N, C kh kw, L), window after window in row-major order.

    Row (c, i, j) holds the tap (i, j) of channel c, and 0 where it meets the padding: im2col. Settings are one integer
    or one for each axis. The adjoint is `fold`.

    Errors: ValueError for x of other than 4 axes or a window that does not fit.

    >>> import ruda_tensor as rt
    >>> x = rt.reshape(rt.arange(6.0, device=rt.Cpu()), (1, 1, 1, 6))
    >>> rt.unfold(x, (1, 4)).tolist()
    [[[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0], [3.0, 4.0, 5.0]]]
    """
    x = as_tensor(x, None, "unfold")
    if x.ndim != 4:
        raise ValueError(f"unfold: x must have axes (N, C, H, W), got shape {x.shape}; add axes with rt.expand_dims")
    (rows, columns), (u, v) = _layout("unfold", x.shape[2:], kernel_size, stride, padding, dilation)
    n, c = x.shape[:2]
    y = apply(_unfold, (x,), {"axis": 3, "window": columns, "count": v})
    y = apply(_unfold, (y,), {"axis": 2, "window": rows, "count": u})  # (n, c, kh, u, kw, v)
    return reshape(permute_dims(y, (0, 1, 2, 4, 3, 5)), (n, c * rows[0] * columns[0], u * v))


def fold(
    x: Tensor, output_size: Any, kernel_size: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1
) -> Tensor:
    """Return images (N, C, H, W) of `output_size` (H, W) from columns x (N, C kh kw, L), adding where windows overlap.

    The adjoint of `unfold`, not its inverse: an element that lies in m windows is counted m times. Half types are
    added in float32 and rounded once.

    Errors: ValueError for columns that are not what `unfold` gives for these settings.

    >>> import ruda_tensor as rt
    >>> x = rt.ones((1, 1, 1, 6), device=rt.Cpu())
    >>> rt.fold(rt.unfold(x, (1, 4)), (1, 6), (1, 4)).tolist()
    [[[[1.0, 2.0, 3.0, 3.0, 2.0, 1.0]]]]
    """
    x = as_tensor(x, None, "fold")
    h, w = per_axis(output_size, 2, "fold", "output_size", 1)
    (rows, columns), (u, v) = _layout("fold", (h, w), kernel_size, stride, padding, dilation)
    taps = rows[0] * columns[0]
    if x.ndim != 3 or x.shape[1] % taps or x.shape[2] != u * v:
        raise ValueError(
            f"fold: x has shape {x.shape}, and these settings need (N, C * {taps}, {u * v}); give what "
            f"rt.unfold(images, {kernel_size!r}, ...) returns, with the same settings"
        )
    n, c = x.shape[0], x.shape[1] // taps
    y = permute_dims(reshape(single(x), (n, c, rows[0], columns[0], u, v)), (0, 1, 2, 4, 3, 5))
    y = apply(_fold, (y,), {"axis": 2, "window": rows, "size": h})
    return cast(apply(_fold, (y,), {"axis": 3, "window": columns, "size": w}), x.dtype)


def _resample_forward(xp: Any, x: Any, *, axis: int, table: tuple, back: tuple) -> Any:
    """out[o] = sum_k weight[k, o] x[index[k, o]] along an axis; a weight of 0 keeps even a NaN out."""
    index, weight = table
    out = None
    for i, w in zip(index, weight):
        term = x.take(constant(xp, i), axis)
        if not (w == 1).all():
            scale = constant(xp, w.astype(x.dtype)).reshape((-1,) + (1,) * (x.ndim - axis - 1))
            term = term * scale if w.all() else xp.where(scale != 0, term * scale, x.dtype.type(0))
        out = term if out is None else out + term
    return out


_resample = Primitive(
    "interpolate",
    _resample_forward,
    dx=lambda g, axis, table, back: apply(_resample, (g,), {"axis": axis, "table": back, "back": table}),
)


def _cubic(t: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = -0.75 at distance t."""
    a, t = -0.75, np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


@functools.lru_cache(maxsize=256)
def _tables(size: int, count: int, mode: str, align_corners: bool, scale: float | None) -> tuple[tuple, tuple]:
    """Return (index, weight), each (taps, count), of the map along an axis, and the same of its adjoint."""
    out = np.arange(count)
    if mode == "nearest":
        at = out * size // count if scale is None else np.floor(out / scale).astype(np.int64)
        index, weight = np.minimum(at, size - 1)[None], np.ones((1, count))
    else:
        if align_corners:
            place = out * ((size - 1) / (count - 1) if count > 1 else 0.0)
        else:
            place = (out + 0.5) * (size / count if scale is None else 1 / scale) - 0.5
        if mode == "cubic":
            low = np.floor(place).astype(np.int64)
            index = np.stack([low - 1, low, low + 1, low + 2])
            weight = _cubic(place - index)
        else:
            place = np.maximum(place, 0.0)
            low = np.floor(place).astype(np.int64)
            index, weight = np.stack([low, low + 1]), np.stack([1 - (place - low), place - low])
        index = np.clip(index, 0, size - 1)
    return (index, weight), _adjoint(index, weight, size)


def _adjoint(index: np.ndarray, weight: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Transpose a map given as (index, weight): collect for each input the outputs that read it."""
    order = np.argsort(index, axis=None, kind="stable")
    inputs, outputs = index.reshape(-1)[order], (order % index.shape[1])
    readers = np.bincount(inputs, minlength=size)
    slot = np.arange(inputs.size) - np.repeat(np.cumsum(readers) - readers, readers)
    back = np.zeros((max(1, readers.max(initial=0)), size), np.int64)
    scale = np.zeros(back.shape)
    back[slot, inputs], scale[slot, inputs] = outputs, weight.reshape(-1)[order]
    return back, scale


_KINDS = {
    (3, "nearest"): "nearest",
    (4, "nearest"): "nearest",
    (3, "linear"): "linear",
    (4, "bilinear"): "linear",
    (4, "bicubic"): "cubic",
}


def _sizes(x: Tensor, size: Any, scale_factor: Any) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return the new sizes, and the factors where they were given."""
    axes, name = x.ndim - 2, "interpolate"
    if (size is None) == (scale_factor is None):
        raise ValueError(f"{name}: give size or scale_factor, one of them; write size={(*x.shape[2:],)}")
    if size is not None:
        return per_axis(size, axes, name, "size", 1), (None,) * axes
    given = scale_factor.tolist() if hasattr(scale_factor, "tolist") else scale_factor  # a number or an array of any library
    factors = tuple(map(scalar_of, given)) if isinstance(given, (tuple, list)) else (scalar_of(given),) * axes
    if len(factors) != axes or not all(f is not None and 0 < f < math.inf for f in factors):
        raise ValueError(f"{name}: scale_factor must be a positive number or {axes} of them, got {scale_factor!r}")
    sizes = tuple(math.floor(n * f) for n, f in zip(x.shape[2:], factors))
    if min(sizes) < 1:
        raise ValueError(f"{name}: scale_factor={scale_factor!r} leaves nothing of {x.shape[2:]}; take a larger one")
    return sizes, tuple(float(f) for f in factors)


def interpolate(
    x: Tensor, *, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool = False
) -> Tensor:
    """Return images x (N, C, H, W), or signals (N, C, L), resized to `size` or by `scale_factor`.

    Output o reads the input at p = (o + 1/2) s - 1/2 with s = in / out (or 1 / scale_factor), or p = o (in - 1) /
    (out - 1) with `align_corners`. mode "nearest" takes element floor(o s); "linear" (signals) and "bilinear" (images)
    weigh the two nearest along each axis; "bicubic" weighs four by Keys' kernel with a = -0.75. Beyond the border the
    border's element counts. Downscaling does not average over what lies between. "nearest" keeps integer dtypes.

    Errors: ValueError for an unknown mode, for both or none of size and scale_factor, for an empty axis.
    Source: Keys, "Cubic convolution interpolation for digital image processing", 1981.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[[0.0, 4.0]]], device=rt.Cpu())
    >>> rt.interpolate(x, size=4, mode="linear").tolist(), rt.interpolate(x, scale_factor=2).tolist()
    ([[[0.0, 1.0, 3.0, 4.0]]], [[[0.0, 0.0, 4.0, 4.0]]])
    """
    name = "interpolate"
    x = as_tensor(x, None, name)
    if (x.ndim, mode) not in _KINDS:
        raise ValueError(
            f"{name}: mode={mode!r} for x of shape {x.shape} is not known; images (N, C, H, W) take 'nearest', "
            "'bilinear' or 'bicubic', and signals (N, C, L) 'nearest' or 'linear'"
        )
    kind = _KINDS[x.ndim, mode]
    if align_corners and kind == "nearest":
        raise ValueError(f"{name}: align_corners has no meaning for mode='nearest'; leave it out")
    if 0 in x.shape[2:]:
        raise ValueError(f"{name}: x of shape {x.shape} has an empty axis, and there is nothing to read from")
    sizes, factors = _sizes(x, size, scale_factor)
    x = x if kind == "nearest" else floating(x, name)
    y = single(x) if kind != "nearest" else x
    for axis in reversed(range(2, x.ndim)):
        table, back = _tables(x.shape[axis], sizes[axis - 2], kind, align_corners, factors[axis - 2])
        y = apply(_resample, (y,), {"axis": axis, "table": table, "back": back})
    return cast(y, x.dtype)
