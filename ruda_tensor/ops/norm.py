"""Normalization: shift to mean 0 and scale to variance 1 over some axes, then scale and shift by learned vectors.

Statistics are taken in float32 or wider, in two passes, and corrected: rows that are constant or far from 0 lose
nothing. Half types are rounded once, at the end.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes

from ..dtypes import FLOAT32, FLOATING, HALF
from ..kernels import batch_norm as channels
from ..kernels import norms
from ..operation import Composite, Fused, call
from ..tensor import Tensor
from ._common import as_tensor, cast, floating, scalar_of, setting
from ._normalize import (
    batch_backward,
    batch_forward,
    channel_moments,
    layer_backward,
    layer_forward,
    rms_backward,
    rms_forward,
)
from ._numerics import single
from .reduce import mean as average
from .shape import reshape
from .statistics import center
from .transcendental import sqrt

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None, dtype: Any) -> Tensor:
    if weight is not None:
        y = y * single(weight)
    if bias is not None:
        y = y + single(bias)
    return cast(y, dtype)


def _layer_expression(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, axes: int, eps: float) -> Tensor:
    over = tuple(range(x.ndim - axes, x.ndim))
    d = center(single(x), over)
    return _affine(d / sqrt(average(d * d, axis=over, keepdims=True) + eps), weight, bias, x.dtype)


def _rms_expression(x: Tensor, weight: Tensor | None, *, axes: int, eps: float) -> Tensor:
    y, over = single(x), tuple(range(x.ndim - axes, x.ndim))
    return _affine(y / sqrt(average(y * y, axis=over, keepdims=True) + eps), weight, None, x.dtype)


def _batch_expression(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, m: Tensor, shift: Tensor, variance: Tensor, *, eps: float
) -> Tensor:
    d = center(single(x), (0, 2))
    y = d / sqrt(average(d * d, axis=(0, 2), keepdims=True) + eps)
    return _affine(y, _column(weight, 1), _column(bias, 1), x.dtype)


_SOURCES = "norm_forward.cu norm_backward.cu columns.cu columns_finish.cu"
_layer_norm = Composite(
    "layer_norm", _layer_expression, layer_forward, layer_backward, keeps="x weight",
    fused=Fused(_SOURCES, norms.layer_forward, norms.layer_backward, adds=True),
)  # fmt: skip
_rms_norm = Composite(
    "rms_norm", _rms_expression, rms_forward, rms_backward, keeps="x weight",
    fused=Fused(_SOURCES, norms.rms_forward, norms.rms_backward, adds=True),
)  # fmt: skip
_batch_norm = Composite(
    "batch_norm", _batch_expression, batch_forward, batch_backward, keeps="x weight m shift",
    fused=Fused("batch_norm.cu columns_finish.cu", channels.forward, channels.backward),
)  # fmt: skip


def _column(w: Tensor | None, trailing: int) -> Tensor | None:
    """One number per channel, shaped to broadcast over `trailing` axes after the channel axis."""
    return None if w is None else reshape(w, (w.size,) + (1,) * trailing)


def _vector(name: str, what: str, w: Any, x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Return a weight or bias in the dtype of x, or in float32 where x is half, with its shape checked."""
    if w is None:
        return None
    w = as_tensor(w, None, name)
    if w.shape != shape:
        raise ValueError(f"{name}: {what} has shape {w.shape}, and x of shape {x.shape} needs {shape}")
    if w.dtype not in FLOATING:
        raise TypeError(f"{name}: {what} must be floating, got {w.dtype}; convert it: {what}.astype(rt.float32)")
    return cast(w, FLOAT32 if x.dtype in HALF and w.dtype != x.dtype else x.dtype)


def _check_eps(name: str, eps: Any) -> float:
    value = scalar_of(eps)
    if value is None or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{name}: eps must be a number >= 0, got {eps!r}; write eps=1e-5")
    return float(value)


def _rms_eps(x: Tensor, eps: Any) -> float:
    return float(ml_dtypes.finfo(x.dtype).eps) if eps is None else _check_eps("rms_norm", eps)


