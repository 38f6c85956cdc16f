"""Sgd, Adam and AdamW on a GPU: one launch updates all parameters of a group, with the bits of the rule.

The kernel reads gradients and writes parameters where they lie, so nothing is gathered in buckets. It unscales, clips
the global norm and keeps float32 masters on the way. Clipping of another kind is done to each gradient before; what the
kernel does not know (another rule, numbers beyond float32) is left to the rule itself.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ruda_nn import Param
from ruda_tensor.dtypes import FLOAT32, FLOAT64, HALF
from ruda_tensor.kernels.gate import real_of
from ruda_tensor.kernels.optimizer import (
    Entry,
    Numbers,
    Shape,
    adam_numbers,
    fits,
    gradient_report,
    sgd_numbers,
    takes,
    update,
)
from ruda_tensor.live import now
from ruda_tensor.recording import FINE, GONE, SHARED, CaptureError, SharedWhileCapturing, recording
from ruda_tensor.tensor import Tensor

from .buckets import is_alone, own_array, own_arrays, states_are_alone
from .rates import check_lr
from .rules import Adam, AdamW, Rule, Sgd

_LARGEST = float(np.finfo(np.float32).max)


class Parts(NamedTuple):
    """How a rule comes apart for the kernel.

    `rule` is the one inside, with its state under the name `inner` (None: the state itself) beside the float32 master
    under the name `master`, where there is one. Gradients are divided by `unscale` and then multiplied by `scale`; or,
    where both are 1, clipped one by one by `clip`.
    """

    rule: Any
    inner: str | None = None
    master: str | None = None
    unscale: float = 1.0
    scale: float = 1.0
    clip: Any = None


def parts_of(rule: Any) -> Parts | None:
    """Return the parts of a rule that the kernel computes, else None.

    >>> from ruda_optim import AdamWConfig, AdanConfig
    >>> parts_of(AdamWConfig().build()).rule, parts_of(AdanConfig().build())
    (AdamW, None)
    """
    if type(rule) in (Sgd, Adam, AdamW):
        return Parts(rule, clip=each_clipping(rule))
    parts = getattr(rule, "parts", None)
    return None if parts is None else parts()


def each_clipping(rule: Any) -> Any:
    """Return how gradients are clipped one by one, or None: the optimizer sees to their global norm."""
    return None if rule.clipping is None or rule.clipping.kind == "global_norm" else rule.clipping


def unscaled(inverse: float, clip: float) -> tuple[float, float] | None:
    """Return (unscale, scale) that give the bits of multiplying by two factors in turn, where there are such.

    >>> unscaled(0.25, 0.5), unscaled(0.3, 1.0), unscaled(0.3, 0.5)
    ((4.0, 0.5), (1.0, 0.3), None)
    """
    if math.frexp(inverse)[0] == 0.5:  # a power of two: dividing by its reciprocal is exact
        return 1.0 / inverse, clip
    return (1.0, inverse) if clip == 1.0 else None


def shape_of(rule: Any) -> Shape:
    """Return which update a rule is."""
    c = rule.config
    if isinstance(rule, Sgd):
        return Shape("sgd", bool(c.weight_decay), bool(c.momentum), bool(c.nesterov and c.momentum))
    if isinstance(rule, AdamW):
        return Shape("adamw", amsgrad=bool(c.amsgrad), cautious=bool(c.cautious_weight_decay))
    return Shape("adam", bool(c.weight_decay), amsgrad=bool(c.amsgrad))


def numbers_of(rule: Any, lr: float, time: int, unscale: float = 1.0) -> Numbers | None:
    """Return the numbers of update `time`, or None where float32 does not hold them."""
    c = rule.config
    if isinstance(rule, Sgd):
        numbers = sgd_numbers(lr, time, c.momentum, c.dampening, c.weight_decay, unscale)
    else:
        numbers = adam_numbers(lr, time, c.betas, c.eps, c.weight_decay, rule.decoupled, unscale)
    return numbers if all(abs(x) <= _LARGEST for x in numbers) else None


def first_state(rule: Any, xp: Any, p: Any) -> dict[str, Any]:
    """Return the first state of a parameter: a bare rule computes in float32, a wrapper looks at what is stored."""
    return rule.start(xp, p.astype(FLOAT32) if p.dtype in HALF and isinstance(rule, Rule) else p)


def update_together(
    optimizer: Any, lr: float, params: dict[str, Param], chosen: dict[str, Tensor], extra: dict[Any, tuple]
) -> dict[str, Param]:
    """Update what the kernel takes, and return id -> new parameter of those.

    `extra` has what clipping the global norm multiplies gradients by, as a 0-d array on each device.
    """
    grouping, parts, batches = optimizer._grouping, {}, {}
    current = recording()
    for key, p in params.items():
        number, device, stored, g = grouping.of(key), p.device, p._data.dtype, chosen[key]._data
        kind = number, id(device), stored, g.dtype
        if kind not in parts:
            readable = device.launches and takes(device.xp, stored, g.dtype)
            parts[kind] = parts_of(grouping.rules[number]) if readable else None
        part = parts[kind]
        if part is None:
            continue
        with device.entered():
            real, state = real_of(stored), _state(optimizer, p)
            inner = state if part.inner is None else state[part.inner]
            kind = number, id(device), inner["time"], real
            if kind not in batches:
                numbers = numbers_of(part.rule, now(lr * grouping.scales[number]), inner["time"] + 1, part.unscale)
                batches[kind] = part, device, numbers, []
            _, _, numbers, members = batches[kind]
            if numbers is None:
                continue
            if part.clip is not None:
                g = device.xp.asarray(part.clip.clip(device.xp, g.astype(real, copy=False)))
            g = g if g.flags.c_contiguous else device.xp.ascontiguousarray(g)
            inner, entry = _entry(part, p, g, state)
            if not fits(entry, real):
                del entry  # which holds the arrays
                optimizer._follow(p)  # it may have been computed in another dtype before
                inner, entry = _entry(part, p, g, optimizer.states[key])
                if not fits(entry, real):
                    continue
            members.append((p, inner, entry))
    new: dict[str, Param] = {}
    for (number, _, _, real), (part, device, numbers, members) in batches.items():
        if not members:
            continue
        counters = [inner for _, inner, _ in members]
        scale = extra[device][0] if device in extra else part.scale
        with device.entered():
            place = None
            if current is None:
                count(counters, 1)
            else:
                place = live_numbers(current, part, lr, grouping.scales[number], counters, real)
            entries = [entry for _, _, entry in members]
            update(device.xp, shape_of(part.rule), numbers, entries, scale=scale, device_numbers=place)
        for p, _, entry in members:
            new[p.id] = p.successor(entry.p)
    if current is not None:
        current.watched.append(watcher(optimizer, new))
    return new


def _entry(part: Parts, p: Param, g: Any, state: dict[str, Any]) -> tuple[dict[str, Any], Entry]:
    """Return the inner rule's state, and what the kernel updates, in memory that nobody else sees."""
    inner = state if part.inner is None else state[part.inner]
    master = own_arrays(state, (part.master,))[0] if part.master in state else None
    return inner, Entry(own_array(p), g, master, own_arrays(inner, part.rule.arrays))


