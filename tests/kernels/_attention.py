"""Attention's kernels against float64: the value, the log sum exp and the gradients, within what rounding allows."""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ruda_tensor import backend
from ruda_tensor.kernels import attention

from ._cases import _UNIT, draw, put, wide


class Case(NamedTuple):
    """Sizes: batches, heads, heads of keys, queries, keys, numbers of a head; whether causal; and where inputs lie.

    `layout`: "heads" (B, H, T, D), "rows" (B, T, H, D), "packed" (B, T, H + 2 K, D), "shifted" off 16 bytes by one number.
    """

    b: int
    h: int
    k: int
    t: int
    n: int
    d: int
    causal: bool
    layout: str = "rows"


def taken(found: Any) -> Any:
    """What a binding computed."""
    assert found is not None, "the kernel declined"
    return found


def exact(q: Any, k: Any, v: Any, g: Any, scale: float, causal: bool, xp: Any = np) -> tuple[list, list]:
    """[out, lse, dq, dk, dv] in float64, and for each the sum of the sizes of what is rounded on the way to it."""
    q, k, v, g = (xp.asarray(a.astype(float)) for a in (q, k, v, g))
    b, h, t, d = q.shape
    heads, n = k.shape[1:3]
    K, V = (xp.repeat(a, h // heads, axis=1) for a in (k, v))
    s = scale * (q @ K.swapaxes(-1, -2))
    if causal:
        s = xp.where(xp.arange(n) <= xp.arange(t)[:, None] + (n - t), s, -np.inf)
    top = s.max(-1, keepdims=True)
    top = xp.where(top == -np.inf, 0, top)
    e = xp.exp(s - top)
    sums = e.sum(-1, keepdims=True)
    p = e / xp.where(sums == 0, 1, sums)
    lse = xp.where(sums == 0, np.inf, xp.log(xp.where(sums == 0, 1, sums)) + top)
    out, dp = p @ V, g @ V.swapaxes(-1, -2)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    rounded = abs(ds) + scale * p * (abs(g) * abs(out)).sum(-1, keepdims=True)  # ds itself, and delta from out

    def shared(a: Any) -> Any:
        return a.reshape(b, heads, h // heads, n, d).sum(2)

    values = [out, lse, ds @ K, shared(ds.swapaxes(-1, -2) @ q), shared(p.swapaxes(-1, -2) @ g)]
    sizes = [p @ abs(V), 1 + abs(lse), rounded @ abs(K), shared(rounded.swapaxes(-1, -2) @ abs(q))]
    sizes.append(shared(p.swapaxes(-1, -2) @ abs(g)))
    return [backend.to_host(a) for a in values], [backend.to_host(a) for a in sizes]


def place(xp: Any, case: Case, arrays: list) -> list:
    """The host arrays q, k, v and g on the device, in the case's layout."""
    q, k, v, g = arrays

    def rows(a: Any, shift: int = 0) -> Any:
        return put(xp, a.transpose(0, 2, 1, 3), shift).transpose(0, 2, 1, 3)

    if case.layout == "packed":
        joint = rows(np.concatenate([q, k, v], axis=1))
        cuts = case.h, case.h + case.k
        return [joint[:, : cuts[0]], joint[:, cuts[0] : cuts[1]], joint[:, cuts[1] :], rows(g)]
    if case.layout == "heads":
        return [put(xp, a) for a in arrays]
    return [rows(a, int(case.layout == "shifted")) for a in arrays]


def inputs(rng: Any, case: Case, dtype: np.dtype) -> list:
    b, h, k, t, n, d = case[:6]
    return [draw(rng, shape, dtype) / dtype.type(2) for shape in ((b, h, t, d), (b, k, n, d), (b, k, n, d), (b, h, t, d))]


def compare(found: list, values: list, sizes: list, dtype: np.dtype) -> None:
    """Every number is within the roundings to storage on its way, twice over."""
    for name, a, value, size in zip(("out", "lse", "dq", "dk", "dv"), found, values, sizes, strict=True):
        if a is None:
            continue
        unit = 2.0**-21 if name == "lse" else _UNIT[dtype]
        a, finite = wide(a), np.isfinite(value)
        assert a.shape == value.shape and np.array_equal(a[~finite], value[~finite], equal_nan=True), name
        a, value, size = a[finite], value[finite], size[finite]
        error, allowed = np.abs(a - value), 2 * unit * (size + np.abs(value)) + 1e-7
        assert (error <= allowed).all(), f"{name}: {np.nanmax(error / allowed):.3g} times what is allowed"


def run(xp: Any, case: Case, arrays: list, needs: tuple = (True, True, True)) -> list:
    """[out, lse, dq, dk, dv] by the kernels."""
    q, k, v, g = place(xp, case, arrays)
    static = {"scale": case.d**-0.5, "causal": case.causal}
    out, lse = taken(attention.forward(xp, q, k, v, **static))
    return [out, lse, *taken(attention.backward(xp, g, q, k, v, out, lse, needs=needs, **static))]


def check(xp: Any, rng: Any, dtype: np.dtype, case: Case, needs: tuple = (True, True, True)) -> list:
    """Run and compare; returns what was computed."""
    arrays = inputs(rng, case, dtype)
    found = run(xp, case, arrays, needs)
    assert tuple(a is not None for a in found[2:]) == needs and all(a is None or a.dtype == dtype for a in found[2:])
    values, sizes = exact(*arrays, scale=case.d**-0.5, causal=case.causal, xp=getattr(xp, "xp", xp))
    compare(found, values, sizes, dtype)
    return found
