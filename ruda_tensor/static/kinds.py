"""The kinds of nodes that a plan may have: what each takes, the shape it gives, and the operation that it is."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..operation import Primitive, apply
from ..ops import activation, arithmetic, softmax, transcendental
from ..ops._common import cast
from ..ops._numerics import single
from ..ops.compare import clip
from ..ops.gated import silu_mul
from ..ops.matmul import matmul
from ..ops.norm import rms_norm
from ..ops.reduce import mean
from ..ops.reduce import sum as sum_
from ..tensor import Tensor
from . import slopes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class GraphOp:
    """One node of a plan: `output` is the result of `kind` for the tensors named `left` and, where it takes two, `right`.

    It is plain data; `StaticGraph` checks it. What `scalar` means depends on the kind, and where a kind has none it must
    be +0.0. x is `left`, y is `right`, s is `scalar`:

    - of x: `copy relu exp log sqrt rsqrt sigmoid silu tanh sin cos abs sign floor ceil trunc reciprocal log1p sinh cosh
      asinh acosh atanh hardsigmoid hardswish neg`
    - of x and s: `add_scalar mul_scalar div_scalar`
    - of x and y of one shape: `add` (x + s y: 0.0 leaves y out, see `GraphOp.add`), `mul`, `div`, `silu_mul` (silu(x) y),
      and with x an incoming gradient `silu_backward` (y is what silu was of), `sigmoid_backward`, `tanh_backward` (y is
      the result)
    - products: `mm` of two matrices, `bmm` of two batches of matrices
    - along the axis s: `softmax log_softmax`, and `softmax_backward log_softmax_backward` of a gradient x and a result y
    - over the axes whose bits are set in s (1 for axis 0, 2 for axis 1, 3 for both): `sum_keepdim mean_keepdim`
    - `rms_norm` over the last axis, with s for eps and perhaps y for the weight

    >>> GraphOp.add("z", "x", "y")
    GraphOp(kind='add', output='z', left='x', right='y', scalar=1.0)
    """

    kind: str
    output: str
    left: str
    right: str | None = None
    scalar: float = 0.0

    @staticmethod
    def copy(output: str, left: str) -> GraphOp:
        """output = left, in memory of its own."""
        return GraphOp("copy", output, left)

    @staticmethod
    def add(output: str, left: str, right: str, alpha: float = 1.0) -> GraphOp:
        """output = left + alpha right."""
        return GraphOp("add", output, left, right, alpha)

    @staticmethod
    def mul(output: str, left: str, right: str) -> GraphOp:
        """output = left right, elementwise."""
        return GraphOp("mul", output, left, right)

    @staticmethod
    def silu(output: str, left: str) -> GraphOp:
        """output = left sigmoid(left)."""
        return GraphOp("silu", output, left)

    @staticmethod
    def silu_mul(output: str, left: str, right: str) -> GraphOp:
        """output = silu(left) right, with silu(left) rounded to the dtype first."""
        return GraphOp("silu_mul", output, left, right)

    @staticmethod
    def rms_norm(output: str, left: str, weight: str | None = None, eps: float = 1e-5) -> GraphOp:
        """output = left / sqrt(mean(left^2) + eps) weight, over the last axis."""
        return GraphOp("rms_norm", output, left, weight, eps)


class Kind(NamedTuple):
    """`right`: whether a second input is needed (None: allowed). `scalar`: "", "number", "eps", "axis" or "mask".

    `shape(x, y, s)` gives the result's shape or raises ValueError; `run(x, y, s)` is the operation, on tensors that may
    be tracked.
    """

    right: bool | None
    scalar: str
    shape: Callable[[Shape, Shape, Any], Shape]
    run: Callable[[Tensor, Any, Any], Tensor]


def scalar_of(kind: Kind, value: Any, rank: int) -> Any:
    """The scalar of a node as the operation takes it: a float32 number, an axis, or axes. Errors: ValueError, TypeError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"scalar must be a number, got {value!r}; write scalar=1.0")
    with np.errstate(over="ignore"):
        number = float(np.float32(value)) if abs(value) < 1e300 else math.inf
    if not math.isfinite(number):
        raise ValueError(f"scalar must be finite in float32, got {value!r}; write scalar=1.0")
    negative_zero = number == 0 and math.copysign(1.0, value) < 0
    if not kind.scalar and (number != 0 or value != 0 or negative_zero):
        raise ValueError(f"this kind has no scalar, so it must be +0.0, got {value!r}; leave it out")
    if kind.scalar == "eps" and not number > 0:
        raise ValueError(f"scalar is eps, which must be above 0 in float32, got {value!r}; write scalar=1e-5")
    if kind.scalar == "axis":
        if negative_zero or number != value or number not in range(rank):
            raise ValueError(f"scalar is an axis from 0 to {rank - 1}, got {value!r}; for the last write scalar={rank - 1}.0")
        return int(number)
    if kind.scalar == "mask":
        if number != value or number not in range(1, 1 << rank):
            raise ValueError(
                f"scalar is a bit mask of axes from 1 to {(1 << rank) - 1}, got {value!r}; "
                f"for the last axis write scalar={1 << (rank - 1)}.0"
            )
        return tuple(i for i in range(rank) if int(number) >> i & 1)
    return number


