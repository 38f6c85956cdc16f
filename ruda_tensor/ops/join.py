"""Joining, splitting and repeating tensors, and padding."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..creation import zeros
from ..dtypes import promote_types, weak_result
from ..operation import Primitive, Variadic, apply
from ..recording import refuse_while_capturing
from ..tensor import Tensor
from ._common import as_tensor, cast, full_scalar, integer, normalize_axis, scalar_of, several
from .index import getitem, take
from .shape import broadcast_to, reshape

__all__ = ["chunk", "concat", "pad", "repeat", "split", "stack", "tile", "unstack"]


def _concat_rule(i: int, g: Tensor, shapes: tuple, static: dict, inputs: Any) -> Tensor:
    axis = static["axis"]
    start = sum([shape[axis] for shape in shapes[:i]])
    return getitem(g, (slice(None),) * axis + (slice(start, start + shapes[i][axis]),))


_concat = Variadic("concat", lambda xp, *arrays, axis: xp.concatenate(arrays, axis), rule=_concat_rule)
_stack = Variadic(
    "stack",
    lambda xp, *arrays, axis: xp.stack(arrays, axis),
    rule=lambda i, g, shapes, static, inputs: getitem(g, (slice(None),) * static["axis"] + (i,)),
)


def _operands(arrays: Any, name: str) -> list[Tensor]:
    """The tensors to join, in one dtype."""
    if isinstance(arrays, Tensor):
        raise TypeError(f"{name}: takes a list of tensors, got one of shape {arrays.shape}; rt.{name}([x, y])")
    if not isinstance(arrays, Iterable) or isinstance(arrays, (str, bytes)):
        raise TypeError(f"{name}: takes a list of tensors, got {arrays!r}; rt.{name}([x, y])")
    tensors = list(arrays)
    if not tensors:
        raise ValueError(f"{name}: needs at least one tensor, got none; rt.{name}([x, y])")
    like = next((x for x in tensors if isinstance(x, Tensor)), None)
    tensors = [as_tensor(x, like, name) for x in tensors]
    dtype = tensors[0].dtype
    if any(x._data.dtype is not dtype for x in tensors):
        for x in tensors:
            dtype = promote_types(dtype, x.dtype)
        tensors = [cast(x, dtype) for x in tensors]
    return tensors


def concat(arrays: Any, /, *, axis: int | None = 0) -> Tensor:
    """Return the tensors one after the other along an existing axis (`None`: flattened first), in their common dtype.

    Errors: ValueError where another axis differs.

    >>> import ruda_tensor as rt
    >>> a, b = rt.zeros((2, 3), device=rt.Cpu()), rt.ones((1, 3), device=rt.Cpu())
    >>> rt.concat([a, b]).shape
    (3, 3)
    """
    tensors = _operands(arrays, "concat")
    if axis is None:
        tensors, axis = [reshape(x, (x.size,)) for x in tensors], 0
    first = tensors[0]
    axis = normalize_axis(axis, first.ndim, "concat")
    rest = first.shape[:axis] + first.shape[axis + 1 :]
    for x in tensors[1:]:
        if x.ndim != first.ndim or x.shape[:axis] + x.shape[axis + 1 :] != rest:
            raise ValueError(
                f"concat: shapes {', '.join(str(t.shape) for t in tensors)} must agree on every axis but axis {axis}; "
                "to join along a new axis: rt.stack([x, y])"
            )
    return apply(_concat, tuple(tensors), {"axis": axis})


def stack(arrays: Any, /, *, axis: int = 0) -> Tensor:
    """Return the tensors, all of one shape, joined along a new axis at position `axis` of the result.

    >>> import ruda_tensor as rt
    >>> a, b = rt.zeros(3, device=rt.Cpu()), rt.ones(3, device=rt.Cpu())
    >>> rt.stack([a, b], axis=-1).shape
    (3, 2)
    """
    tensors = _operands(arrays, "stack")
    first = tensors[0]
    axis = normalize_axis(axis, first.ndim + 1, "stack")
    if any(x.shape != first.shape for x in tensors):
        raise ValueError(
            f"stack: the shapes {', '.join(str(x.shape) for x in tensors)} must be equal; "
            "to join along an existing axis: rt.concat([x, y], axis=0)"
        )
    return apply(_stack, tuple(tensors), {"axis": axis})


class _Pieces:
    """Views of one tensor whose gradients are joined at once; picked one by one, n of them would cost n full gradients."""

    joint, computes, memory_bound, pulls = True, False, False, None

    def __init__(self, name: str, shapes: list[tuple[int, ...]], axis: int, join: Callable) -> None:
        self.name, self.shapes, self.axis, self.join = name, shapes, axis, join

    @property
    def op(self) -> _Pieces:
        return self

    def pull(self, walk: Any, node: Any, g: list) -> list:
        """Return the joined gradient; a piece that took no part counts as zeros."""
        like = next(part for part in g if part is not None)
        parts = [
            zeros(shape, dtype=like.dtype, device=like.device) if part is None else part
            for part, shape in zip(g, self.shapes, strict=True)
        ]
        return [(node.parents[0], self.join(parts, axis=self.axis))]


def _pieces(name: str, x: Tensor, keys: list[tuple], axis: int, join: Callable) -> tuple[Tensor, ...]:
    """The views of `x` that the keys name, on the tape as the results of one operation."""
    parts = [Tensor._wrap(x._data[key], x.device) for key in keys]
    if x._node is None or not parts:
        return tuple(parts)
    op = _Pieces(name, [part.shape for part in parts], axis, join)
    return tuple(x._node.record_results(op, (x,), parts))


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the slices of `x` along `axis`, each without that axis: the inverse of `stack`.

    >>> import ruda_tensor as rt
    >>> a, b = rt.unstack(rt.tensor([[1, 2], [3, 4]], device=rt.Cpu()), axis=1)
    >>> a.tolist(), b.tolist()
    ([1, 3], [2, 4])
    """
    x = as_tensor(x, None, "unstack")
    axis = normalize_axis(axis, x.ndim, "unstack")
    before = (slice(None),) * axis
    return _pieces("unstack", x, [(*before, i, ...) for i in range(x.shape[axis])], axis, stack)


