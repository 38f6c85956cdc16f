"""Rows for ruda_tensor/ops/arithmetic.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import between, constant, draws, integers, levels, signed, uniform
from ._spec import Spec

near = uniform(-2.0, 2.0, 3, 4)
row = uniform(-2.0, 2.0, 4)
column = uniform(-2.0, 2.0, 3, 1)
number = uniform(-2.0, 2.0)
nonzero = signed(0.5, 2.0, 3, 4)
positive = uniform(0.5, 2.0, 3, 4)


def quotients(rng):
    """Divisors, and dividends whose quotients are away from whole numbers."""
    y = rng.uniform(0.6, 2.0, (3, 4)) * rng.choice([-1.0, 1.0], (3, 4))
    return y * between(3, 4)(rng), y


def whole(x, y):
    return np.floor(x / y)


LINEAR = [
    Spec("add", lambda x, y: x + y, draws(near, near), np.add, linear=True),
    Spec("add", lambda x, y: rt.add(x, y), draws(row, column), np.add, linear=True, tag="broadcast"),
    Spec("add", lambda x, y: rt.add(x, y), draws(number, near), np.add, linear=True, tag="0-d"),
    Spec("add", lambda x: 2.5 + x, draws(near), lambda x: 2.5 + x, tag="number"),
    Spec("subtract", lambda x, y: x - y, draws(near, near), np.subtract, linear=True),
    Spec("subtract", lambda x, y: rt.subtract(x, y), draws(row, column), np.subtract, linear=True, tag="broadcast"),
    Spec("subtract", lambda x: 1.5 - x, draws(near), lambda x: 1.5 - x, tag="number"),
    Spec("negative", lambda x: -x, draws(near), np.negative, linear=True),
    Spec("positive", lambda x: +x, draws(near), np.positive, linear=True),
]

PRODUCTS = [
    Spec("multiply", lambda x, y: x * y, draws(near, near), np.multiply),
    Spec("multiply", lambda x, y: rt.multiply(x, y), draws(row, column), np.multiply, tag="broadcast"),
    Spec("multiply", lambda x, y: rt.multiply(x, y), draws(number, near), np.multiply, tag="0-d"),
    Spec("multiply", lambda x: x * -1.5, draws(near), lambda x: x * -1.5, linear=True, tag="number"),
    Spec("divide", lambda x, y: x / y, draws(near, nonzero), np.divide),
    Spec("divide", lambda x, y: rt.divide(x, y), draws(row, signed(0.5, 2.0, 3, 1)), np.divide, tag="broadcast"),
    Spec("divide", lambda x: 2.0 / x, draws(nonzero), lambda x: 2.0 / x, tag="of number"),
    Spec("divide", lambda x: x / 4.0, draws(near), lambda x: x / 4.0, linear=True, tag="by number"),
    Spec("square", lambda x: rt.square(x), draws(near), np.square),
    Spec("reciprocal", lambda x: rt.reciprocal(x), draws(nonzero), np.reciprocal),
    Spec("lerp", lambda x, y, w: rt.lerp(x, y, w), draws(near, row, column), lambda x, y, w: x + w * (y - x)),
]

POWERS = [
    Spec("pow", lambda x: x**0, draws(near), lambda x: x**0, order=1, tag="0"),
    Spec("pow", lambda x: x**1, draws(near), lambda x: x**1, order=1, tag="1"),
    Spec("pow", lambda x: x**2, draws(near), lambda x: x**2, tag="2"),
    Spec("pow", lambda x: x**3, draws(near), lambda x: x**3, tag="3"),
    Spec("pow", lambda x: x**7.0, draws(uniform(-1.3, 1.3, 5)), lambda x: x**7, tag="7.0"),
    Spec("pow", lambda x: x**-2, draws(nonzero), lambda x: x**-2.0, tag="-2"),
    Spec("pow", lambda x: x**0.5, draws(positive), lambda x: x**0.5, tag="root"),
    Spec("pow", lambda x: x**-1.5, draws(positive), lambda x: x**-1.5, tag="-1.5"),
    Spec("pow", lambda x: 2.0**x, draws(near), lambda x: 2.0**x, tag="of number"),
    Spec("pow", lambda x, y: x**y, draws(positive, near), np.power),
    Spec("pow", lambda x, y: rt.pow(x, y), draws(uniform(0.5, 2.0, 3, 1), row), np.power, tag="broadcast"),
    Spec(
        "pow", lambda x: rt.pow(x, constant([2.0, 3.0, -1.0], x, x.dtype)),
        draws(signed(0.5, 2.0, 3)), lambda x: x ** np.array([2.0, 3.0, -1.0]), tag="negative base",
    ),
    Spec("pow", lambda x, y: x**y, draws(integers(-3, 4, 5), integers(0, 4, 5)), np.power, order=0, tag="integers"),
]

PIECES = [
    Spec("abs", lambda x: abs(x), draws(nonzero), np.abs),
    Spec("sign", lambda x: rt.sign(x), draws(nonzero), np.sign, order=1),
    Spec("floor", lambda x: rt.floor(x), draws(between(3, 4)), np.floor, order=1),
    Spec("ceil", lambda x: rt.ceil(x), draws(between(3, 4)), np.ceil, order=1),
    Spec("trunc", lambda x: rt.trunc(x), draws(between(3, 4)), np.trunc, order=1),
    Spec("round", lambda x: rt.round(x), draws(between(3, 4)), np.round, order=1),
    Spec("round", lambda x: rt.round(x / 2), draws(levels(9)), lambda x: np.round(x / 2), order=0, tag="halves"),
    Spec("floor_divide", lambda x, y: x // y, quotients, whole, order=1, half=False),
    Spec(
        "floor_divide", lambda x, y: x // y, draws(integers(-9, 10, 7), integers(1, 5, 7)), np.floor_divide, order=0,
        tag="integers",
    ),
    Spec("remainder", lambda x, y: x % y, quotients, lambda x, y: x - whole(x, y) * y, half=False),
    Spec(
        "remainder", lambda x, y: x % y, draws(integers(-9, 10, 7), integers(1, 5, 7)), np.remainder, order=0,
        tag="integers",
    ),
    Spec("copysign", lambda x, y: rt.copysign(x, y), draws(nonzero, signed(0.5, 2.0, 4)), np.copysign),
    Spec("nextafter", lambda x, y: rt.nextafter(x, y), draws(nonzero, near), np.nextafter, order=1),
]

ROWS = LINEAR + PRODUCTS + POWERS + PIECES
