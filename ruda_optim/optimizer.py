"""The optimizer: one shell that walks parameters and applies a rule to each."""
from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from ruda_nn import Module, Param, RecordMismatch
from ruda_nn.records import broken, pack, unpack
from ruda_tensor.dtypes import FLOAT32, FLOATING, HALF
from ruda_tensor.tensor import Tensor

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
    """Return the parameter's array if nobody else can see it, else a copy: what a tape or a valid() model holds stays.

    Every view of an array, NumPy's, CuPy's or over DLPack, holds a reference to it, and so is seen here.
    """
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
        self._failed = False

    def step(self, lr: float, model: Module, gradients: GradientsParams) -> Any:
        """Return the updated model.

        Errors: ValueError for a learning rate that is negative or not finite, a gradient of another shape or on another
        device, or gradients that all belong to another model; nothing is changed then.
        """
        lr = check_lr(lr)
        self._check_kinds(model, gradients)
        places = [p for _, p in model.named_params()]
        chosen = self._choose(lr, places, gradients)
        new: dict[str, Param] = {}

        def updated(p: Param) -> Param:
            if not p.trainable or p.id not in chosen:
                return p
            if p.id not in new:
                new[p.id] = self._update(lr, p, chosen[p.id])
            return new[p.id]

        try:
            with np.errstate(all="ignore"):  # an inf or a NaN shows in the result, as on a GPU
                return model.map(updated)
        except BaseException:
            self._failed = True  # some states have moved on and some have not
            raise
        finally:
            for p in places:
                if p.trainable and p.id in chosen:
                    p.consume()

    def _check_kinds(self, model: Any, gradients: Any) -> None:
        if self._failed:
            raise RuntimeError("step: an earlier step failed half-way; go on from a record: optimizer.load_record(...)")
        if not isinstance(model, Module):
            raise TypeError(f"step: expected a Module, got {type(model).__name__}; step(lr, model, gradients)")
        if not isinstance(gradients, GradientsParams):
            raise TypeError(
                f"step: expected GradientsParams, got {type(gradients).__name__}; "
                "GradientsParams.from_grads(loss.backward(), model)"
            )

    def _choose(self, lr: float, places: list[Param], gradients: GradientsParams) -> dict[str, Tensor]:
        """Return id -> gradient of the parameters to update, after checking all of them."""
        chosen: dict[str, Tensor] = {}
        for p in places:
            g = gradients.get(p.id) if p.trainable else None
            if g is None:
                continue
            if g.shape != p.shape or g.device != p.device:
                raise ValueError(
                    f"step: a gradient is {g.shape} on {g.device}, and its parameter {p.shape} on {p.device}; "
                    "they must be alike: gradients = gradients.to_device(device)"
                )
            self.rule.check(lr, p.shape, p.dtype, g.dtype)
            chosen[p.id] = g
        if len(gradients) and not chosen and not any(p.id in gradients for p in places):
            raise ValueError(
                "step: these gradients are of another model, whose parameters have other ids; "
                "GradientsParams.from_grads(loss.backward(), model) with the model that made the loss"
            )
        return chosen

    def _update(self, lr: float, p: Param, g: Any) -> Param:
        with p.device.guard():
            array = own_array(p)
            array, self.states[p.id] = self.rule.step(p.device.xp, lr, array, g._data, self.states.get(p.id))
        return p.like(array)

    def to_record(self, model: Module | None = None) -> dict[str, Any]:
        """Return the configuration and a host copy of every state, as plain data.

        With a model, states of parameters that it no longer has are left out.
        """
        if self._failed:
            raise RuntimeError("to_record: a step failed half-way, so the states do not belong together; load a record")
        known = self.states if model is None else {p.id for p in model.params()}
        states = {key: _pack(state) for key, state in self.states.items() if key in known}
        return {"config": self.rule.describe(), "states": states}

    def load_record(self, record: dict[str, Any], model: Module) -> None:
        """Take the states of a record, placed beside the parameters of `model`; a rejected record changes nothing.

        Errors: RecordMismatch where the configuration differs, with both sides, or a state does not fit its parameter.
        """
        if not isinstance(record, dict) or set(record) != {"config", "states"} or not isinstance(record["states"], dict):
            broken("its optimizer should hold config and states")
        compare(record["config"], self.rule.describe(), "optimizer")
        params = {p.id: p for p in model.params()}
        unknown = [key for key in record["states"] if key not in params]
        if unknown:
            raise RecordMismatch(f"the record has optimizer states of parameters that the model does not have: {unknown}")
        loaded = {}
        for key, state in record["states"].items():
            p = params[key]
            # Zeros that nobody touches take no memory: they show what the state should be.
            shape = self.rule.start(np, np.zeros(p.shape, FLOAT32 if p.dtype in HALF else p.dtype))
            with p.device.guard():
                loaded[key] = _unpack(state, shape, p.device.xp, f"the optimizer state of {key}")
        self.states, self._failed = loaded, False

    def __repr__(self) -> str:
        return f"Optimizer({self.rule!r}, {len(self.states)} states)"


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _pack(state: Any) -> Any:
    if isinstance(state, dict):
        return {name: _pack(value) for name, value in state.items()}
    return pack(state) if _is_array(state) else state


def _unpack(state: Any, like: Any, xp: Any, where: str) -> Any:
    """Return a recorded state on the device, in the structure, shapes and dtypes of `like`."""
    if isinstance(like, dict):
        if not isinstance(state, dict) or set(state) != set(like):
            found = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise RecordMismatch(f"{where} holds (record | here): {found} | {sorted(like)}")
        return {name: _unpack(state[name], inner, xp, f"{where}.{name}") for name, inner in like.items()}
    if not _is_array(like):
        if type(state) is not type(like):
            raise RecordMismatch(f"{where} is (record | here): {state!r} | {type(like).__name__}")
        return state
    array = unpack(state, where)
    if array.shape != like.shape or (array.dtype != like.dtype and not {array.dtype, like.dtype} <= FLOATING):
        raise RecordMismatch(f"{where} is (record | here): {array.shape} {array.dtype} | {like.shape} {like.dtype}")
    return xp.array(array.astype(like.dtype, copy=False))


def compare(theirs: Any, mine: dict[str, Any], what: str) -> None:
    """Raise RecordMismatch, with both sides, unless two configurations are the same."""
    if not isinstance(theirs, dict):
        broken(f"the configuration of its {what} should be a dict")
    if theirs != mine:
        keys = [k for k in {**mine, **theirs} if theirs.get(k) != mine.get(k)]
        sides = "\n  ".join(f"{k}: {theirs.get(k)!r} | {mine.get(k)!r}" for k in keys)
        raise RecordMismatch(f"the record's {what} is configured differently (record | here):\n  {sides}")


def check_lr(lr: Any) -> float:
    """Return the learning rate as a Python float, or raise."""
    try:
        value = float(lr)
    except (TypeError, ValueError) as error:
        raise TypeError(f"step: the learning rate comes first and is a number: step(lr, model, gradients); {error}") from None
    if not math.isfinite(value) or value < 0.0:
        raise ValueError(f"step: the learning rate must be finite and >= 0, got {lr!r}")
    return value
