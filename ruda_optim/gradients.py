"""Gradients per parameter, and their accumulation over micro-batches."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import ruda_tensor as rt
from ruda_autodiff import Gradients
from ruda_nn import Module, Param, RecordMismatch
from ruda_nn.records import broken, pack, unpack
from ruda_tensor.devices import resolve_device
from ruda_tensor.dtypes import FLOATING, FloatDType, as_dtype
from ruda_tensor.recording import CaptureError, recording


class GradientsParams:
    """Gradients keyed by parameter id.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> model = LinearConfig(2, 1).init(Autodiff(rt.Cpu()))
    >>> loss = model(rt.ones((4, 2), device=rt.Cpu())).sum()
    >>> GradientsParams.from_grads(loss.backward(), model)[model.bias].numpy()
    array([4.], dtype=float32)
    """

    __slots__ = ("_by_id",)

    def __init__(self, gradients: Mapping[Param, rt.Tensor] | None = None) -> None:
        self._by_id: dict[str, rt.Tensor] = {}
        for p, g in (gradients or {}).items():
            self.register(p, g)

    @classmethod
    def from_grads(cls, gradients: Gradients, model: Module) -> GradientsParams:
        """Return the gradients of the model's parameters; tied parameters have one, the sum over their places.

        `model` must be the one that made the loss: another copy of it has leaves of its own, and no gradient here.
        """
        return cls.from_params(gradients, model, None)

    @classmethod
    def from_module(cls, gradients: Gradients, model: Module) -> GradientsParams:
        """Take the gradients of this module's parameters out of `gradients`, and leave the others there."""
        out = cls.from_params(gradients, model, None)
        for _, p in model.named_params():
            gradients.remove(p)
        return out

    @classmethod
    def from_params(cls, gradients: Gradients, model: Module, ids: Iterable[Param | str] | None) -> GradientsParams:
        """Return the gradients of the listed parameters (or ids) of the model, None for all."""
        if not isinstance(gradients, Gradients):
            raise TypeError(f"from_grads: expected what loss.backward() returns, got {type(gradients).__name__}")
        if not isinstance(model, Module):
            raise TypeError(f"from_grads: expected a Module, got {type(model).__name__}; from_grads(gradients, model)")
        chosen = None if ids is None else listed(ids)
        out, seen, by_leaf = cls(), set(), gradients._by_leaf
        by_id = out._by_id
        for _, p in model.named_params():
            node = p._node
            g = None if node is None else by_leaf.get(node)
            if g is None or node in seen or (chosen is not None and p.id not in chosen):
                continue
            seen.add(node)
            key, g = p.id, g if g._node is None else g.detach()
            by_id[key] = by_id[key] + g if key in by_id else g
        return out

    def register(self, p: Param, g: rt.Tensor) -> None:
        """Put `g` in the place of the gradient of `p`."""
        if not isinstance(p, Param) or not isinstance(g, rt.Tensor):
            raise TypeError(f"register: expected a Param and its gradient, got {type(p).__name__} and {type(g).__name__}")
        if g.shape != p.shape or g.device != p.device:
            raise ValueError(f"register: the gradient is {g.shape} on {g.device}, and its parameter {p.shape} on {p.device}")
        if g.dtype not in FLOATING:
            raise TypeError(f"register: a gradient must be a float, got {g.dtype}; convert: g.astype(rt.float32)")
        self._by_id[p.id] = g.detach()

    def get(self, p: Param | str, default: Any = None) -> Any:
        """Return the gradient of a parameter (or id), or `default`."""
        return self._by_id.get(_id(p), default)

    def remove(self, p: Param | str) -> rt.Tensor | None:
        """Take the gradient of a parameter (or id) out; None where there is none."""
        return self._by_id.pop(_id(p), None)

    def ids(self) -> list[str]:
        """Return the ids that have a gradient."""
        return list(self._by_id)

    def to_device(self, device: Any) -> GradientsParams:
        """Return the same gradients on another device, or on the devices of a model's parameters.

        Given a model, gradients of ids that it does not have stay where they are.
        """
        places = {p.id: p.device for p in device.params()} if isinstance(device, Module) else None
        out = type(self)()
        for key, g in self._by_id.items():
            out._by_id[key] = g.to_device(device if places is None else places.get(key, g.device))
        return out

    def __getitem__(self, p: Param | str) -> rt.Tensor:
        found = self.get(p)
        if found is None:
            raise KeyError("this parameter has no gradient: it took no part in the loss; gradients.get(p) gives None")
        return found

    def __contains__(self, p: Param | str) -> bool:
        return self.get(p) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        return f"GradientsParams({len(self)} parameters)"

    def to_record(self) -> list[dict[str, Any]]:
        """Return ids, dtypes and host copies, sorted by id; nothing is cleared."""
        return [{"id": key, **pack(self._by_id[key]._data)} for key in sorted(self._by_id)]

    @classmethod
    def from_record(
        cls, record: list[dict[str, Any]] | GradientsRecord, model: Module | None = None, *, device: Any = None
    ) -> GradientsParams:
        """Return recorded gradients in the dtype they had: beside the parameters of a model, or all on one device.

        Without a model nothing is known of the parameters, and any id and shape is taken.
        Errors: RecordMismatch for an id that the model does not train or another shape; RecorderError for a repeated id,
        a dtype that is no float, or anything else that `to_record` does not make.
        """
        known = None if model is None else {p.id: p for p in model.params() if p.trainable}
        place, out = resolve_device(device), cls()
        for key, value in GradientsRecord(record):
            if known is not None:
                if key not in known:
                    raise RecordMismatch(f"the record holds a gradient for the parameter {key}, which this model does not train")
                if value.shape != known[key].shape:
                    raise RecordMismatch(f"the gradient of {key} has shape (record | here): {value.shape} | {known[key].shape}")
                place = known[key].device
            out._by_id[key] = rt.asarray(value, device=place, copy=True)
        return out


