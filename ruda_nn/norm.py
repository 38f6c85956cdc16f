"""Normalization layers. Statistics are computed in float32 or wider; weights may be float32 beside half inputs."""
from __future__ import annotations

import math
from typing import Any

import ruda_tensor as rt
from ruda_tensor.dtypes import HALF
from ruda_tensor.ops._common import floating

from .buffers import Buffer
from .config import Config, is_whole
from .creation import Creation
from .initializers import Ones, Zeros
from .module import Module
from .param import Param


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axes, those of `normalized_shape`; see `rt.layer_norm`.

    x (..., *normalized_shape), and y of the shape and dtype of x.

    >>> LayerNormConfig(4).init(rt.Cpu())(rt.tensor([[1.0, 3.0, 1.0, 3.0]], device=rt.Cpu())).numpy().round(3)
    array([[-1.,  1., -1.,  1.]], dtype=float32)
    """

    weight: Param | None
    bias: Param | None
    normalized_shape: tuple[int, ...]
    eps: float

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.layer_norm(x, self.weight, self.bias, normalized_shape=self.normalized_shape, eps=self.eps)


class RmsNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axes, those of `normalized_shape`; see `rt.rms_norm`.

    >>> RmsNormConfig(4).init(rt.Cpu())(rt.tensor([[3.0, -3.0, 3.0, 3.0]], device=rt.Cpu())).numpy().round(3)
    array([[ 1., -1.,  1.,  1.]], dtype=float32)
    """

    weight: Param | None
    normalized_shape: tuple[int, ...]
    eps: float

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.rms_norm(x, self.weight, normalized_shape=self.normalized_shape, eps=self.eps)


class BatchNorm(Module):
    """(x - mean) / sqrt(var + eps) * weight + bias per channel of x (N, C) or (N, C, ...); see `rt.batch_norm`.

    In training mode, mean and biased variance are those of the batch, and each forward moves the running ones:
    running = (1 - momentum) running + momentum batch, with the unbiased variance. In inference mode (`model.valid()`)
    the running ones are used. One value per channel is refused in training, as it has no variance; an empty batch
    changes nothing. The running statistics are buffers, float32 or wider: see `ruda_nn.buffers`.

    >>> from ruda_autodiff import Autodiff
    >>> layer = BatchNormConfig(1).init(Autodiff(rt.Cpu()))
    >>> layer(rt.tensor([[2.0], [4.0], [6.0], [8.0]], device=rt.Cpu())).detach().numpy().ravel().round(2)
    array([-1.34, -0.45,  0.45,  1.34], dtype=float32)
    >>> layer.running_mean.numpy(), layer.running_var.numpy().round(4)
    (array([0.5], dtype=float32), array([1.5667], dtype=float32))
    """

    weight: Param | None
    bias: Param | None
    running_mean: Buffer
    running_var: Buffer
    momentum: float
    eps: float
    training: bool

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        y, mean, var = rt.batch_norm(
            x,
            self.running_mean.value,
            self.running_var.value,
            self.weight,
            self.bias,
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        )
        if self.training:
            assert mean is not None and var is not None
            self.running_mean.set(mean)
            self.running_var.set(var)
        return y


class GroupNorm(Module):
    """x (N, C, ...) normalized over each of `num_groups` runs of channels and all later axes; see `rt.group_norm`.

    >>> GroupNormConfig(2, 4).init(rt.Cpu())(rt.tensor([[1.0, 3.0, 10.0, 30.0]], device=rt.Cpu())).numpy().round(3)
    array([[-1.,  1., -1.,  1.]], dtype=float32)
    """

    weight: Param | None
    bias: Param | None
    num_groups: int
    eps: float

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        return rt.group_norm(x, self.num_groups, self.weight, self.bias, eps=self.eps)


class InstanceNorm(Module):
    """x (N, C, ...) with each channel of each example normalized over the later axes; see `rt.instance_norm`.

    Errors: ValueError for another number of channels, and where a channel is a single value, of which only 0 would be left.

    >>> x = rt.tensor([[[1.0, 3.0], [10.0, 30.0]]], device=rt.Cpu())
    >>> InstanceNormConfig(2).init(rt.Cpu())(x).numpy().round(3)
    array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """

    weight: Param | None
    bias: Param | None
    num_features: int
    eps: float

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        x = floating(x, "InstanceNorm")
        if x.ndim > 1 and math.prod(x.shape[2:]) == 1:
            raise ValueError(
                f"InstanceNorm: x of shape {x.shape} has one value per channel, which normalized is 0 whatever it was; "
                f"normalize over the channels too: GroupNormConfig(1, {self.num_features})"
            )
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise ValueError(
                f"InstanceNorm: x has shape {x.shape}, and {self.num_features} channels are needed on axis 1; "
                f"InstanceNormConfig({x.shape[1] if x.ndim > 1 else 'channels'})"
            )
        return rt.instance_norm(x, self.weight, self.bias, eps=self.eps)


