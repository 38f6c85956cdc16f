"""Anomaly mode: find the operation whose derivative rule made the first NaN."""
from __future__ import annotations

import traceback
from typing import Any

from ruda_tensor.dtypes import HALF
from ruda_tensor.tensor import Tensor

from .tape import Node, _Setting


class AnomalyError(RuntimeError):
    """A derivative rule turned an incoming gradient without NaN into one with NaN."""


def anomaly_mode() -> Any:
    """Inside, record the stack of every operation, and make backward stop at the first NaN that a rule makes.

    The error names the operation and shows the line of the forward that called it. Slow: for finding, not training.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([0.0], device=rt.Cpu()).require_grad()
    >>> with anomaly_mode():
    ...     try:
    ...         (rt.sqrt(x) * 0.0).sum().backward()
    ...     except AnomalyError as error:
    ...         print(str(error).splitlines()[0])
    backward: the derivative of 'sqrt' made the first NaN, in a gradient of shape (1,)
    """
    Node.traces = True
    return _Setting(anomaly=True)


def _has_nan(x: Tensor) -> bool:
    data = x._data.astype("float32") if x.dtype in HALF else x._data
    return bool(x.device.xp.isnan(data).any())


def check_anomaly(node: Node, incoming: Tensor | list[Tensor | None], gradient: Tensor) -> None:
    """Raise where the rule of `node` made a NaN that did not come in with `incoming`, a list for several results."""
    if not _has_nan(gradient):
        return
    arrived = [incoming] if isinstance(incoming, Tensor) else incoming
    if any(part is not None and _has_nan(part) for part in arrived):
        return
    stack = getattr(node, "trace", None)
    where = "".join(traceback.format_list(stack)) if stack else "  (recorded outside anomaly_mode(): no stack was kept)\n"
    raise AnomalyError(
        f"backward: the derivative of '{node.op.name}' made the first NaN, in a gradient of shape {gradient.shape}\n"
        f"The operation was called here (most recent call last):\n{where}"
    )
