"""Modules: models as plain declared data, with one walker that everything else uses."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, dataclass_transform

from ruda_autodiff import Autodiff
from ruda_tensor.devices import resolve_device
from ruda_tensor.dtypes import FLOATING, FloatDType, as_dtype
from ruda_tensor.tensor import Tensor

from .param import Param


@dataclass_transform(frozen_default=True, eq_default=False)
class Module:
    """Base of models and layers: a subclass is a frozen dataclass of its annotated fields.

    Fields hold parameters, modules, lists or dicts of them, or plain settings. There is no registration: the fields
    are the model. Change is functional: `map`, `to_dtype`, `valid` and the rest return a new module.

    >>> import ruda_tensor as rt
    >>> class Scale(Module):
    ...     factor: Param
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale(factor=Param(rt.tensor(3.0, device=rt.Cpu())))(rt.tensor(2.0, device=rt.Cpu())).item()
    6.0
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no forward; define one: def forward(self, x): ...")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # the walker
    def named_params(self) -> list[tuple[str, Param]]:
        """Return (path, parameter) for every place that holds one, in declaration order; tied ones come up each time."""
        return list(_walk(self, ""))

    def visit(self, function: Callable[[str, Param], Any]) -> None:
        """Call `function(path, parameter)` for every place that holds a parameter."""
        for path, p in self.named_params():
            function(path, p)

    def paths(self) -> list[str]:
        """Return the path of every place that holds a parameter, such as "layers.0.weight"."""
        return [path for path, _ in self.named_params()]

    def params(self) -> list[Param]:
        """Return each distinct parameter once, in declaration order."""
        return list({(p.id, p.trainable): p for _, p in reversed(self.named_params())}.values())[::-1]

    def num_params(self) -> int:
        """Return the number of numbers in the distinct parameters."""
        return sum(p.size for p in self.params())

    def map(self, function: Callable[[Param], Any], **settings: Any) -> Any:
        """Return the module with every parameter replaced by `function(parameter)`; ties stay ties.

        `settings` replaces plain fields of that name in every module inside, such as `training=False`.
        """
        return _rebuild(self, lambda x: function(x) if isinstance(x, Param) else x, settings, {})

    def map_tensors(self, function: Callable[[Tensor], Any]) -> Any:
        """Return the module with every tensor replaced by `function(tensor)`; what nested arguments use."""
        return _rebuild(self, function, {}, {})

    # changes
    def to_dtype(self, dtype: FloatDType | Any) -> Any:
        """Return the module with its floating parameters stored in `dtype`: new leaves, the same ids, ties and flags."""
        wanted = as_dtype(dtype)
        if wanted not in FLOATING:
            raise TypeError(f"to_dtype: {wanted} is not a float; give FloatDType.F16, BF16, F32 or F64")
        return self.map(lambda p: p.like(p._data.astype(wanted) if p.dtype in FLOATING else p._data))

    def to_device(self, device: Any) -> Any:
        """Return the module on a device, with the same ids, ties and flags; parameters are leaves there."""
        place = resolve_device(device)
        return self.map(lambda p: p.like(p.detach().to_device(place)._data, device=place))

    def fork(self, device: Any) -> Any:
        """Return the module with new leaves on a device; on a recording device they are tracked, else as they were."""
        place, record = resolve_device(device), isinstance(device, Autodiff)
        return self.map(
            lambda p: p.like(p.detach().to_device(place)._data, device=place, tracked=record or p.is_require_grad())
        )

    def no_grad(self) -> Any:
        """Return the module with every parameter frozen: no gradient and no update, training mode as it was."""
        return self.map(lambda p: p.like(p._data, trainable=False))

    def valid(self) -> Any:
        """Return the same weights untracked and in inference mode."""
        return self.map(lambda p: p.like(p._data, tracked=False), training=False)

    def train(self) -> Any:
        """Return the same weights tracked (frozen ones stay frozen) and in training mode."""
        return self.map(lambda p: p.like(p._data, tracked=True), training=True)

    def clone(self) -> Any:
        """Return an independent copy with the same ids, which an update of this module cannot reach."""
        return self.map(lambda p: p.copy())

    # records
    def to_record(self) -> dict[str, Any]:
        """Return paths, ids, flags and host copies of the values, as plain data; each distinct parameter once."""
        stored: dict[tuple, dict[str, Any]] = {}
        places: dict[str, list] = {}
        for path, p in self.named_params():
            key = (p.id, p.trainable)
            if key not in stored:
                stored[key] = {"id": p.id, "trainable": p.trainable, "value": p.numpy()}
            places[path] = [p.id, p.trainable]
        return {"places": places, "params": list(stored.values())}

    def load_record(self, record: dict[str, Any], *, keep_dtype: bool = True) -> Any:
        """Return the module with the recorded ids and values on its own devices; tracking follows this module.

        `keep_dtype` casts the values to this module's dtypes; otherwise the recorded dtypes are taken.
        Errors: ValueError with a two-sided report where paths, shapes or frozen flags differ.
        """
        from .records import restore_params

        return restore_params(self, record, keep_dtype)

    def summary(self) -> str:
        """Return a table of path, shape, dtype, parameters and bytes."""
        rows = [(path, str(tuple(p.shape)), str(p.dtype), f"{p.size:,}", f"{p.nbytes:,}") for path, p in self.named_params()]
        head = ("path", "shape", "dtype", "params", "bytes")
        rows = [head, *rows, ("total", "", "", f"{self.num_params():,}", f"{sum(p.nbytes for p in self.params()):,}")]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    def __repr__(self) -> str:
        lines = [f"  {name}={_show(value)}," for name, value in vars(self).items()]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"]) if lines else f"{type(self).__name__}()"


def _show(value: Any) -> str:
    if isinstance(value, Param):
        return f"Param({value.id}, consumed)" if value.is_consumed() else f"Param{tuple(value.shape)} {value.dtype}"
    if isinstance(value, list) and value and isinstance(value[0], Module):
        return "[\n" + "".join("    " + repr(v).replace("\n", "\n    ") + ",\n" for v in value) + "  ]"
    return repr(value).replace("\n", "\n  ")


def _walk(value: Any, path: str) -> Iterator[tuple[str, Param]]:
    if isinstance(value, Param):
        yield path, value
        return
    if isinstance(value, Module):
        items: Any = vars(value).items()
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return
    for name, inner in items:
        yield from _walk(inner, f"{path}.{name}" if path else str(name))


def _rebuild(value: Any, function: Callable, settings: dict[str, Any], seen: dict[tuple, Any]) -> Any:
    if isinstance(value, Tensor):
        key = (value.id, value.trainable) if isinstance(value, Param) else (id(value),)
        if key not in seen:
            seen[key] = function(value)
        return seen[key]
    if isinstance(value, Module):
        out = object.__new__(type(value))
        for name, inner in vars(value).items():
            changed = settings[name] if name in settings else _rebuild(inner, function, settings, seen)
            object.__setattr__(out, name, changed)
        return out
    if isinstance(value, dict):
        return {name: _rebuild(inner, function, settings, seen) for name, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_rebuild(inner, function, settings, seen) for inner in value])
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuild(inner, function, settings, seen) for inner in value)
    return value
