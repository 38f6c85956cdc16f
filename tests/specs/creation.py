"""Rows for ruda_tensor/creation.py, ranges.py and for astype; the input of a range only says on which device it is."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import draws, integers, uniform
from ._spec import Spec

here = draws(integers(0, 9, 2, 3))
matrix = draws(uniform(-2.0, 2.0, 3, 4))
batch = draws(uniform(-2.0, 2.0, 2, 4, 3))
vectors = draws(uniform(-2.0, 2.0, 3), uniform(-2.0, 2.0, 2), uniform(-2.0, 2.0, 4))


def made(name, call, reference, tag=""):
    return Spec(name, call, here, reference, order=0, tag=tag)


MADE = [
    made("arange", lambda x: rt.arange(2, 11, 3, device=x.device), lambda x: np.arange(2, 11, 3)),
    made("arange", lambda x: rt.arange(1, -1, -0.25, device=x.device), lambda x: np.arange(1, -1, -0.25), "fractions"),
    made(
        "linspace", lambda x: rt.linspace(-1, 2, 7, dtype=rt.float64, device=x.device),
        lambda x: np.linspace(-1, 2, 7),
    ),
    made(
        "linspace", lambda x: rt.linspace(0, 1, 5, endpoint=False, dtype=rt.float64, device=x.device),
        lambda x: np.linspace(0, 1, 5, endpoint=False), "open",
    ),
    made("eye", lambda x: rt.eye(3, 5, k=1, device=x.device), lambda x: np.eye(3, 5, k=1)),
    made("zeros", lambda x: rt.zeros(x.shape, device=x.device), lambda x: np.zeros(x.shape)),
    made("ones", lambda x: rt.ones(x.shape, device=x.device), lambda x: np.ones(x.shape)),
    made("full", lambda x: rt.full(x.shape, 1.5, device=x.device), lambda x: np.full(x.shape, 1.5)),
    made("zeros_like", lambda x: rt.zeros_like(x), np.zeros_like),
    made("ones_like", lambda x: rt.ones_like(x), np.ones_like),
    made("full_like", lambda x: rt.full_like(x, 7), lambda x: np.full_like(x, 7)),
]

TAKEN = [
    Spec("tril", lambda x: rt.tril(x), matrix, np.tril, linear=True),
    Spec("tril", lambda x: rt.tril(x, k=-1), batch, lambda x: np.tril(x, -1), linear=True, tag="batch"),
    Spec("triu", lambda x: rt.triu(x), matrix, np.triu, linear=True),
    Spec("triu", lambda x: rt.triu(x, k=1), batch, lambda x: np.triu(x, 1), linear=True, tag="batch"),
    Spec("diag", lambda x: rt.diag(x), matrix, np.diag, linear=True),
    Spec("diag", lambda x: rt.diag(x, -1), matrix, lambda x: np.diag(x, -1), linear=True, tag="below"),
    Spec(
        "diag", lambda x: rt.diag(x, 2), draws(uniform(-2.0, 2.0, 3)), lambda x: np.diag(x, 2), linear=True, tag="make"
    ),
    Spec("meshgrid", lambda *x: rt.meshgrid(*x), vectors, lambda *x: np.meshgrid(*x), linear=True),
    Spec(
        "meshgrid", lambda *x: rt.meshgrid(*x, indexing="ij"), vectors, lambda *x: np.meshgrid(*x, indexing="ij"),
        linear=True, tag="ij",
    ),
    Spec("astype", lambda x: rt.astype(rt.astype(x, rt.float64), x.dtype), matrix, np.copy, linear=True),
    Spec("astype", lambda x: rt.astype(x, rt.int32), matrix, np.trunc, order=0, tag="integers"),
]

ROWS = MADE + TAKEN
