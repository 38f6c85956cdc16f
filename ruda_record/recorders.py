"""What users hold: a recorder saves nested plain data and loads it again."""
from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .encode import Encoder
from .errors import RecorderError, blaming, quote
from .files import open_record, record_path, write_atomically
from .format import PRELUDE, RecordReader, replace_segments, stream_record, write_record
from .gzipped import GzipReader, gzip_writer
from .layout import Segment
from .mpk import MpkReader, MpkWriter
from .settings import FullPrecisionSettings, HalfPrecisionSettings, PrecisionSettings, as_settings
from .text import JsonReader, JsonWriter

__all__ = [
    "BinBytesRecorder", "BinFileRecorder", "BinGzFileRecorder", "CompactRecorder", "DebugRecordSettings", "DefaultRecorder",
    "JsonGzFileRecorder", "NamedMpkFileRecorder", "NamedMpkGzFileRecorder", "NoStdInferenceRecorder",
    "NoStdTrainingRecorder", "PrettyJsonFileRecorder", "SensitiveCompactRecorder",
]  # fmt: skip


class _Recorder:
    def __init__(self, settings: PrecisionSettings | type[PrecisionSettings] = FullPrecisionSettings):
        self.settings = as_settings(settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.settings).__name__})"


class FileRecorder(_Recorder, ABC):
    """What all recorders of files do; the suffix, `_write` and `_read` are theirs."""

    suffix = ""

    def path(self, path: str | os.PathLike[str]) -> Path:
        """The file of a record of this name: the suffix is appended unless the name ends so; a dot changes nothing.

        >>> BinFileRecorder().path("runs/run.v2").name, NamedMpkGzFileRecorder().path("step-100").name
        ('run.v2.bin', 'step-100.mpk.gz')
        """
        return record_path(path, self.suffix)

    def save(self, data: Any, path: str | os.PathLike[str]) -> Path:
        """Write `data` and return the file's path; missing folders are made.

        The file appears complete and durable in one step: a crash, a kill or a full disk at any moment leaves the file
        that was there before. The arrays are streamed, so no second copy of them is made.
        """
        target = self.path(path)
        with blaming(target):
            encoded = Encoder(data, self.settings)
            self._check(encoded)
            write_atomically(target, lambda file: self._write(file, encoded))
        return target

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Read the data back, verifying every byte."""
        return self._open(path)[0]

    def verify(self, path: str | os.PathLike[str]) -> None:
        """Read a whole record and compare its checksums. Errors: `RecorderError` at the first damage."""
        self._open(path)

    def _open(self, path: str | os.PathLike[str]) -> tuple[Any, str]:
        """The data of a record, and its precision."""
        target = self.path(path)
        with blaming(target):
            file, length = open_record(target)
            with file:
                return self._read(file, length)

    def _check(self, encoded: Encoder) -> None:
        """Refuse what this kind of file has no room for."""

    @abstractmethod
    def _write(self, file: BinaryIO, encoded: Encoder) -> None:
        """Write what was encoded."""

    @abstractmethod
    def _read(self, file: BinaryIO, length: int) -> tuple[Any, str]:
        """Return the data of a record of so many bytes, and the name of its settings."""


class BinFileRecorder(FileRecorder):
    """Saves to and loads from files that end in `.bin`, in the format of `docs/records.md`.

    The data are dicts (with str keys), lists and tuples, nested up to 100 deep, of None, bool, int, float, str, bytes,
    NumPy scalars and NumPy arrays of bool, (u)int8 to 64, bfloat16, float16, 32 and 64. They come back as they were:
    a tuple as a tuple, a 0-d array as one, every bit of a NaN. Arrays come back in C order and the machine's byte
    order, each with memory of its own, even where two places held the same array.

    `settings` is a class or instance of the precision settings. Errors: `RecorderError`; `TypeError` for settings or a
    path of a wrong type.

    >>> import numpy as np, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> recorder = BinFileRecorder(FullPrecisionSettings)
    >>> recorder.save({"weight": np.ones((2, 3), np.float32), "step": 7}, folder / "step-100").name
    'step-100.bin'
    >>> recorder.load(folder / "step-100")["weight"].shape
    (2, 3)
    >>> recorder.load_one(folder / "step-100", "/weight").sum()
    np.float32(6.0)
    """

    suffix = ".bin"

    def load(self, path: str | os.PathLike[str], *, lazy: bool = False) -> Any:
        """Read the data back, verifying every byte; or map it into memory, reading only what is looked at.

        With `lazy=True` the arrays are read-only views of the file, however large it is, and their bytes are not
        verified (`verify` does that). They stay as they are when the record is saved anew, since that makes a new file.
        """
        target = self.path(path)
        with blaming(target):
            file, length = open_record(target)
            with file:
                reader = RecordReader(file, length)
                return reader.map() if lazy else reader.load()

    def load_one(self, path: str | os.PathLike[str], name: str) -> Any:
        """Read one array or part, by its JSON pointer such as "/model/weight", verified; no other array is read.

        Errors: `RecorderError` where the record has nothing of that name.
        """
        target = self.path(path)
        with blaming(target):
            file, length = open_record(target)
            with file:
                reader = RecordReader(file, length)
                return replace_segments(_part(reader.data, name), reader.one)

    def verify(self, path: str | os.PathLike[str]) -> None:
        """Read a whole record and compare its checksums, without keeping any of it in memory.

        Errors: `RecorderError` at the first damage.
        """
        target = self.path(path)
        with blaming(target):
            file, length = open_record(target)
            with file:
                RecordReader(file, length).verify()

    def _write(self, file: BinaryIO, encoded: Encoder) -> None:
        write_record(file, encoded)

    def _read(self, file: BinaryIO, length: int) -> tuple[Any, str]:
        reader = RecordReader(file, length)
        return reader.load(), reader.precision


def as_recorder(recorder: Any) -> Any:
    """A recorder of files, from one or from its class."""
    made = recorder() if isinstance(recorder, type) else recorder
    if not hasattr(made, "save") or not hasattr(made, "load"):
        raise TypeError(f"expected a recorder such as BinFileRecorder(), got {type(made).__name__}")
    if isinstance(made, BinBytesRecorder):
        raise TypeError(
            "BinBytesRecorder keeps records in memory, and takes no path: blob = recorder.save(record.data), and "
            "TrainingRecord(recorder.load(blob)); of a model alone model.to_record() and model.load_record(...)"
        )
    return made


def _part(data: Any, name: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to."""
    keys = name.split("/")[1:]
    if name and not name.startswith("/"):
        raise RecorderError(f"{quote(name)} is no name; write {quote('/' + name)}")
    for key in (key.replace("~1", "/").replace("~0", "~") for key in keys):
        if isinstance(data, dict) and key in data:
            data = data[key]
        elif isinstance(data, list | tuple) and key.isdecimal() and int(key) < len(data):
            data = data[int(key)]
        else:
            kind = "an array" if isinstance(data, Segment | np.generic) else f"a {type(data).__name__}"
            known = f", whose names are {quote(', '.join(data))}" if isinstance(data, dict) else ""
            raise RecorderError(f"it has no {quote(name)}: there is no {quote(key)} in {kind}{known}")
    return data


