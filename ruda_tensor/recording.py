"""Whether this thread is recording a step for later replay; what must not be part of one asks here.

While it records, nothing runs on the device, so that nothing can be read from it or brought to it.
"""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
