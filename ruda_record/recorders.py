"""What users hold: a recorder saves nested plain data and loads it again."""
from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from .encode import Encoder
from .errors import blaming
from .files import open_record, record_path, write_atomically
from .format import RecordReader, write_record
from .settings import FullPrecisionSettings, PrecisionSettings, as_settings

__all__ = ["BinBytesRecorder", "BinFileRecorder"]


class _Recorder:
    def __init__(self, settings: PrecisionSettings | type[PrecisionSettings] = FullPrecisionSettings):
        self.settings = as_settings(settings)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.settings).__name__})"


class BinFileRecorder(_Recorder):
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
    """

    suffix = ".bin"

    def path(self, path: str | os.PathLike[str]) -> Path:
        """The file of a record of this name: `.bin` is appended unless the name ends so; a dot in it changes nothing.

        >>> BinFileRecorder().path("runs/run.v2").name
        'run.v2.bin'
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
            write_atomically(target, lambda file: write_record(file, encoded))
        return target

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

    def verify(self, path: str | os.PathLike[str]) -> None:
        """Read a whole record and compare its checksums, without keeping any of it in memory.

        Errors: `RecorderError` at the first damage.
        """
        target = self.path(path)
        with blaming(target):
            file, length = open_record(target)
            with file:
                RecordReader(file, length).verify()


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
