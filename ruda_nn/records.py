"""Arrays and models as plain data for records, and back: every part checked before anything is made of it."""
from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from ruda_record import RecorderError
from ruda_tensor.backend import to_host
from ruda_tensor.dtypes import BY_NAME, FLOATING


class RecordMismatch(RecorderError, ValueError):
    """A record that is whole, and does not fit what it is to be restored into; the message shows both sides.

    It is a `RecorderError`, like everything that can be wrong with a record, and a `ValueError`.
    """


class RecordBroken(RecorderError, ValueError):
    """Data that cannot have been made by `to_record`."""


def broken(what: str) -> NoReturn:
    raise RecordBroken(f"the record is not valid: {what}")


def pack(array: Any) -> dict[str, Any]:
    """Return an array as its dtype's name and a host copy: a recorder may narrow the copy, and the name stays."""
    host = to_host(array)
    return {"dtype": str(host.dtype), "value": host.copy(order="C") if host is array else host}


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
    """Return a module's places and distinct parameters as plain data; see `Module.to_record`."""
    index: dict[tuple[str, bool], int] = {}
    places: dict[str, int] = {}
    params = []
    for path, p in module.named_params():
        if path in places:
            raise ValueError(f"two parameters have the path {path!r}, so a record would lose one; rename a dict's key")
        key = (p.id, p.trainable)
        if key not in index:
            index[key] = len(params)
            value = p.numpy()
            params.append({"id": p.id, "trainable": p.trainable, "dtype": str(value.dtype), "value": value})
        places[path] = index[key]
    return {"places": places, "params": params}


def unpack_params(record: Any) -> dict[str, dict[str, Any]]:
    """Return path -> {id, trainable, dtype, value} of a model's record, after checking all of it."""
    if not isinstance(record, dict) or set(record) != {"places", "params"}:
        broken("its model should hold places and params")
    places, params = record["places"], record["params"]
    if not isinstance(places, dict) or not isinstance(params, list):
        broken("its model's places should be a dict, and its params a list")
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
    for path, i in places.items():
        if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < len(entries):
            broken(f"{path} should be one of {len(entries)} parameters, not {i!r}")
    return {path: entries[i] for path, i in places.items()}


def restore_params(module: Any, record: Any, keep_dtype: bool) -> Any:
    """Return `module` with the recorded ids and values; see `Module.load_record`."""
    entries = unpack_params(record)
    named = dict(module.named_params())
    problems = _differences(named, entries)
    if problems:
        raise RecordMismatch("the record does not fit this model (record | model):\n  " + "\n  ".join(problems))
    by_key = {(p.id, p.trainable): entries[path] for path, p in named.items()}

    def restored(p: Any) -> Any:
        entry = by_key[p.id, p.trainable]
        value = entry["value"]
        with p.device.guard(), np.errstate(all="ignore"):
            own = p.device.xp.array(value.astype(p.dtype if keep_dtype else value.dtype))
        return p.like(own, id=entry["id"])

    return module.map(restored)


def _differences(named: dict[str, Any], entries: dict[str, dict[str, Any]]) -> list[str]:
    """Say, for every path, how the record and the model differ."""
    problems = [f"{path}: present | missing" for path in entries if path not in named]
    problems += [f"{path}: missing | present" for path in named if path not in entries]
    here, there = _ties({k: p.id for k, p in named.items()}), _ties({k: e["id"] for k, e in entries.items()})
    for path, p in named.items():
        if path not in entries:
            continue
        entry = entries[path]
        if tuple(entry["value"].shape) != tuple(p.shape):
            problems.append(f"{path}: shape {tuple(entry['value'].shape)} | {tuple(p.shape)}")
        if entry["value"].dtype != p.dtype and not {entry["value"].dtype, p.dtype} <= FLOATING:
            problems.append(f"{path}: {entry['value'].dtype} | {p.dtype}")
        if entry["trainable"] != p.trainable:
            problems.append(f"{path}: {_flag(entry['trainable'])} | {_flag(p.trainable)}")
        if here[path] != there[path]:
            problems.append(f"{path}: {_tied(path, there[path])} | {_tied(path, here[path])}")
    return problems


def _ties(ids: dict[str, str]) -> dict[str, str]:
    """Return, for every path, the first path that has the same id."""
    first: dict[str, str] = {}
    return {path: first.setdefault(key, path) for path, key in ids.items()}


def _tied(path: str, first: str) -> str:
    return "not tied" if path == first else f"tied to {first}"


def _flag(trainable: bool) -> str:
    return "trainable" if trainable else "frozen"
