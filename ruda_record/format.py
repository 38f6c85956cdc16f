"""The file format, version 1: what stands where, written and read as a stream. `docs/records.md` has it byte by byte.

```
 0  magic (8)    8  version (4)   12  header length H (4)   16  file length (8)
24  header (H)  24+H  crc32 of all before it (4)   zeros up to a multiple of 256: the data area
    per array: its bytes, little-endian and in C order, then zeros up to a multiple of 256
```

Every byte is either compared with the one value that it may have or covered by a checksum, so no damage goes unseen.
"""
from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from .decode import Decoder
from .encode import Encoder
from .errors import RecorderError, quote
from .layout import ALIGNMENT, MAX_HEADER, Segment, align, little_endian

MAGIC = b"\x89RUDA\r\n\x1a"  # a byte over 127 and both line endings: text conversions damage it visibly
VERSION = 1
PRELUDE = struct.Struct("<8sIIQ")
CHUNK = 1 << 20  # bytes that are checksummed and copied at a time: they stay in the cache in between


def write_record(file: BinaryIO, encoded: Encoder) -> None:
    """Write what `encoded` holds into a seekable file: the arrays first, since the header has their checksums."""
    header = encoded.header
    start = align(PRELUDE.size + len(header) + 4)
    file.seek(start)
    for segment, array, position in encoded.arrays:
        crc = 0
        for chunk in _chunks(array):
            stored = little_endian(_converted(chunk, segment)).view(np.uint8).data
            crc = zlib.crc32(stored, crc)
            file.write(stored)
        file.write(bytes(align(segment.nbytes) - segment.nbytes))
        struct.pack_into(">I", header, position, crc)  # msgpack's integers are big-endian
    file.seek(0)
    front = PRELUDE.pack(MAGIC, VERSION, len(header), start + encoded.data_bytes) + header
    front += struct.pack("<I", zlib.crc32(front))
    file.write(front + bytes(start - len(front)))


def _chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    """The elements in C order, in flat contiguous pieces of at most `CHUNK` bytes: views where that is possible."""
    if array.nbytes <= CHUNK:
        yield np.asarray(array, order="C").reshape(-1)
    elif array.flags.c_contiguous:
        flat, step = array.reshape(-1), CHUNK // array.itemsize
        for at in range(0, flat.size, step):
            yield flat[at : at + step]
    else:
        rows = CHUNK // (array.nbytes // len(array))
        for at in range(0, len(array), max(rows, 1)):
            yield from _chunks(array[at : at + rows] if rows else array[at])


def _converted(chunk: np.ndarray, segment: Segment) -> np.ndarray:
    """A piece of an array in the dtype and byte order in which it is stored."""
    if chunk.dtype == segment.dtype:
        return chunk
    with np.errstate(all="ignore"):
        stored = chunk.astype(segment.dtype)
    if segment.dtype.itemsize < chunk.dtype.itemsize and (np.isinf(stored) & np.isfinite(chunk)).any():
        largest = float(np.finfo(segment.dtype).max)
        raise RecorderError(
            f"{quote(segment.place)} has finite values beyond {largest:g}, the largest {segment.dtype}; "
            "save it with FullPrecisionSettings"
        )
    return stored


