"""What the kernels should compute, in float64 on the host, by the formulas and not by the bodies of the library."""
from __future__ import annotations

import numpy as np
from scipy import special


def layer_norm(x, weight, bias, eps, rms):
    """(out, mean, 1 / sqrt(var + eps)) over the last axis."""
    mean = np.zeros((len(x), 1)) if rms else x.mean(1, keepdims=True)
    r = 1 / np.sqrt(np.square(x - mean).mean(1, keepdims=True) + eps)
    out = (x - mean) * r
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, r


def layer_norm_backward(g, x, weight, eps, rms):
    """(dx, dweight, dbias): dx through the Jacobian's two projections."""
    _, mean, r = layer_norm(x, None, None, eps, rms)
    y, h = (x - mean) * r, g if weight is None else g * weight
    level = 0 if rms else h.mean(1, keepdims=True)
    return r * (h - level - y * (h * y).mean(1, keepdims=True)), (g * y).sum(0), g.sum(0)


def softmax(x, log):
    return special.log_softmax(x, 1) if log else special.softmax(x, 1)


def softmax_backward(g, x, log):
    p = special.softmax(x, 1)
    return g - p * g.sum(1, keepdims=True) if log else p * (g - (g * p).sum(1, keepdims=True))


def cross_entropy(x, ids, weight, ignore, smoothing, reduction, g):
    """(loss, dlogits for the incoming gradient g)."""
    rows, n = x.shape
    w = np.ones(n) if weight is None else weight
    counted = np.ones(rows, bool) if ignore is None else ids != ignore
    safe = np.where(counted, ids, 0)
    q = np.tile(w * (smoothing / n), (rows, 1))
    q[np.arange(rows), safe] += (1 - smoothing) * w[safe]
    q *= counted[:, None]
    logs = np.where(counted[:, None], special.log_softmax(np.where(counted[:, None], x, 0), 1), 0)
    losses = -np.where(q > 0, q * logs, 0).sum(1)
    whole = (w[safe] * counted).sum()
    factor = {"none": 1.0, "sum": 1.0, "mean": 1 / whole if whole else 0.0}[reduction]
    pull = (np.broadcast_to(g, rows) * factor)[:, None]
    dx = pull * (q.sum(1, keepdims=True) * np.exp(logs) - q)
    return (losses if reduction == "none" else losses.sum() * factor), np.where(counted[:, None], dx, 0)


def activation(kind, x):
    """(value, slope)."""
    if kind == "relu":
        return np.maximum(x, 0), (x > 0).astype(float)
    if kind == "silu":
        s = special.expit(x)
        return x * s, s * (1 + x * (1 - s))
    if kind == "gelu":
        density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
        return x * special.ndtr(x), special.ndtr(x) + x * density
    c = np.sqrt(2 / np.pi)
    u, du = 2 * c * (x + 0.044715 * x**3), 2 * c * (1 + 3 * 0.044715 * x**2)
    s = special.expit(u)
    return x * s, s * (1 + x * special.expit(-u) * du)
