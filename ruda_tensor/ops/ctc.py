"""Connectionist temporal classification: the probability of a labelling, summed over all its alignments with frames.

The labels a b become the states  - a - b -  with blanks between. A path stays in its state, goes to the next one, or
skips a blank between two different labels; its frames say the labels of its states. The recursions over time run in
float64 in every case: they add thousands of logarithms, and their arrays are small next to the network's.
"""
from __future__ import annotations

import math
from typing import Any

from ..dtypes import FLOAT64, INT64, INTEGER
from ..operation import Composite, call
from ..recording import capturing
from ..tensor import Tensor
from ._common import as_tensor, cast, floating
from ._numerics import share_forward, single
from ._picking import add_rows
from .arithmetic import add, divide, multiply, negative
from .compare import where
from .cross_entropy import check_reduction
from .index import take_along_axis
from .reduce import mean
from .reduce import sum as add_up
from .scan import shift
from .transcendental import logaddexp

__all__ = ["ctc_loss"]


class _States:
    """The states of each row: their labels [n, 2 s + 1], which may be reached by a skip, and how many there are."""

    def __init__(self, xp: Any, targets: Any, lengths: Any, blank: int) -> None:
        n, size = targets.shape
        inside = xp.arange(size) < lengths[:, None]
        self.labels = xp.full((n, 2 * size + 1), blank, INT64)
        self.labels[:, 1::2] = xp.where(inside, targets, blank)
        self.skips = xp.zeros(self.labels.shape, bool)
        self.skips[:, 3::2] = inside[:, 1:] & (targets[:, 1:] != targets[:, :-1])
        self.last = 2 * lengths  # the blank after the last label
        self.inside = xp.arange(2 * size + 1) <= self.last[:, None]
        self.rows = xp.arange(n)

    def emissions(self, xp: Any, log_probs: Any, frames: Any) -> Any:
        """The log-probability of each state's label in each frame, [t, n, states]; -inf after the last of either."""
        emit = log_probs[:, self.rows[:, None], self.labels].astype(FLOAT64)
        used = xp.arange(len(emit))[:, None, None] < frames[:, None]
        return xp.where(self.inside & used, emit, -math.inf)

    def ends(self, xp: Any, alpha: Any) -> tuple[Any, Any]:
        """The log-weights [n] of the two states in which a row may end: its last blank, and its last label if any."""
        label = xp.where(self.last > 0, alpha[self.rows, self.last - 1], -math.inf)
        return alpha[self.rows, self.last], label


def _forward(xp: Any, log_probs: Any, targets: Any, frames: Any, lengths: Any, *, blank: int) -> tuple:
    """alpha[t, s] = emit[t, s] + log(sum of exp alpha[t-1] over s, s-1 and, by a skip, s-2).

    Before the first frame all the weight is in state 0. Two columns of -inf in front stand for the states before it.
    """
    states = _States(xp, targets, lengths, blank)
    emit = states.emissions(xp, log_probs, frames)
    alphas = xp.full((len(emit) + 1, *emit.shape[1:-1], emit.shape[-1] + 2), -math.inf)
    alphas[0, :, 2] = 0.0
    for t in range(len(emit)):
        stay, step, skip = _into(xp, alphas[t], states.skips)
        top = xp.maximum(xp.maximum(stay, step), skip)
        top = xp.where(top == -math.inf, 0.0, top)
        alphas[t + 1, :, 2:] = emit[t] + top + xp.log(xp.exp(stay - top) + xp.exp(step - top) + xp.exp(skip - top))
    blank_end, label_end = states.ends(xp, alphas[frames, states.rows, 2:])
    top = xp.maximum(blank_end, label_end)
    top = xp.where(top == -math.inf, 0.0, top)
    total = top + xp.log(xp.exp(blank_end - top) + xp.exp(label_end - top))
    return (-total).astype(log_probs.dtype), alphas, total


def _into(xp: Any, alpha: Any, skips: Any) -> tuple[Any, Any, Any]:
    """The log-weights that come into each state: from itself, from the one before, and by a skip."""
    return alpha[:, 2:], alpha[:, 1:-1], xp.where(skips, alpha[:, :-2], -math.inf)


