"""Choosing elements by a condition: the primitives behind `where`, and behind derivative rules that mask a gradient."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.host import gate
from ..operation import Primitive, apply, binary
from ..tensor import Tensor

_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_MANY = 4096


def choose(xp: Any, condition: Any, x: Any, y: Any) -> Any:
    # Bits are chosen, so that half types need no care (CuPy would choose bfloat16 in float32).
    bits = _BITS[x.itemsize]
    a, b = x.view(bits), y.view(bits)
    if xp is np and condition.size >= _MANY:  # np.where guesses a branch per element: 3.5 ns each if random, this 0.4
        out = np.bitwise_xor(a, b) * condition.view(np.int8)
        out ^= b
    else:
        out = xp.where(condition, a, b)
    return out.view(x.dtype)


select = Primitive(
    "where",
    choose,
    half="storage",
    dx=lambda g, condition: keep(g, condition),
    dy=lambda g, condition: drop(g, condition),
)


def _keep_forward(xp: Any, x: Any, condition: Any) -> Any:
    return xp.multiply(x.view(_BITS[x.itemsize]), condition.view(np.int8)).view(x.dtype)


def keep_positive_forward(xp: Any, x: Any, y: Any) -> Any:
    out = gate.keep_positive(xp, x, y)
    return _keep_forward(xp, x, y > 0) if out is None else out


_keep = Primitive("keep", _keep_forward, half="storage", dx=lambda g, condition: keep(g, condition))
_keep_positive = Primitive("keep_positive", keep_positive_forward, half="storage", dx=lambda g, y: keep_positive(g, y))


def keep(x: Tensor, condition: Tensor) -> Tensor:
    """Return `x` where the condition holds and 0 elsewhere, NaN and inf there included: bits times 0 or 1."""
    return apply(_keep, (x, condition))


def keep_positive(x: Tensor, y: Tensor) -> Tensor:
    """Return `x` where y > 0 and 0 elsewhere, as one operation."""
    return binary(_keep_positive, x, y)


def drop(x: Tensor, condition: Tensor) -> Tensor:
    """Return 0 where the condition holds and `x` elsewhere."""
    return apply(_keep, (x, apply(_not, (condition,))))


_not = Primitive("logical_not", lambda xp, x: xp.logical_not(x))
