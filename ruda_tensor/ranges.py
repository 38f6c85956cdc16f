"""Sequences, grids and triangles: tensors whose values follow from their positions."""
from __future__ import annotations

import math
from typing import Any

from .devices import resolve_device
from .dtypes import FLOAT64, FLOATING, INT64, UINT64
from .operation import Primitive, apply
from .ops._common import as_tensor, full_scalar, integer, resolve_dtype, value_of
from .ops._select import keep
from .ops.shape import broadcast_to, reshape
from .tensor import Tensor

__all__ = ["arange", "diag", "eye", "linspace", "meshgrid", "tril", "triu"]


def _number(value: Any, name: str) -> Any:
    found = value_of(value, name)
    if found is None or isinstance(found, bool):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    return found


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return start, start + step, ... up to but without stop (from 0 where only stop is given).

    Whole numbers give the device's default integer dtype, others its float. Each value is start + i * step, formed
    in float64 and rounded once.

    >>> import ruda_tensor as rt
    >>> rt.arange(2, 8, 3, device=rt.Cpu()).numpy()
    array([2, 5], dtype=int32)
    """
    place = resolve_device(device)
    if stop is None:
        start, stop = 0, start
    first, last, by = (_number(v, "arange") for v in (start, stop, step))
    if by == 0 or not all(math.isfinite(v) for v in (first, last, by)):
        raise ValueError(f"arange: needs finite ends and a step that is not 0, got {first}, {last}, {by}")
    whole = all(isinstance(v, int) for v in (first, last, by))
    wanted = resolve_dtype(dtype, place.int_dtype if whole else place.float_dtype)
    count = max(0, -((first - last) // by)) if whole else max(0, math.ceil((last - first) / by))
    exact = whole and wanted not in FLOATING
    if exact and count:
        for value in (first, first + (count - 1) * by):
            full_scalar(value, wanted, place)  # refuses a value that the dtype cannot hold
    with place.guard():
        data = place.xp.arange(count, dtype=(UINT64 if wanted == UINT64 else INT64) if exact else FLOAT64)
        if count:
            data = data * by + first
        return Tensor._wrap(data.astype(wanted), place)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Tensor:
    """Return num evenly spaced values from start to stop, with stop itself unless `endpoint=False`.

    Each value is formed in float64 and rounded once.

    >>> import ruda_tensor as rt
    >>> rt.linspace(0, 1, 5, device=rt.Cpu()).numpy()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    place = resolve_device(device)
    first, last = float(_number(start, "linspace")), float(_number(stop, "linspace"))
    if not math.isfinite(first) or not math.isfinite(last):
        raise ValueError(f"linspace: needs finite ends, got {first} and {last}")
    num = integer(num, "linspace", "num", 0)
    wanted = resolve_dtype(dtype, place.float_dtype)
    parts = num - 1 if endpoint else num
    with place.guard():
        data = place.xp.arange(num, dtype=FLOAT64)
        if parts > 0:
            data = data * ((last - first) / parts) + first
            if endpoint:
                data[-1] = last
        else:
            data += first
        return Tensor._wrap(data.astype(wanted), place)


def _diagonal_slice(shape: tuple[int, int], k: int) -> tuple[slice, int]:
    """The flat positions of diagonal k of a matrix, and how many they are."""
    rows, columns = shape
    count = max(0, min(rows, columns - k) if k >= 0 else min(rows + k, columns))
    start = k if k >= 0 else -k * columns
    return slice(start, start + count * (columns + 1), columns + 1) if count else slice(0, 0), count


def _on_diagonal(xp: Any, x: Any, *, shape: tuple[int, int], k: int) -> Any:
    out = xp.zeros(shape, x.dtype)
    out.reshape(-1)[_diagonal_slice(shape, k)[0]] = x
    return out


_from_diagonal = Primitive("diag", _on_diagonal, half="storage", dx=lambda g, k: apply(_diagonal, (g,), {"k": k}))
_diagonal = Primitive(
    "diag",
    lambda xp, x, *, k: x.reshape(-1)[_diagonal_slice(x.shape, k)[0]],
    half="storage",
    dx=lambda g, x_shape, k: apply(_from_diagonal, (g,), {"shape": x_shape, "k": k}),
)


