"""Scaled dot-product attention by the matrix products of Hopper's warpgroups: the bindings of attention_hopper_*.cu.

The arrays are those of `attention.py`, which also takes what is declined here: other GPUs, and scales that are not positive.
"""
from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import BFLOAT16, FLOAT32
from .attention import empty_heads, like, readable, takes
from .gate import CTYPES, MOST_BLOCKS, capability, ceil_div, processors
from .launch import Kernel, KernelError, runtime

NEAR = 16 << 20  # bytes that heads taken together read again and again: a third of the second-level cache
FEW = 2048  # rows, over which a tile takes so long that it does not matter how it begins
BOX, BARRIERS = 64, 1024 + 512  # rows and columns of a copy; bytes for barriers and for beginning at a multiple of 1024
_OPTIONS = ("-arch=sm_90a",)


class Tiles(NamedTuple):
    """`groups` warpgroups of 64 rows each, `step` rows of the others at a time in `stages` of shared memory.

    With `own` 2, a block walks over many tiles and fetches one while it works on another; with 1 it has one tile.
    """

    groups: int
    step: int
    stages: int
    own: int

    def rows(self) -> int:
        """Rows of a tile."""
        return 64 * self.groups

    def launch(self, xp: Any, tiles: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Grid and block; one more warpgroup fetches for the others."""
        return (min(tiles, processors(xp)) if self.own > 1 else tiles, 1), (128 * self.groups + 128, 1)

    def defines(self, dtype: np.dtype, d: int, causal: bool) -> dict[str, Any]:
        return {
            "STORAGE": CTYPES[dtype], "MMA_TYPE": '"bf16"' if dtype == BFLOAT16 else '"f16"', "D": d, "CAUSAL": int(causal),
            "GROUPS": self.groups, "STAGES": self.stages, "OWN": self.own,
        }  # fmt: skip


# For each size of a head: where rows are few, and where they are many. Blocks that walk have their tiles dealt out to them
# beforehand, longest first, which is even enough only where the heads are taken all together.
FORWARD = {64: (Tiles(4, 64, 4, 2), Tiles(4, 64, 3, 1)), 128: (Tiles(3, 64, 3, 1),) * 2}
OF_QUERIES = {64: (Tiles(3, 64, 4, 1),) * 2, 128: (Tiles(2, 64, 4, 1),) * 2}
OF_KEYS = {64: (Tiles(3, 64, 3, 2), Tiles(3, 64, 3, 1)), 128: (Tiles(2, 64, 4, 1),) * 2}


def tiles_for(table: dict[int, tuple[Tiles, ...]], q: Any, k: Any) -> Tiles:
    """The tiles for heads of this size and so many rows."""
    return table[q.shape[3]][max(q.shape[2], k.shape[2]) > FEW]


_SIZES = " i i i i i i f"


@functools.cache
def _forward(dtype: np.dtype, d: int, causal: bool, tiles: Tiles) -> Kernel:
    shared = BARRIERS + 2 * d * (tiles.own * tiles.rows() + 2 * tiles.stages * tiles.step)
    name, defines = "attention_hopper_forward", tiles.defines(dtype, d, causal) | {"KEYS": tiles.step}
    return Kernel(f"{name}.cu", name, "128s 128s 128s P P q q q" + _SIZES, defines, _OPTIONS, shared)


@functools.cache
def _backward(name: str, dtype: np.dtype, d: int, causal: bool, tiles: Tiles) -> Kernel:
    of_queries = name == "attention_hopper_queries"
    shared = BARRIERS + 4 * d * (tiles.own * tiles.rows() + tiles.stages * tiles.step)
    shared += 0 if of_queries else 8 * tiles.step * tiles.stages
    defines = tiles.defines(dtype, d, causal) | {"KEYS" if of_queries else "QUERIES": tiles.step}
    arrays = "P P P P" if of_queries else "P P P"
    return Kernel(f"{name}.cu", name, f"128s 128s 128s 128s {arrays} q q q q q q i{_SIZES}", defines, _OPTIONS, shared)


@functools.cache
def _rows(dtype: np.dtype, d: int) -> Kernel:
    name = "attention_hopper_rows"
    return Kernel(f"{name}.cu", name, "P P P P q q q q q q i i i i", {"STORAGE": CTYPES[dtype], "D": d})


@functools.cache
def _possible() -> bool:
    """Whether the driver makes tensor maps, and says where they must lie among a kernel's parameters: since CUDA 12.4."""
    driver = ctypes.CDLL("libcuda.so.1")
    return hasattr(driver, "cuTensorMapEncodeTiled") and hasattr(driver, "cuFuncGetParamInfo")


@functools.cache
def _encoder() -> Any:
    encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    encode.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 4]
    return encode


