"""Convolutions: three bilinear primitives, each the adjoint of the others, so that derivatives of any order are here.

With stride s, dilation d and low padding p, per group,

    conv2d:       y[n,o,u,v] = sum_{c,i,j} w[o,c,i,j] x[n,c, u s + i d - p, v s + j d - p]
    its adjoints: x from (y, w), which is the transposed convolution, and w from (x, y)
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..dtypes import HALF, promote_types
from ..kernels import conv as kernels
from ..operation import Primitive, apply, round_to, widen
from ..tensor import Tensor
from ._common import as_tensor, cast, floating
from ._convolve import convolve, transpose, weigh
from ._windows import per_axis, window_count
from .matmul import matmul
from .reduce import sum as sum_
from .shape import expand_dims, reshape, squeeze

__all__ = ["conv1d", "conv2d", "conv_transpose2d"]


def _settings(stride: tuple, low: tuple, dilation: tuple, groups: int) -> dict[str, Any]:
    return {"stride": stride, "low": low, "dilation": dilation, "groups": groups}


class _Trio(NamedTuple):
    """A convolution, its adjoint in x, and its adjoint in the weight."""

    convolve: Primitive
    transpose: Primitive
    weigh: Primitive


def _trio(half: str, forwards: tuple) -> _Trio:
    """The three primitives, whose rules name each other."""
    convolution, transposed, weighing = forwards
    trio: list[Primitive] = []
    trio += [
        Primitive(
            "conv2d", convolution, half=half, memory_bound=False,
            dx=lambda g, w, x_shape, stride, low, dilation, groups: apply(
                trio[1], (g, w, None), {"size": x_shape[2:], **_settings(stride, low, dilation, groups)}
            ),
            dw=lambda g, x, w_shape, stride, low, dilation, groups: apply(
                trio[2], (x, g), {"kernel": w_shape[2:], **_settings(stride, low, dilation, groups)}
            ),
            db=lambda g: sum_(g, axis=(0, 2, 3)),
        ),
        Primitive(
            "conv_transpose2d", transposed, half=half, memory_bound=False,
            dy=lambda g, w, y_shape, stride, low, dilation, groups: apply(
                trio[0], (g, w, None), {"count": y_shape[2:], **_settings(stride, low, dilation, groups)}
            ),
            dw=lambda g, y, w_shape, stride, low, dilation, groups: apply(
                trio[2], (g, y), {"kernel": w_shape[2:], **_settings(stride, low, dilation, groups)}
            ),
            db=lambda g: sum_(g, axis=(0, 2, 3)),
        ),
        Primitive(
            "conv2d_weight", weighing, half=half, memory_bound=False,
            dx=lambda g, y, x_shape, stride, low, dilation, groups: apply(
                trio[1], (y, g, None), {"size": x_shape[2:], **_settings(stride, low, dilation, groups)}
            ),
            dy=lambda g, x, y_shape, stride, low, dilation, groups: apply(
                trio[0], (x, g, None), {"count": y_shape[2:], **_settings(stride, low, dilation, groups)}
            ),
        ),
    ]  # fmt: skip
    return _Trio(*trio)


def _or_plain(found: Any, plain: Callable, xp: Any, arrays: list, **static: Any) -> Any:
    """What a kernel found, or the plain body's result, of halves widened and rounded once."""
    if found is not None:
        return found
    arrays, dtype = widen(arrays)
    out = plain(xp, *arrays, **static)
    return out if dtype is None else round_to(out, dtype)