class BinGzFileRecorder(FileRecorder):
    """Saves to and loads from files that end in `.bin.gz`: what `BinFileRecorder` writes, compressed.

    >>> import numpy as np, pathlib, tempfile
    >>> path = BinGzFileRecorder().save({"w": np.zeros(1000)}, pathlib.Path(tempfile.mkdtemp()) / "step-100")
    >>> path.name, path.stat().st_size < 500, BinGzFileRecorder().load(path)["w"].shape
    ('step-100.bin.gz', True, (1000,))
    """

    suffix = ".bin.gz"

    def _write(self, file: BinaryIO, encoded: Encoder) -> None:
        with gzip_writer(file) as packed:
            stream_record(packed, encoded)

    def _read(self, file: BinaryIO, length: int) -> tuple[Any, str]:
        packed = GzipReader(file, length)
        front = packed.peek(PRELUDE.size)
        # The length that the record itself states, unless no file of this size can hold it.
        stated = PRELUDE.unpack(front)[3] if len(front) == PRELUDE.size else len(front)
        reader = RecordReader(packed, min(stated, packed.room))  # type: ignore[arg-type]
        data = reader.load()
        packed.expect_end()
        return data, reader.precision


class _TreeRecorder(FileRecorder):
    writer: Any = None
    reader: Any = None

    def _check(self, encoded: Encoder) -> None:
        self.writer.check(encoded)

    def _write(self, file: BinaryIO, encoded: Encoder) -> None:
        if self.suffix.endswith(".gz"):
            with gzip_writer(file) as packed:
                self.writer(packed, encoded).write()
        else:
            self.writer(file, encoded).write()

    def _read(self, file: BinaryIO, length: int) -> tuple[Any, str]:
        if not self.suffix.endswith(".gz"):
            reader = self.reader(file, length)
            return reader.read(), reader.precision
        packed = GzipReader(file, length)
        reader = self.reader(packed, packed.room)
        data = reader.read()
        packed.expect_end()
        return data, reader.precision


