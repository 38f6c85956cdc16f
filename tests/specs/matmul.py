"""Rows for ruda_tensor/ops/matmul.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def normal(*shapes):
    return lambda rng: tuple(rng.standard_normal(shape) for shape in shapes)


def product(tag, x, y, **kwargs):
    return Spec("matmul", lambda a, b: rt.matmul(a, b), normal(x, y), np.matmul, tag=tag, **kwargs)


ROWS = [
    product("", (3, 4), (4, 2)),
    product("vector-vector", (3,), (3,)),
    product("matrix-vector", (2, 3), (3,)),
    product("vector-matrix", (3,), (3, 2)),
    product("batch-matrix", (2, 3, 4), (4, 2)),
    product("matrix-batch", (3, 4), (2, 4, 2)),
    product("batches", (2, 1, 2, 3), (3, 3, 2)),
    product("batch-vector", (2, 3, 4), (4,)),
    product("vector-batch", (3,), (2, 3, 2)),
    product("nothing-to-contract", (2, 0), (0, 3), order=1),
    Spec(
        "matmul", lambda x, y: rt.matmul(x.mT, y.mT), normal((2, 4, 3), (2, 4)),
        lambda x, y: x.swapaxes(-1, -2) @ y.T, tag="transposed",
    ),
    Spec("matmul", lambda x: x @ x, normal((3, 3)), lambda x: x @ x, tag="square"),
    Spec("linear", lambda x, w, b: rt.linear(x, w, b), normal((4, 3), (3, 2), (2,)), lambda x, w, b: x @ w + b),
    Spec(
        "linear", lambda x, w, b: rt.linear(x, w, b), normal((2, 2, 3), (3, 2), (2,)),
        lambda x, w, b: x @ w + b, tag="batch",
    ),
    Spec(
        "linear", lambda x, w, b: rt.linear(x, w, b), normal((3,), (3, 2), (2,)),
        lambda x, w, b: x @ w + b, tag="row",
    ),
    Spec("linear", lambda x, w: rt.linear(x, w), normal((4, 3), (3, 2)), lambda x, w: x @ w, tag="no-bias"),
    Spec(
        "linear", lambda x, w, b, r: rt.linear(x, w, b, residual=r), normal((2, 2, 3), (3, 2), (2,), (2, 2, 2)),
        lambda x, w, b, r: x @ w + b + r, tag="residual",
    ),
    Spec(
        "linear", lambda x, w, r: rt.linear(x, w, residual=r), normal((4, 3), (3, 2), (4, 2)),
        lambda x, w, r: x @ w + r, tag="residual-no-bias",
    ),
    Spec("vecdot", lambda x, y: rt.vecdot(x, y), normal((2, 3), (2, 3)), lambda x, y: (x * y).sum(-1)),
    Spec(
        "vecdot", lambda x, y: rt.vecdot(x, y, axis=-2), normal((3, 2), (4, 3, 1)),
        lambda x, y: (x * y).sum(-2), tag="axis",
    ),
    Spec("tensordot", lambda x, y: rt.tensordot(x, y), normal((2, 3, 2), (3, 2, 2)), np.tensordot),
    Spec(
        "tensordot", lambda x, y: rt.tensordot(x, y, axes=((0, 2), (1, 0))), normal((2, 3, 4), (4, 2)),
        lambda x, y: np.tensordot(x, y, ((0, 2), (1, 0))), tag="lists",
    ),
    Spec(
        "tensordot", lambda x, y: rt.tensordot(x, y, axes=0), normal((2,), (3,)),
        lambda x, y: np.tensordot(x, y, 0), tag="none",
    ),
    Spec("outer", lambda x, y: rt.outer(x, y), normal((2,), (3,)), np.outer),
]  # fmt: skip
