"""astype, promotion and what the namespace says about itself, against array-api-strict where it has an answer."""
from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import ruda_tensor as rt

from ._helpers import CPU, close

FLOATS = (rt.float16, rt.bfloat16, rt.float32, rt.float64)
STANDARD = (
    rt.bool, rt.int8, rt.int16, rt.int32, rt.int64, rt.uint8, rt.uint16, rt.uint32, rt.uint64, rt.float32, rt.float64,
)  # fmt: skip
ALL = (*STANDARD, rt.float16, rt.bfloat16)


def test_promotion_is_that_of_the_standard():
    strict = pytest.importorskip("array_api_strict")
    for a, b in itertools.product(STANDARD, STANDARD):
        try:
            expected = strict.result_type(getattr(strict, str(a)), getattr(strict, str(b)))
        except TypeError:
            expected = None  # the standard leaves kinds apart; this table joins them, except uint64 with a signed one
        if expected is not None:
            assert str(rt.result_type(a, b)) == str(expected).split(".")[-1]
            assert rt.can_cast(a, b) == strict.can_cast(getattr(strict, str(a)), getattr(strict, str(b)))


def test_promotion_is_symmetric_and_holds_both():
    for a, b in itertools.product(ALL, ALL):
        try:
            c = rt.result_type(a, b)
        except TypeError:
            assert {a, b} & {rt.uint64} and {a, b} & {rt.int8, rt.int16, rt.int32, rt.int64}
            with pytest.raises(TypeError):
                rt.result_type(b, a)
            continue
        assert c == rt.result_type(b, a) and rt.can_cast(a, c) and rt.can_cast(b, c)
        assert rt.result_type(a, a) == a
    assert rt.result_type(rt.float16, rt.bfloat16) == rt.float32


def test_result_type_of_tensors_and_numbers():
    x = rt.ones(2, dtype=rt.float16, device=CPU)
    assert rt.result_type(x, 1.0) == rt.float16 and rt.result_type(1, x, rt.int8) == rt.float16
    assert rt.result_type(rt.int8, 1) == rt.int8 and rt.result_type(rt.int8, 1.0) == rt.float32
    assert rt.result_type(rt.bool, 1) == rt.int32 and rt.result_type(rt.bool, True) == rt.bool
    assert rt.result_type(1, 2.0) == rt.float32 and rt.result_type(1) == rt.int32 and rt.result_type(True) == rt.bool
    assert rt.result_type(rt.float32, np.float64(3)) == rt.float32
    wide = rt.ones(1, dtype=rt.int8, device=rt.Cpu(float_dtype=rt.float64))
    assert rt.result_type(wide, 0.5) == rt.float64
    with pytest.raises(ValueError, match="at least one"):
        rt.result_type()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_limits_are_those_of_numpy(dtype):
    if dtype in FLOATS:
        info, expected = rt.finfo(dtype), ml_dtypes.finfo(dtype)
        for name in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(info, name) == float(getattr(expected, name))
            assert type(getattr(info, name)) in (int, float)
        assert rt.finfo(rt.ones(1, dtype=dtype, device=CPU)) == info and info.dtype == dtype
        with pytest.raises(TypeError, match="iinfo:.*rt.finfo"):
            rt.iinfo(dtype)
        return
    with pytest.raises(TypeError, match="finfo:.*rt.iinfo"):
        rt.finfo(dtype)
    if dtype != rt.bool:
        info, expected = rt.iinfo(dtype), np.iinfo(dtype)
        assert (info.bits, info.max, info.min, info.dtype) == (expected.bits, expected.max, expected.min, dtype)


def test_kinds_of_dtypes():
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
    of = {rt.bool: "100000", rt.int8: "010100", rt.uint64: "001100", rt.bfloat16: "000010", rt.float64: "000010"}
    for dtype, flags in of.items():
        found = [rt.isdtype(dtype, kind) for kind in kinds]
        assert found == [f == "1" for f in flags] + [dtype != rt.bool]
    assert rt.isdtype(rt.int8, rt.int8) and not rt.isdtype(rt.int8, rt.int16)
    assert rt.isdtype(rt.int8, (rt.int16, "bool", "integral")) and not rt.isdtype(rt.int8, ())
    with pytest.raises(TypeError, match="unknown kind 'float'.*real floating"):
        rt.isdtype(rt.int8, "float")


@pytest.mark.parametrize("source", ALL, ids=str)
@pytest.mark.parametrize("target", ALL, ids=str)
def test_astype_between_all_dtypes(source, target, device):
    x = rt.tensor([0, 1, 3], dtype=rt.int32, device=device).astype(source)
    y = rt.astype(x, target)
    assert y.dtype == target and y.shape == (3,)
    ones = [0, 1, 1] if rt.bool in (source, target) else [0, 1, 3]
    assert y.astype(rt.float64).numpy().tolist() == ones


def test_astype_is_differentiable_between_floats_only(device):
    x = rt.tensor([1.5, -2.5], device=device).require_grad()
    for dtype in FLOATS:
        g = x.grad(rt.sum(rt.astype(x, dtype) * 3).backward())
        assert g.dtype == rt.float32
        close(g, [3, 3])
    assert not rt.astype(x, rt.int32).is_require_grad() and not x.astype(rt.bool).is_require_grad()
    assert rt.astype(x, rt.float32) is x
    assert rt.astype(x, "bfloat16").dtype == rt.bfloat16 and rt.astype(x, float).dtype == rt.float32
    with pytest.raises(TypeError, match="complex"):
        rt.astype(x, complex)
    with pytest.raises(TypeError, match="unknown dtype 'float8'; supported"):
        rt.astype(x, "float8")


def test_namespace_information():
    info = rt.ones(1, device=CPU).__array_namespace__().__array_namespace_info__()
    assert info.default_device() == rt.default_device() and CPU in info.devices()
    assert info.default_dtypes(device=CPU) == {"real floating": rt.float32, "integral": rt.int32, "indexing": rt.int64}
    assert set(info.dtypes(device=CPU).values()) == set(ALL)
    assert set(info.dtypes(kind="real floating").values()) == set(FLOATS)
    assert set(info.dtypes(kind=("bool", "unsigned integer"))) == {"bool", "uint8", "uint16", "uint32", "uint64"}
    assert info.capabilities()["boolean indexing"] and info.capabilities()["data-dependent shapes"]


def test_the_namespace_has_every_elementwise_and_creation_name_of_the_standard():
    names = """abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
    bitwise_right_shift bitwise_xor ceil clip copysign cos cosh divide equal exp expm1 floor floor_divide greater
    greater_equal hypot isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
    logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow reciprocal remainder round
    sign signbit sin sinh square sqrt subtract tan tanh trunc where arange asarray empty empty_like eye from_dlpack full
    full_like linspace meshgrid ones ones_like tril triu zeros zeros_like astype can_cast finfo iinfo isdtype
    result_type __array_namespace_info__""".split()
    missing = [name for name in names if not hasattr(rt, name) or name not in rt.__all__]
    assert not missing