class NamedMpkFileRecorder(_TreeRecorder):
    """Saves to and loads from files that end in `.mpk`: plain msgpack that other programs can read.

    It takes and gives what `BinFileRecorder` does. A dict is a map, and an array the map `{"@": "array", "dtype",
    "shape", "data"}` with its bytes; `docs/records.md` has the rest. An array of 4 GiB or more is refused: msgpack has no
    object of that size.

    >>> import msgpack, numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "step-100"
    >>> path = NamedMpkFileRecorder().save({"w": np.array([1, 2], np.int16)}, path)
    >>> msgpack.unpackb(path.read_bytes())["data"]
    {'w': {'@': 'array', 'dtype': 'int16', 'shape': [2], 'data': b'\\x01\\x00\\x02\\x00'}}
    >>> NamedMpkFileRecorder().load(path)
    {'w': array([1, 2], dtype=int16)}
    """

    suffix, writer, reader = ".mpk", MpkWriter, MpkReader


class NamedMpkGzFileRecorder(_TreeRecorder):
    """Saves to and loads from files that end in `.mpk.gz`: what `NamedMpkFileRecorder` writes, compressed.

    >>> import pathlib, tempfile
    >>> path = NamedMpkGzFileRecorder().save({"progress": (3, 0)}, pathlib.Path(tempfile.mkdtemp()) / "step-100")
    >>> path.name, NamedMpkGzFileRecorder().load(path)
    ('step-100.mpk.gz', {'progress': (3, 0)})
    """

    suffix, writer, reader = ".mpk.gz", MpkWriter, MpkReader


class PrettyJsonFileRecorder(_TreeRecorder):
    """Saves to and loads from files that end in `.json`, for people to read; every bit comes back all the same.

    It takes and gives what `BinFileRecorder` does. Numbers are the shortest that mean the same bits; infinities and NaN
    are the strings "inf", "-inf" and "nan". Whoever edits a file writes `"crc32": null` in its last line.

    >>> import numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "step-100"
    >>> path = PrettyJsonFileRecorder().save({"w": np.array([[0.1, -0.0], [1, np.inf]], np.float32)}, path)
    >>> print(*path.read_text().splitlines()[4:-2], sep="\\n")
      "data": {
        "w": {
          "@": "array",
          "dtype": "float32",
          "shape": [2, 2],
          "values": [
            0.1, -0.0,
            1.0, "inf"
          ]
        }
      },
    >>> PrettyJsonFileRecorder().load(path)["w"]
    array([[ 0.1, -0. ],
           [ 1. ,  inf]], dtype=float32)
    """

    suffix, writer, reader = ".json", JsonWriter, JsonReader


class JsonGzFileRecorder(_TreeRecorder):
    """Saves to and loads from files that end in `.json.gz`: what `PrettyJsonFileRecorder` writes, compressed.

    >>> import pathlib, tempfile
    >>> path = JsonGzFileRecorder().save({"progress": (3, 0)}, pathlib.Path(tempfile.mkdtemp()) / "step-100")
    >>> path.name, JsonGzFileRecorder().load(path)
    ('step-100.json.gz', {'progress': (3, 0)})
    """

    suffix, writer, reader = ".json.gz", JsonWriter, JsonReader


class BinBytesRecorder(_Recorder):
    """Saves to and loads from bytes in memory: the same bytes that `BinFileRecorder` writes.

    >>> recorder = BinBytesRecorder()
    >>> recorder.load(recorder.save({"state": (3, 0)}))
    {'state': (3, 0)}
    """

    def save(self, data: Any) -> bytes:
        """`data` as the bytes of a record."""
        file = io.BytesIO()
        with blaming("record in memory"):
            write_record(file, Encoder(data, self.settings))
        return file.getvalue()

    def load(self, data: bytes | bytearray | memoryview) -> Any:
        """The data of a record, after every byte has been verified; its arrays are copies.

        Errors: `RecorderError` for anything but an undamaged record, `TypeError` for anything but bytes.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"load takes bytes, not {type(data).__name__}; write load(path.read_bytes())")
        with blaming("record in memory"):
            file = io.BytesIO(data)
            return RecordReader(file, file.getbuffer().nbytes).load()


class CompactRecorder(NamedMpkFileRecorder):
    """`NamedMpkFileRecorder` with half precision, unless other settings are given.

    >>> CompactRecorder(), CompactRecorder().path("model").name
    (CompactRecorder(HalfPrecisionSettings), 'model.mpk')
    """

    def __init__(self, settings: PrecisionSettings | type[PrecisionSettings] = HalfPrecisionSettings):
        super().__init__(settings)


class SensitiveCompactRecorder(BinGzFileRecorder):
    """`BinGzFileRecorder` with half precision, unless other settings are given.

    >>> SensitiveCompactRecorder(), SensitiveCompactRecorder().path("model").name
    (SensitiveCompactRecorder(HalfPrecisionSettings), 'model.bin.gz')
    """

    def __init__(self, settings: PrecisionSettings | type[PrecisionSettings] = HalfPrecisionSettings):
        super().__init__(settings)


DefaultRecorder = NamedMpkFileRecorder
NoStdTrainingRecorder = BinFileRecorder
NoStdInferenceRecorder = BinBytesRecorder
DebugRecordSettings = PrettyJsonFileRecorder
