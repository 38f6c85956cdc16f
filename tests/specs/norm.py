"""Rows for ruda_tensor/ops/norm.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import draws, uniform
from ._spec import Spec
from .conv import normal


def standard(x, axis, eps=1e-5):
    return (x - x.mean(axis=axis, keepdims=True)) / np.sqrt(x.var(axis=axis, keepdims=True) + eps)


def rms(x, axis, eps=1e-5):
    return x / np.sqrt(np.mean(x * x, axis=axis, keepdims=True) + eps)


def running(x, mean, var, momentum=0.3):
    axes = (0, *range(2, x.ndim))
    unbiased = x.var(axis=axes, ddof=1)
    return (1 - momentum) * mean + momentum * x.mean(axis=axes), (1 - momentum) * var + momentum * unbiased


def fixed(x, mean, var, weight, bias):
    return (x - mean) / np.sqrt(var + 1e-5) * weight[:, None] + bias[:, None]


def group(x, groups, weight, bias):
    y = standard(x.reshape(x.shape[0] * groups, -1), 1).reshape(x.shape)
    return y * weight[:, None] + bias[:, None]


ROWS: list[Spec] = [
    Spec("layer_norm", lambda x: rt.layer_norm(x), draws(normal(3, 5)), lambda x: standard(x, 1)),
    Spec(
        "layer_norm", rt.layer_norm, draws(normal(2, 2, 3), normal(3), normal(3)),
        lambda x, w, b: standard(x, 2) * w + b, tag="affine",
    ),
    Spec(
        "layer_norm", rt.layer_norm, draws(normal(2, 2, 3), normal(2, 3), normal(2, 3)),
        lambda x, w, b: standard(x, (1, 2)) * w + b, tag="two-axes",
    ),
    Spec(
        "layer_norm", lambda x, b: rt.layer_norm(x, None, b, normalized_shape=4, eps=0.1), draws(normal(4), normal(4)),
        lambda x, b: standard(x, 0, 0.1) + b, tag="bias-alone",
    ),
    Spec("rms_norm", lambda x: rt.rms_norm(x, eps=1e-5), draws(normal(3, 5)), lambda x: rms(x, 1)),
    Spec(
        "rms_norm", lambda x, w: rt.rms_norm(x, w, eps=1e-5), draws(normal(2, 2, 3), normal(2, 3)),
        lambda x, w: rms(x, (1, 2)) * w, tag="affine",
    ),
    Spec(
        "add_layer_norm", lambda x, y, w, b: rt.add_layer_norm(x, y, w, b), draws(normal(2, 3), normal(2, 3), *2 * (normal(3),)),
        lambda x, y, w, b: (x + y, standard(x + y, 1) * w + b),
    ),
    Spec(
        "add_rms_norm", lambda x, y, w: rt.add_rms_norm(x, y, w, eps=1e-5), draws(normal(2, 3), normal(2, 3), normal(3)),
        lambda x, y, w: (x + y, rms(x + y, 1) * w),
    ),
    Spec(
        "batch_norm", lambda x, m, v: rt.batch_norm(x, m, v, training=True, momentum=0.3)[1:],
        draws(normal(3, 2, 4), normal(2), uniform(0.5, 2.0, 2)), running, order=0, tag="running",
    ),
    Spec(
        "batch_norm", lambda x, w, b: rt.batch_norm(x, None, None, w, b, training=True)[0],
        draws(normal(4, 3), normal(3), normal(3)),
        lambda x, w, b: standard(x, 0) * w + b, tag="matrix",
    ),
    Spec(
        "batch_norm", lambda x, w: rt.batch_norm(x, weight=w, training=True)[0], draws(normal(2, 2, 2, 3), normal(2)),
        lambda x, w: standard(x, (0, 2, 3)) * w[:, None, None], tag="images",
    ),
    Spec(
        "batch_norm", lambda x: rt.batch_norm(x, training=True)[0], draws(normal(2, 2, 20)),
        lambda x: standard(x, (0, 2)), tag="long",
    ),
    Spec(
        "batch_norm", lambda x, w, b: rt.batch_norm(x, rt.full_like(b, 0.5), rt.full_like(b, 2.0), w, b)[0],
        draws(normal(2, 3, 2), normal(3), normal(3)),
        lambda x, w, b: fixed(x, 0.5, 2.0, w, b), tag="inference",
    ),
    Spec(
        "group_norm", lambda x, w, b: rt.group_norm(x, 2, w, b), draws(normal(2, 4, 3), normal(4), normal(4)),
        lambda x, w, b: group(x, 2, w, b),
    ),
    Spec(
        "instance_norm", lambda x, w, b: rt.instance_norm(x, w, b), draws(normal(2, 2, 4), normal(2), normal(2)),
        lambda x, w, b: group(x, 2, w, b),
    ),
]  # fmt: skip
