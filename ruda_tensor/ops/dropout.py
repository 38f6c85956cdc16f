"""Dropout. The mask is named by two integers and drawn again in backward: it is never stored."""
from __future__ import annotations

from typing import Any

import numpy as np

from .. import random
from ..dtypes import FLOAT16
from ..kernels import pointwise as kernels
from ..operation import Primitive, apply, round_to, widen
from ..random import draws
from ..random.state import check_key, check_probability
from ..tensor import Tensor
from ._common import floating

__all__ = ["dropout"]


def masked(xp: Any, x: Any, mask: Any) -> Any:
    """x where `mask`, else 0: its bits times 0 or 1. No branches to guess, and an infinity that is dropped is gone."""
    return xp.multiply(x.view(f"i{x.itemsize}"), mask.view(np.int8)).view(x.dtype)


def position(name: str, count: int, seed: Any, key: Any) -> tuple[int, int]:
    """Return the (seed, offset) of a draw of `count` words: from a seed, a key, or the process's generator."""
    if seed is not None and key is not None:
        raise ValueError(f"{name}: give seed= or key=, not both; write key=rt.random.key({seed!r})")
    start = seed if key is None else check_key(name, key)
    return random.reserve(count) if start is None else random.Generator(start).place(count, lasting=False)


def drop(x: Tensor, p: float, seed: int, offset: int) -> Tensor:
    """Dropout with 0 < p < 1 by the mask that is named (seed, offset)."""
    op = _dropout_stored if x.device.launches else _dropout
    return apply(op, (x,), {"p": p, "seed": seed, "offset": offset})


def kept(xp: Any, count: int, p: float, seed: Any, offset: int) -> Any:
    """Which of `count` elements dropout keeps by the draw (seed, offset), as bools.

    The kernel knows places that change from replay to replay, so what it leaves of ones is looked at.
    """
    left = kernels.dropout(xp, xp.ones(count, FLOAT16), p=p, seed=seed, offset=offset)
    return draws.bernoulli(xp, (count,), 1 - p, seed, offset) if left is None else left != 0


def _forward(xp: Any, x: Any, *, p: float, seed: int, offset: int) -> Any:
    return masked(xp, x * x.dtype.type(1 / (1 - p)), draws.bernoulli(xp, x.shape, 1 - p, seed, offset))


def _stored_forward(xp: Any, x: Any, *, p: float, seed: int, offset: int) -> Any:
    """The same where there are kernels, which read half types as they are."""
    found = kernels.dropout(xp, x, p=p, seed=seed, offset=offset)
    if found is not None:
        return found
    if not x.size:  # nothing is drawn, not even in a captured step
        return xp.empty(x.shape, x.dtype)
    (wide,), dtype = widen([x])
    out = _forward(xp, wide, p=p, seed=seed, offset=offset)
    return out if dtype is None else round_to(out, dtype)


_dropout = Primitive("dropout", _forward, dx=lambda g, p, seed, offset: drop(g, p, seed, offset))
_dropout_stored = Primitive(
    "dropout", _stored_forward, half="storage", dx=lambda g, p, seed, offset: drop(g, p, seed, offset)
)
_nothing = Primitive(
    "dropout", lambda xp, x: xp.zeros(x.shape, x.dtype), half="storage", dx=lambda g: apply(_nothing, (g,))
)


def dropout(
    x: Tensor, p: float = 0.5, *, training: bool, seed: int | None = None, key: random.Key | None = None
) -> Tensor:
    """Return x with each element replaced by 0 with probability p, and the others divided by 1 - p.

    Without `training`, and for p = 0, x itself: the mean of the result is x either way (inverted dropout). p = 1 gives
    zeros. The mask is that of `rt.random.bernoulli_at(x.shape, 1 - p, seed, offset)`: the same on every device, from
    `seed`, from `key`, or from the process's generator, which moves on by x.size words. Backward draws it again.

    Errors: ValueError unless 0 <= p <= 1.
    Source: Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout", 2014.

    >>> import ruda_tensor as rt
    >>> rt.dropout(rt.ones(4, device=rt.Cpu()), 0.75, training=True, seed=7).tolist()
    [0.0, 0.0, 4.0, 4.0]
    """
    x = floating(x, "dropout")
    p = check_probability("dropout", p)
    if not training or p == 0:
        return x
    if p == 1:
        return apply(_nothing, (x,))
    return drop(x, p, *position("dropout", x.size, seed, key))
