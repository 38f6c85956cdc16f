"""What a draw is: each distribution against its definition in plain integers, its edges, and its errors."""
from __future__ import annotations

import math

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.random import draws

FLOATS = [rt.float16, rt.bfloat16, rt.float32, rt.float64]
N = 203


def words(n, seed=7, offset=0):
    return [int(w) for w in rt.random.bits_at((n,), seed, offset, rt.Cpu()).numpy()]


def pairs(n, seed=7):
    w = words(2 * n, seed)
    return [w[2 * i] | w[2 * i + 1] << 32 for i in range(n)]


def test_same_seed_same_bits_on_every_device(device):
    cpu = rt.random.normal((1000,), seed=7, device=rt.Cpu()).numpy()
    here, again = (rt.random.normal((1000,), seed=7, device=device).numpy() for _ in range(2))
    assert here.tobytes() == again.tobytes()
    np.testing.assert_allclose(here, cpu, rtol=3e-7, atol=0)
    assert not np.array_equal(here, rt.random.normal((1000,), seed=8, device=device).numpy())
    assert abs(cpu.mean()) < 0.15 and abs(cpu.std() - 1) < 0.1


def test_uniform_float32_is_24_bits_of_each_word(device):
    x = rt.random.uniform((N,), seed=7, device=device)
    assert x.dtype == rt.float32 and x.device == device
    assert x.tolist() == [(w >> 8) / 2**24 for w in words(N)]


def test_uniform_float64_is_53_bits_of_each_pair(device):
    x = rt.random.uniform((N,), dtype=rt.float64, seed=7, device=device)
    assert x.tolist() == [(p >> 11) / 2**53 for p in pairs(N)]


def test_uniform_range_is_two_rounded_float32_operations(device):
    low, high = np.float32(-0.7), np.float32(2.3)
    unit = np.array([(w >> 8) / 2**24 for w in words(N)], np.float32)
    wanted = np.minimum(unit * (high - low) + low, np.nextafter(high, low))
    assert rt.random.uniform((N,), low=-0.7, high=2.3, seed=7, device=device).numpy().tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("low, high", [(0, 1), (1, 2), (-1, 0), (0.1, 0.3), (100, 101), (-3, 1e4)])
def test_uniform_stays_in_its_half_open_range(device, monkeypatch, dtype, low, high):
    """Words all zero and all one give the ends: `low` itself, and never `high`."""
    ends = np.array([0, 0, 2**32 - 1, 2**32 - 1, 0xFFFFFF00, 2**32 - 1, 0x80000000, 0x80000000], np.uint32)
    monkeypatch.setattr(draws.philox, "blocks", lambda xp, count, seed, offset: [(0, xp.asarray(ends))])
    x = rt.random.uniform((4,), low=low, high=high, dtype=dtype, seed=0, device=device)
    first, second = x.numpy()[0], x.numpy()[2 if dtype != rt.float64 else 1]
    assert x.dtype == dtype and first == dtype.type(low)
    after = np.nextafter(second, dtype.type(np.inf))
    assert second < dtype.type(high) and after >= dtype.type(high) - (high - low) / 2**24


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_half_uniform_is_the_float32_one_rounded_once(device, dtype):
    single = rt.random.uniform((N,), seed=7, device=rt.Cpu()).numpy()
    half = rt.random.uniform((N,), dtype=dtype, seed=7, device=device).numpy()
    assert half.tobytes() == np.minimum(single, np.float32(draws.below(1.0, dtype))).astype(dtype).tobytes()


def box_muller(a, b, bits):
    radius = math.sqrt(-2 * math.log((a + 0.5) / 2**bits))
    return radius * math.cos(2 * math.pi * b / 2**bits), radius * math.sin(2 * math.pi * b / 2**bits)


def test_normal_is_box_muller_of_neighbouring_words(device):
    w = words(N + 1)
    wanted = [z for i in range(0, N, 2) for z in box_muller(w[i], w[i + 1], 32)][:N]
    x = rt.random.normal((N,), seed=7, device=device).numpy()
    np.testing.assert_allclose(x, np.array(wanted, np.float32), rtol=1.2e-7)
    shifted = rt.random.normal((N,), mean=3, std=0.5, seed=7, device=device).numpy()
    np.testing.assert_allclose(shifted, 3 + 0.5 * np.array(wanted), rtol=6e-8)


