"""Random arrays from (seed, offset), over NumPy or CuPy: bits and how they become numbers. Arguments are checked above.

Everything but the normals is integer arithmetic and exactly rounded float operations, each a call of its own so that
no compiler fuses two of them: the same bits on every device.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import philox
from ..dtypes import BOOL, FLOAT32, FLOAT64, HALF, UINT32, UINT64


def draw(
    xp: Any, shape: tuple[int, ...], dtype: np.dtype, seed: int, offset: int, words: int, convert: Callable
) -> Any:
    """Fill an array of `dtype`, `words` 32-bit words per element, with convert(words of some blocks) -> elements."""
    count = math.prod(shape)
    out = xp.empty(count, dtype)
    for first, bits in philox.blocks(xp, counters(count, words), seed, offset):
        part = out[first * 4 // words : (first * 4 + bits.size) // words]
        part[...] = convert(bits)[: part.size]
    return out.reshape(shape)


def counters(count: int, words: int) -> int:
    """How many counters a draw of `count` elements of `words` 32-bit words uses."""
    return -(-count * words // 4)


def words_of(dtype: np.dtype) -> int:
    """32-bit words per element of a uniform or normal draw."""
    return 2 if dtype == FLOAT64 else 1


def bits(xp: Any, shape: tuple[int, ...], seed: int, offset: int) -> Any:
    """uint32 words as they come."""
    return draw(xp, shape, UINT32, seed, offset, 1, lambda w: w)


def threshold(p: float) -> int:
    """A word below this 33-bit number means True: round(p * 2**32)."""
    return round(p * 2**32)


def bernoulli(xp: Any, shape: tuple[int, ...], p: float, seed: int, offset: int) -> Any:
    """True where the word is below threshold(p)."""
    last = threshold(p) - 1  # the largest word that means True fits uint32 where the threshold does not
    if last < 0:
        return xp.zeros(shape, BOOL)
    return draw(xp, shape, BOOL, seed, offset, 1, lambda w: xp.less_equal(w, np.uint32(last)))


def below(high: float, dtype: np.dtype) -> Any:
    """The largest number of `dtype` under `high`, a number of `dtype`."""
    return np.nextafter(dtype.type(high), dtype.type(-math.inf))


def uniform(xp: Any, shape: tuple[int, ...], low: float, high: float, dtype: np.dtype, seed: int, offset: int) -> Any:
    """u = top 24 (float64: 53) bits / 2**24 (2**53), then low + (high - low) u, in [low, high); both are in `dtype`."""
    wide = dtype == FLOAT64
    compute = FLOAT64 if wide else FLOAT32
    kept = 53 if wide else 24
    shift = np.uint64(64 - kept) if wide else np.uint32(32 - kept)
    step, scale, start = (compute.type(v) for v in (2.0**-kept, compute.type(high) - compute.type(low), low))
    limit = compute.type(below(high, dtype))
    plain = low == 0 and high == 1
    clamped = not plain or dtype in HALF  # rounding may reach `high`

    def convert(w: Any) -> Any:
        k = xp.right_shift(w.view(UINT64) if wide else w, shift)
        x = k.astype(compute)
        x *= step
        if not plain:
            x *= scale
            x += start
        return xp.minimum(x, limit, out=x).astype(dtype, copy=False) if clamped else x

    return draw(xp, shape, dtype, seed, offset, words_of(dtype), convert)


def normal(xp: Any, shape: tuple[int, ...], mean: float, std: float, dtype: np.dtype, seed: int, offset: int) -> Any:
    """Box and Muller (1958) in float64, rounded to float32 (and from there to a half type) at the end.

    From u in (0, 1) and v in [0, 1): sqrt(-2 ln u) (cos 2 pi v, sin 2 pi v). With 32-bit words u = (w + 1/2) / 2**32
    and v = w / 2**32, so |z| < 6.77; for float64, 53-bit numbers, |z| < 8.66. In float64 the libraries' logarithms and
    cosines differ in the last bits, which the rounding to float32 almost always removes.
    """
    wide = dtype == FLOAT64
    kept = 53 if wide else 32
    step, turn = 2.0**-kept, 2.0 * math.pi * 2.0**-kept

    def convert(w: Any) -> Any:
        k = xp.right_shift(w.view(UINT64), np.uint64(11)) if wide else w
        radius, angle = k[0::2].astype(FLOAT64), k[1::2].astype(FLOAT64)
        radius += 0.5
        radius *= step
        xp.log(radius, out=radius)
        radius *= -2.0
        xp.sqrt(radius, out=radius)
        angle *= turn
        z = xp.empty(k.size, FLOAT64)
        xp.multiply(radius, xp.cos(angle), out=z[0::2])
        xp.multiply(radius, xp.sin(angle), out=z[1::2])
        if std != 1.0:
            z *= std
        if mean != 0.0:
            z += mean
        return z if wide else z.astype(FLOAT32).astype(dtype, copy=False)

    return draw(xp, shape, dtype, seed, offset, words_of(dtype), convert)


def _multiply_high(xp: Any, a: Any, span: int) -> Any:
    """The upper 64 bits of the 128-bit product of uint64 `a` with `span` < 2**64, from four 32-bit products."""
    mask, half = np.uint64(2**32 - 1), np.uint64(32)
    s0, s1 = np.uint64(span % 2**32), np.uint64(span >> 32)
    a0, a1 = a & mask, a >> half
    middle = a1 * s0 + (a0 * s0 >> half)  # at most 2**64 - 2**32: no sum here overflows
    return a1 * s1 + (middle >> half) + ((a0 * s1 + (middle & mask)) >> half)


def span_words(span: int) -> int:
    """32-bit words per element of an integer draw over `span` values."""
    return 2 if span <= 2**32 else 4


def integers(xp: Any, shape: tuple[int, ...], low: int, high: int, dtype: np.dtype, seed: int, offset: int) -> Any:
    """low + floor(x (high - low) / 2**(32 n)) from n = 2 words per element (n = 4 for more than 2**32 values).

    A value's probability is off its share by at most 2**-32 (n = 4: 2**-64) of it. No word is ever rejected, so element
    e stays where it is. Source: Lemire, "Fast random integer generation in an interval", 2019, without the rejection.
    """
    span = high - low
    half, start = np.uint64(32), np.uint64(low % 2**64)

    def narrow(w: Any) -> Any:
        lower, upper, s = w[0::2].astype(UINT64), w[1::2].astype(UINT64), np.uint64(span)
        return (upper * s + (lower * s >> half)) >> half  # at most 2**64 - 1 before the last shift

    def wide(w: Any) -> Any:
        pair = w.view(UINT64)
        lower, upper = pair[0::2], pair[1::2]
        if span == 2**64:
            return upper
        carry_in = _multiply_high(xp, lower, span)
        carry = upper * np.uint64(span) + carry_in < carry_in  # the sum wrapped
        return _multiply_high(xp, upper, span) + carry.astype(UINT64)

    convert = narrow if span <= 2**32 else wide
    return draw(xp, shape, dtype, seed, offset, span_words(span), lambda w: (convert(w) + start).astype(dtype))


def permutation(xp: Any, n: int, seed: int, offset: int) -> Any:
    """The int64 order that sorts n 64-bit keys; where two are equal, the earlier one comes first."""
    keys = draw(xp, (n,), UINT64, seed, offset, 2, lambda w: w.view(UINT64))
    return xp.argsort(keys, kind="stable").astype(np.int64, copy=False)