class LayerNormConfig(Config):
    """Settings of `LayerNorm`: the sizes normalized over, `eps` (1e-5), `elementwise_affine` (True), `bias` (True).

    `weight` starts at 1 and `bias` at 0, both of shape `normalized_shape`. `bias=False` leaves out the bias alone.

    >>> LayerNormConfig((3, 5), bias=False).init(rt.Cpu()).paths()
    ['weight']
    """

    normalized_shape: int | tuple[int, ...]
    eps: float = 1e-5
    elementwise_affine: bool = True
    bias: bool = True

    def init(self, device: Any = None) -> LayerNorm:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        shape = _normalized(self)
        _check_shared(self)
        weight, bias = _affine(device, shape, self.elementwise_affine, self.bias)
        return LayerNorm(weight=weight, bias=bias, normalized_shape=shape, eps=float(self.eps))


class RmsNormConfig(Config):
    """Settings of `RmsNorm`: the sizes normalized over, `eps` (1e-5, > 0), `elementwise_affine` (True).

    >>> RmsNormConfig(8).init(rt.Cpu()).weight.shape
    (8,)
    """

    normalized_shape: int | tuple[int, ...]
    eps: float = 1e-5
    elementwise_affine: bool = True

    def init(self, device: Any = None) -> RmsNorm:
        """Return the layer on a device; on a recording device its weight is tracked."""
        shape = _normalized(self)
        self.require_bools()
        self.require_number("eps", open=True)
        weight, _ = _affine(device, shape, self.elementwise_affine, False)
        return RmsNorm(weight=weight, normalized_shape=shape, eps=float(self.eps))


class BatchNormConfig(Config):
    """Settings of `BatchNorm`: `num_features` (C), `eps` (1e-5), `momentum` (0.1), `affine` (True).

    `momentum` is the share of the newest batch. On a recording device the layer starts in training mode.

    >>> BatchNormConfig(3).init(rt.Cpu()).running_var.tolist()
    [1.0, 1.0, 1.0]
    """

    num_features: int
    eps: float = 1e-5
    momentum: float = 0.1
    affine: bool = True

    def init(self, device: Any = None) -> BatchNorm:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        self.require_count("num_features")
        _check_shared(self)
        self.require_within("momentum", 1.0, zero=True)
        make, shape = Creation(device), (self.num_features,)
        weight, bias = _affine(device, shape, self.affine, True)
        dtype = rt.float32 if make.place.float_dtype in HALF else make.place.float_dtype
        return BatchNorm(
            weight=weight,
            bias=bias,
            running_mean=Buffer(rt.zeros(shape, dtype=dtype, device=make.place)),
            running_var=Buffer(rt.ones(shape, dtype=dtype, device=make.place)),
            momentum=float(self.momentum),
            eps=float(self.eps),
            training=make.training,
        )


class GroupNormConfig(Config):
    """Settings of `GroupNorm`: `num_groups`, which divides `num_channels`; `eps` (1e-5), `affine` (True).

    >>> GroupNormConfig(2, 6).init(rt.Cpu()).weight.shape
    (6,)
    """

    num_groups: int
    num_channels: int
    eps: float = 1e-5
    affine: bool = True

    def init(self, device: Any = None) -> GroupNorm:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        self.require_count("num_groups", "num_channels")
        self.require(self.num_channels % self.num_groups == 0, "num_groups", f"a divisor of {self.num_channels} channels")
        _check_shared(self)
        weight, bias = _affine(device, (self.num_channels,), self.affine, True)
        return GroupNorm(weight=weight, bias=bias, num_groups=int(self.num_groups), eps=float(self.eps))


class InstanceNormConfig(Config):
    """Settings of `InstanceNorm`: `num_features` (C), `eps` (1e-5), `affine` (False, as in PyTorch).

    >>> InstanceNormConfig(3, affine=True).init(rt.Cpu()).paths()
    ['weight', 'bias']
    """

    num_features: int
    eps: float = 1e-5
    affine: bool = False

    def init(self, device: Any = None) -> InstanceNorm:
        """Return the layer on a device; on a recording device its parameters are tracked."""
        self.require_count("num_features")
        _check_shared(self)
        weight, bias = _affine(device, (self.num_features,), self.affine, True)
        return InstanceNorm(weight=weight, bias=bias, num_features=int(self.num_features), eps=float(self.eps))


def _affine(device: Any, shape: tuple[int, ...], affine: bool, bias: bool) -> tuple[Param | None, Param | None]:
    make = Creation(device)
    weight = make.param(Ones(), shape) if affine else None
    return weight, make.param(Zeros(), shape) if affine and bias else None


def _normalized(config: Any) -> tuple[int, ...]:
    value = config.normalized_shape
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    ok = bool(sizes) and all(is_whole(n) and n > 0 for n in sizes)
    config.require(ok, "normalized_shape", "an integer >= 1, or a tuple of them")
    return tuple(int(n) for n in sizes)


def _check_shared(config: Any) -> None:
    config.require_bools()
    config.require_number("eps")