def test_normal_float64_is_box_muller_of_neighbouring_pairs(device):
    p = [v >> 11 for v in pairs(N + 1)]
    wanted = [z for i in range(0, N, 2) for z in box_muller(p[i], p[i + 1], 53)][:N]
    x = rt.random.normal((N,), dtype=rt.float64, seed=7, device=device).numpy()
    np.testing.assert_allclose(x, wanted, rtol=0, atol=1e-14)  # near zero a cosine of a rounded angle has that error


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_half_normal_is_the_float32_one_rounded_once(device, dtype):
    single = rt.random.normal((N,), std=0.02, seed=7, device=device).numpy()
    half = rt.random.normal((N,), std=0.02, dtype=dtype, seed=7, device=device).numpy()
    assert half.dtype == dtype and half.tobytes() == single.astype(dtype).tobytes()


@pytest.mark.parametrize("dtype, bits", [(rt.float32, 32), (rt.float64, 53)])
def test_normal_is_finite_at_the_extreme_words(device, monkeypatch, dtype, bits):
    ends = np.array([0, 0, 0, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1, 2**32 - 1], np.uint32)
    monkeypatch.setattr(draws.philox, "blocks", lambda xp, count, seed, offset: [(0, xp.asarray(ends))])
    x = rt.random.normal((4,), dtype=dtype, seed=0, device=device).numpy()
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x[0], math.sqrt(2 * (bits + 1) * math.log(2)), rtol=1e-7)


def test_normal_with_std_zero_is_the_mean(device):
    assert rt.random.normal((3,), mean=2, std=0, device=device).tolist() == [2.0] * 3


@pytest.mark.parametrize("p", [0.0, 1e-12, 2.0**-32, 0.1, 0.5, 0.9, 1.0])
def test_bernoulli_compares_each_word_with_one_threshold(device, p):
    x = rt.random.bernoulli((N,), p=p, seed=7, device=device)
    assert x.dtype == rt.bool and x.tolist() == [w < round(p * 2**32) for w in words(N)]


def test_bernoulli_is_certain_at_zero_and_one(device, monkeypatch):
    ends = np.array([0, 2**32 - 1, 0, 2**32 - 1], np.uint32)
    monkeypatch.setattr(draws.philox, "blocks", lambda xp, count, seed, offset: [(0, xp.asarray(ends))])
    assert rt.random.bernoulli((4,), p=1, seed=0, device=device).tolist() == [True] * 4
    assert rt.random.bernoulli((4,), p=0, seed=0, device=device).tolist() == [False] * 4


def test_bernoulli_rounds_p_to_the_nearest_word(device, monkeypatch):
    exact = 1288490188.8  # 0.3 * 2**32
    ends = np.array([1288490187, 1288490188, 1288490189, 1288490190], np.uint32)
    monkeypatch.setattr(draws.philox, "blocks", lambda xp, count, seed, offset: [(0, xp.asarray(ends))])
    assert rt.random.bernoulli((4,), p=0.3, seed=0, device=device).tolist() == [w < round(exact) for w in ends.tolist()]


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (0, 10, rt.int32),
        (-3, 4, rt.int8),
        (-128, 128, rt.int8),
        (0, 256, rt.uint8),
        (5, 6, rt.int64),
        (-(2**31), 2**31, rt.int32),
        (0, 2**32, rt.uint32),
        (0, 2**32 - 1, rt.int64),
    ],
)
def test_integers_scale_a_pair(device, low, high, dtype):
    x = rt.random.integers((N,), low=low, high=high, dtype=dtype, seed=7, device=device)
    assert x.dtype == dtype and x.tolist() == [low + (p * (high - low) >> 64) for p in pairs(N)]


@pytest.mark.parametrize(
    "low, high, dtype",
    [
        (0, 2**32 + 1, rt.int64),
        (-(2**63), 2**63, rt.int64),
        (0, 2**64, rt.uint64),
        (1, 2**64 - 1, rt.uint64),
        (-(2**62), 2**63 - 5, rt.int64),
    ],
)
def test_integers_of_a_wide_range_scale_two_pairs(device, low, high, dtype):
    p = pairs(2 * N)
    wide = [p[2 * i] | p[2 * i + 1] << 64 for i in range(N)]
    x = rt.random.integers((N,), low=low, high=high, dtype=dtype, seed=7, device=device)
    assert x.dtype == dtype and x.tolist() == [low + (v * (high - low) >> 128) for v in wide]


