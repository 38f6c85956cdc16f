"""Pooling layers over the last axis [..., L] or the last two [..., H, W]."""
from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import ruda_tensor as rt
from ruda_tensor.ops._common import floating

from ._axes import per_axis
from ._wide import wide
from .config import Config
from .module import Module


class MaxPool1d(Module):
    """The largest element of each window over the last axis; see `rt.max_pool1d`.

    >>> x = rt.tensor([-5.0, -1.0, -7.0, -2.0, -9.0], device=rt.Cpu())
    >>> MaxPool1dConfig(3, stride=2, padding=1).init()(x).tolist()
    [-1.0, -1.0, -2.0]
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.max_pool1d(
            x, self.kernel_size, stride=self.stride, padding=self.padding, dilation=self.dilation, ceil_mode=self.ceil_mode
        )


class MaxPool2d(Module):
    """The largest element of each window over the last two axes; see `rt.max_pool2d`.

    >>> MaxPool2dConfig(2).init()(rt.tensor([[1.0, 2.0], [4.0, 3.0]], device=rt.Cpu())).tolist()
    [[4.0]]
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.max_pool2d(
            x, self.kernel_size, stride=self.stride, padding=self.padding, dilation=self.dilation, ceil_mode=self.ceil_mode
        )


class AvgPool1d(Module):
    """The mean of each window over the last axis; see `rt.avg_pool1d`.

    >>> AvgPool1dConfig(2, stride=1).init()(rt.tensor([1.0, 2.0, 6.0], device=rt.Cpu())).tolist()
    [1.5, 4.0]
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.avg_pool1d(
            x, self.kernel_size, stride=self.stride, padding=self.padding, ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )  # fmt: skip


class AvgPool2d(Module):
    """The mean of each window over the last two axes; see `rt.avg_pool2d`.

    >>> AvgPool2dConfig(2).init()(rt.tensor([[1.0, 2.0], [3.0, 6.0]], device=rt.Cpu())).tolist()
    [[3.0]]
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool
    count_include_pad: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.avg_pool2d(
            x, self.kernel_size, stride=self.stride, padding=self.padding, ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )  # fmt: skip


class AdaptiveAvgPool2d(Module):
    """Means over windows that divide the last two axes of x (..., H, W) into `output_size`, whatever H and W are.

    Window i of n along an axis of size H is [floor(i H / n), ceil((i + 1) H / n)); neighbours overlap by one element
    where n does not divide H. Half types are summed in float32 and rounded once.

    Errors: ValueError for x of fewer than two axes, or an empty one.

    >>> x = rt.tensor([[1.0, 2.0, 6.0]], device=rt.Cpu())
    >>> AdaptiveAvgPool2dConfig((1, 2)).init()(x).tolist()
    [[1.5, 4.0]]
    """

    output_size: tuple[int, ...]

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        x = floating(x, "AdaptiveAvgPool2d")
        if x.ndim < 2 or 0 in x.shape[-2:]:
            raise ValueError(f"AdaptiveAvgPool2d: x must be (..., H, W) with H and W >= 1, got shape {x.shape}; try x[None]")
        y = wide(x)
        (h, w), (rows, columns) = x.shape[-2:], self.output_size
        if h % rows == 0 and w % columns == 0:
            y = rt.avg_pool2d(y, (h // rows, w // columns))
        else:
            y = _window_means(_window_means(y, -1, columns), -2, rows)
        return y.astype(x.dtype)


def _window_means(x: rt.Tensor, axis: int, count: int) -> rt.Tensor:
    """Return the means over `count` windows of nearly one size that cover axis -1 or -2."""
    n = x.shape[axis]
    tail = (slice(None),) * (-axis - 1)
    parts = [x[(..., slice(i * n // count, -(-(i + 1) * n // count)), *tail)] for i in range(count)]
    return rt.stack([rt.mean(part, axis=axis) for part in parts], axis=axis)


class MaxPool1dConfig(Config):
    """Settings of `MaxPool1d`: `kernel_size`, `stride` (None: the kernel size), `padding` (0), `dilation` (1), `ceil_mode`.

    Padding is never the largest element, and is at most half of a window. With `ceil_mode` (False) a last window may reach
    beyond the end.

    >>> MaxPool1dConfig(3).init().stride
    (3,)
    """

    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    _: KW_ONLY
    dilation: int | tuple[int, ...] = 1
    ceil_mode: bool = False

    def init(self, device: Any = None) -> MaxPool1d:
        """Return the layer, which works on any device."""
        dilation = per_axis(self, "dilation", 1, 1)
        return MaxPool1d(**_windows(self, 1, dilation), dilation=dilation)


class MaxPool2dConfig(Config):
    """Settings of `MaxPool2d`, each one integer or one per axis; see `MaxPool1dConfig`.

    >>> MaxPool2dConfig((2, 3)).init().kernel_size
    (2, 3)
    """

    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    _: KW_ONLY
    dilation: int | tuple[int, ...] = 1
    ceil_mode: bool = False

    def init(self, device: Any = None) -> MaxPool2d:
        """Return the layer, which works on any device."""
        dilation = per_axis(self, "dilation", 2, 1)
        return MaxPool2d(**_windows(self, 2, dilation), dilation=dilation)


class AvgPool1dConfig(Config):
    """Settings of `AvgPool1d`: `kernel_size`, `stride` (None: the kernel size), `padding` (0), `ceil_mode` (False).

    With `count_include_pad` (True) padding counts as zeros.

    >>> AvgPool1dConfig(3).init().stride
    (3,)
    """

    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    _: KW_ONLY
    ceil_mode: bool = False
    count_include_pad: bool = True

    def init(self, device: Any = None) -> AvgPool1d:
        """Return the layer, which works on any device."""
        return AvgPool1d(**_windows(self, 1, (1,)), count_include_pad=self.count_include_pad)


class AvgPool2dConfig(Config):
    """Settings of `AvgPool2d`, each one integer or one per axis; see `AvgPool1dConfig`.

    >>> AvgPool2dConfig((2, 3)).init().kernel_size
    (2, 3)
    """

    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] | None = None
    padding: int | tuple[int, ...] = 0
    _: KW_ONLY
    ceil_mode: bool = False
    count_include_pad: bool = True

    def init(self, device: Any = None) -> AvgPool2d:
        """Return the layer, which works on any device."""
        return AvgPool2d(**_windows(self, 2, (1, 1)), count_include_pad=self.count_include_pad)


class AdaptiveAvgPool2dConfig(Config):
    """Settings of `AdaptiveAvgPool2d`: `output_size`, one integer or one per axis.

    >>> AdaptiveAvgPool2dConfig(1).init().output_size
    (1, 1)
    """

    output_size: int | tuple[int, ...]

    def init(self, device: Any = None) -> AdaptiveAvgPool2d:
        """Return the layer, which works on any device."""
        return AdaptiveAvgPool2d(output_size=per_axis(self, "output_size", 2, 1))


def _windows(config: Any, axes: int, dilation: tuple[int, ...]) -> dict[str, Any]:
    """Check a configuration and return the fields that all pools have."""
    config.require_bools()
    kernel = per_axis(config, "kernel_size", axes, 1)
    stride = kernel if config.stride is None else per_axis(config, "stride", axes, 1)
    padding = per_axis(config, "padding", axes, 0)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    fits = all(2 * p <= r for p, r in zip(padding, reach))
    config.require(fits, "padding", f"at most half of a window, which spans {tuple(reach)}")
    return {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": config.ceil_mode}
