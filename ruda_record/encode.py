"""Writes the header of a record: plain data to msgpack, and where each array will lie (see `layout`)."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import msgpack
import numpy as np

from .errors import RecorderError, quote
from .layout import (
    DTYPES,
    MAX_ARRAYS,
    MAX_DEPTH,
    MAX_HEADER,
    MAX_VALUES,
    Place,
    Segment,
    align,
    little_endian,
)
from .settings import PrecisionSettings


class Encoder:
    """Walks the data once: `header` is its msgpack, `arrays` holds (segment, array, position of the crc32 in it)."""

    def __init__(self, data: Any, settings: PrecisionSettings):
        self.data, self.settings = data, settings
        self.arrays: list[tuple[Segment, np.ndarray, int]] = []
        self.data_bytes = 0
        self._packer = msgpack.Packer(autoreset=False, unicode_errors="surrogatepass")
        self._place = Place()
        self._values = 0
        self._packer.pack_map_header(2)
        for word in ("precision", settings.name, "data"):
            self._packer.pack(word)
        self._value(data)
        self.header = bytearray(self._packer.bytes())

    def _fail(self, message: str) -> NoReturn:
        at = quote(self._place) if self._place.depth else "this"
        raise RecorderError(f"a record cannot hold {at}: {message}")

    def _count(self) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            self._fail(
                f"a record holds at most {MAX_VALUES} values besides the elements of its arrays; "
                "write np.asarray(numbers) for a long list of numbers"
            )

    def _pack(self, value: Any) -> None:
        size = len(value) if type(value) in (str, bytes) else 0
        if size <= MAX_HEADER:  # asked first, so that gigabytes of text are not copied to learn that they are too long
            self._packer.pack(value)
        if size > MAX_HEADER or self._packer.getbuffer().nbytes > MAX_HEADER:
            self._fail(
                f"what is not an array takes more than {MAX_HEADER} bytes; "
                "write np.frombuffer(blob, np.uint8) for a large bytes object"
            )

    def _value(self, value: Any) -> None:
        self._count()
        kind = type(value)
        if value is None or kind in (bool, float, str, bytes):
            self._pack(value)
        elif kind is int:
            self._int(value)
        elif kind is dict:
            self._packer.pack_map_header(len(value))
            self._items(value.items(), named=True)
        elif kind is list or kind is tuple:
            self._packer.pack_array_header(len(value) + 1)
            self._pack(kind.__name__)
            self._items(enumerate(value))
        elif kind is np.ndarray or kind is np.memmap:
            self._array(value)
        elif isinstance(value, np.generic) and value.dtype.name in DTYPES:
            flat = np.asarray(value, DTYPES[value.dtype.name]).reshape(1)
            self._packer.pack_array_header(3)
            for part in ("scalar", value.dtype.name, little_endian(flat).tobytes()):
                self._pack(part)
        else:
            self._fail(_advice(value))

    def _items(self, items: Iterable[tuple[Any, Any]], named: bool = False) -> None:
        container = self._place
        if container.depth == MAX_DEPTH:
            self._fail(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
        for key, item in items:
            self._place = Place(container, key)
            if named:
                if type(key) is not str:
                    self._fail(f"keys are str, not {type(key).__name__}; write {{str(key): value for ...}}")
                self._count()
                self._pack(key)
            self._value(item)
        self._place = container

    def _int(self, value: int) -> None:
        if -(1 << 63) <= value < 1 << 64:
            self._pack(value)
            return
        self._packer.pack_array_header(2)
        self._pack("int")
        self._pack(value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def _array(self, array: np.ndarray) -> None:
        given = DTYPES.get(array.dtype.name)
        if given is None:
            self._fail(f"arrays are of dtype {', '.join(DTYPES)}, not {array.dtype}")
        if len(self.arrays) == MAX_ARRAYS:
            self._fail(f"a record holds at most {MAX_ARRAYS} arrays; np.stack those of one shape")
        dtype = self.settings.stored(given)
        segment = Segment(self._place, dtype, array.shape, self.data_bytes, array.size * dtype.itemsize)
        self.data_bytes = align(self.data_bytes + segment.nbytes)
        self._packer.pack_array_header(6)
        for part in ("array", dtype.name, array.shape, segment.offset, segment.nbytes, 0xFFFFFFFF):
            self._pack(part)
        # The last part always takes five bytes; its four digits are filled in when the segment has been written.
        self.arrays.append((segment, array, self._packer.getbuffer().nbytes - 4))


def _advice(value: Any) -> str:
    """Why a value is not plain data, and what to write instead."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    if isinstance(value, np.ndarray):
        fix = "write np.asarray(x)"
    elif isinstance(value, np.generic):
        fix = f"dtypes are {', '.join(DTYPES)}"
    elif isinstance(value, dict | list | tuple | str | int | float | bytes | bytearray | set | frozenset):
        plain = next((k for k in (dict, list, tuple, str, int, float, bytes) if isinstance(value, k)), None)
        plain = plain or (bytes if isinstance(value, bytearray) else list)
        fix = f"it would come back as another type, so write {plain.__name__}(x)"
    elif hasattr(value, "numpy"):
        fix = "write x.numpy()"
    elif hasattr(value, "__cuda_array_interface__"):
        fix = "write cupy.asnumpy(x)"
    else:
        fix = "write its parts as a dict"
    return (
        f"it is a {name}, and a record holds None, bool, int, float, str, bytes, list, tuple, dict and NumPy arrays; "
        f"{fix}"
    )
