"""Shape: the same numbers seen in another shape or order. Nearly all of it is views: no element moves."""
from __future__ import annotations

import math
import operator
from typing import Any

from ..kernels import copies
from ..operation import Primitive, apply
from ..tensor import Tensor
from ._common import as_tensor, normalize_axes, normalize_axis, several

__all__ = [
    "broadcast_arrays", "broadcast_to", "expand_dims", "flatten", "flip", "matrix_transpose", "moveaxis",
    "permute_dims", "reshape", "roll", "sliding_windows", "squeeze", "swap_dims", "transpose",
]  # fmt: skip


def _reshape_forward(xp: Any, x: Any, *, shape: tuple[int, ...], copy: bool | None = None) -> Any:
    if not x.flags.c_contiguous:
        x = copies.for_reshape(xp, x, shape)
    out = x.reshape(shape)
    return out.copy() if copy else out


_reshape = Primitive("reshape", _reshape_forward, half="storage", dx=lambda g, x_shape: reshape(g, x_shape))
_broadcast_to = Primitive(
    "broadcast_to", lambda xp, x, *, shape: xp.broadcast_to(x, shape), half="storage", dx=lambda g: g
)
_permute_dims = Primitive(
    "permute_dims",
    lambda xp, x, *, axes: x.transpose(axes),
    half="storage",
    dx=lambda g, axes: apply(_permute_dims, (g,), {"axes": _inverse(axes)}),
)
_matrix_transpose = Primitive(
    "matrix_transpose", lambda xp, x: x.swapaxes(-1, -2), half="storage", dx=lambda g: apply(_matrix_transpose, (g,))
)
_flip = Primitive(
    "flip",
    lambda xp, x, *, axes: x[tuple([slice(None, None, -1 if a in axes else 1) for a in range(x.ndim)])],
    half="storage",
    dx=lambda g, axes: apply(_flip, (g,), {"axes": axes}),
)
_roll = Primitive(
    "roll",
    lambda xp, x, *, shift, axis: xp.roll(x, shift, axis),
    half="storage",
    dx=lambda g, shift, axis: apply(_roll, (g,), {"shift": tuple([-s for s in shift]), "axis": axis}),
)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    inverse = [0] * len(axes)
    for i, a in enumerate(axes):
        inverse[a] = i
    return tuple(inverse)