def split(x: Tensor, sizes: Any, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return `x` cut along `axis` into pieces of the given sizes: a list of them, or one size for all but the last.

    Errors: ValueError where the sizes do not add up to the axis.

    >>> import ruda_tensor as rt
    >>> [part.tolist() for part in rt.split(rt.tensor([1, 2, 3, 4, 5], device=rt.Cpu()), [2, 3])]
    [[1, 2], [3, 4, 5]]
    """
    x = as_tensor(x, None, "split")
    axis = normalize_axis(axis, x.ndim, "split")
    total = x.shape[axis]
    if isinstance(sizes, Iterable) and getattr(sizes, "ndim", 1) != 0:
        cuts = [integer(n, "split", "a size") for n in sizes]
    else:
        n = integer(sizes, "split", "the size")
        cuts = [min(n, total - at) for at in range(0, total, n)] if n > 0 else [n]
    if sum(cuts) != total or any(n < 0 for n in cuts):
        raise ValueError(
            f"split: the pieces {cuts} must be sizes that add up to {total}, the size of axis {axis}; "
            f"for n equal pieces: rt.chunk(x, n, axis={axis})"
        )
    before, keys, start = (slice(None),) * axis, [], 0
    for n in cuts:
        keys.append((*before, slice(start, start + n)))
        start += n
    return _pieces("split", x, keys, axis, concat)


def chunk(x: Tensor, count: int, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return `x` cut along `axis` into `count` pieces whose sizes differ by at most one, larger ones first.

    >>> import ruda_tensor as rt
    >>> [part.tolist() for part in rt.chunk(rt.tensor([1, 2, 3, 4, 5], device=rt.Cpu()), 2)]
    [[1, 2, 3], [4, 5]]
    """
    x = as_tensor(x, None, "chunk")
    axis = normalize_axis(axis, x.ndim, "chunk")
    count = integer(count, "chunk", "the number of pieces", 1)
    small, larger = divmod(x.shape[axis], count)
    return split(x, [small + 1] * larger + [small] * (count - larger), axis=axis)


def repeat(x: Tensor, repeats: Any, /, *, axis: int | None = None) -> Tensor:
    """Return `x` with each element along `axis` repeated: `repeats` times, or the i-th one `repeats[i]` times.

    Without `axis` the tensor is flattened first. The gradient of an element is the sum over its copies. A tensor of
    counts on a GPU is read by the host, since it decides the shape.

    >>> import ruda_tensor as rt
    >>> rt.repeat(rt.tensor([1, 2, 3], device=rt.Cpu()), 2).tolist()
    [1, 1, 2, 2, 3, 3]
    >>> rt.repeat(rt.tensor([1, 2, 3], device=rt.Cpu()), rt.tensor([2, 0, 1], device=rt.Cpu())).tolist()
    [1, 1, 3]
    """
    x = as_tensor(x, None, "repeat")
    if axis is None:
        x, axis = reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim, "repeat")
    size = x.shape[axis]
    if isinstance(repeats, Tensor) and repeats.device.launches:
        refuse_while_capturing(
            "repeat by a tensor of counts, whose sum is a size of the result,",
            "give the counts as a list; or rt.take(x, i, axis=axis) with the places i, of a fixed number, as an input",
        )
    counts = repeats.tolist() if hasattr(repeats, "tolist") else repeats
    if not hasattr(counts, "__index__") and not isinstance(counts, (list, tuple)):
        raise TypeError(f"repeat: repeats must be an integer or one per element, got {counts!r}; write repeats=2")
    if isinstance(counts, (list, tuple)):
        if len(counts) not in (1, size) or any(not hasattr(n, "__index__") or n < 0 for n in counts):
            raise ValueError(f"repeat: needs {size} integers >= 0, one per element of axis {axis}, got {counts}")
        if len(counts) != 1:
            return take(x, [i for i, n in enumerate(counts) for _ in range(n)], axis=axis)
        counts = counts[0]
    count = counts.__index__()
    if count < 0:
        raise ValueError(f"repeat: repeats must be at least 0, got {count}")
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    spread = broadcast_to(reshape(x, (*before, 1, *after)), (*before, count, *after))
    return reshape(spread, (*x.shape[:axis], size * count, *after))