@pytest.mark.parametrize("span", [1, 2**32 - 1, 2**32, 2**32 + 1, 2**63 + 1, 0xFFFFFFFF00000001, 2**64 - 1, 2**64])
def test_integers_carry_at_extreme_words(device, monkeypatch, span):
    """Products of all-one halves, where a lost carry would show."""
    f = 2**32 - 1
    rows = [[f, f, f, f], [0, 0, 0, 0], [f, 0, f, 0], [0, f, 0, f]]
    rows += [[1, f, f, f], [f, f, 1, 0], [f, f, 0, 1], [0, 1, f, f]]
    ends = np.array(rows, np.uint32).ravel()
    monkeypatch.setattr(draws.philox, "blocks", lambda xp, count, seed, offset: [(0, xp.asarray(ends))])
    n = draws.span_words(span)
    count = ends.size // n
    values = [sum(int(w) << 32 * k for k, w in enumerate(ends[i * n : i * n + n])) for i in range(count)]
    x = rt.random.integers((count,), high=span, dtype=rt.uint64, seed=0, device=device)
    assert x.tolist() == [v * span >> 32 * n for v in values]


def test_integers_default_to_the_devices_int_dtype(device):
    assert rt.random.integers((2,), high=3, device=device).dtype == rt.int32


def test_permutation_sorts_64_bit_keys(device):
    p = pairs(N)
    x = rt.random.permutation(N, seed=7, device=device)
    assert x.dtype == rt.int64 and x.tolist() == sorted(range(N), key=lambda i: (p[i], i))
    assert [rt.random.permutation(n, device=device).tolist() for n in (0, 1)] == [[], [0]]


def test_permutation_keeps_equal_keys_in_order(device, monkeypatch):
    n = 5000
    keys = np.arange(n, dtype=np.uint64)[::-1] // 100
    monkeypatch.setattr(draws, "draw", lambda xp, *rest: xp.asarray(keys))
    assert rt.random.permutation(n, seed=0, device=device).tolist() == sorted(range(n), key=lambda i: (keys[i], i))


def test_permutation_of_rows(device):
    x = rt.tensor(np.arange(12.0).reshape(6, 2), device=device)
    order = rt.random.permutation(6, seed=7, device=device).numpy()
    assert np.array_equal(rt.random.permutation(x, seed=7).numpy(), x.numpy()[order])


@pytest.mark.parametrize("dtype", FLOATS)
def test_shapes_dtypes_and_devices(device, dtype):
    for shape, wanted in [((), ()), (3, (3,)), ([2, 3], (2, 3)), ((0, 4), (0, 4)), ((np.int64(2), 1), (2, 1))]:
        for draw in (rt.random.normal, rt.random.uniform):
            x = draw(shape, dtype=dtype, device=device)
            assert (x.shape, x.dtype, x.device) == (wanted, dtype, device)
            assert type(x._data) is device.array_type
        assert rt.random.bernoulli(shape, device=device).shape == wanted
        assert rt.random.integers(shape, high=2, device=device).shape == wanted


def test_numbers_at_a_position_are_those_of_the_draw(device):
    generator = rt.random.Generator(7)
    generator.reserve(10)
    seed, offset = 7, 3
    assert generator.uniform((5,), device=device).tolist() == rt.random.uniform_at((5,), seed, offset, device).tolist()
    seed, offset = generator.reserve(0)
    mask = generator.bernoulli((4, 5), p=0.9, device=device)
    assert mask.tolist() == rt.random.bernoulli_at((4, 5), 0.9, seed, offset, device).tolist()
    seed, offset = generator.reserve(0)
    x = generator.uniform((5,), dtype=rt.float64, device=device)
    assert x.tolist() == rt.random.uniform_at((5,), seed, offset, device, rt.float64).tolist()


