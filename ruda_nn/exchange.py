"""Models to and from files: records of our own, and PyTorch checkpoints as safetensors.

A PyTorch state dict has its own names and layouts. A module class says where its own differ: `torch_names` maps paths
below the module to PyTorch's (`{"out": "out_proj"}`; an empty name drops a level, as `Sequential` does with "layers"), and
`transposed_in_torch` lists fields that hold a matrix the other way round, as `Linear` does.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ruda_record import read_safetensors, write_safetensors
from ruda_record.recorders import as_recorder
from ruda_tensor.backend import to_host
from ruda_tensor.dtypes import FLOATING
from ruda_tensor.tensor import Tensor

from .buffers import Buffer
from .module import Module, _fields, _Rebuild
from .param import Param
from .records import RecordMismatch

__all__ = ["LoadReport", "load_module", "load_safetensors", "save_module", "save_safetensors"]

# What PyTorch's BatchNorm counts and, with a momentum that is a number, never uses.
IGNORED = "num_batches_tracked"


def save_module(module: Module, recorder: Any, path: str | os.PathLike[str]) -> Path:
    """Write a module's record with a recorder (or its class), and return the file's path.

    The record is `module.to_record()`: paths, ids, flags and values, tied parameters once.
    Errors: RecorderError where the file cannot be written; the old file is as it was then.

    >>> import pathlib, tempfile
    >>> import ruda_tensor as rt
    >>> from ruda_nn import LinearConfig
    >>> from ruda_record import BinFileRecorder
    >>> model = LinearConfig(3, 2).init(rt.Cpu())
    >>> path = save_module(model, BinFileRecorder(), pathlib.Path(tempfile.mkdtemp()) / "model")
    >>> again = load_module(LinearConfig(3, 2).init(rt.Cpu()), BinFileRecorder(), path)
    >>> bool((again.weight == model.weight).all()), again.weight.id == model.weight.id
    (True, True)
    """
    return as_recorder(recorder).save(_module(module, "save_module").to_record(), path)


def load_module(module: Any, recorder: Any, path: str | os.PathLike[str], *, keep_dtype: bool = True) -> Any:
    """Return `module` with the ids and values of a record that `save_module` wrote; see `Module.load_record`.

    Errors: RecordMismatch where the record is of another model, with both sides; RecorderError for a damaged file.

    >>> import pathlib, tempfile
    >>> import ruda_tensor as rt
    >>> from ruda_nn import LinearConfig
    >>> from ruda_record import BinFileRecorder
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model"
    >>> _ = save_module(LinearConfig(3, 2).init(rt.Cpu()), BinFileRecorder, path)
    >>> load_module(LinearConfig(3, 2, bias=False).init(rt.Cpu()), BinFileRecorder, path)
    Traceback (most recent call last):
        ...
    ruda_nn.records.RecordMismatch: the record does not fit this model (record | model):
      bias: present | missing
    """
    model = _module(module, "load_module")
    return model.load_record(as_recorder(recorder).load(path), keep_dtype=keep_dtype)


@dataclass
class LoadReport:
    """What became of each name when a checkpoint was loaded.

    `loaded` has our paths; `missing` those that the file has nothing for; `unexpected` the file's names that no place of
    the model takes; `mismatched` says "path: file | model" where shape, kind of dtype, range or tied values differ;
    `cast` the same where a float dtype was converted; `ignored` the file's names that were left out on purpose.

    >>> LoadReport(loaded=["weight"], missing=["bias"]).fits()
    False
    """

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    cast: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def fits(self) -> bool:
        """Return whether every place was filled and every name of the file used or ignored."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} loaded"]
        for name in ("missing", "unexpected", "mismatched", "cast", "ignored"):
            lines += [f"{name}: {entry}" for entry in vars(self)[name]]
        return "\n  ".join(lines)