def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """Return the same elements in another shape, in row-major order; one size may be -1.

    The memory is shared where the layout allows. `copy=True` always copies, and `copy=False` refuses to.

    Errors: ValueError where the sizes do not multiply to the number of elements, or where `copy=False` needs a copy.

    >>> import ruda_tensor as rt
    >>> rt.reshape(rt.zeros(6, device=rt.Cpu()), (2, -1)).shape
    (2, 3)
    """
    x = as_tensor(x, None, "reshape")
    size = x._data.size
    if type(shape) is not tuple or type(math.prod(shape)) is not int:
        shape = _sizes(shape, "reshape")
    if shape.count(-1) == 1:
        known = -math.prod(shape)
        if known > 0 and size % known == 0:
            shape = tuple([size // known if n == -1 else n for n in shape])
    if math.prod(shape) != size or (shape and min(shape) < 0):
        raise ValueError(
            f"reshape: {x.shape} has {size} elements and cannot become {shape}; the sizes must multiply to {size}, "
            "and one of them may be -1: rt.reshape(x, (-1, n))"
        )
    if copy is None:
        return apply(_reshape, (x,), {"shape": shape})
    out = apply(_reshape, (x,), {"shape": shape, "copy": copy})
    if copy is False and size and not x.device.xp.may_share_memory(x._data, out._data):
        raise ValueError(f"reshape: this {x.shape} cannot become {shape} without a copy; leave out copy=False")
    return out


def _sizes(shape: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple([operator.index(n) for n in several(shape, name, "a shape")])
    except TypeError:
        raise TypeError(f"{name}: a shape is an integer or several, got {shape!r}") from None


def flatten(x: Tensor, /, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Return `x` with the axes from `start_axis` to `end_axis` (both included) merged into one.

    >>> import ruda_tensor as rt
    >>> rt.flatten(rt.zeros((2, 3, 4), device=rt.Cpu()), 1).shape
    (2, 12)
    """
    x = as_tensor(x, None, "flatten")
    if x.ndim == 0:
        return reshape(x, (1,))
    start, end = normalize_axis(start_axis, x.ndim, "flatten"), normalize_axis(end_axis, x.ndim, "flatten")
    if end < start:
        raise ValueError(f"flatten: axis {start_axis} comes after axis {end_axis} in {x.shape}; swap the two")
    shape = x.shape
    return reshape(x, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


def broadcast_to(x: Tensor, /, shape: Any) -> Tensor:
    """Return `x` repeated (as a view) to `shape`: axes of size 1 stretch, and missing leading axes are added.

    >>> import ruda_tensor as rt
    >>> rt.broadcast_to(rt.tensor([1.0, 2.0], device=rt.Cpu()), (3, 2)).shape
    (3, 2)
    """
    x = as_tensor(x, None, "broadcast_to")
    if type(shape) is not tuple or type(math.prod(shape)) is not int:
        shape = _sizes(shape, "broadcast_to")
    if x._data.shape == shape:
        return x
    padded = (1,) * (len(shape) - x.ndim) + x.shape
    if len(padded) != len(shape) or any(a not in (1, b) for a, b in zip(padded, shape)):
        raise ValueError(
            f"broadcast_to: {x.shape} does not stretch to {shape}; only axes of size 1 do, and new axes come first: "
            "rt.expand_dims(x, axis=...)"
        )
    return apply(_broadcast_to, (x,), {"shape": shape})


def broadcast_shapes(*shapes: tuple[int, ...], name: str = "broadcast_shapes") -> tuple[int, ...]:
    """Return the common shape of several, or raise ValueError naming the axis that disagrees."""
    ndim = max(map(len, shapes), default=0)
    out = [1] * ndim
    for shape in shapes:
        for k, n in enumerate(shape, ndim - len(shape)):
            if n != 1 and out[k] not in (1, n):
                raise ValueError(
                    f"{name}: {', '.join(map(str, shapes))} do not broadcast: axis {k - ndim} has {out[k]} and {n}, "
                    "and sizes must be equal or 1 (insert axes with rt.expand_dims(x, axis=...))"
                )
            out[k] = n if n != 1 else out[k]
    return tuple(out)


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return the tensors, each stretched (as a view) to their common shape.

    >>> import ruda_tensor as rt
    >>> a, b = rt.broadcast_arrays(rt.zeros((3, 1), device=rt.Cpu()), rt.zeros(2, device=rt.Cpu()))
    >>> a.shape, b.shape
    ((3, 2), (3, 2))
    """
    tensors = [as_tensor(x, None, "broadcast_arrays") for x in arrays]
    shape = broadcast_shapes(*[x.shape for x in tensors], name="broadcast_arrays")
    return [broadcast_to(x, shape) for x in tensors]


def expand_dims(x: Tensor, /, *, axis: Any = 0) -> Tensor:
    """Return `x` with axes of size 1 inserted at the positions `axis` (one or several) of the result.

    >>> import ruda_tensor as rt
    >>> rt.expand_dims(rt.zeros((2, 3), device=rt.Cpu()), axis=1).shape
    (2, 1, 3)
    """
    x = as_tensor(x, None, "expand_dims")
    shape = x._data.shape
    if type(axis) is int and 0 <= axis <= len(shape):
        return apply(_reshape, (x,), {"shape": (*shape[:axis], 1, *shape[axis:])})
    axes = several(axis, "expand_dims", "axis")
    count = len(axes)
    axes = normalize_axes(axes, x.ndim + count, "expand_dims")
    sizes = iter(x.shape)
    return apply(_reshape, (x,), {"shape": tuple([1 if i in axes else next(sizes) for i in range(x.ndim + count)])})


def squeeze(x: Tensor, /, axis: Any = None) -> Tensor:
    """Return `x` without its axes of size 1: those at `axis` (one or several), or all of them.

    Errors: ValueError for an axis of another size.

    >>> import ruda_tensor as rt
    >>> rt.squeeze(rt.zeros((1, 3, 1), device=rt.Cpu()), axis=0).shape
    (3, 1)
    """
    x = as_tensor(x, None, "squeeze")
    shape = x.shape
    if axis is None:
        axes = tuple([i for i, n in enumerate(shape) if n == 1])
    else:
        axes = normalize_axes(axis, len(shape), "squeeze")
        for a in axes:
            if shape[a] != 1:
                raise ValueError(f"squeeze: axis {a} of {shape} has size {shape[a]}, not 1; pick an element: x[0]")
    return apply(_reshape, (x,), {"shape": tuple([n for i, n in enumerate(shape) if i not in axes])})


def permute_dims(x: Tensor, /, axes: Any) -> Tensor:
    """Return `x` with its axes in another order: axis i of the result is axis `axes[i]` of `x`.

    Errors: ValueError where `axes` does not name every axis once.

    >>> import ruda_tensor as rt
    >>> rt.permute_dims(rt.zeros((2, 3, 4), device=rt.Cpu()), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_tensor(x, None, "permute_dims")
    ndim = x.ndim
    if axes is None:
        raise TypeError("permute_dims: axes must be integers, got None; to reverse them: rt.transpose(x)")
    order = normalize_axes(axes, ndim, "permute_dims")
    if len(order) != ndim:
        raise ValueError(
            f"permute_dims: axes {axes} must name each of the {ndim} axes of {x.shape} once, "
            f"for example {tuple(range(ndim))[::-1]}"
        )
    return apply(_permute_dims, (x,), {"axes": order})


def transpose(x: Tensor, /, axes: Any = None) -> Tensor:
    """Return `x` with its axes reversed, or in the order `axes` (as `permute_dims`).

    For the transpose of each matrix in a batch use `matrix_transpose` or `x.mT`.

    >>> import ruda_tensor as rt
    >>> rt.transpose(rt.zeros((2, 3, 4), device=rt.Cpu())).shape
    (4, 3, 2)
    """
    x = as_tensor(x, None, "transpose")
    return permute_dims(x, range(x.ndim - 1, -1, -1) if axes is None else axes)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return `x` with its last two axes swapped: `out[..., i, j] = x[..., j, i]`.

    >>> import ruda_tensor as rt
    >>> rt.matrix_transpose(rt.zeros((5, 2, 3), device=rt.Cpu())).shape
    (5, 3, 2)
    """
    x = as_tensor(x, None, "matrix_transpose")
    if x._data.ndim < 2:
        raise ValueError(f"matrix_transpose: needs at least 2 axes, got shape {x.shape}; make a column: x[:, None]")
    return apply(_matrix_transpose, (x,))


def swap_dims(x: Tensor, /, axis1: int, axis2: int) -> Tensor:
    """Return `x` with two axes exchanged.

    >>> import ruda_tensor as rt
    >>> rt.swap_dims(rt.zeros((2, 3, 4), device=rt.Cpu()), 0, -1).shape
    (4, 3, 2)
    """
    x = as_tensor(x, None, "swap_dims")
    a, b = normalize_axis(axis1, x.ndim, "swap_dims"), normalize_axis(axis2, x.ndim, "swap_dims")
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return apply(_permute_dims, (x,), {"axes": tuple(order)})


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Return `x` with the axes `source` moved to the positions `destination`; the others keep their order.

    >>> import ruda_tensor as rt
    >>> rt.moveaxis(rt.zeros((2, 3, 4), device=rt.Cpu()), 0, -1).shape
    (3, 4, 2)
    """
    x = as_tensor(x, None, "moveaxis")
    start, end = normalize_axes(source, x.ndim, "moveaxis"), normalize_axes(destination, x.ndim, "moveaxis")
    if len(start) != len(end):
        raise ValueError(f"moveaxis: {len(start)} source axes and {len(end)} destinations; give as many of each")
    order = [a for a in range(x.ndim) if a not in start]
    for to, axis in sorted(zip(end, start)):
        order.insert(to, axis)
    return apply(_permute_dims, (x,), {"axes": tuple(order)})


def flip(x: Tensor, /, *, axis: Any = None) -> Tensor:
    """Return `x` with its elements in reverse order along `axis` (all axes by default).

    >>> import ruda_tensor as rt
    >>> rt.flip(rt.tensor([1, 2, 3], device=rt.Cpu())).tolist()
    [3, 2, 1]
    """
    x = as_tensor(x, None, "flip")
    return apply(_flip, (x,), {"axes": normalize_axes(axis, x.ndim, "flip")})


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Return `x` with its elements moved `shift` places along `axis`; those that fall off come in at the other end.

    Without `axis` the tensor is rolled as if it were flat. `shift` and `axis` may both be several.

    >>> import ruda_tensor as rt
    >>> rt.roll(rt.tensor([1, 2, 3, 4], device=rt.Cpu()), 1).tolist()
    [4, 1, 2, 3]
    """
    x = as_tensor(x, None, "roll")
    if axis is None:
        shifts = _sizes(shift, "roll")
        flat = apply(_roll, (reshape(x, (x.size,)),), {"shift": (sum(shifts),), "axis": (0,)})
        return reshape(flat, x.shape)
    shifts = _sizes(shift, "roll")
    axes = tuple([normalize_axis(a, x.ndim, "roll") for a in several(axis, "roll", "axis")])
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes; give one shift, or one for each axis")
    return apply(_roll, (x,), {"shift": shifts, "axis": axes})


def _windows_forward(xp: Any, x: Any, *, size: int, step: int, axis: int) -> Any:
    count = (x.shape[axis] - size) // step + 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :], size)
    stride = x.strides[axis]
    strides = (*x.strides[:axis], stride * step, *x.strides[axis + 1 :], stride)
    return xp.lib.stride_tricks.as_strided(x, shape, strides)


def _overlap_add(xp: Any, g: Any, *, shape: tuple[int, ...], step: int, axis: int) -> Any:
    """The adjoint of windows: every window is added back where it came from, one position in the window at a time."""
    out = xp.zeros(shape, g.dtype)
    before = (slice(None),) * axis
    reach = (g.shape[axis] - 1) * step + 1
    for k in range(g.shape[-1]):
        out[(*before, slice(k, k + reach, step))] += g[..., k]
    return out


_windows = Primitive(
    "sliding_windows",
    _windows_forward,
    half="storage",
    dx=lambda g, x_shape, step, axis: apply(_unwindow, (g,), {"shape": x_shape, "step": step, "axis": axis}),
)
_unwindow = Primitive(
    "overlap_add",
    _overlap_add,
    poles=True,
    dg=lambda g, g_shape, step, axis: apply(_windows, (g,), {"size": g_shape[-1], "step": step, "axis": axis}),
)


def sliding_windows(x: Tensor, /, size: Any, *, step: Any = 1, axis: Any = -1) -> Tensor:
    """Return all windows of `size` elements, `step` apart, along `axis`, as a view; the window's axis comes last.

    An axis of n elements becomes (n - size) // step + 1 windows; elements after the last whole window are in none.
    With several axes (`size` and `step` one for each, or one for all) the window's axes come last in that order. The
    gradient of an element is the sum over the windows that hold it.

    Errors: ValueError for a window longer than its axis, or a size or step below 1.

    >>> import ruda_tensor as rt
    >>> rt.sliding_windows(rt.tensor([1, 2, 3, 4], device=rt.Cpu()), 3).tolist()
    [[1, 2, 3], [2, 3, 4]]
    """
    x = as_tensor(x, None, "sliding_windows")
    axes = normalize_axes(axis, x.ndim, "sliding_windows")
    sizes, steps = _sizes(size, "sliding_windows"), _sizes(step, "sliding_windows")
    sizes, steps = (n * len(axes) if len(n) == 1 else n for n in (sizes, steps))
    if not len(sizes) == len(steps) == len(axes):
        raise ValueError(f"sliding_windows: size {size} and step {step} must be one number, or one per axis of {axes}")
    for n, s, a in zip(sizes, steps, axes):
        if not 1 <= n <= x.shape[a] or s < 1:
            raise ValueError(
                f"sliding_windows: windows of {n}, {s} apart, do not fit axis {a} of {x.shape}; "
                f"needs 1 <= size <= {x.shape[a]} and step >= 1 (lengthen the axis with rt.pad)"
            )
    for n, s, a in zip(sizes, steps, axes):
        x = apply(_windows, (x,), {"size": n, "step": s, "axis": a})
    return x
