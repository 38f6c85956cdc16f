"""Rows for ruda_tensor/ops/einsum.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def row(subscripts, *shapes, **kwargs):
    return Spec(
        "einsum", lambda *x: rt.einsum(subscripts, *x),
        lambda rng: tuple(rng.standard_normal(shape) for shape in shapes),
        lambda *x: np.asarray(np.einsum(subscripts, *x)), linear=len(shapes) == 1, tag=subscripts, **kwargs,
    )  # fmt: skip


ROWS = [
    row("ij,jk->ik", (2, 3), (3, 2)),
    row("ij,kj->ki", (2, 3), (4, 3)),
    row("ij,jk", (2, 3), (3, 2)),
    row("ba", (2, 3)),
    row("ii->", (3, 3)),
    row("ii->i", (3, 3)),
    row("iij->ij", (2, 2, 2)),
    row("iij->i", (2, 2, 2)),
    row("iii->i", (3, 3, 3)),
    row("nd,nn->d", (3, 2), (3, 3)),
    row("bhqd,bhkd->bhqk", (2, 1, 2, 3), (2, 1, 3, 3)),
    row("bqhd,bkhd->bhqk", (2, 2, 2, 2), (2, 3, 2, 2)),
    row("i,j->ji", (2,), (3,)),
    row("bi,bi->b", (3, 2), (3, 2)),
    row("i,->i", (3,), ()),
    row("ij,k->i", (2, 3), (2,)),
    row("...ij,...jk->...ik", (2, 1, 2, 3), (3, 3, 2)),
    row("...i->...", (2, 3)),
    row("ij,jk,kl->il", (2, 3), (3, 2), (2, 2)),
    row("a,ab,abc->cb", (2,), (2, 2), (2, 2, 3)),
    row("xy,yz->xz", (2, 0), (0, 3), order=1),
]  # fmt: skip
