"""Attention's kernels against float64: the value, the log sum exp and the gradients, within what rounding allows."""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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


def exact(q: Any, k: Any, v: Any, g: Any, scale: float, causal: bool) -> tuple[list, list]:
    """[out, lse, dq, dk, dv] in float64, and for each the sum of the sizes of what is rounded on the way to it."""
    b, h, t, d = q.shape
    heads, n = k.shape[1:3]
    K, V = (np.repeat(a, h // heads, axis=1) for a in (k, v))
    s = scale * (q @ K.swapaxes(-1, -2))
    if causal:
        s = np.where(np.arange(n) <= np.arange(t)[:, None] + (n - t), s, -np.inf)
    top = s.max(-1, keepdims=True)
    top[top == -np.inf] = 0
    e = np.exp(s - top)
    sums = e.sum(-1, keepdims=True)
    p = e / np.where(sums == 0, 1, sums)
    lse = np.where(sums == 0, np.inf, np.log(np.where(sums == 0, 1, sums)) + top)
    out, dp = p @ V, g @ V.swapaxes(-1, -2)
    ds = scale * p * (dp - (p * dp).sum(-1, keepdims=True))
    rounded = np.abs(ds) + scale * p * (np.abs(g) * np.abs(out)).sum(-1, keepdims=True)  # ds itself, and delta from out

    def shared(a: Any) -> Any:
        return a.reshape(b, heads, h // heads, n, d).sum(2)

    values = [out, lse, ds @ K, shared(ds.swapaxes(-1, -2) @ q), shared(p.swapaxes(-1, -2) @ g)]
    sizes = [p @ np.abs(V), 1 + np.abs(lse), rounded @ np.abs(K), shared(rounded.swapaxes(-1, -2) @ np.abs(q))]
    return values, [*sizes, shared(p.swapaxes(-1, -2) @ np.abs(g))]


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
    q, k, v, g = (a.astype(float) for a in arrays)
    compare(found, *exact(q, k, v, g, case.d**-0.5, case.causal), dtype)
    return found
