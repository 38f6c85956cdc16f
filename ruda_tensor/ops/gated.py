"""silu_mul: the gate of a gated feed-forward layer, as one operation where there are kernels."""
from __future__ import annotations

from typing import Any

from ..dtypes import FLOATING
from ..kernels import pointwise as kernels
from ..operation import Composite, Fused, call, round_to
from ..tensor import Tensor
from ._gelu import silu_body
from ._pointwise import pointwise
from .activation import silu
from .arithmetic import multiply

__all__ = ["silu_mul"]


def _stored(a: Any, storage: Any) -> Any:
    """The values that a float32 array has once it is stored, still in float32."""
    return a if a.dtype == storage else round_to(a, storage).astype(a.dtype)


def _forward(xp: Any, gate: Any, up: Any, *, storage: Any) -> Any:
    return _stored(pointwise(xp, silu_body, (gate,), outs=2)[0], storage) * up


def _backward(xp: Any, g: Any, gate: Any, up: Any, *, needs: tuple, storage: Any) -> tuple:
    """dgate = g up silu'(gate) and dup = g silu(gate), the latter with silu(gate) as it would have been stored."""
    value, slope = pointwise(xp, silu_body, (gate,), outs=2)
    return g * up * slope if needs[0] else None, g * _stored(value, storage) if needs[1] else None


_silu_mul = Composite(
    "silu_mul", lambda gate, up, storage: multiply(silu(gate), up), _forward, _backward, keeps="gate up",
    fused=Fused(
        "silu_mul.cu",
        lambda xp, gate, up, storage: kernels.silu_mul_forward(xp, gate, up),
        lambda xp, g, gate, up, needs, storage: kernels.silu_mul_backward(xp, g, gate, up, needs),
    ),
)  # fmt: skip


def silu_mul(gate: Tensor, up: Tensor, /) -> Tensor:
    """Return silu(gate) * up, elementwise, for two floating tensors of one shape, dtype and device.

    For half types silu(gate) is rounded to the storage dtype *before* the product, and the product is rounded again:
    the numbers of the two operations one after the other, whichever body runs.

    Errors: ValueError for unlike shapes (nothing broadcasts), dtypes or devices; TypeError for what is not floating.
    Source: Shazeer, GLU variants improve transformer (2020), equation 6.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([-1.0, 1.0], dtype=rt.float64, device=rt.Cpu())
    >>> rt.silu_mul(x, x * 2.0).numpy()
    array([0.53788284, 1.46211716])
    """
    for name, x in (("gate", gate), ("up", up)):
        if not isinstance(x, Tensor) or x.dtype not in FLOATING:
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"silu_mul: {name} must be a floating tensor, got {kind}; convert it: {name}.astype(rt.float32)")
    if (gate.shape, gate.dtype, gate.device) != (up.shape, up.dtype, up.device):
        raise ValueError(
            f"silu_mul: gate is {gate.shape} {gate.dtype} on {gate.device}, and up {up.shape} {up.dtype} on {up.device}; "
            "they must be alike: silu_mul(gate, up.astype(gate.dtype))"
        )
    if not gate.device.launches:
        return multiply(silu(gate), up)
    return call(_silu_mul, (gate, up), {"storage": gate.dtype})
