"""Matrix products: one primitive in four forms, which are closed under differentiation.

With x and y each transposed or not, the derivative of a product is again such a product, so no transpose is ever
recorded or copied; BLAS takes it as a flag. Half types are multiplied in float32, or on a GPU by tensor cores that
accumulate in float32, and rounded once.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import BOOL, FLOAT32, FLOATING, HALF, promote_types
from ..kernels import gemm, reductions, small_product
from ..kernels.copies import converted
from ..kernels.host.product import BIASED, LEAST
from ..kernels.host.product import product as host_product
from ..operation import Composite, Fused, Primitive, apply, binary, call, round_to
from ..tensor import Tensor
from ._common import as_tensor, cast, normalize_axes, normalize_axis
from ._sums import total
from .shape import broadcast_shapes, broadcast_to, expand_dims, moveaxis, permute_dims, reshape

__all__ = ["linear", "matmul", "outer", "tensordot", "vecdot"]


def product(xp: Any, x: Any, y: Any, dtype: Any = None) -> Any:
    """x @ y of raw arrays with at least 2 axes and one dtype; half types give `dtype` (theirs, or float32)."""
    if xp is np:
        if x.size * y.shape[-1] >= LEAST and (out := host_product(x, y)) is not None:
            return out
    elif gemm.available(xp) and x.dtype in FLOATING:
        return gemm.matmul(xp, x, y, dtype)
    return _by_library(xp, x, y, dtype)


@np.errstate(all="ignore")
def _by_library(xp: Any, x: Any, y: Any, dtype: Any) -> Any:
    """The product by NumPy's or CuPy's own function."""
    if x.dtype in HALF:
        out = product(xp, x.astype(FLOAT32), y.astype(FLOAT32))
        return out.astype(x.dtype if dtype is None else dtype, copy=False)
    if x.ndim > 2 and y.ndim == 2:  # one large product instead of many small ones
        return product(xp, merged(x), y).reshape((*x.shape[:-1], y.shape[-1]))
    if xp is np:
        x, y = _straight(x), _straight(y)
    return xp.matmul(x, y)


def merged(x: Any) -> Any:
    """All axes but the last merged."""
    return x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))


def _straight(a: Any) -> Any:
    """The array, copied where BLAS cannot walk it: NumPy would take its slow loop, and round in another order."""
    if a.ndim == 2 and a.flags.forc:
        return a
    strides = tuple([s // a.itemsize for s in a.strides[-2:]])
    return a if gemm.layout(strides, a.shape[-2:]) is not None else np.ascontiguousarray(a)


def _form(tx: bool, ty: bool) -> Primitive:
    """The product of x and y, each transposed or not: out = a @ b gives da = g @ b.mT and db = a.mT @ g."""

    def dx(g: Tensor, y: Tensor) -> Tensor:
        return binary(FORMS[ty, True], y, g) if tx else binary(FORMS[False, not ty], g, y)

    def dy(g: Tensor, x: Tensor, y_shape: tuple[int, ...]) -> Tensor:
        if len(y_shape) == 2 and x.ndim > 2 and not tx:  # the sum over the batch is part of one large product
            x, g = _rows(x), _rows(g)
        return binary(FORMS[True, tx], g, x) if ty else binary(FORMS[not tx, False], x, g)

    return Primitive(
        "matmul",
        lambda xp, x, y: product(xp, x.swapaxes(-1, -2) if tx else x, y.swapaxes(-1, -2) if ty else y),
        half="storage",
        memory_bound=False,
        dx=dx,
        dy=dy,
    )


FORMS = {(tx, ty): _form(tx, ty) for tx in (False, True) for ty in (False, True)}
_matmul, _transposed_first, _transposed_second = FORMS[False, False], FORMS[True, False], FORMS[False, True]


def _rows(x: Tensor) -> Tensor:
    """All axes but the last merged."""
    return reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def matmul(x: Tensor, y: Tensor, /) -> Tensor:
    """Return the matrix product `x @ y`: out[..., i, j] = sum_k x[..., i, k] y[..., k, j].

    Shapes [..., m, k] and [..., k, n] give [..., m, n]; the leading axes broadcast. A 1-D `x` is a row and a 1-D `y` a
    column whose axis is dropped from the result. Half types accumulate in float32 and round once. float32 stays full
    float32 on a GPU, outside `use_tf32`.

    Errors: ValueError for a 0-d operand or contracted sizes that differ; TypeError for bools.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu())
    >>> rt.matmul(x, rt.tensor([5.0, 6.0], device=rt.Cpu())).tolist()
    [17.0, 39.0]
    """
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        a, b = x._data, y._data
        if a.ndim == 2 == b.ndim and a.shape[1] == b.shape[0] and a.dtype is b.dtype and a.dtype is not BOOL:
            return binary(_matmul, x, y)
    x, y = _operands(x, y, "matmul")
    if x.ndim == 0 or y.ndim == 0:
        raise ValueError(f"matmul: shapes {x.shape} and {y.shape}: a 0-d tensor has no rows; multiply with x * y")
    k, n = x.shape[-1], y.shape[-2 if y.ndim > 1 else -1]
    if k != n:
        raise ValueError(
            f"matmul: shapes {x.shape} and {y.shape}: the last axis of x has size {k}, the contracted axis of y {n}; "
            "they must be equal (a weight stored the other way round: x @ w.mT)"
        )
    row, column = x.ndim == 1, y.ndim == 1
    x = reshape(x, (1, k)) if row else x
    y = reshape(y, (k, 1)) if column else y
    if x.ndim > 2 and y.ndim > 2:
        broadcast_shapes(x.shape[:-2], y.shape[:-2], name="matmul (batch axes)")
    out = apply(_matmul, (x, y))
    if row or column:
        m, n = (() if row else out.shape[-2:-1]), (() if column else out.shape[-1:])
        out = reshape(out, (*out.shape[:-2], *m, *n))
    return out


def _operands(x: Any, y: Any, name: str) -> tuple[Tensor, Tensor]:
    """Two tensors of one dtype that is not bool."""
    if not isinstance(x, Tensor):
        x = as_tensor(x, y if isinstance(y, Tensor) else None, name)
    y = as_tensor(y, x, name)
    if BOOL in (x.dtype, y.dtype):
        raise TypeError(f"{name}: bools are not multiplied; convert them first: x.astype(rt.float32)")
    dtype = promote_types(x.dtype, y.dtype)
    return cast(x, dtype), cast(y, dtype)


def affine(xp: Any, x: Any, w: Any, b: Any, residual: Any = None) -> Any:
    """x @ w + b + residual of raw arrays of one dtype, rounded once; b and residual may be None."""
    if xp is not np:
        out = gemm.affine(xp, x, w, b, residual)
        if out is not None:
            return out
    elif b is not None and x.size * w.shape[1] >= BIASED:
        out = host_product(x if x.ndim == 2 else merged(x), w, b, residual)
        if out is not None:
            return out if x.ndim == 2 else out.reshape((*x.shape[:-1], w.shape[1]))
    return _affine_by_library(xp, x, w, b, residual)


@np.errstate(all="ignore")
def _affine_by_library(xp: Any, x: Any, w: Any, b: Any, residual: Any) -> Any:
    """The same by a product and additions."""
    out = product(xp, x, w, FLOAT32 if x.dtype in HALF else None)
    if b is not None:
        out += b.astype(out.dtype, copy=False)
    if residual is not None:
        out += residual.astype(out.dtype, copy=False)
    return out.astype(x.dtype, copy=False)


def _column_sums_forward(xp: Any, x: Any) -> Any:
    axes = tuple(range(x.ndim - 1))
    out = reductions.reduce(xp, x, axes, "sum")
    if out is not None:
        return out
    if x.dtype in HALF:
        return round_to(total(xp, converted(x, FLOAT32), axes, False), x.dtype)
    return total(xp, x, axes, False)


_column_sums = Primitive(
    "column_sums", _column_sums_forward, half="storage", dx=lambda g, x_shape: broadcast_to(g, x_shape)
)
_linear = Primitive(
    "linear",
    affine,
    half="storage",
    memory_bound=False,
    dx=lambda g, w: binary(_transposed_second, g, w),
    dw=lambda g, x: binary(_transposed_first, _rows(x), _rows(g)) if g.ndim > 2 else binary(_transposed_first, x, g),
    db=lambda g: apply(_column_sums, (g,)),
    dresidual=lambda g: g,
)


def _small_expression(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return binary(_matmul, x, weight) if bias is None else apply(_linear, (x, weight, bias))


def _small_forward(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    return affine(xp, x, weight, bias)


def _small_backward(xp: Any, g: Any, x: Any, weight: Any, *, needs: tuple) -> tuple:
    dx = product(xp, g, weight.T) if needs[0] else None
    dw = product(xp, x.T, g) if needs[1] else None
    return dx, dw, _column_sums_forward(xp, g) if needs[2] else None


# A layer too small to fill a GPU, in float32: its three derivatives take one launch.
_small = Composite(
    "linear", _small_expression, _small_forward, _small_backward, keeps="x weight", memory_bound=False,
    fused=Fused("small_product.cu", small_product.product, small_product.linear_backward),
)  # fmt: skip


def _is_small(x: Tensor, weight: Tensor) -> bool:
    a, w = x._data, weight._data
    if not x.device.launches or not a.dtype is w.dtype is FLOAT32 or a.ndim != 2:
        return False
    return small_product.fits(a.shape[0], a.shape[1], w.shape[1])


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, /, *, residual: Tensor | None = None
) -> Tensor:
    """Return the affine map `x @ weight + bias`, plus `residual` where one is given.

    Shapes: x [..., d_in], weight [d_in, d_out], bias [d_out] (or None), residual and result [..., d_out]. The gradients are
    g @ weight.T for x, x.T @ g over all rows at once for the weight, the column sums of g for the bias, and g for the
    residual. It is one operation, which on a GPU starts its sums from the residual and rounds half types once; on the CPU it
    has the numbers of residual + linear(x, weight, bias).

    Errors: ValueError where the sizes do not fit.

    >>> import ruda_tensor as rt
    >>> x, w = rt.ones((2, 3), device=rt.Cpu()), rt.ones((3, 4), device=rt.Cpu())
    >>> rt.linear(x, w, rt.ones(4, device=rt.Cpu())).tolist()[0]
    [4.0, 4.0, 4.0, 4.0]
    >>> rt.linear(x, w, residual=rt.ones((2, 4), device=rt.Cpu())).tolist()[0]
    [4.0, 4.0, 4.0, 4.0]
    """
    if not isinstance(x, Tensor) or not isinstance(weight, Tensor):
        x, weight = as_tensor(x, None, "linear"), as_tensor(weight, None, "linear")
    if residual is not None:
        return _added(x, weight, bias, as_tensor(residual, x, "linear"))
    if bias is None:
        check_linear(x.shape, weight.shape, None)
        return call(_small, (x, weight, None)) if _is_small(x, weight) else matmul(x, weight)
    bias = as_tensor(bias, None, "linear")
    a, w, b = x._data, weight._data, bias._data
    check_linear(a.shape, w.shape, b.shape)
    if b.dtype is FLOAT32 and _is_small(x, weight):
        return call(_small, (x, weight, bias))
    if not a.dtype is w.dtype is b.dtype or a.dtype not in FLOATING:
        dtype = promote_types(promote_types(x.dtype, weight.dtype), bias.dtype)
        dtype = dtype if dtype in FLOATING else x.device.float_dtype
        x, weight, bias = cast(x, dtype), cast(weight, dtype), cast(bias, dtype)
    if a.ndim == 1:
        return reshape(apply(_linear, (reshape(x, (1, x.size)), weight, bias)), bias.shape)
    return apply(_linear, (x, weight, bias))


def _added(x: Tensor, weight: Tensor, bias: Any, residual: Tensor) -> Tensor:
    """The affine map plus a residual, in one operation but for half types on the CPU, which would be rounded another time."""
    bias = None if bias is None else as_tensor(bias, None, "linear")
    check_linear(x.shape, weight.shape, None if bias is None else bias.shape)
    shape = (*x.shape[:-1], weight.shape[1])
    if residual.shape != shape:
        raise ValueError(
            f"linear: residual {residual.shape} does not fit the result {shape}; nothing broadcasts: "
            f"rt.broadcast_to(residual, {shape})"
        )
    terms = (x, weight, residual) if bias is None else (x, weight, bias, residual)
    one = x.dtype in FLOATING and (x.device.launches or x.dtype not in HALF) and all(t.dtype == x.dtype for t in terms)
    if one and x.ndim > 1:
        return apply(_linear, (x, weight, bias, residual))
    return residual + linear(x, weight, bias)


def check_linear(x: tuple[int, ...], w: tuple[int, ...], b: tuple[int, ...] | None) -> None:
    if not x or len(w) != 2 or x[-1] != w[0] or b not in (None, w[1:]):
        raise ValueError(
            f"linear: x {x}, weight {w}, bias {b} do not fit; needs x [..., d_in], weight [d_in, d_out], bias [d_out] "
            "(a weight stored as [d_out, d_in]: w.mT)"
        )


_vecdot = Primitive(
    "vecdot",
    lambda xp, x, y: product(xp, x[..., None, :], y[..., None])[..., 0, 0],
    poles=True,
    dx=lambda g, y: expand_dims(g, axis=-1) * y,
    dy=lambda g, x: expand_dims(g, axis=-1) * x,
)


def vecdot(x: Tensor, y: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the dot products of the vectors along `axis`: out[...] = sum_i x[..., i] y[..., i].

    The other axes broadcast; `axis` counts from the end of both (-1 is the last), and its sizes must be equal.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu())
    >>> rt.vecdot(x, x).tolist()
    [5.0, 25.0]
    """
    x, y = _operands(x, y, "vecdot")
    if x.ndim == 0 or y.ndim == 0:
        raise ValueError(f"vecdot: shapes {x.shape} and {y.shape}: a 0-d tensor holds no vector; multiply with x * y")
    a, b = normalize_axis(axis, x.ndim, "vecdot"), normalize_axis(axis, y.ndim, "vecdot")
    if x.shape[a] != y.shape[b]:
        raise ValueError(f"vecdot: axis {axis} has size {x.shape[a]} in x and {y.shape[b]} in y; they must be equal")
    x, y = (t if t_axis == t.ndim - 1 else moveaxis(t, t_axis, -1) for t, t_axis in ((x, a), (y, b)))
    broadcast_shapes(x.shape[:-1], y.shape[:-1], name="vecdot")
    return apply(_vecdot, (x, y))


