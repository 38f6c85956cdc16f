"""Convolutions as matrix products: the bindings of conv.cu around those of gemm.py.

Images are laid out as matrices of shifted copies, so many images at a time that the copies take CHUNK bytes; then one batched
product makes their results where they belong. The derivative in x is the adjoint of both, or, where it needs less memory, a
convolution by the weight turned round. In half types all sums are float32, and results are rounded once.
"""
from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from . import gemm
from .columns import reduce_columns
from .copies import straight
from .gate import CTYPES, LONGEST, aligned, ceil_div, contiguous, opened
from .launch import Kernel

THREADS = 256
CHUNK = 512 << 20  # bytes of columns: small ones stay in the cache, but products of few images take a third longer
ACROSS = 1.0  # rows of columns per position from which a weight's gradient is added up over images by the product
_MOST_TAPS = 64  # which the kernels write out


class Window(NamedTuple):
    """What is compiled into the kernels."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]

    def defines(self) -> dict[str, int]:
        (kh, kw), (sh, sw), (dh, dw) = self
        return {"KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw}


@functools.cache
def _kernel(name: str, dtype: np.dtype, source: np.dtype, vector: int, window: Window) -> Kernel:
    signatures = {"conv_columns": "P P q q I i i i i i i i", "conv_images": "P P P I i i i i i i i", "conv_bias": "P P P I I i"}
    defines = {"STORAGE": CTYPES[dtype], "SOURCE": CTYPES[source], "VECTOR": vector, **window.defines()}
    return Kernel("conv.cu", name, signatures[name], defines)


_BARE = Window((1, 1), (1, 1), (1, 1))


def _bits(a: Any) -> Any:
    """Halves as integers, which CuPy copies and fills whatever they mean."""
    return a.view(np.uint16) if a.dtype.itemsize == 2 else a


def _run(kernel: Kernel, threads: int, *arguments: Any) -> None:
    kernel((ceil_div(threads, THREADS), 1), (THREADS, 1), *arguments)


class _Shape:
    """The sizes of a convolution: images (n, c, h, w), results (n, o, u, v), and the rows of columns in a group: k count."""

    def __init__(self, x: tuple, y: tuple, kernel: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int) -> None:
        self.n, self.c, self.h, self.w = x
        _, self.o, self.u, self.v = y
        self.groups, self.low, self.window = groups, low, Window(kernel, stride, dilation)
        self.k = self.c // groups * kernel[0] * kernel[1]
        self.area = self.u * self.v
        self.bare = self.window == _BARE and low == (0, 0) and (self.h, self.w) == (self.u, self.v)
        # Products read 16 bytes at a time where rows allow it: rows of 0 make the number of rows a multiple of 8.
        self.rows = ceil_div(self.k, 8) * 8 if groups == 1 and not self.bare else self.k
        self.sizes = (self.c, self.h, self.w, self.u, self.v, *low)
        # Numbers of one image as columns, as an image, and as its result.
        self.forms = (self.groups * self.rows * self.area, self.c * self.h * self.w, self.o * self.area)

    def fits(self) -> bool:
        """True where there is something to do, and numbers of an image and taps of a window are few enough for the kernels."""
        taps = self.window.kernel[0] * self.window.kernel[1]
        return taps <= _MOST_TAPS and 0 < min(self.forms) and max(*self.forms, self.o * self.rows) <= LONGEST

    def chunks(self, itemsize: int) -> Iterator[slice]:
        """Runs of images, about equally long, whose columns take a chunk of memory."""
        each = 1 if self.bare else self.groups * self.rows * self.area * itemsize
        most = max(1, min(CHUNK // each, LONGEST // max(self.forms)))
        step = ceil_div(self.n, ceil_div(self.n, most))
        for start in range(0, self.n, step):
            yield slice(start, min(start + step, self.n))

    def spread(self, xp: Any, x: Any, memory: Any, across: bool = False) -> Any:
        """The columns of images x, (n, groups, rows, area), or (groups, rows, n area) where they lie `across` images."""
        count = x.shape[0]
        if self.bare and not across:
            return x.reshape(count, self.groups, self.k, self.area)
        out = memory[: count * self.groups * self.rows * self.area]
        if across:
            image, row, matrices = self.area, count * self.area, out.reshape(self.groups, self.rows, -1)
        else:
            image, row, matrices = self.groups * self.rows * self.area, self.area, out.reshape(count, self.groups, self.rows, -1)
        if self.rows != self.k:
            _bits(matrices)[..., self.k :, :] = 0
        vector = 16 // x.dtype.itemsize
        vector = vector if self.v % vector == 0 and aligned(xp, out) else 1
        threads = count * self.c * self.area // vector
        _run(_kernel("conv_columns", x.dtype, x.dtype, vector, self.window), threads, x, out, image, row, threads, *self.sizes)
        return matrices

    def fold(self, xp: Any, columns: Any, bias: Any, x: Any) -> None:
        """Add columns up into images x, and a bias."""
        kernel = _kernel("conv_images", x.dtype, columns.dtype, 1, self.window)
        _run(kernel, x.size, columns, bias, x, x.size, *self.sizes)

    def memory(self, xp: Any, dtype: np.dtype, chunks: list[slice]) -> Any:
        return xp.empty((chunks[0].stop - chunks[0].start) * self.groups * self.rows * self.area, dtype)

    def weight(self, xp: Any, w: Any) -> Any:
        """The weight as one matrix per group, (groups, outputs, rows)."""
        w = w.reshape(self.groups, -1, self.k)
        if self.rows == self.k:
            return w
        out = xp.zeros((*w.shape[:-1], self.rows), w.dtype)
        _bits(out)[..., : self.k] = _bits(w)
        return out


def _ready(xp: Any, shape: _Shape, *arrays: Any) -> np.dtype | None:
    """The dtype of sums where the kernels take these arrays of one dtype, else None."""
    first = arrays[0]
    if any(a is not None and (a.dtype != first.dtype or a.size == 0) for a in arrays) or not gemm.available(xp):
        return None
    return opened(xp, first) if shape.fits() else None


def _single(a: Any) -> Any:
    """A matrix or a batch of them, without the axis of a single group."""
    return a.reshape(a.shape[:-3] + a.shape[-2:]) if a.shape[-3] == 1 else a


def _add_bias(xp: Any, source: Any, bias: Any, out: Any) -> None:
    """out (n, channels, ...) = source + bias per channel, rounded once; source may be out itself."""
    channels = bias.size
    area, vector = out.size // (out.shape[0] * channels), 16 // out.dtype.itemsize
    vector = vector if area % vector == 0 and aligned(xp, source, out) else 1
    kernel = _kernel("conv_bias", out.dtype, source.dtype, vector, _BARE)
    _run(kernel, out.size // vector, source, bias, out, out.size // vector, area // vector, channels)


def convolve(
    xp: Any, x: Any, w: Any, b: Any, *, count: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    """y of `count` rows and columns from images x, a weight and a bias or None; None where the gate is shut."""
    shape = _Shape(x.shape, (x.shape[0], w.shape[0], *count), w.shape[2:], stride, low, dilation, groups)
    real = _ready(xp, shape, x, w, b)
    if real is None:
        return None
    x, w, b = contiguous(xp, x, w, b)
    y, chunks = xp.empty((shape.n, shape.o, *count), x.dtype), list(shape.chunks(x.dtype.itemsize))
    weight, level = _single(shape.weight(xp, w)), None
    memory = None if shape.bare else shape.memory(xp, x.dtype, chunks)
    if b is not None and groups == 1:
        level = xp.empty((shape.o, shape.area), x.dtype)
        _bits(level)[...] = _bits(b).reshape(-1, 1)
    for part in chunks:
        columns, target = shape.spread(xp, x[part], memory), y[part]
        own = _single(target.reshape(-1, groups, shape.o // groups, shape.area))
        if level is not None and gemm.with_shared(xp, weight, _single(columns), level, own):
            continue
        if b is None or real == x.dtype:
            gemm.matmul(xp, weight, _single(columns), out=own)
            source = target
        else:
            source = gemm.matmul(xp, weight, _single(columns), real)
        if b is not None:
            _add_bias(xp, source, b, target)
    return y


def transpose(
    xp: Any, y: Any, w: Any, b: Any, *, size: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int
) -> Any:
    """The adjoint of `convolve` in x, whose images have `size` rows and columns; and a bias. None where the gate is shut."""
    o, c, *kernel = w.shape[0] // groups, *w.shape[1:]
    shape = _Shape((y.shape[0], c * groups, *size), y.shape, tuple(kernel), stride, low, dilation, groups)
    real = _ready(xp, shape, y, w, b)
    if real is None:
        return None
    if stride == (1, 1) and o < c:  # the columns of y take less memory than those of x
        turned = _bits(w).reshape(groups, o, c, *kernel).swapaxes(1, 2)[..., ::-1, ::-1]
        w = xp.ascontiguousarray(turned).view(w.dtype).reshape(groups * c, o, *kernel)
        low = tuple((k - 1) * d - p for k, d, p in zip(kernel, dilation, low))
        return convolve(xp, y, w, b, count=size, stride=stride, low=low, dilation=dilation, groups=groups)
    y, w, b = contiguous(xp, y, w, b)
    x = xp.empty((shape.n, shape.c, *size), y.dtype)
    weight = _single(w.reshape(groups, o, shape.k).swapaxes(1, 2))
    if shape.bare and b is None:  # then its columns are x itself
        gemm.matmul(xp, weight, _single(y.reshape(-1, groups, o, shape.area)), out=_single(x.reshape(-1, groups, c, shape.area)))
        return x
    for part in shape.chunks(real.itemsize):
        columns = gemm.matmul(xp, weight, _single(y[part].reshape(-1, groups, o, shape.area)), real)
        shape.fold(xp, columns, b, x[part])
    return x


def weigh(xp: Any, x: Any, y: Any, *, kernel: tuple, stride: tuple, low: tuple, dilation: tuple, groups: int) -> Any:
    """The adjoint of `convolve` in w, which has a `kernel` of rows and columns; None where the gate is shut.

    Either each image makes a product of its own, and these are added; or, where images are small, channels come first and one
    product adds over the images of a chunk.
    """
    shape = _Shape(x.shape, y.shape, tuple(kernel), stride, low, dilation, groups)
    real = _ready(xp, shape, x, y)
    if real is None:
        return None
    x, y = contiguous(xp, x, y)
    o, chunks = shape.o // groups, list(shape.chunks(x.dtype.itemsize))
    across = shape.k > ACROSS * shape.area
    memory = None if shape.bare and not across else shape.memory(xp, x.dtype, chunks)
    parts = xp.empty((len(chunks) if across else shape.n, groups, o, shape.rows), real)
    for i, part in enumerate(chunks):
        columns, g = shape.spread(xp, x[part], memory, across), y[part].reshape(-1, groups, o, shape.area)
        if across:
            g, target = straight(xp, g.transpose(1, 2, 0, 3)).reshape(groups, o, -1), parts[i]
        else:
            target = parts[part]
        gemm.matmul(xp, _single(g), _single(columns.swapaxes(-1, -2)), real, out=_single(target))
    total = reduce_columns(xp, parts, groups * o * shape.rows, x.dtype)
    return straight(xp, total.reshape(shape.o, shape.rows)[:, : shape.k]).reshape(shape.o, shape.c // groups, *kernel)

