"""One check per kernel, over any array module and any size: against float64, on poisoned outputs with guards around."""
from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from ruda_tensor import backend, philox
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import columns, cross_entropy, norms, pointwise, reductions, softmax
from ruda_tensor.kernels.gate import real_of

from . import _reference as reference

DTYPES = (FLOAT32, FLOAT16, BFLOAT16, FLOAT64)
_GUARD = 256
_UNIT = {FLOAT64: 2.0**-53, FLOAT32: 2.0**-24, FLOAT16: 2.0**-11, BFLOAT16: 2.0**-8}  # of rounding to nearest
_TINY = {FLOAT64: 1e-300, FLOAT32: 1e-37, FLOAT16: 2.0**-24, BFLOAT16: 1e-37}


class Poisoned:
    """An array module whose `empty` gives NaN, and which knows when something was written beside an array."""

    def __init__(self, xp: Any) -> None:
        self.xp, self.__name__, self.made = xp, xp.__name__, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.xp, name)

    def empty(self, shape: Any, dtype: Any) -> Any:
        dtype, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
        size = math.prod(shape) * dtype.itemsize
        memory = self.xp.full(size + 2 * _GUARD, 255, np.uint8)
        self.made.append((memory, size))
        return memory[_GUARD : _GUARD + size].view(dtype).reshape(shape)

    def check(self) -> None:
        for memory, size in self.made:
            assert bool((memory[:_GUARD] == 255).all()) and bool((memory[_GUARD + size :] == 255).all()), "written beside"
        self.made.clear()


def put(xp: Any, a: Any, shift: int = 0) -> Any:
    """A copy of a host array that begins `shift` numbers after an aligned address, with NaN around it."""
    a = np.ascontiguousarray(a).reshape(np.shape(a))
    memory, width = xp.empty(a.size + 16, a.dtype), a.dtype.itemsize  # NaN of the poisoned module
    memory.view(np.uint8)[shift * width : (shift + a.size) * width] = xp.asarray(a.reshape(-1).view(np.uint8))
    return memory[shift : shift + a.size].reshape(a.shape)


def wide(a: Any) -> Any:
    """A float64 copy on the host."""
    return backend.to_host(a).astype(np.float64)


def close(found: Any, expected: Any, *, slack: float = 16, scale: Any = None, name: str = "") -> None:
    """Equal up to one rounding to the dtype, and `slack` roundings of the computation at `scale` (by default the largest)."""
    dtype = found.dtype
    found, expected = wide(found), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, (name, found.shape, expected.shape)
    assert np.array_equal(np.isnan(found), np.isnan(expected)), f"{name}: NaN in other places"
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True), f"{name}: other infinities"
    if not finite.any():
        return
    scale = np.abs(expected[finite]).max() if scale is None else scale
    with np.errstate(invalid="ignore"):
        allowed = 1.01 * _UNIT[dtype] * np.abs(expected) + slack * _UNIT[real_of(dtype)] * scale + _TINY[dtype]
        error = np.where(finite, np.abs(found - expected), 0)
    wrong = finite & ~(error <= allowed)
    if wrong.any():
        at = np.unravel_index(np.argmax(np.where(wrong, error / allowed, 0)), error.shape)
        raise AssertionError(
            f"{name}: {wrong.sum()} wrong, at {at} {found[at]!r} for {expected[at]!r}, off by {error[at]:.3g}, "
            f"allowed {allowed[at]:.3g}"
        )


def draw(rng: Any, shape: Any, dtype: np.dtype, offset: float = 0.0) -> np.ndarray:
    return (rng.standard_normal(shape) * 2 + offset).astype(dtype)