class GradientsRecord:
    """What `GradientsParams.to_record` made, to be looked at and cut without making tensors; checked as a whole.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Param
    >>> p = Param(rt.tensor([1.0, 2.0], device=rt.Cpu()), id="weight")
    >>> record = GradientsRecord(GradientsParams({p: rt.ones((2,), device=rt.Cpu())}).to_record())
    >>> record.parameter_ids(), record.parameter_metadata()
    (['weight'], {'weight': ((2,), dtype('float32'))})
    """

    def __init__(self, record: list[dict[str, Any]] | GradientsRecord) -> None:
        self.entries: list[dict[str, Any]] = record.entries if isinstance(record, GradientsRecord) else record
        self._values = _check_entries(self.entries)

    def parameter_ids(self) -> list[str]:
        """Return the ids that have a gradient, in order."""
        return list(self._values)

    def parameter_metadata(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        """Return id -> (shape, dtype)."""
        return {key: (value.shape, value.dtype) for key, value in self._values.items()}

    def select_parameters(self, ids: Iterable[Param | str]) -> GradientsRecord:
        """Return the record of these parameters alone; KeyError for one that it does not have."""
        chosen = listed(ids)
        missing = chosen - set(self._values)
        if missing:
            raise KeyError(f"the record has no gradient for {sorted(missing)}; it has {', '.join(self._values)}")
        return GradientsRecord([entry for entry in self.entries if entry["id"] in chosen])

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._values.items())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"GradientsRecord({len(self)} parameters)"


def _check_entries(record: Any) -> dict[str, Any]:
    """Return id -> array (a view of the record where it can be), after checking everything."""
    if not isinstance(record, list):
        broken("its gradients should be a list")
    values: dict[str, Any] = {}
    for entry in record:
        if not isinstance(entry, dict) or set(entry) != {"id", "dtype", "value"} or not isinstance(entry["id"], str):
            broken("a gradient should hold id, dtype and value")
        key = entry["id"]
        value = unpack({"dtype": entry["dtype"], "value": entry["value"]}, f"the gradient of {key}")
        if key in values:
            broken(f"it holds two gradients for the parameter {key}")
        if value.dtype not in FLOATING:
            broken(f"the gradient of {key} is {value.dtype}, which is no float")
        values[key] = value
    return values


