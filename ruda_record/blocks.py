"""Arrays in blocks, so that several threads checksum and copy at once: neither holds Python's lock.

The crc32 of a whole is had from those of its blocks. A message is a polynomial over the two numbers 0 and 1, and its crc
the remainder modulo P; so crc(ab) = crc(a) x^(8 len b) + crc(b), in the arithmetic of remainders, as in zlib's
crc32_combine.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from .errors import RecorderError
from .layout import Segment

BLOCK = 8 << 20  # bytes that one thread takes on at a time
WORKERS = min(4, (os.cpu_count() or 1) + 2)  # more than there are processors, since some wait for the disk
SYNC_EVERY = 32 << 20  # bytes after which a thread has the disk catch up, while the others go on
_P = 0xEDB88320  # the generator of crc32, from x^31 in the lowest bit to x^0 in the highest; x^32 is implied


def combine(first: int, second: int, length: int) -> int:
    """The crc32 of two messages behind each other, from theirs and the length in bytes of the second.

    >>> import zlib
    >>> combine(zlib.crc32(b"123"), zlib.crc32(b"456789"), 6) == zlib.crc32(b"123456789")
    True
    """
    return _times(_power(8 * length), first) ^ second if first else second


def _times(a: int, b: int) -> int:
    """The product of two remainders."""
    product, bit = 0, 1 << 31
    while bit:
        if a & bit:
            product ^= b
        b = b >> 1 ^ _P if b & 1 else b >> 1
        bit >>= 1
    return product


@functools.lru_cache(16)
def _power(n: int) -> int:
    """x^n."""
    result, square = 1 << 31, 1 << 30
    while n:
        if n & 1:
            result = _times(square, result)
        square, n = _times(square, square), n >> 1
    return result


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes from `begin` to `end` of segment number `index`."""

    index: int
    begin: int
    end: int
    last: bool


def _groups(segments: list[Segment], whole: Callable[[int], bool]) -> Iterator[list[Block]]:
    """Blocks in order; those of small arrays together, until they are worth a thread."""
    group, size = [], 0
    for index, segment in enumerate(segments):
        step = segment.nbytes if whole(index) else BLOCK
        for begin in range(0, max(segment.nbytes, 1), max(step, 1)):
            end = min(begin + step, segment.nbytes)
            group.append(Block(index, begin, end, end == segment.nbytes))
            size += end - begin
            if size >= BLOCK:
                yield group
                group, size = [], 0
    if group:
        yield group


def checksums(
    segments: list[Segment], work: Callable[[Block], int], whole: Callable[[int], bool], threads: bool
) -> list[int]:
    """The crc32 of each segment, where `work` does what is to be done with a block and returns its crc32.

    `whole(index)` says that a segment cannot be cut. Without `threads`, or where little is to be done, the blocks come
    strictly in order.
    """
    groups = list(_groups(segments, whole))

    def run(group: list[Block]) -> list[int]:
        return [work(block) for block in group]

    def collect(results: Iterable[list[int]]) -> list[int]:
        found = [0] * len(segments)
        for group, crcs in zip(groups, results):
            for block, crc in zip(group, crcs):
                found[block.index] = combine(found[block.index], crc, block.end - block.begin) if block.begin else crc
        return found

    if not threads or len(groups) < 2:
        return collect(map(run, groups))
    from concurrent.futures import ThreadPoolExecutor  # a twentieth of the time that importing ruda may take

    with ThreadPoolExecutor(WORKERS) as pool:
        try:
            return collect(pool.map(run, groups))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class Access:
    """Reads and writes a file at any place: from many threads where it is one of the system's, else in order."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._descriptor: int | None = None
        if hasattr(os, "preadv"):
            try:
                self._descriptor = file.fileno()
            except OSError:  # a file in memory or inside another
                pass
        self.threads = self._descriptor is not None
        self._behind = 0

    def read(self, into: memoryview, offset: int) -> None:
        """Fill a buffer from a place in the file."""
        if self._descriptor is None:
            self._file.seek(offset)
        while len(into):
            if self._descriptor is None:
                count = self._file.readinto(into)  # type: ignore[attr-defined]
            else:
                count = os.preadv(self._descriptor, [into], offset)
            if not count:
                raise RecorderError("cut short while it was read")
            into, offset = into[count:], offset + count

    def write(self, content: Any, offset: int) -> None:
        """Write bytes to a place in the file."""
        if self._descriptor is None:
            self._file.seek(offset)
            self._file.write(content)
            return
        left = memoryview(content)
        while len(left):
            count = os.pwrite(self._descriptor, left, offset)
            left, offset = left[count:], offset + count
            self._behind += count  # threads may lose each other's counts here, which only moves the next sync
        if self._behind >= SYNC_EVERY and hasattr(os, "fdatasync"):
            self._behind = 0
            os.fdatasync(self._descriptor)
