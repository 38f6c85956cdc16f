"""The data of GPT-2: bytes of any files, or a file of tokens, read where they lie on the disk."""
from __future__ import annotations

import zlib
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

import ruda_tensor as rt

BYTES, GPT2_TOKENS, END_OF_TEXT = 256, 50257, 50256
MAGIC, VERSION, HEADER = 20240520, 1, 1024  # of the token files that llm.c reads: 256 int32, then the tokens as uint16


class BadTokens(ValueError):
    """A token file holds what is no token of GPT-2."""


class Corpus:
    """A long row of ids, and those kept apart for validation; ids are below `vocabulary`.

    `kind` is "bytes", whose ids are text, or "tokens", whose ids are GPT-2's, for which there is no tokenizer here.
    """

    def __init__(self, kind: str, train: np.ndarray, validation: np.ndarray | None = None) -> None:
        cut = len(train) * 9 // 10 if validation is None else len(train)
        self.kind, self.vocabulary = kind, BYTES if kind == "bytes" else GPT2_TOKENS
        self.train, self.validation = train[:cut], train[cut:] if validation is None else validation

    def require_windows(self, length: int) -> None:
        """Refuse to cut windows out of too few ids."""
        for name, ids in (("training", self.train), ("validation", self.validation)):
            if len(ids) <= length:
                raise ValueError(f"{len(ids)} {self.kind} for {name} hold no window of {length} + 1: give more, or --length less")

    def windows(self, shape: tuple[int, ...], length: int, seed: int, number: int) -> np.ndarray:
        """Return the windows [*shape, length + 1] of update `number`, int32: the same whenever they are asked for.

        Their places are random, and a function of the seed and the number alone.
        """
        key = rt.random.fold_in(rt.random.key(seed), number)
        high = len(self.train) - length
        starts = rt.random.integers(shape, low=0, high=high, dtype=rt.int64, key=key, device=rt.Cpu()).numpy()
        return self._cut(self.train, starts, length)

    def validation_windows(self, count: int, length: int) -> np.ndarray:
        """Return at most `count` windows [n, length + 1], one after another where they fit, and evenly spread."""
        count = min(count, (len(self.validation) - 1) // length)
        starts = np.linspace(0, len(self.validation) - length - 1, count).astype(np.int64)
        return self._cut(self.validation, starts, length)

    def _cut(self, ids: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
        found = ids[starts[..., None] + np.arange(length + 1)].astype(np.int32)
        if found.max() >= self.vocabulary:
            raise BadTokens(f"the tokens hold the id {found.max()}, and ids of GPT-2 are below {self.vocabulary}")
        return found

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text; where ids are tokens, the text is their numbers."""
        if self.kind == "bytes":
            return np.frombuffer(text.encode(), np.uint8)
        try:
            ids = np.array([int(word) for word in text.split()], np.int64)
        except ValueError:
            raise ValueError(f"a prompt of tokens is their numbers, such as '464 3290', not {text!r}") from None
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.vocabulary:
            raise ValueError(f"the prompt {text!r} holds ids that are none of 0 to {self.vocabulary - 1}")
        return ids

    def decode(self, ids: np.ndarray) -> str:
        """Return the text of ids, or their numbers."""
        if self.kind == "bytes":
            return ids.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
        return " ".join(str(i) for i in ids)

    @property
    def beginning(self) -> str:
        """What a text is written after where no prompt is given."""
        return "\n" if self.kind == "bytes" else str(END_OF_TEXT)

    def describe(self) -> dict[str, Any]:
        """What a resumed run compares: the sizes, and a checksum of the first MiB."""
        first = zlib.crc32(self.train[: 1 << 20].tobytes())
        return {"kind": self.kind, "train": len(self.train), "validation": len(self.validation), "first": first}


def open_corpus(data: Path | None, tokens: Path | None, validation: Path | None) -> Corpus:
    """Return the bytes of a file or folder, the tokens of a file, or what comes with Python; `validation` is of that kind.

    Without `validation` it is the last tenth. Errors: ValueError and OSError for what cannot be read.
    """
    if data and tokens:
        raise ValueError("--data is of bytes and --tokens of tokens: give one of them")
    if not data and not tokens:
        if validation:
            raise ValueError("--validation goes with --data or --tokens")
        return Corpus("bytes", np.frombuffer("\n".join(topics[name] for name in sorted(topics)).encode(), np.uint8))
    read, kind, path = (read_tokens, "tokens", tokens) if tokens else (read_bytes, "bytes", data)
    assert path
    return Corpus(kind, read(path), read(validation) if validation else None)


def read_bytes(path: Path) -> np.ndarray:
    """Return the bytes of a file, mapped from the disk, or of all files below a folder, in the order of their names."""
    if path.is_dir():
        files = [p for p in sorted(path.rglob("*")) if p.is_file()]
        found = np.frombuffer(b"".join(p.read_bytes() for p in files), np.uint8)
    else:
        found = _mapped(path, np.uint8, 0)
    if not len(found):
        raise ValueError(f"{path} holds nothing")
    return found


def read_tokens(path: Path) -> np.ndarray:
    """Return the uint16 tokens of a file, mapped from the disk: little-endian, alone or behind the header of llm.c.

    A file of bare tokens of GPT-2 cannot begin like a header, since half of the magic number is no token.
    """
    with path.open("rb") as file:
        head = np.frombuffer(file.read(HEADER), "<u1")
    size = path.stat().st_size
    words = head[: len(head) // 4 * 4].view("<i4")
    if not len(words) or words[0] != MAGIC:
        if size == 0 or size % 2:
            raise ValueError(f"{path} has {size} bytes; a file of tokens has two for each, and begins with one or with {MAGIC}")
        return _mapped(path, np.dtype("<u2"), 0)
    if len(head) < HEADER:
        raise ValueError(f"{path} ends within its header, after {len(head)} of {HEADER} bytes")
    version, count = int(words[1]), int(words[2])
    if version != VERSION:
        raise ValueError(f"{path} is a token file of version {version}; version {VERSION}, of tokens of two bytes, can be read")
    if size != HEADER + 2 * count or count == 0:
        raise ValueError(f"{path} should hold {count} tokens in {HEADER + 2 * count} bytes, and has {size}")
    return _mapped(path, np.dtype("<u2"), HEADER)


def _mapped(path: Path, dtype: Any, offset: int) -> np.ndarray:
    """The file as an array; only what is asked for is read."""
    if path.stat().st_size <= offset:  # nothing cannot be mapped
        return np.empty(0, dtype)
    return np.memmap(path, dtype, mode="r", offset=offset)
