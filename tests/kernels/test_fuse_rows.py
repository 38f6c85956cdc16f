"""Every elementwise operation of the specification's rows, fused: the generated kernels against the operations themselves.

The rows' own tests certify the operations; here each row's call becomes one kernel forward and one backward.
"""
from __future__ import annotations

from collections import Counter
from importlib import import_module

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff.backward import backward
from ruda_tensor.dtypes import FLOATING, HALF
from ruda_tensor.fusion import FusionError
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS
from tests.operations._rows import arrays_of, tensors

from ._hooks import launching
from ._shim import ALL

FAMILIES = ("activation", "arithmetic", "bitwise", "compare", "loss", "transcendental")
ROWS = [row for family in FAMILIES for row in import_module(f"tests.specs.{family}").ROWS]
# Rows that reduce, read on the host, or compare with an array of numbers.
NOT_ELEMENTWISE = {
    "pow-negative base", "pow-integers", "mse", "mse-0-d", "mae", "smooth_l1", "smooth_l1-0", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits-pos_weight", "kl_div", "kl_div-none",
}  # fmt: skip
FUSED = [row for row in ROWS if str(row) not in NOT_ELEMENTWISE and row.name != "cross_entropy"]
FEW = FUSED if ALL else list({row.name: row for row in reversed(FUSED)}.values())  # the first row of each operation
UNIT = {rt.float64: 1e-12, rt.float32: 2e-6, rt.float16: 4e-3, rt.bfloat16: 3e-2}
DTYPES = list(UNIT) if ALL else [rt.float64]


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request, monkeypatch):
    with launching(request.param, monkeypatch) as device:
        yield device


def leaves(xs):
    return [x.detach().require_grad() if x.dtype in FLOATING else x for x in xs]


def near(a, b, dtype):
    assert a.dtype == b.dtype and a.shape == b.shape
    a, b = (y.detach().astype(rt.float64).numpy() for y in (a, b))
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    np.testing.assert_allclose(a, b, rtol=UNIT[dtype], atol=UNIT[dtype] * max(scale, 1.0), equal_nan=True)


def agree(call, xs, dtype):
    """The fused call's value and gradients are those of the operations one by one; half types beside float32."""
    fused, plain = leaves(xs), leaves([x.astype(rt.float32) if x.dtype in HALF else x for x in xs])
    before = Counter(HITS)
    y = rt.fuse(call)(*fused)
    assert Counter(HITS) - before == Counter({"fused_forward": 1})
    with use_fused(False):
        w = call(*plain)
    near(y, w.detach().astype(y.dtype), dtype)
    assert y.is_require_grad() == w.is_require_grad()
    if not y.is_require_grad():
        return
    seed = rt.tensor(np.random.default_rng(5).integers(-8, 9, y.shape) / 4.0, dtype=y.dtype, device=y.device)
    found = backward(y, seed=seed)
    with use_fused(False):
        expected = backward(w, seed=seed.astype(w.dtype))
    for x, z in zip(fused, plain, strict=True):
        a, b = (g.get(t) if t.is_require_grad() else None for g, t in ((found, x), (expected, z)))
        assert (a is None) == (b is None)
        if a is not None:
            near(a, b.astype(a.dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row", FEW, ids=str)
def test_the_kernels_are_the_operations(row, dtype, place):
    if dtype in HALF and row.name == "nextafter":
        pytest.skip("the bits of half types are not in the kernel")
    agree(row.call, tensors(arrays_of(row), device=place, dtype=dtype), dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(UNIT), ids=str)
@pytest.mark.parametrize("row", FUSED, ids=str)
def test_other_dtypes(row, dtype):
    if dtype not in HALF or row.name != "nextafter":
        agree(row.call, tensors(arrays_of(row), device=rt.Cuda(0), dtype=dtype), dtype)


@pytest.mark.parametrize("row", [row for row in ROWS if row not in FUSED], ids=str)
def test_what_is_not_elementwise_is_refused_by_name(row, place):
    message = r"cannot be one kernel, for .* (is not elementwise|needs .*); fuse the elementwise part alone|not among the arg"
    with pytest.raises(FusionError, match=message):
        rt.fuse(row.call)(*tensors(arrays_of(row), device=place))


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 30.0, -30.0, 1e4, -1e4, 90.0, -90.0, np.inf, -np.inf, np.nan]
UNARY = [
    rt.abs, rt.ceil, rt.clip, rt.cos, rt.elu, rt.erf, rt.erfc, rt.exp, rt.expm1, rt.floor, rt.isfinite, rt.isinf, rt.isnan,
    rt.leaky_relu, rt.log, rt.log1p, rt.logsigmoid, rt.mish, rt.reciprocal, rt.relu, rt.relu6, rt.round, rt.rsqrt, rt.sigmoid,
    rt.sign, rt.signbit, rt.softplus, rt.sqrt, rt.square, rt.tanh, rt.trunc,
]  # fmt: skip
BINARY = [
    rt.add, rt.atan2, rt.copysign, rt.divide, rt.equal, rt.hypot, rt.less, rt.logaddexp, rt.maximum, rt.minimum, rt.multiply,
]  # fmt: skip


SIGNED_ZEROS = (rt.add, rt.ceil, rt.copysign, rt.divide, rt.floor, rt.multiply, rt.round, rt.sqrt, rt.trunc)


@pytest.mark.parametrize("dtype", [rt.float64, rt.float32] if ALL else [rt.float32], ids=str)
def test_special_values(place, dtype):
    values = np.array(SPECIAL)
    x = rt.tensor(values, dtype=dtype, device=place)
    y = rt.tensor(values[:, None], dtype=dtype, device=place)
    for f in UNARY:
        special(f, x)
    for f in BINARY:
        special(f, x, y)


def special(f, *xs):
    found = rt.fuse(lambda *a: f(*a))(*xs)
    with use_fused(False), np.errstate(all="ignore"):
        expected = f(*xs)
    a, b = found.astype(rt.float64).numpy(), expected.astype(rt.float64).numpy()
    np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-37, equal_nan=True, err_msg=f.__name__)
    if f in SIGNED_ZEROS:
        assert np.array_equal(np.signbit(a[b == 0]), np.signbit(b[b == 0])), f.__name__


@pytest.mark.gpu
def test_float32_chains_of_basic_arithmetic_are_bit_equal_to_the_operations():
    rng, device = np.random.default_rng(0), rt.Cuda(0)
    x, y = (rt.tensor(rng.standard_normal((333, 77)), dtype=rt.float32, device=device) for _ in range(2))
    for f in (lambda x, y: x * y - y / (x * x + 1.0), lambda x, y: rt.tanh(rt.exp(x) - y * x), lambda x, y: rt.mish(x) * y - x):
        found = rt.fuse(f)(x, y)
        with use_fused(False):
            assert found.numpy().tobytes() == f(x, y).numpy().tobytes()
