"""hypothesis strategies for tensors: shapes, dtypes, values from a domain, memory layouts, axes and indices.

hypothesis is imported when a strategy is made, not before.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.creation import tensor
from ruda_tensor.dtypes import BOOL, FLOAT64, FLOATING, HALF, INTEGER, as_dtype, is_floating
from ruda_tensor.tensor import Tensor

from .domains import Domain, hypothesis_strategies, reals

SPECIAL = ("nan", "inf", "-inf", "0", "-0", "subnormal", "-subnormal", "smallest", "largest", "-largest", "1 + eps")


def shapes(*, min_dims: int = 0, max_dims: int = 3, min_side: int = 1, max_side: int = 4) -> Any:
    """Return a strategy for shapes: 0-d ones by default, empty ones with `min_side=0`. Simplest: the fewest, shortest axes.

    Errors: ValueError where a minimum is above its maximum, or negative.

    >>> from hypothesis import find
    >>> find(shapes(min_dims=2), lambda shape: shape[0] > 1)
    (2, 1)
    """
    if not 0 <= min_dims <= max_dims or not 0 <= min_side <= max_side:
        raise ValueError(f"shapes: needs 0 <= min <= max, got dims {min_dims} to {max_dims} and sides {min_side} to {max_side}")
    st = hypothesis_strategies()
    return st.lists(st.integers(min_side, max_side), min_size=min_dims, max_size=max_dims).map(tuple)


def broadcastable_to(shape: Sequence[int]) -> Any:
    """Return a strategy for shapes that broadcast to `shape`: leading axes dropped, others 1.

    >>> from hypothesis import find
    >>> find(broadcastable_to((2, 3)), lambda shape: len(shape) == 1)
    (3,)
    """
    st, full = hypothesis_strategies(), tuple(shape)

    def some(parts: tuple[int, list[bool]]) -> tuple[int, ...]:
        dropped, ones = parts
        return tuple(1 if one else n for n, one in zip(full, ones))[dropped:]

    flags = st.lists(st.booleans(), min_size=len(full), max_size=len(full))
    return st.tuples(st.integers(0, len(full)), flags).map(some)


def broadcastable_shapes(count: int = 2, *, max_dims: int = 3, min_side: int = 1, max_side: int = 4) -> Any:
    """Return a strategy for tuples of `count` shapes that broadcast together.

    >>> from hypothesis import find
    >>> find(broadcastable_shapes(2), lambda pair: len(pair[0]) > len(pair[1]))
    ((1,), ())
    """
    if count < 1:
        raise ValueError(f"broadcastable_shapes: count must be at least 1, got {count!r}")
    st = hypothesis_strategies()
    full = shapes(max_dims=max_dims, min_side=min_side, max_side=max_side)
    return full.flatmap(lambda shape: st.tuples(*[broadcastable_to(shape)] * count))


def dtypes(kind: str = "floating") -> Any:
    """Return a strategy for dtypes: "floating", "half", "real" (float32, float64), "integer", "bool" or "all".

    >>> from hypothesis import find
    >>> find(dtypes("integer"), lambda dtype: True)
    dtype('int32')
    """
    order = [rt.float32, rt.float64, rt.bfloat16, rt.float16, rt.int32, rt.int64, rt.int8, rt.int16, rt.uint8, rt.uint16]
    order += [rt.uint32, rt.uint64, BOOL]
    kinds = {
        "floating": FLOATING, "half": HALF, "real": FLOATING - HALF, "integer": INTEGER, "bool": {BOOL}, "all": set(order),
    }  # fmt: skip
    if kind not in kinds:
        raise ValueError(f"dtypes: kind must be one of {', '.join(kinds)}, got {kind!r}")
    return hypothesis_strategies().sampled_from([d for d in order if d in kinds[kind]])


def axes(ndim: int, *, several: bool = False, none: bool = False) -> Any:
    """Return a strategy for an axis of an `ndim`-dimensional tensor, negative ones too; a tuple of them with `several`.

    Errors: ValueError for an `ndim` without axes, unless `several` or `none` leaves something to draw.

    >>> from hypothesis import find
    >>> find(axes(2), lambda axis: axis < 0), find(axes(3, several=True), lambda axis: len(axis) == 2)
    (-2, (0, 1))
    """
    st = hypothesis_strategies()
    if ndim < 1 and not several and not none:
        raise ValueError("axes: a 0-d tensor has no axis; draw shapes(min_dims=1), or allow axes(ndim, none=True)")
    signed = lambda k: st.sampled_from([k, k - ndim])
    one = st.integers(0, ndim - 1).flatmap(signed) if ndim else st.nothing()
    if several:
        some = st.lists(st.integers(0, ndim - 1), unique=True, max_size=ndim) if ndim else st.just([])
        one = some.flatmap(lambda ks: st.tuples(*[signed(k) for k in ks]))
    return st.none() | one if none else one


def indices(shape: Sequence[int], *, advanced: bool = True) -> Any:
    """Return a strategy for indices of a tensor of `shape`.

    Integers, slices with steps of both signs, `...`, None, and with `advanced` one integer array or boolean mask.

    >>> from hypothesis import find
    >>> find(indices((3, 4)), lambda index: any(isinstance(part, int) for part in index))
    (0,)
    """
    st, full = hypothesis_strategies(), tuple(shape)

    def part(n: int) -> Any:
        bound = st.none() | st.integers(-n - 1, n + 1)
        cut = st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, -1, -2]))
        return cut | st.integers(-n, n - 1) if n else cut

    @st.composite
    def draw(draw: Any) -> tuple:
        used = draw(st.integers(0, len(full)))
        out = [draw(part(n)) for n in full[:used]]
        if advanced and used and draw(st.booleans()):
            k = draw(st.integers(0, used - 1))
            if full[k] and draw(st.booleans()):
                picked = st.lists(st.integers(-full[k], full[k] - 1), min_size=1, max_size=4)
                out[k] = np.array(draw(picked))
            else:
                out[k] = np.array(draw(st.lists(st.booleans(), min_size=full[k], max_size=full[k])), bool)
        if draw(st.booleans()):
            out.append(Ellipsis)
        if draw(st.booleans()):
            out.insert(draw(st.integers(0, len(out))), None)
        return tuple(out)

    return draw()


def special_values(dtype: Any = FLOAT64) -> Any:
    """Return a strategy for the numbers that break things: nan, infinities, zeros of both signs, subnormals, extremes.

    >>> from hypothesis import find
    >>> find(special_values(), lambda x: x != x)
    nan
    """
    kind = as_dtype(dtype)
    if not is_floating(kind):
        raise TypeError(f"special_values: {kind} is not a floating dtype; integers have no special values")
    info = rt.finfo(kind)
    numbers = {
        "nan": float("nan"), "inf": float("inf"), "0": 0.0, "subnormal": float(info.smallest_normal) / 2,
        "smallest": float(info.smallest_normal), "largest": float(info.max), "1 + eps": 1.0 + float(info.eps),
    }  # fmt: skip
    values = [-numbers[name[1:]] if name.startswith("-") else numbers[name] for name in SPECIAL]
    return hypothesis_strategies().sampled_from(values[3:] + values[:3])  # the tamest first: shrinking goes there


@dataclass(frozen=True)
class Layout:
    """A way for an array to lie in memory; calling it gives the same values laid out so.

    "contiguous", "transposed" (Fortran order), "strided" (every other element of a larger buffer), "reversed" (negative
    strides), "offset" (not at the start of its buffer). "broadcast" repeats the first row of the first axis by a stride
    of 0, so it changes the values.

    >>> Layout("reversed")(np.arange(3.0)).strides
    (-8,)
    """

    name: str

    def __call__(self, a: np.ndarray) -> np.ndarray:
        if self.name == "contiguous" or (a.ndim == 0 and self.name != "offset"):
            return np.ascontiguousarray(a) if a.ndim else a
        if self.name == "transposed":
            return np.asfortranarray(a)
        if self.name == "strided":
            wide = np.repeat(a, 2, axis=-1)
            wide[..., 1::2] = 77
            return wide[..., ::2]
        if self.name == "reversed":
            back = tuple(slice(None, None, -1) for _ in a.shape)
            return np.ascontiguousarray(a[back])[back]
        if self.name == "offset":
            buffer = np.full(a.size + 1, 77, a.dtype)
            buffer[1:] = a.ravel()
            return buffer[1:].reshape(a.shape)
        if self.name == "broadcast":
            return np.broadcast_to(a[:1], a.shape) if a.shape[0] else a
        raise ValueError(f"Layout: unknown name {self.name!r}; known: {', '.join(LAYOUTS)}")


LAYOUTS = ("contiguous", "transposed", "strided", "reversed", "offset", "broadcast")


def layouts(*names: str) -> Any:
    """Return a strategy for memory layouts: all that keep the values, or those named.

    >>> from hypothesis import find
    >>> find(layouts(), lambda layout: layout.name != "contiguous")
    Layout(name='transposed')
    """
    unknown = [n for n in names if n not in LAYOUTS]
    if unknown:
        raise ValueError(f"layouts: unknown {unknown}; known: {', '.join(LAYOUTS)}")
    return hypothesis_strategies().sampled_from([Layout(n) for n in (names or LAYOUTS[:-1])])


def arrays(shape: Any = None, *, dtype: Any = FLOAT64, domain: Domain = reals, special: bool = False) -> Any:
    """Return a strategy for NumPy arrays: of a shape or of a strategy for shapes, with values from `domain`.

    Integer and bool dtypes draw small integers and booleans, whatever the domain. `special` mixes in special_values.

    >>> from hypothesis import find
    >>> find(arrays((2, 2)), lambda a: a.sum() > 1.0)
    array([[0.   , 0.   ],
           [0.   , 1.015625]])
    """
    st = hypothesis_strategies()
    fixed = isinstance(shape, tuple)
    wanted = shapes() if shape is None else st.just(shape) if fixed else shape
    kinds = dtype if isinstance(dtype, st.SearchStrategy) else st.just(as_dtype(dtype))

    def values(kind: np.dtype, n: int) -> Any:
        if kind == BOOL:
            return st.lists(st.booleans(), min_size=n, max_size=n)
        if not is_floating(kind):
            low = 0 if str(kind).startswith("u") else -8
            return st.lists(st.integers(low, 8), min_size=n, max_size=n)
        plain = domain.draw(n)
        if not special or not n:
            return plain
        places = st.lists(st.none() | special_values(kind), min_size=n, max_size=n)
        return st.tuples(plain, places).map(lambda p: [a if b is None else b for a, b in zip(*p)])

    def build(kind: np.dtype, shape: tuple[int, ...]) -> Any:
        size = int(np.prod(shape))
        with_shape = lambda v: np.array(v, np.float64 if is_floating(kind) else kind).astype(kind).reshape(shape)
        return values(kind, size).map(with_shape)

    return st.tuples(kinds, wanted).flatmap(lambda pair: build(*pair))


def tensors(
    shape: Any = None, *, dtype: Any = FLOAT64, domain: Domain = reals, layout: Any = None, special: bool = False,
    device: Any = None,
) -> Any:
    """Return a strategy for tensors: of a shape or a strategy for shapes, in a dtype or a strategy for dtypes.

    `layout` is a Layout or a strategy for them (CPU only); the rest is as for `arrays`. float64 is the default, since
    derivatives are checked in it. Simplest: few and short axes, then numbers near the simple end of the domain.

    >>> from hypothesis import find
    >>> find(tensors(shapes(min_dims=1), dtype=dtypes()), lambda x: x.size > 1)
    Tensor([0., 0.], shape=(2,), dtype=float32, device=Cpu(), untracked)
    """
    st, place = hypothesis_strategies(), rt.Cpu() if device is None else rt.devices.resolve_device(device)
    values = arrays(shape, dtype=dtype, domain=domain, special=special)
    if layout is None:
        return values.map(lambda a: tensor(a, device=place))
    if place.kind != "cpu":
        raise ValueError(f"tensors: a memory layout can be chosen on the CPU only, not on {place}; leave layout out")
    ways = layout if isinstance(layout, st.SearchStrategy) else st.just(layout)
    return st.tuples(values, ways).map(lambda pair: Tensor._wrap(pair[1](pair[0]), place))
