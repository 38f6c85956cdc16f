"""Embedding: look-ups, padding rows, the tied output head."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff, grad
from ruda_nn import Constant, EmbeddingConfig, Linear, LinearConfig, Module
from ruda_optim import AdamWConfig, GradientsParams, SgdConfig

from ._layers import drawn, host


def table(n, d, device, **options):
    return EmbeddingConfig(n, d, **options).init(Autodiff(device))


def test_rows_are_looked_up_and_gradients_added_up(device):
    layer = table(5, 3, device)
    ids = rt.tensor([[1, 1, 4], [0, 1, -1]], device=device)
    y = layer(ids)
    assert y.shape == (2, 3, 3) and np.array_equal(host(y), host(layer.weight)[ids.numpy()])
    g = layer.weight.grad((y * rt.tensor(drawn((2, 3, 3)), device=device)).sum().backward())
    expected = np.zeros((5, 3))
    np.add.at(expected, ids.numpy(), drawn((2, 3, 3)).astype(np.float64))
    np.testing.assert_allclose(host(g), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [rt.int64, rt.int32, rt.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 0, 3)])
def test_ids_of_any_shape_and_integer_dtype(shape, dtype, device):
    layer = table(4, 2, device, padding_idx=1)
    y = layer(rt.ones(shape, dtype=dtype, device=device))
    assert y.shape == (*shape, 2) and not host(layer.weight.grad(y.sum().backward())).any()


def test_the_default_is_standard_normal_with_the_padding_row_zero(device):
    rt.random.seed(0)
    weight = table(1000, 20, device, padding_idx=-2).weight.numpy()
    assert weight[998].tolist() == [0.0] * 20 and np.count_nonzero(weight) == 999 * 20
    assert abs(weight.mean()) < 5 / np.sqrt(20000) and weight.std() == pytest.approx(1.0, rel=0.03)
    ones = EmbeddingConfig(3, 2, padding_idx=0, initializer=Constant(1.0)).init(device).weight
    assert ones.tolist() == [[0, 0], [1, 1], [1, 1]]


@pytest.mark.parametrize("padding_idx", [None, 0, 3, -1])
def test_it_agrees_with_torch(padding_idx):
    torch = pytest.importorskip("torch")
    layer = table(5, 3, rt.Cpu(), padding_idx=padding_idx)
    theirs = torch.nn.Embedding(5, 3, padding_idx=padding_idx)
    theirs.load_state_dict({"weight": torch.tensor(layer.weight.numpy())})
    ids, weight = np.random.default_rng(0).integers(0, 5, (4, 6)), drawn((4, 6, 3))
    y, other = layer(rt.tensor(ids)), theirs(torch.tensor(ids))
    assert np.array_equal(host(y), other.detach().double().numpy())
    (other * torch.tensor(weight)).sum().backward()
    g = layer.weight.grad((y * rt.tensor(weight)).sum().backward())
    np.testing.assert_allclose(host(g), theirs.weight.grad.numpy(), rtol=1e-6, atol=1e-6)


def test_a_padding_row_that_met_an_infinite_gradient_still_has_none(device):
    layer = table(3, 2, device, padding_idx=0).map(lambda p: p.like(rt.ones((3, 2), device=device)._data))
    scale = rt.tensor([[np.inf], [1.0]], device=device)
    g = layer.weight.grad((layer(rt.tensor([0, 1], device=device)) * scale).sum().backward())
    assert g.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16, rt.float64])
def test_other_dtypes(dtype, device):
    layer = table(4, 3, device, padding_idx=1).to_dtype(dtype)
    y = layer(rt.tensor([0, 1, 1, 3], device=device))
    g = layer.weight.grad(y.sum().backward())
    assert y.dtype == dtype == g.dtype and host(g).tolist() == [[1] * 3, [0] * 3, [0] * 3, [1] * 3]


def test_second_derivatives_and_transforms_leave_the_padding_row_alone(device):
    layer, ids = table(3, 2, device, padding_idx=2), rt.tensor([0, 2, 2], device=device)
    g = grad(lambda m: grad(lambda m: m(ids).square().sum())(m).weight.square().sum())(layer)
    np.testing.assert_allclose(host(g.weight), host(layer.weight) * [[8], [0], [0]], rtol=1e-6)


def test_weight_decay_moves_a_padding_row_as_documented(device):
    """The gradient is 0, so plain steps keep the row; decoupled decay shrinks it, as it does any other."""
    for config, kept in ((SgdConfig(), True), (AdamWConfig(weight_decay=0.5), False)):
        layer = EmbeddingConfig(3, 2, padding_idx=0).init(Autodiff(device))
        layer = layer.map(lambda p: p.like(rt.ones((3, 2), device=device)._data))
        loss = layer(rt.tensor([0, 1], device=device)).sum()
        layer = config.init().step(0.1, layer, GradientsParams.from_grads(loss.backward(), layer))
        np.testing.assert_allclose(host(layer.weight)[0], [1.0, 1.0] if kept else [0.95, 0.95], rtol=1e-6)


def test_a_tied_head_is_one_parameter_and_a_record_keeps_it(device):
    class Tied(Module):
        table: Module
        inner: Linear

        def forward(self, ids):
            return self.table.attend(self.inner(self.table(ids)))

    model = Tied(table(4, 3, device), LinearConfig(3, 3).init(Autodiff(device)))
    y = model(rt.tensor([1, 2], device=device))
    w = model.inner.weight.numpy(), model.inner.bias.numpy(), model.table.weight.numpy()
    np.testing.assert_allclose(host(y), (w[2][[1, 2]] @ w[0] + w[1]) @ w[2].T, rtol=1e-5, atol=1e-6)
    assert model.num_params() == 12 + 12 and len(model.params()) == 3
    out = model.load_record(model.to_record())
    assert np.array_equal(host(out(rt.tensor([1, 2], device=device))), host(y))


@pytest.mark.parametrize("config,field", [
    (EmbeddingConfig(0, 2), "num_embeddings"), (EmbeddingConfig(2, 1.5), "embedding_dim"),
    (EmbeddingConfig(2, 2, padding_idx=2), "padding_idx"),
    (EmbeddingConfig(2, 2, padding_idx=-3), "padding_idx"), (EmbeddingConfig(2, 2, padding_idx=True), "padding_idx"),
    (EmbeddingConfig(2, 2, initializer=0.0), "initializer"),
])  # fmt: skip
def test_a_wrong_setting_is_refused_by_name(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init(rt.Cpu())


def test_wrong_ids_are_refused(device):
    layer = table(3, 2, device)
    with pytest.raises(IndexError, match="3"):
        layer(rt.tensor([3], device=device))
    for wrong in (rt.tensor([1.0], device=device), rt.tensor([True], device=device)):
        with pytest.raises(TypeError, match="must be integers"):
            layer(wrong)
