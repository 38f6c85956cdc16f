"""In which precision a recorder stores floating-point arrays."""
from __future__ import annotations

import ml_dtypes
import numpy as np

__all__ = ["DoublePrecisionSettings", "FullPrecisionSettings", "HalfPrecisionSettings", "PrecisionSettings"]

FLOAT16, FLOAT32, FLOAT64 = (np.dtype(name) for name in ("float16", "float32", "float64"))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class PrecisionSettings:
    """What the three precision settings share: `name`, and `stored` dtypes.

    Only floating-point *arrays* are ever converted. Integers, bools, Python floats and NumPy scalars are stored as they
    are, and what a file holds is what `load` returns.

    >>> HalfPrecisionSettings().stored(np.dtype("float64")), HalfPrecisionSettings().stored(np.dtype("int64"))
    (dtype('float16'), dtype('int64'))
    """

    name = ""
    conversions: dict[np.dtype, np.dtype] = {}

    def stored(self, dtype: np.dtype) -> np.dtype:
        """The dtype in which an array of `dtype` is stored.

        >>> FullPrecisionSettings().stored(np.dtype("float64"))
        dtype('float64')
        """
        return self.conversions.get(dtype, dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class FullPrecisionSettings(PrecisionSettings):
    """Everything is stored as it is, bit for bit: float64 and 64-bit integers too.

    >>> FullPrecisionSettings().stored(np.dtype("float32"))
    dtype('float32')
    """

    name = "full"


class HalfPrecisionSettings(PrecisionSettings):
    """float32 and float64 arrays are rounded to float16; those of 16 bits already (bfloat16 too) stay as they are.

    Saving a finite value that float16 would turn into infinity (beyond 65504) is an error.

    >>> HalfPrecisionSettings().stored(np.dtype("float32"))
    dtype('float16')
    """

    name = "half"
    conversions = {FLOAT32: FLOAT16, FLOAT64: FLOAT16}


class DoublePrecisionSettings(PrecisionSettings):
    """All floating-point arrays are stored as float64, which holds every narrower value exactly.

    >>> DoublePrecisionSettings().stored(np.dtype("float32"))
    dtype('float64')
    """

    name = "double"
    conversions = {FLOAT16: FLOAT64, BFLOAT16: FLOAT64, FLOAT32: FLOAT64}


SETTINGS = {kind.name: kind for kind in (FullPrecisionSettings, HalfPrecisionSettings, DoublePrecisionSettings)}


def as_settings(settings: PrecisionSettings | type[PrecisionSettings]) -> PrecisionSettings:
    """An instance of settings, from an instance or a class."""
    made = settings() if isinstance(settings, type) and issubclass(settings, PrecisionSettings) else settings
    if not isinstance(made, PrecisionSettings) or made.name not in SETTINGS:
        raise TypeError(
            f"a recorder takes precision settings, not {settings!r}; write BinFileRecorder(FullPrecisionSettings)"
        )
    return made
