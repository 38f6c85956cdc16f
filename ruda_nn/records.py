"""Arrays and models as plain data for records, and back: every part checked before anything is made of it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ruda_record import RecorderError
from ruda_tensor.backend import to_host
from ruda_tensor.dtypes import BY_NAME, FLOATING
from ruda_tensor.tensor import Tensor

from .buffers import Buffer


class RecordMismatch(RecorderError, ValueError):
    """A record that is whole, and does not fit what it is to be restored into; the message shows both sides.

    It is a `RecorderError`, like everything that can be wrong with a record, and a `ValueError`.
    """


class RecordBroken(RecorderError, ValueError):
    """Data that cannot have been made by `to_record`."""


def broken(what: str) -> NoReturn:
    raise RecordBroken(f"the record is not valid: {what}")


def compare(theirs: Any, mine: dict[str, Any], what: str) -> None:
    """Raise RecordMismatch, with both sides, unless two configurations are the same."""
    if not isinstance(theirs, dict):
        broken(f"the configuration of its {what} should be a dict")
    if theirs != mine:
        keys = [k for k in {**mine, **theirs} if theirs.get(k) != mine.get(k)]
        sides = "\n  ".join(f"{k}: {theirs.get(k)!r} | {mine.get(k)!r}" for k in keys)
        raise RecordMismatch(f"the record's {what} is configured differently (record | here):\n  {sides}")


def pack(array: Any) -> dict[str, Any]:
    """Return an array as its dtype's name and its values on the host: a recorder may narrow them, and the name stays.

    On the CPU no number is copied: the values are a view that cannot be written to. An optimizer changes arrays in
    place only where nobody else refers to them, and otherwise takes a copy first, so what is packed stays as it is.
    """
    host = to_host(array)
    if host is array:
        host = host.view() if host.flags.c_contiguous else host.copy(order="C")
        host.flags.writeable = False
    return {"dtype": str(host.dtype), "value": host}


def unpack(entry: Any, where: str) -> np.ndarray:
    """Return a packed array in the dtype it had; a view of the record where that is the dtype it is stored in."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "value"} or not isinstance(entry["value"], np.ndarray):
        broken(f"{where} should be an array with its dtype")
    name, value = entry["dtype"], entry["value"]
    if not isinstance(name, str) or name not in BY_NAME or value.dtype not in BY_NAME.values():
        broken(f"{where} has the dtype {name!r}, stored as {value.dtype}")
    dtype = BY_NAME[name]
    if dtype != value.dtype and not (dtype in FLOATING and value.dtype in FLOATING):
        broken(f"{where} was {name} and is stored as {value.dtype}")
    with np.errstate(all="ignore"):
        return value.astype(dtype, copy=False)


def pack_params(module: Any) -> dict[str, Any]:
    """Return a module's places, distinct parameters and buffers as plain data; see `Module.to_record`.

    A module without buffers has no "buffers" in its record.
    """
    index: dict[tuple[str, bool], int] = {}
    places: dict[str, int] = {}
    params = []
    for path, p in module.named_params():
        _check_path(path, places)
        key = (p.id, p.trainable)
        if key not in index:
            index[key] = len(params)
            values = p.numpy() if p.is_consumed() else p._data  # numpy() says what a consumed parameter is
            params.append({"id": p.id, "trainable": p.trainable, **pack(values)})
        places[path] = index[key]
    record: dict[str, Any] = {"places": places, "params": params}
    cells: dict[int, int] = {}
    buffers: dict[str, Any] = {"places": {}, "values": []}
    for path, b in module.named_buffers():
        _check_path(path, {**places, **buffers["places"]})
        if id(b) not in cells:
            cells[id(b)] = len(cells)
            buffers["values"].append(pack(b.value._data))
        buffers["places"][path] = cells[id(b)]
    return {**record, "buffers": buffers} if cells else record


def _check_path(path: str, taken: dict[str, int]) -> None:
    if path in taken:
        raise ValueError(f"two parameters or buffers have the path {path!r}, so a record would lose one; rename a dict's key")


