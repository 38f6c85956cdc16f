"""Convolutions over sequences [batch, channels, length] and images [batch, channels, height, width]."""
from __future__ import annotations

import math
from dataclasses import KW_ONLY
from typing import Any

import ruda_tensor as rt

from ._axes import per_axis
from .config import Config
from .creation import Creation
from .initializers import Initializer, KaimingUniform, require_initializer
from .module import Module
from .param import Param

Padding = int | tuple[int, ...] | str


class Conv1d(Module):
    """Cross-correlation of x (N, C, L) with a weight (O, C / groups, k), plus a bias (O): (N, O, L'); see `rt.conv1d`.

    L' = floor((L + 2 padding - dilation (k - 1) - 1) / stride) + 1. Padding is with zeros.

    >>> layer = Conv1dConfig(2, 3, kernel_size=3, padding="same").init(rt.Cpu())
    >>> layer(rt.ones((4, 2, 7), device=rt.Cpu())).shape
    (4, 3, 7)
    """

    weight: Param
    bias: Param | None
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.conv1d(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups
        )


class Conv2d(Module):
    """Cross-correlation of x (N, C, H, W) with a weight (O, C / groups, kh, kw), plus a bias (O); see `rt.conv2d`.

    H' = floor((H + 2 padding - dilation (kh - 1) - 1) / stride) + 1, and W' likewise. Padding is with zeros.

    >>> layer = Conv2dConfig(3, 8, kernel_size=3, stride=2, padding=1).init(rt.Cpu())
    >>> layer(rt.ones((4, 3, 7, 8), device=rt.Cpu())).shape
    (4, 8, 4, 4)
    """

    weight: Param
    bias: Param | None
    stride: tuple[int, ...]
    padding: Any
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.conv2d(
            x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups
        )


class ConvTranspose2d(Module):
    """Transposed convolution of x (N, C, H, W) with a weight (C, O / groups, kh, kw), plus a bias (O).

    It is the gradient of `Conv2d` by its input; see `rt.conv_transpose2d`. H' = (H - 1) stride - 2 padding
    + dilation (kh - 1) + output_padding + 1.

    >>> layer = ConvTranspose2dConfig(3, 2, kernel_size=2, stride=2).init(rt.Cpu())
    >>> layer(rt.ones((4, 3, 5, 6), device=rt.Cpu())).shape
    (4, 2, 10, 12)
    """

    weight: Param
    bias: Param | None
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.conv_transpose2d(
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class Conv1dConfig(Config):
    """Settings of `Conv1d`: channels, `kernel_size`, `stride` (1), `padding` (0), `dilation` (1), `groups` (1), `bias`.

    `padding` is an integer, "same" (L' = L, for stride 1) or "valid" (0). `groups` divides both numbers of channels.
    `initializer` fills weight and bias: U(-k, k) with k = 1 / sqrt(in_channels / groups * kernel_size), as in PyTorch.

    Errors: ValueError at `init` for a setting out of its range, by name.

    >>> Conv1dConfig(4, 6, 5, groups=2).init(rt.Cpu()).weight.shape
    (6, 2, 5)
    """

    in_channels: int
    out_channels: int
    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: Padding = 0
    _: KW_ONLY
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    bias: bool = True
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> Conv1d:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        return Conv1d(**_parts(self, 1, device))


class Conv2dConfig(Config):
    """Settings of `Conv2d`; sizes are one integer or one per axis, and the rest is as in `Conv1dConfig`.

    >>> Conv2dConfig(4, 6, (3, 5), padding=(1, 2), bias=False).init(rt.Cpu()).weight.shape
    (6, 4, 3, 5)
    """

    in_channels: int
    out_channels: int
    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: Padding = 0
    _: KW_ONLY
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    bias: bool = True
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> Conv2d:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        return Conv2d(**_parts(self, 2, device))


class ConvTranspose2dConfig(Config):
    """Settings of `ConvTranspose2d`: those of `Conv2dConfig` with integer `padding`, and `output_padding` (0).

    `output_padding`, less than the stride or the dilation, adds to one side of the result. `initializer` is
    U(-k, k) with k = 1 / sqrt(out_channels / groups * kh * kw): PyTorch counts the second axis of the weight.

    >>> ConvTranspose2dConfig(4, 6, 3, groups=2).init(rt.Cpu()).weight.shape
    (4, 3, 3, 3)
    """

    in_channels: int
    out_channels: int
    kernel_size: int | tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    padding: int | tuple[int, ...] = 0
    _: KW_ONLY
    output_padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1
    bias: bool = True
    initializer: Initializer | None = None

    def init(self, device: Any = None) -> ConvTranspose2d:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        extra = per_axis(self, "output_padding", 2, 0)
        limits = [max(s, d) for s, d in zip(per_axis(self, "stride", 2, 1), per_axis(self, "dilation", 2, 1))]
        fits = all(e < limit for e, limit in zip(extra, limits))
        self.require(fits, "output_padding", f"less than the stride or the dilation, which are {self.stride} and {self.dilation}")
        self.require(not isinstance(self.padding, str), "padding", "integers >= 0")
        return ConvTranspose2d(**_parts(self, 2, device, transposed=True), output_padding=extra)


def _parts(config: Any, axes: int, device: Any, transposed: bool = False) -> dict[str, Any]:
    """Check a configuration and return the fields that all convolutions have."""
    config.require_count("in_channels", "out_channels", "groups")
    config.require_bools()
    kernel = per_axis(config, "kernel_size", axes, 1)
    stride, dilation = per_axis(config, "stride", axes, 1), per_axis(config, "dilation", axes, 1)
    padding = config.padding
    if isinstance(padding, str):
        config.require(padding in ("same", "valid"), "padding", "integers >= 0, 'same' or 'valid'")
        config.require(padding == "valid" or set(stride) == {1}, "padding", f"integers, as stride is {config.stride} and not 1")
    else:
        padding = per_axis(config, "padding", axes, 0)
    divides = config.in_channels % config.groups == 0 == config.out_channels % config.groups
    config.require(divides, "groups", f"a divisor of both {config.in_channels} and {config.out_channels} channels")
    require_initializer(config)
    first, second = config.out_channels, config.in_channels
    if transposed:
        first, second = second, first
    shape = (first, second // config.groups, *kernel)
    window = math.prod(kernel)
    fans = shape[1] * window, first * window
    make, initializer = Creation(device), config.initializer or KaimingUniform()
    return {
        "weight": make.param(initializer, shape, *fans),
        "bias": make.param(initializer, (config.out_channels,), *fans) if config.bias else None,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": int(config.groups),
    }