def _normalized(name: str, x: Tensor, weight: Any, shape: Any) -> tuple[int, ...]:
    """Return the sizes of the axes normalized together: as given, or the shape of the weight, or the last axis."""
    if shape is None:
        shape = x.shape[-1:] if weight is None else as_tensor(weight, None, name).shape
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not sizes or len(sizes) > x.ndim or x.shape[x.ndim - len(sizes) :] != sizes:
        raise ValueError(
            f"{name}: normalized_shape={sizes} must be the last sizes of x with shape {x.shape}; "
            f"write normalized_shape={x.shape[-1:]}"
        )
    return sizes


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    normalized_shape: Any = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return (x - mean) / sqrt(var + eps) * weight + bias, with mean and biased variance over the last axes.

    Which axes: those of `normalized_shape`, else as many as `weight` has, else the last. weight and bias have the
    shape of these axes and the dtype of x, or float32 where x is half. The result has the dtype of x.

    Errors: ValueError for shapes that do not fit or a negative eps.
    Source: Ba, Kiros and Hinton, "Layer normalization", 2016, equations 3 and 4.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[30000.0, 30002.0, 30004.0, 30006.0]], device=rt.Cpu())
    >>> rt.layer_norm(x).numpy().round(4)
    array([[-1.3416, -0.4472,  0.4472,  1.3416]], dtype=float32)
    """
    name = "layer_norm"
    x, eps = floating(x, name), _check_eps(name, eps)
    shape = _normalized(name, x, weight, normalized_shape)
    weight, bias = _vector(name, "weight", weight, x, shape), _vector(name, "bias", bias, x, shape)
    return call(_layer_norm, (x, weight, bias), {"axes": len(shape), "eps": eps})


def rms_norm(
    x: Tensor, weight: Tensor | None = None, *, normalized_shape: Any = None, eps: float | None = None
) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight, with the mean over the last axes; see `layer_norm` for which.

    eps None is the machine epsilon of the dtype of x. The mean square is taken in float32 or wider.

    Errors: ValueError for shapes that do not fit, an empty row or a negative eps.
    Source: Zhang and Sennrich, "Root mean square layer normalization", 2019, equation 4.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([300.0, -300.0, 300.0, 300.0], dtype=rt.float16, device=rt.Cpu())
    >>> rt.rms_norm(x, eps=1e-6).tolist()
    [1.0, -1.0, 1.0, 1.0]
    """
    name = "rms_norm"
    x = floating(x, name)
    eps = _rms_eps(x, eps)
    shape = _normalized(name, x, weight, normalized_shape)
    return call(_rms_norm, (x, _vector(name, "weight", weight, x, shape)), {"axes": len(shape), "eps": eps})


