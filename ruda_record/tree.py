"""Records that other programs can read: nested data as a tree of maps and lists, in msgpack or in JSON.

A dict is a map, a list a list. What the two cannot say is a map that begins with the key `"@"`, the kind:

    {"@": "array",  "dtype": "float32", "shape": [2, 3], ...}     {"@": "tuple", "items": [...]}
    {"@": "scalar", "dtype": "float32", ...}                      {"@": "dict", "items": [[key, value], ...]}
    {"@": "int", ...}  (beyond 64 bits)                           {"@": "bytes", ...}, {"@": "float", ...}  (JSON only)

where `...` is the part that msgpack and JSON write each in its own way. The kind "dict" stands for a dict that has the
key "@" itself. Around it all is one map: format, version, precision, data and last the crc32 of every byte before it.
"""
from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn

import numpy as np

from .encode import Encoder
from .errors import RecorderError, quote
from .layout import DTYPES, MAX_ARRAYS, MAX_BYTES, MAX_DEPTH, MAX_RANK, MAX_VALUES, Place, Segment, little_endian
from .settings import SETTINGS

FORMAT, VERSION, TAG = "ruda record", 1, "@"
MAP, LIST, PLAIN = "a map", "a list", "a value"


class TreeWriter(ABC):
    """Writes what an `Encoder` has found valid. `_map`, `_key`, `_list`, `_item` and `_end` are a subclass's syntax."""

    def __init__(self, file: BinaryIO, encoded: Encoder):
        self._file, self._encoded, self._arrays, self._crc = file, encoded, iter(encoded.arrays), 0

    @staticmethod  # noqa: B027  a format may have room for everything
    def check(encoded: Encoder) -> None:
        """Refuse what this kind of file has no room for, before there is a file."""

    def write(self) -> None:
        self._map(5)
        for name, value in (("format", FORMAT), ("version", VERSION), ("precision", self._encoded.settings.name)):
            self._key(name)
            self._plain(value)
        self._key("data")
        self._value(self._encoded.data)
        self._key("crc32")
        self._checksum(self._crc)
        self._end()

    def _put(self, content: Any) -> None:
        self._crc = zlib.crc32(content, self._crc)
        self._file.write(content)

    @abstractmethod
    def _map(self, length: int) -> None:
        """Begin a map of so many entries."""

    @abstractmethod
    def _list(self, length: int) -> None:
        """Begin a list of so many items."""

    @abstractmethod
    def _key(self, key: str) -> None:
        """Write the key of the next entry."""

    def _item(self) -> None:  # noqa: B027  a format may need nothing there
        """Come to the next item of a list."""

    def _end(self) -> None:  # noqa: B027  a format may need nothing there
        """End a map or a list."""

    @abstractmethod
    def _plain(self, value: Any) -> None:
        """Write None, a bool, a string, or a number that the format has."""

    @abstractmethod
    def _checksum(self, crc: int) -> None:
        """Write the crc32 of all that came before."""

    @abstractmethod
    def _large_int(self, value: int) -> None:
        """Write an integer beyond 64 bits."""

    @abstractmethod
    def _elements(self, segment: Segment, array: np.ndarray) -> None:
        """Write the numbers of an array."""

    def _value(self, value: Any) -> None:
        kind = type(value)
        if kind is dict and TAG not in value:
            self._map(len(value))
            for key, item in value.items():
                self._key(key)
                self._value(item)
            self._end()
        elif kind is dict or kind is tuple:
            self._tagged(kind.__name__, 2)
            self._key("items")
            self._sequence([list(pair) for pair in value.items()] if kind is dict else value)
            self._end()
        elif kind is list:
            self._sequence(value)
        elif kind is int and not -(1 << 63) <= value < 1 << 64:
            self._large_int(value)
        elif isinstance(value, np.ndarray):
            segment, array, _ = next(self._arrays)
            self._tagged("array", 4)
            self._described(segment, array)
        elif isinstance(value, np.generic):
            dtype = DTYPES[value.dtype.name]
            self._tagged("scalar", 3)
            self._described(Segment(Place(), dtype, (), 0, dtype.itemsize), np.asarray(value, dtype), scalar=True)
        else:
            self._plain(value)

    def _sequence(self, items: Any) -> None:
        self._list(len(items))
        for item in items:
            self._item()
            self._value(item)
        self._end()

    def _tagged(self, tag: str, length: int) -> None:
        self._map(length)
        self._key(TAG)
        self._plain(tag)

    def _described(self, segment: Segment, array: np.ndarray, scalar: bool = False) -> None:
        self._key("dtype")
        self._plain(segment.dtype.name)
        if not scalar:
            self._key("shape")
            self._plain(list(segment.shape))
        self._elements(segment, array)
        self._end()


