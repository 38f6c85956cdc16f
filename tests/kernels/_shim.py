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

from ruda_tensor.kernels.launch import KernelError, first_error, substitute

HEADER = Path(__file__).with_name("shim.hpp")
COMPILER = shutil.which("g++") if sys.platform == "linux" else None
FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-w")
ENTRY = """
extern "C" const char* launch_{name}(const unsigned* shape, const char* packed, int order) {{
    shim::order = order;
    return shim::launch({name}, shape, packed);
}}
"""


class HostRuntime:
    """The CPU as a CUDA device of `count` multiprocessors. `order` 1 runs the threads of a block backwards."""

    def __init__(self, count: int = 2, flags: tuple[str, ...] = ()) -> None:
        self.count, self.order, self.flags = count, 0, (*FLAGS, *flags)
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

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def load(self, text: str, name: str, options: tuple[str, ...]) -> Any:
        code = f'{HEADER.read_text()}\n{text}{ENTRY.format(name=name)}'
        key = hashlib.sha256(f"{self.flags}{code}".encode()).hexdigest()[:24]
        library = self.folder / f"{key}.so"
        if not library.exists():
            source, made = self.folder / f"{key}.{os.getpid()}.cpp", self.folder / f"{key}.{os.getpid()}.so"
            source.write_text(code)
            command = [str(COMPILER), *self.flags, str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            source.unlink()
            if done.returncode:
                raise KernelError(f"the kernel {name} does not compile: {first_error(done.stderr)}")
            os.replace(made, library)  # another process may be making the same
        function = getattr(ctypes.CDLL(str(library)), f"launch_{name}")
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int], ctypes.c_char_p
        return function

    def launch(self, handle: Any, grid: tuple[int, int], block: tuple[int, int], arguments: bytes) -> str | None:
        shape = (ctypes.c_uint * 4)(*grid, *block)
        problem = handle(ctypes.addressof(shape), arguments, self.order)
        return None if problem is None else problem.decode()


RUNTIME = HostRuntime() if COMPILER else None


def on_shim():
    """A context in which the kernels serve NumPy arrays."""
    assert RUNTIME is not None
    return substitute(RUNTIME)
