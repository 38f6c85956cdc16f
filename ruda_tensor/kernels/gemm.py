"""Matrix products on a GPU: tensor cores for half types, float32 accumulation, one rounding, any batch, and epilogues.

CuPy multiplies batches of float16 at the float32 rate, refuses batches of bfloat16, copies transposed or broadcast
batches, and cannot be captured, so cuBLASLt is called here (`blaslt.py`). Views cost nothing: a transposed matrix is passed
as a flag, a batch that shares one matrix as a stride of 0, and a batch of rows that share a weight is one large product.

An epilogue is work that cuBLASLt does on a product while it is still in registers: adding a bias, gelu. Functions with one,
and those that start their sums from a given matrix, return None where kernels are off (`use_fused(False)`) or the library
has none for these dtypes and sizes; the caller then does the same with a product and kernels of ours. All results are the
same bits in every run: see `blaslt.py`.
"""
from __future__ import annotations

import contextlib
import contextvars
import math
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..dtypes import FLOAT32, FLOAT64, HALF
from . import cublas, small_product
from .blaslt import (
    COMPUTE_32F,
    COMPUTE_64F,
    COMPUTE_TF32,
    EPILOGUES,
    MOST_PLANS,
    Machine,
    Operand,
    Plan,
    Problem,
    machine,
    workspace_of,
)
from .gate import fused
from .launch import HITS

_NAMES = {epilogue: f"matmul_{epilogue}" for epilogue in EPILOGUES}
AUX_MULTIPLE = 8  # the leading dimension of an auxiliary matrix
_tf32: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "ruda_tf32", default=os.environ.get("RUDA_TF32", "") not in ("", "0")
)


@contextlib.contextmanager
def use_tf32(on: bool = True) -> Iterator[None]:
    """Let float32 products on a GPU use TF32 inside, or not; without it they are full float32.

    TF32 keeps float32's range and rounds the factors to 11 significant bits (relative error 2^-11 each); sums are float32.
    On an H200 it is about seven times as fast. Products of other dtypes and products on the CPU stay as they are. The
    setting is that of the thread at the time when a product runs, so the products of a backward pass follow the one that is
    in force where `backward()` is called. The environment variable RUDA_TF32=1 turns it on from the start.

    >>> import ruda_tensor as rt
    >>> with rt.use_tf32():
    ...     y = rt.ones((2, 2), device=rt.Cpu()) @ rt.ones((2, 2), device=rt.Cpu())
    >>> y.tolist()
    [[2.0, 2.0], [2.0, 2.0]]
    """
    token = _tf32.set(bool(on))
    try:
        yield
    finally:
        _tf32.reset(token)


def available(xp: Any) -> bool:
    """True where `matmul` takes the arrays of this module."""
    return xp.__name__ == "cupy" or machine(xp) is not None


