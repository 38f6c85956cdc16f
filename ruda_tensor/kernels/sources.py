"""Finds a kernel's source and joins it with the headers it includes."""
from __future__ import annotations

import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

_LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"')
_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b")


def source_folder() -> Traversable:
    """Return the folder of the CUDA sources: inside the installed package, or at the root of a checkout.

    An editable install runs from the checkout, so it too finds the files that one edits and never a stale copy.

    >>> source_folder().name
    'cuda_src'
    """
    packaged = files("ruda_tensor").joinpath("cuda_src")
    if packaged.is_dir():
        return packaged
    checkout = Path(__file__).resolve().parents[2] / "cuda_src"
    if checkout.is_dir():
        return checkout
    raise FileNotFoundError(
        f"the CUDA sources are neither in the package ({packaged}) nor beside it ({checkout}); "
        "the installation is incomplete: pip install --force-reinstall ruda"
    )


def cuda_source(name: str, folder: Traversable | None = None) -> str:
    """Return the text of `name` with every local `#include "x.cuh"` replaced by that file, each file once.

    One string holds all that is compiled, so a compile cache that hashes its source sees a change in a header too.
    `#line` directives keep the compiler's messages pointing at the file and line that one edits. System includes
    (`<...>`) stay as they are. `folder` is where to look, by default `source_folder()`.

    Errors: ValueError for a name that is no plain file name and for files that include each other in a circle;
    FileNotFoundError for a missing file, naming the file and line that asked for it and what there is.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as there:
    ...     _ = Path(there, "two.cuh").write_text("#define TWO 2\\n")
    ...     _ = Path(there, "use.cu").write_text('#include "two.cuh"\\nint two = TWO;\\n')
    ...     print(cuda_source("use.cu", Path(there)), end="")
    #line 1 "use.cu"
    #line 1 "two.cuh"
    #define TWO 2
    #line 2 "use.cu"
    int two = TWO;
    """
    lines: list[str] = []
    _inline(name, source_folder() if folder is None else folder, (), set(), lines)
    return "\n".join(lines) + "\n"


def _inline(name: str, folder: Traversable, chain: tuple[str, ...], seen: set[str], lines: list[str]) -> None:
    """Append the lines of `name` and of what it includes; `chain` holds the "file:line" places that led here."""
    seen.add(name)
    lines.append(f'#line 1 "{name}"')
    for number, line in enumerate(_read(name, folder, chain).splitlines(), start=1):
        include = _LOCAL_INCLUDE.match(line)
        if include:
            header, place = include[1], (*chain, f"{name}:{number}")
            if any(step.rpartition(":")[0] == header for step in place):
                raise ValueError(f"CUDA sources include each other in a circle: {' -> '.join((*place, header))}")
            if header not in seen:
                _inline(header, folder, place, seen, lines)
            lines.append(f'#line {number + 1} "{name}"')
        elif not _ONCE.match(line):  # every file stands here once, and the compiler warns of the pragma outside headers
            lines.append(line)
        else:
            lines.append("")  # keeps the numbers of the lines below


def _read(name: str, folder: Traversable, chain: tuple[str, ...]) -> str:
    asked = f", included at {chain[-1]}" if chain else ""
    if not name or "/" in name or "\\" in name or name.startswith("."):
        raise ValueError(
            f"CUDA source {name!r}{asked}: give a plain file name of the cuda_src folder, such as 'softmax.cu'"
        )
    file = folder.joinpath(name)
    if not file.is_file():
        known = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".cu", ".cuh")))
        raise FileNotFoundError(f"there is no CUDA source {name!r}{asked}; {folder} has {', '.join(known) or 'none'}")
    return file.read_text(encoding="utf-8")
