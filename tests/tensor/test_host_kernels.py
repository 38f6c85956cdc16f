"""The compiled bodies of the CPU against float64, against the NumPy bodies, and in any mixture with them."""
from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import convolve as host_convolve
from ruda_tensor.kernels.host import gate as host_gate
from ruda_tensor.kernels.host import rows as host_rows
from ruda_tensor.ops import _convolve, _gelu, _normalize, _parallel, softmax
from ruda_tensor.ops._pointwise import pointwise

WHY = f"no compiled bodies: {host._reasons.get('rows', 'off')}" if host.library("rows") is None else ""
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
SIZES = [(1, 1), (3, 1), (1, 15), (5, 16), (7, 33), (2, 64), (9, 100), (3, 257), (6, 1000)]
ROOT = Path(__file__).resolve().parents[2]
NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Let the compiled bodies take small arrays too."""
    monkeypatch.setattr(host_rows, "LONG", 1)
    monkeypatch.setattr(host_convolve, "WORK", 1)


def normal(*shape, seed=0, scale=1.0, shift=0.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale + shift).astype(np.float32)


def wide(*arrays):
    return [None if a is None else a.astype(np.float64) for a in arrays]


def close(found, right, ulps=8.0, terms=0.0):
    """Alike to so many units in the last place of the largest, or of the terms that it is the difference of."""
    assert found.dtype == np.float32 and found.shape == right.shape
    bound = ulps * 2.0**-24 * max(1e-30, terms, float(np.abs(right).max(initial=0)))
    assert np.abs(found - right).max(initial=0) <= bound, float(np.abs(found - right).max() / bound)


def plain(function, *arrays, **settings):
    """The NumPy body."""
    with host.use_host_kernels(False), np.errstate(all="ignore"):
        return function(np, *arrays, **settings)


def compiled(function, *arrays, **settings):
    with np.errstate(all="raise"):
        return function(np, *arrays, **settings)


def exponentials(x):
    out = np.full_like(x, NAN)
    host.function("gate", "exp_values", "ppn")(host.address(x), host.address(out), x.size)
    return out


def test_exp_is_within_an_ulp_over_all_of_float32():
    x = np.arange(0, 2**32, 2053, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], np.linspace(-104, 89, 200_001, dtype=np.float32)])
    with np.errstate(over="ignore", under="ignore"):
        right = np.exp(x.astype(np.float64))
        rounded, found = right.astype(np.float32), exponentials(x)
    infinite = np.isinf(rounded)
    assert np.array_equal(np.isinf(found), infinite)
    error = np.abs(found[~infinite].astype(np.float64) - right[~infinite]) / np.spacing(rounded[~infinite])
    assert error.max() < 1.0


def test_exp_of_special_numbers():
    found = exponentials(np.array([NAN, INF, -INF, 0.0, -0.0, -200.0, 200.0], np.float32))
    assert np.array_equal(found, np.array([NAN, INF, 0, 1, 1, 0, INF], np.float32), equal_nan=True)


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_agrees_with_float64(name, size, scale):
    forward, backward = getattr(softmax, f"_{name}_forward"), getattr(softmax, f"_{name}_backward")
    x, g = normal(*size, scale=scale), normal(*size, seed=1)
    assert host_rows.rowwise(f"{name}_forward", np, x, np.empty_like(x))
    out = compiled(forward, x, axis=1)
    right = plain(forward, *wide(x), axis=1)
    close(out, right)
    (dx,) = compiled(backward, g, out, needs=(True,), axis=1)
    terms = np.abs(g).max() * (1 if name == "softmax" else 1 + 2 * size[1] ** 0.5)
    close(dx, plain(backward, *wide(g, out), needs=(True,), axis=1)[0], terms=terms)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_of_special_rows_is_as_numpy_has_it(name):
    forward = getattr(softmax, f"_{name}_forward")
    x = normal(8, 37)
    x[0, 3], x[1, 30], x[2, 36], x[3], x[4, :5] = NAN, INF, NAN, -INF, -INF
    x[5], x[6], x[7] = 1e38, -1e38, -2000.0
    found, right = forward(np, x, axis=1), plain(forward, x, axis=1)
    assert np.array_equal(np.isnan(found), np.isnan(right)) and np.isnan(found[:4]).all(axis=1).all()
    assert np.allclose(found, right, rtol=1e-6, atol=0, equal_nan=True)


def test_softmax_along_another_axis_and_of_a_view():
    x = normal(40, 6, 30)
    for a, axis in ((x, 1), (x[:, ::-1, ::2], 2), (x.T, 2)):
        close(compiled(softmax._softmax_forward, a, axis=axis), plain(softmax._softmax_forward, *wide(a), axis=axis))


def norm_inputs(size, shift=0.0):
    return normal(*size, shift=shift), normal(size[1], seed=2), normal(size[1], seed=3), normal(*size, seed=4)


@pytest.mark.parametrize("shift", [0.0, 300.0, 1e6])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_layer_norm_agrees_with_float64(size, affine, shift):
    x, w, b, g = norm_inputs(size, shift)
    if not affine:
        w = b = None
    settings = {"axes": 1, "eps": 1e-2}
    out, m, s, r = compiled(_normalize.layer_forward, x, w, b, **settings)
    right, *columns = plain(_normalize.layer_forward, *wide(x, w, b), **settings)
    close(out, right, 16)
    for needs in itertools.product((True, False), repeat=3):
        found = compiled(_normalize.layer_backward, g, x, w, m, s, r, needs=needs, **settings)
        exact = plain(_normalize.layer_backward, *wide(g, x, w), *columns, needs=needs, **settings)
        for a, wanted, needed in zip(found, exact, needs):
            assert (a is None) == (not needed)
            if needed:
                close(a, wanted, 80, terms=float(np.abs(g).max() * r.max()))


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_rms_norm_agrees_with_float64(size, affine):
    x, w, _, g = norm_inputs(size)
    w, settings = w if affine else None, {"axes": 1, "eps": 1e-2}
    out, r = compiled(_normalize.rms_forward, x, w, **settings)
    right, column = plain(_normalize.rms_forward, *wide(x, w), **settings)
    close(out, right, 16)
    for needs in itertools.product((True, False), repeat=2):
        found = compiled(_normalize.rms_backward, g, x, w, r, needs=needs, **settings)
        exact = plain(_normalize.rms_backward, *wide(g, x, w), column, needs=needs, **settings)
        for a, wanted, needed in zip(found, exact, needs):
            assert (a is None) == (not needed)
            if needed:
                close(a, wanted, 80, terms=float(np.abs(g).max() * r.max()))


@pytest.mark.parametrize("shift", [0.0, 3000.0])
@pytest.mark.parametrize("forward,backward", list(itertools.product((True, False), repeat=2)))
def test_any_forward_goes_with_any_backward(forward, backward, shift):
    x, w, b, g = norm_inputs((23, 130), shift)
    settings, needs = {"axes": 1, "eps": 1e-5}, (True, True, True)
    with host.use_host_kernels(forward):
        _, *kept = _normalize.layer_forward(np, x, w, b, **settings)
        _, r = _normalize.rms_forward(np, x, w, **settings)
    with host.use_host_kernels(backward):
        found = _normalize.layer_backward(np, g, x, w, *kept, needs=needs, **settings)
        found += _normalize.rms_backward(np, g, x, w, r, needs=(True, True), **settings)
    _, *kept = plain(_normalize.layer_forward, *wide(x, w, b), **settings)
    _, r = plain(_normalize.rms_forward, *wide(x, w), **settings)
    right = plain(_normalize.layer_backward, *wide(g, x, w), *kept, needs=needs, **settings)
    right += plain(_normalize.rms_backward, *wide(g, x, w), r, needs=(True, True), **settings)
    for a, wanted in zip(found, right):
        close(a, wanted, 80)


@pytest.mark.parametrize("value", [1.0, 777.25, -3e4, 0.0, -0.0])
def test_constant_rows_give_exactly_zero(value):
    x = np.full((3, 257), value, np.float32)
    out, *kept = compiled(_normalize.layer_forward, x, None, None, axes=1, eps=1e-5)
    assert not out.any()
    dx, _, _ = _normalize.layer_backward(np, normal(3, 257), x, None, *kept, needs=(True, False, False), axes=1, eps=1e-5)
    assert np.isfinite(dx).all()


def test_layer_norm_of_constant_rows_of_huge_numbers_is_finite():
    x = np.full((3, 257), 1e8, np.float32)
    out, *kept = compiled(_normalize.layer_forward, x, None, None, axes=1, eps=1e-5)
    dx, _, _ = _normalize.layer_backward(np, normal(3, 257), x, None, *kept, needs=(True, False, False), axes=1, eps=1e-5)
    assert np.isfinite(out).all() and np.isfinite(dx).all()


def test_layer_norm_far_from_zero():
    x, g = np.array([[30000.0, 30002, 30004, 30006]], np.float32), np.array([[1, 2, -1, 0.5]], np.float32)
    out, *kept = compiled(_normalize.layer_forward, x, None, None, axes=1, eps=1e-5)
    dx, _, _ = _normalize.layer_backward(np, g, x, None, *kept, needs=(True, False, False), axes=1, eps=1e-5)
    assert np.allclose(out, [[-1.3416394, -0.4472131, 0.4472131, 1.3416394]], atol=1e-6)
    assert np.allclose(dx, [[-0.1341633, 0.5142953, -0.6260986, 0.2459666]], atol=1e-6)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_spoils_itself_alone(value):
    x, w, b, g = norm_inputs((9, 50))
    x[4, 7] = value
    rest = np.arange(9) != 4
    out, *kept = _normalize.layer_forward(np, x, w, b, axes=1, eps=1e-5)
    dx, dw, _ = _normalize.layer_backward(np, g, x, w, *kept, needs=(True,) * 3, axes=1, eps=1e-5)
    assert np.isnan(out[4]).all() and np.isnan(dx[4]).all() and np.isnan(dw).any()
    assert np.isfinite(out[rest]).all() and np.isfinite(dx[rest]).all()


@pytest.mark.parametrize("size", [1, 15, 16, 100, 1001])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_gated_activations_agree_with_float64_and_numpy(name, size):
    body, x = getattr(_gelu, f"{name}_body"), normal(size, scale=4.0)
    found, numpy, exact = [[np.full(size, NAN, dtype) for _ in range(2)] for dtype in ("f4", "f4", "f8")]
    assert host_gate.gate(f"{name}_values", np, x, *found)
    plain(body, x, *numpy)
    plain(body, *wide(x), *exact)
    for a, b, right in zip(found, numpy, exact):
        ours, theirs = np.abs(a - right), np.abs(b - right)
        assert (ours <= 2 * theirs.max() + 2e-7 * np.abs(right)).all() and ours.max() < 4e-6


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
def test_gated_activations_of_special_numbers_are_as_numpy_has_them(name):
    body = getattr(_gelu, f"{name}_body")
    x = np.array([0.0, -0.0, NAN, INF, -INF, 1e38, -1e38, 1e-40, -50.0, 50.0, -13.0], np.float32)
    found, right = np.empty((2, x.size), np.float32), np.empty((2, x.size), np.float32)
    with np.errstate(all="ignore"):
        body(np, x, *found)
    plain(body, x, *right)
    assert np.allclose(found, right, rtol=1e-5, atol=1e-37, equal_nan=True)
    assert np.array_equal(np.signbit(found[0, :2]), np.signbit(right[0, :2]))


# images, channels, height, width, outputs, kernel, stride, low padding, dilation, groups
CONVOLUTIONS = [
    (2, 3, 8, 9, 5, (3, 3), (1, 1), (1, 1), (1, 1), 1), (1, 1, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (9, 16, 28, 28, 32, (3, 3), (1, 1), (1, 1), (1, 1), 1), (3, 3, 35, 33, 17, (7, 5), (2, 3), (3, 1), (1, 2), 1),
    (2, 12, 19, 23, 20, (3, 2), (1, 1), (0, 1), (2, 3), 4), (1, 64, 7, 7, 65, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 6, 12, 12, 6, (3, 3), (1, 1), (1, 1), (1, 1), 6), (2, 4, 1, 50, 8, (1, 5), (1, 2), (0, 4), (1, 3), 1),
    (2, 2, 6, 40, 4, (2, 9), (1, 1), (1, 3), (1, 4), 1), (1, 300, 20, 20, 40, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 3, 5, 4, 8, (3, 3), (1, 1), (4, 3), (1, 1), 1), (1, 2, 9, 9, 16, (3, 3), (1, 1), (0, -1), (1, 1), 1),
]  # fmt: skip


@pytest.mark.parametrize("more", [0, -2, 3])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_agree_with_float64(case, more):
    """`more` is how much more padding there is after than before."""
    n, c, h, w, o, kernel, stride, low, dilation, groups = case
    reach = [a + 2 * p + more - d * (k - 1) - 1 for a, k, p, d in zip((h, w), kernel, low, dilation)]
    count = tuple(max(0, a) // s + 1 for a, s in zip(reach, stride))
    settings = {"stride": stride, "low": low, "dilation": dilation, "groups": groups}
    x, weight, bias = normal(n, c, h, w), normal(o, c // groups, *kernel, seed=1), normal(o, seed=2)
    g, y = normal(n, o, *count, seed=3), np.full((n, o, *count), NAN, np.float32)
    assert host_convolve.convolve(np, x, weight, bias, y, settings)
    ulps = 8 + math.sqrt(weight[0].size)  # roundings of a running sum
    close(y, plain(_convolve.convolve, *wide(x, weight, bias), count=count, **settings), ulps)
    dw = host_convolve.weigh(np, x, g, kernel, settings)
    assert (dw is None) == (o < 4 * groups)
    if dw is not None:
        close(dw, plain(_convolve.weigh, *wide(x, g), kernel=kernel, **settings), 8 + math.sqrt(n * math.prod(count)))
    dx = compiled(_convolve.transpose, g, weight, None, size=(h, w), **settings)
    close(dx, plain(_convolve.transpose, *wide(g, weight, None), size=(h, w), **settings), 8 + math.sqrt(weight[:, 0].size))


def test_a_convolution_of_infinities_and_views_is_as_numpy_has_it():
    x, w = normal(2, 3, 10, 11)[:, :, ::-1], normal(8, 3, 3, 3, seed=1).swapaxes(2, 3)
    x[0, 0, 0, 10], x[1, 2, 9, 0], g = INF, NAN, normal(2, 8, 10, 11, seed=2)
    settings = {"stride": (1, 1), "low": (1, 1), "dilation": (1, 1), "groups": 1}
    with np.errstate(all="ignore"):
        pairs = [
            (f(np, *a, **more, **settings), plain(f, *a, **more, **settings))
            for f, a, more in (
                (_convolve.convolve, (x, w, None), {"count": (10, 11)}),
                (_convolve.weigh, (x, g), {"kernel": (3, 3)}),
            )
        ]
    for found, right in pairs:
        assert np.allclose(found, right, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("length", [63, 64, 700])
def test_a_row_an_element_and_an_image_do_not_depend_on_their_neighbours(monkeypatch, length):
    monkeypatch.undo()  # the usual limits
    x, images, weight = normal(700, length), normal(9, 3, 16, 16), normal(8, 3, 3, 3)
    settings = {"count": (16, 16), "stride": (1, 1), "low": (1, 1), "dilation": (1, 1), "groups": 1}
    for function, a, more in (
        (softmax._softmax_forward, x, {"axis": 1}), (softmax._log_softmax_forward, x, {"axis": 1}),
        (lambda xp, x: _normalize.layer_forward(xp, x, None, None, axes=1, eps=1e-5)[0], x, {}),
        (lambda xp, x: pointwise(xp, _gelu.gelu_body, (x,), outs=2)[0], x, {}),
        (lambda xp, x: _convolve.convolve(xp, x, weight, None, **settings), images, {}),
    ):  # fmt: skip
        whole = function(np, a, **more)
        for i in (0, 5, len(a) - 1):
            assert np.array_equal(function(np, a[i : i + 1], **more)[0], whole[i])


def test_the_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(_parallel, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(_parallel, "BLOCK_BYTES", 1 << 14)
    x, w, b, g = norm_inputs((301, 130))
    images, weight, out = normal(19, 5, 12, 12), normal(8, 5, 3, 3, seed=5), normal(19, 8, 10, 10, seed=6)
    settings, found = {"stride": (1, 1), "low": (0, 0), "dilation": (1, 1), "groups": 1}, []
    for count in (1, 2, 5):
        _parallel._pool.cache_clear()
        monkeypatch.setattr(_parallel, "threads", lambda count=count: count)
        y, *kept = _normalize.layer_forward(np, x, w, b, axes=1, eps=1e-5)
        parts = [y, *_normalize.layer_backward(np, g, x, w, *kept, needs=(True,) * 3, axes=1, eps=1e-5)]
        parts += [softmax._softmax_forward(np, x, axis=1), _convolve.weigh(np, images, out, kernel=(3, 3), **settings)]
        found.append([*parts, _convolve.convolve(np, images, weight, None, count=(10, 10), **settings)])
    _parallel._pool.cache_clear()
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other))


def python(code, folder, **env):
    """Run a program with a cache of its own; return what it prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RUDA_CACHE_DIR": str(folder), "RUDA_HOST_KERNELS": "1", **env}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import numpy as np, ruda_tensor as rt
