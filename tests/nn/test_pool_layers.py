"""Pooling layers: against torch, by hand, and what they refuse."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff.testing import check_gradients
from ruda_nn import AdaptiveAvgPool2dConfig, AvgPool1dConfig, AvgPool2dConfig, MaxPool1dConfig, MaxPool2dConfig

from ._layers import agrees_with_torch, behaves_like_a_layer, drawn

CASES = [
    (MaxPool1dConfig, "MaxPool1d", (2, 3, 9), (3,), {}),
    (MaxPool1dConfig, "MaxPool1d", (2, 3, 10), (3,), {"stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}),
    (MaxPool2dConfig, "MaxPool2d", (2, 3, 7, 6), (2,), {}),
    (MaxPool2dConfig, "MaxPool2d", (2, 3, 7, 6), ((3, 2),), {"stride": (2, 1), "padding": (1, 0), "ceil_mode": True}),
    (AvgPool1dConfig, "AvgPool1d", (2, 3, 9), (4,), {"stride": 2, "padding": 2}),
    (AvgPool1dConfig, "AvgPool1d", (2, 3, 9), (2,), {"ceil_mode": True, "count_include_pad": False}),
    (AvgPool2dConfig, "AvgPool2d", (2, 3, 7, 6), ((3, 2),), {"stride": (2, 1), "padding": (1, 0), "count_include_pad": False}),
    (AvgPool2dConfig, "AvgPool2d", (1, 1, 1, 1), (1,), {}),
    (AdaptiveAvgPool2dConfig, "AdaptiveAvgPool2d", (2, 3, 7, 6), ((3, 4),), {}),
    (AdaptiveAvgPool2dConfig, "AdaptiveAvgPool2d", (2, 3, 8, 6), ((4, 2),), {}),
    (AdaptiveAvgPool2dConfig, "AdaptiveAvgPool2d", (2, 3, 5, 4), (1,), {}),
    (AdaptiveAvgPool2dConfig, "AdaptiveAvgPool2d", (2, 3, 2, 3), ((5, 4),), {}),
]


@pytest.mark.parametrize("config,name,shape,args,options", CASES)
def test_they_agree_with_torch(config, name, shape, args, options):
    agrees_with_torch(config(*args, **options).init(), name, drawn(shape), *args, **options)


def test_values_by_hand(device):
    x = rt.tensor([[1.0, 2.0, 6.0], [0.0, -4.0, 3.0], [9.0, 5.0, 7.0]], device=device)
    assert MaxPool2dConfig(2, stride=1).init()(x).tolist() == [[2, 6], [9, 7]]
    assert MaxPool2dConfig(3, stride=2, padding=1).init()(x).tolist() == [[2, 6], [9, 7]]
    np.testing.assert_allclose(AvgPool2dConfig((1, 3)).init()(x).numpy(), [[3.0], [-1 / 3], [7.0]], rtol=1e-6)
    np.testing.assert_allclose(AvgPool1dConfig(3, padding=1).init()(x).numpy(), [[1.0], [-4 / 3], [14 / 3]], rtol=1e-6)
    # windows of rows {0, 1}, {1, 2} and of columns {0, 1}, {1, 2}
    np.testing.assert_allclose(AdaptiveAvgPool2dConfig(2).init()(x).numpy(), [[-0.25, 1.75], [2.5, 2.75]], rtol=1e-6)
    assert AdaptiveAvgPool2dConfig((3, 1)).init()(x).shape == (3, 1)


def test_an_infinity_stays_in_its_windows(device):
    x = rt.tensor([[np.inf, 1.0, 2.0, 4.0, 6.0]], device=device)
    found = AdaptiveAvgPool2dConfig((1, 3)).init()(x).numpy()
    np.testing.assert_allclose(found, [[np.inf, 7 / 3, 5.0]], rtol=1e-6)


@pytest.mark.parametrize("config", [
    MaxPool1dConfig(2), MaxPool2dConfig(2, padding=1), AvgPool1dConfig(3), AvgPool2dConfig(2, ceil_mode=True),
    AdaptiveAvgPool2dConfig((3, 2)), AdaptiveAvgPool2dConfig(5),
])  # fmt: skip
def test_they_behave_like_layers(config, device):
    behaves_like_a_layer(config, drawn((2, 3, 5, 5)), device)
    behaves_like_a_layer(config, drawn((0, 3, 5, 5)), device)


@pytest.mark.parametrize("config", [MaxPool2dConfig(2, stride=1), AvgPool2dConfig(2, padding=1), AdaptiveAvgPool2dConfig((2, 3))])
def test_gradients(config):
    x = rt.tensor(drawn((2, 3, 4), dtype=np.float64), device=rt.Cpu())
    check_gradients(lambda x: rt.tanh(config.init()(x)), x, order=2)


@pytest.mark.parametrize("config,field", [
    (MaxPool1dConfig(0), "kernel_size"), (MaxPool2dConfig((2, 2, 2)), "kernel_size"),
    (MaxPool2dConfig(2, stride=0), "stride"),
    (MaxPool2dConfig(2, padding=2), "padding"), (MaxPool1dConfig(3, padding=-1), "padding"),
    (MaxPool2dConfig(2, dilation=0), "dilation"),
    (AvgPool1dConfig(1.5), "kernel_size"), (AvgPool2dConfig((3, 1), padding=1), "padding"),
    (AdaptiveAvgPool2dConfig(0), "output_size"),
    (AdaptiveAvgPool2dConfig(None), "output_size"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init()


def test_dilation_widens_the_window_that_padding_may_fill():
    assert MaxPool1dConfig(2, dilation=3, padding=2).init()(rt.ones((1, 5))).shape == (1, 3)


def test_a_wrong_input_is_refused():
    with pytest.raises(ValueError, match=r"H, W.*\(3,\)"):
        AdaptiveAvgPool2dConfig(1).init()(rt.ones(3))
    with pytest.raises(ValueError, match="H and W >= 1"):
        AdaptiveAvgPool2dConfig(1).init()(rt.ones((2, 0, 3)))
