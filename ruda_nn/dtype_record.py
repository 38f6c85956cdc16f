"""The storage dtype of every parameter, as plain data that can be put back."""
from __future__ import annotations

from typing import Any

from ruda_tensor.dtypes import BY_NAME, FLOATING

from .module import Module
from .param import Param
from .records import RecordMismatch, broken


class ModuleDTypeRecord:
    """Which dtype each floating parameter of a module is stored in: a list of (id, trainable, dtype), sorted by id.

    Integers and bools are not in it. Ids, ties, frozen flags and buffers stay as they are.

    Errors: RecordMismatch where a record and a module do not have the same parameters; RecorderError for data that is no
    such record. ValueError from `capture` where one parameter is stored in two dtypes.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import LinearConfig
    >>> model = LinearConfig(2, 1).init(rt.Cpu())
    >>> record = ModuleDTypeRecord.capture(model.to_dtype(rt.bfloat16))
    >>> record.apply(model).weight.dtype
    dtype(bfloat16)
    """

    def __init__(self, entries: list[Any]) -> None:
        self.entries: list[tuple[str, bool, str]] = []
        for entry in entries:
            if not isinstance(entry, (list, tuple)) or len(entry) != 3:
                broken(f"a dtype entry should be (id, trainable, dtype), not {entry!r}")
            id, trainable, name = entry
            kinds = isinstance(id, str), isinstance(trainable, bool), isinstance(name, str)
            if not all(kinds) or BY_NAME.get(name) not in FLOATING:
                broken(f"a dtype entry should be (id, trainable, the name of a float), not {entry!r}")
            self.entries.append((id, trainable, name))
        if len({entry[:2] for entry in self.entries}) != len(self.entries):
            broken("a parameter occurs twice among the dtypes")

    @classmethod
    def capture(cls, model: Module) -> ModuleDTypeRecord:
        """Return the dtypes of a module's parameters."""
        found: dict[tuple[str, bool], str] = {}
        for path, p in model.named_params():
            if p.dtype in FLOATING and found.setdefault((p.id, p.trainable), str(p.dtype)) != str(p.dtype):
                raise ValueError(
                    f"{path}: the parameter {p.id} is stored as {p.dtype} here and as {found[p.id, p.trainable]} elsewhere; "
                    "tied ones need one dtype: model = model.to_dtype(dtype)"
                )
        return cls(sorted((*key, name) for key, name in found.items()))

    def apply(self, model: Module) -> Any:
        """Return the module with its parameters in the recorded dtypes: new leaves where one changes."""
        known = {(p.id, p.trainable) for p in model.params() if p.dtype in FLOATING}
        wanted = {(id, trainable): BY_NAME[name] for id, trainable, name in self.entries}
        problems = [f"{_describe(key)}: present | missing" for key in wanted if key not in known]
        problems += [f"{_describe(key)}: missing | present" for key in sorted(known) if key not in wanted]
        if problems:
            raise RecordMismatch("the dtypes do not fit this model (record | model):\n  " + "\n  ".join(problems))

        def converted(p: Param) -> Param:
            dtype = wanted.get((p.id, p.trainable), p.dtype)
            return p if dtype == p.dtype else p.like(p.detach().astype(dtype)._data)

        return model.map(converted)


def _describe(key: tuple[str, bool]) -> str:
    return f"{key[0]} ({'trainable' if key[1] else 'frozen'})"
