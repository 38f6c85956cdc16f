"""Records: nested plain data (dicts, lists, tuples, scalars, NumPy arrays) in files that survive crashes and distrust.

A record is written completely or not at all, is lossless at full precision, and is verified byte by byte when it is
loaded, which never runs code. The format is described in `docs/records.md`, and `python -m ruda_record` looks into one.
"""
from .errors import RecorderError
from .recorders import BinBytesRecorder, BinFileRecorder
from .settings import DoublePrecisionSettings, FullPrecisionSettings, HalfPrecisionSettings, PrecisionSettings

__all__ = [
    "BinBytesRecorder",
    "BinFileRecorder",
    "DoublePrecisionSettings",
    "FullPrecisionSettings",
    "HalfPrecisionSettings",
    "PrecisionSettings",
    "RecorderError",
]