@functools.lru_cache(4096)
def tensor_map(address: int, half: bool, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """What the copies of a (B, H, T, D) array need to know, as the driver packs it: boxes of 64 x 64, swizzled by 128 bytes."""
    sizes = (ctypes.c_uint64 * 4)(*reversed(shape))
    steps = [stride if n > 1 else 16 for n, stride in zip(shape[:3], strides)]
    buffer = ctypes.create_string_buffer(192)
    to = -(-ctypes.addressof(buffer) // 64) * 64
    status = _encoder()(
        to, 6 if half else 9, 4, address, sizes, (ctypes.c_uint64 * 3)(*reversed(steps)), (ctypes.c_uint32 * 4)(BOX, BOX, 1, 1),
        (ctypes.c_uint32 * 4)(1, 1, 1, 1), 0, 3, 2, 0,
    )  # fmt: skip
    if status:
        raise KernelError(f"cuTensorMapEncodeTiled: error {status} for shape {shape} and strides {strides}")
    return ctypes.string_at(to, 128)


def _map(xp: Any, a: Any) -> bytes:
    machine = runtime(xp)
    assert machine is not None
    return tensor_map(machine.address(a), a.dtype != BFLOAT16, a.shape, a.strides)


def _dense(xp: Any, *arrays: Any) -> list[Any]:
    """The arrays, copied where a tensor map cannot describe them."""
    def mapped(a: Any) -> bool:
        return readable(xp, a) and all(n <= 1 or 0 < stride < 1 << 40 for n, stride in zip(a.shape, a.strides))

    return [a if mapped(a) else xp.array(a, order="C") for a in arrays]


def _served(xp: Any, q: Any, k: Any, v: Any, scale: float, *more: Any) -> bool:
    return xp.__name__ == "cupy" and takes(xp, q, k, v, scale, *more) and capability(xp) == 90 and _possible()


def _strides(a: Any) -> tuple[int, ...]:
    """Batch, head and row strides in numbers."""
    return tuple(stride // 2 for stride in a.strides[:3])


def _sizes(q: Any, k: Any, tiles: Tiles, near: int, scale: float) -> tuple:
    """The struct Sizes, for heads of which each reads `near` bytes that others read as well."""
    (b, h, t, _), (heads, keys) = q.shape, k.shape[1:3]
    return t, keys, h, b, h // heads, b * h if tiles.own > 1 else min(b * h, max(1, NEAR // near)), scale


def forward(xp: Any, q: Any, k: Any, v: Any, *, scale: float, causal: bool, out: Any = None) -> tuple[Any, Any] | None:
    """The result (B, H, Tq, D) and the log sum exp (B, H, Tq, 1) of each query's scores, inf where it sees no key.

    `out` is where to write the result; without it, its memory is (B, Tq, H, D). None where the kernels do not serve.
    """
    if not _served(xp, q, k, v, scale) or (out is not None and not readable(xp, out)):
        return None
    (b, h, t, d), tiles = q.shape, tiles_for(FORWARD, q, k)
    blocks = b * h * ceil_div(t, tiles.rows())
    if blocks > MOST_BLOCKS // 2:  # a block that walks counts beyond them
        return None
    q, k, v = _dense(xp, q, k, v)
    out = empty_heads(xp, q.shape, q.dtype) if out is None else out
    lse = xp.empty((b, h, t, 1), FLOAT32)
    maps = [_map(xp, a) for a in (q, k, v)]
    sizes = _sizes(q, k, tiles, 4 * d * k.shape[2] * k.shape[1] // h, scale)
    _forward(q.dtype, d, causal, tiles)(*tiles.launch(xp, blocks), *maps, out, lse, *_strides(out), *sizes)
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
    if not _served(xp, q, k, v, scale, g, out) or any(a is not None and not readable(xp, a) for a in into):
        return None
    (b, h, t, d), (heads, keys) = q.shape, k.shape[1:3]
    first, second = tiles_for(OF_QUERIES, q, k), tiles_for(OF_KEYS, q, k)
    padded = ceil_div(t, BOX) * BOX
    tiles = b * h * ceil_div(t, first.rows()), b * heads * ceil_div(keys, second.rows()), b * h * ceil_div(padded, 2048 // d)
    if max(tiles) > MOST_BLOCKS // 2:  # a block that walks counts beyond them
        return None
    g, q, k, v, out = _dense(xp, g, q, k, v, out)
    dq, dk, dv = (like(xp, a) if to is None else to for a, to in zip((q, k, v), into))
    rows = xp.empty((2, b, h, padded), FLOAT32)
    maps = [_map(xp, a) for a in (q, k, v, g)]
    if needs[0]:
        kernel = _backward("attention_hopper_queries", q.dtype, d, causal, first)
        sizes = _sizes(q, k, first, 4 * d * keys * heads // h, scale)
        kernel(*first.launch(xp, tiles[0]), *maps, out, lse, rows, dq, *_strides(out), *_strides(dq), padded, *sizes)
    else:
        _rows(q.dtype, d)((tiles[2], 1), (256, 1), g, out, lse, rows, *_strides(g), *_strides(out), t, padded, h, b)
    if needs[1] or needs[2]:
        kernel = _backward("attention_hopper_keys", q.dtype, d, causal, second)
        sizes = _sizes(q, k, second, 4 * d * t * h // heads, scale)
        kernel(*second.launch(xp, tiles[1]), *maps, rows, dk, dv, *_strides(dk), *_strides(dv), padded, *sizes)
    return tuple(a if need else None for a, need in zip((dq, dk, dv), needs))
