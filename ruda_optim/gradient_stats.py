"""Statistics over all gradients of a model at once: is every number finite, and what is their Euclidean norm?

Gradients are only read. An array of n numbers (a large gradient, or several small ones end to end) is cut into at most
1024 rows, each row gives a triple [bad, magnitude, squares], and triples are merged until one is left: the report, 12
bytes of float32 and the only thing that comes to the host. `magnitude` is the largest |g| and `squares` the sum of
(g / magnitude)^2, so that the norm, magnitude sqrt(squares), neither overflows nor underflows; LAPACK's `lassq` keeps
its sums of squares this way.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_nn import Module
from ruda_nn.config import is_whole
from ruda_tensor.backend import to_host
from ruda_tensor.dtypes import FLOAT32, FLOAT64
from ruda_tensor.kernels import optimizer as kernels
from ruda_tensor.ops._parallel import each_block
from ruda_tensor.tensor import Tensor

from .buckets import LARGEST
from .clipping import total_norm
from .gradients import GradientsParams

FAN_IN = 1024  # triples that one step of a hierarchical merge brings together
MOST_ROWS = 1024  # of one array
LEAST_NUMBERS = 32  # in one row
TRIPLE_BYTES = 12
SMALL = {"cpu": 64 * 1024, "cuda": 4 * 1024 * 1024}  # up to here a copy costs less than the dozen calls that it saves


@dataclass(frozen=True)
class StatisticsPlan:
    """The stages of a hierarchical merge before the last one: how many triples each leaves, and their memory.

    >>> statistics_plan(1025)
    StatisticsPlan(stages=(2,), scratch_bytes=24)
    """

    stages: tuple[int, ...]
    scratch_bytes: int


def statistics_plan(rows: int) -> StatisticsPlan:
    """Return how that many triples are merged, 1024 at a time: while there are more, a stage leaves a 1024th of them.

    Errors: ValueError where `rows` is no integer >= 0.

    >>> [len(statistics_plan(rows).stages) for rows in (1024, 1025, 4_194_304)], statistics_plan(4_194_304).scratch_bytes
    ([0, 1, 2], 49200)
    """
    if not is_whole(rows) or rows < 0:
        raise ValueError(f"statistics_plan: rows={rows!r} is not allowed; give an integer >= 0: statistics_plan(1025)")
    stages = []
    while rows > FAN_IN:
        rows = -(-rows // FAN_IN)
        stages.append(rows)
    return StatisticsPlan(tuple(stages), TRIPLE_BYTES * sum(stages))


@dataclass(frozen=True)
class GradientStats:
    """What a report says: `all_finite`, and the norm of all gradients (None where it was not asked for or is none).

    >>> GradientStats(True, 5.0).norm
    5.0
    """

    all_finite: bool
    norm: float | None

    def clip(self, max_norm: float | None, epsilon: float = 1e-6) -> float:
        """Return min(1, max_norm / (norm + epsilon)) rounded to float32, or 1 where nothing is to be clipped."""
        if max_norm is None or self.norm is None or self.norm + epsilon <= max_norm:
            return 1.0
        return float(np.float32(max_norm / (self.norm + epsilon)))


def gradient_report(
    xp: Any, gradients: Sequence[Any], inverse_scale: float = 1.0, *, norm: bool = True, hierarchical: bool = False
) -> Any:
    """Return [bad, magnitude, squares] of arrays on one device as a float32 array there; nothing is brought to the host.

    Numbers are brought to float32 and multiplied by `inverse_scale` before anything is asked of them; bad is 1 where
    one of them is not finite then. `norm=False` leaves squares out, and is cheaper. `hierarchical` changes the
    order in which the squares are added, and nothing else; on a GPU the kernels, which add them as they do, need no order
    and no copy.

    >>> import numpy as np
    >>> gradient_report(np, [np.array([3.0], "f"), np.array([4.0, 0.0], "f")]).tolist()
    [0.0, 4.0, 1.5625]
    """
    if math.frexp(inverse_scale)[0] == 0.5:  # a power of two: the kernel divides by its reciprocal, which is exact
        report = kernels.gradient_report(xp, gradients, 1.0 / inverse_scale)
        if report is not None:
            return report
    with np.errstate(all="ignore"):
        parts = [_triples(xp, g, inverse_scale, norm) for g in _gathered(xp, gradients)]
        if not parts:
            return xp.zeros(3, FLOAT32)
        triples = xp.concatenate(parts, axis=1)
        for outputs in statistics_plan(triples.shape[1]).stages if hierarchical else ():
            padded = xp.zeros((3, outputs * FAN_IN), FLOAT32)
            padded[:, : triples.shape[1]] = triples
            triples = _merge(xp, padded.reshape(3, outputs, FAN_IN))
        return _merge(xp, triples)


def measure(
    gradients: Iterable[Tensor], inverse_scale: float = 1.0, *, norm: bool = True, hierarchical: bool = False
) -> GradientStats:
    """Return the statistics of several gradients together; one report of each device comes to the host.

    Gradients in float64 are measured in float64, by their norm: what float32 cannot hold is finite there.

    >>> import ruda_tensor as rt
    >>> measure([rt.tensor([3.0], device=rt.Cpu()), rt.tensor([4.0], device=rt.Cpu())])
    GradientStats(all_finite=True, norm=5.0)
    """
    places: dict[Any, list[Any]] = {}
    wide: list[Tensor] = []
    for g in gradients:
        if g.dtype == FLOAT64:
            wide.append(g)
        else:
            places.setdefault(g.device, []).append(g._data)
    reports = []
    for device, arrays in places.items():
        with device.guard():
            reports.append(gradient_report(device.xp, arrays, inverse_scale, norm=norm, hierarchical=hierarchical))
    found = [read_report(report, norm=norm) for report in reports]
    if wide:
        length = float(to_host(total_norm(wide))) * inverse_scale
        found.append(GradientStats(math.isfinite(length), length if math.isfinite(length) else None))
    finite = all(stats.all_finite for stats in found)
    return GradientStats(finite, math.hypot(*[stats.norm or 0.0 for stats in found]) if norm and finite else None)


def scaled_gradients(gradients: GradientsParams, model: Module, *factors: float) -> GradientsParams:
    """Return the gradients of the model's parameters times each factor in turn, in float32 (float64 stays).

    Factors of 1 are left out, and with no others the gradients come back as they are.
    """
    factors = tuple(f for f in factors if f != 1.0)
    if not factors:
        return gradients
    out = {}
    with np.errstate(all="ignore"):
        for p in model.params():
            if p in gradients:
                g = gradients[p]
                g = g if g.dtype == FLOAT64 else rt.astype(g, FLOAT32)
                for factor in factors:
                    g = g * factor
                out[p] = g
    return GradientsParams(out)


def rows_of(size: int) -> int:
    """Return how many triples an array of that many numbers gives."""
    return min(MOST_ROWS, max(1, -(-size // LEAST_NUMBERS)))


def _gathered(xp: Any, gradients: Sequence[Any]) -> Iterator[Any]:
    """Yield the gradients as flat arrays, small ones laid end to end."""
    kind = "cpu" if xp is np else "cuda"
    small: list[Any] = []
    for g in gradients:
        if g.size > SMALL[kind]:
            yield g.reshape(-1)
        elif g.size:
            small.append(g.reshape(-1))
    piece, size = [], 0
    for i, g in enumerate(small):
        piece.append(g)
        size += g.size
        if i + 1 == len(small) or size + small[i + 1].size > LARGEST[kind]:
            yield piece[0] if len(piece) == 1 else xp.concatenate([part.astype(FLOAT32, copy=False) for part in piece])
            piece, size = [], 0


def _triples(xp: Any, g: Any, inverse_scale: float, norm: bool) -> Any:
    """Return the triples of one flat array, [3, rows]: equal rows, and what is left over in the last."""
    rows = rows_of(g.size)
    length = -(-g.size // rows)
    out = xp.zeros((3, rows), FLOAT32)
    full = g.size // length

    def body(block: slice) -> None:
        _fill(xp, g[block.start * length : block.stop * length].reshape(-1, length), inverse_scale, norm, out[:, block])

    each_block(xp, full, 2 * length * FLOAT32.itemsize, body)
    if full * length < g.size:
        _fill(xp, g[full * length :].reshape(1, -1), inverse_scale, norm, out[:, full : full + 1])
    return out


def _fill(xp: Any, g: Any, inverse_scale: float, norm: bool, out: Any) -> None:
    """Write the triples of the rows of `g` into `out`, [3, rows]."""
    x = g.astype(FLOAT32, copy=False)
    if inverse_scale != 1.0:
        x = x * inverse_scale
    top = xp.maximum(xp.max(x, axis=1), -xp.min(x, axis=1))
    finite = xp.isfinite(top)  # NaN and inf both come through max and min
    out[0] = ~finite
    out[1] = xp.where(finite, top, FLOAT32.type(0.0))
    if norm:
        part = x / xp.where(top > 0, top, FLOAT32.type(1.0))[:, None]
        xp.multiply(part, part, out=part)
        out[2] = xp.where(finite, xp.sum(part, axis=1), FLOAT32.type(0.0))


def _merge(xp: Any, triples: Any) -> Any:
    """Return the triple of all numbers behind `triples` along the last axis."""
    bad, magnitude, squares = triples
    top = xp.max(magnitude, axis=-1)
    share = magnitude / xp.where(top > 0, top, FLOAT32.type(1.0))[..., None]
    return xp.stack([xp.max(bad, axis=-1), top, xp.sum(squares * share * share, axis=-1)])


def read_report(report: Any, *, norm: bool = True) -> GradientStats:
    """Return what a report says, after bringing its 12 bytes to the host and checking them.

    Errors: RuntimeError for a report that no gradients can have: `bad` neither 0 nor 1, a negative or non-finite
    number, or exactly one of magnitude and squares zero.

    >>> import numpy as np
    >>> read_report(np.array([0.0, 4.0, 1.5625], "f"))
    GradientStats(all_finite=True, norm=5.0)
    """
    bad, magnitude, squares = (float(x) for x in to_host(report))
    numbers = all(math.isfinite(x) and x >= 0.0 for x in (magnitude, squares))
    if bad not in (0.0, 1.0) or not numbers or (norm and (magnitude == 0.0) != (squares == 0.0)):
        raise RuntimeError(
            f"the statistics of the gradients cannot be right: bad={bad}, magnitude={magnitude}, squares={squares}; "
            "was a gradient written to during the step?"
        )
    finite = bad == 0.0
    return GradientStats(finite, magnitude * math.sqrt(squares) if norm and finite else None)
