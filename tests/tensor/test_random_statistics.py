"""Do the numbers look like their distributions? Fixed seeds, so a red test is a change and not bad luck.

The seeds were not chosen. A single p-value must be above 1e-5, as one in 100,000 seeds of a perfect generator is not: a
broken conversion (a lost bit, words used twice, a wrong scale) gives p-values that are zero to many digits. What that
would miss, `test_p_values_are_uniform_over_seeds` sees: over many seeds the p-values themselves must be uniform.
"""
from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

import ruda_tensor as rt

N = 200_000
FLAT = 1e-5
FLOATS = [rt.float32, rt.float64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("seed", [1, 2**63])
def test_uniform(dtype, seed):
    x = rt.random.uniform((N,), low=-2, high=3, dtype=dtype, seed=seed).numpy().astype(np.float64)
    assert stats.kstest(x, stats.uniform(-2, 5).cdf).pvalue > FLAT
    assert abs(x.mean() - 0.5) < 4 * 5 / np.sqrt(12 * N)
    assert stats.chisquare(np.histogram(x, 1000, (-2, 3))[0]).pvalue > FLAT


@pytest.mark.parametrize("dtype", [rt.bfloat16, rt.float16, *FLOATS])
def test_normal(dtype):
    x = rt.random.normal((N,), mean=3, std=2, dtype=dtype, seed=5).numpy().astype(np.float64)
    z = (x - 3) / 2
    assert abs(z.mean()) < 4 / np.sqrt(N) and abs(z.var() - 1) < 4 * np.sqrt(2 / N)
    assert abs(stats.skew(z)) < 4 * np.sqrt(6 / N) and abs(stats.kurtosis(z)) < 4 * np.sqrt(24 / N)
    if dtype in FLOATS:
        assert stats.kstest(z, "norm").pvalue > FLAT
        beyond = np.array([np.mean(np.abs(z) > t) for t in (2, 3, 4)])
        wanted = 2 * stats.norm.sf([2, 3, 4])
        assert np.all(np.abs(beyond - wanted) < 4 * np.sqrt(wanted / N))


@pytest.mark.parametrize("draw, cdf", [("uniform", stats.uniform.cdf), ("normal", stats.norm.cdf)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_p_values_are_uniform_over_seeds(draw, cdf, dtype):
    values = []
    for seed in range(100):
        x = getattr(rt.random, draw)((20_000,), dtype=dtype, seed=seed).numpy().astype(np.float64)
        cells = (cdf(x) * 100).astype(int)
        values += [stats.chisquare(np.bincount(part, minlength=100)).pvalue for part in (cells[0::2], cells[1::2])]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_the_two_normals_of_a_transform_are_independent():
    x = rt.random.normal((N,), dtype=rt.float64, seed=5).numpy().reshape(-1, 2)
    quarters = stats.norm.cdf(x) * 4 // 1
    counts = np.bincount((quarters[:, 0] * 4 + quarters[:, 1]).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > FLAT
    assert abs(np.corrcoef(x.T**2)[0, 1]) < 4 / np.sqrt(N / 2)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_bernoulli(p):
    ones = int(rt.random.bernoulli((N,), p=p, seed=3).numpy().sum())
    assert stats.binomtest(ones, N, p).pvalue > FLAT


@pytest.mark.parametrize("low, high, dtype", [(0, 7, rt.int32), (-500, 500, rt.int16), (0, 256, rt.uint8)])
def test_integers(low, high, dtype):
    x = rt.random.integers((N,), low=low, high=high, dtype=dtype, seed=4).numpy().astype(np.int64)
    assert stats.chisquare(np.bincount(x - low, minlength=high - low)).pvalue > FLAT


@pytest.mark.parametrize("span", [3 * 2**30, 3 * 2**62])
def test_integers_of_a_wide_range_are_flat(span):
    """Thirds of 3/4 of the word's range: taking the remainder instead would fill the first third twice."""
    x = rt.random.integers((N,), high=span, dtype=rt.uint64, seed=4).numpy()
    thirds = (x // np.uint64(span // 3)).astype(np.int64)
    assert stats.chisquare(np.bincount(thirds, minlength=3)).pvalue > FLAT
    assert stats.chisquare(np.bincount((x % np.uint64(64)).astype(np.int64), minlength=64)).pvalue > FLAT


def test_permutations_are_all_equally_likely():
    generator, orders = rt.random.Generator(8), list(itertools.permutations(range(4)))
    counts = dict.fromkeys(orders, 0)
    for _ in range(2400):
        counts[tuple(generator.permutation(4).tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > FLAT


def test_permutation_moves_each_element_anywhere():
    n, m = 1000, 200
    places = np.array([rt.random.permutation(n, seed=s).numpy() for s in range(m)])
    assert np.array_equal(np.sort(places, axis=1), np.tile(np.arange(n), (m, 1)))
    assert stats.chisquare(np.histogram(places[:, :100], 20, (0, n))[0]).pvalue > FLAT
    fixed = (places == np.arange(n)).sum()  # one fixed point on average, with variance one
    assert abs(fixed - m) < 4 * np.sqrt(m)


def test_neighbouring_words_bits_and_seeds_are_uncorrelated():
    words = rt.random.bits_at((N,), 6, 0).numpy()
    unit = words / 2.0**32 - 0.5
    for lag in (1, 2, 3, 4, 8):
        assert abs(np.corrcoef(unit[:-lag], unit[lag:])[0, 1]) < 4 / np.sqrt(N)
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 4), axis=1)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 4.5 * 0.5 / np.sqrt(N))
    other = rt.random.bits_at((N,), 7, 0).numpy() / 2.0**32 - 0.5
    assert abs(np.corrcoef(unit, other)[0, 1]) < 4 / np.sqrt(N)


def test_keys_of_workers_give_uncorrelated_streams():
    keys = [rt.random.fold_in(rt.random.key(0), worker) for worker in range(8)]
    streams = np.array([rt.random.normal((20_000,), dtype=rt.float64, key=k).numpy() for k in keys])
    correlation = np.corrcoef(streams) - np.eye(8)
    assert np.abs(correlation).max() < 4.5 / np.sqrt(20_000)