def _channels(name: str, x: Any) -> Tensor:
    x = floating(x, name)
    if x.ndim < 2:
        raise ValueError(f"{name}: x must have axes (N, C, ...), got shape {x.shape}; add a batch axis: x[None]")
    return x


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return (x - mean) / sqrt(var + eps) * weight + bias per channel of x (N, C, ...), and the new running statistics.

    In training, mean and biased variance are those of the batch, over every axis but the channels', and the running
    ones become (1 - momentum) old + momentum new, with the *unbiased* variance, as in PyTorch. Otherwise the running
    statistics are used and returned as they are. They are untracked; the old ones are not changed. An empty batch
    changes nothing.

    Errors: ValueError for shapes that do not fit, in training for one value per channel, whose variance says nothing,
    otherwise for missing running statistics.
    Source: Ioffe and Szegedy, "Batch normalization", 2015, algorithm 1.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[2.0], [4.0], [6.0], [8.0]], device=rt.Cpu())
    >>> mean, var = rt.zeros(1, device=rt.Cpu()), rt.ones(1, device=rt.Cpu())
    >>> y, mean, var = rt.batch_norm(x, mean, var, training=True)
    >>> y.numpy().round(2).ravel(), round(mean.item(), 4), round(var.item(), 4)
    (array([-1.34, -0.45,  0.45,  1.34], dtype=float32), 0.5, 1.5667)
    """
    name = "batch_norm"
    x, eps = _channels(name, x), _check_eps(name, eps)
    shape = x.shape[1:2]
    weight, bias = _vector(name, "weight", weight, x, shape), _vector(name, "bias", bias, x, shape)
    old = [None if s is None else as_tensor(s, None, name).detach() for s in (running_mean, running_var)]
    if any(s is not None and s.shape != shape for s in old) or (old[0] is None) != (old[1] is None):
        raise ValueError(f"{name}: running_mean and running_var must both have shape {shape}, or both be None")
    momentum = setting(momentum, name, "momentum")
    if not 0 <= momentum <= 1:
        raise ValueError(f"{name}: momentum must be in [0, 1], got {momentum!r}; write momentum=0.1")
    if not training:
        if old[0] is None or old[1] is None:
            raise ValueError(f"{name}: without training=True the running statistics are needed; pass both")
        return _scaled(x, old[0], old[1], weight, bias, eps), old[0], old[1]
    count = x.size // shape[0] if shape[0] else 0
    if count == 1:
        raise ValueError(f"{name}: x of shape {x.shape} has one value per channel, and no variance; use a larger batch")
    merged = reshape(x, (*x.shape[:2], math.prod(x.shape[2:])))
    with x.device.guard():
        moments = [Tensor._wrap(a, x.device) for a in _moments(x.device.xp, merged._data)]
    y = reshape(call(_batch_norm, (merged, weight, bias, *moments), {"eps": eps}), x.shape)
    if old[0] is None or old[1] is None or count == 0:
        return y, old[0], old[1]
    with x.device.guard():
        m, shift, variance = (a._data for a in moments)
        rest = (old[0]._data, old[1]._data), momentum, count / (count - 1)
        found = channels.running(x.device.xp, m, shift, variance, *rest)
    if found is not None:
        return y, Tensor._wrap(found[0], x.device), Tensor._wrap(found[1], x.device)
    mean, unbiased = moments[0] + moments[1], moments[2] * (count / (count - 1))
    return y, _blend(old[0], mean, momentum), _blend(old[1], unbiased, momentum)


def _moments(xp: Any, x: Any) -> tuple:
    """The mean, in two parts, and the biased variance of each channel of (N, C, L), in float32 or wider."""
    found = channels.moments(xp, x)
    return channel_moments(xp, x.astype(FLOAT32) if x.dtype in HALF else x) if found is None else found


def _blend(old: Tensor, new: Tensor, momentum: float) -> Tensor:
    """The running statistic after one more batch, in the dtype of the old one."""
    return cast(single(old) * (1 - momentum) + reshape(new, old.shape) * momentum, old.dtype)


def _scaled(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalize by given statistics."""
    wide, trailing = single(x), x.ndim - 2
    r = 1.0 / sqrt(cast(single(var), wide.dtype) + eps)
    r = r if weight is None else r * single(weight)
    y = (wide - _column(cast(single(mean), wide.dtype), trailing)) * _column(r, trailing)
    return _affine(y, None, _column(bias, trailing), x.dtype)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """Return x (N, C, ...) normalized over each of `groups` equal runs of channels, times weight plus bias per channel.

    Mean and biased variance are over the channels of a group and all axes after them, for each example.

    Errors: ValueError for shapes that do not fit or channels that `groups` does not divide.
    Source: Wu and He, "Group normalization", 2018, equations 1 to 7.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 3.0, 10.0, 30.0]], device=rt.Cpu())
    >>> rt.group_norm(x, 2).numpy().round(3)
    array([[-1.,  1., -1.,  1.]], dtype=float32)
    """
    return _group("group_norm", x, groups, weight, bias, eps)


def instance_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> Tensor:
    """Return x (N, C, ...) with each channel of each example normalized over the axes after it: a group per channel.

    Source: Ulyanov, Vedaldi and Lempitsky, "Instance normalization", 2016, equation 7.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[[1.0, 3.0], [10.0, 30.0]]], device=rt.Cpu())
    >>> rt.instance_norm(x).numpy().round(3)
    array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """
    x = _channels("instance_norm", x)
    return _group("instance_norm", x, max(x.shape[1], 1), weight, bias, eps)


def _group(name: str, x: Any, groups: Any, weight: Any, bias: Any, eps: float) -> Tensor:
    x, eps = _channels(name, x), _check_eps(name, eps)
    n, c = x.shape[:2]
    if isinstance(groups, bool) or not hasattr(groups, "__index__") or groups < 1 or c % groups:
        raise ValueError(f"{name}: groups must be an integer that divides the {c} channels, got {groups!r}")
    weight, bias = _vector(name, "weight", weight, x, (c,)), _vector(name, "bias", bias, x, (c,))
    width = c // groups * math.prod(x.shape[2:])
    rows = reshape(single(x), (n * groups, width))
    y = reshape(call(_layer_norm, (rows, None, None), {"axes": 1, "eps": eps}), x.shape)
    return _affine(y, _column(weight, x.ndim - 2), _column(bias, x.ndim - 2), x.dtype)
