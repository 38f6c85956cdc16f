"""Records as JSON that people can read (see `tree`): the elements of an array are a flat list, `"values"`.

JSON has neither infinities nor NaN, so those are strings: `"inf"`, `"-inf"`, `"nan"`, and `"nan:7fc00001"` with the bits
of any other NaN. All other numbers are the shortest that read back as the same bits.
"""
from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from .encode import Encoder
from .errors import RecorderError, quote
from .format import stored_chunks
from .layout import MAX_HEADER, Segment, little_endian
from .settings import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from .tree import LIST, MAP, PLAIN, TreeReader, TreeWriter

CHUNK, LARGEST_READ = 1 << 16, 1 << 22
MAX_SPACE = 4096  # between two tokens: the deepest line is indented by far less
MAX_TEXT = 2 * MAX_HEADER  # of strings, as they are written: a hostile one costs no more than this
_FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)
_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_WORD = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null")
_WORD_LENGTH = 40
_ELEMENT = re.compile(rb'[ \t\r\n]*(?:"([a-z0-9:-]{1,24})"|(-?\d[\d.eE+-]{0,39}|true|false))[ \t\r\n]*([,\]])')


def _canonical_nan(dtype: np.dtype) -> bytes:
    return np.array(np.nan, FLOAT32).astype(dtype).tobytes()


class JsonWriter(TreeWriter):
    """Writes a record as indented JSON: a line for each key and item, and one for each row of an array."""

    def __init__(self, file: BinaryIO, encoded: Encoder):
        super().__init__(file, encoded)
        self._closers: list[bytes] = []
        self._first, self._spent = True, 0

    def _text(self, value: Any) -> bytes:
        made = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        self._spent += len(made)
        if self._spent > MAX_TEXT:
            raise RecorderError(
                f"its text takes more than {MAX_TEXT} bytes as JSON; write BinFileRecorder().save(data, path)"
            )
        return made

    def _map(self, length: int) -> None:
        self._begin(b"{")

    def _list(self, length: int) -> None:
        self._begin(b"[")

    def _begin(self, bracket: bytes) -> None:
        self._closers.append(b"}" if bracket == b"{" else b"]")
        self._put(bracket)
        self._first = True

    def _item(self) -> None:
        self._put((b"\n" if self._first else b",\n") + b"  " * len(self._closers))
        self._first = False

    def _key(self, key: str) -> None:
        self._item()
        self._put(self._text(key) + b": ")

    def _end(self) -> None:
        closer = self._closers.pop()
        self._put((b"" if self._first else b"\n" + b"  " * len(self._closers)) + closer)
        self._first = False
        if not self._closers:
            self._put(b"\n")

    def _plain(self, value: Any) -> None:
        if type(value) is bytes:
            self._tagged("bytes", 2)
            self._key("base64")
            self._put(self._text(base64.b64encode(value).decode()))
            self._end()
        elif type(value) is float and not math.isfinite(value):
            self._tagged("float", 2)
            self._key("value")
            self._put(self._text(_not_finite(np.array(value))))
            self._end()
        else:
            self._put(self._text(value))

    def _checksum(self, crc: int) -> None:
        self._put(str(crc).encode())

    def _large_int(self, value: int) -> None:
        self._tagged("int", 2)
        self._key("hex")
        self._plain(f"{value:x}")
        self._end()

    def _elements(self, segment: Segment, array: np.ndarray) -> None:
        self._key("values")
        self._put(b"[")
        row = segment.shape[-1] if segment.shape else 1
        indent, at = b"\n" + b"  " * (len(self._closers) + 1), 0
        for chunk in stored_chunks(segment, array):
            words = _words(little_endian(np.frombuffer(chunk, segment.dtype)))
            for begin in range(0, len(words), 1 << 12):
                part = words[begin : begin + (1 << 12)]
                lines = [(b"," if at + i else b"") + (b" " if (at + i) % row else indent) + w for i, w in enumerate(part)]
                self._put(b"".join(lines))
                at += len(part)
        self._put(b"]" if not at else indent[:-2] + b"]")


