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


def padded(rng):
    return *scores(rng), TARGETS, FRAMES, LENGTHS


ROWS: list[Spec] = [
    Spec("ctc_loss", rt.ctc_loss, padded, lambda x, *ids: (losses(x, *ids) / LENGTHS).mean()),
    Spec("ctc_loss", lambda x, *ids: rt.ctc_loss(x, *ids, reduction="none"), padded, losses, tag="none"),
    Spec("ctc_loss", lambda x, targets: rt.ctc_loss(x, targets, blank=2, reduction="sum"),
         lambda rng: (rng.standard_normal((5, 2, 3)), np.array([[0, 0], [1, 0]])),
         lambda x, targets: losses(x, targets, [5, 5], [2, 2], blank=2).sum(), tag="blank"),
]  # fmt: skip
