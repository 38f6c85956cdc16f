"""Bodies of functions on single numbers for which NumPy and CuPy give different results: these give NumPy's on both."""
from __future__ import annotations

from typing import Any

import numpy as np

_BITS = {2: np.int16, 4: np.int32, 8: np.int64}


def sign_or_nan(xp: Any, x: Any) -> Any:
    """-1, 0 or 1, and NaN for NaN, where CuPy's sign gives 0."""
    signs = xp.sign(x)
    return xp.where(x == x, signs, x) if x.dtype.kind == "f" else signs


def rest(xp: Any, x: Any, y: Any) -> Any:
    """x - floor(x / y) y with the sign of y, exact because fmod is; CuPy's rounds, and gives NaN for an infinite y."""
    if x.dtype.kind != "f":
        return xp.remainder(x, y)
    out = xp.fmod(x, y)
    out = xp.where(_wrong_side(out, y), out + y, out)
    return xp.where(out == 0, xp.copysign(out, y), out)


def _wrong_side(rest: Any, y: Any) -> Any:
    """Where what fmod left has the other sign than y."""
    return (rest != 0) & ((rest < 0) != (y < 0))


def whole_quotient(xp: Any, x: Any, y: Any) -> Any:
    """floor(x / y) of the unrounded quotient: 1 // 0.1 is 9, since 0.1 is a little more than a tenth."""
    if x.dtype.kind != "f":
        return xp.floor_divide(x, y)
    quotient, left = x / y, xp.fmod(x, y)
    near = (x - left) / y - _wrong_side(left, y)  # a whole number but for rounding
    whole = xp.floor(near)
    whole = whole + (near - whole > 0.5)
    whole = xp.where(whole == 0, xp.copysign(whole, quotient), whole)
    return xp.where(y == 0, quotient, whole)


def neighbour(xp: Any, x: Any, y: Any) -> Any:
    """The float after x towards y, found among the bits: GPU arithmetic flushes subnormal floats to zero.

    Bits ordered as their floats are: the magnitude of negative ones is turned over, so -0 is -1 and +0 is 0.
    """
    kind = _BITS[x.itemsize]
    width, most = 8 * x.itemsize - 1, int(np.iinfo(kind).max)
    infinity, quiet = (np.asarray(v, x.dtype).view(kind)[()] for v in (np.inf, np.nan))
    a, b = x.view(kind), y.view(kind)
    at, to = (bits ^ ((bits >> width) & most) for bits in (a, b))
    at, to = at + (at == -1), to + (to == -1)  # -0 is 0
    after = xp.where(to > at, at + 1, at - 1 - (at == 0))
    found = xp.where(at == to, b, after ^ ((after >> width) & most))
    return xp.where(((a & most) > infinity) | ((b & most) > infinity), quiet, found).astype(kind).view(x.dtype)
