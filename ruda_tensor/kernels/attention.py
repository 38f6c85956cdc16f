"""Scaled dot-product attention on tensor cores: the bindings of attention_forward.cu and attention_backward.cu.

q is (B, H, Tq, D), k and v are (B, K, Tk, D), where K divides H and D is a multiple of 8 up to 128, in float16 or bfloat16.
They may be views with any strides whose last axis is dense and whose rows begin at multiples of 16 bytes; others are copied.
Heads of other sizes than 64 and 128 are filled up with zeros on the way to shared memory, and cost as much as the next one.
"""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import FLOAT32, HALF
from .gate import CTYPES, LONGEST, MOST_BLOCKS, aligned, capability, ceil_div, opened
from .launch import Kernel

HEADS = (64, 128)  # sizes of a head that the tiles have
SECTION = 16 << 20  # bytes of keys and values that heads taken together have: a part of the L2 cache
FAR = 1 << 24  # bytes between rows: a tile's rows are found by 32-bit numbers
_SCALES = 1e-30, 1e30  # beyond them a scaled number could leave float32
_LAYOUT, _SIZES = " q q q", " i i i i i i f"


def head(d: int) -> int:
    """The size of a head that the tiles have for one of d."""
    return HEADS[0] if d <= HEADS[0] else HEADS[1]


class Tiles(NamedTuple):
    """How a block is cut: `warps` of 16 `tiles` rows each against `columns` rows at a time, `slice` of them at once.

    `keep`: whether a warp's rows stay in registers. `resident`: blocks that a multiprocessor shall hold.
    """

    warps: int
    tiles: int
    columns: int
    slice: int
    keep: int
    resident: int

    def own(self) -> int:
        """Rows of a block."""
        return self.warps * self.tiles * 16

    def shared(self, d: int, own: int) -> int:
        """Bytes of shared memory: `own` arrays of the block's own rows, two stages of two others, two numbers a row."""
        return 2 * head(d) * (own * self.own() + 4 * self.columns) + (16 * self.columns if own == 2 else 0)

    def defines(self, dtype: np.dtype, d: int, causal: bool) -> dict[str, Any]:
        return {
            "STORAGE": CTYPES[dtype], "HEAD": head(d), "WIDTH": d, "CAUSAL": int(causal), "WARPS": self.warps,
            "TILES": self.tiles, "COLUMNS": self.columns, "SLICE": self.slice, "KEEP": self.keep, "RESIDENT": self.resident,
        }  # fmt: skip


_KILOBYTES = {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}  # of shared memory that a block may have; elsewhere 99
FORWARD = {64: Tiles(2, 2, 64, 64, 1, 4), 128: Tiles(4, 2, 64, 64, 0, 2)}
OF_QUERIES = {64: Tiles(4, 1, 64, 32, 1, 3), 128: Tiles(4, 1, 64, 64, 1, 2)}
OF_KEYS = {64: Tiles(4, 2, 64, 32, 0, 2), 128: Tiles(4, 1, 64, 64, 0, 2)}


