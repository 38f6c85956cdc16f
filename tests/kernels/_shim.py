"""A runtime that compiles the CUDA sources with g++ and runs them on NumPy arrays (see shim.hpp)."""
from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ruda_tensor.kernels.launch import KernelError, first_error, substitute

HEADER = Path(__file__).with_name("shim.hpp")
COMPILER = shutil.which("g++") if sys.platform == "linux" else None
# RUDA_KERNELS=all: every example, dtype and architecture (minutes); else one of each kind, which leaves the rest to the GPU.
ALL = os.environ.get("RUDA_KERNELS") == "all"
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
ENTRY = """
extern "C" const char* launch_{name}(const unsigned* shape, const char* packed, int order) {{
    shim::order = order;
    return shim::launch({name}, shape, packed);
}}
"""


def digest(*parts: object) -> str:
    """A name for what is made of these."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


class HostRuntime:
    """The CPU as a CUDA device of `count` multiprocessors. `order` 1 runs the threads of a block backwards."""

    def __init__(self, count: int = 2, flags: tuple[str, ...] = ()) -> None:
        self.count, self.order, self.flags = count, 0, (*FLAGS, *flags)
        self.seen = np.zeros(2, np.uint32)
        self.folder = Path(tempfile.gettempdir()) / f"ruda-shim-{os.getuid()}"
        self.folder.mkdir(exist_ok=True, mode=0o700)
        if self.folder.stat().st_uid != os.getuid():  # somebody else's: nothing is loaded from there
            self.folder = Path(tempfile.mkdtemp(prefix="ruda-shim-"))

    def serves(self, xp: Any) -> bool:
        return xp.__name__ == "numpy"

    def device(self) -> int:
        return 0

    def processors(self) -> int:
        return self.count

    def capability(self) -> int:
        return 90

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def load(self, text: str, name: str, options: tuple[str, ...], shared: int) -> Any:
        header = self.header()
        code = f'#include "{header.name}"\n{text}{ENTRY.format(name=name)}'
        library = self.folder / f"{digest(self.flags, code)}.so"
        if not library.exists():
            source = library.with_suffix(f".{os.getpid()}.cpp")
            source.write_text(code)
            problem = self.compile(source, library, *self.flags)
            source.unlink()
            if problem:
                raise KernelError(f"the kernel {name} does not compile: {problem}")
        function = getattr(ctypes.CDLL(str(library)), f"launch_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int], ctypes.c_char_p
        function.shared = shared
        return function

    def free(self) -> None:
        """The CPU's memory is no pool's."""

    def board(self) -> tuple[Any, int]:
        return self.seen, self.seen.ctypes.data

    def wait(self) -> None:
        """A launch is done when it returns."""

    def header(self) -> Path:
        """shim.hpp, compiled ahead: half of the time of compiling a kernel."""
        text = HEADER.read_text()
        header = self.folder / f"{digest(self.flags, text)}.hpp"
        ahead = header.with_suffix(".hpp.gch")
        if not ahead.exists():
            own = header.with_suffix(f".{os.getpid()}.hpp")
            own.write_text(text)
            problem = self.compile(own, ahead, *[flag for flag in self.flags if flag != "-shared"], "-x", "c++-header")
            assert not problem, problem
            os.replace(own, header)
        return header

    def compile(self, source: Path, target: Path, *flags: str) -> str | None:
        """Compile to a file of this process's own first: another may be making the same. Returns what went wrong."""
        made = target.with_suffix(f".{os.getpid()}.made")
        command = [str(COMPILER), *flags, str(source), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            return first_error(done.stderr)
        os.replace(made, target)
        return None

    def launch(self, handle: Any, grid: tuple[int, int], block: tuple[int, int], arguments: bytes) -> str | None:
        shape = (ctypes.c_uint * 5)(*grid, *block, handle.shared)
        problem = handle(ctypes.addressof(shape), arguments, self.order)
        return None if problem is None else problem.decode()


RUNTIME = HostRuntime() if COMPILER else None


def on_shim():
    """A context in which the kernels serve NumPy arrays."""
    assert RUNTIME is not None
    return substitute(RUNTIME)
