"""The numerical derivatives are as near as they say, and kinks, noise and edges are told apart."""
from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from ruda_autodiff.testing.differences import Curve, Estimate, derivatives, find_kinks, measure_noise, second_opinion

FUNCTIONS = {
    "sin": (np.sin, np.cos),
    "exp": (np.exp, np.exp),
    "log": (lambda x: np.log(np.abs(x)), lambda x: 1 / x),
    "sqrt": (lambda x: np.sqrt(np.abs(x)), lambda x: 0.5 * np.sign(x) / np.sqrt(np.abs(x))),
    "inverse": (lambda x: 1 / x, lambda x: -1 / x**2),
    "seventh power": (lambda x: x**7, lambda x: 7 * x**6),
    "linear": (lambda x: 3 * x, lambda x: np.full_like(x, 3.0)),
    "constant": (lambda x: np.full_like(x, 1e9), np.zeros_like),
    "fast wave": (lambda x: np.sin(1000 * x), lambda x: 1000 * np.cos(1000 * x)),
    "narrow bump": (lambda x: np.exp(-1e4 * x * x), lambda x: -2e4 * x * np.exp(-1e4 * x * x)),
    "steep step": (lambda x: np.tanh(100 * x), lambda x: 100 / np.cosh(100 * x) ** 2),
    "erf": (special.erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: (x > 0) * 1.0),
    "cancellation": (lambda x: (x + 1e8) - 1e8, np.ones_like),
    "large values": (lambda x: 1e6 * x * x + 1e6, lambda x: 2e6 * x),
}


def points(seed):
    rng = np.random.default_rng(seed)
    return rng.choice([-1.0, 1.0], 60) * (np.abs(rng.standard_normal(60)) + 10.0 ** rng.uniform(-6, 0, 60))


def at(f, x):
    x = np.atleast_1d(np.asarray(x, float))
    with np.errstate(all="ignore"):
        return Curve(f, x, f(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_stays_below_four_estimates(name):
    f, df = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        for x in points(len(name)):
            curve = at(f, x)
            if name == "cancellation":
                curve.noise = np.array([1.5e-8])
            found = derivatives(curve, np.ones((1, 1)))
            assert abs(found.value[0, 0] - df(np.array([x]))[0]) <= 4.0 * found.error[0, 0]


@pytest.mark.parametrize("name", ["sin", "exp", "log", "sqrt", "inverse", "linear", "erf", "relu"])
def test_ordinary_functions_are_resolved_to_nine_digits_with_few_evaluations(name):
    f, df = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        curves = [at(f, x) for x in points(1)]
        found = [derivatives(c, np.ones((1, 1))).error[0, 0] for c in curves]
    size = np.array([abs(df(c.x)[0]) for c in curves])
    assert (np.array(found) <= 1e-8 * np.maximum(size, 1e-3)).all()
    assert np.mean([c.evaluations for c in curves]) < 14


def test_many_directions_and_components_at_once():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((4, 3))
    curve = at(lambda x: np.sin(a @ x), rng.standard_normal(3))
    found = derivatives(curve, np.eye(3))
    assert np.allclose(found.value.T, np.cos(a @ curve.x)[:, None] * a, atol=1e-10)
    assert found.value.shape == found.error.shape == found.step.shape == (3, 4)


def test_chance_agreement_of_two_entries_is_no_convergence():
    """The differences of a wave at steps that are multiples of half its period are all zero, and so agree."""
    wave = lambda x: np.sin(32 * np.pi * x)
    curve = at(wave, 0.0)
    found = derivatives(curve, np.ones((1, 1)))
    again = second_opinion(curve, np.ones((1, 1)), found)
    assert abs(again.value[0, 0] - 32 * np.pi) <= 4.0 * again.error[0, 0]


def test_what_is_not_defined_on_one_side_has_an_infinite_error():
    with np.errstate(all="ignore"):
        found = derivatives(at(np.sqrt, 0.0), np.ones((1, 1)))
    assert np.isinf(found.error).all()


def test_an_exception_beside_the_point_is_outside_of_the_domain():
    def picky(x):
        if (x < 0.999).any():
            raise ValueError("below 0.999")
        return x * x

    curve = at(picky, 1.0)
    found = derivatives(curve, np.ones((1, 1)))
    assert abs(found.value[0, 0] - 2.0) <= 4 * found.error[0, 0] < 1e-8
    assert "0.999" in str(curve.refused)


def noise_of(f, x):
    curve = at(f, x)
    v = np.ones(curve.x.size)
    return measure_noise(curve, v, derivatives(curve, v[None]))


@pytest.mark.parametrize("x", [0.3, 1.7, -2.9])
def test_noise_of_narrow_arithmetic_is_measured(x):
    assert noise_of(np.sin, x).max() < 1e-15
    single = noise_of(lambda x: np.sin(x.astype(np.float32)).astype(np.float64), [x, x + 0.1, x + 0.2]).max()
    assert 1e-9 < single < 1e-5
    half = noise_of(lambda x: np.sin(x.astype(np.float16)).astype(np.float64), x)
    assert half.max() > 1e-8
    assert noise_of(lambda x: (x + 1e7) - 1e7, x).max() > 1e-10


@pytest.mark.parametrize("f", [np.abs, lambda x: np.maximum(x, 0), lambda x: np.heaviside(x, 0.5)])
def test_a_kink_or_jump_at_the_point_is_no_noise(f):
    assert noise_of(f, 0.0).max() < 1e-20


@pytest.mark.parametrize("distance", [0.0, 1e-13, 1e-9, -1e-6])
def test_kinks_are_found_with_their_jump(distance):
    kinks = find_kinks(at(np.abs, distance), np.ones(1))
    assert kinks.found[0] and not kinks.sudden[0] and abs(kinks.jump[0] - 2.0) < 0.7


def test_jumps_are_told_from_kinks():
    kinks = find_kinks(at(np.floor, 3.0), np.ones(1))
    assert kinks.found[0] and kinks.sudden[0]


@pytest.mark.parametrize("name", ["sin", "exp", "inverse", "seventh power", "linear", "steep step", "erf", "constant"])
def test_smooth_functions_have_no_kinks(name):
    with np.errstate(all="ignore"):
        for x in points(2):
            assert not find_kinks(at(FUNCTIONS[name][0], x), np.full(1, max(abs(x), 1e-3))).found.any()


def test_an_estimate_is_plain_data():
    value = np.ones((1, 1))
    assert Estimate(value, value, value).step is value
