"""Gzip files of one member, read as a stream that no bomb can blow up.

Nothing is decompressed but what a reader asks for, and readers ask for what a header promises. What may be promised is
bounded first: deflate packs 1032 bytes into one at the very best, so the size of the file says how much can be in it.
"""
from __future__ import annotations

import gzip
import io
import zlib
from typing import BinaryIO, cast

from .errors import RecorderError

BEST_RATIO = 1032  # 258 bytes for two bits; Deutsch, RFC 1951, and zlib's own technical notes
CHUNK = 1 << 16
# Random mantissas do not shrink: level 6 takes three times as long as level 1 for a percent or two.
LEVEL = 1


def gzip_writer(file: BinaryIO) -> BinaryIO:
    """A file that compresses what is written to it; without a name or time, so that equal data are equal bytes."""
    return cast(BinaryIO, gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=LEVEL, mtime=0))


class GzipReader(io.RawIOBase):
    """What is in an open gzip file: read forward only, and never more than asked for. `room` bounds its length."""

    def __init__(self, file: BinaryIO, length: int):
        self._file, self._position, self._left = file, 0, b""
        self._inflate = zlib.decompressobj(31)  # zlib's way to say gzip: with its checksum and its length
        self.room = length * BEST_RATIO

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence or offset != self._position:
            raise io.UnsupportedOperation("a gzip file is read from its beginning to its end")
        return offset

    def peek(self, size: int) -> bytes:
        """The next `size` bytes, or what there is of them, without moving on."""
        while len(self._left) < size:
            more = self._some(size - len(self._left))
            if not more:
                break
            self._left += more
        return self._left[:size]

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            raise ValueError("a size is needed: what is in a gzip file may be anything")
        parts, wanted = [], size
        while wanted:
            part = self._left[:wanted] or self._some(wanted)
            if not part:
                break
            self._left = self._left[len(part) :]
            parts.append(part)
            wanted -= len(part)
        self._position += size - wanted
        return b"".join(parts)

    def readinto(self, buffer) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        part = self._left[: len(view)] or self._some(len(view))
        self._left = self._left[len(part) :]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _some(self, limit: int) -> bytes:
        """At most `limit` further bytes; none at the end."""
        try:
            while not self._inflate.eof:
                packed = self._inflate.unconsumed_tail or self._file.read(CHUNK)
                part = self._inflate.decompress(packed, min(limit, CHUNK))
                if part:
                    return part
                if not packed:
                    raise RecorderError("cut short: the gzip stream in it does not end")
        except zlib.error as error:
            raise RecorderError(f"the gzip stream in it is damaged: {error}") from error
        return b""

    def expect_end(self) -> None:
        """Refuse more than was read, inside the gzip stream or behind it; its checksum is compared too."""
        if self.read(1):
            raise RecorderError("too long: its gzip stream goes on behind the record")
        if self._inflate.unused_data or self._file.read(1):
            raise RecorderError("too long: something follows the gzip stream")
