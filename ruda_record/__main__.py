"""`python -m ruda_record inspect FILE` prints what a record holds, `verify FILE` checks every byte, `diff A B` compares.

It takes the files of all recorders, by their suffixes, and safetensors. The exit status of `inspect` and `verify` is 0,
or 1 where the record is not sound. That of `diff` is 0 where both hold the same, 1 where they differ, and 2 where one of
them could not be read. A command line that makes no sense gives 2.
"""
from __future__ import annotations

import argparse
import reprlib
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .compare import differences
from .errors import RecorderError, quote
from .kinds import leaves, opened
from .layout import Place, Segment


def main(arguments: list[str] | None = None) -> int:
    """Run the command line, and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ruda_record", description="Look into records, also safetensors.")
    commands = parser.add_subparsers(dest="command", metavar="{inspect,verify,diff}", required=True)
    for name, files, what in (
        ("inspect", ["FILE"], "print a table of what it holds"),
        ("verify", ["FILE"], "check every byte of it"),
        ("diff", ["A", "B"], "print what is only in A (-), only in B (+), and not the same in both (!)"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        for file in files:
            command.add_argument(file, type=Path)
    chosen = parser.parse_args(arguments)
    try:
        return _diff(chosen.A, chosen.B) if chosen.command == "diff" else _look(chosen.FILE, chosen.command)
    except (RecorderError, ImportError) as error:
        print(error, file=sys.stderr)
        return 2 if chosen.command == "diff" else 1


def _look(path: Path, command: str) -> int:
    with opened(path, command) as record:
        if command == "inspect":
            _print_table(list(_rows(record.data)))
        arrays = [x for _, x in leaves(record.data, Place(), False) if isinstance(x, Segment | np.ndarray)]
        sound = ", every byte verified" if command == "verify" else ""
        print(
            f"{quote(path)}: {record.about}, {len(arrays)} arrays of {sum(x.nbytes for x in arrays)} bytes, "
            f"file of {record.length} bytes{sound}"
        )
    return 0


def _diff(a: Path, b: Path) -> int:
    with opened(a, "diff") as one, opened(b, "diff") as other:
        found = 0
        for sign, name, what in differences(one.data, other.data):
            print(f"{sign} {_printable(name)}  {quote(what)[1:-1]}")
            found += 1
    print(f"{quote(a)} and {quote(b)} " + (f"differ in {found} places" if found else "hold the same"))
    return int(found > 0)


def _rows(data: Any) -> Iterator[tuple[str, str, str, str, str]]:
    """(name, type, shape, bytes, value or checksum) of each array and value; containers without arrays are one row."""
    for place, value in leaves(data, Place(), True):
        kind = type(value)
        if isinstance(value, Segment | np.ndarray):
            crc = value.crc if isinstance(value, Segment) else zlib.crc32(value.reshape(-1).view(np.uint8).data)
            yield _printable(str(place)), value.dtype.name, str(value.shape), str(value.nbytes), f"crc32 {crc:08x}"
        else:
            shape = f"({len(value)},)" if kind in (list, tuple, dict) else ""
            text = str(value) if isinstance(value, np.generic) else _short(value)
            yield _printable(str(place)), kind.__name__, shape, "", text


def _printable(name: str) -> str:
    # Without the quotes, but with what is not printable escaped: a record may come from anyone.
    return quote(name)[1:-1] or "/"


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
