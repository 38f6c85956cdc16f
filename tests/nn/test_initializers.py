"""Initializers beyond those of the linear layer: constants, Xavier normal, orthogonal matrices, fans."""
from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import KaimingNormal, KaimingUniform, LinearConfig, Ones, Orthogonal, Param, XavierNormal, XavierUniform, Zeros


def test_constants(device):
    assert Ones().fill((2, 3), 1, 1, device).tolist() == [[1.0] * 3] * 2
    assert Zeros().fill((0, 3), 1, 1, device).shape == (0, 3) and Zeros().fill((2,), 1, 1, device).tolist() == [0.0, 0.0]
    half = rt.Cpu(float_dtype=rt.bfloat16)
    assert Ones().fill((2,), 1, 1, half).dtype == rt.bfloat16 == Orthogonal().fill((2, 2), 2, 2, half).dtype


def test_xavier_normal_has_its_moments(device):
    rt.random.seed(0)
    values = XavierNormal(gain=2.0).fill((200, 100), 200, 100, device).numpy()
    std = 2.0 * math.sqrt(2 / 300)
    assert values.std() == pytest.approx(std, rel=0.03) and abs(values.mean()) < 5 * std / math.sqrt(20000)
    assert np.abs(values).max() > 3 * std  # no uniform numbers


@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (3, 7), (2, 3, 4), (12, 2, 2), (1, 1), (5, 1), (1, 5), (0, 3)])
def test_orthogonal_has_orthonormal_rows_or_columns(shape, device):
    q = Orthogonal(gain=3.0).fill(shape, 1, 1, device)
    assert q.shape == shape and q.dtype == rt.float32 and q.device == device
    m = q.numpy().astype(np.float64).reshape(shape[0], math.prod(shape[1:])) / 3.0
    small = m @ m.T if m.shape[0] <= m.shape[1] else m.T @ m
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-6)


def test_orthogonal_is_drawn_from_our_generator_and_favours_no_sign(device):
    def drawn():
        rt.random.seed(5)
        return [Orthogonal().fill((3, 3), 3, 3, device).numpy() for _ in range(200)]

    first, again = drawn(), drawn()
    assert all(np.array_equal(a, b) for a, b in zip(first, again)) and not np.array_equal(first[0], first[1])
    diagonal = np.array([np.diagonal(q) for q in first])
    assert np.abs(diagonal.mean(0)).max() < 5 * math.sqrt(1 / 3 / 200)  # without the sign of R's diagonal it is -0.4
    assert 60 < sum(np.linalg.det(q) > 0 for q in first) < 140


def test_orthogonal_is_for_weights():
    with pytest.raises(ValueError, match=r"\(3,\) has no rows and columns.*bias=False"):
        Orthogonal().fill((3,), 3, 3, rt.Cpu())
    layer = LinearConfig(4, 3, bias=False, initializer=Orthogonal()).init(Autodiff(rt.Cpu()))
    np.testing.assert_allclose(layer.weight.numpy().T @ layer.weight.numpy(), np.eye(3), atol=1e-6)
    biased = LinearConfig(4, 3).init(rt.Cpu())
    changed = dataclasses.replace(biased, weight=Param(Orthogonal().fill((4, 3), 1, 1, rt.Cpu())))
    assert changed.bias is biased.bias


@pytest.mark.parametrize("initializer", [KaimingUniform(), KaimingNormal(), XavierUniform(), XavierNormal()])
def test_a_layer_without_fans_is_refused_by_name(initializer):
    with pytest.raises(ValueError, match=rf"{type(initializer).__name__}: needs the number of inputs and outputs.*Normal"):
        initializer.fill((3,), 0, 0, rt.Cpu())


@pytest.mark.parametrize("gain", [0.0, -1.0, "1", math.inf, None, True])
@pytest.mark.parametrize("kind", [XavierNormal, Orthogonal])
def test_a_wrong_gain_is_refused(kind, gain):
    with pytest.raises(ValueError, match=r"gain=.* is not allowed; give a number > 0"):
        LinearConfig(2, 2, bias=False, initializer=kind(gain=gain)).init(rt.Cpu())
