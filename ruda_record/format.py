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
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np

from .blocks import Access, Block, checksums
from .decode import Decoder
from .encode import Encoder
from .errors import RecorderError, quote
from .layout import ALIGNMENT, MAX_HEADER, Segment, align, little_endian

MAGIC = b"\x89RUDA\r\n\x1a"  # a byte over 127 and both line endings: text conversions damage it visibly
VERSION = 1
PRELUDE = struct.Struct("<8sIIQ")
CHUNK = 1 << 18  # bytes that are checksummed and copied at a time: they stay in the cache in between


def write_record(file: BinaryIO, encoded: Encoder) -> None:
    """Write what `encoded` holds into a seekable file: the arrays first, since the header has their checksums."""
    access, start = Access(file), _data_start(encoded)
    segments = [segment for segment, _, _ in encoded.arrays]

    def write(block: Block) -> int:
        segment, array, _ = encoded.arrays[block.index]
        if block.begin or not block.last:
            size = segment.dtype.itemsize
            array = array.reshape(-1)[block.begin // size : block.end // size]
        crc, at = 0, start + segment.offset + block.begin
        for chunk in stored_chunks(segment, array):
            crc = zlib.crc32(chunk, crc)
            access.write(chunk, at)
            at += len(chunk)
        if block.last:
            access.write(bytes(align(segment.nbytes) - segment.nbytes), at)
        return crc

    crcs = checksums(segments, write, lambda index: not encoded.arrays[index][1].flags.c_contiguous, access.threads)
    _fill_in(encoded, crcs)
    access.write(_front(encoded), 0)


def _fill_in(encoded: Encoder, crcs: Iterable[int]) -> None:
    for (_, _, position), crc in zip(encoded.arrays, crcs):
        struct.pack_into(">I", encoded.header, position, crc)  # msgpack's integers are big-endian


def stream_record(file: BinaryIO, encoded: Encoder) -> None:
    """Write the same bytes from first to last, into a file that cannot seek: the checksums take a pass of their own."""
    crcs = []
    for segment, array, _ in encoded.arrays:
        crc = 0
        for chunk in stored_chunks(segment, array):
            crc = zlib.crc32(chunk, crc)
        crcs.append(crc)
    _fill_in(encoded, crcs)
    file.write(_front(encoded))
    for segment, array, _ in encoded.arrays:
        for chunk in stored_chunks(segment, array):
            file.write(chunk)
        file.write(bytes(align(segment.nbytes) - segment.nbytes))


def _data_start(encoded: Encoder) -> int:
    return align(PRELUDE.size + len(encoded.header) + 4)


def _front(encoded: Encoder) -> bytes:
    """Everything before the data area."""
    start = _data_start(encoded)
    front = PRELUDE.pack(MAGIC, VERSION, len(encoded.header), start + encoded.data_bytes) + encoded.header
    front += struct.pack("<I", zlib.crc32(front))
    return front + bytes(start - len(front))


def stored_chunks(segment: Segment, array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array as they are stored, piece by piece."""
    for chunk in _chunks(array):
        yield little_endian(_converted(chunk, segment)).view(np.uint8).data


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
        _expect_zeros(memoryview(file.read(self.start - PRELUDE.size - header_bytes - 4)), "the header")
        decoded = Decoder(header, length - self.start)
        self.version, self.precision = VERSION, decoded.precision
        self.data, self.segments = decoded.data, decoded.segments

    def load(self) -> Any:
        """The data, with arrays of its own, after every byte has been verified."""
        arrays = [np.empty(segment.shape, segment.dtype) for segment in self.segments]
        self._read(self.segments, arrays)
        return self._with([little_endian(array) for array in arrays])

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
        """Compare every byte with its checksum, in little memory."""
        self._read(self.segments, None)

    def one(self, segment: Segment) -> np.ndarray:
        """One array, verified; nothing else of the data area is read."""
        array = np.empty(segment.shape, segment.dtype)
        self._read([segment], [array])
        return little_endian(array)

    def _read(self, segments: list[Segment], arrays: list[np.ndarray] | None) -> None:
        """Read and verify arrays, into `arrays` or, without them, into a buffer that is used again and again."""
        access = Access(self._file)

        def read(block: Block) -> int:
            segment, crc = segments[block.index], 0
            whole = None if arrays is None else arrays[block.index].reshape(-1).view(np.uint8).data
            scratch = memoryview(bytearray(min(CHUNK, block.end - block.begin))) if whole is None else None
            for at in range(block.begin, block.end, CHUNK):
                to = min(at + CHUNK, block.end)
                part = scratch[: to - at] if scratch is not None else whole[at:to]  # type: ignore[index]
                access.read(part, self.start + segment.offset + at)
                crc = zlib.crc32(part, crc)
            if block.last:
                zeros = memoryview(bytearray(align(segment.nbytes) - segment.nbytes))
                access.read(zeros, self.start + segment.offset + segment.nbytes)
                _expect_zeros(zeros, quote(segment.place))
            return crc

        for segment, crc in zip(segments, checksums(segments, read, lambda index: False, access.threads)):
            if crc != segment.crc:
                raise RecorderError(
                    f"{quote(segment.place)} is damaged: the checksum of its bytes is {crc:08x}, expected {segment.crc:08x}"
                )

    def _with(self, arrays: list[np.ndarray]) -> Any:
        following = iter(arrays)
        return replace_segments(self.data, lambda segment: next(following))


def _expect_zeros(found: memoryview, before: str) -> None:
    if any(found):
        raise RecorderError(f"damaged: the {len(found)} bytes behind {before} are not all zero")


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


def replace_segments(value: Any, array_of: Callable[[Segment], np.ndarray]) -> Any:
    """The same data with arrays in the places of the segments, in the order of the header; lists and dicts in place."""
    kind = type(value)
    if kind is Segment:
        return array_of(value)
    if kind is dict or kind is list:
        for key, item in value.items() if kind is dict else enumerate(value):
            value[key] = replace_segments(item, array_of)
    elif kind is tuple:
        return tuple(replace_segments(item, array_of) for item in value)
    return value