@functools.cache
def fitting(tiles: Tiles, d: int, own: int, architecture: int) -> Tiles:
    """The tiles with fewer columns where a block's shared memory is too small for them."""
    room = _KILOBYTES.get(architecture, 99) << 10
    while tiles.shared(d, own) > room and tiles.columns > 32:
        tiles = tiles._replace(columns=tiles.columns // 2, slice=min(tiles.slice, tiles.columns // 2))
    return tiles


@functools.cache
def _forward(dtype: np.dtype, d: int, causal: bool, tiles: Tiles) -> Kernel:
    signature = "P P P P P" + 4 * _LAYOUT + _SIZES
    return Kernel(
        "attention_forward.cu", "attention_forward", signature, tiles.defines(dtype, d, causal), shared=tiles.shared(d, 1)
    )


@functools.cache
def _backward(name: str, dtype: np.dtype, d: int, causal: bool, tiles: Tiles) -> Kernel:
    defines = tiles.defines(dtype, d, causal) | ({"OF_QUERIES": 1} if name == "attention_backward_queries" else {})
    return Kernel("attention_backward.cu", name, "P P P P P P P P" + 6 * _LAYOUT + _SIZES, defines, shared=tiles.shared(d, 2))


def takes(xp: Any, q: Any, k: Any, v: Any, scale: float, *more: Any) -> bool:
    """True where the gate is open for these arrays and this scale, and heads have one of the tiles' sizes."""
    return q.shape[3] in HEADS and _takes(xp, q, k, v, scale, *more)


def _takes(xp: Any, q: Any, k: Any, v: Any, scale: float, *more: Any) -> bool:
    if q.dtype not in HALF or any(a.dtype != q.dtype for a in (k, v, *more)) or opened(xp, q) is None:
        return False
    d, longest = q.shape[3], max(q.shape[2], k.shape[2])
    fits = d % 8 == 0 and d <= HEADS[1] and v.shape[3] == d and 0 < k.shape[2] and longest <= LONGEST
    return fits and _SCALES[0] < scale < _SCALES[1] and capability(xp) >= 80


def readable(xp: Any, a: Any) -> bool:
    """True where the last axis is dense and rows begin at multiples of 16 bytes."""
    strides = a.strides
    near = abs(strides[2]) < FAR
    return near and strides[3] == a.itemsize and not (strides[0] | strides[1] | strides[2]) & 15 and aligned(xp, a)


def rows_of(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays, copied where the kernels cannot read them."""
    return [a if readable(xp, a) else xp.array(a, order="C") for a in arrays]


def empty_heads(xp: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """An array (B, H, T, D) whose memory is (B, T, H, D), so that heads are joined without a copy."""
    b, h, t, d = shape
    return xp.empty((b, t, h, d), dtype).transpose(0, 2, 1, 3)


def like(xp: Any, a: Any) -> Any:
    """An array for the gradient of a: with its heads one after the other if a has them so."""
    return xp.empty(a.shape, a.dtype) if a.flags.c_contiguous else empty_heads(xp, a.shape, a.dtype)


def _strides(*arrays: Any) -> list[int]:
    """Batch, head and row strides in numbers; of None zeros."""
    return [0 if a is None else stride // 2 for a in arrays for stride in ((0, 0, 0) if a is None else a.strides[:3])]


def _sizes(q: Any, k: Any, heads: int, loaded: Any) -> tuple[int, ...]:
    """The struct Sizes for blocks over so many heads, each of which reads two arrays with heads as long as those of `loaded`."""
    (b, h, t, d), keys = q.shape, k.shape[2]
    units = b * heads
    section = max(1, SECTION // (4 * d * loaded.shape[2]))
    return heads, h // k.shape[1], t, keys, units, min(section, units)


def forward(xp: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool, out: Any = None) -> tuple[Any, Any] | None:
    """The result (B, H, Tq, D) and the log sum exp (B, H, Tq, 1) of each query's scores, inf where it sees no key.

    `out` is where to write the result; without it, its memory is (B, Tq, H, D).
    """
    if not _takes(xp, q, k, v, scale) or (out is not None and not readable(xp, out)):
        return None
    b, h, t, d = q.shape
    tiles = fitting(FORWARD[head(d)], d, 1, capability(xp))
    blocks = b * h * ceil_div(t, tiles.own())
    if blocks > MOST_BLOCKS:
        return None
    q, k, v = rows_of(xp, q, k, v)
    out = empty_heads(xp, q.shape, q.dtype) if out is None else out
    lse = xp.empty((b, h, t, 1), FLOAT32)
    kernel = _forward(q.dtype, d, causal, tiles)
    kernel((blocks, 1), (tiles.warps * 32, 1), q, k, v, out, lse, *_strides(q, k, v, out), *_sizes(q, k, h, k), scale)
    return out, lse


def backward(
    xp: Any,
    g: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    scale: float,
    causal: bool,
    needs: tuple = (True, True, True),
    into: tuple = (None, None, None),
) -> tuple | None:
    """The gradients of q, k and v that are needed, None for the others; `into` says where to write them."""
    if not _takes(xp, q, k, v, scale, out) or any(a is not None and not readable(xp, a) for a in into):
        return None
    g = g if g.dtype == q.dtype else g.astype(q.dtype)  # a plain body behind this one hands on float32
    (b, h, t, d), (heads, keys) = q.shape, k.shape[1:3]
    first, second = (fitting(table[head(d)], d, 2, capability(xp)) for table in (OF_QUERIES, OF_KEYS))
    grids = b * h * ceil_div(t, first.own()), b * heads * ceil_div(keys, second.own())
    if max(grids) > MOST_BLOCKS:
        return None
    g, q, k, v, out = rows_of(xp, g, q, k, v, out)
    dq, dk, dv = ((like(xp, a) if to is None else to) if need else None for a, to, need in zip((q, k, v), into, needs))
    delta = xp.empty((b, h, t), FLOAT32)
    kernel = _backward("attention_backward_queries", q.dtype, d, causal, first)
    strides = _strides(g, q, k, v, out, dq)
    kernel((grids[0], 1), (first.warps * 32, 1), g, q, k, v, out, lse, delta, dq, *strides, *_sizes(q, k, h, k), scale)
    if dk is not None or dv is not None:
        kernel = _backward("attention_backward_keys", q.dtype, d, causal, second)
        strides = _strides(g, q, k, v, dk, dv)
        kernel((grids[1], 1), (second.warps * 32, 1), g, q, k, v, lse, delta, dk, dv, *strides, *_sizes(q, k, heads, q), scale)
    return dq, dk, dv