def _backward(
    xp: Any, g: Any, log_probs: Any, targets: Any, frames: Any, lengths: Any, alphas: Any, total: Any, *, needs: tuple,
    blank: int,
) -> tuple:  # fmt: skip
    """The derivative by a log-probability is minus the posterior probability of being in a state of its label.

    Posteriors run backwards: that of a state divides among the states before it by their shares in its alpha, which
    is alpha + beta - log Z of Graves' equations 12 to 15 without the cancellation.
    """
    states = _States(xp, targets, lengths, blank)
    emit = states.emissions(xp, log_probs, frames)
    end = xp.zeros(states.labels.shape, FLOAT64)
    blank_end, label_end = states.ends(xp, alphas[frames, states.rows, 2:])
    end[states.rows, states.last - 1] = share_forward(xp, label_end, total)
    end[states.rows, states.last] = share_forward(xp, blank_end, total)  # second: without labels, -1 is another state
    posterior, now = xp.zeros(emit.shape, FLOAT64), xp.zeros(end.shape, FLOAT64)
    for t in reversed(range(len(emit))):
        now = posterior[t] = now + xp.where((frames == t + 1)[:, None], end, 0.0)
        whole = alphas[t + 1, :, 2:]
        stay, step, skip = [
            now * share_forward(xp, part + emit[t], whole) for part in _into(xp, alphas[t], states.skips)
        ]
        now = stay
        now[:, :-1] += step[:, 1:]
        now[:, :-2] += skip[:, 2:]
    (steps, n, classes), width = log_probs.shape, states.labels.shape[1]
    index = (states.rows[:, None] * classes + states.labels).reshape(-1)
    rows = (-g[:, None] * posterior).reshape((steps, n * width)).T
    out = add_rows(xp, rows, index, xp.zeros((n * classes, steps), FLOAT64))
    return xp.ascontiguousarray(out.T.astype(log_probs.dtype)).reshape(log_probs.shape), None, None, None


def _expression(log_probs: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor, *, blank: int) -> Tensor:
    """The same sum over paths, in operations."""
    device, x = log_probs.device, cast(log_probs, FLOAT64)
    xp = device.xp
    with device.guard():
        states = _States(xp, targets._data, lengths._data, blank)
        start = xp.full(states.labels.shape, -math.inf)
        start[:, 0] = 0.0
        one, zero = states.last[:, None], xp.zeros((), FLOAT64)
        constants = (
            start, xp.where(states.skips, zero, -math.inf), states.labels[None], one, xp.maximum(one - 1, 0),
            xp.where(one > 0, zero, -math.inf), frames._data[:, None],
        )  # fmt: skip
        alpha, closed, labels, last, before, missing, frames = (Tensor._wrap(c, device) for c in constants)
    emit = take_along_axis(x, labels, axis=2)
    for t in range(x.shape[0]):
        sources = logaddexp(alpha, shift(alpha, 1, 1, -math.inf))
        sources = logaddexp(sources, add(shift(alpha, 1, 2, -math.inf), closed))
        alpha = where(frames > t, add(emit[t], sources), alpha)
    total = logaddexp(take_along_axis(alpha, last), add(take_along_axis(alpha, before), missing))[:, 0]
    impossible = total == -math.inf
    return cast(where(impossible, math.inf, negative(total)), log_probs.dtype)  # no gradient where there is no path


_ctc = Composite("ctc_loss", _expression, _forward, _backward, keeps="log_probs targets frames lengths", memory_bound=False)