def layout(strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[bool, int] | None:
    """Return (transposed, leading dimension) of a matrix by its strides in elements, or None if BLAS cannot read it."""
    (r, c), (s, t) = shape, strides
    if (t == 1 or c == 1) and (s >= c or r == 1):
        return False, max(s if r > 1 else c, c, 1)
    if (s == 1 or r == 1) and (t >= r or c == 1):
        return True, max(t if c > 1 else r, r, 1)
    return None


def batch_stride(strides: tuple[int, ...], shape: tuple[int, ...]) -> int | None:
    """Return the one stride that walks through a batch in row-major order, or None where there is none."""
    stride, expected = 0, None
    for s, n in zip(strides[::-1], shape[::-1]):
        if n == 1:
            continue
        if expected is None:
            stride, expected = s, s * n
        elif s != expected:
            return None
        else:
            expected = s * n
    return stride if stride >= 0 else None


def operand(xp: Any, a: Any, batch: tuple[int, ...]) -> tuple[Any, Operand]:
    """The array to read, `a` itself unless BLAS cannot read it, and how it lies in memory."""
    found = layout(_steps(a)[-2:], a.shape[-2:])
    plain = (False, max(a.shape[-1], 1))
    if found is None:
        a, found = xp.ascontiguousarray(a), plain
    if a.ndim == 2:
        return a, Operand(*found, 0)
    wide = xp.broadcast_to(a, (*batch, *a.shape[-2:]))
    stride = batch_stride(_steps(wide)[:-2], batch)
    if stride is not None:
        return a, Operand(*found, stride)
    return xp.ascontiguousarray(wide), Operand(*plain, a.shape[-2] * a.shape[-1])


def _steps(a: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple([s // a.itemsize for s in a.strides])


class _Recipe:
    """What to do for a product of arrays of given shapes and strides: made once, kept per thread.

    `plan` is None where cuBLASLt has nothing; `copies` says which of x and y cannot be read as they are.
    """

    __slots__ = ("shape", "problem", "plan", "copies", "batch", "empty")

    def __init__(
        self, owner: Machine | None, xp: Any, x: Any, y: Any, dtype: Any, epilogue: str, added: bool | str, low: int,
        bias: int, aux: int,
    ) -> None:  # fmt: skip
        self.batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        m, k, n = x.shape[-2], x.shape[-1], y.shape[-1]
        self.shape = (*self.batch, m, n)
        self.plan = self.problem = None
        self.empty = k == 0 or 0 in self.shape
        if self.empty:
            return
        first, a = operand(xp, x, self.batch)
        second, b = operand(xp, y, self.batch)
        self.copies = first is not x, second is not y
        count = math.prod(self.batch)
        alike = b.stride == 0 and not a.transposed and a.stride == m * a.lead
        if count > 1 and alike and added != "shared":
            m, count, a = m * count, 1, Operand(False, a.lead, 0)
        compute = COMPUTE_64F if x.dtype == FLOAT64 else COMPUTE_TF32 if x.dtype == FLOAT32 and _tf32.get() else COMPUTE_32F
        self.problem = Problem(m, n, k, count, a, b, x.dtype, dtype, compute, epilogue, added, (low & -low) or 16)
        if owner is not None:
            plan = Plan(owner, self.problem, bias, aux)
            self.plan = plan if plan.found else None


class _Recipes(threading.local):
    def __init__(self) -> None:
        self.known: dict[tuple, _Recipe] = {}


_recipes = _Recipes()


def _recipe(
    owner: Machine | None, xp: Any, device: int, x: Any, y: Any, dtype: Any, epilogue: str, added: bool | str, low: int,
    bias: int = 0, aux: int = 0,
) -> _Recipe:  # fmt: skip
    known, x_dtype = _recipes.known, x.dtype
    tf32 = x_dtype == FLOAT32 and _tf32.get()
    key = (x.shape, x.strides, y.shape, y.strides, x_dtype, dtype, epilogue, added, low & 15, tf32, device, id(owner))
    found = known.get(key)
    if found is None:
        if len(known) >= MOST_PLANS:
            known.clear()
        found = known[key] = _Recipe(owner, xp, x, y, dtype, epilogue, added, low & 15, bias, aux)
    return found


def matmul(xp: Any, x: Any, y: Any, dtype: Any = None, out: Any = None) -> Any:
    """Return x @ y of arrays, floating and with at least 2 axes, in `dtype`: theirs, or float32 of halves.

    `out`, in row-major order and of that shape and dtype, is where it is written.
    """
    if x.dtype is FLOAT32 and out is None and (small := small_product.product(xp, x, y)) is not None:
        return small
    owner = machine(xp)
    if dtype is None:
        dtype = x.dtype
    if owner is None:
        return _without(xp, x, y, dtype, out)
    a, b, device = owner.address(x), owner.address(y), owner.device()
    recipe = _recipe(owner, xp, device, x, y, dtype, "none", False, a | b if out is None else a | b | owner.address(out))
    plan = recipe.plan
    if plan is None:
        return _without(xp, x, y, dtype, out)
    if True in recipe.copies:
        x, y = (operand(xp, t, recipe.batch)[0] for t in (x, y))
        a, b = owner.address(x), owner.address(y)
    if out is None:
        out = owner.empty(recipe.shape, dtype)
    to, stream = owner.address(out), owner.stream()
    plan.run(a, b, to, to, workspace_of(owner, device, stream), stream)
    return out


def multiply(xp: Any, x: Any, y: Any) -> Any:
    """x @ y by the array module on a CPU, and by `matmul` on a GPU, where CuPy's own cannot be captured."""
    return xp.matmul(x, y) if xp is np else matmul(xp, x, y)


def _without(xp: Any, x: Any, y: Any, dtype: Any, out: Any = None) -> Any:
    """The product where cuBLASLt cannot make it: nothing to add up, no library, or no algorithm."""
    recipe = _recipe(None, xp, 0, x, y, dtype, "none", False, 0)
    if recipe.empty:
        out = xp.empty(recipe.shape, dtype) if out is None else out
        out[...] = 0
        return out
    assert recipe.problem is not None
    out = xp.empty(recipe.shape, dtype) if out is None else out
    x, y = (operand(xp, t, recipe.batch)[0] for t in (x, y))
    cublas.multiply(xp, recipe.problem, x, y, out)
    return out


def _extended(xp: Any, x: Any, y: Any, epilogue: str, *, bias: Any = None, aux: Any = None, added: Any = None) -> Any:
    """x @ y with an epilogue, plus `added`, which lies as the result, for a 2-D y; or None.

    The epilogue reads bias and writes aux; both have the dtype of x.
    """
    owner = machine(xp)
    if owner is None or not fused() or x.dtype != y.dtype:
        return None
    address, device = owner.address, owner.device()
    a, b = address(x), address(y)
    c = 0 if added is None else address(added)
    bias_at, aux_at = 0 if bias is None else address(bias), 0 if aux is None else address(aux)
    low = a | b | c | bias_at | aux_at
    recipe = _recipe(owner, xp, device, x, y, x.dtype, epilogue, added is not None, low, bias_at, aux_at)
    plan = recipe.plan
    if plan is None:
        return None
    if True in recipe.copies or plan.problem.batch > 1:  # an auxiliary matrix has the rows of one product
        if x.flags.c_contiguous and y.flags.c_contiguous:
            return None
        x, y = xp.ascontiguousarray(x), xp.ascontiguousarray(y)
        return _extended(xp, x, y, epilogue, bias=bias, aux=aux, added=added)
    out, stream = owner.empty(recipe.shape, x.dtype), owner.stream()
    to = address(out)
    plan.run(a, b, c or to, to, workspace_of(owner, device, stream), stream, bias_at, aux_at)
    HITS[_NAMES[epilogue]] += 1
    return out


def _fits(dtype: Any, *others: Any) -> bool:
    """True where arrays, None left out, have this dtype and lie in row-major order."""
    for t in others:
        if t is not None and (t.dtype != dtype or not t.flags.c_contiguous):
            return False
    return True


def affine(xp: Any, x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
    """x @ w + bias + residual, rounded once, in one call; or None. bias is [n], residual as the result."""
    if not (_fits(x.dtype, bias) and _fits(x.dtype, residual)):
        return None
    if x.dtype is FLOAT32 and residual is None and (small := small_product.product(xp, x, w, bias)) is not None:
        return small
    return _extended(xp, x, w, "none" if bias is None else "bias", bias=bias, added=residual)


def affine_gelu(xp: Any, x: Any, w: Any, bias: Any = None) -> Any:
    """(gelu(h), h) for h = x @ w + bias in the tanh form, of halves; or None. gelu sees h before it is rounded.

    cuBLASLt's gelu has a relative error of 2e-6, also in float64: too much for anything but halves.
    """
    n = w.shape[1]
    owner = machine(xp)
    if owner is None or x.dtype not in HALF or n % AUX_MULTIPLE or not _fits(x.dtype, bias):
        return None
    h = owner.empty((*x.shape[:-1], n), x.dtype)
    out = _extended(xp, x, w, "gelu_aux" if bias is None else "gelu_aux_bias", bias=bias, aux=h)
    return None if out is None else (out, h)


def with_shared(xp: Any, x: Any, y: Any, added: Any, out: Any) -> bool:
    """Write x @ y + added to `out`, for one matrix `added` that all of the batch share; False where nothing was done."""
    owner = machine(xp)
    if owner is None or not fused() or not _fits(out.dtype, added, out):
        return False
    a, b, c, to, device = *(owner.address(t) for t in (x, y, added, out)), owner.device()
    recipe = _recipe(owner, xp, device, x, y, out.dtype, "none", "shared", a | b | c | to)
    plan = recipe.plan
    if plan is None or True in recipe.copies:
        return False
    stream = owner.stream()
    plan.run(a, b, c, to, workspace_of(owner, device, stream), stream)
    return True