def _words(flat: np.ndarray) -> list[bytes]:
    """The elements of an array as JSON."""
    if flat.dtype == np.bool_:
        return [b"true" if x else b"false" for x in flat.tolist()]
    if flat.dtype not in _FLOATS:
        return [b"%d" % x for x in flat.tolist()]
    with np.errstate(all="ignore"):
        wide = flat.astype(FLOAT64)
        if flat.dtype != FLOAT64:
            # The shortest digits that mean this float32 (or float16), as the float64 whose shortest digits are the same;
            # not where they, rounded twice, by way of float64, would end elsewhere.
            short = (flat.astype(FLOAT32) if flat.dtype == BFLOAT16 else flat).astype("U32").astype(FLOAT64)
            wide = np.where(short.astype(flat.dtype) == flat, short, wide)
    words = [repr(x).encode() for x in wide.tolist()]
    for index in np.flatnonzero(~np.isfinite(wide)):
        words[index] = b'"%s"' % _not_finite(flat[index : index + 1]).encode()
    return words


def _not_finite(x: np.ndarray) -> str:
    """The name of an infinity, or of a NaN with its bits unless they are the usual ones."""
    value = float(_wide(x).reshape(-1)[0])
    if not math.isnan(value):
        return "inf" if value > 0 else "-inf"
    bits = x.tobytes()
    return "nan" if bits == _canonical_nan(x.dtype) else f"nan:{int(x.view(f'u{x.itemsize}').reshape(-1)[0]):x}"