class TreeReader(ABC):
    """Reads a tree, trusting nothing. A subclass tells it the next token; nothing is made before its size is checked.

    `room` is the most bytes that the stream can have.
    """

    precision = ""

    def __init__(self, file: BinaryIO, room: int):
        self._file, self._room = file, room
        self._place = Place()
        self._values = self._arrays = 0

    def read(self) -> Any:
        """The data, after the checksum over all of it was found right and nothing follows."""
        kind, length = self._token()
        keys = self._keys(length) if kind is MAP else iter(())
        try:
            self._name(keys, "format")
            named = self._expect(str, "the format")
        except RecorderError as error:
            raise RecorderError(f"not a ruda record: it does not begin with the format, {FORMAT!r}") from error
        if named != FORMAT:
            raise RecorderError(f"not a ruda record: its format is {quote(named)}, expected {FORMAT!r}")
        version = self._field(keys, "version", int)
        if version != VERSION:
            raise RecorderError(f"a record of version {version}, this program reads up to {VERSION}")
        self.precision = self._field(keys, "precision", str)
        if self.precision not in SETTINGS:
            self._fail(f"unknown precision {quote(self.precision)}, known are {', '.join(SETTINGS)}")
        self._name(keys, "data")
        data = self._value()
        self._name(keys, "crc32")
        self._verify()
        self._done(keys)
        self._expect_end()
        return data

    def _fail(self, message: str) -> NoReturn:
        at = f" at {quote(self._place)}" if self._place.depth else ""
        raise RecorderError(f"the record is not valid{at}: {message}")

    @abstractmethod
    def _token(self) -> tuple[str, Any]:
        """Read the next kind of thing, and its value or length."""

    @abstractmethod
    def _keys(self, length: Any) -> Iterator[str]:
        """Read the keys of a map, one before each of its values."""

    @abstractmethod
    def _items(self, length: Any) -> Iterator[None]:
        """Come to each item of a list."""

    @abstractmethod
    def _verify(self) -> None:
        """Read the checksum and compare it."""

    @abstractmethod
    def _expect_end(self) -> None:
        """Refuse whatever follows the record."""

    @abstractmethod
    def _special(self, tag: str, keys: Iterator[str]) -> Any:
        """Read the rest of a tagged map that only this format has."""

    @abstractmethod
    def _elements(self, keys: Iterator[str], dtype: np.dtype, count: int) -> np.ndarray:
        """Read the numbers of an array."""

    def _expect(self, kind: type, what: str) -> Any:
        token, value = self._token()
        if token is not PLAIN or type(value) is not kind:
            self._fail(f"expected {what}, found {type(value).__name__ if token is PLAIN else token}")
        return value

    def _name(self, keys: Iterator[str], name: str) -> None:
        found = next(keys, None)
        if found != name:
            self._fail(f"expected the key {name!r}, found {'the end' if found is None else quote(found)}")

    def _field(self, keys: Iterator[str], name: str, kind: type) -> Any:
        self._name(keys, name)
        return self._expect(kind, f"the {name}")

    def _done(self, keys: Iterator[str]) -> None:
        for key in keys:
            self._fail(f"the key {quote(key)} does not belong here")

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES} values")

    def _open(self) -> Place:
        if self._place.depth == MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        return self._place

    def _value(self) -> Any:
        self._count()
        kind, content = self._token()
        if kind is PLAIN:
            return content
        return self._list(content) if kind is LIST else self._dict(self._keys(content))

    def _list(self, length: Any) -> list[Any]:
        container, made = self._open(), []
        for _ in self._items(length):
            self._place = Place(container, len(made))
            made.append(self._value())
        self._place = container
        return made

    def _dict(self, keys: Iterator[str]) -> Any:
        made: dict[str, Any] = {}
        container = self._open()
        for key in keys:
            if key == TAG:
                if made:
                    self._fail(f"the key {TAG!r} is not the first")
                return self._tagged(self._expect(str, "a kind"), keys)
            self._entry(made, key, container)
        self._place = container
        return made

    def _entry(self, made: dict[str, Any], key: str, container: Place) -> None:
        self._count()
        self._place = Place(container, key)
        if key in made:
            self._fail("this name occurs twice")
        made[key] = self._value()

    def _tagged(self, tag: str, keys: Iterator[str]) -> Any:
        if tag in ("tuple", "dict"):
            self._name(keys, "items")
            kind, length = self._token()
            if kind is not LIST:
                self._fail(f"the items of a {tag} are a list")
            made: Any = tuple(self._list(length)) if tag == "tuple" else self._pairs(length)
        elif tag in ("array", "scalar"):
            made = self._array(keys, scalar=tag == "scalar")
        else:
            made = self._special(tag, keys)
        self._done(keys)
        return made

    def _pairs(self, length: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        container = self._open()
        for _ in self._items(length):
            kind, two = self._token()
            pair = self._items(two) if kind is LIST else iter(())
            if next(pair, pair) is pair:
                self._fail("a dict's items are pairs")
            key = self._expect(str, "a key")
            if next(pair, pair) is pair:
                self._fail("a dict's items are pairs")
            self._entry(made, key, container)
            for _ in pair:
                self._fail("a dict's items are pairs")
        self._place = container
        return made

    def _array(self, keys: Iterator[str], scalar: bool) -> Any:
        self._arrays += not scalar
        if self._arrays > MAX_ARRAYS:
            self._fail(f"more than {MAX_ARRAYS} arrays")
        name = self._field(keys, "dtype", str)
        if name not in DTYPES:
            self._fail(f"unknown dtype {quote(name)}, known are {', '.join(DTYPES)}")
        dtype, shape = DTYPES[name], () if scalar else self._shape(keys)
        # Python's integers do not overflow; NumPy refuses an overflow behind an axis of length 0 as well.
        if math.prod(filter(None, shape)) * dtype.itemsize > MAX_BYTES:
            self._fail(f"shape {quote(shape)} is too large")
        array = little_endian(self._elements(keys, dtype, math.prod(shape)))
        return array[0] if scalar else array.reshape(shape)

    def _shape(self, keys: Iterator[str]) -> tuple[int, ...]:
        self._name(keys, "shape")
        kind, length = self._token()
        shape: list[int] = []
        if kind is not LIST:
            self._fail(f"expected a shape, found {kind}")
        for _ in self._items(length):
            axis = self._expect(int, "an axis length")
            if axis < 0 or len(shape) == MAX_RANK:
                self._fail(f"an axis length of {axis}" if axis < 0 else f"a shape of more than {MAX_RANK} axes")
            shape.append(axis)
        return tuple(shape)