def norm(xp: Any, rng: Any, dtype: np.dtype, rows: int, n: int, *, rms: bool = False, weights: str = "same",
         bias: bool = True, needs: tuple = (True, True, True), shift: int = 0, offset: float = 1.0) -> list:  # fmt: skip
    """layer_norm or rms_norm, forward and backward; returns what was computed."""
    kind = {"same": dtype, "real": real_of(dtype), "none": None}[weights]
    x, g = draw(rng, (rows, n), dtype, offset), draw(rng, (rows, n), dtype)
    w = None if kind is None else draw(rng, n, kind)
    b = draw(rng, n, kind) if kind is not None and bias and not rms else None
    needs = (needs[0], needs[1] and w is not None, needs[2] and b is not None)
    X, G = x.astype(float), g.astype(float)
    W, B = (None if v is None else v.astype(float) for v in (w, b))
    x, g = put(xp, x, shift), put(xp, g, shift)
    w, b = (None if v is None else put(xp, v, shift) for v in (w, b))
    eps, at = 1e-5, {"axes": 1, "eps": 1e-5}
    out, mean, r = reference.layer_norm(X, W, B, eps, rms)
    if rms:
        found = norms.rms_forward(xp, x, w, **at)
        results = [*found, *norms.rms_backward(xp, g, x, w, found[1], needs=needs[:2], **at), None]
    else:
        found = norms.layer_forward(xp, x, w, b, **at)
        close(found[1] + found[2], mean, name="mean")
        results = [*found, *norms.layer_backward(xp, g, x, w, *found[1:], needs=needs, **at)]
    close(found[0], out, slack=32, name="out")
    close(found[-1], r, slack=8, name="scale")
    for name, gradient, expected, need in zip(
        ("dx", "dweight", "dbias"), results[-3:], reference.layer_norm_backward(G, X, W, eps, rms), needs
    ):
        assert (gradient is not None) == bool(need), name
        if need:
            sums = np.sqrt(rows) * 8 if name != "dx" else 4 * max(1.0, np.abs(expected).max())
            close(gradient, expected, slack=64, scale=sums, name=name)
    return results


def residual(xp: Any, rng: Any, dtype: np.dtype, rows: int, n: int, *, rms: bool = False, weights: str = "same",
             needs: tuple = (True, True, True), shift: int = 0, added: Any = None) -> list:  # fmt: skip
    """The norm of a sum, forward, and backward with the gradient that reaches the sum on another way."""
    kind = {"same": dtype, "real": real_of(dtype), "none": None}[weights]
    x, other, g, more = (draw(rng, (rows, n), dtype, 0.5) for _ in range(4))
    w = None if kind is None else draw(rng, n, kind)
    b = None if kind is None or rms else draw(rng, n, kind)
    needs = (True, needs[1] and w is not None, needs[2] and b is not None)
    total = (x.astype(real_of(dtype)) + other.astype(real_of(dtype))).astype(dtype)
    S, G = total.astype(float), g.astype(float)
    W, B = (None if v is None else v.astype(float) for v in (w, b))
    x, other, g, more = (put(xp, v, shift) for v in (x, other, g, more.astype(added or dtype)))
    w, b = (None if v is None else put(xp, v, shift) for v in (w, b))
    at = {"axes": 1, "eps": 1e-5}
    out, _, r = reference.layer_norm(S, W, B, 1e-5, rms)
    if rms:
        s, *found = norms.rms_forward_add(xp, x, other, w, **at)
        gradients = [*norms.rms_backward(xp, g, s, w, found[1], needs=needs[:2], add=more, **at), None]
    else:
        s, *found = norms.layer_forward_add(xp, x, other, w, b, **at)
        gradients = list(norms.layer_backward(xp, g, s, w, *found[1:], needs=needs, add=more, **at))
    assert backend.to_host(s).tobytes() == total.tobytes()
    close(found[0], out, slack=32, name="out")
    close(found[-1], r, slack=8, name="scale")
    dx, dw, db = reference.layer_norm_backward(G, S, W, 1e-5, rms)
    close(gradients[0], dx + wide(more), slack=64, scale=4 * max(1.0, np.abs(dx).max()) + np.abs(wide(more)), name="ds")
    for name, gradient, expected, need in (("dweight", gradients[1], dw, needs[1]), ("dbias", gradients[2], db, needs[2])):
        assert (gradient is not None) == bool(need), name
        if need:
            close(gradient, expected, slack=64, scale=np.sqrt(rows) * 8, name=name)
    return [s, *found, *gradients]


def softmaxes(xp: Any, rng: Any, dtype: np.dtype, rows: int, n: int, *, log: bool, shift: int = 0) -> list:
    """softmax or log_softmax, forward and backward."""
    x, g = draw(rng, (rows, n), dtype), draw(rng, (rows, n), dtype)
    out = softmax.forward(xp, put(xp, x, shift), axis=1, log=log)
    expected = reference.softmax(x.astype(float), log)
    close(out, expected, slack=32, scale=8 + np.abs(expected) if log else expected, name="out")
    dx = softmax.backward(xp, put(xp, g, shift), put(xp, expected.astype(dtype), shift), axis=1, log=log)
    rounded = expected.astype(dtype).astype(float)  # backward sees the stored result
    p, G = np.exp(rounded) if log else rounded, g.astype(float)
    exact = G - p * G.sum(1, keepdims=True) if log else p * (G - (G * p).sum(1, keepdims=True))
    close(dx, exact, slack=64, scale=p * (np.abs(G).sum(1, keepdims=True) if log else 8) + np.abs(G) * log, name="dx")
    return [out, dx]