def tile(x: Tensor, repetitions: Any, /) -> Tensor:
    """Return `x` laid out `repetitions[i]` times along axis i; axes are added in front of the shorter of the two.

    >>> import ruda_tensor as rt
    >>> rt.tile(rt.tensor([1, 2], device=rt.Cpu()), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = as_tensor(x, None, "tile")
    times = repetitions.tolist() if hasattr(repetitions, "tolist") else repetitions
    times = several(times, "tile", "repetitions")
    if any(not hasattr(n, "__index__") or n < 0 for n in times):
        raise ValueError(f"tile: repetitions must be integers >= 0, got {repetitions}")
    ndim = max(len(times), x.ndim)
    times, sizes = (1,) * (ndim - len(times)) + times, (1,) * (ndim - x.ndim) + x.shape
    apart = reshape(x, tuple([m for n in sizes for m in (1, n)]))
    spread = broadcast_to(apart, tuple([m for t, n in zip(times, sizes) for m in (t, n)]))
    return reshape(spread, tuple([t * n for t, n in zip(times, sizes)]))


def _pad_forward(xp: Any, x: Any, value: Any, *, widths: tuple) -> Any:
    out = xp.empty(tuple([a + n + b for n, (a, b) in zip(x.shape, widths)]), x.dtype)
    out[...] = value
    out[_inner(x.shape, widths)] = x
    return out


def _inner(shape: tuple[int, ...], widths: tuple) -> tuple[slice, ...]:
    return tuple([slice(a, a + n) for n, (a, _) in zip(shape, widths)])


_pad = Primitive(
    "pad", _pad_forward, half="storage", dx=lambda g, x_shape, widths: getitem(g, _inner(x_shape, widths))
)


def pad(x: Tensor, widths: Any, /, *, mode: str = "constant", value: float = 0) -> Tensor:
    """Return `x` with elements added before and after each axis.

    `widths`: one number for both ends of every axis, a pair (before, after) for every axis, or one pair per axis.
    `mode`: "constant" (`value`), "edge" (the last element again), "reflect" (mirrored, without the last element) or
    "wrap" (from the other end).

    Errors: ValueError for a negative width, or one that is longer than there are elements to mirror or repeat.

    >>> import ruda_tensor as rt
    >>> rt.pad(rt.tensor([1, 2, 3], device=rt.Cpu()), (1, 2)).tolist()
    [0, 1, 2, 3, 0, 0]
    >>> rt.pad(rt.tensor([1, 2, 3], device=rt.Cpu()), 2, mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2, 1]
    """
    x = as_tensor(x, None, "pad")
    pairs = _pairs(widths, x.ndim)
    if mode == "constant":
        number = scalar_of(value)
        if number is None:
            raise TypeError(f"pad: value must be a number, got {value!r}")
        if number != 0 and weak_result(x.dtype, number) != x.dtype:  # 0 is False too
            raise TypeError(f"pad: {number!r} does not fit a tensor of {x.dtype}; convert it: x.astype(rt.float32)")
        return apply(_pad, (x, full_scalar(number, x.dtype, x.device)), {"widths": pairs})
    if mode not in _FOLDS:
        raise ValueError(f"pad: mode must be 'constant', {', '.join(map(repr, _FOLDS))}, got {mode!r}")
    for axis, (a, b) in enumerate(pairs):
        n = x.shape[axis]
        most = {"edge": None if n else 0, "reflect": max(n - 1, 0), "wrap": n}[mode]
        if most is not None and max(a, b) > most:
            raise ValueError(f"pad: {mode!r} adds at most {most} elements to axis {axis} of {x.shape}, got {(a, b)}")
        if a or b:
            x = take(x, [_FOLDS[mode](i, n) for i in range(-a, n + b)], axis=axis)
    return x


_FOLDS = {
    "edge": lambda i, n: min(max(i, 0), n - 1),
    "reflect": lambda i, n: n - 1 - abs(n - 1 - abs(i)),
    "wrap": lambda i, n: i % n,
}  # where element i of the lengthened axis comes from


def _pairs(widths: Any, ndim: int) -> tuple[tuple[int, int], ...]:
    """Widths as one (before, after) per axis."""
    widths = widths.tolist() if hasattr(widths, "tolist") else widths
    if hasattr(widths, "__index__"):
        pairs = [(widths.__index__(),) * 2] * ndim
    else:
        given = list(widths)
        if len(given) == 2 and all(hasattr(n, "__index__") for n in given):
            given = [given] * ndim
        pairs = [tuple([n.__index__() for n in pair]) for pair in given if isinstance(pair, (tuple, list))]
        if len(pairs) != ndim or len(given) != ndim or any(len(pair) != 2 for pair in pairs):
            raise ValueError(
                f"pad: widths {widths} do not fit {ndim} axes; give a number, a pair (before, after) or one per axis"
            )
    if any(n < 0 for pair in pairs for n in pair):
        raise ValueError(f"pad: widths must be at least 0, got {widths}; to cut off elements: x[..., 1:-1]")
    return tuple(pairs)  # type: ignore[arg-type]