def listed(items: Param | str | Iterable[Param | str]) -> set[str]:
    """Return the ids of parameters or ids, one or several; TypeError for anything else."""
    if isinstance(items, Module) or not isinstance(items, (Param, str, Iterable)):
        raise TypeError(f"expected parameters or their ids, got {type(items).__name__}; [model.weight], or model.params()")
    return {_id(p) for p in ([items] if isinstance(items, (Param, str)) else items)}


def _id(p: Any) -> str:
    if isinstance(p, Param):
        return p.id
    if isinstance(p, str):
        return p
    raise TypeError(f"gradients are found by a Param or its id, not by {type(p).__name__}; gradients[model.weight]")


class GradientsAccumulator:
    """Sums gradients over micro-batches; never averages.

    `accumulate` adds in the gradients' dtype, `accumulate_with_dtype` in the one named. `grads()` hands the window
    over and empties it; `len(accumulator)` looks without taking. In a captured step a window begins and ends.

    >>> accumulator = GradientsAccumulator()
    >>> len(accumulator.grads())
    0
    """

    def __init__(self) -> None:
        self._pending = GradientsParams()
        self._begun: Any = None  # the recording in which the window began

    def accumulate(self, model: Module, gradients: GradientsParams) -> None:
        """Add gradients of the model's trained parameters; others in `gradients` are left out."""
        self._add(model, gradients, None)

    def accumulate_with_dtype(self, model: Module, gradients: GradientsParams, dtype: FloatDType) -> None:
        """Cast what is pending, all of it, and what arrives to `dtype`, then add."""
        wanted = as_dtype(dtype)
        if wanted not in FLOATING:
            raise TypeError(f"accumulate_with_dtype: {wanted} is not a float; give FloatDType.F32")
        self._add(model, gradients, wanted)

    def _add(self, model: Module, gradients: GradientsParams, dtype: Any) -> None:
        if not isinstance(model, Module) or not isinstance(gradients, GradientsParams):
            raise TypeError(
                f"accumulate: expected a Module and GradientsParams, got {type(model).__name__} and "
                f"{type(gradients).__name__}; accumulator.accumulate(model, GradientsParams.from_grads(g, model))"
            )
        self._check_window("accumulate")
        total = dict(self._pending._by_id)
        if dtype is not None:
            total = {key: rt.astype(g, dtype) for key, g in total.items()}
        for p in model.params():
            g = gradients.get(p) if p.trainable else None
            if g is None:
                continue
            if g.shape != p.shape:
                raise ValueError(f"accumulate: a gradient has shape {g.shape}, and its parameter {p.shape}")
            g = g if dtype is None else rt.astype(g, dtype)
            total[p.id] = g if p.id not in total else total[p.id] + g
        self._pending._by_id = total

    def grads(self) -> GradientsParams:
        """Return what was accumulated and start empty."""
        self._check_window("grads")
        out, self._pending = self._pending, GradientsParams()
        return out

    def _check_window(self, call: str) -> None:
        """Refuse a window that is partly in a captured step, whose replays would not add to it."""
        current = recording()
        if len(self._pending) and self._begun is not current:
            raise CaptureError(
                f"{call}: a captured step cannot be part of a window, which begins and ends outside of it; accumulate and "
                "take grads() in one step, or all of it outside"
            )
        self._begun = current
        if current is not None:
            pending, by_id = self._pending, self._pending._by_id
            current.undo.append(lambda: self._back(pending, by_id))

    def _back(self, pending: GradientsParams, by_id: dict[str, rt.Tensor]) -> None:
        self._pending, pending._by_id, self._begun = pending, by_id, None

    def __len__(self) -> int:
        return len(self._pending)

    def __repr__(self) -> str:
        return f"GradientsAccumulator({len(self)} parameters)"

    def to_record(self) -> list[dict[str, Any]]:
        """Return a snapshot as plain data; nothing is cleared."""
        return self._pending.to_record()

    def load_record(self, record: list[dict[str, Any]], model: Module) -> None:
        """Replace what is pending by a record for `model`; a rejected record changes nothing."""
        self._pending, self._begun = GradientsParams.from_record(record, model), None
