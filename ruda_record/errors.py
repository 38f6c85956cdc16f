"""The one exception of this package, and how a failure gets the name of its file."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["RecorderError"]


class RecorderError(Exception):
    """A record could not be written or read: the message names the file, what was found and what was expected.

    It stands for everything that can be wrong with a record, a file or a disk (missing, damaged, from a newer version,
    no space left, data that a record cannot hold). A wrong argument to a function of this package is a `TypeError`.
    """


@contextmanager
def blaming(place: object) -> Iterator[None]:
    """Turn what goes wrong inside into a `RecorderError` that begins with `place`."""
    try:
        yield
    except RecorderError as error:
        raise RecorderError(f"{place}: {error}") from error.__cause__
    except FileNotFoundError as error:
        raise RecorderError(f"{place}: not found") from error
    except OSError as error:
        raise RecorderError(f"{place}: {error.strerror or error}") from error
    except MemoryError as error:
        raise RecorderError(f"{place}: not enough memory for what the record holds") from error


def shorten(text: str, limit: int = 120) -> str:
    """`text`, or its beginning and end where it is longer than `limit`."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 2 :]}"


def quote(value: object) -> str:
    """A value in quotes for a message: short, on one line, and with control characters escaped."""
    return repr(shorten(str(value)))
