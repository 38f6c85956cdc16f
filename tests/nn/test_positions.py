"""Rotary and sinusoidal positions: their equations, what they are for, and their limits."""
from __future__ import annotations

import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_autodiff.testing import check_gradients
from ruda_nn.positions import RotaryConfig, SinusoidalPositionsConfig


def rotated(x, theta, dims, offset=0):
    """As a product of complex numbers, in float64."""
    t = np.arange(offset, offset + x.shape[-2])[:, None]
    turn = np.exp(1j * t / theta ** (np.arange(0, dims, 2) / dims))
    z = (x[..., : dims // 2] + 1j * x[..., dims // 2 : dims]) * turn
    return np.concatenate([z.real, z.imag, x[..., dims:]], axis=-1)


@pytest.mark.parametrize("shape", [(5, 8), (3, 5, 8), (2, 3, 5, 8), (2, 1, 8), (2, 0, 8), (0, 5, 8)])
@pytest.mark.parametrize("dims", [None, 2, 6])
@pytest.mark.parametrize("offset", [0, 3, 63, 100])
def test_rotary_turns_pairs_by_their_angles(shape, dims, offset, rng, device):
    x = rng.standard_normal(shape).astype(np.float32)
    y = RotaryConfig(8, theta=100.0, dims=dims).init(device)(rt.tensor(x, device=device), offset)
    np.testing.assert_allclose(y.numpy(), rotated(x.astype(float), 100.0, dims or 8, offset), rtol=1e-5, atol=1e-6)
    assert y.dtype == rt.float32


def test_rotary_worked_by_hand():
    """theta = 1e4 and 4 features: angles 1 and 1/100 at position 1."""
    x = rt.tensor([[9.0, 9.0, 9.0, 9.0], [1.0, 2.0, 3.0, 4.0]], dtype=rt.float64, device=rt.Cpu())
    y = RotaryConfig(4).init()(x).numpy()
    np.testing.assert_array_equal(y[0], 9.0)
    want = [-1.9841106489, 1.9599006658, 2.4623779025, 4.0197996683]
    np.testing.assert_allclose(y[1], want, atol=1e-9)


def test_products_depend_on_the_difference_of_positions_alone(rng):
    rotary = RotaryConfig(16).init()
    q, k = (rt.tensor(rng.standard_normal((1, 16)), device=rt.Cpu()) for _ in range(2))
    at = lambda i, j: float((rotary(q, i) * rotary(k, j)).sum())
    assert at(5, 2) == pytest.approx(at(1003, 1000), rel=1e-9) and at(5, 2) != pytest.approx(at(5, 3), rel=1e-3)


def test_far_positions_keep_their_precision():
    """Angles are made in float64: in float32 the one of position 100003 would be wrong by 4e-3."""
    x = rt.ones((1, 64), device=rt.Cpu())
    y = RotaryConfig(64).init()(x, 100003).numpy()
    np.testing.assert_allclose(y, rotated(np.ones((1, 64)), 1e4, 64, 100003), rtol=0, atol=3e-7)


@pytest.mark.parametrize("dims", [None, 4])
def test_rotary_gradients(dims, rng):
    rotary = RotaryConfig(6, dims=dims).init()
    check_gradients(lambda x: rotary(x, 3) * rotary(x), rt.tensor(rng.standard_normal((2, 3, 6)), device=rt.Cpu()), order=2)


@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16])
def test_half_types_are_rounded_once(dtype, rng, device):
    x = rt.tensor(rng.standard_normal((2, 5, 8)), dtype=dtype, device=device)
    for module in (RotaryConfig(8).init(), RotaryConfig(8, dims=4).init(), SinusoidalPositionsConfig(8).init()):
        y, wide = module(x, 2), module(x.astype(rt.float32), 2)
        assert y.dtype == dtype and y.numpy().tobytes() == wide.astype(dtype).numpy().tobytes()
        g = module(x.require_grad(), 2).sum().backward()
        assert len(g) == 1


@pytest.mark.parametrize("d", [1, 6, 7])
@pytest.mark.parametrize("offset", [0, 4])
def test_sinusoidal_positions_are_their_equation(d, offset, rng, device):
    x = rng.standard_normal((2, 5, d)).astype(np.float32)
    table = np.zeros((9, d))
    for t in range(9):
        for j in range(d):
            a = t / 10000 ** ((j - j % 2) / d)
            table[t, j] = np.cos(a) if j % 2 else np.sin(a)
    y = SinusoidalPositionsConfig(d).init()(rt.tensor(x, device=device), offset)
    np.testing.assert_allclose(y.numpy(), x + table[offset : offset + 5], rtol=1e-6, atol=1e-6)
    assert y.dtype == rt.float32


def test_sinusoidal_positions_pass_gradients_and_end_at_their_length():
    positions = SinusoidalPositionsConfig(4, max_length=6).init(Autodiff(rt.Cpu()))
    x = rt.zeros((1, 6, 4), device=rt.Cpu()).require_grad()
    assert positions(x).sum().backward()[x].tolist() == np.ones((1, 6, 4)).tolist()
    assert positions(x[:, :0], 6).shape == (1, 0, 4)
    with pytest.raises(ValueError, match=r"positions up to 7 .* max_length is 6; SinusoidalPositionsConfig\(4, max_length=7\)"):
        positions(x, 1)
    with pytest.raises(ValueError, match=r"x must be \[\.\.\., T, 4\], got \(6, 5\)"):
        positions(rt.zeros((6, 5), device=rt.Cpu()))


def test_positions_have_no_parameters_and_can_be_copied():
    x = rt.ones((3, 4), device=rt.Cpu())
    for module in (RotaryConfig(4).init(), SinusoidalPositionsConfig(4).init()):
        assert module.params() == []
        for same in (pickle.loads(pickle.dumps(module)), module.to_dtype(rt.bfloat16), module.load_record(module.to_record())):
            assert same(x).numpy().tobytes() == module(x).numpy().tobytes()


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (RotaryConfig(1), "d_head"),
        (RotaryConfig(5), "d_head"),
        (RotaryConfig(6, dims=3), "dims"),
        (RotaryConfig(6, dims=8), "dims"),
        (RotaryConfig(6, theta=0.0), "theta"),
        (SinusoidalPositionsConfig(0), "d_model"),
        (SinusoidalPositionsConfig(4, max_length=0), "max_length"),
        (SinusoidalPositionsConfig(4, theta=float("inf")), "theta"),
    ],
)
def test_a_wrong_setting_is_refused(config, field):
    with pytest.raises(ValueError, match=rf"{field}=.* is not allowed; give "):
        config.init()


def test_wrong_arguments_say_what_is_needed():
    rotary = RotaryConfig(8).init()
    with pytest.raises(ValueError, match=r"rotates 8 features of x \[\.\.\., T, D\], got \(3, 4\)"):
        rotary(rt.ones((3, 4), device=rt.Cpu()))
    for offset in (-1, 0.5, True):
        with pytest.raises(ValueError, match="offset must be an integer >= 0"):
            rotary(rt.ones((3, 8), device=rt.Cpu()), offset)
