"""The derivatives of silu, sigmoid, tanh, softmax and log_softmax as operations of their own, with their own derivatives.

Each takes the incoming gradient g and what the tape would have kept: x for silu, the result for the others. The bodies
are those that the tape runs, so the numbers are the tape's.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..operation import Composite, Fused, call
from ..ops._common import cast
from ..ops._numerics import single
from ..ops.activation import _sigmoid_forward, _silu, sigmoid
from ..ops.arithmetic import multiply, subtract
from ..ops.reduce import sum as add_up
from ..ops.softmax import _log_softmax, _softmax
from ..ops.transcendental import exp
from ..tensor import Tensor


def _once(expression: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The expression computed in float32 for half types and rounded once."""
    return lambda *inputs, **static: cast(expression(*[single(x) for x in inputs], **static), inputs[0].dtype)


def _derivative_of(op: Composite, name: str, expression: Callable, backward: Callable) -> Composite:
    """The derivative rule of a composite with one input as a composite; its keeps names the second of its inputs."""
    fused = op.fused
    assert fused is not None

    def forward(xp: Any, g: Any, kept: Any, **static: Any) -> Any:
        return op.backward(xp, g, kept, needs=(True,), **static)[0]

    def kernel(xp: Any, g: Any, kept: Any, **static: Any) -> Any:
        found = fused.backward(xp, g, kept, needs=(True,), **static)
        return None if found is None else found[0]

    def plain(*_: Any, **__: Any) -> None:
        return None

    return Composite(name, _once(expression), forward, backward, keeps="g kept", fused=Fused(fused.sources, kernel, plain))


def _silu_slope(g: Tensor, x: Tensor) -> Tensor:
    s = sigmoid(x)
    return g * (s * (x * (1.0 - s) + 1.0))


def _silu_slope_backward(xp: Any, u: Any, g: Any, x: Any, *, needs: tuple) -> tuple:
    """dg = u silu'(x) and dx = u g silu''(x), with silu'' = s (1 - s) (2 + x (1 - 2 s)) and s = sigmoid(x)."""
    s = _sigmoid_forward(xp, x)
    slope, curve = s * (x * (1.0 - s) + 1.0), s * (1.0 - s) * (x * (1.0 - 2.0 * s) + 2.0)
    return u * slope if needs[0] else None, u * g * curve if needs[1] else None


def _softmax_slope_backward(xp: Any, u: Any, g: Any, p: Any, *, needs: tuple, axis: int) -> tuple:
    """Of p (g - sum(g p)): dg = p (u - sum(u p)), and dp = u (g - sum(g p)) - g sum(u p)."""
    up = xp.sum(u * p, axis=axis, keepdims=True)
    dp = u * (g - xp.sum(g * p, axis=axis, keepdims=True)) - g * up if needs[1] else None
    return p * (u - up) if needs[0] else None, dp


def _log_softmax_slope_backward(xp: Any, u: Any, g: Any, logs: Any, *, needs: tuple, axis: int) -> tuple:
    """Of g - exp(logs) sum(g): dg = u - sum(u exp(logs)), and dlogs = -u exp(logs) sum(g)."""
    up = u * xp.exp(logs)
    dlogs = -up * xp.sum(g, axis=axis, keepdims=True) if needs[1] else None
    return u - xp.sum(up, axis=axis, keepdims=True) if needs[0] else None, dlogs


_silu_backward = _derivative_of(_silu[True], "silu_backward", _silu_slope, _silu_slope_backward)
_softmax_backward = _derivative_of(
    _softmax, "softmax_backward",
    lambda g, out, axis: multiply(subtract(g, add_up(g * out, axis=axis, keepdims=True)), out),
    _softmax_slope_backward,
)  # fmt: skip
_log_softmax_backward = _derivative_of(
    _log_softmax, "log_softmax_backward",
    lambda g, out, axis: subtract(g, exp(out) * add_up(g, axis=axis, keepdims=True)),
    _log_softmax_slope_backward,
)  # fmt: skip

sigmoid_backward = _once(lambda g, out: g * (out * (1.0 - out)))
tanh_backward = _once(lambda g, out: g * (1.0 - out * out))


def silu_backward(g: Tensor, x: Tensor) -> Tensor:
    """g silu'(x)."""
    return call(_silu_backward, (g, x))


def softmax_backward(g: Tensor, out: Tensor, axis: int) -> Tensor:
    """out (g - sum(g out)) along the axis."""
    return call(_softmax_backward, (g, out), {"axis": axis})


def log_softmax_backward(g: Tensor, out: Tensor, axis: int) -> Tensor:
    """g - exp(out) sum(g) along the axis."""
    return call(_log_softmax_backward, (g, out), {"axis": axis})
