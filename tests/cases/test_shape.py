"""Neighbours of the shape cases: normalizing nothing, convolving nothing, axes that are arrays."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_nn import Module, Param
from ruda_optim import AdamWConfig, GradientsParams
from tests.tensor._helpers import close


class Point(Module):
    at: Param


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0), (0,), (2, 3, 0)])
def test_SHAPE_08_norms_of_nothing(name, shape, device):
    x, w = rt.zeros(shape, device=device).require_grad(), rt.ones(shape[-1:], device=device).require_grad()
    y = getattr(rt, name)(x, w)
    found = rt.sum(y).backward()
    assert y.shape == found[x].shape == shape
    assert found[w].shape == shape[-1:] and not found[w].numpy().any()


@pytest.mark.parametrize("shape", [(2, 4, 0, 6), (0, 4, 3), (2, 0, 6), (0, 0)])
def test_SHAPE_08_group_norms_of_nothing(shape, device):
    for norm in (lambda x, w: rt.group_norm(x, 1, w), rt.instance_norm):
        x, w = rt.zeros(shape, device=device).require_grad(), rt.ones(shape[1], device=device).require_grad()
        y = norm(x, w)
        found = rt.sum(y).backward()
        assert y.shape == found[x].shape == shape and found[w].shape == shape[1:2]
        assert not found[w].numpy().any()


@pytest.mark.parametrize("size", [(0, 6), (6, 0), (0, 0)])
@pytest.mark.parametrize("stride", [1, 2])
def test_SHAPE_07_convolution_of_padding_alone_keeps_its_history(size, stride, device):
    x = rt.zeros((2, 4, *size), device=device).require_grad()
    w, b = (rt.ones(s, device=device).require_grad() for s in ((3, 4, 3, 3), (3,)))
    y = rt.conv2d(x, w, b, stride=stride, padding=2)
    assert (y.numpy() == 1).all() and y.shape[:2] == (2, 3)
    found = rt.sum(y).backward()
    assert found[x].shape == x.shape and not found[w].numpy().any()
    close(found[b], np.full(3, y.size / 3))


def test_SHAPE_08_axes_and_counts_may_be_arrays_of_any_library(device):
    x = rt.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]], device=device)
    for axis in (np.int64(1), np.array(1), rt.tensor(1, device=device)):
        assert rt.sum(x, axis=axis).tolist() == [7, 56]
        assert rt.logsumexp(x, axis=axis).shape == rt.max(x, axis=axis).shape == rt.flip(x, axis=axis).shape[:1]
    assert rt.sum(x, axis=np.array([0, 1])).item() == 63
    assert rt.diff(x, n=np.int64(2)).tolist() == [[1], [8]]
    assert rt.tile(x, np.array([2, 1])).shape == (4, 3)
    assert rt.pad(x, np.array([[1, 0], [0, 2]])).shape == (3, 5)
    assert rt.tensordot(x, x, axes=np.array([[1], [1]])).shape == (2, 2)
    assert rt.zeros_like([1.0, 2.0]).tolist() == [0, 0]


def test_SHAPE_08_what_is_no_tensor_or_count_is_named():
    x = rt.ones((2, 3))
    for call, name in (
        (lambda: rt.linear(None, x), "linear"), (lambda: rt.linear(x, x.T, object()), "linear"),
        (lambda: rt.repeat(x, None, axis=0), "repeat"), (lambda: rt.zeros_like(None), "zeros_like"),
        (lambda: rt.full_like(None, 1.0), "full_like"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=name):
            call()


@pytest.mark.parametrize("turned", [False, True])
def test_SHAPE_09_fused_operations_and_updates_of_views_give_the_bits_of_copies(turned, device):
    x = rt.reshape(rt.arange(24.0, device=device), (4, 6))[::-1, ::-2]
    x = x.T if turned else x
    up = rt.reshape(rt.arange(12.0, device=device) - 5.0, x.T.shape).T
    w, targets = rt.arange(1.0, x.shape[1] + 1.0, device=device), rt.zeros(x.shape[0], dtype=rt.int64, device=device)
    for f in (
        lambda x: rt.layer_norm(x, w), lambda x: rt.rms_norm(x, w), lambda x: rt.softmax(x), rt.gelu, rt.log_softmax,
        lambda x: rt.softmax(x, axis=0), lambda x: rt.cross_entropy(x, targets, reduction="none")[:, None],
    ):  # fmt: skip
        found = []
        for values, incoming in ((x, up), (x.copy(), up.copy())):
            leaf = values.require_grad()
            y = f(leaf)
            found.append((y.numpy().tobytes(), rt.sum(y * incoming).backward()[leaf].numpy().tobytes()))
        assert found[0] == found[1]
    updated = []
    for values, gradient in ((x, up), (x.copy(), up.copy())):
        model, optimizer = Point(Param(values)), AdamWConfig().init()
        for _ in range(3):
            model = optimizer.step(0.1, model, GradientsParams({model.at: gradient}))
        updated.append(model.at.numpy().tobytes())
    assert updated[0] == updated[1]
    assert x.numpy().sum() == 144