def count(counters: list[dict[str, Any]], step: int) -> None:
    """Count an update of the parameters with these states, or take one back."""
    for counter in counters:
        counter["time"] += step


def live_numbers(
    current: Any, part: Parts, lr: Any, scale: float, counters: list[dict[str, Any]], real: np.dtype
) -> Any:
    """Return device memory that holds the numbers of each replay's update, which is counted first.

    A learning rate that an eager step refuses is refused there as well.
    """
    current.tick(lambda: count(counters, 1), lambda: count(counters, -1))

    def values() -> tuple:
        numbers = numbers_of(part.rule, check_lr(now(lr)) * scale, counters[0]["time"], part.unscale)
        if numbers is None:
            raise OverflowError(f"step: the numbers of update {counters[0]['time']} are beyond float32; run it eagerly")
        return numbers.rate, numbers.floor, numbers.shrink, numbers.decay, numbers.keep, numbers.unscale

    return current.slot("6d" if real == FLOAT64 else "6f", values)


def check_capture(optimizer: Any, lr: float, places: list[Param], chosen: dict[str, Tensor]) -> None:
    """Refuse, before anything is changed, an update that a recording cannot hold."""
    grouping = optimizer._grouping
    for p in places:
        if not p.trainable or p.id not in chosen:
            continue
        number = grouping.of(p.id)
        rule = grouping.rules[number]
        part = parts_of(rule)
        if part is None or not takes(p.device.xp, p.dtype, chosen[p.id].dtype):
            raise CaptureError(
                f"step: the update by {rule!r} cannot be part of a captured step, which would freeze its numbers; Sgd, Adam and "
                "AdamW can, also inside Fp32MasterOptimizer, with use_fused(True)"
            )
        if p.id not in optimizer.states or p.id in optimizer._places:
            raise CaptureError(
                "step: a parameter is updated for the first time in a captured step, and its state would be made anew at every "
                "replay; run the step once before: graph.run_eager(...)"
            )
        state = optimizer.states[p.id]
        _check_numbers(part, lr * grouping.scales[number], p, state)
        if not is_alone(p) or not states_are_alone(state):
            raise SharedWhileCapturing("step: somebody else sees a parameter's memory, or its state's, which is changed in place")


