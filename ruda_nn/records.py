"""Putting a recorded model's ids and values into a module of the same structure."""
from __future__ import annotations

from typing import Any

from .param import Param


def restore_params(module: Any, record: dict[str, Any], keep_dtype: bool) -> Any:
    """Return `module` with the recorded ids and values; see `Module.load_record`."""
    places: dict[str, list] = record["places"]
    stored = {(entry["id"], entry["trainable"]): entry for entry in record["params"]}
    problems = _differences(module, places, stored)
    if problems:
        raise ValueError("the record does not fit this model (record | model):\n  " + "\n  ".join(problems))
    by_param: dict[int, dict[str, Any]] = {}
    for path, p in module.named_params():
        by_param[id(p)] = stored[tuple(places[path])]

    def restored(p: Param) -> Param:
        entry = by_param[id(p)]
        value = entry["value"].astype(p.dtype if keep_dtype else entry["value"].dtype)  # always a copy
        with p.device.guard():
            out = p.like(p.device.xp.asarray(value))
        out.id = entry["id"]
        return out

    return module.map(restored)


def _differences(module: Any, places: dict[str, list], stored: dict[tuple, dict[str, Any]]) -> list[str]:
    """Say, for every path, how the record and the model differ."""
    named = dict(module.named_params())
    problems = [f"{path}: present | missing" for path in places if path not in named]
    aliases: dict[tuple, set] = {}
    for path, p in named.items():
        if path not in places:
            problems.append(f"{path}: missing | present")
            continue
        entry = stored.get(tuple(places[path]))
        if entry is None:
            problems.append(f"{path}: its values are missing | present")
            continue
        aliases.setdefault(tuple(places[path]), set()).add((p.id, p.trainable))
        if tuple(entry["value"].shape) != tuple(p.shape):
            problems.append(f"{path}: shape {tuple(entry['value'].shape)} | {tuple(p.shape)}")
        if bool(entry["trainable"]) != p.trainable:
            problems.append(f"{path}: {_flag(entry['trainable'])} | {_flag(p.trainable)}")
    problems += [f"parameter {key[0]}: tied | not tied" for key, ids in aliases.items() if len(ids) > 1]
    if not problems and len(aliases) != len({key for ids in aliases.values() for key in ids}):
        problems.append("a parameter: not tied | tied")
    return problems


def _flag(trainable: bool) -> str:
    return "trainable" if trainable else "frozen"
