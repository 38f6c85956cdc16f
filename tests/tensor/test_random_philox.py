"""The generator: published vectors, the documented layout of counters and words, and independence of chunk size."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_tensor import philox

# Random123 1.09, tests/kat_vectors, the philox4x32 lines with 10 rounds: counter, key, output.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WORD = st.integers(0, 2**32 - 1)
SEEDS = [0, 7, 2**32, 0x299F31D0A4093822, 2**64 - 1]


def encrypt(xp, counters, seed):
    """The array body on any list of counters, as a list of four words each."""
    c = np.array(counters, np.uint64).T.reshape(4, -1)
    even, work = xp.asarray(np.ascontiguousarray(c[0::2])), xp.zeros((2, 2, c.shape[1]), np.uint64)
    work[1] = xp.asarray(c[1::2])
    pairs = philox.encrypt(xp, even, work, philox.round_table(xp, seed))
    host = pairs if xp is np else pairs.get()
    return np.ascontiguousarray(host.T).view(np.uint32).tolist()


def expected_words(seed, offset, count):
    """The words of a draw as the module's text lays them out, block by block in plain integers."""
    words = []
    for b in range(-(-count // 4)):
        position = (offset + b) % 2**64
        words += philox.philox4x32((position % 2**32, position >> 32, 0, 0), seed)
    return words[:count]


@pytest.mark.parametrize("counter, key, output", KNOWN)
def test_published_vectors(device, counter, key, output):
    seed = key[0] | key[1] << 32
    assert philox.philox4x32(counter, seed) == output
    assert encrypt(device.xp, [counter], seed) == [list(output)]


@given(counters=st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=5), seed=st.integers(0, 2**64 - 1))
def test_array_body_is_the_definition(counters, seed):
    assert encrypt(np, counters, seed) == [list(philox.philox4x32(c, seed)) for c in counters]


@pytest.mark.parametrize("offset", [0, 1, 2**32 - 2, 2**32, 2**40 + 5, 2**64 - 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_layout_of_a_draw(device, seed, offset):
    for count in (0, 1, 3, 4, 5, 16, 18):
        assert rt.random.bits_at((count,), seed, offset, device).tolist() == expected_words(seed, offset, count)


def test_elements_are_numbered_in_row_major_order(device):
    assert rt.random.bits_at((3, 5), 7, 2, device).numpy().ravel().tolist() == expected_words(7, 2, 15)
    assert rt.random.bits_at((), 7, 2, device).tolist() == expected_words(7, 2, 1)[0]


def every_draw(n, device, seed=7):
    return {
        "bits": rt.random.bits_at((n,), seed, 3, device),
        "bernoulli": rt.random.bernoulli((n,), p=0.3, seed=seed, device=device),
        "integers": rt.random.integers((n,), low=-5, high=1000, seed=seed, device=device),
        "integers wide": rt.random.integers((n,), low=-5, high=2**60, dtype=rt.int64, seed=seed, device=device),
        **{f"uniform {d}": rt.random.uniform((n,), low=-1, high=3, dtype=d, seed=seed, device=device) for d in FLOATS},
        **{f"normal {d}": rt.random.normal((n,), mean=1, std=2, dtype=d, seed=seed, device=device) for d in FLOATS},
    }


FLOATS = [rt.float16, rt.bfloat16, rt.float32, rt.float64]


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_results_do_not_depend_on_chunk_size(device, monkeypatch, chunk):
    whole = every_draw(157, device) | {"permutation": rt.random.permutation(157, seed=7, device=device)}
    monkeypatch.setattr(philox, "HOST_BLOCKS", chunk)
    monkeypatch.setattr(philox, "DEVICE_BLOCKS", chunk)
    cut = every_draw(157, device) | {"permutation": rt.random.permutation(157, seed=7, device=device)}
    for name, x in whole.items():
        assert x.numpy().tobytes() == cut[name].numpy().tobytes(), name


def test_several_chunks_of_the_shipped_size(device):
    n = 4 * philox.HOST_BLOCKS * 2 + 9
    words = rt.random.bits_at((n,), 7, 2**32 - 5, device).numpy()
    for start in (0, 4 * philox.HOST_BLOCKS - 4, 8 * philox.HOST_BLOCKS - 4):
        assert words[start : start + 12].tolist() == expected_words(7, 2**32 - 5 + start // 4, 12)
    assert words[-9:].tolist() == expected_words(7, 2**32 - 5 + 2 * philox.HOST_BLOCKS, 9)


def test_a_shorter_draw_is_a_prefix_of_a_longer_one(device):
    long = every_draw(64, device)
    for n in (1, 2, 3, 7, 33):
        for name, x in every_draw(n, device).items():
            assert x.numpy().tobytes() == long[name].numpy()[:n].tobytes(), (name, n)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 5, 1000, 100_003])
def test_cpu_and_gpu_give_the_same_bits(n):
    here, there = every_draw(n, rt.Cpu()), every_draw(n, rt.Cuda(0))
    for name, x in here.items():
        a, b = x.numpy(), there[name].numpy()
        if not name.startswith("normal"):
            assert a.tobytes() == b.tobytes(), name
        elif x.dtype == rt.float64:
            np.testing.assert_allclose(b, a, rtol=0, atol=4 * np.finfo(np.float64).eps * 16)
        else:
            wide = np.abs(a.astype(np.float64) - b.astype(np.float64))
            assert np.all(wide <= np.spacing(np.abs(a)).astype(np.float64)), name  # the two roundings' last place
    orders = [rt.random.permutation(n, seed=7, device=d).numpy() for d in (rt.Cpu(), rt.Cuda(0))]
    assert orders[0].tobytes() == orders[1].tobytes()
