"""Compiled bodies that do several things in one pass, against float64, the operations one by one, and the NumPy bodies."""
from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import attention, gate, pool, rows
from ruda_tensor.ops import _gelu, _normalize, _packed, _picking, _sums, feed_forward
from ruda_tensor.ops._packed import packed_attention
from ruda_tensor.ops._pointwise import pointwise

pytestmark = pytest.mark.skipif(host.library("gate") is None or host.library("rows") is None, reason="no compiler")
CPU = rt.Cpu()
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu"]
SHAPES = [(1, 1), (1, 17), (3, 16), (4, 15), (5, 33), (70, 100)]


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    for module in (gate, rows, attention):
        monkeypatch.setattr(module, "SMALL", 0)
    monkeypatch.setattr(rows, "LONG", 1)


def normal(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def exact(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and slopes in float64, from the NumPy body."""
    x = x.astype(np.float64)
    if name == "relu":
        return np.maximum(x, 0), (x > 0).astype(np.float64)
    values, slopes = pointwise(np, getattr(_gelu, f"{name}_body"), (x,), outs=2)
    return values, slopes


@pytest.mark.parametrize("shape", [*SHAPES, (1200, 130)])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_its_slope_and_sums_agree_with_float64(name, shape):
    x, g = normal(*shape, scale=3.0), normal(*shape, seed=1)
    values, slopes = exact(name, x)
    np.testing.assert_allclose(gate.activation(np, name, x), values, rtol=2e-6, atol=1e-6)
    for wanted in ((True, True), (True, False), (False, True), (False, False)):
        dh = g.copy()
        found = gate.activation_again(np, name, x, dh, wanted)
        assert found is not None
        # The bound of the slopes is that of test_host_kernels.py.
        assert (np.abs(dh - g * slopes) <= np.abs(g) * (4e-6 + 2.0**-23 * np.abs(slopes))).all()
        assert (found[0] is not None, found[1] is not None) == wanted
        if wanted[0]:
            np.testing.assert_array_equal(found[0], gate.activation(np, name, x))
        if wanted[1]:
            np.testing.assert_allclose(found[1], dh.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_sums_have_the_same_bits_on_any_number_of_threads(monkeypatch):
    x, found = normal(1200, 130), []
    for count in (1, 2, 3):
        monkeypatch.setattr(pool, "threads", lambda count=count: count)
        g = normal(1200, 130, seed=1)
        found.append((g, gate.activation_again(np, "gelu_tanh", x, g, (True, True))))
    for g, (values, sums) in found[1:]:
        np.testing.assert_array_equal(g, found[0][0])
        np.testing.assert_array_equal(values, found[0][1][0])
        np.testing.assert_array_equal(sums, found[0][1][1])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numbers_that_are_not_finite_come_out_as_one_by_one(name):
    x, g = np.meshgrid(*[np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e30, 2.0] * 4, np.float32)] * 2)
    x, dh = np.ascontiguousarray(x), np.ascontiguousarray(g).copy()
    leaf = rt.tensor(x, device=CPU).require_grad()
    with np.errstate(all="ignore"):
        y = getattr(rt, name)(leaf) if name != "gelu_tanh" else rt.gelu(leaf, approximate="tanh")
        right = leaf.grad((y * rt.tensor(g, device=CPU)).sum().backward())
    assert right is not None
    np.testing.assert_array_equal(gate.activation(np, name, x), y.numpy())
    gate.activation_again(np, name, x, dh, (False, False))
    np.testing.assert_array_equal(np.isnan(dh), np.isnan(right.numpy()))
    np.testing.assert_allclose(dh, right.numpy(), rtol=2e-6, atol=1e-30)


def test_what_is_no_contiguous_float32_is_declined():
    x = normal(8, 8)
    for a, g in ((x.T, x), (x, x.T), (x.astype(np.float64), x), (x, x[:4])):
        assert gate.activation_again(np, "silu", a, g, (True, True)) is None
    assert gate.activation(np, "silu", x.T) is None and gate.activation(np, "silu", x.astype(np.float64)) is None
    with host.use_host_kernels(False):
        assert gate.activation(np, "silu", x) is None and gate.activation_again(np, "silu", x, x, (True, True)) is None
        assert rows.column_sums(x) is None and not rows.add_rows(x, np.zeros(8, int), x.copy())


def gradients(function: Any, *arrays: np.ndarray | None) -> list[np.ndarray]:
    """The result, and the gradients of all inputs for a fixed gradient that comes in."""
    leaves = [None if a is None else rt.tensor(a, device=CPU).require_grad() for a in arrays]
    y = function(*leaves)
    found = (y * rt.tensor(normal(*y.shape, seed=9), device=CPU)).sum().backward()
    return [y.numpy(), *[found[leaf].numpy() for leaf in leaves if leaf is not None]]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 3, 5, 2), (2, 9, 17, 33, 6), (3, 40, 64, 130, 48)])
def test_a_feed_forward_part_is_that_of_the_operations_one_by_one(name, shape, bare):
    b, t, d, wide, out = shape
    arrays = [normal(b, t, d), normal(d, wide), normal(wide), normal(wide, out), normal(out), normal(b, t, out)]
    arrays = [a for i, a in enumerate(arrays) if not bare or i not in (2, 4, 5)]

    def together(*t):
        x, w1, b1, w2, b2, r = (t[0], t[1], None, t[2], None, None) if bare else t
        return rt.feed_forward(x, w1, b1, w2, b2, activation=name, residual=r)

    def apart(*t):
        x, w1, b1, w2, b2, r = (t[0], t[1], None, t[2], None, None) if bare else t
        return feed_forward._expression(x, w1, b1, w2, b2, r, name)

    found, right = gradients(together, *arrays), gradients(apart, *arrays)
    np.testing.assert_array_equal(found[0], right[0])
    for a, e in zip(found, right):
        np.testing.assert_allclose(a, e, rtol=2e-5, atol=1e-5 * float(np.abs(e).max()))
    x = rt.tensor(arrays[0], device=CPU).require_grad()
    assert together(x, *[rt.tensor(a, device=CPU) for a in arrays[1:]])._node.op.name == "feed_forward"


@pytest.mark.parametrize("sizes", [(3, 0, 4, 2), (0, 3, 4, 2), (3, 4, 0, 2), (3, 4, 2, 0)])
def test_sizes_of_zero(monkeypatch, sizes):
    monkeypatch.undo()
    n, d, wide, out = sizes
    arrays = normal(n, d), normal(d, wide), normal(wide), normal(wide, out), normal(out)
    found = gradients(lambda x, w1, b1, w2, b2: rt.feed_forward(x, w1, b1, w2, b2), *arrays)
    right = gradients(lambda *t: feed_forward._expression(*t, residual=None, activation="gelu_tanh"), *arrays)
    for a, e in zip(found, right):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "shared", "t", "d"), [(4, 4, 33, 32), (4, 2, 40, 7), (1, 1, 1, 1), (6, 1, 17, 20)])
def test_packed_attention_is_that_of_its_parts(heads, shared, t, d, causal):
    packed = normal(2, t, (heads + 2 * shared) * d)
    static = {"heads": heads, "shared": shared, "scale": d**-0.5, "causal": causal}
    found = gradients(lambda p: packed_attention(p, heads, shared, causal=causal), packed)
    right = gradients(lambda p: _packed._expression(p, **static), packed)
    for a, e in zip(found, right):
        np.testing.assert_array_equal(a, e)
    for forward in (True, False):  # either forward goes with either backward
        with host.use_host_kernels(forward):
            y, lse = _packed._forward(np, packed, **static)
        with host.use_host_kernels(not forward):
            (dx,) = _packed._backward(np, normal(*y.shape, seed=9), packed, y, lse, needs=(True,), **static)
        np.testing.assert_allclose(y, right[0], rtol=2e-5, atol=4e-6)
        np.testing.assert_allclose(dx, right[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norms_backward_adds_what_has_arrived(shape, weighted, compiled):
    x, g, more = normal(*shape), normal(*shape, seed=1), normal(*shape, seed=2)
    w, settings = normal(shape[1], seed=3) if weighted else None, {"axes": 1, "eps": 1e-5}
    with host.use_host_kernels(compiled):
        _, *kept = _normalize.layer_forward(np, x, w, None, **settings)
        _, r = _normalize.rms_forward(np, x, w, **settings)
        for body, residuals, needs in (
            (_normalize.layer_backward, kept, (True, weighted, False)), (_normalize.rms_backward, [r], (True, weighted)),
        ):  # fmt: skip
            alone = body(np, g, x, w, *residuals, needs=needs, **settings)
            for add in (more, np.asfortranarray(more)):
                found = body(np, g, x, w, *residuals, needs=needs, **settings, add=add)
                np.testing.assert_allclose(found[0], alone[0] + more, rtol=1e-6, atol=1e-6)
                if weighted:
                    np.testing.assert_array_equal(found[1], alone[1])


def test_a_residual_stream_has_the_gradients_of_the_two_operations():
    def stream(x, w, b):
        return x + rt.layer_norm(x, w, b) + rt.rms_norm(x, w)

    arrays = normal(6, 70), normal(70, seed=1), normal(70, seed=2)
    found = gradients(stream, *arrays)
    right = gradients(stream, *[a.astype(np.float64) for a in arrays])
    for a, e in zip(found, right):
        np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [*SHAPES, (66, 513), (1000, 7), (5000, 64)])
def test_column_sums_agree_with_float64_and_with_fewer_threads(shape, monkeypatch):
    x = normal(*shape) + np.float32(100)
    found, right = rows.column_sums(x), x.sum(axis=0, dtype=np.float64)
    assert found.dtype == np.float32 and found.shape == right.shape
    assert (np.abs(found - right) <= (80 + shape[0] / 64) * 2.0**-24 * np.abs(x).sum(axis=0, dtype=np.float64)).all()
    monkeypatch.setattr(pool, "threads", lambda: 1)
    np.testing.assert_array_equal(rows.column_sums(x), found)
    if shape[0] > _sums.SMALL and shape[1] > 1:
        np.testing.assert_array_equal(_sums.total(np, x, (0,), False), found)
    x[0, 0] = math.inf
    assert rows.column_sums(x)[0] == math.inf


def test_rows_are_added_where_their_index_says():
    x, index = normal(300, 33), np.random.default_rng(1).integers(0, 7, 300)
    start = normal(9, 33, seed=2)
    exactly = start.astype(np.float64)
    np.add.at(exactly, index, x.astype(np.float64))
    for kind in (np.int32, np.int64):
        out = start.copy()
        assert rows.add_rows(x, index.astype(kind), out)
        np.testing.assert_array_equal(out, exactly.astype(np.float32))
        np.testing.assert_array_equal(_picking.add_rows(np, x, index.astype(kind), start.copy()), out)
    for wrong in (index - 1, index + 3):
        assert not rows.add_rows(x, wrong, start.copy())
    assert not rows.add_rows(x[:5], index[:5], start.copy())


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one width of vectors here")
@pytest.mark.parametrize("less", ["-mno-avx512f", "-mno-avx512f -mno-avx"])
def test_processors_with_narrower_vectors(less, tmp_path):
    files = [str(Path(__file__).with_name(f"test_host_{name}.py")) for name in ("kernels", "fused", "attention")]
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *files, "-k", "float64 or special or exactly or exp or goes or parts"]
    env = {**os.environ, "CC": f"cc {less}", "RUDA_CACHE_DIR": str(tmp_path), "RUDA_HOST_KERNELS": "1"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "passed" in done.stdout and "SKIPPED" not in done.stdout, done.stdout[-3000:]