def diag(x: Any, /, k: int = 0) -> Tensor:
    """Return diagonal k of a matrix, or the matrix that has the vector x as its diagonal k; differentiable.

    >>> import ruda_tensor as rt
    >>> rt.diag(rt.tensor([1.0, 2.0], device=rt.Cpu())).numpy()
    array([[1., 0.],
           [0., 2.]], dtype=float32)
    """
    x, k = as_tensor(x, None, "diag"), integer(k, "diag", "k")
    if x.ndim == 2:
        return apply(_diagonal, (x,), {"k": k})
    if x.ndim != 1:
        raise ValueError(f"diag: needs a vector or a matrix, got shape {x.shape}; for a batch: rt.einsum('bii->bi', x)")
    size = x.size + (k if k >= 0 else -k)
    return apply(_from_diagonal, (x,), {"shape": (size, size), "k": k})


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a matrix with ones on diagonal k and zeros elsewhere.

    >>> import ruda_tensor as rt
    >>> rt.eye(2, 3, k=1, device=rt.Cpu()).numpy()
    array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    rows = integer(n_rows, "eye", "n_rows", 0)
    shape = rows, rows if n_cols is None else integer(n_cols, "eye", "n_cols", 0)
    k, place = integer(k, "eye", "k"), resolve_device(device)
    with place.guard():
        ones = place.xp.ones(_diagonal_slice(shape, k)[1], resolve_dtype(dtype, place.float_dtype))
        return Tensor._wrap(_on_diagonal(place.xp, ones, shape=shape, k=k), place)


def _triangle(x: Any, k: int, name: str, upper: bool) -> Tensor:
    x = as_tensor(x, None, name)
    if x.ndim < 2:
        raise ValueError(f"{name}: needs at least 2 axes, got shape {x.shape}; reshape it first: x.reshape(1, -1)")
    xp, device = x.device.xp, x.device
    with device.guard():
        over = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]  # how far above the main diagonal
        mask = Tensor._wrap(over >= k if upper else over <= k, device)
    return keep(x, mask)


def tril(x: Any, /, *, k: int = 0) -> Tensor:
    """Return the matrices of the last two axes with zeros above diagonal k; differentiable.

    >>> import ruda_tensor as rt
    >>> rt.tril(rt.ones((2, 3), device=rt.Cpu())).numpy()
    array([[1., 0., 0.],
           [1., 1., 0.]], dtype=float32)
    """
    return _triangle(x, integer(k, "tril", "k"), "tril", upper=False)


def triu(x: Any, /, *, k: int = 0) -> Tensor:
    """Return the matrices of the last two axes with zeros below diagonal k; differentiable.

    >>> import ruda_tensor as rt
    >>> rt.triu(rt.ones((2, 3), device=rt.Cpu())).numpy()
    array([[1., 1., 1.],
           [0., 1., 1.]], dtype=float32)
    """
    return _triangle(x, integer(k, "triu", "k"), "triu", upper=True)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of the grid that vectors span, one tensor per vector, all of the grid's shape.

    "ij": axis i belongs to vector i. "xy": the first two axes are exchanged, as for pictures.

    >>> import ruda_tensor as rt
    >>> x, y = rt.meshgrid(rt.arange(3, device=rt.Cpu()), rt.arange(2, device=rt.Cpu()))
    >>> x.shape, y.numpy()[:, 0]
    ((2, 3), array([0, 1], dtype=int32))
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    vectors = [as_tensor(a, None, "meshgrid") for a in arrays]
    for v in vectors:
        if v.ndim != 1:
            raise ValueError(f"meshgrid: needs vectors, got shape {v.shape}; flatten it first: x.reshape(-1)")
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(axes) > 1:
        axes[:2] = 1, 0
    grid = [0] * len(axes)
    for axis, v in zip(axes, vectors):
        grid[axis] = v.size
    return [
        broadcast_to(reshape(v, tuple(v.size if i == axis else 1 for i in range(len(axes)))), tuple(grid))
        for axis, v in zip(axes, vectors)
    ]
