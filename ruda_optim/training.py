"""Training records: model, optimizer, schedule, pending gradients and the caller's state, saved and resumed together."""
from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruda_nn import Module, RecordMismatch
from ruda_nn.records import broken, unpack_params
from ruda_record import RecorderError
from ruda_record.recorders import as_recorder

from .gradients import GradientsAccumulator, GradientsRecord

VERSION = 1
PARTS = ("version", "model", "optimizer", "scheduler", "gradients", "state", "dtypes")


@dataclass(frozen=True, eq=False)
class RestoredTraining:
    """What a restore gives back; `state` is what the caller put in.

    >>> RestoredTraining(None, None, None, GradientsAccumulator(), {"epoch": 3}).state
    {'epoch': 3}
    """

    model: Any
    optimizer: Any
    scheduler: Any
    accumulator: GradientsAccumulator
    state: Any


class TrainingRecord:
    """A snapshot of training as plain data.

    Random state and data position are the caller's: put `rt.random.get_state()` and the like into `state`, which may be
    any nested lists, tuples, dicts, numbers, strings and NumPy arrays.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> from ruda_optim import SgdConfig, StepLrSchedulerConfig
    >>> def parts():
    ...     model = LinearConfig(2, 1).init(Autodiff(rt.Cpu()))
    ...     return model, SgdConfig().init(), StepLrSchedulerConfig(0.1, 5).init()
    >>> record = TrainingRecord.capture(*parts(), GradientsAccumulator(), (3, 0))
    >>> record.restore(*parts(), rt.Cpu()).state
    (3, 0)
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @classmethod
    def capture(
        cls, model: Module, optimizer: Any, scheduler: Any = None, accumulator: GradientsAccumulator | None = None,
        state: Any = None,
    ) -> TrainingRecord:  # fmt: skip
        """Return a snapshot that later training cannot reach; nothing is changed, stepped or emptied.

        A run without a schedule has None for it, as one without accumulation has for the accumulator. On the CPU the
        numbers are not copied here: while the record lives, the next update makes new arrays instead.
        Left out are states and pending gradients of parameters that no step would use: gone, or frozen while pending.
        """
        _check_parts(model, optimizer, scheduler)
        if not isinstance(accumulator, GradientsAccumulator | None):
            raise TypeError(
                f"capture: expected a GradientsAccumulator, got {type(accumulator).__name__}; "
                "capture(model, optimizer, scheduler, accumulator, state)"
            )
        return cls(
            {
                "version": VERSION,
                "model": model.to_record(),
                "optimizer": optimizer.to_record(model),
                "scheduler": None if scheduler is None else scheduler.to_record(),
                "gradients": [] if accumulator is None else _trained(accumulator, model),
                "state": copy.deepcopy(state),
                "dtypes": False,
            }
        )

    @classmethod
    def capture_with_dtypes(
        cls, model: Module, optimizer: Any, scheduler: Any = None, accumulator: GradientsAccumulator | None = None,
        state: Any = None,
    ) -> TrainingRecord:  # fmt: skip
        """As `capture`, and `restore_with_dtypes` brings back the storage dtype of every parameter too."""
        record = cls.capture(model, optimizer, scheduler, accumulator, state)
        record.data["dtypes"] = True
        return record

    def save(self, recorder: Any, path: str | Path) -> Path:
        """Write the record; returns the file's path, with the recorder's suffix."""
        return as_recorder(recorder).save(self.data, path)

    @classmethod
    def load(cls, recorder: Any, path: str | Path, device: Any = None) -> TrainingRecord:
        """Read a record, checking all of it. `device` is where a restore will place it; nothing is placed yet.

        Errors: RecorderError where the file is missing, damaged, or no training record.
        """
        data = as_recorder(recorder).load(path)
        try:
            _check_data(data)
        except RecorderError as error:
            raise RecorderError(f"{path}: {error}") from error
        return cls(data)

    def restore(self, model: Module, optimizer: Any, scheduler: Any = None, device: Any = None) -> RestoredTraining:
        """Put the record into freshly made parts of the same configuration, on `device`.

        The model gets the recorded ids and values, in its own dtypes; tracking follows it. The optimizer and the
        schedule are changed in place, once everything has been checked.
        Errors: RecordMismatch with a two-sided report where something differs; nothing is changed then.
        """
        return self._restore(model, optimizer, scheduler, device, keep_dtype=True)

    def restore_with_dtypes(
        self, model: Module, optimizer: Any, scheduler: Any = None, device: Any = None
    ) -> RestoredTraining:
        """As `restore`, with the storage dtypes that were captured; needs a record of `capture_with_dtypes`."""
        _check_data(self.data)
        if not self.data["dtypes"]:
            raise ValueError("this record was captured without dtypes; use restore, or capture_with_dtypes when saving")
        return self._restore(model, optimizer, scheduler, device, keep_dtype=False)

    def _restore(self, model: Module, optimizer: Any, scheduler: Any, device: Any, keep_dtype: bool) -> RestoredTraining:
        _check_parts(model, optimizer, scheduler)
        _check_data(self.data)
        if (scheduler is None) != (self.data["scheduler"] is None):
            sides = ["missing" if side is None else "present" for side in (self.data["scheduler"], scheduler)]
            raise RecordMismatch(f"the schedule is (record | here): {sides[0]} | {sides[1]}")
        placed = model if device is None else model.fork(device)
        new_model = placed.load_record(self.data["model"], keep_dtype=keep_dtype)
        accumulator = GradientsAccumulator()
        accumulator.load_record(self.data["gradients"], new_model)
        if scheduler is not None:
            copy.deepcopy(scheduler).load_record(self.data["scheduler"])  # raises where the real one would
        state = copy.deepcopy(self.data["state"])
        optimizer.load_record(self.data["optimizer"], new_model)
        if scheduler is not None:
            scheduler.load_record(self.data["scheduler"])
        return RestoredTraining(new_model, optimizer, scheduler, accumulator, state)


def _trained(accumulator: GradientsAccumulator, model: Module) -> list[dict[str, Any]]:
    """Return what is pending for parameters that the model trains: no step would use the rest, and no restore take it."""
    ids = {p.id for p in model.params() if p.trainable}
    return [entry for entry in accumulator.to_record() if entry["id"] in ids]


def _check_data(data: Any) -> None:
    """Refuse what is no training record, as far as that can be said without the parts that it is restored into."""
    if not isinstance(data, dict) or set(data) != set(PARTS):
        raise RecorderError(f"this is not a training record; it should hold {', '.join(PARTS)}")
    if data["version"] != VERSION:
        raise RecorderError(f"a training record of version {data['version']!r}; this ruda reads {VERSION}")
    if not isinstance(data["dtypes"], bool):
        broken(f"dtypes is {data['dtypes']!r}, and should be True or False")
    unpack_params(data["model"])
    GradientsRecord(data["gradients"])


def _check_parts(model: Any, optimizer: Any, scheduler: Any) -> None:
    if not isinstance(model, Module):
        raise TypeError(f"expected a Module first, got {type(model).__name__}; the order is (model, optimizer, scheduler)")
    for part, what, such in (
        (optimizer, "an optimizer", "AdamConfig().init()"),
        (scheduler, "a schedule", "ConstantLrSchedulerConfig(0.1).init()"),
    ):
        if part is None and what == "a schedule":
            continue
        if not hasattr(part, "to_record") or not hasattr(part, "load_record") or isinstance(part, Module):
            raise TypeError(f"expected {what} with to_record and load_record, got {type(part).__name__}; such as {such}")