def _wide(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return x.astype(FLOAT64)


def _from_name(name: str, dtype: np.dtype) -> np.ndarray:
    """The inverse of `_not_finite`; ValueError for any other text."""
    if name in ("inf", "-inf", "nan"):
        return np.array([float(name)], FLOAT32).astype(dtype)
    digits = name.removeprefix("nan:")
    if digits == name or len(digits) > 2 * dtype.itemsize or not re.fullmatch("[0-9a-f]+", digits):
        raise ValueError(f"{name!r} is no number")
    made = np.array([int(digits, 16)], f"u{dtype.itemsize}").view(dtype)
    if not np.isnan(_wide(made))[0]:
        raise ValueError(f"{name!r} is not the bits of a NaN")
    return made


class JsonReader(TreeReader):
    """Reads a record from JSON: a piece of the text at a time, so that its length does not matter."""

    _buffer, _at, _crc, _spent = b"", 0, 0, 0

    def _more(self) -> bool:
        """Read on, forgetting what was used; False at the end."""
        self._crc = zlib.crc32(memoryview(self._buffer)[: self._at], self._crc)
        kept = self._buffer[self._at :]
        found = self._file.read(min(max(CHUNK, len(kept)), LARGEST_READ))
        self._buffer, self._at = kept + found, 0
        return bool(found)

    def _peek(self) -> bytes:
        """The first character behind the space; b"" at the end."""
        first = self._buffer[self._at : self._at + 1]
        if first > b" ":
            return first
        space = 0
        while True:
            end = _SPACE.match(self._buffer, self._at).end()  # type: ignore[union-attr]
            space += end - self._at
            self._at = end
            if space > MAX_SPACE:
                self._fail(f"more than {MAX_SPACE} bytes of space")
            if end < len(self._buffer) or not self._more():
                return self._buffer[self._at : self._at + 1]

    def _sign(self, expected: bytes) -> bytes:
        found = self._peek()
        if not found:
            raise RecorderError("cut short")
        if found not in expected:
            self._fail(f"expected {' or '.join(map(repr, expected.decode()))}, found {found!r}")
        self._at += 1
        return found

    def _token(self) -> tuple[str, Any]:
        first = self._peek()
        if first == b"{" or first == b"[":
            self._at += 1
            return (MAP if first == b"{" else LIST), None
        if first == b'"':
            return PLAIN, self._string()
        if len(self._buffer) - self._at < _WORD_LENGTH:
            self._more()
        found = _WORD.match(self._buffer, self._at)
        if found is None or found.end() - self._at > _WORD_LENGTH:
            if not first:
                raise RecorderError("cut short")
            self._fail(f"expected a value, found {quote(self._buffer[self._at : self._at + 20])}")
        self._at = found.end()
        value = json.loads(found[0])
        if type(value) is int and not -(1 << 63) <= value < 1 << 64 or value in (math.inf, -math.inf):
            self._fail("a number that is too large")
        return PLAIN, value

    def _string(self) -> str:
        while (found := _STRING.match(self._buffer, self._at)) is None:
            if self._spent + len(self._buffer) - self._at > MAX_TEXT:
                self._fail(f"what is not an array takes more than {MAX_TEXT} bytes")
            if not self._more():
                raise RecorderError("cut short")
        self._at = found.end()
        self._spent += len(found[0])
        try:
            return json.loads(found[0].decode("utf-8", "surrogatepass"))
        except ValueError as error:
            self._fail(f"a string that is not valid: {str(error).partition(':')[0]}")

    def _keys(self, length: None) -> Iterator[str]:
        for _ in self._between(b"}"):
            if self._peek() != b'"':
                self._fail("expected a key that is a string")
            key = self._string()
            self._sign(b":")
            yield key

    def _items(self, length: None) -> Iterator[None]:
        return self._between(b"]")

    def _between(self, closer: bytes) -> Iterator[None]:
        if self._peek() == closer:
            self._at += 1
            return
        yield
        while self._sign(b"," + closer) == b",":
            yield

    def _verify(self) -> None:
        self._peek()
        crc = zlib.crc32(memoryview(self._buffer)[: self._at], self._crc)
        found = self._token()[1]
        if found is not None and (type(found) is not int or found != crc):
            raise RecorderError(
                f"damaged: the checksum of its bytes is {crc}, expected {quote(found)}; if it was edited on purpose, "
                'write "crc32": null'
            )

    def _expect_end(self) -> None:
        if self._peek():
            raise RecorderError("too long: something follows the record")

    def _special(self, tag: str, keys: Iterator[str]) -> Any:
        try:
            if tag == "int":
                return _from_hex(self._field(keys, "hex", str))
            if tag == "bytes":
                return base64.b64decode(self._field(keys, "base64", str), validate=True)
            if tag == "float":
                return float(_from_name(self._field(keys, "value", str), FLOAT64)[0])
        except (ValueError, binascii.Error) as error:
            self._fail(str(error))
        self._fail(f"unknown kind {quote(tag)}")

    def _elements(self, keys: Iterator[str], dtype: np.dtype, count: int) -> np.ndarray:
        self._name(keys, "values")
        self._sign(b"[")
        # Two characters at least for each element, so a claim is never much larger than the file that makes it.
        if 2 * count > self._room:
            self._fail(f"it says that {count} values follow, and {self._room // 2} is the most that there can be")
        array, done = np.empty(count, dtype), 0
        if self._peek() == b"]":
            self._at += 1
        else:
            for part in self._parts(dtype, count):
                array[done : done + len(part)] = part
                done += len(part)
        if done != count:
            self._fail(f"its shape has {count} elements, found {done}")
        return array

    def _parts(self, dtype: np.dtype, count: int) -> Iterator[np.ndarray]:
        """The elements up to the closing bracket, some thousand at a time; never more than `count`."""
        done, sign = 0, b","
        while sign == b",":
            if len(self._buffer) - self._at < MAX_SPACE:
                self._more()
            words: list[bytes] = []
            names: list[tuple[int, bytes]] = []
            while sign == b"," and len(words) < 4096 and (found := _ELEMENT.match(self._buffer, self._at)):
                name, word, sign = found.groups()
                if name:
                    names.append((len(words), name))
                words.append(word or b"0")
                self._at = found.end()
            done += len(words)
            if not words:
                self._fail(f"expected a number, found {quote(self._buffer[self._at : self._at + 20])}")
            if done > count:
                self._fail(f"its shape has {count} elements, found more")
            yield self._converted(words, names, dtype)

    def _converted(self, words: list[bytes], names: list[tuple[int, bytes]], dtype: np.dtype) -> np.ndarray:
        try:
            if dtype == np.bool_:
                return np.array([{b"true": True, b"false": False}[word] for word in words])
            if dtype not in _FLOATS:
                if names:
                    raise ValueError("a name where whole numbers are expected")
                return np.array([int(word) for word in words], dtype)
            wide = np.array([float(word) for word in words])
            with np.errstate(all="ignore"):
                made = wide.astype(dtype)
            if not np.isfinite(made.astype(FLOAT64)).all():
                raise ValueError(f"a number beyond the largest {dtype.name}")
            for index, name in names:
                made[index : index + 1] = _from_name(name.decode(), dtype)
            return made
        except (KeyError, ValueError, OverflowError) as error:
            self._fail(f"elements that are not {dtype.name}: {error}")


def _from_hex(digits: str) -> int:
    if not re.fullmatch("-?[0-9a-f]+", digits):
        raise ValueError("an integer that is not in hexadecimal digits")
    return int(digits, 16)
