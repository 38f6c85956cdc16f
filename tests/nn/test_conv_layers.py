"""Convolution layers: against torch, by hand, their defaults, and what they refuse."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn import Constant, Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig, Ones

from ._layers import agrees_with_torch, behaves_like_a_layer, drawn

ONE = [
    ((2, 4, 9), (4, 6, 3), {}),
    ((2, 4, 9), (4, 6, 3), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}),
    ((1, 3, 7), (3, 3, 5), {"padding": "same", "dilation": 2, "bias": False}),
    ((3, 1, 1), (1, 2, 1), {"padding": "valid"}),
]
TWO = [
    ((2, 4, 7, 6), (4, 6, 3), {"padding": 1}),
    ((2, 4, 7, 6), (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}),
    ((1, 3, 5, 5), (3, 3, 3), {"groups": 3, "padding": "same", "bias": False}),
    ((2, 3, 4, 5), (3, 5, 1), {}),
]
TRANSPOSED = [
    ((2, 4, 3, 5), (4, 6, 3), {}),
    ((2, 4, 3, 5), (4, 6, (3, 2)), {"stride": (2, 3), "padding": 1, "output_padding": (1, 2), "groups": 2}),
    ((1, 2, 3, 3), (2, 4, 2), {"stride": 2, "dilation": 2, "bias": False}),
]


@pytest.mark.parametrize("shape,args,options", ONE)
def test_conv1d_agrees_with_torch(shape, args, options):
    agrees_with_torch(Conv1dConfig(*args, **options).init(Autodiff(rt.Cpu())), "Conv1d", drawn(shape), *args, **options)


@pytest.mark.parametrize("shape,args,options", TWO)
def test_conv2d_agrees_with_torch(shape, args, options):
    agrees_with_torch(Conv2dConfig(*args, **options).init(Autodiff(rt.Cpu())), "Conv2d", drawn(shape), *args, **options)


@pytest.mark.parametrize("shape,args,options", TRANSPOSED)
def test_conv_transpose2d_agrees_with_torch(shape, args, options):
    layer = ConvTranspose2dConfig(*args, **options).init(Autodiff(rt.Cpu()))
    agrees_with_torch(layer, "ConvTranspose2d", drawn(shape), *args, **options)


def test_values_by_hand(device):
    """Sums of windows: with a weight of ones and a bias of one, each output is one more than its window's sum."""
    x = rt.tensor(np.arange(1.0, 10.0).reshape(1, 1, 3, 3), dtype=rt.float32, device=device)
    same = Conv2dConfig(1, 1, 2, initializer=Ones()).init(device)(x)
    assert same.tolist() == [[[[13.0, 17.0], [25.0, 29.0]]]]
    strided = Conv2dConfig(1, 1, 2, stride=2, padding=1, initializer=Ones()).init(device)(x)
    assert strided.tolist() == [[[[2.0, 6.0], [12.0, 29.0]]]]
    row = rt.tensor([[[1.0, 2.0, 4.0, 8.0]]], device=device)
    assert Conv1dConfig(1, 1, 2, dilation=2, initializer=Ones()).init(device)(row).tolist() == [[[6.0, 11.0]]]
    up = ConvTranspose2dConfig(1, 1, (1, 2), stride=(1, 2), output_padding=(0, 1), initializer=Ones()).init(device)
    assert up(rt.tensor([[[[1.0, 2.0]]]], device=device)).tolist() == [[[[2.0, 2.0, 3.0, 3.0, 1.0]]]]


def test_groups_do_not_see_each_other(device):
    layer = Conv1dConfig(2, 2, 1, groups=2, bias=False, initializer=Constant(2.0)).init(device)
    x = rt.tensor([[[1.0, 2.0], [10.0, 20.0]]], device=device)
    assert layer(x).tolist() == [[[2.0, 4.0], [20.0, 40.0]]] and layer.weight.shape == (2, 1, 1)


@pytest.mark.parametrize("config,fan", [
    (Conv1dConfig(40, 60, 5, groups=2), 100), (Conv2dConfig(4, 300, 5), 100), (ConvTranspose2dConfig(300, 4, 5), 100),
])  # fmt: skip
def test_weights_start_within_one_over_root_fan_in_as_in_torch(config, fan, device):
    layer, bound = config.init(Autodiff(device)), 1 / math.sqrt(fan)
    for p in layer.params():
        assert np.abs(p.numpy()).max() <= bound and p.is_require_grad()
    assert np.abs(layer.weight.numpy()).max() > 0.99 * bound
    assert abs(layer.weight.numpy().mean()) < 5 * bound / math.sqrt(3 * layer.weight.size)


@pytest.mark.parametrize("config,shape", [
    (Conv1dConfig(2, 3, 2, padding=1), (3, 2, 5)), (Conv2dConfig(2, 4, 3, groups=2), (1, 2, 5, 3)),
    (ConvTranspose2dConfig(2, 3, 2, stride=2), (2, 2, 1, 3)), (Conv2dConfig(2, 3, 1), (0, 2, 4, 4)),
])  # fmt: skip
def test_they_behave_like_layers(config, shape, device):
    behaves_like_a_layer(config, drawn(shape), device)


@pytest.mark.parametrize("config,shape", [(Conv1dConfig(2, 2, 2), (2, 2, 4)), (ConvTranspose2dConfig(2, 1, 2, 2), (1, 2, 2, 1))])
def test_gradients(config, shape):
    layer = config.init(Autodiff(rt.Cpu())).to_dtype(rt.float64)
    check_gradients(lambda m, x: rt.tanh(m(x)), layer, rt.tensor(drawn(shape, dtype=np.float64), device=rt.Cpu()), order=2)


@pytest.mark.parametrize("config,field", [
    (Conv1dConfig(0, 1, 1), "in_channels"), (Conv1dConfig(1, 1.5, 1), "out_channels"), (Conv2dConfig(1, 1, 0), "kernel_size"),
    (Conv2dConfig(1, 1, (1, 2, 3)), "kernel_size"), (Conv1dConfig(1, 1, 1, stride=0), "stride"),
    (Conv1dConfig(1, 1, 1, padding=-1), "padding"), (Conv1dConfig(1, 1, 1, padding="full"), "padding"),
    (Conv1dConfig(1, 1, 3, padding="same", stride=2), "padding"), (Conv2dConfig(1, 1, 1, dilation=True), "dilation"),
    (Conv2dConfig(4, 6, 1, groups=4), "groups"), (Conv2dConfig(3, 6, 1, groups=2), "groups"),
    (Conv2dConfig(4, 4, 1, groups=0), "groups"), (Conv2dConfig(1, 1, 1, initializer=1.0), "initializer"),
    (ConvTranspose2dConfig(1, 1, 1, output_padding=1), "output_padding"),
    (ConvTranspose2dConfig(1, 1, 1, padding="same"), "padding"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init(rt.Cpu())


def test_a_wrong_input_names_the_channels():
    with pytest.raises(ValueError, match="channels"):
        Conv2dConfig(3, 1, 1).init(rt.Cpu())(rt.ones((1, 2, 3, 3), device=rt.Cpu()))