def load_safetensors(
    module: Any,
    path: str | os.PathLike[str],
    *,
    names: Mapping[str, str] | Callable[[str], str | None] | None = None,
    strict: bool = True,
    keep_dtype: bool = True,
) -> tuple[Any, LoadReport]:
    """Return `module` with the values of a PyTorch checkpoint in a safetensors file, and a report.

    A name in the file is one of PyTorch's for this module, or is made one by `names`: a dict from the file's names (what
    is not in it stays), or a function of them that may return None to leave a tensor out. What `names` gives may also be
    a path of this module. Ids, ties, flags and tracking stay this module's. Tied parameters need one of their names in
    the file; of several, the values must agree. Buffers are loaded too. Floats are converted to this module's dtypes, or
    with `keep_dtype=False` parameters take the file's; integers and bools must be what they are.

    Errors: RecordMismatch with the report if something is missing, unexpected or mismatched, unless `strict=False`,
    which loads the rest; RecorderError for a damaged file; ImportError without the package safetensors.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import ruda_tensor as rt
    >>> from ruda_nn import LinearConfig
    >>> from ruda_record import write_safetensors
    >>> state = {"model.weight": np.ones((2, 3), np.float32), "model.bias": np.zeros(2, np.float32)}
    >>> path = write_safetensors(pathlib.Path(tempfile.mkdtemp()) / "torch", state)
    >>> model, report = load_safetensors(
    ...     LinearConfig(3, 2).init(rt.Cpu()), path, names=lambda name: name.removeprefix("model."))
    >>> model.weight.shape, report.loaded
    ((3, 2), ['weight', 'bias'])
    """
    places = list(_places(_module(module, "load_safetensors")))
    found, report = _assign(read_safetensors(path), places, names)
    by_key: dict[Any, np.ndarray] = {}
    for place in places:
        if place.path in found:
            _take(place, found[place.path], by_key, report, keep_dtype)
    filled = {place.key for place in places if place.path in found}
    report.missing = [place.path for place in places if place.key not in filled]
    if strict and not report.fits():
        raise RecordMismatch(f"{path} does not fit this model (file | model); strict=False loads what does:\n  {report}")

    def own(x: Any, key: Any) -> Any:
        with x.device.guard():
            return x.device.xp.array(by_key[key], order="C")

    def param(p: Param) -> Param:
        return p.like(own(p, _key(p))) if _key(p) in by_key else p.like(p._data)

    def cell(b: Buffer) -> Tensor:
        return Tensor._wrap(own(b, _key(b)), b.device) if _key(b) in by_key else b.value

    return _Rebuild(param, {}, cell=cell).of(module), report


def save_safetensors(
    module: Module, path: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None
) -> Path:
    """Write a module's parameters and buffers to a safetensors file with PyTorch's names and layouts; return its path.

    Tied parameters are written under each of their names, since PyTorch's strict loading asks for all of them.
    Errors: ValueError where two places have one name in PyTorch; RecorderError where the file cannot be written.

    >>> import pathlib, tempfile
    >>> import ruda_tensor as rt
    >>> from ruda_nn import LinearConfig
    >>> from ruda_record import read_safetensors
    >>> path = save_safetensors(LinearConfig(3, 2).init(rt.Cpu()), pathlib.Path(tempfile.mkdtemp()) / "model")
    >>> {name: array.shape for name, array in read_safetensors(path).items()}
    {'bias': (2,), 'weight': (2, 3)}
    """
    arrays: dict[str, np.ndarray] = {}
    for place in _places(_module(module, "save_safetensors")):
        if place.theirs in arrays:
            raise ValueError(f"{place.path} and another place are both {place.theirs!r} in PyTorch; see torch_names")
        leaf = place.leaf.value if isinstance(place.leaf, Buffer) else place.leaf.detach()
        host = to_host(leaf._data)
        arrays[place.theirs] = host.swapaxes(-1, -2) if place.transposed else host
    return write_safetensors(path, arrays, metadata)


@dataclass
class _Place:
    """A parameter or buffer: its path, its name in PyTorch, and whether PyTorch's matrix is the transposed one."""

    path: str
    theirs: str
    transposed: bool
    leaf: Param | Buffer

    @property
    def key(self) -> Any:
        return _key(self.leaf)