def _same(x: Shape, y: Shape, s: Any) -> Shape:
    return x


def _alike(x: Shape, y: Shape, s: Any) -> Shape:
    if x != y:
        raise ValueError(f"left has shape {x} and right {y}; nothing broadcasts in a plan, so give both the shape {x}")
    return x


def _mm(x: Shape, y: Shape, s: Any) -> Shape:
    if len(x) != 2 or len(y) != 2 or x[1] != y[0]:
        raise ValueError(f"mm takes shapes (m, k) and (k, n), got {x} and {y}; for batches use kind 'bmm'")
    return x[0], y[1]


def _bmm(x: Shape, y: Shape, s: Any) -> Shape:
    if len(x) != 3 or len(y) != 3 or x[0] != y[0] or x[2] != y[1]:
        raise ValueError(f"bmm takes shapes (b, m, k) and (b, k, n), got {x} and {y}; for two matrices use kind 'mm'")
    return x[0], x[1], y[2]


def _normed(x: Shape, y: Shape | None, s: Any) -> Shape:
    if y is not None and y != x[-1:]:
        raise ValueError(f"the weight of rms_norm has the last size of left, which is {x[-1:]}, got {y}")
    return x


def _reduced(x: Shape, y: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(1 if i in axes else n for i, n in enumerate(x))


_copy = Primitive("copy", lambda xp, x: x.copy(), half="storage", dx=lambda g: g)


def _add(x: Tensor, y: Tensor, alpha: float) -> Tensor:
    if alpha == 1.0:
        return arithmetic.add(x, y)
    return cast(arithmetic.add(single(x), arithmetic.multiply(single(y), alpha)), x.dtype)


def _hardsigmoid(x: Tensor) -> Tensor:
    return cast(clip(single(x) * (1.0 / 6.0) + 0.5, 0.0, 1.0), x.dtype)


def _hardswish(x: Tensor) -> Tensor:
    wide = single(x)
    return cast(wide * (clip(wide + 3.0, 0.0, 6.0) / 6.0), x.dtype)


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "copy": lambda x: apply(_copy, (x,)),
    **{name: getattr(activation, name) for name in ("relu", "sigmoid", "silu")},
    **{name: getattr(arithmetic, name) for name in ("abs", "sign", "floor", "ceil", "trunc", "reciprocal")},
    **{
        name: getattr(transcendental, name)
        for name in "exp log sqrt rsqrt tanh sin cos log1p sinh cosh asinh acosh atanh".split()
    },
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "neg": arithmetic.negative,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": arithmetic.multiply,
    "div": arithmetic.divide,
    "silu_mul": silu_mul,
    "silu_backward": slopes.silu_backward,
    "sigmoid_backward": slopes.sigmoid_backward,
    "tanh_backward": slopes.tanh_backward,
}
_SCALAR: dict[str, Callable[[Tensor, float], Tensor]] = {
    "add_scalar": arithmetic.add,
    "mul_scalar": arithmetic.multiply,
    "div_scalar": arithmetic.divide,
}
_ALONG: dict[str, Callable[..., Tensor]] = {"softmax": softmax.softmax, "log_softmax": softmax.log_softmax}
_ALONG_BACKWARD: dict[str, Callable[..., Tensor]] = {
    "softmax_backward": slopes.softmax_backward, "log_softmax_backward": slopes.log_softmax_backward,
}  # fmt: skip
_OVER: dict[str, Callable[..., Tensor]] = {"sum_keepdim": sum_, "mean_keepdim": mean}

KINDS: dict[str, Kind] = {
    **{name: Kind(False, "", _same, lambda x, y, s, f=f: f(x)) for name, f in _UNARY.items()},
    **{name: Kind(True, "", _alike, lambda x, y, s, f=f: f(x, y)) for name, f in _BINARY.items()},
    **{name: Kind(False, "number", _same, lambda x, y, s, f=f: f(x, s)) for name, f in _SCALAR.items()},
    **{name: Kind(False, "axis", _same, lambda x, y, s, f=f: f(x, axis=s)) for name, f in _ALONG.items()},
    **{name: Kind(True, "axis", _alike, lambda x, y, s, f=f: f(x, y, s)) for name, f in _ALONG_BACKWARD.items()},
    **{name: Kind(False, "mask", _reduced, lambda x, y, s, f=f: f(x, axis=s, keepdims=True)) for name, f in _OVER.items()},
    "add": Kind(True, "number", _alike, _add),
    "mm": Kind(True, "", _mm, lambda x, y, s: matmul(x, y)),
    "bmm": Kind(True, "", _bmm, lambda x, y, s: matmul(x, y)),
    "rms_norm": Kind(None, "eps", _normed, lambda x, y, s: rms_norm(x, y, eps=s)),
}
