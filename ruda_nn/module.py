"""Modules: models as plain declared data, with one walker that everything else uses."""
from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, dataclass_transform

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_tensor.devices import Device, resolve_device
from ruda_tensor.dtypes import FLOATING, HALF, FloatDType, as_dtype
from ruda_tensor.tensor import Tensor

from .buffers import Buffer
from .fields import SignatureOfFields, advice, declare, fill
from .param import Param
from .records import pack_params, restored

SETTINGS = frozenset((bool, int, float, str, type(None)))  # types of fields that hold nothing to walk into


@dataclass_transform(frozen_default=True, eq_default=False)
class Module:
    """Base of models and layers: a subclass is a frozen dataclass of its annotated fields.

    Fields hold parameters, buffers, modules, lists or dicts of them, or plain settings. There is no registration: the
    fields are the model. Change is functional: `map`, `to_dtype`, `valid` and the rest return a new module.

    >>> import ruda_tensor as rt
    >>> class Scale(Module):
    ...     factor: Param
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale(factor=Param(rt.tensor(3.0, device=rt.Cpu())))(rt.tensor(2.0, device=rt.Cpu())).item()
    6.0
    """

    __signature__ = SignatureOfFields()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, value in vars(cls).items():
            if isinstance(value, Module) or _walk(value, name):
                raise TypeError(
                    f"{cls.__name__}.{name} is a value of the class, which all its instances would share; declare the "
                    f"field ({name}: {type(value).__name__}) and give each its own: {cls.__name__}({name}=...)"
                )
        declare(cls, Module)
        if inspect.get_annotations(cls) and "__init__" not in vars(cls):
            cls.__init__ = Module.__init__  # type: ignore[method-assign]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fill(self, args, kwargs)

    __init__.fills = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        _frozen(self, name)

    def __delattr__(self, name: str) -> NoReturn:
        _frozen(self, name)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, declared = vars(self)[field.name], str(getattr(field.type, "__name__", field.type))
            if isinstance(value, Tensor) and not isinstance(value, Param) and value.is_require_grad():
                raise TypeError(
                    f"{type(self).__name__}: {field.name} is a tracked tensor, which no optimizer would find; "
                    f"make it a parameter: {type(self).__name__}({field.name}=Param(x))"
                )
            if declared == "Param" and not isinstance(value, Tensor):
                raise TypeError(
                    f"{type(self).__name__}: {field.name} is a Param, got {type(value).__name__} {value!r}; "
                    f"give Param(tensor){advice(type(self), tuple(v for v in vars(self).values() if v is not None))}"
                )
            if declared == "Buffer" and not isinstance(value, Buffer):
                raise TypeError(
                    f"{type(self).__name__}: {field.name} is a Buffer, got {type(value).__name__}; "
                    f"{type(self).__name__}({field.name}=Buffer(tensor))"
                )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no forward; define one: def forward(self, x): ...")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    # the walker
    def named_params(self) -> list[tuple[str, Param]]:
        """Return (path, parameter) for every place that holds one, in declaration order; tied ones come each time."""
        return [(path, p) for path, p in _walk(self, "") if isinstance(p, Param)]

    def named_buffers(self) -> list[tuple[str, Buffer]]:
        """Return (path, buffer) for every place that holds one, in declaration order; shared ones come each time."""
        return [(path, b) for path, b in _walk(self, "") if isinstance(b, Buffer)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return path -> values of every parameter and buffer, untracked, in declaration order.

        They are tensors, which nothing changes: later training does not reach them.
        """
        return {path: leaf.value if isinstance(leaf, Buffer) else leaf.detach() for path, leaf in _walk(self, "")}

    def visit(self, function: Callable[[str, Param], Any]) -> None:
        """Call `function(path, parameter)` for every place that holds a parameter."""
        for path, p in self.named_params():
            function(path, p)

    def paths(self) -> list[str]:
        """Return the path of every place that holds a parameter, such as "layers.0.weight"."""
        return [path for path, _ in self.named_params()]

    def params(self) -> list[Param]:
        """Return each distinct parameter once, where it first comes up in declaration order."""
        distinct: dict[tuple[str, bool], Param] = {}
        for _, p in self.named_params():
            _check_tie(distinct.setdefault((p.id, p.trainable), p), p)
        return list(distinct.values())

    def num_params(self) -> int:
        """Return the number of numbers in the distinct parameters."""
        return sum({p.id: p.size for p in self.params()}.values())

    def map(self, function: Callable[[Param], Any], **settings: Any) -> Any:
        """Return the module with every parameter replaced by `function(parameter)`; ties stay ties.

        `settings` replaces plain fields of that name in every module inside, such as `training=False`. Both modules
        share their buffers, since the new one is meant to go on in the place of the old.
        """
        return _Rebuild(function, settings).of(self)

    def map_tensors(self, function: Callable[[Tensor], Any]) -> Any:
        """Return the module with every tensor replaced by `function(tensor)`, once each; what nested arguments use."""
        return _Rebuild(function, {}, functools.cache(function)).of(self)

    # changes
    def to_dtype(self, dtype: FloatDType | Any) -> Any:
        """Return the module with its floats stored in `dtype`: new leaves with the same ids, ties and flags.

        Buffers follow to float32 and float64; a half `dtype` leaves them as they are, since a running average that
        moves by less than a unit in the last place would stand still.
        """
        wanted = _float_dtype("to_dtype", dtype)

        def state(b: Buffer) -> Tensor:
            return rt.astype(b.value, wanted) if b.dtype in FLOATING and wanted not in HALF else b.value

        return _Rebuild(lambda p: _cast(p, wanted), {}, cell=state).of(self)

    def to_dtype_selected(self, dtype: FloatDType | Any, ids: Iterable[str | Param]) -> Any:
        """As `to_dtype`, for the parameters of these ids alone (or for these parameters); buffers stay as they are.

        Errors: ValueError for an id that no parameter of this module has.
        """
        wanted = _float_dtype("to_dtype_selected", dtype)
        chosen = {ids} if isinstance(ids, str) else {p.id if isinstance(p, Param) else p for p in ids}
        unknown = chosen - {p.id for p in self.params()}
        if unknown:
            raise ValueError(
                f"to_dtype_selected: no parameter has the id {', '.join(map(repr, sorted(map(str, unknown))))}; "
                "take them from this model: [p for p in model.params() if ...]"
            )
        return _Rebuild(lambda p: _cast(p, wanted) if p.id in chosen else p.like(p._data), {}, cell=_held).of(self)

    def to_device(self, device: Any) -> Any:
        """Return the module on a device, with the same ids, ties and flags; parameters are leaves there.

        Buffers, and tensors in plain fields, move too.
        """
        return self._moved(resolve_device(device), {})

    def fork(self, device: Any) -> Any:
        """Return the module with new leaves on a device.

        On a recording device, trainable parameters are tracked under its strategy; on a plain one, as they were. A model
        of which nothing was tracked is thereby set to training mode, as `train` does; otherwise the mode stays.
        """
        place = resolve_device(device)
        if not isinstance(device, Autodiff):
            return self._moved(place, {})
        params = self.params()
        wakes = not any(p.is_require_grad() for p in params) and (not params or any(p.trainable for p in params))
        return self._moved(place, {"training": True} if wakes else {}, tracked=True, strategy=device.checkpointing)

    def _moved(self, place: Any, settings: dict[str, Any], **changes: Any) -> Any:
        def param(p: Param) -> Param:
            return p.like(p.detach().to_device(place)._data, device=place, **changes)

        return _Rebuild(param, settings, lambda x: x.to_device(place), lambda b: b.value.to_device(place)).of(self)

    def no_grad(self) -> Any:
        """Return the module with every parameter frozen: no gradient and no update, training mode as it was.

        The way back is `module.map(lambda p: p.require_grad())`.
        """
        return _Rebuild(lambda p: p.set_require_grad(False), {}, cell=_held).of(self)

    def valid(self) -> Any:
        """Return the same weights and buffers untracked and in inference mode; later training does not reach them."""
        return _Rebuild(lambda p: p.like(p._data, tracked=False), {"training": False}, cell=_held).of(self)

    def train(self) -> Any:
        """Return the same weights tracked (frozen ones stay frozen) and in training mode."""
        return _Rebuild(lambda p: p.like(p._data, tracked=True), {"training": True}, cell=_held).of(self)

    def clone(self) -> Any:
        """Return an independent copy with the same ids, which an update of this module cannot reach."""
        return _Rebuild(lambda p: p.copy(), {}, cell=_held).of(self)

    # records
    def to_record(self) -> dict[str, Any]:
        """Return paths, ids, flags and host copies of the values, as plain data; each distinct one once.

        Parameters and buffers are in it; other fields are settings, which the code that makes the module knows.
        """
        return pack_params(self)

    def load_record(self, record: dict[str, Any], *, keep_dtype: bool = True) -> Any:
        """Return the module with the recorded ids and values on its own devices; tracking follows this module.

        `keep_dtype` casts the values to this module's dtypes; otherwise the recorded dtypes are taken.
        Errors: RecordMismatch with a two-sided report where paths, shapes, ties or frozen flags differ; this module
        is as it was then, as it is after a success.
        """
        param, cell = restored(self, record, keep_dtype)
        return _Rebuild(param, {}, cell=cell).of(self)

    def devices(self) -> list[Device]:
        """Return each device that holds a parameter or buffer, in the order in which they first come up."""
        return list(dict.fromkeys(leaf.device for _, leaf in _walk(self, "")))

    def summary(self) -> str:
        """Return a table of path, shape, dtype, parameters and bytes; tied, frozen ones and buffers say so."""
        rows, first, size = [("path", "shape", "dtype", "params", "bytes", "")], {}, {}
        for path, leaf in _walk(self, ""):
            key = id(leaf) if isinstance(leaf, Buffer) else leaf.id
            same = first.setdefault(key, path)
            size[key] = leaf.nbytes
            kind = "buffer" if isinstance(leaf, Buffer) else "" if leaf.trainable else "frozen"
            note = ("" if same == path else f"tied to {same} ") + kind
            count = "" if isinstance(leaf, Buffer) else f"{leaf.size:,}"
            rows.append((path, str(tuple(leaf.shape)), str(leaf.dtype), count, f"{leaf.nbytes:,}", note))
        rows.append(("total", "", "", f"{self.num_params():,}", f"{sum(size.values()):,}", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)

    def __repr__(self) -> str:
        fields = [(name, value, _show(value)) for name, value in _fields(self)]
        short = f"{type(self).__name__}({', '.join(f'{name}={shown}' for name, _, shown in fields)})"
        if len(short) <= 100 and "\n" not in short and not any(isinstance(v, (Param, Buffer)) for _, v, _ in fields):
            return short
        return "\n".join([f"{type(self).__name__}(", *[f"  {name}={shown}," for name, _, shown in fields], ")"])


def _frozen(self: Module, name: str) -> NoReturn:
    kind = type(self).__name__
    known = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
    if name in known:
        advice = f"make a changed one: model = dataclasses.replace(model, {name}=...), or model.map(function)"
    else:
        advice = f"its fields are {', '.join(known) or 'none'}; declare another in the class: {name}: Linear"
    raise dataclasses.FrozenInstanceError(f"{kind} is not changed in place (here: {kind}.{name}); {advice}")


def _fields(module: Any) -> list[tuple[str, Any]]:
    """The declared fields of a module, in order; what functools.cached_property and the like keep there is left out."""
    values = vars(module)
    return [(name, values[name]) for name in type(module).__dataclass_fields__ if name in values]


def _show(value: Any) -> str:
    """A field for `repr`, on lines that the caller indents by two."""
    if isinstance(value, Param):
        if value.is_consumed():
            return f"Param({value.id}, consumed)"
        return f"Param{tuple(value.shape)} {value.dtype}{'' if value.trainable else ' frozen'}"
    if isinstance(value, dict) and value:
        parts, ends = [f"{name!r}: {_show(v)}" for name, v in value.items()], "{}"
    elif type(value) in (list, tuple) and any(isinstance(v, (Module, Param, list, dict)) for v in value):
        parts, ends = [_show(v) for v in value], "[]" if isinstance(value, list) else "()"
    else:
        return repr(value).replace("\n", "\n  ")
    return "\n    ".join([ends[0], *[part.replace("\n", "\n  ") + "," for part in parts]]) + f"\n  {ends[1]}"


def _float_dtype(name: str, dtype: Any) -> Any:
    wanted = as_dtype(dtype)
    if wanted not in FLOATING:
        raise TypeError(f"{name}: {wanted} is not a float; give FloatDType.F16, BF16, F32 or F64")
    return wanted


def _cast(p: Param, dtype: Any) -> Param:
    return p.like(rt.astype(p.detach(), dtype)._data if p.dtype in FLOATING else p._data)


def _unchanged(x: Tensor) -> Tensor:
    return x


def _held(b: Buffer) -> Tensor:
    return b.value


def _walk(value: Any, path: str, into: list[tuple[str, Param | Buffer]] | None = None) -> list[tuple[str, Param | Buffer]]:
    """(path, leaf) for every parameter and buffer in a structure, appended to `into`."""
    found: list[tuple[str, Param | Buffer]] = [] if into is None else into
    if isinstance(value, (Param, Buffer)):
        found.append((path, value))
        return found
    before = f"{path}." if path else ""
    if isinstance(value, Module):
        kind: Any = type(value)
        values = vars(value)
        for name in kind.__dataclass_fields__:
            inner = values.get(name)  # most are settings, and a walk into each would be most of the time
            if type(inner) is Param:
                found.append((before + name, inner))
            elif type(inner) not in SETTINGS:
                _walk(inner, before + name, found)
        return found
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, (set, frozenset)) and any(isinstance(v, (Param, Buffer, Module)) for v in value):
        raise TypeError(f"{path}: a set has no order, so its parameters have no paths; use a list or a dict")
    else:
        return found
    for name, inner in items:
        if type(inner) not in SETTINGS:
            _walk(inner, f"{before}{name}", found)
    return found


class _Rebuild:
    """One walk that makes a new structure: `function` of each distinct parameter, `other` of each plain tensor.

    With `cell`, each distinct buffer becomes a new one that holds `cell(buffer)`; otherwise it is handed on.
    """

    def __init__(
        self, function: Callable, settings: dict[str, Any], other: Callable = _unchanged, cell: Callable | None = None
    ) -> None:
        self.function, self.settings, self.other, self.cell = function, settings, other, cell
        self.seen: dict[tuple[str, bool], tuple[Param, Any]] = {}
        self.cells: dict[int, Buffer] = {}

    def of(self, value: Any) -> Any:
        if type(value) in SETTINGS:
            return value
        if isinstance(value, Tensor):
            return self.param(value) if isinstance(value, Param) else self.other(value)
        if isinstance(value, Buffer):
            return self.buffer(value)
        if isinstance(value, Module):
            kind: Any = type(value)
            out, settings = object.__new__(kind), self.settings
            made, values = vars(out), vars(value)
            for name in kind.__dataclass_fields__:
                if name in values:
                    inner = settings[name] if name in settings else values[name]
                    made[name] = inner if type(inner) in SETTINGS or name in settings else self.of(inner)
            return out
        if isinstance(value, dict):
            return {name: self.of(inner) for name, inner in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self.of(inner) for inner in value])
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(inner) for inner in value)
        return value

    def buffer(self, b: Buffer) -> Buffer:
        if self.cell is None:
            return b
        if id(b) not in self.cells:
            self.cells[id(b)] = Buffer(self.cell(b))
        return self.cells[id(b)]

    def param(self, p: Param) -> Any:
        key = (p.id, p.trainable)
        if key not in self.seen:
            made = self.function(p)
            if made is None:
                raise TypeError(
                    f"map: the function returned None for a parameter of shape {p.shape}; return what takes its place, "
                    "or look without changing: model.visit(lambda path, p: print(path, p.shape))"
                )
            self.seen[key] = p, made
        first, made = self.seen[key]
        _check_tie(first, p)
        return made


def _check_tie(first: Param, p: Param) -> None:
    if first is not p and first.shape != p.shape:
        raise ValueError(f"two parameters with the id {p.id} are tied, and have shapes {first.shape} and {p.shape}")
