"""feed_forward: two affine maps with an activation between them, as one operation where there are kernels."""
from __future__ import annotations

import math
from typing import Any

from ..dtypes import FLOAT32, FLOATING
from ..kernels import columns, gemm
from ..kernels import pointwise as kernels
from ..kernels.gate import fused
from ..kernels.host import gate as host
from ..operation import Composite, Fused, call, round_to
from ..tensor import Tensor
from ._common import as_tensor
from ._gelu import gelu_body, gelu_tanh_body, silu_body
from ._pointwise import pointwise
from ._select import keep_positive_forward
from ._sums import total
from .activation import gelu, relu, silu
from .matmul import affine, check_linear, linear, merged, product

__all__ = ["feed_forward"]

_ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh"), "silu": silu}
_BODIES = {"gelu": gelu_body, "gelu_tanh": gelu_tanh_body, "silu": silu_body}


def _expression(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, residual: Tensor | None, activation: str,
    storage: Any = None,
) -> Tensor:  # fmt: skip
    return linear(_ACTIVATIONS[activation](linear(x, w1, b1)), w2, b2, residual=residual)


def _activate(xp: Any, activation: str, h: Any) -> tuple[Any, Any]:
    """f(h) and its slope; for relu, whose gradient is a choice and no product, the slope is None."""
    return (xp.maximum(h, 0), None) if activation == "relu" else pointwise(xp, _BODIES[activation], (h,), outs=2)


def _rounded(a: Any, storage: Any) -> Any:
    """The values that an array has once it is stored, in its own dtype."""
    return a if a.dtype == storage else round_to(a, storage).astype(a.dtype)


def _forward(
    xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any, *, activation: str, storage: Any
) -> tuple:
    """The result, and h = x w1 + b1 in the storage dtype. f sees h unrounded, the second product f(h) rounded."""
    h = affine(xp, x, w1, b1)
    a = host.activation(xp, activation, h)
    a = _rounded(_activate(xp, activation, h)[0] if a is None else a, storage)
    return affine(xp, a, w2, b2, residual), h if h.dtype == storage else round_to(h, storage)


def _backward(
    xp: Any, g: Any, x: Any, w1: Any, w2: Any, h: Any, *, needs: tuple, activation: str, storage: Any
) -> tuple:
    """With a = f(h): dw2 = a.T g, dh = (g w2.T) f'(h), dw1 = x.T dh, dx = dh w1.T. h is kept and a made again.

    The kernel that makes dh has h at hand and writes a beside it; a kept would double what the operation remembers.
    """
    dh, h = product(xp, g, w2.T), h.astype(g.dtype, copy=False)
    found = host.activation_again(xp, activation, h, dh, (needs[3], needs[2]))
    if found is not None:
        a, db1 = found
    else:
        a, slope = _activate(xp, activation, h)
        dh = keep_positive_forward(xp, dh, a) if slope is None else dh * slope
        db1 = total(xp, merged(dh), (0,), False) if needs[2] else None
    rows = merged(g)
    dx = product(xp, dh, w1.T) if needs[0] else None
    dw1 = product(xp, merged(x).T, merged(dh)) if needs[1] else None
    dw2 = product(xp, merged(_rounded(a, storage)).T, rows) if needs[3] else None
    db2 = total(xp, rows, (0,), False) if needs[4] else None
    return dx, dw1, db1, dw2, db2, g if needs[5] else None


def _fused_forward(
    xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any, *, activation: str, storage: Any
) -> tuple | None:
    both = gemm.affine_gelu(xp, x, w1, b1) if activation == "gelu_tanh" else None
    if both is None:  # no such epilogue: a product, and a kernel
        if not fused() or x.size == 0:
            return None
        h = affine(xp, x, w1, b1)
        a = kernels.activation_forward(xp, activation, h)
        if a is None:
            return None
        both = a, h
    return affine(xp, both[0], w2, b2, residual), both[1]


def _fused_backward(
    xp: Any, g: Any, x: Any, w1: Any, w2: Any, h: Any, *, needs: tuple, activation: str, storage: Any
) -> tuple | None:
    if g.dtype != storage or h.dtype != storage or h.size == 0 or not fused():
        return None
    found = columns.activation_again(xp, activation, product(xp, g, w2.T), h, (needs[3], needs[2]))
    if found is None:
        return None
    a, dh, db1 = found
    dx = product(xp, dh, w1.T) if needs[0] else None
    dw1 = product(xp, merged(x).T, merged(dh)) if needs[1] else None
    dw2 = product(xp, merged(a).T, merged(g)) if needs[3] else None
    db2 = columns.sum_columns(xp, g, g.shape[-1], g.dtype) if needs[4] else None
    return dx, dw1, db1, dw2, db2, g if needs[5] else None


_feed_forward = Composite(
    "feed_forward", _expression, _forward, _backward, keeps="x w1 w2", memory_bound=False,
    fused=Fused("columns.cu", _fused_forward, _fused_backward),
)  # fmt: skip


def feed_forward(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, /, *, activation: str = "gelu_tanh",
    residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return f(x w1 + b1) w2 + b2, plus `residual` where one is given: the feed-forward part of a transformer layer.

    `activation` f is "relu", "gelu", "gelu_tanh" or "silu". Shapes: x [..., d_in], w1 [d_in, d_ff], b1 [d_ff] (or None),
    w2 [d_ff, d_out], b2 [d_out] (or None), residual and the result [..., d_out]. On a GPU bias and gelu_tanh are computed
    as the first product leaves the registers, and the second one starts from the residual. There, and in float32 on a CPU
    with a compiler, backward keeps x w1 + b1 but not f of it. Half types are rounded where something is stored: x w1 + b1
    beside f, its result, and the whole.

    Errors: ValueError where the sizes do not fit, or for another activation.
    Source: Vaswani et al., "Attention is all you need", 2017, section 3.3.

    >>> import ruda_tensor as rt
    >>> x, w1, w2 = (rt.ones(shape, device=rt.Cpu()) for shape in ((1, 2), (2, 3), (3, 1)))
    >>> rt.feed_forward(x, w1, None, w2, None, activation="relu", residual=rt.ones((1, 1), device=rt.Cpu())).item()
    7.0
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"feed_forward: activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}")
    x, w1, w2 = (as_tensor(t, None, "feed_forward") for t in (x, w1, w2))
    b1, b2, residual = (None if t is None else as_tensor(t, x, "feed_forward") for t in (b1, b2, residual))
    check_linear(x.shape, w1.shape, None if b1 is None else b1.shape)
    check_linear((*x.shape[:-1], w1.shape[1]), w2.shape, None if b2 is None else b2.shape)
    if residual is not None and residual.shape != (*x.shape[:-1], w2.shape[1]):
        return _expression(x, w1, b1, w2, b2, residual, activation)  # which refuses it
    tensors = [t for t in (x, w1, b1, w2, b2, residual) if t is not None]
    alike = all(isinstance(t, Tensor) and t.dtype == x.dtype for t in tensors) and x.dtype in FLOATING and x.ndim > 1
    compiled = x.device.kind == "cpu" and x.dtype is FLOAT32 and host.compiled(math.prod(x.shape[:-1]) * w1.shape[1])
    if not (alike and (x.device.launches or compiled)):
        return _expression(x, w1, b1, w2, b2, residual, activation)
    return call(_feed_forward, (x, w1, b1, w2, b2, residual), {"activation": activation, "storage": x.dtype})
