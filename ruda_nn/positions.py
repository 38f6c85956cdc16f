"""Positions of sequences: rotary and sinusoidal.

Learned positions need no class of their own: with `learned = EmbeddingConfig(max_length, d_model).init(device)` they are
`x + learned(rt.arange(T))`, and behind a cache `x + learned(rt.arange(length, length + T))`.

The tables of sines and cosines are constants, computed on the host in float64 and rounded once; they are no part of a
model's record.
"""
from __future__ import annotations

import functools
from dataclasses import KW_ONLY
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.dtypes import promote_types
from ruda_tensor.ops._common import floating
from ruda_tensor.recording import capturing

from .config import Config, is_whole
from .module import Module


def _angles(length: int, size: int, theta: float) -> np.ndarray:
    """position / theta^(2 i / size), of shape (length, ceil(size / 2))."""
    return np.arange(length)[:, None] / theta ** (np.arange(0, size, 2) / size)


def _shared(values: np.ndarray, dtype: Any, device: Any) -> rt.Tensor:
    """A table that other threads may find made, whose own streams do not wait for the copy to the device: it is over."""
    table = rt.Tensor._wrap(device.constant(values.astype(dtype)), device)
    if not capturing():
        device.synchronize()
    return table


@functools.lru_cache(maxsize=16)
def _rotary_table(length: int, size: int, theta: float, dtype: Any, device: Any) -> tuple[rt.Tensor, rt.Tensor]:
    """cos and sin, each (length, size / 2)."""
    angles = _angles(length, size, theta)
    return _shared(np.cos(angles), dtype, device), _shared(np.sin(angles), dtype, device)


@functools.lru_cache(maxsize=8)
def _sinusoidal_table(length: int, size: int, theta: float, dtype: Any, device: Any) -> rt.Tensor:
    angles = _angles(length, size, theta)
    table = np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(length, -1)[:, :size]
    return _shared(table, dtype, device)


def _check_offset(name: str, offset: Any) -> int:
    if not is_whole(offset) or offset < 0:
        raise ValueError(f"{name}: offset must be an integer >= 0, the position of the first element, got {offset!r}")
    return int(offset)


class Rotary(Module):
    """Rotary positions: rotates pairs of features of queries and keys by an angle that grows with the position.

    x is [..., T, D], and the result too. With n = `dims` (at most D; what is beyond passes through) and i < n / 2, the
    features i and i + n / 2 of position t are a pair, turned by the angle a = t / theta^(2 i / n):

        y_i = x_i cos(a) - x_(i + n/2) sin(a),   y_(i + n/2) = x_(i + n/2) cos(a) + x_i sin(a)

    This is the half-split pairing of GPT-NeoX and Llama checkpoints; the paper's own pairs are (2 i, 2 i + 1), which is
    the same up to an order of the features. q k^T then depends on positions by their difference alone. `offset` is the
    position of the first element: the length of a cache. Half types are rotated in float32 and rounded once.

    Errors: ValueError where D is less than `dims`.
    Source: Su et al., "RoFormer: enhanced transformer with rotary position embedding", 2021, section 3.2.2.

    >>> rotary = RotaryConfig(d_head=2).init()
    >>> rotary(rt.tensor([[1.0, 0.0], [1.0, 0.0]], device=rt.Cpu())).numpy().round(4)
    array([[1.    , 0.    ],
           [0.5403, 0.8415]], dtype=float32)
    """

    dims: int
    theta: float

    def forward(self, x: rt.Tensor, offset: int = 0) -> rt.Tensor:
        offset, n, x = _check_offset("Rotary", offset), self.dims, floating(x, "Rotary")
        if x.ndim < 2 or x.shape[-1] < n:
            fitting = "x[None]" if x.ndim < 2 else f"RotaryConfig(d_head={x.shape[-1]})"
            raise ValueError(f"Rotary: rotates {n} features of x [..., T, D], got {x.shape}; {fitting}")
        end, dtype = offset + x.shape[-2], promote_types(x.dtype, rt.float32)
        # Lengths are rounded up, so that decoding step by step finds its table made.
        cos, sin = _rotary_table(1 << max(63, end - 1).bit_length(), n, self.theta, dtype, x.device)
        return rt.rotary(x, cos[offset:end], sin[offset:end])


class RotaryConfig(Config):
    """Settings of `Rotary`: `d_head`, `theta` (10000), and `dims`, how many features turn (None: all; even).

    >>> RotaryConfig(d_head=64, dims=16).init().dims
    16
    """

    d_head: int
    _: KW_ONLY
    theta: float = 1e4
    dims: int | None = None

    def init(self, device: Any = None) -> Rotary:
        """Return the module, which has no parameters: `device` is taken for uniformity."""
        self.require_count("d_head", low=2)
        self.require_number("theta", open=True)
        if self.dims is None:
            self.require(self.d_head % 2 == 0, "d_head", "an even integer, or dims=, the even number of features to turn")
        else:
            ok = is_whole(self.dims) and self.dims % 2 == 0 and 2 <= self.dims <= self.d_head
            self.require(ok, "dims", f"an even integer in 2 ... d_head={self.d_head}, or None for all")
        return Rotary(dims=int(self.dims or self.d_head), theta=float(self.theta))


class SinusoidalPositions(Module):
    """Adds fixed waves of the position: y[..., t, j] = x[..., t, j] + p[t, j], x [..., T, d_model].

        p[t, 2 i] = sin(t / theta^(2 i / d_model)),   p[t, 2 i + 1] = cos(t / theta^(2 i / d_model))

    `offset` is the position of the first element. The result has the dtype of x.

    Errors: ValueError for another width, and for positions beyond `max_length`.
    Source: Vaswani et al., "Attention is all you need", 2017, section 3.5.

    >>> positions = SinusoidalPositionsConfig(d_model=4).init()
    >>> positions(rt.zeros((1, 2, 4), device=rt.Cpu())).numpy().round(3)
    array([[[0.   , 1.   , 0.   , 1.   ],
            [0.841, 0.54 , 0.01 , 1.   ]]], dtype=float32)
    """

    d_model: int
    max_length: int
    theta: float

    def forward(self, x: rt.Tensor, offset: int = 0) -> rt.Tensor:
        offset, x = _check_offset("SinusoidalPositions", offset), floating(x, "SinusoidalPositions")
        if x.ndim < 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"SinusoidalPositions: x must be [..., T, {self.d_model}], got {x.shape}")
        end = offset + x.shape[-2]
        if end > self.max_length:
            raise ValueError(
                f"SinusoidalPositions: positions up to {end} are asked for, and max_length is {self.max_length}; "
                f"SinusoidalPositionsConfig({self.d_model}, max_length={end})"
            )
        dtype = promote_types(x.dtype, rt.float32)
        table = _sinusoidal_table(self.max_length, self.d_model, self.theta, dtype, x.device)[offset:end]
        return (x + table).astype(x.dtype)


class SinusoidalPositionsConfig(Config):
    """Settings of `SinusoidalPositions`: `d_model`, `max_length` (5000) and `theta` (10000).

    >>> SinusoidalPositionsConfig(d_model=8).init().max_length
    5000
    """

    d_model: int
    max_length: int = 5000
    theta: float = 1e4

    def init(self, device: Any = None) -> SinusoidalPositions:
        """Return the module, which has no parameters: `device` is taken for uniformity."""
        self.require_count("d_model", "max_length")
        self.require_number("theta", open=True)
        return SinusoidalPositions(int(self.d_model), int(self.max_length), float(self.theta))
