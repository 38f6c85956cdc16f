"""How a tensor is shown: its values, abbreviated where there are many, then what it is."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import backend
from .dtypes import BFLOAT16
from .tensor import Tensor

MANY = 1000  # more elements than this are abbreviated
EDGE = 3  # so many are then shown at each end of an axis


def _corners(data: Any) -> Any:
    """The ends of every long axis, and one element between them for the dots to stand for."""
    for axis, size in enumerate(data.shape):
        if size > 2 * EDGE + 1:
            ends = [*range(EDGE + 1), *range(size - EDGE, size)]
            data = data[(slice(None),) * axis + (ends,)]
    return data


def describe(x: Tensor) -> str:
    """Return what `repr` shows of a tensor; of a large one only the shown corners are copied from its device.

    >>> import ruda_tensor as rt
    >>> print(describe(rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu())))
    Tensor([[1., 2.],
            [3., 4.]], shape=(2, 2), dtype=float32, device=Cpu(), untracked)
    """
    data, many = x._data, x.size > MANY
    with x.device.guard():
        host = backend.to_host(_corners(data) if many else data)
    if host.dtype == BFLOAT16:
        host = host.astype(np.float32)
    with np.errstate(all="ignore"):
        values = np.array2string(host, separator=", ", prefix="Tensor(", threshold=0 if many else MANY, edgeitems=EDGE)
    return f"Tensor({values}, shape={x.shape}, dtype={x.dtype}, device={x.device!r}, {_place(x)})"


def _place(x: Tensor) -> str:
    if x._node is None:
        return "untracked"
    return "tracked leaf" if x._node.op is None else f"tracked, made by {x._node.op.name}"
