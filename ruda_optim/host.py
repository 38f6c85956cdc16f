"""Sgd, Adam and AdamW on a CPU with a compiler: one call updates all parameters, with the bits of the rule.

Nothing is gathered in buckets, and one table of blocks is shared out to all cores. What the compiled bodies do not know
(half types, another rule, clipping) is left to the rule itself, and so is a parameter that is in a bucket already.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ruda_nn import Param
from ruda_tensor.kernels.host.update import SUFFIX, available, update_all
from ruda_tensor.tensor import Tensor

from .buckets import own_array, own_arrays
from .rules import Adam, AdamW, Sgd

NAMES = {Sgd: "sgd", Adam: "adam", AdamW: "adam"}


def update_on_host(optimizer: Any, lr: float, params: dict[str, Param], chosen: dict[str, Tensor]) -> dict[str, Param]:
    """Update what the compiled bodies take, and return id -> new parameter of those."""
    grouping, states, batches = optimizer._grouping, optimizer.states, {}
    if not available(max([p._data.size for p in params.values()], default=0)):
        return {}
    for key, p in params.items():
        number, dtype, g = grouping.of(key), p._data.dtype, chosen[key]._data  # no name for the array: it would be a reader
        rule = grouping.rules[number]
        if type(rule) not in NAMES or rule.clipping is not None or key in optimizer._places or p.device.kind != "cpu":
            continue
        state = states.get(key)
        if dtype not in SUFFIX or g.dtype != dtype or (state is not None and not _alike(dtype, rule, state)):
            continue
        if state is None:
            state = states[key] = rule.start(np, p._data)
        arrays = [own_array(p), g if g.flags.c_contiguous else np.ascontiguousarray(g), *own_arrays(state, rule.arrays)]
        kind = number, state["time"], dtype
        if kind not in batches:
            batches[kind] = []
        batches[kind].append((p, state, arrays))
    new: dict[str, Param] = {}
    for (number, time, _), members in batches.items():
        rule = grouping.rules[number]
        for _, state, _ in members:
            state["time"] = time + 1
        entries = [rule.places(arrays) for _, _, arrays in members]
        update_all(NAMES[type(rule)], entries, *rule.constants(lr * grouping.scales[number], time + 1))
        for p, _, arrays in members:
            new[p.id] = p.successor(arrays[0])
    return new


def _alike(dtype: Any, rule: Any, state: dict[str, Any]) -> bool:
    """Whether the states are of the parameter's dtype, and all in row-major order."""
    for name in rule.arrays:
        a = state[name]
        if a.dtype != dtype or not a.flags.c_contiguous:
            return False
    return True
