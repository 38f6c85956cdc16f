"""The layer cases through `ruda_nn`: modules in training and inference, their parameters, records and optimizers."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_nn as nn
import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import (
    BatchNormConfig,
    DropoutConfig,
    EmbeddingConfig,
    GroupNormConfig,
    InstanceNormConfig,
    LayerNormConfig,
    MaxPool1dConfig,
    RmsNormConfig,
)
from ruda_optim import AdamConfig, GradientsParams
from tests.tensor._helpers import close

KNOWN = [-1.3416394, -0.4472131, 0.4472131, 1.3416394]


def leaf(values, device, dtype=rt.float32):
    return rt.tensor(values, dtype=dtype, device=device).require_grad()


def gradients(y, upstream):
    return (y * rt.tensor(upstream, dtype=y.dtype, device=y.device)).sum().backward()


@pytest.mark.parametrize("offset", [0.0, 30000.0, -30000.0])
def test_LAYER_01_rows_with_a_large_mean(offset, device):
    layer = LayerNormConfig(4, eps=1e-5).init(Autodiff(device))
    x = leaf([[offset, offset + 2.0, offset + 4.0, offset + 6.0]], device)
    y = layer(x)
    found = gradients(y, [[1.0, 2.0, -1.0, 0.5]])
    close(y, [KNOWN], 1e-6, 1e-6)
    close(found[x], [[-0.1341633, 0.5142953, -0.6260986, 0.2459666]], 2e-6, 2e-7)
    close(found[layer.weight], np.multiply(KNOWN, [1.0, 2.0, -1.0, 0.5]), 1e-6, 1e-6)
    close(found[layer.bias], [1.0, 2.0, -1.0, 0.5])


@pytest.mark.parametrize("value", [1.0, 777.25, -3e4, 1e8])
@pytest.mark.parametrize("dtype", [rt.float32, rt.bfloat16])
@pytest.mark.parametrize("config,shape", [
    (LayerNormConfig(257), (3, 257)), (BatchNormConfig(3), (4, 3, 257)), (GroupNormConfig(3, 6), (2, 6, 257)),
    (InstanceNormConfig(3, affine=True), (2, 3, 257)),
])  # fmt: skip
def test_LAYER_02_constant_rows(config, shape, dtype, value, device):
    layer = config.init(Autodiff(device))
    layer = layer.map(lambda p: p if p is layer.weight else p.like(rt.full(p.shape, 0.25, device=device)._data))
    x = rt.full(shape, value, dtype=dtype, device=device).require_grad()
    y = layer(x)
    found = y.astype(rt.float32).sum().backward()
    if abs(value) < 1e8:
        assert set(y.astype(rt.float32).numpy().ravel().tolist()) == {0.25}
    for z in (y, found[x], found[layer.weight], found[layer.bias], *(b.value for _, b in layer.named_buffers())):
        assert np.isfinite(z.astype(rt.float32).numpy()).all()


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
@pytest.mark.parametrize("kind", [LayerNormConfig, RmsNormConfig])
def test_LAYER_03_batch_and_sequence_axes(kind, shape, device):
    rng = np.random.default_rng(0)
    layer = kind(shape).init(Autodiff(device))
    layer = layer.map(lambda p: p.like(rt.tensor(rng.standard_normal(shape), dtype=rt.float32, device=device)._data))
    data, upstream = (rng.standard_normal((2, 3, 5)).astype(np.float32) for _ in range(2))
    flat = (-1, *shape)

    def run(data, upstream):
        x = leaf(data, device)
        found = gradients(layer(x), upstream)
        return [found[x].numpy().reshape(flat), *(found[p].numpy() for p in layer.params())]

    for whole, rows in zip(run(data, upstream), run(data.reshape(flat), upstream.reshape(flat)), strict=True):
        assert np.array_equal(whole, rows) and np.abs(whole).min() > 0
    assert [p.shape for p in layer.params()] == [shape] * len(layer.params())


def test_LAYER_05_running_statistics(device):
    layer = BatchNormConfig(1, momentum=0.1).init(Autodiff(device))
    y = layer(rt.tensor([[2.0], [4.0], [6.0], [8.0]], device=device))
    close(y, np.reshape(KNOWN, (4, 1)), 1e-6, 1e-6)
    close(layer.running_mean.value, [0.5]), close(layer.running_var.value, [1.5666667], 1e-6)
    with pytest.raises(ValueError, match="one value per channel.*larger batch"):
        layer(rt.tensor([[100.0]], device=device))
    close(layer.running_mean.value, [0.5]), close(layer.running_var.value, [1.5666667], 1e-6)
    still = layer.valid()
    for values in ([[100.0]], [[100.0], [0.5]], np.zeros((0, 1))):
        x = rt.tensor(values, dtype=rt.float32, device=device)
        close(still(x), (np.array(values) - 0.5) / np.sqrt(1.5666667 + 1e-5), 1e-6, 1e-6)
    close(still.running_mean.value, [0.5]), close(still.running_var.value, [1.5666667], 1e-6)
    layer(rt.zeros((0, 1), device=device))  # an empty batch changes nothing
    close(layer.running_mean.value, [0.5]), close(layer.running_var.value, [1.5666667], 1e-6)


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_LAYER_07_dropout(p, device):
    rt.random.seed(0)
    layer, x = DropoutConfig(p).init(Autodiff(device)), rt.ones(1000, device=device).require_grad()
    y = layer(x)
    g = y.sum().backward()[x].numpy()
    assert np.array_equal(g, y.numpy())
    if p == 0.25:
        assert set(g.tolist()) == {0.0, float(np.float32(1.3333334))} and 200 < (g == 0).sum() < 300
    else:
        assert set(g.tolist()) == {1.0 - p}
    assert layer.valid()(x).tolist() == [1.0] * 1000


def test_LAYER_09_max_pooling_pads_with_nothing(device):
    layer = MaxPool1dConfig(3, stride=2, padding=1).init()
    x = leaf([-5.0, -1.0, -7.0, -2.0, -9.0], device)
    y = layer(x)
    assert y.tolist() == [-1.0, -1.0, -2.0] and y.sum().backward()[x].tolist() == [0, 2, 0, 1, 0]
    whole = layer(rt.tensor([-5, -1, -7, -2, -9], device=device))
    assert whole.tolist() == [-1, -1, -2] and whole.dtype == rt.int32


@pytest.mark.parametrize("padding_idx,ids,rows", [
    (0, [[0, 1, 4], [0, 0, 4]], [0, 1, 0, 0, 2]), (-1, [[0, 1, 4], [0, 0, 4]], [3, 1, 0, 0, 0]),
    (-1, [[0, 1, -1], [0, 0, 4]], [3, 1, 0, 0, 0]), (0, [0] * 400 + [2] * 300 + [-5], [0, 0, 300, 0, 0]),
])  # fmt: skip
def test_LAYER_14_padding_rows_get_no_gradient(padding_idx, ids, rows, device):
    layer = EmbeddingConfig(5, 2, padding_idx=padding_idx).init(Autodiff(device))
    found = layer(rt.tensor(ids, device=device)).sum().backward()
    assert found[layer.weight].tolist() == [[n, n] for n in rows]


def test_LAYER_15_a_loaded_padding_row_is_looked_up_as_stored_and_stays(device):
    layer = EmbeddingConfig(3, 2, padding_idx=0).init(Autodiff(device))
    assert layer.weight[0].tolist() == [0.0, 0.0]
    ones = layer.map(lambda p: p.like(rt.ones((3, 2), device=device)._data))
    layer = layer.load_record(ones.to_record())
    optimizer = AdamConfig().init()
    for _ in range(3):
        y = layer(rt.tensor([0, 1, 2], device=device))
        assert y[0].tolist() == [1.0, 1.0]
        found = y.square().sum().backward()
        assert found[layer.weight][0].tolist() == [0.0, 0.0]
        layer = optimizer.step(0.1, layer, GradientsParams.from_grads(found, layer))
    assert layer.weight[0].tolist() == [1.0, 1.0] and max(layer.weight[1].tolist()) < 0.8
    assert "weight decay" in (nn.Embedding.__doc__ or "")


def test_LAYER_16_one_table_for_input_and_output(device):
    layer = EmbeddingConfig(3, 2).init(Autodiff(device))
    layer = layer.map(lambda p: p.like(rt.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], device=device)._data))
    loss = rt.cross_entropy(layer.attend(layer(rt.tensor([1], device=device))), rt.tensor([2], device=device))
    close(loss, 0.86199480, 1e-6)
    found = loss.backward()
    close(found[layer.weight], [[0.0, 0.1553624], [-0.4223188, 0.2669564], [0.0, -0.5776812]], 1e-6, 1e-6)
