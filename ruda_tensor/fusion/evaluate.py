"""Expressions computed by NumPy or CuPy, one operation after the other: what runs where a kernel may not."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..dtypes import FLOAT32, HALF
from ..ops._erf import erf_body, erfc_body
from ..ops._numbers import sign_or_nan
from ..ops._pointwise import pointwise
from ..recording import number
from .codegen import needed
from .symbols import Symbol


def evaluate(xp: Any, outs: Sequence[Symbol], arrays: Mapping[int, Any], shape: tuple[int, ...]) -> list[Any]:
    """The values of `outs`, each of `shape`, for the arrays and numbers by their position: half types are widened, and
    rounded at the end.
    """
    values: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for symbol in needed(outs):
            values[symbol.number] = _value(xp, symbol, values, arrays)
        return [xp.broadcast_to(values[o.number], shape).astype(o.dtype, order="C") for o in outs]


def _value(xp: Any, s: Symbol, values: dict[int, Any], arrays: Mapping[int, Any]) -> Any:
    x = [values[a.number] for a in s.args]
    dtype = FLOAT32 if s.dtype in HALF else s.dtype
    if s.op == "input":
        return arrays[s.value].astype(dtype, copy=False)
    if s.op in ("number", "given"):
        value = s.value if s.op == "number" else arrays[s.value]
        return number(xp, np.asarray(value, dtype))
    if s.op == "cast":
        return x[0].astype(dtype)
    if s.op == "spread":
        return x[0]
    if s.op == "bits":
        return x[0].view(dtype)
    if s.op in ("erf", "erfc"):
        return pointwise(xp, erf_body if s.op == "erf" else erfc_body, (xp.asarray(x[0]),))
    if s.op == "sign":
        return sign_or_nan(xp, x[0])
    return getattr(xp, s.op)(*x)
