"""Compiling C sources once for each kind of machine, into a folder that only the user can write to."""
from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

TIMEOUT = 60  # seconds
FLAGS = ("-std=gnu99", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
# What makes the code fit the processor; the first that the compiler takes. Without the width, compilers use half of it.
TARGETS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())


class Unavailable(Exception):
    """There is no compiled library; says why."""


def _compiler() -> list[str]:
    import shlex
    import shutil

    asked = shlex.split(os.environ.get("CC", ""))
    for command in ([asked] if asked else []) + [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    raise Unavailable("no C compiler: neither $CC nor cc, gcc or clang is there")


def _processor() -> str:
    """What `-march=native` depends on: a home folder may be shared by machines of several kinds."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    kept = ("model", "cpu family", "flags", "Features", "CPU", "isa", "cpu\t")
    return platform.machine() + "\n".join(line for line in lines if line.startswith(kept))


def cache_folder() -> Path:
    """The folder of compiled libraries: made at need, for this user alone.

    A library is code, so none is loaded from a folder that somebody else may write to.
    """
    given = os.environ.get("RUDA_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(given) if given else Path(base) / "ruda"
    if not folder.is_absolute():
        raise Unavailable(f"the cache folder {folder} is not an absolute path; set RUDA_CACHE_DIR")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(folder)
    except OSError as error:
        raise Unavailable(f"the cache folder cannot be made: {error}; set RUDA_CACHE_DIR") from None
    return folder


def _check_owner(path: Path) -> None:
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise Unavailable(f"{path} belongs to or may be written by others; chmod 700 it, or set RUDA_CACHE_DIR")


def _key(texts: Sequence[str], command: list[str]) -> str:
    """Everything that the machine code depends on. The compiler's file stands for its version: asking would take longer."""
    import hashlib

    real = os.stat(os.path.realpath(command[0]))
    parts = [*texts, *command, str(real.st_size), str(real.st_mtime_ns), _processor(), sys.platform]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def load(name: str, flags: Sequence[str]) -> Any:
    """The library of `name`.c, compiled if this machine has not got it yet.

    Errors: Unavailable where there is no compiler, or it failed; a failure is remembered in the cache as well.
    """
    if os.name != "posix":
        raise Unavailable(f"not tried on {os.name}")
    here = files("ruda_tensor.kernels.host")
    texts = {file: here.joinpath(file).read_text(encoding="utf-8") for file in ("vector.h", f"{name}.c")}
    compiler, folder = _compiler(), cache_folder()
    command = [*compiler, *FLAGS, *flags]
    stem = folder / f"{name}-{_key([*texts.values(), repr(TARGETS)], command)}"
    library, failure = stem.with_suffix(".so"), stem.with_suffix(".failed")
    if not library.exists():
        if failure.exists():
            raise Unavailable(failure.read_text(encoding="utf-8", errors="replace"))
        _compile(command, texts, library, failure)
    _check_owner(library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise Unavailable(f"{library} does not load: {error}") from None


def _compile(command: list[str], texts: dict[str, str], library: Path, failure: Path) -> None:
    """Compile in a folder of its own and move the result into place: others may be doing the same at this moment."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=library.parent) as there:
        for file, text in texts.items():
            Path(there, file).write_text(text, encoding="utf-8")
        source = next(file for file in texts if file.endswith(".c"))
        for target in TARGETS:
            problem = _run([*command, *target, source, "-o", "out.so", "-lm"], there)
            if not problem:
                Path(there, "out.so").chmod(0o700)
                os.replace(Path(there, "out.so"), library)
                return
        Path(there, "why").write_text(problem, encoding="utf-8")
        os.replace(Path(there, "why"), failure)
    raise Unavailable(problem)


def _run(call: list[str], there: str) -> str:
    """Run a compiler; return what was wrong."""
    import subprocess

    try:
        done = subprocess.run(call, cwd=there, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if done.returncode == 0 else f"{' '.join(call)}: {done.stderr[-2000:] or done.returncode}"
