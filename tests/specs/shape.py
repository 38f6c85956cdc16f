"""Rows for ruda_tensor/ops/shape.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def normal(*shape):
    return lambda rng: (rng.standard_normal(shape),)


def row(name, call, shape, reference, tag="", **kwargs):
    return Spec(name, call, normal(*shape), reference, linear=True, tag=tag, **kwargs)


def overlapping(x, size, step):
    return np.lib.stride_tricks.sliding_window_view(x, size, -1)[..., ::step, :]


ROWS = [
    row("reshape", lambda x: rt.reshape(x, (4, -1)), (2, 3, 4), lambda x: x.reshape(4, -1)),
    row("reshape", lambda x: rt.reshape(x, ()), (1, 1), lambda x: x.reshape(()), "to-0-d"),
    row("reshape", lambda x: rt.reshape(x, (1, 1)), (), lambda x: x.reshape(1, 1), "from-0-d"),
    row("reshape", lambda x: rt.reshape(x.mT, 6), (2, 3), lambda x: x.T.reshape(6), "needs-a-copy"),
    row("reshape", lambda x: rt.reshape(x, (3, 0)), (0, 2), lambda x: x.reshape(3, 0), "empty", order=1),
    row("flatten", lambda x: rt.flatten(x, 1), (2, 3, 2), lambda x: x.reshape(2, 6)),
    row("flatten", lambda x: rt.flatten(x), (), lambda x: x.reshape(1), "0-d"),
    row("broadcast_to", lambda x: rt.broadcast_to(x, (2, 3, 4)), (3, 1), lambda x: np.broadcast_to(x, (2, 3, 4))),
    row("broadcast_to", lambda x: rt.broadcast_to(x, (2, 3)), (), lambda x: np.broadcast_to(x, (2, 3)), "0-d"),
    row("broadcast_to", lambda x: rt.broadcast_to(x, (3, 0)), (3, 1), lambda x: np.zeros((3, 0)), "to-empty", order=1),
    Spec(
        "broadcast_arrays", lambda x, y: tuple(rt.broadcast_arrays(x, y)),
        lambda rng: (rng.standard_normal((3, 1)), rng.standard_normal(2)),
        lambda x, y: tuple(np.broadcast_arrays(x, y)),
    ),
    row("expand_dims", lambda x: rt.expand_dims(x, axis=1), (2, 3), lambda x: x[:, None]),
    row("expand_dims", lambda x: rt.expand_dims(x, axis=(0, -1)), (2, 3), lambda x: x[None, ..., None], "several"),
    row("expand_dims", lambda x: rt.expand_dims(x, axis=0), (), lambda x: x[None], "0-d"),
    row("squeeze", lambda x: rt.squeeze(x, axis=(0, -1)), (1, 3, 1), lambda x: x[0, :, 0]),
    row("squeeze", lambda x: rt.squeeze(x), (1, 3, 1), np.squeeze, "all"),
    row("permute_dims", lambda x: rt.permute_dims(x, (2, 0, 1)), (2, 3, 4), lambda x: x.transpose(2, 0, 1)),
    row("permute_dims", lambda x: rt.permute_dims(x, ()), (), lambda x: x, "0-d"),
    row("transpose", lambda x: rt.transpose(x), (2, 3, 4), np.transpose),
    row("transpose", lambda x: rt.transpose(x, (1, 0, 2)), (2, 3, 4), lambda x: x.transpose(1, 0, 2), "axes"),
    row("matrix_transpose", lambda x: rt.matrix_transpose(x), (2, 3, 4), lambda x: x.swapaxes(-1, -2)),
    row("swap_dims", lambda x: rt.swap_dims(x, 0, -1), (2, 3, 4), lambda x: x.swapaxes(0, -1)),
    row("moveaxis", lambda x: rt.moveaxis(x, 0, -1), (2, 3, 4), lambda x: np.moveaxis(x, 0, -1)),
    row(
        "moveaxis", lambda x: rt.moveaxis(x, (0, 2), (1, 0)), (2, 3, 4),
        lambda x: np.moveaxis(x, (0, 2), (1, 0)), "two",
    ),
    row("flip", lambda x: rt.flip(x), (2, 3), np.flip),
    row("flip", lambda x: rt.flip(x, axis=-1), (2, 3), lambda x: np.flip(x, -1), "axis"),
    row("roll", lambda x: rt.roll(x, 4), (2, 3), lambda x: np.roll(x, 4)),
    row("roll", lambda x: rt.roll(x, (1, -2), axis=(0, 1)), (2, 3), lambda x: np.roll(x, (1, -2), (0, 1)), "axes"),
    row("sliding_windows", lambda x: rt.sliding_windows(x, 4), (6,), lambda x: overlapping(x, 4, 1)),
    row("sliding_windows", lambda x: rt.sliding_windows(x, 2, step=3), (2, 9), lambda x: overlapping(x, 2, 3), "gaps"),
    row(
        "sliding_windows", lambda x: rt.sliding_windows(x, (2, 3), step=(1, 2), axis=(0, 1)), (4, 5),
        lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 3))[:, ::2], "two-axes",
    ),
]  # fmt: skip