def _check_numbers(part: Parts, rate: float, p: Param, state: dict[str, Any]) -> None:
    """Refuse what the kernel leaves to the rule."""
    inner, real = state if part.inner is None else state[part.inner], real_of(p.dtype)
    if numbers_of(part.rule, rate, inner["time"] + 1, part.unscale) is None:
        raise CaptureError(f"step: the numbers of update {inner['time'] + 1} are beyond float32; run it eagerly")
    if any(inner[name].dtype != real for name in part.rule.arrays):
        raise CaptureError(
            f"step: the states of a parameter are of another dtype than it is computed in now, {real}; run the step once "
            "before: graph.run_eager(...)"
        )


def undo_consuming(current: Any, places: list[Param], new: dict[str, Param]) -> None:
    """Let a capture that fails give the parameters that it consumes their memory back."""
    pairs = [(p, new[p.id]) for p in places if p.id in new and not p.is_consumed()]

    def undo() -> None:
        for old, successor in pairs:
            old.take_back(successor)

    current.undo.append(undo)


def watcher(optimizer: Any, new: dict[str, Param]) -> Callable[[], int]:
    """Return what looks whether a recorded update still changes the parameters and states that its caller has."""
    places = [(p.place(), key, optimizer.states[key]) for key, p in new.items()]

    def look() -> int:
        found, states = FINE, optimizer.states
        for place, key, state in places:
            p = place.owner()
            if p is None or p.is_consumed() or states.get(key) is not state:
                return GONE
            if not is_alone(p):
                found = SHARED
        return found

    return look


def norm_together(gradients: list[Tensor]) -> Any:
    """Return the norm of all gradients, 0-d in float64 on their device, NaN where a number is not finite; None without kernels.

    The squares are added in float32, so the norm is right to about 1e-6. Nothing waits.
    """
    device = gradients[0].device
    if not device.launches or any(g.device != device for g in gradients):
        return None
    with device.guard():
        xp = device.xp
        report = gradient_report(xp, [g._data for g in gradients])
        if report is None:
            return None
        bad, magnitude, squares = report.astype(FLOAT64)
        return xp.asarray(xp.where(bad == 0.0, magnitude * xp.sqrt(squares), math.nan))


def _state(optimizer: Any, p: Param) -> dict[str, Any]:
    """Return the state of a parameter, in memory of its own; a new one before the first update."""
    key, states = p.id, optimizer.states
    if key in optimizer._places:
        optimizer._dissolve(optimizer._places[key][0])
    if key not in states:
        states[key] = first_state(optimizer._grouping.rules[optimizer._grouping.of(key)], p.device.xp, p._data)
    return states[key]
