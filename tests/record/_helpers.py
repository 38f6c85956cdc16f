"""Comparing to the last bit, and making records that no recorder would write."""
from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import msgpack
import numpy as np

PRELUDE = struct.Struct("<8sIIQ")
MAGIC = b"\x89RUDA\r\n\x1a"


def assert_same(got: Any, expected: Any, at: str = "") -> None:
    """The same types, values, dtypes, shapes and bits; NumPy's other byte order counts as the same dtype."""
    assert type(got) is type(expected), f"{at}: {type(got)} instead of {type(expected)}"
    if isinstance(expected, np.ndarray | np.generic):
        native = expected.astype(expected.dtype.newbyteorder("="))
        assert got.dtype == native.dtype and got.shape == native.shape, f"{at}: {got.dtype} {got.shape}"
        assert got.tobytes() == native.tobytes(), f"{at}: {got} instead of {expected}"
    elif isinstance(expected, dict):
        assert list(got) == list(expected), f"{at}: keys {list(got)} instead of {list(expected)}"
        for key, item in expected.items():
            assert_same(got[key], item, f"{at}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(got) == len(expected), f"{at}: {len(got)} items instead of {len(expected)}"
        for index, item in enumerate(expected):
            assert_same(got[index], item, f"{at}/{index}")
    elif isinstance(expected, float):
        assert struct.pack("d", got) == struct.pack("d", expected), f"{at}: {got} instead of {expected}"
    else:
        assert got == expected, f"{at}: {got} instead of {expected}"


def forge(header: bytes, data: bytes = b"", version: int = 1, length: int | None = None) -> bytes:
    """A file around any header, with right checksums and lengths wherever they are not given."""
    start = -(-(PRELUDE.size + len(header) + 4) // 256) * 256
    front = PRELUDE.pack(MAGIC, version, len(header), start + len(data) if length is None else length) + header
    front += struct.pack("<I", zlib.crc32(front))
    return front + bytes(start - len(front)) + data


def header(data: bytes, precision: str = "full") -> bytes:
    """The msgpack of a header around the msgpack of its data."""
    return b"\x82" + msgpack.packb("precision") + msgpack.packb(precision) + msgpack.packb("data") + data


def entry(dtype: str, shape: Any, offset: int, nbytes: int, crc: int = 0) -> list[Any]:
    """What stands in a header for an array."""
    return ["array", dtype, shape, offset, nbytes, crc]


def forge_arrays(arrays: dict[str, list[Any]], data: bytes = b"") -> bytes:
    """A record of a dict of forged entries, over a data area."""
    return forge(header(msgpack.packb(arrays)), data)


def read(kind, blob: bytes):
    """What a recorder of this kind finds in the bytes of a file."""
    return kind()._read(io.BytesIO(blob), len(blob))[0]
