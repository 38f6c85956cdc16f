"""The data of the GPT-2 example: bytes and token files, windows that can be drawn again, and files that are something else."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

TOKENS = np.random.default_rng(0).integers(0, 50257, 1000).astype("<u2")


@pytest.fixture
def data(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import _gpt2_data

    return _gpt2_data


def header(count: int, magic: int = 20240520, version: int = 1) -> bytes:
    words = np.zeros(256, "<i4")
    words[:3] = magic, version, count
    return words.tobytes()


@pytest.mark.parametrize("head", [b"", header(1000)], ids=["bare", "with a header"])
def test_tokens_are_read_where_they_lie(data, tmp_path, head):
    path = tmp_path / "tokens.bin"
    path.write_bytes(head + TOKENS.tobytes())
    corpus = data.open_corpus(None, path, None)
    assert isinstance(corpus.train, np.memmap) and isinstance(corpus.validation, np.memmap)
    assert (corpus.kind, corpus.vocabulary, len(corpus.train), len(corpus.validation)) == ("tokens", 50257, 900, 100)
    np.testing.assert_array_equal(np.concatenate([corpus.train, corpus.validation]), TOKENS)
    both = data.open_corpus(None, path, path)
    assert len(both.train) == len(both.validation) == 1000


def test_windows_are_a_function_of_seed_and_number(data):
    corpus = data.Corpus("tokens", np.arange(20_000, dtype=np.uint16))
    first = corpus.windows((2, 3), 8, 0, 5)
    assert first.shape == (2, 3, 9) and first.dtype == np.int32
    np.testing.assert_array_equal(first, first[..., :1] + np.arange(9))  # each is a run of the text
    np.testing.assert_array_equal(first.reshape(6, 9), corpus.windows((6,), 8, 0, 5))
    others = [corpus.windows((2, 3), 8, 0, 6), corpus.windows((2, 3), 8, 1, 5)]
    assert all((first[..., 0] != other[..., 0]).any() for other in others)


def test_all_places_of_the_training_part_and_no_other_are_drawn(data):
    corpus = data.Corpus("bytes", np.arange(20, dtype=np.uint8))  # 18 to train on
    drawn = corpus.windows((500,), 4, 0, 0)
    assert set(drawn[:, 0]) == set(range(14)) and drawn.max() == 17
    assert corpus.validation_windows(64, 1).tolist() == [[18, 19]]


def test_validation_windows_are_spread_and_never_too_many(data):
    corpus = data.Corpus("bytes", np.arange(10, dtype=np.uint8), np.arange(101, dtype=np.uint8))
    assert corpus.validation_windows(64, 10)[:, 0].tolist() == list(range(0, 100, 10))
    assert corpus.validation_windows(2, 10)[:, 0].tolist() == [0, 90]


def test_the_bytes_of_a_file_a_folder_and_python_itself(data, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_bytes(b"second")
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "none").write_bytes(b"")
    file, folder = data.read_bytes(tmp_path / "a.bin"), data.read_bytes(tmp_path)
    assert isinstance(file, np.memmap) and file.tolist() == list(range(256))
    assert folder.tobytes() == bytes(range(256)) + b"second"
    default = data.open_corpus(None, None, None)
    assert default.vocabulary == 256 and len(default.train) > 400_000 and len(default.validation) > 40_000


def test_text_and_ids(data):
    corpus = data.Corpus("bytes", np.zeros(20, np.uint8))
    assert corpus.decode(corpus.encode("größer\n")) == "größer\n"
    assert corpus.decode(np.array([0x41, 0xFF, 0x42])) == "A\ufffdB"
    tokens = data.Corpus("tokens", np.zeros(20, np.uint16))
    assert tokens.encode(tokens.beginning).tolist() == [50256] and tokens.decode(tokens.encode(" 464  3290")) == "464 3290"
    for prompt in ("The dog", "50257", "-1"):
        with pytest.raises(ValueError, match="prompt"):
            tokens.encode(prompt)


def test_an_id_that_is_none_of_gpt2s_is_refused_when_it_is_met(data):
    corpus = data.Corpus("tokens", np.full(100, 50257, np.uint16))
    with pytest.raises(ValueError, match="hold the id 50257, and ids of GPT-2 are below 50257"):
        corpus.windows((1,), 4, 0, 0)


BAD = {
    "empty": (b"", "has 0 bytes; a file of tokens has two for each"),
    "odd": (b"abc", "has 3 bytes; a file of tokens has two for each"),
    "cut header": (header(5)[:1000], "ends within its header, after 1000 of 1024 bytes"),
    "another version": (header(5, version=7) + bytes(10), "of version 7; version 1, of tokens of two bytes, can be read"),
    "too short": (header(6) + bytes(10), "should hold 6 tokens in 1036 bytes, and has 1034"),
    "too long": (header(4) + bytes(10), "should hold 4 tokens in 1032 bytes, and has 1034"),
    "no tokens": (header(0), "should hold 0 tokens"),
}


@pytest.mark.parametrize(("content", "said"), BAD.values(), ids=BAD)
def test_a_file_that_holds_no_tokens_is_refused(data, tmp_path, content, said):
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(ValueError) as error:
        data.read_tokens(tmp_path / "x.bin")
    assert said in str(error.value)


def test_what_cannot_be_trained_on_is_refused(data, tmp_path):
    with pytest.raises(ValueError, match="holds nothing"):
        data.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        data.open_corpus(tmp_path / "gone", None, None)
    with pytest.raises(ValueError, match="give one of them"):
        data.open_corpus(tmp_path, tmp_path, None)
    with pytest.raises(ValueError, match="goes with --data or --tokens"):
        data.open_corpus(None, None, tmp_path)
    corpus = data.Corpus("bytes", np.zeros(50, np.uint8))
    corpus.require_windows(4)
    with pytest.raises(ValueError, match=r"5 bytes for validation hold no window of 5 \+ 1"):
        corpus.require_windows(5)
