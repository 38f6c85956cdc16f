"""Which kind of record a file is, by its name: for the command line, which takes any."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .errors import blaming
from .exchange import SUFFIX, read_safetensors
from .files import open_record
from .format import RecordReader
from .layout import Place, Segment
from .recorders import (
    BinGzFileRecorder,
    FileRecorder,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    PrettyJsonFileRecorder,
)

RECORDERS: dict[str, type[FileRecorder]] = {
    kind.suffix: kind
    for kind in (
        BinGzFileRecorder, NamedMpkGzFileRecorder, JsonGzFileRecorder, NamedMpkFileRecorder, PrettyJsonFileRecorder,
    )
}  # fmt: skip


@dataclass
class Opened:
    """What a file holds: in `data`, segments stand for arrays that were not read."""

    data: Any
    about: str
    length: int


@contextmanager
def opened(path: Path, how: str) -> Iterator[Opened]:
    """A record of any kind: to "inspect" it (a .bin alone can be without reading it all), "verify" or "diff" it."""
    with ExitStack() as stack:
        with blaming(path):
            file, length = open_record(path)
            found = _look_into(path, stack.enter_context(file), length, how)
        yield found


def _look_into(path: Path, file: BinaryIO, length: int, how: str) -> Opened:
    if path.name.endswith(SUFFIX):
        return Opened(read_safetensors(path), "safetensors", length)
    kind = next((kind for suffix, kind in RECORDERS.items() if path.name.endswith(suffix)), None)
    if kind is not None:
        data, precision = kind()._read(file, length)
        return Opened(data, f"{kind.suffix[1:]}, version 1, {precision} precision", length)
    reader = RecordReader(file, length)
    if how == "verify":
        reader.verify()
    about = f"version {reader.version}, {reader.precision} precision"
    return Opened(reader.map() if how == "diff" else reader.data, about, length)


def leaves(value: Any, place: Place, short_lists: bool) -> Iterator[tuple[Place, Any]]:
    """(place, value) of everything that has no parts; a list without arrays is one value where `short_lists`."""
    kind = type(value)
    parts = (Segment, np.ndarray, np.memmap, dict, list, tuple)
    if kind is dict and value:
        for key, item in value.items():
            yield from leaves(item, Place(place, key), short_lists)
    elif kind in (list, tuple) and value and not (short_lists and not any(type(item) in parts for item in value)):
        for index, item in enumerate(value):
            yield from leaves(item, Place(place, index), short_lists)
    else:
        yield place, value
