"""The rows of every family, and how tests turn their arrays into tensors."""
from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from tests import specs
from tests.specs._spec import Spec


def all_rows() -> list[Spec]:
    names = sorted(info.name for info in pkgutil.iter_modules(specs.__path__) if not info.name.startswith("_"))
    return [row for name in names for row in importlib.import_module(f"tests.specs.{name}").ROWS]


ROWS = all_rows()


def each(rows: list[Spec]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=str)


def arrays_of(row: Spec, seed: int = 0) -> list[np.ndarray]:
    return [np.asarray(a) for a in row.make(np.random.default_rng(seed))]


def is_float(a: np.ndarray) -> bool:
    return a.dtype.kind == "f"


def tensors(arrays: list[np.ndarray], device: Any = None, dtype: Any = None) -> list[rt.Tensor]:
    """Floating arrays in `dtype` (their own by default), others as they are."""
    device = rt.Cpu() if device is None else device
    return [rt.tensor(a, dtype=dtype if dtype is not None and is_float(a) else None, device=device) for a in arrays]


def results(value: Any) -> list[rt.Tensor]:
    """The tensors that a call returned."""
    if isinstance(value, rt.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [y for part in value for y in results(part)]
    return []


def as_arrays(value: Any) -> list[np.ndarray]:
    """What a reference returned."""
    if isinstance(value, (tuple, list)):
        return [a for part in value for a in as_arrays(part)]
    return [np.asarray(value)]


def gradients_of(row: Spec, inputs: list[rt.Tensor], seed: int = 0) -> list[rt.Tensor | None]:
    """Gradients of a random combination of the results by every floating input."""
    rng = np.random.default_rng(seed + 1000)  # not the inputs' own: weights equal to them would hide errors of scale
    leaves = [x.require_grad() if x.dtype in (rt.float16, rt.bfloat16, rt.float32, rt.float64) else x for x in inputs]
    total = None
    for y in results(row.call(*leaves)):
        if y.is_require_grad():
            weight = rt.tensor(rng.standard_normal(y.shape), dtype=y.dtype, device=y.device)
            part = rt.sum(y * weight)
            total = part if total is None else total + rt.astype(part, total.dtype)
    assert total is not None, "no result of the call is tracked"
    found = total.backward()
    return [found.get(x) if x.is_require_grad() else None for x in leaves]