def _key(leaf: Param | Buffer) -> Any:
    return id(leaf) if isinstance(leaf, Buffer) else (leaf.id, leaf.trainable)


def _join(before: str, name: str) -> str:
    return f"{before}.{name}" if before and name else before or name


def _places(
    value: Any, path: str = "", theirs: str = "", transposed: bool = False, renames: Mapping[str, str] | None = None
) -> Iterator[_Place]:
    """Walk as `named_params` does. `renames` has PyTorch's full names of paths below this one, said further up."""
    if isinstance(value, Param | Buffer):
        yield _Place(path, theirs, transposed, value)
        return
    pending = dict(renames or {})
    if isinstance(value, Module):
        own = getattr(value, "torch_names", {})
        pending = {**{ours: _join(theirs, name) for ours, name in own.items()}, **pending}
        items: Any = _fields(value)
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        return
    turned = getattr(value, "transposed_in_torch", ()) if isinstance(value, Module) else ()
    for name, inner in items:
        name = str(name)
        below = {ours[len(name) + 1 :]: full for ours, full in pending.items() if ours.startswith(f"{name}.")}
        yield from _places(inner, _join(path, name), pending.get(name, _join(theirs, name)), name in turned, below)


def _assign(
    arrays: dict[str, np.ndarray], places: list[_Place], names: Mapping[str, str] | Callable[[str], str | None] | None
) -> tuple[dict[str, tuple[str, np.ndarray]], LoadReport]:
    """Our path -> (name in the file, array); what finds no place goes into the report."""
    report, found = LoadReport(), {}
    by_theirs, by_path = {place.theirs: place.path for place in places}, {place.path: place.path for place in places}
    for name, array in arrays.items():
        wanted = names.get(name, name) if isinstance(names, Mapping) else names(name) if names else name
        if wanted is None:
            report.ignored.append(name)
            continue
        both = (by_theirs, by_path) if wanted == name else (by_path, by_theirs)
        path = both[0].get(wanted, both[1].get(wanted) if names is not None else None)
        if path is None and wanted.rpartition(".")[2] == IGNORED:
            report.ignored.append(name)
        elif path is None:
            report.unexpected.append(name if wanted == name else f"{name} (as {wanted})")
        elif path in found:
            report.mismatched.append(f"{path}: {found[path][0]} and {name} | one place")
        else:
            found[path] = (name, array)
    return found, report


def _take(
    place: _Place, found: tuple[str, np.ndarray], by_key: dict[Any, np.ndarray], report: LoadReport, keep_dtype: bool
) -> None:
    """Put an array into our layout and dtype, if it fits its place."""
    name, array = found
    at = place.path if name == place.path else f"{place.path} ({name})"
    array = array.swapaxes(-1, -2) if place.transposed and array.ndim > 1 else array
    dtype = place.leaf.dtype
    if array.shape != tuple(place.leaf.shape):
        turned = ", transposed," if place.transposed else ""
        report.mismatched.append(f"{at}: shape{turned} {array.shape} | {tuple(place.leaf.shape)}")
        return
    if array.dtype != dtype:
        if array.dtype not in FLOATING or dtype not in FLOATING:
            report.mismatched.append(f"{at}: {array.dtype} | {dtype}")
            return
        if keep_dtype or isinstance(place.leaf, Buffer):
            with np.errstate(all="ignore"):
                converted = array.astype(dtype)
                if (np.isinf(converted) & np.isfinite(array)).any():
                    report.mismatched.append(f"{at}: {array.dtype} beyond the largest {dtype} | {dtype}")
                    return
            array = converted
        report.cast.append(f"{at}: {found[1].dtype} | {dtype}" + ("" if array.dtype == dtype else ", kept"))
    before = by_key.setdefault(place.key, array)
    if before is not array and not _equal_bits(before, array):
        report.mismatched.append(f"{at}: other values than its tied place | tied")
        return
    report.loaded.append(place.path)


def _equal_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _module(module: Any, function: str) -> Any:
    if not isinstance(module, Module):
        raise TypeError(f"{function}: expected a Module first, got {type(module).__name__}; {function}(model, ...)")
    return module
