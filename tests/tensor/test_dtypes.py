"""The promotion table against the array API standard's, and the rules for scalars."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.dtypes import ALL, BY_NAME, FLOATING, HALF, TABLE, as_dtype, promote_types

CPU = rt.Cpu()
STANDARD = [name for name in BY_NAME if name not in ("float16", "bfloat16")]


@pytest.mark.parametrize("a, b", list(itertools.combinations_with_replacement(STANDARD, 2)))
def test_table_agrees_with_the_standard_where_it_speaks(a, b):
    strict = pytest.importorskip("array_api_strict")
    try:
        expected = str(strict.result_type(getattr(strict, a), getattr(strict, b)))
    except TypeError:
        return  # the standard leaves mixed kinds open
    assert str(promote_types(BY_NAME[a], BY_NAME[b])) == expected.rsplit(".", 1)[-1]


def test_table_is_symmetric_and_associative_over_floats():
    assert all(TABLE[a, b] == TABLE[b, a] for a in ALL for b in ALL)
    assert promote_types(rt.float16, rt.bfloat16) == rt.float32
    for half in HALF:
        assert promote_types(half, rt.int64) == half and promote_types(half, rt.float64) == rt.float64
    with pytest.raises(TypeError, match="uint64"):
        promote_types(rt.uint64, rt.int8)


@pytest.mark.parametrize("dtype", sorted(map(str, ALL)))
@pytest.mark.parametrize("scalar", [True, 2, 2.5, np.float64(2.5), np.int64(2), np.array(2.5), np.float32(0.5)])
def test_DTYPE_06_scalars_are_weak(dtype, scalar, device):
    d = BY_NAME[dtype]
    x = rt.ones((2,), dtype=d, device=device)
    value = scalar.item() if isinstance(scalar, (np.generic, np.ndarray)) else scalar
    if d in FLOATING:
        expected = d
    elif isinstance(value, float):
        expected = rt.float32
    elif d == rt.bool and not isinstance(value, bool):
        expected = rt.int32
    else:
        expected = d
    if d == rt.bool and isinstance(value, bool):
        return  # adding bools is nothing the standard defines
    assert (x * scalar).dtype == expected and (scalar * x).dtype == expected
    zero_d = rt.ones((), dtype=d, device=device)
    assert (zero_d * scalar).dtype == expected


def test_integer_scalars_that_do_not_fit_are_refused():
    with pytest.raises(OverflowError, match="int8"):
        rt.ones(2, dtype=rt.int8, device=CPU) + 1000


@pytest.mark.parametrize("spelling", ["float32", np.float32, np.dtype("float32"), np.dtype(">f4"), rt.FloatDType.F32, float])
def test_spellings_of_a_dtype(spelling):
    assert as_dtype(spelling) is rt.float32


@pytest.mark.parametrize("wrong", ["float", "complex64", np.complex128, "S3", object, complex, 7])
def test_unknown_dtypes(wrong):
    with pytest.raises(TypeError, match="supported"):
        as_dtype(wrong)


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16], ids=str)
@pytest.mark.parametrize("name", [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "hypot", "atan2", "logaddexp", "remainder", "floor_divide",
])  # fmt: skip
def test_a_number_of_any_library_meets_half_types_in_float32(name, dtype, device):
    f, number = getattr(rt, name), 0.3
    unit = 2.0**-8 if dtype == rt.bfloat16 else 2.0**-11  # a generated kernel may divide half types to a few float32 ulps
    x = rt.tensor(np.random.default_rng(0).normal(size=200) * 3, dtype=dtype, device=device).require_grad()
    wide = x.detach().astype(rt.float32).require_grad()
    for swap in (False, True):
        exact = f(number, wide) if swap else f(wide, number)
        slope = (exact * 1.5).sum().backward()[wide].numpy()
        same = set()
        for kind in (float, np.float64, np.asarray):
            y = f(kind(number), x) if swap else f(x, kind(number))
            found = (y.astype(rt.float32) * 1.5).sum().backward()[x]
            assert y.dtype == found.dtype == dtype
            same.add((y.numpy().tobytes(), found.numpy().tobytes()))
            np.testing.assert_allclose(y.astype(rt.float32).numpy(), exact.numpy(), rtol=1.01 * unit, atol=1e-7)
            np.testing.assert_allclose(found.astype(rt.float32).numpy(), slope, rtol=4 * unit, atol=4 * unit)
        assert len(same) == 1