R = rt.random
BAD = [
    (lambda: R.normal((2,), std=-1), ValueError, "std must be >= 0, got -1"),
    (lambda: R.normal((2,), std=float("nan")), ValueError, "std must be finite"),
    (lambda: R.normal((2,), mean=float("inf")), ValueError, "mean must be finite"),
    (lambda: R.normal((2,), std="1"), TypeError, "std must be a real number"),
    (lambda: R.normal((2,), std=1e5, dtype=rt.float16), ValueError, "overflows float16"),
    (lambda: R.normal((2, -1)), ValueError, "size in shape"),
    (lambda: R.normal((2, 1.5)), TypeError, "size in shape"),
    (lambda: R.normal("ab"), TypeError, "size in shape"),
    (lambda: R.normal((2,), dtype=rt.int32), TypeError, "dtype must be a float"),
    (lambda: R.uniform((2,), low=1, high=1), ValueError, "low must be less than high"),
    (lambda: R.uniform((2,), low=2, high=1), ValueError, "low must be less than high"),
    (lambda: R.uniform((2,), low=1, high=1 + 1e-9), ValueError, "less than high in float32"),
    (lambda: R.uniform((2,), low=-3e38, high=3e38), ValueError, "overflows float32"),
    (lambda: R.uniform((2,), low=-1.5e308, high=1.5e308, dtype=rt.float64), ValueError, "overflows float64"),
    (lambda: R.uniform((2,), dtype=rt.bool), TypeError, "dtype must be a float"),
    (lambda: R.bernoulli((2,), p=-0.1), ValueError, "p must be in"),
    (lambda: R.bernoulli((2,), p=1.1), ValueError, "p must be in"),
    (lambda: R.bernoulli((2,), p=float("nan")), ValueError, "p must be finite"),
    (lambda: R.integers((2,), low=3, high=3), ValueError, "low must be less than high"),
    (lambda: R.integers((2,), high=300, dtype=rt.int8), ValueError, "do not fit int8"),
    (lambda: R.integers((2,), high=129, dtype=rt.int8), ValueError, "do not fit int8"),
    (lambda: R.integers((2,), low=-129, high=0, dtype=rt.int8), ValueError, "do not fit int8"),
    (lambda: R.integers((2,), low=-1, high=3, dtype=rt.uint8), ValueError, "do not fit uint8"),
    (lambda: R.integers((2,), high=2**40), ValueError, "do not fit int32"),
    (lambda: R.integers((2,), high=2.5), TypeError, "high must be an integer"),
    (lambda: R.integers((2,), high=3, dtype=rt.float32), TypeError, "dtype must be an integer"),
    (lambda: R.permutation(-1), ValueError, "permutation: n"),
    (lambda: R.permutation(2.0), TypeError, "permutation: n"),
    (lambda: R.permutation(rt.tensor(3.0)), ValueError, "0-d tensor"),
    (lambda: R.permutation(rt.tensor([3.0], device=rt.Cpu()), device=rt.Cuda(0)), ValueError, "the tensor is on"),
    (lambda: R.seed(-1), ValueError, "seed must be in"),
    (lambda: R.seed(2**64), ValueError, r"seed must be in \[0, 2\*\*64\)"),
    (lambda: R.seed(1.0), TypeError, "seed must be an integer"),
    (lambda: R.seed(True), TypeError, "seed must be an integer"),
    (lambda: R.seed(None), TypeError, "seed must be an integer"),
    (lambda: R.normal((2,), seed="7"), TypeError, "seed must be an integer"),
    (lambda: R.normal((2,), seed=7, key=R.key(7)), ValueError, "not both"),
    (lambda: R.normal((2,), key=7), TypeError, "key must come from"),
    (lambda: R.fold_in(7, 1), TypeError, "key must come from"),
    (lambda: R.fold_in(R.key(7), -1), ValueError, "fold_in: data"),
    (lambda: R.split(R.key(7), 1.5), TypeError, "split: n"),
    (lambda: R.reserve(-1), ValueError, "reserve: count"),
    (lambda: R.uniform_at((2,), 7, -1), ValueError, "offset must be in"),
    (lambda: R.set_state({"seed": 1}), ValueError, "give what get_state"),
    (lambda: R.set_state(R.get_state() | {"algorithm": "mt19937"}), ValueError, "give what get_state"),
    (lambda: R.set_state(R.get_state() | {"offset": -1}), ValueError, "set_state: offset"),
]


@pytest.mark.parametrize("call, error, message", BAD)
def test_bad_input_says_what_is_wrong_and_moves_nothing(call, error, message):
    before = rt.random.get_state()
    with pytest.raises(error, match=message):
        call()
    assert rt.random.get_state() == before
