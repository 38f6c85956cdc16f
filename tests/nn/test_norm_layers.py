"""Normalization layers: against torch, by hand, affine in float32, and what they refuse."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn import BatchNormConfig, GroupNormConfig, InstanceNormConfig, LayerNormConfig, RmsNormConfig

from ._layers import agrees_with_torch, behaves_like_a_layer, drawn, host


def varied(layer):
    """The layer with weights that are not all one and biases that are not all zero."""
    return layer.map(lambda p: p.like(rt.tensor(drawn(p.shape, p.size), device=p.device)._data))


CASES = [
    (LayerNormConfig(5), "LayerNorm", (3, 5), (5,), {}),
    (LayerNormConfig((4, 5), eps=1e-3), "LayerNorm", (2, 3, 4, 5), ((4, 5),), {"eps": 1e-3}),
    (LayerNormConfig(7, bias=False), "LayerNorm", (2, 3, 7), (7,), {"bias": False}),
    (LayerNormConfig(7, elementwise_affine=False), "LayerNorm", (4, 7), (7,), {"elementwise_affine": False}),
    (RmsNormConfig(5), "RMSNorm", (2, 3, 5), (5,), {"eps": 1e-5}),
    (RmsNormConfig((3, 5), 1e-5, False), "RMSNorm", (2, 3, 5), ((3, 5),), {"eps": 1e-5, "elementwise_affine": False}),
    (GroupNormConfig(2, 6), "GroupNorm", (3, 6, 4, 5), (2, 6), {}),
    (GroupNormConfig(3, 6, affine=False), "GroupNorm", (3, 6, 4), (3, 6), {"affine": False}),
    (InstanceNormConfig(3, affine=True), "InstanceNorm2d", (2, 3, 4, 5), (3,), {"affine": True}),
    (InstanceNormConfig(3), "InstanceNorm1d", (2, 3, 7), (3,), {}),
    (BatchNormConfig(5), "BatchNorm1d", (6, 5), (5,), {}),
    (BatchNormConfig(5, momentum=0.3, eps=1e-3), "BatchNorm1d", (3, 5, 4), (5,), {"momentum": 0.3, "eps": 1e-3}),
    (BatchNormConfig(3, affine=False), "BatchNorm2d", (2, 3, 4, 5), (3,), {"affine": False}),
]


@pytest.mark.parametrize("config,name,shape,args,options", CASES)
def test_they_agree_with_torch(config, name, shape, args, options):
    layer = varied(config.init(Autodiff(rt.Cpu())))
    theirs = agrees_with_torch(layer, name, drawn(shape), *args, rtol=2e-5, atol=4e-6, **options)
    if not name.startswith("BatchNorm"):
        return
    import torch

    x = drawn(shape, 3)
    layer(rt.tensor(x)), theirs(torch.tensor(x))  # a second batch
    for path, b in layer.named_buffers():
        np.testing.assert_allclose(b.numpy(), theirs.state_dict()[path].numpy(), rtol=1e-5, atol=1e-6, err_msg=path)
    x = drawn(shape, 4)
    np.testing.assert_allclose(
        host(layer.valid()(rt.tensor(x))), theirs.eval()(torch.tensor(x)).detach().numpy(), rtol=1e-5, atol=4e-6
    )


def test_values_by_hand(device):
    """(x - mean) / root of the variance of 1, 2, 3, 6: mean 3, variance 3.5."""
    x = rt.tensor([[1.0, 2.0, 3.0, 6.0]], device=device)
    y = np.array([[-2.0, -1.0, 0.0, 3.0]]) / np.sqrt(3.5 + 1e-5)
    np.testing.assert_allclose(LayerNormConfig(4).init(device)(x).numpy(), y, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(GroupNormConfig(1, 4).init(device)(x).numpy(), y, rtol=1e-6, atol=1e-7)
    rms = np.array([[1.0, 2.0, 3.0, 6.0]]) / np.sqrt(12.5 + 1e-5)
    np.testing.assert_allclose(RmsNormConfig(4).init(device)(x).numpy(), rms, rtol=1e-6)
    column, one = rt.reshape(x, (4, 1)), rt.reshape(x, (1, 1, 4))
    np.testing.assert_allclose(BatchNormConfig(1).init(Autodiff(device))(column).numpy(), y.T, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(InstanceNormConfig(1).init(device)(one).numpy(), y[None], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("config", [LayerNormConfig(6), RmsNormConfig(6), GroupNormConfig(2, 6), BatchNormConfig(6)])
@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_contract_70_statistics_and_affine_in_float32_beside_half_inputs(config, dtype, device):
    """Values near 300 overflow float16 when squared, and lose all digits of their spread in bfloat16 sums."""
    layer = varied(config.init(Autodiff(device)))
    x = rt.tensor(300.0 + 8.0 * drawn((5, 6)), device=device).astype(dtype)
    y, wide = layer(x), layer(x.astype(rt.float32))
    assert y.dtype == dtype and layer.weight.dtype == rt.float32
    np.testing.assert_allclose(host(y), host(wide), rtol=2.0**-8 if dtype == rt.bfloat16 else 2.0**-11, atol=1e-6)
    assert layer.weight.grad(y.astype(rt.float32).sum().backward()).dtype == rt.float32


def test_contract_71_the_module_has_eps_1e_5_and_the_function_the_machine_epsilon(device):
    x = rt.tensor([[1e-3, -1e-3]], dtype=rt.float32, device=device)
    np.testing.assert_allclose(RmsNormConfig(2).init(device)(x).numpy(), [[0.30151134, -0.30151134]], rtol=1e-5)
    own = 1.0 / np.sqrt(1.0 + 1e6 * 2.0**-23)
    np.testing.assert_allclose(rt.rms_norm(x).numpy(), [[own, -own]], rtol=1e-5)
    half = rt.tensor([[2.0**-5, -(2.0**-5)]], dtype=rt.bfloat16, device=device)  # machine epsilon 2^-7
    np.testing.assert_allclose(host(rt.rms_norm(half)), [[1 / 3, -1 / 3]], rtol=2.0**-8)


@pytest.mark.parametrize("config,shape", [
    (LayerNormConfig((3, 5)), (2, 3, 5)), (LayerNormConfig(1), (4, 1)), (RmsNormConfig(5), (0, 5)),
    (GroupNormConfig(2, 4), (3, 4, 5)), (InstanceNormConfig(3, affine=True), (2, 3, 5)), (BatchNormConfig(5), (4, 5)),
    (BatchNormConfig(2), (1, 2, 3, 3)),
])  # fmt: skip
def test_they_behave_like_layers(config, shape, device):
    behaves_like_a_layer(config, drawn(shape), device, training=isinstance(config, BatchNormConfig))


@pytest.mark.parametrize("config,shape", [
    (LayerNormConfig(3), (2, 3)), (RmsNormConfig(3), (2, 3)), (BatchNormConfig(2), (4, 2)), (GroupNormConfig(2, 4), (2, 4, 2)),
    (InstanceNormConfig(2, affine=True), (2, 2, 3)),
])  # fmt: skip
def test_gradients(config, shape):
    layer = varied(config.init(Autodiff(rt.Cpu(float_dtype=rt.float64)))).to_dtype(rt.float64)
    check_gradients(lambda m, x: rt.tanh(m(x)), layer, rt.tensor(drawn(shape, dtype=np.float64), device=rt.Cpu()), order=2)


def test_inference_is_a_fixed_map_with_gradients(device):
    layer = BatchNormConfig(2).init(Autodiff(device)).valid().train().valid()
    x = rt.tensor([[3.0, 5.0]], device=device).require_grad()
    y = layer(x)
    np.testing.assert_allclose(y.numpy(), np.array([[3.0, 5.0]]) / np.sqrt(1 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(x.grad(y.sum().backward()).numpy(), [[1 / np.sqrt(1 + 1e-5)] * 2], rtol=1e-6)


@pytest.mark.parametrize("config,field", [
    (LayerNormConfig(0), "normalized_shape"), (LayerNormConfig(()), "normalized_shape"),
    (LayerNormConfig((3, 1.0)), "normalized_shape"),
    (LayerNormConfig(3, eps=-1e-5), "eps"), (LayerNormConfig(3, eps=float("nan")), "eps"), (RmsNormConfig(3, eps=0.0), "eps"),
    (RmsNormConfig(-3), "normalized_shape"), (BatchNormConfig(0), "num_features"), (BatchNormConfig(3, momentum=1.5), "momentum"),
    (BatchNormConfig(3, momentum=None), "momentum"), (BatchNormConfig(3, eps="1"), "eps"), (GroupNormConfig(4, 6), "num_groups"),
    (GroupNormConfig(0, 6), "num_groups"), (GroupNormConfig(1, 0), "num_channels"), (InstanceNormConfig(True), "num_features"),
    (InstanceNormConfig(2, eps=-1.0), "eps"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init(rt.Cpu())


@pytest.mark.parametrize("config", [
    LayerNormConfig(4), RmsNormConfig(4), BatchNormConfig(4), GroupNormConfig(2, 4), InstanceNormConfig(4),
])  # fmt: skip
def test_a_wrong_input_is_refused_and_changes_nothing(config, device):
    layer = config.init(Autodiff(device))
    before = [b.tolist() for _, b in layer.named_buffers()]
    with pytest.raises(ValueError, match=r"3|running"):
        layer(rt.ones((2, 3), device=device))
    assert [b.tolist() for _, b in layer.named_buffers()] == before
