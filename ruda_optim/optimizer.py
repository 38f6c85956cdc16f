"""The optimizer: one shell that walks parameters and applies a rule to each, or to many at once."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ruda_nn import Module, Param, RecordMismatch
from ruda_nn.config import is_whole
from ruda_nn.records import broken, compare, pack, unpack
from ruda_tensor.dtypes import FLOATING
from ruda_tensor.kernels.gate import real_of
from ruda_tensor.live import now
from ruda_tensor.recording import capturing, recording
from ruda_tensor.tensor import Tensor

from .buckets import Bucket, Member, fill, is_small, kinds, own_array, own_state
from .clipping import factors, total_norm
from .gradients import GradientsParams, listed
from .groups import Grouping, ParamGroup
from .host import update_on_host
from .rates import check_lr
from .rules import Rule
from .together import check_capture, first_state, norm_together, undo_consuming, update_together


class Optimizer:
    """Applies a rule to every trained parameter that has a gradient; keeps one state per parameter id.

    `step` returns the new model and consumes the old one, whose memory it reuses. Tied parameters are updated once.
    A frozen parameter, or one without a gradient, keeps its value and its state: no decay, no counting. A parameter that
    goes to another dtype is computed in it from then on, and its state goes along. `groups` have other settings
    (`ParamGroup`). Small parameters are updated together (`buckets`), which changes no bit; a tensor over one of them
    (`p.detach()`) that is kept then keeps the memory of all of them, and `p.numpy()` does not.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> from ruda_optim import SgdConfig
    >>> model, optimizer = LinearConfig(2, 1).init(Autodiff(rt.Cpu())), SgdConfig().init()
    >>> loss = model(rt.ones((4, 2), device=rt.Cpu())).square().mean()
    >>> model = optimizer.step(0.1, model, GradientsParams.from_grads(loss.backward(), model))
    """

    def __init__(self, rule: Any, groups: Iterable[ParamGroup] = ()) -> None:
        self.rule = rule
        self.states: dict[str, dict[str, Any]] = {}
        self._grouping = Grouping(rule, groups)
        self._places: dict[str, tuple[Bucket, int]] = {}  # which parameters live in which bucket
        self._failed = False

    def step(self, lr: float, model: Module, gradients: GradientsParams) -> Any:
        """Return the updated model.

        Errors: ValueError for a learning rate that is negative or not finite, a gradient of another shape or on another
        device, or gradients that all belong to another model; nothing is changed then.
        """
        return self._step(lr, model, gradients, None)[0]

    def step_selected(
        self, lr: float, model: Module, gradients: GradientsParams, ids: Iterable[Param | str]
    ) -> tuple[Any, GradientsParams]:
        """Return the model with only the named parameters updated, and the gradients that were not used.

        `ids` are parameters or their ids. Unused are the gradients of the others, of frozen parameters, and of ids that
        the model does not have. A global norm is that of the gradients which are used.
        Errors: as `step`.
        """
        model, used = self._step(lr, model, gradients, listed(ids))
        unused = GradientsParams()
        unused._by_id = {key: g for key, g in gradients._by_id.items() if key not in used}
        return model, unused

    def _step(self, lr: float, model: Any, gradients: Any, wanted: set[str] | None) -> tuple[Any, dict[str, Tensor]]:
        lr = check_lr(lr)
        self._check_kinds(model, gradients)
        places, chosen = self._assigned(now(lr), model.named_params(), gradients, wanted)
        if capturing():
            check_capture(self, now(lr), places, chosen)
        return self._moved(lr, model, places, chosen), chosen

    def _moved(self, lr: float, model: Any, places: list[Param], chosen: dict[str, Tensor]) -> Any:
        """Return the updated model, once everything has been checked."""
        try:
            with np.errstate(all="ignore"):  # an inf or a NaN shows in the result, as on a GPU
                new = self._updated(lr, places, chosen)
                if capturing():
                    undo_consuming(recording(), places, new)
                return model.map(lambda p: new.get(p.id, p) if p.trainable else p)
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

    def _assigned(
        self, lr: float, named: list[tuple[str, Param]], gradients: GradientsParams, wanted: set[str] | None
    ) -> tuple[list[Param], dict[str, Tensor]]:
        """Return all places, and what `_choose` says of them, each parameter in a group; without a change where it raises."""
        before, places = self._grouping.index, [p for _, p in named]
        self._grouping.assign(named)
        try:
            return places, self._choose(lr, places, gradients, wanted)
        except BaseException:
            self._grouping.index = before
            raise

    def _choose(
        self, lr: float, places: list[Param], gradients: GradientsParams, wanted: set[str] | None = None
    ) -> dict[str, Tensor]:
        """Return id -> gradient of the parameters to update, after checking all of them."""
        chosen: dict[str, Tensor] = {}
        grouping, by_id = self._grouping, gradients._by_id
        for p in places:
            g = by_id.get(p.id) if p.trainable and (wanted is None or p.id in wanted) else None
            if g is None:
                continue
            theirs, mine = g._data, p._data
            if theirs.shape != mine.shape or (g.device is not p.device and g.device != p.device):
                raise ValueError(
                    f"step: a gradient is {g.shape} on {g.device}, and its parameter {p.shape} on {p.device}; "
                    "they must be alike: gradients = gradients.to_device(device)"
                )
            group = grouping.of(p.id)
            grouping.rules[group].check(lr * grouping.scales[group], mine.shape, mine.dtype, theirs.dtype)
            chosen[p.id] = g
        if wanted is None and by_id and not chosen and not any(p.id in by_id for p in places):
            raise ValueError(
                "step: these gradients are of another model, whose parameters have other ids; "
                "GradientsParams.from_grads(loss.backward(), model) with the model that made the loss"
            )
        return chosen

    def _updated(self, lr: float, places: list[Param], chosen: dict[str, Tensor]) -> dict[str, Param]:
        """Return id -> new parameter."""
        grouping, params, new = self._grouping, {}, {}
        extra = {} if grouping.global_limit is None else self._factors(chosen, grouping.global_limit)
        launches = False
        for p in places:
            key = p.id
            if key in chosen and key not in params and p.trainable:
                params[key] = p
                launches = launches or p.device.launches
        if launches:
            new = update_together(self, lr, params, chosen, extra)
        elif not extra:
            new = update_on_host(self, lr, params, chosen)
        params = {key: p for key, p in params.items() if key not in new} if new else params
        alone, buckets = self._sort(params, chosen)
        for p in alone:
            group, key = grouping.of(p.id), p.id
            with p.device.entered():
                array, self.states[key] = grouping.rules[group].step(
                    p.device.xp, lr * grouping.scales[group], own_array(p), chosen[key]._data,
                    own_state(self.states[key]) if key in self.states else None, *extra.get(p.device, ()),
                )  # fmt: skip
            new[key] = p.successor(array)
        for bucket, members in buckets.items():
            members.sort(key=_number)
            with bucket.device.entered():
                bucket.hold(members)
                scale = grouping.scales[grouping.of(bucket.ids[0])]
                bucket.update(lr * scale, members, extra.get(bucket.device, ()))
            views = bucket.views
            for i, p, _ in members:
                new[p.id] = p.successor(views[i])
        return new

    def _factors(self, chosen: dict[str, Tensor], limit: float) -> dict[Any, tuple]:
        """Return device -> (what clipping the global norm multiplies gradients by,)."""
        if not chosen:
            return {}
        tensors = list(chosen.values())
        home = tensors[0].device
        norm = norm_together(tensors)
        norm = total_norm(tensors) if norm is None else norm
        scale = getattr(self.rule, "gradient_scale", 1.0)
        if scale != 1.0:
            with home.guard():
                norm = norm / scale
        return {device: (f,) for device, f in factors(norm, limit, home, {g.device for g in tensors}).items()}

    def _sort(
        self, params: dict[str, Param], chosen: dict[str, Tensor]
    ) -> tuple[list[Param], dict[Bucket, list[Member]]]:
        """Return the parameters to be updated by themselves, and for each bucket the members that are to be."""
        places, states = self._places, self.states
        loose = [p for key, p in params.items() if key not in places]
        for p in loose:
            self._follow(p)
        if len(loose) > 1:
            loose = self._fill(loose)
        buckets: dict[Bucket, list[Member]] = {}
        for key, p in params.items():
            if key not in places:
                continue
            bucket, i = places[key]
            if states[key] is not bucket.states[i] or (p._data is not bucket.views[i] and not bucket.fits(i, p)):
                self._dissolve(bucket)
                return self._sort(params, chosen)
            if bucket in buckets:
                buckets[bucket].append((i, p, chosen[key]))
            else:
                buckets[bucket] = [(i, p, chosen[key])]
        return loose, buckets

    def _fill(self, loose: list[Param]) -> list[Param]:
        """Put small parameters that agree in group, dtype, device and kind of state into buckets; return the others."""
        candidates: dict[Any, list[tuple[Param, dict[str, Any]]]] = {}
        grouping = self._grouping
        for p in loose:
            group = grouping.of(p.id)
            if not grouping.elementwise[group] or not is_small(p):
                continue
            state = self.states.get(p.id)
            if state is None:
                with p.device.guard():
                    state = first_state(grouping.rules[group], p.device.xp, p._data)
            candidates.setdefault((group, p.device, p.dtype, kinds(state)), []).append((p, state))
        for bucket in fill(candidates, grouping.rules):
            for i, key in enumerate(bucket.ids):
                self._places[key], self.states[key] = (bucket, i), bucket.states[i]
        return [p for p in loose if p.id not in self._places]

    def _follow(self, p: Param) -> None:
        """Bring the state to the dtype that the parameter is computed in now: that is what a record of it will say."""
        rule, state = self._grouping.rules[self._grouping.of(p.id)], self.states.get(p.id)
        if state is None or not isinstance(rule, Rule) or type(rule).start is not Rule.start:
            return
        dtype = real_of(p._data.dtype)
        for name in rule.arrays:
            if state[name].dtype != dtype:
                with p.device.guard(), np.errstate(all="ignore"):
                    self.states[p.id] = {k: v.astype(dtype) if _is_array(v) else v for k, v in state.items()}
                return

    def _dissolve(self, bucket: Bucket) -> None:
        """Give every member its state in memory of its own: a member has changed its dtype, or its device."""
        with bucket.device.guard():
            states = bucket.leave()
        for key, old, state in zip(bucket.ids, bucket.states, states):
            del self._places[key]
            if self.states.get(key) is old:
                self.states[key] = state

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_places": {}}  # a copy has states of its own, in no bucket

    def to_record(self, model: Module | None = None) -> dict[str, Any]:
        """Return the configuration and a host copy of every state, as plain data.

        With a model, states of parameters that it no longer has are left out.
        """
        if self._failed:
            raise RuntimeError("to_record: a step failed half-way, so the states do not belong together; load a record")
        known = None if model is None else {p.id for p in model.params()}
        states = {key: _pack(state) for key, state in self.states.items() if known is None or key in known}
        record = {"config": self._grouping.describe(), "states": states}
        if self._grouping.groups:
            index = self._grouping.assigned([] if model is None else model.named_params())
            record["groups"] = {key: i for key, i in index.items() if known is None or key in known}
        return record

    def load_record(self, record: dict[str, Any], model: Module) -> None:
        """Take the states of a record, placed beside the parameters of `model`; a rejected record changes nothing.

        Parameters are in the groups they were recorded in.
        Errors: RecordMismatch where the configuration differs, with both sides, or a state does not fit its parameter.
        """
        grouping = self._grouping
        check_config(record, grouping.describe())
        if set(record) - {"groups"} != {"config", "states"} or not isinstance(record["states"], dict):
            broken("its optimizer should hold config and states, and groups where it has any")
        params = {p.id: p for p in model.params()}
        index = self._recorded_groups(record, model)
        unknown = [key for key in record["states"] if key not in params]
        if unknown:
            raise RecordMismatch(f"the record has optimizer states of parameters that the model does not have: {unknown}")
        loaded = {}
        for key, state in record["states"].items():
            p = params[key]
            # Zeros that nobody touches take no memory: they show what the state should be.
            shape = first_state(grouping.rules[index.get(key, 0)], np, np.zeros(p.shape, p.dtype))
            with p.device.guard():
                loaded[key] = _unpack(state, shape, p.device.xp, f"the optimizer state of {key}")
        self.states, self._places, grouping.index, self._failed = loaded, {}, index, False

    def _recorded_groups(self, record: dict[str, Any], model: Module) -> dict[str, int]:
        """Return id -> number of the group, as recorded, for every parameter of the model."""
        grouping = self._grouping
        if not grouping.groups:
            return {}
        index, last = record.get("groups"), len(grouping.groups)
        if not isinstance(index, dict) or not all(is_whole(i) and 0 <= i <= last for i in index.values()):
            broken(f"its optimizer's groups should be numbers from 0 to {last}, by parameter")
        missing = [key for key in record["states"] if key not in index]
        if missing:
            broken(f"it has optimizer states of parameters in no group: {missing}")
        known = {p.id for p in model.params()}
        return {key: int(i) for key, i in index.items() if key in known}

    def __repr__(self) -> str:
        groups = f", {len(self._grouping.groups)} groups" if self._grouping.groups else ""
        return f"{type(self).__name__}({self.rule!r}{groups}, {len(self.states)} states)"


def _number(member: Member) -> int:
    return member[0]


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
        if type(state) is int and state < 0:
            broken(f"{where} is {state}, and should count updates")
        return state
    array = unpack(state, where)
    if array.shape != like.shape or (array.dtype != like.dtype and not {array.dtype, like.dtype} <= FLOATING):
        raise RecordMismatch(f"{where} is (record | here): {array.shape} {array.dtype} | {like.shape} {like.dtype}")
    return xp.array(array.astype(like.dtype, copy=False))


def check_config(record: Any, mine: dict[str, Any]) -> None:
    """Refuse an optimizer's record of another configuration, before its parts: another optimizer has other parts too."""
    if not isinstance(record, dict) or "config" not in record:
        broken("its optimizer should hold a configuration and states")
    compare(record["config"], mine, "optimizer")
