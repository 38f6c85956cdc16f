"""Rows for ruda_tensor/ops/reduce.py, sets.py and statistics.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._spec import Spec


def normal(*shape):
    return lambda rng: (rng.standard_normal(shape),)


def apart(*shape):
    """Values no two of which are nearer than 0.1: no ties, in any float type."""

    def make(rng):
        n = int(np.prod(shape))
        return (((rng.permutation(n) - n / 2 + 0.3 * rng.random(n)) / 7).reshape(shape),)

    return make


def zeros_among(*shape):
    """Values with exact zeros, one or two to a row."""

    def make(rng):
        x = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
        x[..., 1] = 0.0
        x[0, ..., 0] = 0.0
        return (x,)

    return make


def away_from_zero(*shape):
    return lambda rng: (rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], shape),)


def flags(*shape):
    return lambda rng: (rng.random(shape) < 0.6,)


def counts(*shape):
    return lambda rng: (rng.integers(0, 3, shape),)


SUMS = [
    Spec("sum", lambda x: rt.sum(x), normal(3, 5), np.sum, linear=True),
    Spec("sum", lambda x: rt.sum(x, axis=1), normal(2, 5, 3), lambda x: x.sum(1), linear=True, tag="middle"),
    Spec("sum", lambda x: rt.sum(x, axis=0), normal(70, 3), lambda x: x.sum(0), half=False, linear=True, tag="rows"),
    Spec(
        "sum", lambda x: rt.sum(x, axis=(0, -1), keepdims=True), normal(2, 3, 4),
        lambda x: x.sum((0, -1), keepdims=True), linear=True, tag="keepdims",
    ),
    Spec("sum", lambda x: rt.sum(x), normal(), np.sum, linear=True, tag="0-d"),
    Spec("mean", lambda x: rt.mean(x), normal(3, 5), np.mean, linear=True),
    Spec("mean", lambda x: rt.mean(x, axis=-2), normal(3, 5), lambda x: x.mean(-2), linear=True, tag="axis"),
    Spec(
        "mean", lambda x: rt.mean(x, axis=(1, 2), keepdims=True), normal(2, 3, 4),
        lambda x: x.mean((1, 2), keepdims=True), linear=True, tag="keepdims",
    ),
    Spec("prod", lambda x: rt.prod(x), away_from_zero(5), np.prod),
    Spec("prod", lambda x: rt.prod(x, axis=1), away_from_zero(3, 4), lambda x: x.prod(1), tag="axis"),
    Spec(
        "prod", lambda x: rt.prod(x, axis=(0, 2), keepdims=True), away_from_zero(2, 3, 2),
        lambda x: x.prod((0, 2), keepdims=True), tag="axes",
    ),
    Spec("prod", lambda x: rt.prod(x, axis=1), zeros_among(3, 4), lambda x: x.prod(1), tag="zeros"),
]  # fmt: skip

EXTREMES = [
    Spec("max", lambda x: rt.max(x), apart(3, 5), np.max),
    Spec("max", lambda x: rt.max(x, axis=0), apart(3, 5), lambda x: x.max(0), tag="axis"),
    Spec(
        "max", lambda x: rt.max(x, axis=(0, 2), keepdims=True), apart(2, 3, 4),
        lambda x: x.max((0, 2), keepdims=True), tag="keepdims",
    ),
    Spec("min", lambda x: rt.min(x), apart(3, 5), np.min),
    Spec("min", lambda x: rt.min(x, axis=-1), apart(3, 5), lambda x: x.min(-1), tag="axis"),
    Spec(
        "min", lambda x: rt.min(x, axis=(1,), keepdims=True), apart(3, 5),
        lambda x: x.min(1, keepdims=True), tag="keepdims",
    ),
    Spec("argmax", lambda x: rt.argmax(x), apart(3, 5), np.argmax, order=0),
    Spec(
        "argmax", lambda x: rt.argmax(x, axis=1, keepdims=True), apart(3, 5),
        lambda x: x.argmax(1, keepdims=True), order=0, tag="axis",
    ),
    Spec("argmin", lambda x: rt.argmin(x), apart(3, 5), np.argmin, order=0),
    Spec("argmin", lambda x: rt.argmin(x, axis=0), apart(3, 5), lambda x: x.argmin(0), order=0, tag="axis"),
]  # fmt: skip

TRUTH = [
    Spec("all", lambda x: rt.all(x), flags(3, 5), np.all, order=0),
    Spec(
        "all", lambda x: rt.all(x, axis=0, keepdims=True), flags(3, 5),
        lambda x: x.all(0, keepdims=True), order=0, tag="axis",
    ),
    Spec("any", lambda x: rt.any(x), flags(3, 5), np.any, order=0),
    Spec("any", lambda x: rt.any(x, axis=(0, 1)), flags(3, 5, 2), lambda x: x.any((0, 1)), order=0, tag="axis"),
    Spec("count_nonzero", lambda x: rt.count_nonzero(x), counts(3, 5), np.count_nonzero, order=0),
    Spec(
        "count_nonzero", lambda x: rt.count_nonzero(x, axis=1, keepdims=True), zeros_among(3, 5),
        lambda x: np.count_nonzero(x, axis=1, keepdims=True), order=0, tag="axis",
    ),
]  # fmt: skip

STATISTICS = [
    Spec("var", lambda x: rt.var(x), normal(3, 5), np.var),
    Spec("var", lambda x: rt.var(x, axis=0, correction=1), normal(4, 3), lambda x: x.var(0, ddof=1), tag="correction"),
    Spec(
        "var", lambda x: rt.var(x, axis=(0, 2), keepdims=True), normal(2, 3, 4),
        lambda x: x.var((0, 2), keepdims=True), tag="keepdims",
    ),
    Spec("std", lambda x: rt.std(x), normal(3, 5), np.std),
    Spec(
        "std", lambda x: rt.std(x, axis=-1, correction=0.5), normal(2, 6),
        lambda x: x.std(-1, ddof=0.5), tag="correction",
    ),
    Spec("norm", lambda x: rt.norm(x), normal(3, 5), lambda x: np.sqrt((x * x).sum())),
    Spec(
        "norm", lambda x: rt.norm(x, axis=1, keepdims=True), normal(3, 5),
        lambda x: np.sqrt((x * x).sum(1, keepdims=True)), tag="axis",
    ),
    Spec("norm", lambda x: rt.norm(x, 1, axis=0), away_from_zero(3, 5), lambda x: np.abs(x).sum(0), tag="1"),
    Spec(
        "norm", lambda x: rt.norm(x, 3.5, axis=(0, 1)), away_from_zero(3, 5),
        lambda x: (np.abs(x) ** 3.5).sum() ** (1 / 3.5), tag="3.5",
    ),
    Spec("norm", lambda x: rt.norm(x, rt.inf, axis=1), apart(3, 5), lambda x: np.abs(x).max(1), tag="inf"),
    Spec("norm", lambda x: rt.norm(x, -rt.inf, axis=1), apart(3, 5), lambda x: np.abs(x).min(1), tag="-inf"),
    Spec(
        "normalize", lambda x: rt.normalize(x), away_from_zero(3, 5),
        lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)),
    ),
    Spec(
        "normalize", lambda x: rt.normalize(x, axis=0, ord=1), away_from_zero(3, 5),
        lambda x: x / np.abs(x).sum(0), tag="1",
    ),
    Spec(
        "cosine_similarity", lambda x, y: rt.cosine_similarity(x, y),
        lambda rng: (rng.standard_normal((3, 5)), rng.standard_normal((3, 5))),
        lambda x, y: (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)),
    ),
    Spec(
        "cosine_similarity", lambda x, y: rt.cosine_similarity(x, y, axis=0),
        lambda rng: (rng.standard_normal((4, 3)), rng.standard_normal((4, 1))),
        lambda x, y: (x * y).sum(0) / np.sqrt((x * x).sum(0) * (y * y).sum(0)), tag="broadcast",
    ),
]  # fmt: skip


def unique(x):
    return np.unique(x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)


SETS = [
    Spec("nonzero", rt.nonzero, zeros_among(3, 4), np.nonzero, order=0),
    Spec(
        "unique_all", rt.unique_all, counts(3, 4),
        lambda x: unique(x)[:2] + (unique(x)[2].reshape(x.shape), unique(x)[3]), order=0,
    ),
    Spec("unique_counts", rt.unique_counts, counts(7), lambda x: unique(x)[::3], order=0),
    Spec("unique_inverse", rt.unique_inverse, counts(7), lambda x: unique(x)[:3:2], order=0),
    Spec("unique_values", rt.unique_values, zeros_among(3, 4), np.unique, order=0),
]

ROWS: list[Spec] = SUMS + EXTREMES + TRUTH + STATISTICS + SETS