def tensordot(x: Tensor, y: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Return the sum of products over pairs of axes: the last `axes` of x with the first of y, or the two lists given.

    The result has the remaining axes of x, then those of y.

    Errors: ValueError where paired sizes differ.

    >>> import ruda_tensor as rt
    >>> x, y = rt.ones((2, 3, 4), device=rt.Cpu()), rt.ones((3, 4, 5), device=rt.Cpu())
    >>> rt.tensordot(x, y).shape, rt.tensordot(x, y, axes=((2,), (1,))).shape
    ((2, 5), (2, 3, 3, 5))
    """
    x, y = _operands(x, y, "tensordot")
    axes = axes.tolist() if hasattr(axes, "tolist") else axes
    if hasattr(axes, "__index__"):
        n = axes.__index__()
        if not 0 <= n <= min(x.ndim, y.ndim):
            raise ValueError(f"tensordot: axes={n} of shapes {x.shape} and {y.shape}; needs 0 to {min(x.ndim, y.ndim)}")
        axes = range(x.ndim - n, x.ndim), range(n)
    elif not isinstance(axes, (list, tuple)) or len(axes) != 2:
        raise TypeError(
            f"tensordot: axes must be an integer or two lists of axes, got {axes!r}; for one pair: axes=((-1,), (0,))"
        )
    first, second = (normalize_axes(a, t.ndim, "tensordot") for a, t in zip(axes, (x, y)))
    sizes = [x.shape[a] for a in first]
    if sizes != [y.shape[a] for a in second]:
        raise ValueError(
            f"tensordot: axes {first} of {x.shape} and {second} of {y.shape} have sizes {sizes} and "
            f"{[y.shape[a] for a in second]}; pairs must be equal"
        )
    left = tuple([a for a in range(x.ndim) if a not in first])
    right = tuple([a for a in range(y.ndim) if a not in second])
    k = math.prod(sizes)
    m, n = (tuple([t.shape[a] for a in rest]) for t, rest in ((x, left), (y, right)))
    x = reshape(permute_dims(x, (*left, *first)), (math.prod(m), k))
    y = reshape(permute_dims(y, (*second, *right)), (k, math.prod(n)))
    return reshape(binary(_matmul, x, y), (*m, *n))


def outer(x: Tensor, y: Tensor, /) -> Tensor:
    """Return out[i, j] = x[i] y[j] of two 1-D tensors.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1, 2], device=rt.Cpu())
    >>> rt.outer(x, x).tolist()
    [[1, 2], [2, 4]]
    """
    x, y = _operands(x, y, "outer")
    if x.ndim != 1 or y.ndim != 1:
        raise ValueError(f"outer: needs two 1-D tensors, got {x.shape} and {y.shape}; flatten them: rt.flatten(x)")
    return reshape(x, (x.size, 1)) * reshape(y, (1, y.size))
