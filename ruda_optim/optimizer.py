"""The optimizer: one shell that walks parameters and applies a rule to each."""
from __future__ import annotations

import math
import sys
from typing import Any

from ruda_nn import Module, Param
from ruda_tensor.backend import to_host

from .gradients import GradientsParams


class _Holder:
    __slots__ = ("_data",)


def _references(p: Any) -> int:
    return sys.getrefcount(p._data)


def _measure() -> int:
    holder = _Holder()
    holder._data = object()
    return _references(holder)


_ALONE = _measure()  # what sys.getrefcount says of an array that only its parameter holds, on this interpreter


def own_array(p: Param) -> Any:
    """Return the parameter's array if nobody else can see it, else a copy: what a tape or a valid() model holds stays."""
    alone = _references(p) <= _ALONE and p._data.flags.c_contiguous and getattr(p._data, "base", None) is None
    return p._data if alone else p._data.copy(order="C")


class Optimizer:
    """Applies a rule to every trained parameter that has a gradient; keeps one state per parameter id.

    `step` returns the new model and consumes the old one, whose memory it reuses. Tied parameters are updated once.
    A frozen parameter, or one without a gradient, keeps its value and its state: no decay, no counting.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> from ruda_optim import SgdConfig
    >>> model, optimizer = LinearConfig(2, 1).init(Autodiff(rt.Cpu())), SgdConfig().init()
    >>> loss = model(rt.ones((4, 2), device=rt.Cpu())).square().mean()
    >>> model = optimizer.step(0.1, model, GradientsParams.from_grads(loss.backward(), model))
    """

    def __init__(self, rule: Any) -> None:
        self.rule = rule
        self.states: dict[str, dict[str, Any]] = {}

    def step(self, lr: float, model: Module, gradients: GradientsParams) -> Any:
        """Return the updated model.

        Errors: ValueError for a learning rate that is negative or not finite, or a gradient of another shape, and
        ValueError for one on another device; nothing is changed then.
        """
        lr = check_lr(lr)
        if not isinstance(gradients, GradientsParams):
            raise TypeError(
                f"step: expected GradientsParams, got {type(gradients).__name__}; "
                "GradientsParams.from_grads(loss.backward(), model)"
            )
        chosen = {p.id: gradients.get(p) for p in model.params() if p.trainable and p in gradients}
        for p in model.params():
            g = chosen.get(p.id)
            if g is not None and (g.shape != p.shape or g.device != p.device):
                raise ValueError(f"step: the gradient is {g.shape} on {g.device}, and its parameter {p.shape} on {p.device}")
        new: dict[str, Param] = {}

        def updated(p: Param) -> Param:
            if not p.trainable or p.id not in chosen:
                return p
            if p.id not in new:
                new[p.id] = self._update(lr, p, chosen[p.id])
            return new[p.id]

        out = model.map(updated)
        for _, p in model.named_params():
            if p.trainable and p.id in new and p is not new[p.id]:
                p.consume()
        return out

    def _update(self, lr: float, p: Param, g: Any) -> Param:
        array = own_array(p)
        with p.device.guard():
            array, self.states[p.id] = self.rule.step(p.device.xp, lr, array, g._data, self.states.get(p.id))
        return p.like(array)

    def to_record(self) -> dict[str, Any]:
        """Return the configuration and a host copy of every state, as plain data."""
        states = {key: _map_state(state, lambda a: to_host(a).copy()) for key, state in self.states.items()}
        return {"config": self.rule.describe(), "states": states}

    def load_record(self, record: dict[str, Any], model: Module) -> None:
        """Take the states of a record, placed beside the parameters of `model`; a rejected record changes nothing.

        Errors: ValueError where the configuration differs, with both sides, or a state belongs to no parameter.
        """
        mine, theirs = self.rule.describe(), record["config"]
        if theirs != mine:
            keys = sorted(k for k in {*mine, *theirs} if mine.get(k) != theirs.get(k))
            sides = "\n  ".join(f"{k}: {theirs.get(k)!r} | {mine.get(k)!r}" for k in keys)
            raise ValueError(f"the record's optimizer is configured differently (record | here):\n  {sides}")
        devices = {p.id: p.device for p in model.params()}
        unknown = [key for key in record["states"] if key not in devices]
        if unknown:
            raise ValueError(f"the record has optimizer states of parameters that the model does not have: {unknown}")
        loaded = {}
        for key, state in record["states"].items():
            device = devices[key]
            with device.guard():
                loaded[key] = _map_state(state, lambda a, d=device: d.xp.array(a))
        self.states = loaded


def _map_state(state: Any, function: Any) -> Any:
    if isinstance(state, dict):
        return {name: _map_state(value, function) for name, value in state.items()}
    return function(state) if hasattr(state, "dtype") and hasattr(state, "shape") else state


def check_lr(lr: Any) -> float:
    """Return the learning rate as a Python float, or raise ValueError."""
    value = float(lr)
    if not math.isfinite(value) or value < 0.0:
        raise ValueError(f"step: the learning rate must be finite and >= 0, got {lr!r}")
    return value
