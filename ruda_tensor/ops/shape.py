"""Shape: new views of the same numbers, and their joining and splitting."""
from __future__ import annotations

import math
from typing import Any

from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, normalize_axes

__all__ = ["broadcast_to", "expand_dims", "reshape"]

_reshape = Primitive(
    "reshape", lambda xp, x, *, shape: xp.reshape(x, shape), half="storage", dx=lambda g, x_shape: reshape(g, x_shape)
)
_broadcast_to = Primitive(
    "broadcast_to", lambda xp, x, *, shape: xp.broadcast_to(x, shape), half="storage", dx=lambda g: g
)


def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """Return the same elements in another shape, in row-major order; one size may be -1.

    >>> import ruda_tensor as rt
    >>> rt.reshape(rt.arange(6, device=rt.Cpu()), (2, -1)).shape
    (2, 3)
    """
    x = as_tensor(x, None, "reshape")
    shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) == 1 and known and x.size % known == 0:
        shape = tuple(x.size // known if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or math.prod(shape) != x.size:
        raise ValueError(f"reshape: {x.shape} has {x.size} elements and cannot become {shape}; give sizes whose product is that")
    return apply(_reshape, (x,), {"shape": shape})


def broadcast_to(x: Tensor, /, shape: Any) -> Tensor:
    """Return `x` repeated (as a view) to `shape`.

    >>> import ruda_tensor as rt
    >>> rt.broadcast_to(rt.tensor([1.0, 2.0], device=rt.Cpu()), (3, 2)).shape
    (3, 2)
    """
    x = as_tensor(x, None, "broadcast_to")
    shape = tuple(shape)
    if x.shape == shape:
        return x
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        raise ValueError(f"broadcast_to: {x.shape} does not stretch to {shape}; only axes of size 1 stretch")
    return apply(_broadcast_to, (x,), {"shape": shape})


def expand_dims(x: Tensor, /, *, axis: Any = 0) -> Tensor:
    """Return `x` with axes of size 1 inserted at the positions `axis` of the result.

    >>> import ruda_tensor as rt
    >>> rt.expand_dims(rt.zeros((2, 3), device=rt.Cpu()), axis=1).shape
    (2, 1, 3)
    """
    x = as_tensor(x, None, "expand_dims")
    count = len(axis) if isinstance(axis, (tuple, list)) else 1
    axes = normalize_axes(axis, x.ndim + count, "expand_dims")
    sizes = iter(x.shape)
    return reshape(x, tuple(1 if i in axes else next(sizes) for i in range(x.ndim + count)))