def unpack_params(record: Any) -> dict[str, dict[str, Any]]:
    """Return path -> {id, trainable, value} of a model's record, after checking all of it, buffers included.

    A buffer's entry has its number in the place of an id, and None for trainable.
    """
    if not isinstance(record, dict) or set(record) - {"buffers"} != {"places", "params"}:
        broken("its model should hold places and params, and perhaps buffers, as model.to_record() does")
    params = record["params"]
    if not isinstance(params, list):
        broken("its model's params should be a list")
    entries, keys = [], set()
    for i, entry in enumerate(params):
        if not isinstance(entry, dict) or set(entry) != {"id", "trainable", "dtype", "value"}:
            broken(f"parameter {i} should hold id, trainable, dtype and value")
        key = (entry["id"], entry["trainable"])
        if not isinstance(key[0], str) or not key[0] or not isinstance(key[1], bool) or key in keys:
            broken(f"parameter {i} has the id {key[0]!r} and trainable {key[1]!r}, or occurs twice")
        keys.add(key)
        value = unpack({"dtype": entry["dtype"], "value": entry["value"]}, f"parameter {key[0]}")
        entries.append({"id": key[0], "trainable": key[1], "value": value})
    found = _placed(record["places"], entries, "parameters")
    if "buffers" not in record:
        return found
    buffers = record["buffers"]
    if not isinstance(buffers, dict) or set(buffers) != {"places", "values"} or not isinstance(buffers["values"], list):
        broken("its model's buffers should hold places and a list of values")
    values = [unpack(entry, f"buffer {i}") for i, entry in enumerate(buffers["values"])]
    cells = [{"id": i, "trainable": None, "value": value} for i, value in enumerate(values)]
    state = _placed(buffers["places"], cells, "buffers")
    if both := sorted(set(found) & set(state)):
        broken(f"{both[0]} is a parameter and a buffer")
    return {**found, **state}


def _placed(places: Any, entries: list[dict[str, Any]], what: str) -> dict[str, dict[str, Any]]:
    if not isinstance(places, dict):
        broken(f"the places of its model's {what} should be a dict")
    for path, i in places.items():
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < len(entries):
            broken(f"{path} should be one of {len(entries)} {what}, not {i!r}")
    return {path: entries[i] for path, i in places.items()}


def restored(module: Any, record: Any, keep_dtype: bool) -> tuple[Callable, Callable]:
    """Return how each parameter, and the tensor in each buffer, of `module` comes out of a record that fits it."""
    entries = unpack_params(record)
    named, buffers = dict(module.named_params()), dict(module.named_buffers())
    problems = _differences({**named, **buffers}, entries)
    if problems:
        raise RecordMismatch("the record does not fit this model (record | model):\n  " + "\n  ".join(problems))
    by_key = {(p.id, p.trainable): entries[path] for path, p in named.items()}

    def own(x: Any, entry: dict[str, Any]) -> Any:
        value = entry["value"]
        with x.device.guard(), np.errstate(all="ignore"):
            return x.device.xp.array(value.astype(x.dtype if keep_dtype else value.dtype))

    def param(p: Any) -> Any:
        entry = by_key[p.id, p.trainable]
        return p.like(own(p, entry), id=entry["id"])

    path_of = {id(b): path for path, b in buffers.items()}
    return param, lambda b: Tensor._wrap(own(b, entries[path_of[id(b)]]), b.device)


def _differences(named: dict[str, Any], entries: dict[str, dict[str, Any]]) -> list[str]:
    """Say, for every path, how the record and the model differ."""
    problems = [f"{path}: {_kind(entry['trainable'])} | missing" for path, entry in entries.items() if path not in named]
    problems += [f"{path}: missing | {_kind(_trainable(x))}" for path, x in named.items() if path not in entries]
    here, there = _ties({k: _identity(x) for k, x in named.items()}), _ties({k: e["id"] for k, e in entries.items()})
    for path, x in named.items():
        if path not in entries:
            continue
        entry = entries[path]
        if tuple(entry["value"].shape) != tuple(x.shape):
            problems.append(f"{path}: shape {tuple(entry['value'].shape)} | {tuple(x.shape)}")
        if entry["value"].dtype != x.dtype and not {entry["value"].dtype, x.dtype} <= FLOATING:
            problems.append(f"{path}: {entry['value'].dtype} | {x.dtype}")
        if entry["trainable"] != _trainable(x):
            problems.append(f"{path}: {_flag(entry['trainable'])} | {_flag(_trainable(x))}")
        if here[path] != there[path]:
            problems.append(f"{path}: {_tied(path, there[path])} | {_tied(path, here[path])}")
    return problems


def _identity(x: Any) -> Any:
    return id(x) if isinstance(x, Buffer) else x.id


def _trainable(x: Any) -> bool | None:
    return None if isinstance(x, Buffer) else x.trainable


def _kind(trainable: bool | None) -> str:
    return "buffer" if trainable is None else "present"


def _ties(ids: dict[str, Any]) -> dict[str, str]:
    """Return, for every path, the first path that has the same id."""
    first: dict[Any, str] = {}
    return {path: first.setdefault(key, path) for path, key in ids.items()}


def _tied(path: str, first: str) -> str:
    return "not tied" if path == first else f"tied to {first}"


def _flag(trainable: bool | None) -> str:
    return "buffer" if trainable is None else "trainable" if trainable else "frozen"
