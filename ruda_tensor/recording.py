"""Whether this thread is recording a step for later replay; what must not be part of one asks here.

While it records, nothing runs on the device, so that nothing can be read from it or brought to it. What is the same at
every replay can: numbers, which are filled in, and tables that follow from shapes and settings, which come from beside.
"""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .kernels.capture import Recording


class CaptureError(RuntimeError):
    """Something cannot be part of a recorded step; the message says what, and what to write instead."""


class SharedWhileCapturing(CaptureError):
    """What a step changes in place is seen by somebody else at present, who would see it change at every replay."""


FINE, SHARED, GONE = 0, 1, 2  # what looking at something that a recorded step changes may find


class Here(threading.local):
    recording: Recording | None = None


here = Here()


def capturing() -> bool:
    """True while this thread records.

    >>> capturing()
    False
    """
    return here.recording is not None


def recording() -> Recording | None:
    """The recording under way in this thread."""
    return here.recording


def refuse_while_capturing(what: str, advice: str) -> None:
    """Raise CaptureError where this thread records."""
    if here.recording is not None:
        raise CaptureError(f"{what} cannot be part of a captured step: {advice}")


def constant(xp: Any, array: np.ndarray) -> Any:
    """A host array that follows from shapes and settings alone, as an array of `xp`, in a captured step too.

    Not for a user's own array: whoever changes it later would see no effect.

    >>> constant(np, np.arange(3))
    array([0, 1, 2])
    """
    if xp is np:
        return array
    return xp.asarray(array) if here.recording is None else here.recording.constant(array)


def number(xp: Any, array: np.ndarray) -> Any:
    """A number, as a 0-d host array, as an array of `xp`; a captured step fills it in.

    >>> number(np, np.asarray(-0.0))
    array(-0.)
    """
    if xp is np:
        return array
    if here.recording is None:  # CuPy makes a 0-d array by filling, and loses the sign of -0.0: copy one element of one axis
        return xp.asarray(array.reshape(1)).reshape(())
    bits = xp.empty((), f"i{array.itemsize}")  # bits keep the sign of -0.0, and CuPy need not convert to a half type
    bits.fill(int(array.view(bits.dtype)))
    return bits.view(array.dtype)