from ruda_tensor.kernels import host
x = rt.ones((256, 256), device=rt.Cpu())
print(float(rt.silu(x)[0, 0]))
print(host._reasons.get("gate", "on"))
"""


SMALL_PROGRAM = """
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig
from ruda_optim import AdamWConfig, GradientsParams
model, optimizer = LinearConfig(32, 10).init(Autodiff(rt.Cpu())), AdamWConfig().init()
loss = rt.mean(rt.logsumexp(rt.layer_norm(rt.softmax(model(rt.ones((8, 32), device=rt.Cpu())))), axis=1))
optimizer.step(0.1, model, GradientsParams.from_grads(loss.backward(), model))
"""


def test_small_programs_compile_nothing(tmp_path):
    python(SMALL_PROGRAM, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_it_can_be_turned_off(tmp_path):
    code = USE + "print(host.status())"
    assert python(code, tmp_path / "c", RUDA_HOST_KERNELS="0").split() == ["0.7310585975646973", "on", "off"]
    assert not (tmp_path / "c").exists()


def test_a_failing_compiler_is_asked_once_per_machine(tmp_path):
    script = tmp_path / "cc"
    script.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/log\necho 'no such thing' >&2\nexit 1\n")
    script.chmod(0o755)
    for _ in range(2):
        value, *reason = python(USE, tmp_path / "c", CC=str(script)).splitlines()
        assert math.isclose(float(value), 1 / (1 + math.exp(-1)), rel_tol=1e-6)
        assert "no such thing" in "".join(reason)
        assert len((tmp_path / "log").read_text().split()) == 4  # once for each set of flags


def test_without_a_compiler_numpy_does_it(tmp_path):
    assert "no C compiler" in python(USE, tmp_path / "c", CC="no-such-compiler", PATH="/nowhere")


def test_nothing_is_loaded_from_a_folder_that_others_may_write_to(tmp_path):
    folder = tmp_path / "c"
    assert python(USE, folder).split()[1] == "on"
    assert folder.stat().st_mode & 0o777 == 0o700 and len(list(folder.iterdir())) == 1
    folder.chmod(0o777)
    assert "may be written by others" in python(USE, folder)
    folder.chmod(0o700)
    next(folder.iterdir()).chmod(0o777)
    assert "may be written by others" in python(USE, folder)


def test_many_may_compile_at_once(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RUDA_CACHE_DIR": str(tmp_path / "c"), "RUDA_HOST_KERNELS": "1"}
    runs = [subprocess.Popen([sys.executable, "-c", USE], env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [run.communicate(timeout=120)[0].split()[1] for run in runs] == ["on"] * 3
    assert len(list((tmp_path / "c").iterdir())) == 1
