"""Reads the header of a record: msgpack to plain data, trusting nothing (see `layout`)."""
from __future__ import annotations

import math
from typing import Any, NoReturn

import msgpack
import numpy as np

from .errors import RecorderError, quote
from .layout import (
    DTYPES,
    MAX_ARRAYS,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_RANK,
    MAX_VALUES,
    Place,
    Segment,
    align,
    little_endian,
)
from .settings import SETTINGS

_MAP, _ARRAY, _STR, _EXT, _PLAIN = range(5)


def _first_bytes() -> list[int]:
    kinds = [_PLAIN] * 256
    for kind, firsts in (
        (_MAP, [*range(0x80, 0x90), 0xDE, 0xDF]),
        (_ARRAY, [*range(0x90, 0xA0), 0xDC, 0xDD]),
        (_STR, [*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB]),
        (_EXT, [0xC1, 0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)]),
    ):
        for first in firsts:
            kinds[first] = kind
    return kinds


_KINDS = _first_bytes()


class Decoder:
    """Reads a header, trusting nothing: afterwards `data` has segments for arrays, listed in `segments` too.

    Each segment lies right behind the one before, at the next multiple of 256, inside a data area of `room` bytes: so
    none can overlap another, or leave the file.
    """

    def __init__(self, header: bytes, room: int):
        self._header, self._room = header, room
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(len(header), 1), unicode_errors="surrogatepass")
        self._place = Place()
        self._values = 0
        self.segments: list[Segment] = []
        self.data_bytes = 0
        try:
            self._unpacker.feed(header)
            self.precision, self.data = self._top()
        except (msgpack.UnpackException, ValueError, OverflowError) as error:
            self._fail(f"{type(error).__name__}: {error}")
        if self.data_bytes != room:
            raise RecorderError(f"holds {room} bytes of data, but its header describes {self.data_bytes}")

    def _fail(self, message: str) -> NoReturn:
        at = f" at {quote(self._place)}" if self._place.depth else ""
        raise RecorderError(f"the header is not valid{at}: {message}")

    def _top(self) -> tuple[str, Any]:
        if self._kind() != _MAP or self._unpacker.read_map_header() != 2 or self._text() != "precision":
            self._fail("it is not a map of 'precision' and 'data'")
        precision = self._text()
        if precision not in SETTINGS:
            self._fail(f"unknown precision {quote(precision)}, known are {', '.join(SETTINGS)}")
        if self._text() != "data":
            self._fail("it is not a map of 'precision' and 'data'")
        data = self._value()
        if self._unpacker.tell() != len(self._header):
            self._fail(f"{len(self._header) - self._unpacker.tell()} bytes follow its end")
        return precision, data

    def _kind(self) -> int:
        at = self._unpacker.tell()
        if at >= len(self._header):
            self._fail("it ends too early")
        return _KINDS[self._header[at]]

    def _text(self) -> str:
        if self._kind() != _STR:
            self._fail("expected a string")
        return self._unpacker.unpack()

    def _plain(self, kind: type, what: str) -> Any:
        value = self._unpacker.unpack() if self._kind() == _PLAIN else None
        if type(value) is not kind:
            self._fail(f"expected {what}, found {type(value).__name__}")
        return value

    def _natural(self, what: str) -> int:
        value = self._plain(int, what)
        if value < 0:
            self._fail(f"{what} is negative ({value})")
        return value

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES} values")

    def _value(self) -> Any:
        self._count()
        kind = self._kind()
        if kind == _PLAIN or kind == _STR:
            return self._unpacker.unpack()
        if kind == _MAP:
            return self._dict(self._unpacker.read_map_header())
        if kind == _ARRAY:
            return self._tagged(self._unpacker.read_array_header())
        self._fail("a kind of value that records do not use")

    def _open(self) -> Place:
        if self._place.depth == MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        return self._place

    def _dict(self, length: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        container = self._open()
        for _ in range(length):
            self._count()
            key = self._text()
            self._place = Place(container, key)
            if key in made:
                self._fail("this name occurs twice")
            made[key] = self._value()
        self._place = container
        return made

    def _tagged(self, length: int) -> Any:
        tag = self._text() if length else ""
        if tag in ("list", "tuple"):
            items: list[Any] = []
            container = self._open()
            for index in range(length - 1):
                self._place = Place(container, index)
                items.append(self._value())
            self._place = container
            return items if tag == "list" else tuple(items)
        if tag == "array" and length == 6:
            return self._array()
        if tag == "scalar" and length == 3:
            dtype = self._dtype()
            raw = self._plain(bytes, "the bytes of a scalar")
            if len(raw) != dtype.itemsize:
                self._fail(f"a {dtype.name} has {dtype.itemsize} bytes, not {len(raw)}")
            return little_endian(np.frombuffer(raw, dtype))[0]
        if tag == "int" and length == 2:
            return int.from_bytes(self._plain(bytes, "the bytes of an integer"), "little", signed=True)
        self._fail(f"an array of {length} beginning with {quote(tag)}")

    def _dtype(self) -> np.dtype:
        name = self._text()
        if name not in DTYPES:
            self._fail(f"unknown dtype {quote(name)}, known are {', '.join(DTYPES)}")
        return DTYPES[name]

    def _array(self) -> Segment:
        if len(self.segments) == MAX_ARRAYS:
            self._fail(f"more than {MAX_ARRAYS} arrays")
        dtype, shape = self._dtype(), self._shape()
        offset, nbytes = self._natural("the offset"), self._natural("the number of bytes")
        crc = self._natural("the crc32")
        # Python's integers: a product that overflows 64 bits is a large number here and not a small one. NumPy refuses
        # an overflow hidden behind an axis of length 0 as well.
        if math.prod(filter(None, shape)) * dtype.itemsize > MAX_BYTES:
            self._fail(f"shape {quote(shape)} is too large")
        needed = math.prod(shape) * dtype.itemsize
        if nbytes != needed:
            self._fail(f"{dtype.name} of shape {quote(shape)} needs {needed} bytes, the header says {nbytes}")
        if offset != self.data_bytes:
            where = "overlaps the array before it" if offset < self.data_bytes else "leaves a gap"
            self._fail(f"its offset {offset} {where}, expected {self.data_bytes}")
        if offset + nbytes > self._room:
            self._fail(f"its bytes {offset} to {offset + nbytes} lie outside the data, which ends at {self._room}")
        self.data_bytes = align(offset + nbytes)
        segment = Segment(self._place, dtype, shape, offset, nbytes, crc)
        self.segments.append(segment)
        return segment

    def _shape(self) -> tuple[int, ...]:
        rank = self._unpacker.read_array_header() if self._kind() == _ARRAY else -1
        if not 0 <= rank <= MAX_RANK:
            self._fail(f"expected a shape of at most {MAX_RANK} axes, found {rank if rank >= 0 else 'none'}")
        return tuple(self._natural("an axis length") for _ in range(rank))
