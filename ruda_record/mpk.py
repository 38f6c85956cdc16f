"""Records as plain msgpack (see `tree`): the elements of an array are one bin object, `"data"`.

Both directions are streams: msgpack's own `Unpacker` wants the largest object in its buffer, which an array may be.
"""
from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgpack
import numpy as np

from .encode import Encoder
from .errors import RecorderError, quote
from .format import CHUNK, stored_chunks
from .layout import MAX_HEADER, Segment
from .tree import LIST, MAP, PLAIN, TreeReader, TreeWriter

LARGEST_BIN = (1 << 32) - 1
MAX_TEXT = 2 * MAX_HEADER  # what `encode` allows, and the words that describe arrays here
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_SIZES = {  # first byte -> (kind, length of the length)
    0xC4: (bytes, ">B"), 0xC5: (bytes, ">H"), 0xC6: (bytes, ">I"), 0xD9: (str, ">B"), 0xDA: (str, ">H"),
    0xDB: (str, ">I"), 0xDC: (LIST, ">H"), 0xDD: (LIST, ">I"), 0xDE: (MAP, ">H"), 0xDF: (MAP, ">I"),
}  # fmt: skip


class MpkWriter(TreeWriter):
    """Writes a record as msgpack."""

    def __init__(self, file: BinaryIO, encoded: Encoder):
        super().__init__(file, encoded)
        self._packer = msgpack.Packer(unicode_errors="surrogatepass")

    @staticmethod
    def check(encoded: Encoder) -> None:
        for segment, _, _ in encoded.arrays:
            if segment.nbytes > LARGEST_BIN:
                raise RecorderError(
                    f"{quote(segment.place)} has {segment.nbytes} bytes, and msgpack holds at most {LARGEST_BIN} in one "
                    "object; a .bin record has no such limit: BinFileRecorder().save(data, path)"
                )

    def _map(self, length: int) -> None:
        self._put(self._packer.pack_map_header(length))

    def _list(self, length: int) -> None:
        self._put(self._packer.pack_array_header(length))

    def _key(self, key: str) -> None:
        self._put(self._packer.pack(key))

    def _plain(self, value: Any) -> None:
        self._put(self._packer.pack(value))

    def _checksum(self, crc: int) -> None:
        self._put(struct.pack(">BI", 0xCE, crc))

    def _large_int(self, value: int) -> None:
        self._tagged("int", 2)
        self._key("data")
        self._plain(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _elements(self, segment: Segment, array: np.ndarray) -> None:
        self._key("data")
        size = segment.nbytes
        first, code = (0xC4, ">BB") if size < 1 << 8 else (0xC5, ">BH") if size < 1 << 16 else (0xC6, ">BI")
        self._put(struct.pack(code, first, size))
        for chunk in stored_chunks(segment, array):
            self._put(chunk)


class MpkReader(TreeReader):
    """Reads a record from msgpack."""

    _crc = _spent = 0

    def _take(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) != size:
            raise RecorderError("cut short")
        self._crc = zlib.crc32(found, self._crc)
        return found

    def _number(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _head(self) -> tuple[Any, Any]:
        """The kind of the next object, and its length or, of one that has none, its value."""
        first = self._take(1)[0]
        if first < 0x80 or first >= 0xE0:
            return PLAIN, first if first < 0x80 else first - 256
        if first < 0xC0:
            kind = MAP if first < 0x90 else LIST if first < 0xA0 else str
            return kind, first & (31 if kind is str else 15)
        if first in _SIZES:
            kind, code = _SIZES[first]
            return kind, self._number(code)
        if first in _NUMBERS:
            return PLAIN, self._number(_NUMBERS[first])
        if first not in (0xC0, 0xC2, 0xC3):
            self._fail("a kind of value that records do not use")
        return PLAIN, {0xC0: None, 0xC2: False, 0xC3: True}[first]

    def _token(self) -> tuple[str, Any]:
        kind, content = self._head()
        if kind is not str and kind is not bytes:
            return kind, content
        self._spent += content
        if self._spent > MAX_TEXT:
            self._fail(f"what is not an array takes more than {MAX_TEXT} bytes")
        blob = self._take(content)
        if kind is bytes:
            return PLAIN, blob
        try:
            return PLAIN, blob.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            self._fail(f"text that is not UTF-8: {error.reason}")

    def _keys(self, length: int) -> Iterator[str]:
        for _ in range(length):
            yield self._expect(str, "a key that is a string")

    def _items(self, length: int) -> Iterator[None]:
        for _ in range(length):
            yield

    def _verify(self) -> None:
        crc = self._crc
        found = self._expect(int, "the crc32")
        if found != crc:
            raise RecorderError(f"damaged: the checksum of its bytes is {crc:08x}, expected {found:08x}")

    def _expect_end(self) -> None:
        if self._file.read(1):
            raise RecorderError("too long: something follows the record")

    def _special(self, tag: str, keys: Iterator[str]) -> Any:
        if tag != "int":
            self._fail(f"unknown kind {quote(tag)}")
        return int.from_bytes(self._field(keys, "data", bytes), "little", signed=True)

    def _elements(self, keys: Iterator[str], dtype: np.dtype, count: int) -> np.ndarray:
        self._name(keys, "data")
        kind, size = self._head()
        if kind is not bytes or size != count * dtype.itemsize:
            found = f"{size} bytes" if kind is bytes else "something else"
            self._fail(f"{count} elements of {dtype.name} are {count * dtype.itemsize} bytes, found {found}")
        if size > self._room:
            self._fail(f"it says that {size} bytes follow, and {self._room} is the most that there can be")
        array = np.empty(count, dtype)
        view, done = array.view(np.uint8).data, 0
        while done < size:
            part = view[done : done + CHUNK]
            read = self._file.readinto(part)  # type: ignore[attr-defined]
            if not read:
                raise RecorderError("cut short")
            self._crc = zlib.crc32(part[:read], self._crc)
            done += read
        return array
