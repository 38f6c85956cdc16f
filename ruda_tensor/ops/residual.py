"""A residual stream and its norm: the sum of two tensors and that sum normalized, by one kernel on a GPU."""
from __future__ import annotations

from typing import Any

from ..kernels import norms
from ..operation import Composite, Primitive, round_to, widen
from ..tensor import Tensor, common_device
from ._common import floating
from .arithmetic import add
from .norm import _check_eps, _layer_norm, _normalized, _rms_eps, _rms_norm, _vector, layer_norm, rms_norm

__all__ = ["add_layer_norm", "add_rms_norm"]


def _sum_forward(xp: Any, x: Any, y: Any) -> Any:
    arrays, dtype = widen([x, y])
    out = xp.add(*arrays)
    return out if dtype is None else round_to(out, dtype)


# `add` of two tensors of one shape and dtype. Its gradient is handed on as it is, in half types too: `add` widens it.
_sum = Primitive("add", _sum_forward, half="storage", dx=lambda g: g, dy=lambda g: g)


def add_layer_norm(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    normalized_shape: Any = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Return s = x + y and layer_norm(s, weight, bias), with the numbers of these two operations.

    On a GPU one kernel reads x and y once and writes both, where they have one shape and dtype; on the tape they are the
    two operations, and the gradient that reaches s on other ways is added in the pass that makes that of the norm.

    Errors: those of `add` and `layer_norm`.

    >>> import ruda_tensor as rt
    >>> x, y = rt.tensor([[1.0, 2.0]], device=rt.Cpu()), rt.tensor([[1.0, 4.0]], device=rt.Cpu())
    >>> s, normed = rt.add_layer_norm(x, y)
    >>> s.tolist(), normed.numpy().round(3).tolist()
    ([[2.0, 6.0]], [[-1.0, 1.0]])
    """
    eps = _check_eps("layer_norm", eps)
    if _pair(x, y):
        shape = _normalized("layer_norm", x, weight, normalized_shape)
        vectors = tuple(_vector("layer_norm", what, w, x, shape) for what, w in (("weight", weight), ("bias", bias)))
        found = _fused(_layer_norm, norms.layer_forward_add, x, y, vectors, {"axes": len(shape), "eps": eps})
        if found is not None:
            return found
    s = add(x, y)
    return s, layer_norm(s, weight, bias, normalized_shape=normalized_shape, eps=eps)


def add_rms_norm(
    x: Tensor, y: Tensor, weight: Tensor | None = None, *, normalized_shape: Any = None, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return s = x + y and rms_norm(s, weight), with the numbers of these two operations; see `add_layer_norm`.

    Errors: those of `add` and `rms_norm`.

    >>> import ruda_tensor as rt
    >>> x, y = rt.tensor([1.0, -2.0], device=rt.Cpu()), rt.tensor([2.0, -1.0], device=rt.Cpu())
    >>> s, normed = rt.add_rms_norm(x, y)
    >>> s.tolist(), normed.numpy().round(3).tolist()
    ([3.0, -3.0], [1.0, -1.0])
    """
    if _pair(x, y):
        shape = _normalized("rms_norm", x, weight, normalized_shape)
        vectors = (_vector("rms_norm", "weight", weight, x, shape),)
        static = {"axes": len(shape), "eps": _rms_eps(x, eps)}
        found = _fused(_rms_norm, norms.rms_forward_add, x, y, vectors, static)
        if found is not None:
            return found
    s = add(x, y)
    return s, rms_norm(s, weight, normalized_shape=normalized_shape, eps=eps)


def _pair(x: Any, y: Any) -> bool:
    """True for two tensors that one kernel may take."""
    both = isinstance(x, Tensor) and isinstance(y, Tensor)
    return both and x.device.launches and x.dtype == y.dtype and x.shape == y.shape and floating(x, "add") is x


def _fused(op: Composite, kernel: Any, x: Tensor, y: Tensor, vectors: tuple, static: dict) -> tuple[Tensor, Tensor] | None:
    """Run both operations by one kernel and record them as the two that they are; None where the kernel declines."""
    device = x.device
    for other in (y, *vectors):
        if other is not None and other.device is not device:
            device = common_device(op.name, device, other.device)
    first = x._node if x._node is not None else y._node
    node = next((w._node for w in vectors if w is not None and w._node is not None), first)
    if node is not None and node.expands():
        return None
    with device.guard():
        arrays = [None if w is None else w._data for w in vectors]
        found = kernel(device.xp, x._data, y._data, *arrays, **static)
    if found is None:
        return None
    s, out = Tensor._wrap(found[0], device), Tensor._wrap(found[1], device)
    if first is not None:
        first.record(_sum, (x._node is not None) + 2 * (y._node is not None), (x, y), None, s)
    if node is not None:
        node.record_composite(op, (s, *vectors), static, out, tuple(found[2:]))
    return s, out
