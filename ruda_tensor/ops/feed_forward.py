"""feed_forward: two affine maps with a gelu between them, as one operation where there are kernels."""
from __future__ import annotations

from typing import Any

from ..dtypes import FLOATING, HALF
from ..kernels import columns, gemm
from ..kernels import pointwise as kernels
from ..kernels.gate import fused
from ..operation import Composite, Fused, call, round_to
from ..tensor import Tensor
from ._common import as_tensor
from ._gelu import gelu_tanh_body
from ._pointwise import pointwise
from ._sums import total
from .activation import gelu
from .matmul import affine, check_linear, linear, merged, product

__all__ = ["feed_forward"]


def _expression(
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, residual: Tensor | None, storage: Any = None
) -> Tensor:
    return linear(gelu(linear(x, w1, b1), approximate="tanh"), w2, b2, residual=residual)


def _stored(a: Any, storage: Any) -> Any:
    return a if a.dtype == storage else round_to(a, storage)


def _forward(xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any, *, storage: Any) -> tuple:
    """The result, and h = x w1 + b1 in the storage dtype. gelu sees h unrounded, the second product gelu rounded."""
    h = affine(xp, x, w1, b1)
    a = pointwise(xp, gelu_tanh_body, (h,), outs=2)[0]
    return affine(xp, _stored(a, storage).astype(a.dtype, copy=False), w2, b2, residual), _stored(h, storage)


def _backward(
    xp: Any, g: Any, x: Any, w1: Any, w2: Any, h: Any, *, needs: tuple, storage: Any
) -> tuple:
    """With a = gelu(h): dw2 = a.T g, dh = (g w2.T) gelu'(h), dw1 = x.T dh, dx = dh w1.T. h is kept and a made again.

    The kernel that makes dh has h at hand and writes a beside it; a kept would double what the operation remembers.
    """
    a, slope = pointwise(xp, gelu_tanh_body, (h.astype(g.dtype, copy=False),), outs=2)
    rows = merged(g)
    dw2 = product(xp, merged(_stored(a, storage).astype(a.dtype, copy=False)).T, rows) if needs[3] else None
    db2 = total(xp, rows, (0,), False) if needs[4] else None
    dh = product(xp, g, w2.T)
    dh *= slope
    wide = merged(dh)
    dx = product(xp, dh, w1.T) if needs[0] else None
    dw1 = product(xp, merged(x).T, wide) if needs[1] else None
    db1 = total(xp, wide, (0,), False) if needs[2] else None
    return dx, dw1, db1, dw2, db2, g if needs[5] else None


def _fused_forward(xp: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, residual: Any, *, storage: Any) -> tuple | None:
    both = gemm.affine_gelu(xp, x, w1, b1)
    if both is None:  # no such epilogue for these sizes: a product, and a kernel
        if storage not in HALF or not fused():
            return None
        h = affine(xp, x, w1, b1)
        a = kernels.activation_forward(xp, "gelu_tanh", h)
        if a is None:
            return None
        both = a, h
    return affine(xp, both[0], w2, b2, residual), both[1]


def _fused_backward(xp: Any, g: Any, x: Any, w1: Any, w2: Any, h: Any, *, needs: tuple, storage: Any) -> tuple | None:
    if g.dtype != storage or h.dtype != storage or not fused():
        return None
    found = columns.activation_again(xp, "gelu_tanh", product(xp, g, w2.T), h, (needs[3], needs[2]))
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
    x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None, /, *, residual: Tensor | None = None
) -> Tensor:
    """Return gelu(x w1 + b1) w2 + b2, plus `residual` where one is given, with gelu in its tanh form.

    Shapes: x [..., d_in], w1 [d_in, d_ff], b1 [d_ff] (or None), w2 [d_ff, d_out], b2 [d_out] (or None), residual and the
    result [..., d_out]. The feed-forward part of a transformer layer. On a GPU it is three steps instead of seven: bias and
    gelu are done as the first product leaves the registers, the residual is what the second one starts from, and backward
    keeps only x w1 + b1. Half types are rounded where something is stored: gelu's result, and the whole.

    Errors: ValueError where the sizes do not fit.
    Source: Vaswani et al., "Attention is all you need", 2017, section 3.3.

    >>> import ruda_tensor as rt
    >>> x, w1, w2 = (rt.ones(shape, device=rt.Cpu()) for shape in ((1, 2), (2, 3), (3, 1)))
    >>> round(rt.feed_forward(x, w1, None, w2, None, residual=rt.ones((1, 1), device=rt.Cpu())).item(), 4)
    6.8638
    """
    x, w1, w2 = (as_tensor(t, None, "feed_forward") for t in (x, w1, w2))
    check_linear(x.shape, w1.shape, None if b1 is None else b1.shape)
    check_linear((*x.shape[:-1], w1.shape[1]), w2.shape, None if b2 is None else b2.shape)
    if residual is not None and residual.shape != (*x.shape[:-1], w2.shape[1]):
        return _expression(x, w1, b1, w2, b2, residual)  # which refuses it
    tensors = [t for t in (x, w1, b1, w2, b2, residual) if t is not None]
    alike = all(isinstance(t, Tensor) and t.dtype == x.dtype for t in tensors) and x.dtype in FLOATING and x.ndim > 1
    if not (x.device.launches and alike):
        return _expression(x, w1, b1, w2, b2, residual)
    return call(_feed_forward, (x, w1, b1, w2, b2, residual), {"storage": x.dtype})
