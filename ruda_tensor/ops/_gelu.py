"""Bodies of the gated activations x s(x), where s rises from 0 to 1: each gives its value and its slope together.

The slope is kept for backward, which is then one product. All run on cache-sized blocks with `out=`.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..kernels.host.gate import gate
from ._erf import polynomial, tail

# R(a) = P(-a) exp(a^2 / 2) for the normal distribution P and a in [0, 14]: relative error 4e-7, one rounding of exp
_RATIO = (
    (11.699484515, 8.4697402215, 2.7969077458, 0.39889559135),
    (23.398977902, 35.608723133, 22.309467536, 7.0060663274),
)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
_TANH = (math.sqrt(2.0 / math.pi), math.sqrt(2.0 / math.pi) * 0.044715)
_SIGN = {4: np.int32(-(2**31)), 8: np.int64(-(2**63))}
_HALF = {4: np.float32(0.5).view(np.int32), 8: np.float64(0.5).view(np.int64)}
_BITS = {4: np.int32, 8: np.int64}


def _lower(xp: Any, a: Any, e: Any) -> Any:
    """P(-a) for a >= 0 and the standard normal distribution P, given e = exp(-a^2 / 2); may change `a`."""
    if a.dtype == np.float64:
        out = tail(xp, a * math.sqrt(0.5))
        out *= 0.5
        return out
    xp.minimum(a, 16.0, out=a)  # e is 0 beyond; the polynomials would overflow
    p, q = _RATIO
    out = polynomial(xp, a, p)
    out *= e
    below = a + q[-1]
    for c in q[-2::-1]:
        below *= a
        below += c
    out /= below
    return out


def gelu_body(xp: Any, x: Any, out: Any, slope: Any) -> None:
    """x P(x) for the standard normal distribution P, and P(x) + x P'(x)."""
    if gate("gelu_values", xp, x, out, slope):
        return
    e = x * -0.5
    e *= x
    xp.exp(e, out=e)
    a = xp.abs(x)
    p = _lower(xp, a, e)
    # P(x) = |H - P(-|x|)| with H = 1 for x >= 0 and 0 below: relatively exact in the lower tail too. 2 H - 1 is the
    # number 1 with the sign of x.
    bits = a.view(_BITS[x.itemsize])
    xp.bitwise_and(x.view(bits.dtype), _SIGN[x.itemsize], out=bits)
    xp.bitwise_or(bits, _HALF[x.itemsize], out=bits)
    a += 0.5
    a -= p
    xp.abs(a, out=a)
    xp.multiply(x, a, out=out)
    e *= x
    e *= _DENSITY
    xp.add(a, e, out=slope)


def _gate(xp: Any, x: Any, z: Any, dz: Any, out: Any, slope: Any) -> None:
    """x s and s (1 + (x - x s) dz) for s = sigmoid(-z); uses up z and dz, the derivative of -z (None for 1)."""
    xp.exp(z, out=z)
    z += 1.0
    xp.true_divide(1.0, z, out=z)
    xp.multiply(x, z, out=out)
    xp.subtract(x, out, out=slope)
    if dz is not None:
        slope *= dz
    slope += 1.0
    slope *= z


def gelu_tanh_body(xp: Any, x: Any, out: Any, slope: Any) -> None:
    """x (1 + tanh u) / 2 = x sigmoid(2 u) with u = sqrt(2/pi) (x + 0.044715 x^3), and the slope."""
    if gate("gelu_tanh_values", xp, x, out, slope):
        return
    x = xp.maximum(x, x.dtype.type(-1e4))  # both are 0 from far above, and 0 times an overflow would be NaN
    s = x * x
    xp.minimum(s, 512.0, out=s)  # the sigmoid is 0 or 1 beyond
    z = s * (-2.0 * _TANH[1])
    z -= 2.0 * _TANH[0]
    z *= x
    s *= 6.0 * _TANH[1]
    s += 2.0 * _TANH[0]
    _gate(xp, x, z, s, out, slope)


def silu_body(xp: Any, x: Any, out: Any, slope: Any) -> None:
    """x sigmoid(x), and the slope."""
    if gate("silu_values", xp, x, out, slope):
        return
    _gate(xp, x, xp.negative(x), None, out, slope)