def _stored_convolve(
    xp: Any, x: Any, w: Any, b: Any, *, count: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    static = {"count": count, **_settings(stride, low, dilation, groups)}
    return _or_plain(kernels.convolve(xp, x, w, b, **static), convolve, xp, [x, w, b], **static)


def _stored_transpose(
    xp: Any, y: Any, w: Any, b: Any, *, size: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    static = {"size": size, **_settings(stride, low, dilation, groups)}
    return _or_plain(kernels.transpose(xp, y, w, b, **static), transpose, xp, [y, w, b], **static)


def _stored_weigh(
    xp: Any, x: Any, y: Any, *, kernel: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    static = {"kernel": kernel, **_settings(stride, low, dilation, groups)}
    return _or_plain(kernels.weigh(xp, x, y, **static), weigh, xp, [x, y], **static)


_plain = _trio("compute", (convolve, transpose, weigh))
_stored = _trio("storage", (_stored_convolve, _stored_transpose, _stored_weigh))  # where kernels read halves as they are


def _ops(x: Tensor) -> _Trio:
    return _stored if x.device.launches else _plain


def _inputs(name: str, x: Any, weight: Any, bias: Any, spatial: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the inputs as floating tensors of one dtype, with their numbers of axes checked."""
    x, weight = floating(x, name), as_tensor(weight, None, name)
    kinds = "NCHW" if spatial == 2 else "NCL"
    if x.ndim != spatial + 2 or weight.ndim != spatial + 2:
        raise ValueError(
            f"{name}: expected x ({', '.join(kinds)}) and a weight of {spatial + 2} axes, got shapes {x.shape} and "
            f"{weight.shape}; for one example: rt.expand_dims(x, axis=0)"
        )
    dtype = promote_types(x.dtype, weight.dtype)
    if bias is not None:
        bias = as_tensor(bias, None, name)
        dtype = promote_types(dtype, bias.dtype)
        bias = cast(bias, dtype)
    return cast(x, dtype), cast(weight, dtype), bias


def _check_channels(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, groups: Any, transposed: bool) -> None:
    """Raise where channels, groups, weight and bias do not fit each other."""
    if isinstance(groups, bool) or not hasattr(groups, "__index__") or groups < 1:
        raise ValueError(f"{name}: groups must be an integer >= 1, got {groups!r}; write groups=1")
    c, outputs = x.shape[1], weight.shape[1] * groups if transposed else weight.shape[0]
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    if c != wanted or outputs % groups or c % groups:
        layout = "(in, out / groups, ...)" if transposed else "(out, in / groups, ...)"
        raise ValueError(
            f"{name}: x has {c} channels, and a weight {weight.shape} of layout {layout} with groups={groups} takes "
            f"{wanted}; in and out channels must be multiples of groups"
        )
    if bias is not None and bias.shape != (outputs,):
        raise ValueError(f"{name}: bias has shape {bias.shape}, and {outputs} output channels need ({outputs},)")
    if 0 in weight.shape[2:]:
        raise ValueError(f"{name}: the kernel of a weight {weight.shape} is empty; each size must be at least 1")


def _padding(name: str, padding: Any, kernel: tuple, stride: tuple, dilation: tuple) -> list[tuple[int, int]]:
    """Return the padding as (before, after) for each axis."""
    if not isinstance(padding, str):
        return [(p, p) for p in per_axis(padding, len(kernel), name, "padding", 0)]
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError(f"{name}: padding='same' needs stride 1, got {stride}; give the padding as integers")
        totals = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [(t // 2, t - t // 2) for t in totals]
    raise ValueError(f"{name}: padding must be integers, 'same' or 'valid', got {padding!r}; write padding='same'")


def _conv(
    name: str, x: Tensor, w: Tensor, b: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int, ndim: int
) -> Tensor:
    """Check a convolution over `ndim` axes and run it over two."""
    x, w, b = _inputs(name, x, w, b, ndim)
    _check_channels(name, x, w, b, groups, False)
    stride = per_axis(stride, ndim, name, "stride", 1)
    dilation = per_axis(dilation, ndim, name, "dilation", 1)
    pads = _padding(name, padding, w.shape[2:], stride, dilation)
    count = tuple(
        window_count(n, k, s, low, high, d, name)
        for n, k, s, (low, high), d in zip(x.shape[2:], w.shape[2:], stride, pads, dilation)
    )
    low = tuple(p for p, _ in pads)
    if ndim == 1:
        x, w = expand_dims(x, axis=2), expand_dims(w, axis=2)
        count, stride, dilation, low = (1, *count), (1, *stride), (1, *dilation), (0, *low)
    plain = not x.device.launches and (b is None or x.dtype not in HALF)  # a sum after the product would round halves twice
    if w.shape[2:] == (1, 1) and stride == (1, 1) and groups == 1 and count == x.shape[2:] and plain:
        y = matmul(reshape(w, w.shape[:2]), reshape(x, (*x.shape[:2], count[0] * count[1])))
        y = reshape(y, (*y.shape[:2], *count))
        y = y if b is None else y + reshape(b, (b.size, 1, 1))
    else:
        y = apply(_ops(x).convolve, (x, w, b), {"count": count, **_settings(stride, low, dilation, groups)})
    return squeeze(y, axis=2) if ndim == 1 else y


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of images x (N, C, H, W) with a weight (O, C / groups, kh, kw): (N, O, H', W').

    y[n,o,u,v] = bias[o] + sum_{c,i,j} weight[o,c,i,j] x[n,c, u s + i d - p, v s + j d - p], with zeros outside x, and
    H' = floor((H + 2p - d (kh - 1) - 1) / s) + 1. Settings are one integer or one per axis; `padding` may be "valid"
    (0) or "same" (H' = H; stride 1; an odd remainder is padded after). Group k of the inputs gives group k of the
    outputs. Half types are computed in float32 and rounded once.

    Errors: ValueError for shapes, channels or settings that do not fit, before anything is computed.
    Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", 2016.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]], device=rt.Cpu())
    >>> rt.conv2d(x, rt.tensor([[[[1.0, -1.0]]]], device=rt.Cpu())).tolist()
    [[[[-1.0, -1.0], [-1.0, -1.0]]]]
    """
    return _conv("conv2d", x, weight, bias, stride, padding, dilation, groups, 2)


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return the cross-correlation of signals x (N, C, L) with a weight (O, C / groups, k): (N, O, L'); see `conv2d`.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[[1.0, 2.0, 4.0, 8.0]]], device=rt.Cpu())
    >>> rt.conv1d(x, rt.tensor([[[1.0, 1.0, 1.0]]], device=rt.Cpu()), padding="same").tolist()
    [[[3.0, 7.0, 14.0, 12.0]]]
    """
    return _conv("conv1d", x, weight, bias, stride, padding, dilation, groups, 1)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Return the transposed convolution of x (N, C, H, W) with a weight (C, O / groups, kh, kw): (N, O, H', W').

    It is the adjoint of `conv2d` with the same weight and settings: <conv2d(a, w), x> = <a, conv_transpose2d(x, w)>.
    H' = (H - 1) s - 2p + d (kh - 1) + output_padding + 1; `output_padding` (less than the stride or the dilation)
    names one of the sizes that `conv2d` would map to H.

    Errors: ValueError for shapes, channels or settings that do not fit, before anything is computed.
    Source: Zeiler, Krishnan, Taylor and Fergus, "Deconvolutional networks", 2010.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[[[1.0, 2.0]]]], device=rt.Cpu())
    >>> rt.conv_transpose2d(x, rt.tensor([[[[1.0, 10.0]]]], device=rt.Cpu()), stride=2).tolist()
    [[[[1.0, 10.0, 2.0, 20.0]]]]
    """
    name = "conv_transpose2d"
    x, weight, bias = _inputs(name, x, weight, bias, 2)
    _check_channels(name, x, weight, bias, groups, True)
    stride, dilation = per_axis(stride, 2, name, "stride", 1), per_axis(dilation, 2, name, "dilation", 1)
    low = per_axis(padding, 2, name, "padding", 0)
    extra = per_axis(output_padding, 2, name, "output_padding", 0)
    if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
        raise ValueError(
            f"{name}: output_padding={output_padding!r} must be less than the stride or the dilation, here "
            f"{stride} and {dilation}; write output_padding=0"
        )
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(x.shape[2:], stride, low, dilation, weight.shape[2:], extra)
    )
    if min(size) < 1:
        raise ValueError(f"{name}: x of shape {x.shape} with padding={padding!r} gives an empty image {size}; pad less")
    return apply(_ops(x).transpose, (x, weight, bias), {"size": size, **_settings(stride, low, dilation, groups)})
