"""The array API namespace against array_api_strict, on drawn shapes, layouts, dtypes and special values.

Where the standard leaves the result open (dtypes of sums, the default integer) only values are compared.
"""
from __future__ import annotations

import warnings

import numpy as np
import pytest

import ruda_tensor as rt

xs = pytest.importorskip("array_api_strict")
xs.set_array_api_strict_flags(api_version="2024.12")

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SHAPES = ((), (1,), (0,), (3,), (2, 3), (1, 3), (2, 1), (0, 3), (3, 0), (2, 1, 3), (4, 2, 3), (1, 1))
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 2.0, 0.5, -1.5, 2.5, 1e30, -1e30, 1e-40)

FLOAT_ONLY = "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal signbit sin sinh sqrt tan tanh"
NUMERIC = "abs ceil floor trunc round sign square negative positive isfinite isinf isnan"
PAIRS = "add subtract multiply floor_divide remainder pow maximum minimum equal not_equal less less_equal greater greater_equal"
FLOAT_PAIRS = "divide atan2 copysign hypot logaddexp nextafter"
BIT_PAIRS = "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"
REDUCTIONS = "sum prod max min mean var std any all count_nonzero argmax argmin cumulative_sum cumulative_prod"


class Draw:
    """One drawn example after another, the same for a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, options):
        return options[self.rng.integers(len(options))]

    def array(self, shape, dtype, special=True):
        rng = self.rng
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if dtype in INTEGERS:
            info = np.iinfo(dtype)
            small, ends = rng.integers(-5 if info.min else 0, 6, shape).astype(dtype), rng.random(shape)
            return np.where(ends < 0.1, np.array(info.max, dtype), np.where(ends < 0.2, np.array(info.min, dtype), small))
        values = rng.normal(size=shape) * self.one((1.0, 10.0, 1e-3))
        with np.errstate(over="ignore", under="ignore"):
            return np.where(rng.random(shape) < 0.4 * special, rng.choice(SPECIAL, shape), values).astype(dtype)

    def shapes(self):
        """Two that broadcast."""
        shape = self.one(SHAPES)
        first, second = ([1 if self.rng.random() < 0.25 else n for n in shape] for _ in range(2))
        return tuple(first), tuple(second[1:] if self.rng.random() < 0.3 else second)

    def tensor(self, a):
        """In row order, column order, or behind strides of -2."""
        a = np.asarray(a)
        layout = self.rng.integers(3) if a.ndim else 0
        if layout == 1:
            turned = np.empty([2 * n for n in a.shape], a.dtype)[tuple([slice(None, None, -2)] * a.ndim)]
            turned[...] = a
            a = turned
        return rt.Tensor._wrap(np.asfortranarray(a) if layout == 2 else a, rt.Cpu())


def check(draw, name, arrays, dtype=True, tolerance=3e-5, **options):
    """Compare one call; what the reference refuses is left open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = getattr(xs, name)(*[xs.asarray(a.copy()) for a in arrays], **options)
        except (TypeError, ValueError, IndexError, OverflowError):
            return
        found = getattr(rt, name)(*[draw.tensor(a) for a in arrays], **options)
    several = isinstance(expected, (tuple, list))
    note = f"{name} of {[(a.dtype, a.tolist()) for a in arrays]} {options}"
    for y, e in zip(found if several else [found], expected if several else [expected], strict=True):
        y, e = y.numpy(), np.asarray(e)
        assert y.shape == e.shape, note
        assert not dtype or y.dtype == e.dtype, note
        if e.dtype.kind == "f":
            rtol = tolerance if y.dtype == np.float32 else 1e-11
            np.testing.assert_allclose(y, e, rtol=rtol, atol=rtol / 30, err_msg=note)
            if len(arrays) == 1 and name not in REDUCTIONS.split():
                assert np.array_equal(np.signbit(y[e == 0]), np.signbit(e[e == 0])), note
        else:
            assert np.array_equal(y.astype(e.dtype), e), note