def entropy(xp: Any, rng: Any, dtype: np.dtype, rows: int, n: int, *, weighted: bool = False, smoothing: float = 0.0,
            ignore: bool = False, reduction: str = "mean", shift: int = 0, reuse: bool = False) -> list:  # fmt: skip
    """Cross-entropy, forward and backward; `reuse` writes the gradient over the logits."""
    x, ids = draw(rng, (rows, n), dtype), rng.integers(0, n, rows)
    weight = rng.uniform(0.5, 2, n).astype(real_of(dtype)) if weighted else None
    left_out = int(ids[0]) if ignore else None
    g = draw(rng, rows if reduction == "none" else (), dtype)
    W = None if weight is None else weight.astype(float)
    loss, dx = reference.cross_entropy(x.astype(float), ids, W, left_out, smoothing, reduction, g.astype(float))
    static = {"axis": 1, "ignore": left_out, "smoothing": smoothing, "reduction": reduction}
    x, ids, g = put(xp, x, shift), xp.asarray(ids), put(xp, g)
    weight = None if weight is None else xp.asarray(weight)
    out, top, whole = cross_entropy.forward(xp, x, ids, weight, **static)
    close(out, loss, slack=32 + rows, scale=8 + np.abs(loss).max(initial=0), name="loss")
    assert top.shape == whole.shape == (rows, 1)
    found = cross_entropy.backward(xp, g, x, ids, weight, top, whole, **static, out=x if reuse else None)
    assert not reuse or found is x
    close(found, dx, slack=256, name="dlogits")
    return [out, top, whole, found]


def activations(xp: Any, rng: Any, dtype: np.dtype, kind: str, rows: int, n: int, *, bias: str = "none",
                needs: tuple = (True, True), shift: int = 0) -> list:  # fmt: skip
    """An activation of x or of x + bias, forward and backward."""
    x, g = draw(rng, (rows, n), dtype), draw(rng, (rows, n), dtype)
    b = None if bias == "none" else draw(rng, n, dtype if bias == "same" else real_of(dtype))
    z = x.astype(float) if b is None else x.astype(float) + b.astype(float)
    value, slope = reference.activation(kind, z)
    dz = slope * g.astype(float)
    x, g = put(xp, x, shift), put(xp, g, shift)
    if b is None:
        out = pointwise.activation_forward(xp, kind, x)
        dx, db = pointwise.activation_backward(xp, kind, g, x), None
        again, over, sums = columns.activation_again(xp, kind, g.copy(), x, needs)
        assert (again is not None, sums is not None) == tuple(map(bool, needs))
        assert again is None or backend.to_host(again).tobytes() == backend.to_host(out).tobytes()
        assert backend.to_host(over).tobytes() == backend.to_host(dx).tobytes()
        if sums is not None:
            close(sums, dz.sum(0), slack=64, scale=8 * np.sqrt(rows), name="sums")
    else:
        b = put(xp, b, shift)
        out = columns.bias_activation_forward(xp, kind, x, b)
        dx, db = columns.bias_activation_backward(xp, kind, g, x, b, needs)
    close(out, value, slack=16, scale=np.abs(value) * 8 + 1e-3, name="out")
    assert (dx is not None) == bool(needs[0]) and (db is not None) == (b is not None and needs[1])
    if dx is not None:
        close(dx, dz, slack=64, scale=np.abs(dz) + np.abs(wide(g)), name="dx")
    if db is not None:
        close(db, dz.sum(0), slack=64, scale=8 * np.sqrt(rows), name="dbias")
    return [out, dx, db]


def every_half(xp: Any, dtype: np.dtype, kind: str) -> None:
    """An activation of all numbers of a half type is the float64 one rounded, but for a few that lie beside a middle."""
    x = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        X = x.astype(float)
        value, slope = reference.activation(kind, X)
    finite = np.isfinite(X)
    out = pointwise.activation_forward(xp, kind, put(xp, x))
    dx = pointwise.activation_backward(xp, kind, put(xp, np.ones_like(x)), put(xp, x))
    for name, found, exact in (("value", wide(out), value), ("slope", wide(dx), slope)):
        assert np.isnan(found[np.isnan(X)]).all() and (name == "slope" or found[X == np.inf] == np.inf)
        found, exact = found[finite], exact[finite]
        allowed = 1.01 * _UNIT[dtype] * np.abs(exact) + 2.0**-21 * (np.abs(exact) + (name == "slope")) + _TINY[dtype]
        allowed += 2.0**-126 * (1 + np.abs(X[finite]))  # a float32 factor of x below that counts as 0
        wrong = ~(np.abs(found - exact) <= allowed)
        assert not wrong.any(), f"{kind} {name}: at {X[finite][wrong][:5]} {found[wrong][:5]} for {exact[wrong][:5]}"
        assert np.mean(found == exact.astype(dtype).astype(float)) > 0.97, f"{kind} {name}"


