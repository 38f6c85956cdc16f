"""Records: nested plain data (dicts, lists, tuples, scalars, NumPy arrays) in files that survive crashes and distrust.

A record is written completely or not at all, is lossless at full precision, and is verified byte by byte when it is
loaded, which never runs code. The format is described in `docs/records.md`, and `python -m ruda_record` looks into one.
"""
from .errors import RecorderError
from .exchange import read_safetensors, write_safetensors
from .recorders import (
    BinBytesRecorder,
    BinFileRecorder,
    BinGzFileRecorder,
    CompactRecorder,
    DebugRecordSettings,
    DefaultRecorder,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    NoStdInferenceRecorder,
    NoStdTrainingRecorder,
    PrettyJsonFileRecorder,
    SensitiveCompactRecorder,
)
from .settings import DoublePrecisionSettings, FullPrecisionSettings, HalfPrecisionSettings, PrecisionSettings

__all__ = [
    "BinBytesRecorder",
    "BinFileRecorder",
    "BinGzFileRecorder",
    "CompactRecorder",
    "DebugRecordSettings",
    "DefaultRecorder",
    "DoublePrecisionSettings",
    "FullPrecisionSettings",
    "HalfPrecisionSettings",
    "JsonGzFileRecorder",
    "NamedMpkFileRecorder",
    "NamedMpkGzFileRecorder",
    "NoStdInferenceRecorder",
    "NoStdTrainingRecorder",
    "PrecisionSettings",
    "PrettyJsonFileRecorder",
    "RecorderError",
    "SensitiveCompactRecorder",
    "read_safetensors",
    "write_safetensors",
]
