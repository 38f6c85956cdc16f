"""Rotary positions: turning pairs of features by angles that are given as tables."""
from __future__ import annotations

from typing import Any

from ..dtypes import FLOAT32, HALF
from ..kernels import rotary as kernels
from ..operation import Composite, Fused, call
from ..tensor import Tensor
from ._common import as_tensor, cast, floating
from ._numerics import single
from .arithmetic import add, multiply, subtract
from .index import getitem
from .join import concat

__all__ = ["rotary"]


def _turned(xp: Any, x: Any, cosines: Any, sines: Any) -> Any:
    half = cosines.shape[1]
    pairs = x[..., : 2 * half]
    others = xp.concatenate([pairs[..., half:], pairs[..., :half]], axis=-1)  # whole rows: halves of rows take NumPy longer
    others *= xp.concatenate([-sines, sines], axis=-1)
    out = pairs * xp.concatenate([cosines, cosines], axis=-1)
    out += others
    return out if 2 * half == x.shape[-1] else xp.concatenate([out, x[..., 2 * half :]], axis=-1)


def _backward(xp: Any, g: Any, cosines: Any, sines: Any, *, needs: tuple) -> tuple:
    """A rotation's transpose is the rotation by the opposite angle."""
    return _turned(xp, g, cosines, -sines), None, None


def _fused_backward(xp: Any, g: Any, cosines: Any, sines: Any, *, needs: tuple) -> tuple | None:
    dx = kernels.rotary(xp, g, cosines, sines, -1)
    return None if dx is None else (dx, None, None)


def _expression(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    half, wide = cosines.shape[1], single(x)
    a, b, rest = (getitem(wide, (..., part)) for part in (slice(half), slice(half, 2 * half), slice(2 * half, None)))
    turned = subtract(multiply(a, cosines), multiply(b, sines)), add(multiply(b, cosines), multiply(a, sines))
    return cast(concat([*turned, rest], axis=-1), x.dtype)


_rotary = Composite(
    "rotary", _expression, lambda xp, x, cosines, sines: _turned(xp, x, cosines, sines), _backward, keeps="cosines sines",
    fused=Fused("rotary.cu", lambda xp, x, cosines, sines: kernels.rotary(xp, x, cosines, sines, 1), _fused_backward),
)  # fmt: skip


def rotary(x: Tensor, cosines: Any, sines: Any, /) -> Tensor:
    """Return x, (..., T, D), with pairs of features turned by angles of which the tables, (T, n), hold cosine and sine.

    For i < n the features i and i + n of position t are a pair; the features from 2 n on pass through:

        y[t, i] = x[t, i] cos[t, i] - x[t, i + n] sin[t, i],   y[t, i + n] = x[t, i + n] cos[t, i] + x[t, i] sin[t, i]

    The tables are constants, in the dtype of x or, beside half types, in float32: these are turned in float32 and
    rounded once. The derivative is the rotation by the opposite angles.

    Errors: ValueError for tables of unlike shapes, or that do not fit x.
    Source: Su et al., RoFormer (2021), section 3.2.2, with the pairs of half-split checkpoints.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 0.0, 5.0]], device=rt.Cpu())
    >>> rt.rotary(x, rt.tensor([[0.0]], device=rt.Cpu()), rt.tensor([[1.0]], device=rt.Cpu())).tolist()
    [[0.0, 1.0, 5.0]]
    """
    x = floating(x, "rotary")
    tables = [as_tensor(table, x, "rotary").detach() for table in (cosines, sines)]
    shapes = [table.shape for table in tables]
    if shapes[0] != shapes[1] or len(shapes[0]) != 2:
        raise ValueError(f"rotary: cosines {shapes[0]} and sines {shapes[1]} must both be (T, n), one row per position")
    (length, half), width = shapes[0], x.shape[-1] if x.ndim else 0
    if x.ndim < 2 or x.shape[-2] != length or width < 2 * half:
        raise ValueError(
            f"rotary: tables {shapes[0]} turn {2 * half} features of {length} positions, and x is {x.shape}; it must be "
            f"(..., {length}, {2 * half} or more): rt.rotary(x, cosines[: x.shape[-2]], sines[: x.shape[-2]])"
        )
    dtype = FLOAT32 if x.dtype in HALF else x.dtype
    return call(_rotary, (x, *[cast(table, dtype) for table in tables]))