@pytest.mark.parametrize("seed", range(12))
def test_elementwise_functions(seed):
    draw = Draw(seed)
    for name in FLOAT_ONLY.split():
        check(draw, name, [draw.array(draw.one(SHAPES), draw.one(FLOATS))])
    for name in NUMERIC.split():
        check(draw, name, [draw.array(draw.one(SHAPES), draw.one(FLOATS + INTEGERS))])
    for name in (*PAIRS.split(), *FLOAT_PAIRS.split(), *BIT_PAIRS.split()):
        among = FLOATS if name in FLOAT_PAIRS else INTEGERS if name in BIT_PAIRS else FLOATS + INTEGERS
        first = draw.one(among)
        second = first if draw.rng.random() < 0.5 else draw.one(INTEGERS if first in INTEGERS else FLOATS)
        if {first, second} & {"uint64"} and {first, second} & set(INTEGERS[:4]):
            second = first  # no integer dtype holds both
        a, b = (draw.array(s, d) for s, d in zip(draw.shapes(), (first, second), strict=True))
        if second in INTEGERS and ("shift" in name or name == "pow"):
            b = (b.astype("float64") % 5).astype(second)  # neither negative powers nor negative shifts
        if second in INTEGERS and name in ("floor_divide", "remainder"):
            b = np.where(b == 0, b.dtype.type(1), b)
        check(draw, name, [a, b])


@pytest.mark.parametrize("seed", range(12))
def test_reductions_and_scans(seed):
    draw = Draw(seed)
    for name in REDUCTIONS.split() * 2:
        kinds = FLOATS if name in ("mean", "var", "std") else FLOATS + INTEGERS
        kinds = (*kinds, "bool") if name in ("any", "all", "count_nonzero") else kinds
        shape, dtype = draw.one(SHAPES), draw.one(kinds)
        scan, place = name.startswith("cumulative"), name.startswith("arg")
        exact = name in ("max", "min", "argmax", "argmin", "any", "all", "count_nonzero")
        a = draw.array(shape, dtype, special=exact)
        if not exact and dtype in INTEGERS:
            a = (a % 4).astype(dtype)
        if scan and not shape:
            continue  # a scan needs an axis
        axes = draw.rng.permutation(len(shape))[: draw.rng.integers(0, len(shape) + 1)].tolist()
        axis = draw.one([None, tuple(axes), axes[0] if axes else None, ()])
        if (scan or place) and isinstance(axis, tuple):
            axis = axes[0] - len(shape) if axes else None
        options = {"axis": axis} | ({"include_initial": bool(draw.rng.integers(2))} if scan else {})
        if not scan:
            options["keepdims"] = bool(draw.rng.integers(2))
        if name in ("var", "std"):
            options["correction"] = 0.0 if 0 in shape else draw.one((0, 0.5))
        if name in ("mean", "var", "std") and a.size == 0:
            continue  # NaN, with or without a sign
        wide = dtype in FLOATS or exact
        check(draw, name, [a], dtype=wide, tolerance=1e-4, **options)


@pytest.mark.parametrize("seed", range(8))
def test_shapes_sets_sorting_and_products(seed):
    draw = Draw(seed)
    for _ in range(3):
        shape, dtype = draw.one([s for s in SHAPES if s]), draw.one(FLOATS + INTEGERS)
        a, rng = draw.array(shape, dtype, special=False), draw.rng
        axis, down = int(rng.integers(-len(shape), len(shape))), bool(rng.integers(2))
        for name, options in {
            "flip": {"axis": axis}, "expand_dims": {"axis": axis}, "unstack": {"axis": axis}, "diff": {"axis": axis},
            "sort": {"axis": axis, "descending": down}, "argsort": {"axis": axis, "descending": down},
            "roll": {"shift": int(rng.integers(-5, 6)), "axis": axis},
            "permute_dims": {"axes": tuple(rng.permutation(len(shape)))},
            "tile": {"repetitions": draw.one(((2,), (1, 2), (2, 1, 1, 2), (0,), ()))}, "nonzero": {},
            "tril": {"k": int(rng.integers(-3, 4))}, "triu": {"k": int(rng.integers(-3, 4))}, "unique_values": {},
        }.items():  # fmt: skip
            if name == "tile":
                expected = np.tile(a, options["repetitions"])
                assert np.array_equal(rt.tile(draw.tensor(a), options["repetitions"]).numpy(), expected)
            elif name[:3] != "tri" or a.ndim > 1:
                check(draw, name, [a], dtype=name != "unique_values", **options)
        n = shape[axis]
        places = rng.integers(0, n, draw.one((0, 1, 4))) if n else np.zeros(0, int)
        check(draw, "take", [a, places], axis=axis)
        check(draw, "repeat", [a, rng.integers(0, 3, n)], axis=axis)
        first, second = draw.shapes()
        check(draw, "where", [draw.array(first, "bool"), draw.array(second, dtype), draw.array(first, dtype)])
        pair = draw.one([((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((4, 2, 3), (3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3)),
                         ((1, 1, 3), (2, 1, 3, 4))])
        check(draw, "matmul", [draw.array(s, draw.one(FLOATS), special=False) for s in pair], tolerance=1e-4)
