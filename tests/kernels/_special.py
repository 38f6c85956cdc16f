"""inf, NaN and the largest numbers: each kernel gives them as the plain formulas do."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ruda_tensor.kernels import cross_entropy, norms, pointwise, softmax

from ._cases import close, put, special_values, wide


def check(xp: Any, dtype: np.dtype, n: int, rng: Any) -> None:
    """Rows that hold inf, NaN and -inf, beside a constant row; n >= 2."""
    x = special_values(dtype, 8, n, rng)
    X = x.astype(float)
    with np.errstate(all="ignore"):
        _softmax(xp, x, X, n)
        _norm(xp, x)
        _entropy(xp, x, X, n)
        _pointwise(xp, x, X)


def _softmax(xp: Any, x: Any, X: Any, n: int) -> None:
    e = np.exp(X - X.max(1, keepdims=True))
    e[1] = np.nan
    p = e / e.sum(1, keepdims=True)
    close(softmax.forward(xp, put(xp, x), axis=1, log=False), p, slack=64, scale=p + 1e-30, name="softmax")
    log = softmax.forward(xp, put(xp, x), axis=1, log=True)
    found = wide(log)
    assert np.isnan(found[:3]).all() and found[3, n // 2] == -np.inf and np.isfinite(found[6:]).all()
    assert found[4].tolist() == [found[4, 0]] * n


def _norm(xp: Any, x: Any) -> None:
    found = wide(norms.layer_forward(xp, put(xp, x), None, None, axes=1, eps=1e-5)[0])
    assert np.isnan(found[:4]).all(), "a row with an inf or a NaN has no mean"
    assert (found[4] == 0).all(), "a constant row is exactly 0"
    assert np.isfinite(found[6:]).all()
    found = wide(norms.rms_forward(xp, put(xp, x), None, axes=1, eps=1e-5)[0])
    assert np.isnan(found[1]).all() and np.isfinite(found[6:]).all() and np.isnan(found[0, 0])


def _entropy(xp: Any, x: Any, X: Any, n: int) -> None:
    ids = np.zeros(8, np.int64)
    ids[1] = ids[3] = n // 2
    ids[3] = (n // 2 + 1) % n
    static = {"axis": 1, "ignore": None, "smoothing": 0.0, "reduction": "none"}
    device = xp.asarray(ids)
    loss, top, whole = cross_entropy.forward(xp, put(xp, x), device, None, **static)
    found = wide(loss)
    assert np.isnan(found[:3]).all() and np.isfinite(found[3]) and np.isfinite(found[4])
    g = put(xp, np.ones(8, x.dtype))
    dx = wide(cross_entropy.backward(xp, g, put(xp, x), device, None, top, whole, **static))
    assert np.isnan(dx[:3]).all() and dx[3, n // 2] == 0 and np.isfinite(dx[3:5]).all()
    static["ignore"] = 0
    loss, top, whole = cross_entropy.forward(xp, put(xp, x), device, None, **static)
    dx = wide(cross_entropy.backward(xp, g, put(xp, x), device, None, top, whole, **static))
    assert wide(loss)[0] == 0 and (dx[0] == 0).all(), "an ignored row costs nothing whatever it holds"
    assert np.isnan(wide(loss)[1])


def _pointwise(xp: Any, x: Any, X: Any) -> None:
    relu = wide(pointwise.activation_forward(xp, "relu", put(xp, x)))
    assert np.array_equal(relu, np.maximum(X, 0), equal_nan=True)
    for kind in ("gelu", "gelu_tanh", "silu"):
        found = wide(pointwise.activation_forward(xp, kind, put(xp, x)))
        assert found[0, 0] == np.inf and np.isnan(found[1, -1]) and found[5, 0] == X[5, 0]
    most = float(ml_dtypes.finfo(x.dtype).max)
    ends = put(xp, np.array([-most, most], x.dtype))
    for kind in ("relu", "gelu", "gelu_tanh", "silu"):
        found = wide(pointwise.activation_backward(xp, kind, put(xp, np.ones(2, x.dtype)), ends))
        assert found.tolist() == [0, 1], f"{kind}: slopes {found}"
