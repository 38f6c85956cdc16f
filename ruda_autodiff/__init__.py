"""Reverse-mode automatic differentiation: the tape, backward, transforms of functions, checkpointing."""
from __future__ import annotations

from .anomaly import AnomalyError, anomaly_mode
from .backward import GraphConsumed, HigherDerivativeUnsupported
from .checkpointing import checkpoint
from .custom import custom_gradient
from .device import Autodiff
from .functional import grad, hessian, hvp, jacobian, value_and_grad, vjp
from .gradients import Gradients
from .memory import MemoryReport, memory_report
from .tape import enable_grad, is_recomputing, is_recording, no_grad, record
from .trees import map_tensors, tensors_of

__all__ = [
    "AnomalyError", "Autodiff", "Gradients", "GraphConsumed", "HigherDerivativeUnsupported", "MemoryReport",
    "anomaly_mode", "checkpoint", "custom_gradient", "detach", "enable_grad", "grad", "hessian", "hvp", "is_recomputing",
    "is_recording", "jacobian", "map_tensors", "memory_report", "no_grad", "record", "tensors_of", "value_and_grad", "vjp",
]  # fmt: skip


def detach(tree: object) -> object:
    """Return a tensor, or every tensor of a nested structure, without its place on the tape.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([1.0], device=rt.Cpu()).require_grad()
    >>> detach({"x": x})["x"].is_require_grad()
    False
    """
    return map_tensors(lambda x: x.detach(), tree)
