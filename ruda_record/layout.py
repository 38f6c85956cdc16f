"""The header of a record: nested plain data as msgpack, with a `Segment` in the place of each array.

msgpack has no tuples, arrays or integers over 64 bits, so a dict is a map and everything else with parts is an array
that begins with its kind: `["list", ...]`, `["tuple", ...]`, `["int", bytes]`, `["scalar", dtype, bytes]` and
`["array", dtype, shape, offset, nbytes, crc32]`. Offsets count from the start of the data area.

The limits hold for writing as for reading, so that whatever was saved can be loaded, and are checked value by value: no
count that a header claims reserves memory.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from .errors import shorten
from .settings import BFLOAT16

ALIGNMENT = 256
MAX_HEADER = 12 << 20  # bytes
MAX_VALUES = 1 << 18  # keys, values and containers; an array counts as one
MAX_ARRAYS = 1 << 16
MAX_DEPTH = 100
MAX_RANK = 64  # NumPy's own
MAX_BYTES = (1 << 63) - 1

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(name)
    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
}
DTYPES["bfloat16"] = BFLOAT16

BIG_ENDIAN = sys.byteorder == "big"


def align(offset: int) -> int:
    """The next multiple of 256."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def little_endian(array: np.ndarray) -> np.ndarray:
    """The array with its bytes in little-endian order: itself on nearly every machine.

    Its own inverse, so it serves reading too.
    """
    return array.view(f"u{array.itemsize}").byteswap().view(array.dtype) if BIG_ENDIAN else array


class Place:
    """A place in nested data, which prints as a JSON pointer (RFC 6901): `/model/layers/0/weight`.

    It points to its container's place, so that a million places below one very long key share that key.
    """

    __slots__ = ("key", "parent", "depth")

    def __init__(self, parent: Place | None = None, key: str | int = ""):
        self.parent, self.key = parent, key
        self.depth = 0 if parent is None else parent.depth + 1

    def keys(self) -> tuple[str | int, ...]:
        """The keys from the top to here."""
        place, keys = self, []
        while place.parent is not None:
            keys.append(place.key)
            place = place.parent
        return tuple(reversed(keys))

    def __str__(self) -> str:
        return "".join("/" + shorten(str(key)).replace("~", "~0").replace("/", "~1") for key in self.keys())


@dataclass(frozen=True, slots=True)
class Segment:
    """Where an array lies: `nbytes` at `offset` of the data area, with their crc32 when read from a header."""

    place: Place
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc: int = 0
