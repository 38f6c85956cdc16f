"""Rows for ruda_tensor/ops/ctc.py; the reference adds up every path."""
from __future__ import annotations

import itertools

import numpy as np

import ruda_tensor as rt

from ._spec import Spec

TARGETS = np.array([[1, 1], [2, 1], [2, 9]])  # 9 is padding
FRAMES, LENGTHS = np.array([4, 3, 2]), np.array([2, 2, 1])


def scores(rng):
    return (rng.standard_normal((4, 3, 3)),)


def read(path, blank):
    """What a path says: without repeats, then without blanks."""
    return [label for label, _ in itertools.groupby(path) if label != blank]


def losses(log_probs, targets, frames, lengths, blank=0):
    """-log of the summed probability of all paths that read the targets, row by row."""
    found = []
    for i, (t, n) in enumerate(zip(frames, lengths)):
        paths = itertools.product(range(log_probs.shape[2]), repeat=int(t))
        wanted = [path for path in paths if read(path, blank) == targets[i, :n].tolist()]
        logs = [sum(log_probs[k, i, label] for k, label in enumerate(path)) for path in wanted]
        found.append(-np.logaddexp.reduce(logs) if logs else np.inf)
    return np.array(found)


def ctc(x, **how):
    place = {"device": x.device}
    targets, frames, lengths = rt.tensor(TARGETS, **place), rt.tensor(FRAMES, **place), rt.tensor(LENGTHS, **place)
    return rt.ctc_loss(x, targets, frames, lengths, **how)


ROWS: list[Spec] = [
    Spec("ctc_loss", lambda x: ctc(x), scores, lambda x: (losses(x, TARGETS, FRAMES, LENGTHS) / LENGTHS).mean()),
    Spec("ctc_loss", lambda x: ctc(x, reduction="none"), scores, lambda x: losses(x, TARGETS, FRAMES, LENGTHS), tag="none"),
    Spec("ctc_loss",
         lambda x: rt.ctc_loss(x, rt.tensor([[0, 0], [1, 0]], device=x.device), blank=2, reduction="sum"),
         lambda rng: (rng.standard_normal((5, 2, 3)),),
         lambda x: losses(x, np.array([[0, 0], [1, 0]]), [5, 5], [2, 2], blank=2).sum(), tag="blank"),
]  # fmt: skip