class RecordReader:
    """An open record: the prelude, the header and the length of the file are checked, the arrays are not yet read."""

    def __init__(self, file: BinaryIO, length: int):
        self._file = file
        file.seek(0)
        prelude = file.read(PRELUDE.size)
        header_bytes, self.start = _check_prelude(prelude, length)
        header = file.read(header_bytes)
        if file.read(4) != struct.pack("<I", zlib.crc32(header, zlib.crc32(prelude))):
            raise RecorderError("the header is damaged: its checksum is wrong")
        self._expect_zeros(self.start - PRELUDE.size - header_bytes - 4, "the header")
        decoded = Decoder(header, length - self.start)
        self.version, self.precision = VERSION, decoded.precision
        self.data, self.segments = decoded.data, decoded.segments

    def load(self) -> Any:
        """The data, with arrays of its own, after every byte has been verified."""
        self._file.seek(self.start)
        arrays = []
        for segment in self.segments:
            array = np.empty(segment.shape, segment.dtype)
            self._read(segment, array.reshape(-1).view(np.uint8).data)
            arrays.append(little_endian(array))
        return self._with(arrays)

    def map(self) -> Any:
        """The data, with read-only arrays that the system reads from the file when they are looked at; unverified."""
        raw = np.memmap(self._file, np.uint8, "r")
        arrays = []
        for segment in self.segments:
            array = little_endian(np.ndarray(segment.shape, segment.dtype, raw, self.start + segment.offset))
            array.flags.writeable = False
            arrays.append(array)
        return self._with(arrays)

    def verify(self) -> None:
        """Compare every byte with its checksum, in a megabyte of memory."""
        self._file.seek(self.start)
        scratch = memoryview(bytearray(CHUNK))
        for segment in self.segments:
            self._read(segment, scratch)

    def _read(self, segment: Segment, target: memoryview) -> None:
        """Read and verify an array, into `target` or, where that is shorter, over and over it."""
        done = crc = 0
        while done < segment.nbytes:
            begin = done % len(target)
            part = target[begin : begin + min(CHUNK, segment.nbytes - done)]
            count = self._file.readinto(part)  # type: ignore[attr-defined]
            if not count:
                raise RecorderError(f"cut short while it was read, in {quote(segment.place)}")
            crc = zlib.crc32(part[:count], crc)
            done += count
        if crc != segment.crc:
            raise RecorderError(
                f"{quote(segment.place)} is damaged: the checksum of its bytes is {crc:08x}, expected {segment.crc:08x}"
            )
        self._expect_zeros(align(done) - done, quote(segment.place))

    def _expect_zeros(self, count: int, before: str) -> None:
        if self._file.read(count) != bytes(count):
            raise RecorderError(f"damaged: the {count} bytes behind {before} are not all zero")

    def _with(self, arrays: list[np.ndarray]) -> Any:
        following = iter(arrays)
        return _replace(self.data, lambda segment: next(following))


def _check_prelude(prelude: bytes, length: int) -> tuple[int, int]:
    """The length of the header and the start of the data area, of a file that has `length` bytes."""
    if not prelude.startswith(MAGIC):
        begins = f"begins with {prelude[:8]!r}" if prelude else "is empty"
        raise RecorderError(f"not a ruda record: it {begins}, and a record begins with {MAGIC!r}")
    if len(prelude) < PRELUDE.size:
        raise RecorderError(f"cut short: it has {length} bytes, and a record has {ALIGNMENT} or more")
    _, version, header_bytes, file_bytes = PRELUDE.unpack(prelude)
    if version != VERSION:
        raise RecorderError(f"a record of version {version}, this program reads up to {VERSION}")
    if file_bytes != length:
        what = "cut short" if length < file_bytes else "too long"
        raise RecorderError(f"{what}: it has {length} bytes, and says that it has {file_bytes}")
    start = align(PRELUDE.size + header_bytes + 4)
    if header_bytes > MAX_HEADER or start > length:
        raise RecorderError(
            f"its header claims {header_bytes} bytes, in a file of {length}, and where {MAX_HEADER} are allowed"
        )
    return header_bytes, start


def _replace(value: Any, array_of: Callable[[Segment], np.ndarray]) -> Any:
    """The same data with arrays in the places of the segments, in the order of the header; lists and dicts in place."""
    kind = type(value)
    if kind is Segment:
        return array_of(value)
    if kind is dict or kind is list:
        for key, item in value.items() if kind is dict else enumerate(value):
            value[key] = _replace(item, array_of)
    elif kind is tuple:
        return tuple(_replace(item, array_of) for item in value)
    return value
