"""`python -m ruda_record inspect FILE` prints what a record holds; `verify FILE` checks every byte of it."""
from __future__ import annotations

import argparse
import reprlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import RecorderError, blaming, quote
from .files import open_record
from .format import RecordReader
from .layout import Place, Segment


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 if all is well, 1 with a message if the record is not."""
    parser = argparse.ArgumentParser(prog="python -m ruda_record", description="Look into a record.")
    parser.add_argument("command", choices=("inspect", "verify"), help="print what it holds, or check every byte of it")
    parser.add_argument("file", metavar="FILE", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        with blaming(chosen.file):
            file, length = open_record(chosen.file)
            with file:
                reader = RecordReader(file, length)
                if chosen.command == "verify":
                    reader.verify()
    except RecorderError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.command == "inspect":
        _print_table(list(_rows(reader.data, Place())))
    stored = sum(segment.nbytes for segment in reader.segments)
    sound = ", every byte verified" if chosen.command == "verify" else ""
    print(
        f"{quote(chosen.file)}: version {reader.version}, {reader.precision} precision, {len(reader.segments)} arrays "
        f"of {stored} bytes, file of {length} bytes{sound}"
    )
    return 0


def _rows(value: Any, place: Place) -> Iterator[tuple[str, str, str, str, str]]:
    """(name, type, shape, bytes, value or checksum) of each array and value; containers without arrays are one row."""
    kind = type(value)
    if kind is Segment:
        yield _name(place), value.dtype.name, str(value.shape), str(value.nbytes), f"crc32 {value.crc:08x}"
    elif kind is dict and value:
        for key, item in value.items():
            yield from _rows(item, Place(place, key))
    elif kind in (list, tuple) and any(type(item) in (Segment, dict, list, tuple) for item in value):
        for index, item in enumerate(value):
            yield from _rows(item, Place(place, index))
    else:
        shape = f"({len(value)},)" if kind in (list, tuple, dict) else ""
        yield _name(place), kind.__name__, shape, "", str(value) if isinstance(value, np.generic) else _short(value)


def _name(place: Place) -> str:
    # Without the quotes, but with what is not printable escaped: a record may come from anyone.
    return quote(place)[1:-1] or "/"


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of thousands of digits, and a record may hold one.
        return f"int of {x.bit_length()} bits" if x.bit_length() > 256 else repr(x)


_short = _Short().repr


def _print_table(rows: list[tuple[str, str, str, str, str]]) -> None:
    table = [("name", "type", "shape", "bytes", "value"), *rows]
    widths = [max(map(len, column)) for column in zip(*table)]
    for name, kind, shape, size, value in table:
        line = f"{name:<{widths[0]}}  {kind:<{widths[1]}}  {shape:<{widths[2]}}  {size:>{widths[3]}}  {value}"
        print(line.rstrip())


if __name__ == "__main__":
    sys.exit(main())
