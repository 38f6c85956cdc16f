"""Kernels and plain bodies keep the same residuals: every pairing of a forward with a backward gives the gradient."""
from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ruda_tensor.kernels import cross_entropy, norms, softmax
from ruda_tensor.ops import _normalize
from ruda_tensor.ops import cross_entropy as plain_entropy
from ruda_tensor.ops import softmax as plain_softmax

from . import _cases as cases
from . import _reference as reference

PAIRS = list(product((True, False), repeat=2))
N, ROWS = 264, 33


def data(xp, rng, *shapes):
    host = [cases.draw(rng, shape, np.dtype(np.float32), 1.0) for shape in shapes]
    return [xp.asarray(a) for a in host], [a.astype(float) for a in host]


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
@pytest.mark.parametrize("rms", [False, True])
def test_norms(xp, rng, rms, forward, backward):
    (x, g, w, b), (X, G, W, _) = data(xp, rng, (ROWS, N), (ROWS, N), N, N)
    kind, vectors = ("rms", (w,)) if rms else ("layer", (w, b))
    go = getattr(norms if forward else _normalize, f"{kind}_forward")
    back = getattr(norms if backward else _normalize, f"{kind}_backward")
    static = {"axes": 1, "eps": 1e-5}
    _, *kept = go(xp, x, *vectors, **static)
    found = back(xp, g, x, w, *kept, needs=(True,) * (2 if rms else 3), **static)
    for a, expected in zip(found, reference.layer_norm_backward(G, X, W, 1e-5, rms)):
        cases.close(a, expected, slack=64, scale=32)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
@pytest.mark.parametrize("log", [False, True])
def test_softmaxes(xp, rng, log, forward, backward):
    (x, g), (X, G) = data(xp, rng, (ROWS, N), (ROWS, N))
    plain = (plain_softmax._softmax_forward, plain_softmax._log_softmax_forward)[log]
    out = softmax.forward(xp, x, axis=1, log=log) if forward else plain(xp, x, axis=1)
    plain = (plain_softmax._softmax_backward, plain_softmax._log_softmax_backward)[log]
    dx = softmax.backward(xp, g, out, axis=1, log=log) if backward else plain(xp, g, out, needs=(True,), axis=1)[0]
    cases.close(dx, reference.softmax_backward(G, X, log), slack=128, scale=8)


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("extras", [False, True], ids=["bare", "weights, smoothing and an ignored class"])
def test_cross_entropy(xp, rng, extras, reduction, forward, backward):
    shapes = ((ROWS, N), (ROWS,) if reduction == "none" else (), N)
    (x, g, _), (X, G, _) = data(xp, rng, *shapes)
    ids, weight = rng.integers(0, N, ROWS), rng.uniform(0.5, 2, N).astype(np.float32) if extras else None
    static = {"ignore": int(ids[3]) if extras else None, "smoothing": 0.1 if extras else 0.0, "reduction": reduction}
    W = None if weight is None else weight.astype(float)
    loss, expected = reference.cross_entropy(X, ids, W, **static, g=G)
    ids, weight = xp.asarray(ids), None if weight is None else xp.asarray(weight)
    go = cross_entropy.forward if forward else plain_entropy._forward
    out, *kept = go(xp, x, ids, weight, axis=1, **static)
    cases.close(xp.asarray(out), loss, slack=64, scale=8 + np.abs(loss).max())
    if backward:
        dx = cross_entropy.backward(xp, g, x, ids, weight, *kept, axis=1, **static)
    else:
        dx = plain_entropy._backward(xp, g, x, ids, weight, *kept, needs=(True, False, False), axis=1, **static)[0]
    cases.close(dx, expected, slack=256)
