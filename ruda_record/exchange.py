"""safetensors, the format in which PyTorch checkpoints are exchanged: names and arrays, without any nesting.

Reading is the safetensors library's, which validates every field of a file that may come from anyone. Writing is ours:
a header and the bytes behind it. The library's writer saves an array of other strides as if it were contiguous, wants
all of it in one piece of memory, and does not put the file on the disk before it takes the old one's place.
"""
from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .encode import Encoder
from .errors import RecorderError, blaming, quote
from .files import open_record, record_path, write_atomically
from .format import stored_chunks
from .layout import DTYPES
from .settings import FullPrecisionSettings

__all__ = ["read_safetensors", "write_safetensors"]

SUFFIX = ".safetensors"
MAX_HEADER = 100_000_000  # the library's own
_NAMES = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read all arrays of a safetensors file, by their names in the order of the names; `.safetensors` may be left out.

    The arrays are the reader's own and writable, with the file's dtypes (bfloat16 too). Needs the package safetensors.
    Errors: `RecorderError` for a file that is missing, damaged, or has a dtype that NumPy lacks (8-bit floats);
    `ImportError` without the package.

    >>> import numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model"
    >>> path = write_safetensors(path, {"w": np.ones((2, 3), np.float32).T})
    >>> read_safetensors(path)["w"].shape
    (3, 2)
    """
    target = record_path(path, SUFFIX)
    safe_open, problem = _library()
    arrays = {}
    with blaming(target):
        open_record(target)[0].close()  # says better than the library what is wrong with a missing file or a folder
        try:
            with safe_open(target, framework="numpy") as file:
                for name in sorted(file.keys()):
                    arrays[name] = _array(file, name)
        except problem as error:
            raise RecorderError(f"not a valid safetensors file: {error}") from error
    return arrays


def _library() -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise ImportError(
            "reading safetensors needs the package safetensors, which is not installed: pip install 'ruda[safetensors]'"
        ) from error
    return safe_open, SafetensorError


def _array(file: Any, name: str) -> np.ndarray:
    try:
        array = file.get_tensor(name)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RecorderError(f"{quote(name)} has a dtype that NumPy lacks: {error}") from error
    if array.dtype.name not in DTYPES:
        raise RecorderError(f"{quote(name)} has the dtype {array.dtype}; known are {', '.join(DTYPES)}")
    return array


def write_safetensors(
    path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> Path:
    """Write named arrays to a safetensors file, whole or not at all, and return its path, which ends in `.safetensors`.

    Any strides and byte orders, 0-d and empty arrays and bfloat16 are stored as they are, piece by piece. `metadata` is
    text by name. Needs no other package.
    Errors: `RecorderError` for what a safetensors file cannot hold, with the name, before anything is written.

    >>> import numpy as np, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_safetensors(folder / "model", {"w": np.arange(6).reshape(2, 3).T}, {"step": "100"}).name
    'model.safetensors'
    """
    target = record_path(path, SUFFIX)
    with blaming(target):
        encoded, header = _header(arrays, metadata)

        def write(file: Any) -> None:
            file.write(len(header).to_bytes(8, "little") + header)
            for segment, array, _ in encoded.arrays:
                for chunk in stored_chunks(segment, array):
                    file.write(chunk)

        write_atomically(target, write)
    return target


def _header(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None) -> tuple[Encoder, bytes]:
    table: dict[str, Any] = {}
    if metadata is not None:
        for key, value in metadata.items():
            if type(key) is not str or type(value) is not str:
                raise RecorderError(f"metadata is text by name, not {key!r}: {value!r}; write str(value)")
        table["__metadata__"] = dict(metadata)
    for name, array in arrays.items():
        if type(name) is not str or name == "__metadata__":
            raise RecorderError(f"{name!r} cannot be the name of an array; names are str, and not '__metadata__'")
        if not isinstance(array, np.ndarray):
            raise RecorderError(f"{quote(name)} is a {type(array).__name__}, not a NumPy array; write np.asarray(x) or x.numpy()")
    # Larger items first, so that every array lies at a multiple of its item size, as the library arranges them.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    encoded = Encoder([array for _, array in ordered], FullPrecisionSettings())
    at = 0
    for (name, _), (segment, _, _) in zip(ordered, encoded.arrays):
        kind, shape, end = _NAMES[segment.dtype.name], list(segment.shape), at + segment.nbytes
        table[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=True).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER:
        raise RecorderError(f"its names and shapes take {len(header)} bytes, and {MAX_HEADER} are allowed")
    return encoded, header