def ctc_loss(
    log_probs: Tensor, targets: Any, /, input_lengths: Any = None, target_lengths: Any = None, *, blank: int = 0,
    zero_infinity: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Return -log of the probability of the target labels, summed over all their alignments with the frames.

    `log_probs` [t, n, classes] are log-probabilities (`rt.log_softmax` over the classes) with time first, `targets`
    [n, s] class ids padded with anything. Row i has `input_lengths[i]` frames and `target_lengths[i]` labels (all, if
    None). An alignment says one label or `blank` per frame; dropping repeats and then blanks leaves the target.

    "mean" divides each loss by its number of labels (at least 1) and averages over the rows. Where the frames are too
    few for the labels (repeated ones need a blank between) the loss is inf, or 0 with `zero_infinity`; its gradient is
    0. The gradient by `log_probs` is minus the posterior of each class in each frame; through log_softmax it becomes
    softmax minus posterior. The sums over paths are formed in float64; the result has the dtype of `log_probs`.

    Errors: ValueError for shapes and lengths that do not belong together, IndexError for a target that is no class or
    is the blank, TypeError for targets or lengths that are not integers (reading them waits for a GPU; in a captured step
    nothing can wait, and the loss and gradient of a row with such targets or lengths are NaN).

    Source: Graves et al., Connectionist Temporal Classification (2006).

    >>> import ruda_tensor as rt
    >>> log_probs = rt.log(rt.full((3, 1, 2), 0.5, device=rt.Cpu()))
    >>> rt.ctc_loss(log_probs, [[1]], reduction="none").exp().numpy()  # 6 of the 8 paths read "1"
    array([1.3333334], dtype=float32)
    """
    log_probs = floating(log_probs, "ctc_loss")
    check_reduction(reduction, "ctc_loss")
    targets, frames, lengths, wrong = _checked(log_probs, targets, input_lengths, target_lengths, blank)
    losses = call(_ctc, (single(log_probs), targets, frames, lengths), {"blank": int(blank)})
    if wrong is not None:
        losses = multiply(losses, cast(where(wrong, math.nan, 1.0), losses.dtype))  # the gradient is NaN too
    if zero_infinity:
        losses = where(losses == math.inf, 0.0, losses)
    if reduction == "mean":
        losses = mean(divide(losses, cast(where(lengths > 1, lengths, 1), losses.dtype)))
    elif reduction == "sum":
        losses = add_up(losses)
    return cast(losses, log_probs.dtype)


def _checked(
    log_probs: Tensor, targets: Any, frames: Any, lengths: Any, blank: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The targets and both lengths as int64, after checking shapes, dtypes, ranges and ids.

    In a captured step, where nobody can look at them, also which rows are wrong; what is wrong there is replaced.
    """
    targets = _integers(targets, log_probs, "targets")
    if log_probs.ndim != 3 or targets.ndim != 2 or targets.shape[0] != log_probs.shape[1]:
        raise ValueError(
            f"ctc_loss: log_probs must be [frames, rows, classes] and targets [rows, labels], got {log_probs.shape} and "
            f"{targets.shape}; for rows first: rt.ctc_loss(rt.permute_dims(log_probs, (1, 0, 2)), targets)"
        )
    (most, n, classes), size = log_probs.shape, targets.shape[1]
    if isinstance(blank, bool) or not hasattr(blank, "__index__") or not 0 <= blank < classes:
        raise ValueError(f"ctc_loss: blank must be one of the classes 0 to {classes - 1}, got {blank!r}")
    frames, outside = _lengths(frames, n, most, log_probs, "input_lengths")
    lengths, beyond = _lengths(lengths, n, size, log_probs, "target_lengths")
    device = log_probs.device
    with device.guard():
        xp, ids = device.xp, targets._data
        wrong = ((ids < 0) | (ids >= classes) | (ids == blank)) & (xp.arange(size) < lengths._data[:, None])
        if device.launches and capturing():
            any_wrong = xp.any(wrong, axis=1) | outside | beyond
            return Tensor._wrap(xp.where(wrong, blank, ids), device), frames, lengths, Tensor._wrap(any_wrong, device)
        if wrong.any():
            raise IndexError(
                f"ctc_loss: the target {int(ids[wrong][0])} is no label: labels are 0 to {classes - 1} without the blank "
                f"{int(blank)}; what is padding is said by target_lengths"
            )
    return targets, frames, lengths, None


def _integers(values: Any, like: Tensor, name: str) -> Tensor:
    values = as_tensor(values, like, f"ctc_loss: {name}")
    if values.dtype not in INTEGER and values.size:
        raise TypeError(f"ctc_loss: {name} must be integers, got {values.dtype}; convert them: x.astype(rt.int64)")
    return cast(values, INT64)


def _lengths(values: Any, n: int, most: int, like: Tensor, name: str) -> tuple[Tensor, Any]:
    """The lengths of n rows, each from 0 to `most`, which is what None means; and in a captured step which are not."""
    device, xp = like.device, like.device.xp
    with device.guard():
        if values is None:
            return Tensor._wrap(xp.full((n,), most, INT64), device), xp.zeros((n,), bool)
        lengths = _integers(values, like, name)
        if lengths.shape != (n,):
            raise ValueError(f"ctc_loss: {name} must have the shape ({n},), one for each row, got {lengths.shape}")
        outside = (lengths._data < 0) | (lengths._data > most)
        if device.launches and capturing():
            return Tensor._wrap(xp.where(outside, most, lengths._data), device), outside
        if outside.any():
            raise ValueError(f"ctc_loss: {name} must be from 0 to {most}, got {int(lengths._data[outside][0])}")
    return lengths, None
