"""No kernel touches memory outside its arrays: AddressSanitizer watches the sources run on the CPU."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ._shim import COMPILER

ROOT = Path(__file__).parents[2]


def library() -> str | None:
    """Where g++ keeps the sanitizer's library, or None."""
    if COMPILER is None:
        return None
    found = subprocess.run([COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if os.path.isabs(found) else None


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="no g++ with AddressSanitizer")
def test_kernels_stay_inside_their_arrays():
    env = {**os.environ, "LD_PRELOAD": str(library()), "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    env["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=0"
    command = [sys.executable, "-m", "tests.kernels._asan"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, cwd=ROOT)
    # The last thing the program does is to write outside, so that a sanitizer that sees nothing is seen.
    assert done.stdout.endswith("now outside\n"), done.stdout + done.stderr
    assert "heap-buffer-overflow" in done.stderr and done.returncode != 0, done.stderr
    assert int(done.stdout.split()[1]) >= 21, done.stdout
