"""Rows for ruda_tensor/ops/cross_entropy.py and loss.py."""
from __future__ import annotations

import numpy as np
import scipy.special

import ruda_tensor as rt

from ._domains import constant
from ._spec import Spec

WEIGHT = np.array([1.0, 2.0, 0.5, 4.0])


def classes(rng):
    """Logits of 5 rows and 4 classes, and ids of which -100 and 2 occur."""
    return rng.standard_normal((5, 4)), np.array([0, 3, -100, 2, 1])


def maps(rng):
    return rng.standard_normal((2, 4, 3)), rng.integers(0, 4, (2, 3))


def probabilities(rng):
    return rng.standard_normal((3, 4)), scipy.special.softmax(rng.standard_normal((3, 4)), axis=-1)


def rows_of(logits, ids, weight=None, smoothing=0.0, ignore=-100):
    """The loss and the weight of each row, by the definition."""
    logs, n = scipy.special.log_softmax(logits, axis=-1), logits.shape[-1]
    weight = np.ones(n) if weight is None else weight
    losses, own = np.zeros(len(ids)), np.zeros(len(ids))
    for i, t in enumerate(ids):
        if t != ignore:
            own[i] = weight[t]
            losses[i] = -(1 - smoothing) * weight[t] * logs[i, t] - smoothing / n * (weight * logs[i]).sum()
    return losses, own


def mean_of(**how):
    def reference(logits, ids):
        losses, own = rows_of(logits, ids, **how)
        return losses.sum() / own.sum()

    return reference


def near(*shape):
    """A prediction and a target whose differences stay away from 0, and from 1 in size."""

    def make(rng):
        target = rng.standard_normal(shape)
        return target + rng.choice([-1.6, -0.4, 0.5, 1.7], shape) * rng.uniform(0.9, 1.1, shape), target

    return make


def inside(*shape):
    return lambda rng: (rng.uniform(0.1, 0.9, shape), rng.uniform(0.1, 0.9, shape))


def free(*shape):
    return lambda rng: (rng.standard_normal(shape), rng.uniform(0.1, 0.9, shape))


def binary(p, t):
    return -(t * np.log(p) + (1 - t) * np.log1p(-p))


def binary_of_logits(x, t, positive=1.0):
    return positive * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)


def smooth(d, beta):
    return np.where(np.abs(d) < beta, d * d / (2 * beta), np.abs(d) - beta / 2)


def weighted(x, t):
    return rt.cross_entropy(x, t, weight=constant(WEIGHT, x), label_smoothing=0.1)


CROSS_ENTROPY = [
    Spec("cross_entropy", lambda x, t: rt.cross_entropy(x, t), classes, mean_of()),
    Spec("cross_entropy", weighted, classes, mean_of(weight=WEIGHT, smoothing=0.1), tag="weight"),
    Spec("cross_entropy", lambda x, t: rt.cross_entropy(x, t, ignore_index=2, reduction="sum"),
         lambda rng: (rng.standard_normal((5, 4)), np.array([0, 3, 2, 2, 1])),
         lambda x, t: rows_of(x, t, ignore=2)[0].sum(), tag="sum"),
    Spec("cross_entropy", lambda x, t: rt.cross_entropy(x, t, label_smoothing=0.3, reduction="none"), classes,
         lambda x, t: rows_of(x, t, smoothing=0.3)[0], tag="none"),
    Spec("cross_entropy", lambda x, t: rt.cross_entropy(x, t, axis=1, reduction="none"), maps,
         lambda x, t: rows_of(x.transpose(0, 2, 1).reshape(-1, 4), t.ravel())[0].reshape(t.shape), tag="maps"),
    Spec("cross_entropy", lambda x, q: rt.cross_entropy(x, q), probabilities,
         lambda x, q: -(q * scipy.special.log_softmax(x, axis=-1)).sum(-1).mean(), tag="probabilities"),
    Spec("cross_entropy", lambda x, q: rt.cross_entropy(
             x, q, weight=constant(WEIGHT, x), label_smoothing=0.2, reduction="none"),
         probabilities,
         lambda x, q: -(WEIGHT * (0.8 * q + 0.05) * scipy.special.log_softmax(x, axis=-1)).sum(-1), tag="smooth"),
]  # fmt: skip

ERRORS = [
    Spec("mse", lambda x, y: rt.mse(x, y), near(3, 4), lambda x, y: np.mean((x - y) ** 2)),
    Spec("mse", lambda x, y: rt.mse(x, y, reduction="none"), near(5), lambda x, y: (x - y) ** 2, tag="none"),
    Spec(
        "mse", lambda x: rt.mse(x, 2.0, reduction="sum"), lambda rng: (rng.standard_normal(()),),
        lambda x: (x - 2.0) ** 2, tag="0-d",
    ),
    Spec("mae", lambda x, y: rt.mae(x, y), near(3, 4), lambda x, y: np.mean(np.abs(x - y))),
    Spec("smooth_l1", lambda x, y: rt.smooth_l1(x, y), near(3, 4), lambda x, y: smooth(x - y, 1).mean()),
    Spec(
        "smooth_l1", lambda x, y: rt.smooth_l1(x, y, beta=0.0, reduction="sum"), near(5),
        lambda x, y: np.abs(x - y).sum(), tag="0",
    ),
    Spec(
        "huber", lambda x, y: rt.huber(x, y, delta=0.7, reduction="none"), near(3, 4),
        lambda x, y: 0.7 * smooth(x - y, 0.7),
    ),
    Spec(
        "binary_cross_entropy", lambda p, t: rt.binary_cross_entropy(p, t), inside(3, 4),
        lambda p, t: binary(p, t).mean(),
    ),
    Spec("binary_cross_entropy_with_logits", lambda x, t: rt.binary_cross_entropy_with_logits(x, t), free(3, 4),
         lambda x, t: binary_of_logits(x, t).mean()),
    Spec("binary_cross_entropy_with_logits", lambda x, t: rt.binary_cross_entropy_with_logits(
             x, t, pos_weight=constant(WEIGHT, x), reduction="none"),
         free(3, 4), lambda x, t: binary_of_logits(x, t, WEIGHT), tag="pos_weight"),
    Spec("kl_div", lambda x, p: rt.kl_div(x, p), free(3, 4), lambda x, p: (p * (np.log(p) - x)).sum(-1).mean()),
    Spec("kl_div", lambda x, p: rt.kl_div(x, p, axis=0, reduction="none"), free(3, 2),
         lambda x, p: (p * (np.log(p) - x)).sum(0), tag="none"),
]  # fmt: skip

ROWS: list[Spec] = CROSS_ENTROPY + ERRORS