def gated(xp: Any, rng: Any, dtype: np.dtype, size: int, *, needs: tuple = (True, True), shift: int = 0) -> list:
    """silu_mul: silu is rounded to the dtype before the product."""
    gate, up, g = (draw(rng, size, dtype) for _ in range(3))
    value, slope = reference.activation("silu", gate.astype(float))
    arrays = [put(xp, a, shift) for a in (gate, up, g)]
    out = pointwise.silu_mul_forward(xp, arrays[0], arrays[1])
    da, db = pointwise.silu_mul_backward(xp, arrays[2], arrays[0], arrays[1], needs)
    U, G = up.astype(float), g.astype(float)
    inner = value.astype(dtype).astype(float)
    once = 1 + 2.0**21 * _UNIT[dtype] * (dtype.itemsize == 2)  # the rounding of silu may go the other way
    close(out, inner * U, slack=16, scale=np.abs(value * U) * once, name="out")
    assert (da is not None, db is not None) == tuple(map(bool, needs))
    if da is not None:
        close(da, G * U * slope, slack=64, scale=np.abs(G * U), name="dgate")
    if db is not None:
        close(db, G * inner, slack=16, scale=np.abs(G * value) * once, name="dup")
    if size > 1000 and dtype.itemsize == 2:  # rounding once, at the end, would change every third
        assert np.mean(wide(out) == (inner * U).astype(dtype).astype(float)) > 0.98
    return [out, da, db]


def dropped(xp: Any, rng: Any, dtype: np.dtype, size: int, p: float, seed: int, offset: int, *, shift: int = 0) -> list:
    """Dropout: exactly the plain body's numbers."""
    x = draw(rng, size, dtype)
    words = np.concatenate([w.copy() for _, w in philox.blocks(np, -(-size // 4), seed, offset)])[:size]
    real = real_of(dtype)
    kept = x.astype(real) * real.type(1 / (1 - p))
    expected = np.where(words <= round((1 - p) * 2**32) - 1, kept, real.type(0)).astype(dtype)
    out = pointwise.dropout(xp, put(xp, x, shift), p=p, seed=seed, offset=offset)
    assert backend.to_host(out).tobytes() == expected.tobytes()
    return [out]


def summed(xp: Any, rng: Any, dtype: np.dtype, rows: int, n: int, *, shift: int = 0) -> list:
    """The sum over rows, rounded once."""
    g = draw(rng, (rows, n), dtype)
    out = columns.sum_columns(xp, put(xp, g, shift), n, dtype)
    close(out, g.astype(float).sum(0), slack=32, scale=4 * np.sqrt(rows), name="sum")
    return [out]


def reduced(xp: Any, rng: Any, dtype: np.dtype, rows: int, n: int, kind: str, *, last: bool, shift: int = 0) -> list:
    """A sum, mean, max or min over the rows or over the columns of a matrix; extremes are exact, and NaN shows."""
    x = draw(rng, (rows, n), dtype)
    bad = rng.integers(0, rows), rng.integers(0, n)
    axis, count = (1, n) if last else (0, rows)
    for nan in (False, True):
        if nan:
            x[bad] = np.nan
        exact = getattr(x.astype(np.longdouble), kind)(axis).astype(float)  # float64 is one of the dtypes
        out = reductions.reduce(xp, put(xp, x, shift), (axis,), kind)
        if kind in ("max", "min"):
            close(out, exact, slack=0, name=kind)
        else:
            close(out, exact, slack=64, scale=4 * np.sqrt(count) / (count if kind == "mean" else 1), name=kind)
    return [out]


def special_values(dtype: np.dtype, rows: int, n: int, rng: Any) -> np.ndarray:
    """Rows with inf, NaN, -inf alone, and the largest numbers of the dtype."""
    x = draw(rng, (rows, n), dtype)
    x[0, 0], x[1, n - 1], x[3, n // 2] = np.inf, np.nan, -np.inf
    x[2] = -np.inf
    x[4] = 7
    x[5, 0] = ml_dtypes.finfo(dtype).max
    return x
