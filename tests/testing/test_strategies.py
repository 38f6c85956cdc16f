"""What the strategies draw, and that hypothesis is asked for only when they are used."""
from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

import ruda_tensor as rt
from ruda_autodiff.testing import (
    Layout,
    any_floats,
    arrays,
    away_from_integers,
    away_from_ties,
    axes,
    between,
    broadcastable_shapes,
    broadcastable_to,
    dtypes,
    indices,
    large,
    layouts,
    negative,
    nonzero,
    positive,
    reals,
    shapes,
    special_values,
    tensors,
    tiny,
    unit_interval,
)


@given(shape=shapes(min_dims=1, max_dims=2, min_side=0, max_side=3))
def test_shapes_stay_inside_their_limits(shape):
    assert 1 <= len(shape) <= 2 and all(0 <= n <= 3 for n in shape)


@pytest.mark.parametrize("wanted", [(), (1,), (0,), (2, 0), (4, 4, 4)])
def test_every_kind_of_shape_can_be_drawn(wanted):
    assert find(shapes(min_side=0), lambda s: s == wanted, settings=settings(max_examples=5000)) == wanted


@given(pair=broadcastable_shapes(3, min_side=0))
def test_broadcastable_shapes_broadcast(pair):
    np.broadcast_shapes(*pair)


@given(data=st.data(), shape=shapes())
def test_broadcastable_to_gives_the_shape_back(data, shape):
    assert np.broadcast_shapes(shape, data.draw(broadcastable_to(shape))) == shape


@given(data=st.data(), ndim=st.integers(1, 4))
def test_axes_are_in_range(data, ndim):
    assert -ndim <= data.draw(axes(ndim)) < ndim
    several = data.draw(axes(ndim, several=True))
    assert len({a % ndim for a in several}) == len(several)
    assert data.draw(axes(0, none=True)) is None and data.draw(axes(0, several=True)) == ()


@given(data=st.data(), shape=shapes(min_side=0))
def test_indices_are_valid_and_agree_with_numpy(data, shape):
    index = data.draw(indices(shape))
    a = np.arange(float(np.prod(shape))).reshape(shape)
    x = rt.tensor(a, device=rt.Cpu())
    assert np.array_equal(x[index].numpy(), a[index])


DOMAINS = {
    reals: lambda a: np.abs(a) <= 8, positive: lambda a: a > 0, negative: lambda a: a < 0, nonzero: lambda a: np.abs(a) >= 0.125,
    unit_interval: lambda a: (a > 0) & (a < 1), away_from_integers: lambda a: np.abs(a - np.rint(a)) >= 0.125,
    large: lambda a: np.abs(a) <= 1e6, tiny: lambda a: np.abs(a) < 1e-6, any_floats: np.isfinite,
    between(-0.5, 0.25): lambda a: (a >= -0.5) & (a <= 0.25), between(0.1, 0.2): lambda a: (a >= 0.1) & (a <= 0.2),
}  # fmt: skip


@pytest.mark.parametrize("domain", DOMAINS, ids=repr)
def test_domains_hold_what_they_say(domain):
    @settings(max_examples=20)
    @given(a=arrays(shapes(max_dims=2), domain=domain))
    def run(a):
        assert a.dtype == np.float64 and DOMAINS[domain](a).all()

    run()


@given(a=arrays(shapes(), domain=away_from_ties))
def test_values_away_from_ties_are_apart_from_each_other_and_from_zero(a):
    values = np.sort(a.ravel())
    assert (np.diff(values) >= 0.125).all() and (np.abs(values) >= 0.0625).all()


def test_every_special_value_is_drawn():
    for wanted in (np.nan, np.inf, -np.inf, 1.0 + np.finfo(float).eps, np.finfo(float).max, np.finfo(float).tiny / 2):
        same = lambda x, w=wanted: np.array_equal(x, w, equal_nan=True)
        assert same(find(special_values(), same))
    assert np.signbit(find(special_values(), lambda x: x == 0 and np.signbit(x)))
    x = find(tensors((3,), special=True), lambda x: bool(np.isnan(x.numpy()).any()))
    assert np.isnan(x.numpy()).sum() == 1
    assert find(special_values(rt.float16), lambda x: x > 1e4 and x < np.inf) == 65504.0
    with pytest.raises(TypeError, match="int32"):
        special_values(rt.int32)


@given(a=arrays(shapes(min_side=0)), layout=layouts())
def test_layouts_keep_the_values(a, layout):
    assert np.array_equal(layout(a), a)


def test_layouts_are_what_they_are_called():
    a = np.arange(12.0).reshape(3, 4)
    assert Layout("contiguous")(a.T).flags.c_contiguous
    assert Layout("transposed")(a).flags.f_contiguous
    assert Layout("strided")(a).strides == (64, 16)
    assert all(s < 0 for s in Layout("reversed")(a).strides)
    assert Layout("offset")(a).__array_interface__["data"][0] % 16 in (8, 0) and Layout("offset")(a).base is not None
    repeated = Layout("broadcast")(a)
    assert repeated.strides[0] == 0 and (repeated == a[0]).all()
    with pytest.raises(ValueError, match="known"):
        Layout("spiral")(a)
    with pytest.raises(ValueError, match="known"):
        layouts("spiral")


@given(x=tensors(shapes(min_side=0), dtype=dtypes("all"), layout=layouts()))
def test_tensors_of_every_dtype_and_layout(x):
    assert x.device == rt.Cpu() and not x.is_require_grad()
    if x.dtype in (rt.bfloat16, rt.float16):
        assert np.isfinite(x.astype(rt.float32).numpy()).all()


@pytest.mark.parametrize("kind", ["floating", "half", "real", "integer", "bool", "all"])
def test_dtypes_of_each_kind(kind):
    assert find(dtypes(kind), lambda d: True) is not None
    if kind == "half":
        with pytest.raises(NoSuchExample):
            find(dtypes(kind), lambda d: d not in (rt.float16, rt.bfloat16))


def test_wrong_arguments_are_refused():
    for wrong in (
        lambda: shapes(min_dims=3, max_dims=2), lambda: shapes(min_side=-1), lambda: broadcastable_shapes(0),
        lambda: dtypes("complex"), lambda: axes(0), lambda: between(1.0, 1.0),
        lambda: tensors((2,), layout=layouts(), device=rt.Cuda(0)),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()


def test_without_hypothesis_the_checks_work_and_the_strategies_say_what_to_install():
    code = """
import sys
sys.modules["hypothesis"] = None
import ruda_tensor as rt
from ruda_autodiff.testing import check_gradients, shapes
check_gradients(rt.sin, rt.ones((2,), dtype=rt.float64, device=rt.Cpu()))
try:
    shapes()
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install hypothesis" in done.stdout, done.stderr
