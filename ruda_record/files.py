"""Where a record goes, and how it gets there whole: beside its target first, then in one step over it."""
from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from .errors import RecorderError

try:
    import fcntl
except ImportError:  # Windows: there an open file cannot be removed, which protects it as well as a lock
    fcntl = None

BUFFER = 1 << 18


def record_path(path: str | os.PathLike[str], suffix: str) -> Path:
    """The file that a record of this name lies in: the name with `suffix`, which is appended unless it ends so already.

    A dot in the name is a part of it: `run.v2` becomes `run.v2.bin`.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a record's path is a str or a Path, not {type(path).__name__}")
    made = Path(text)
    if made.name in ("", ".."):
        raise RecorderError(f"{text!r} names a folder, not a record; write for example {str(made / 'step-100')!r}")
    if "\0" in text:
        raise RecorderError(f"{text!r} has a zero character, which no file name can have")
    return made if made.name.endswith(suffix) else made.with_name(made.name + suffix)


def open_record(path: Path) -> tuple[BinaryIO, int]:
    """A file opened for reading, and its length; anything but a regular file is refused without opening it."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device, pipe or socket"
        raise RecorderError(f"is {kind}, not a record")
    file = open(path, "rb", buffering=BUFFER)
    return file, os.fstat(file.fileno()).st_size


def write_atomically(target: Path, write: Callable[[BinaryIO], None]) -> None:
    """Call `write` with a new file and put that in the place of `target`: completely, durably, or not at all.

    The new file is a hidden sibling until its bytes are on the disk. Whatever fails, it is removed and `target` is as
    before. A killed process cannot remove its own: the next one that writes the same target does.
    """
    if target.is_dir():
        raise RecorderError("is a folder, so no record can be written there")
    folder = target.parent
    fresh = _make_folders(folder)
    _remove_stale(target)
    temporary, file = _create_temporary(target)
    try:
        with file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()  # Windows renames no open file
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    for changed in (folder, *fresh):
        _sync_folder(changed)


def _make_folders(folder: Path) -> list[Path]:
    """Make what is missing of a folder's path; the folders in which an entry was made."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    return [path.parent for path in missing]


def _temporary_pattern(target: Path) -> re.Pattern[str]:
    return re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.tmp")


def _create_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A new sibling of `target` that nobody else has, locked for as long as it is open."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        file = os.fdopen(descriptor, "wb", buffering=BUFFER)
        # Between these two steps another process may have taken it for a stale one, and removed it.
        if _lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return path, file
        file.close()


def _lock(descriptor: int) -> bool | None:
    """Whether the lock of an open file could be had; None where the file system has no locks.

    The system releases it when the process ends, however it ends: that tells a stale temporary from one in use.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_stale(target: Path) -> None:
    """Remove temporaries of `target` whose writers are gone."""
    pattern = _temporary_pattern(target)
    with os.scandir(target.parent) as entries:
        found = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
    for path in found:
        with suppress(OSError):  # somebody else's, or just gone: it is in nobody's way
            if fcntl is None:
                os.unlink(path)
                continue
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor):
                    os.unlink(path)
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Put a folder's entries on the disk, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems refuse
            raise
    finally:
        os.close(descriptor)
