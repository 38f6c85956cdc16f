"""Processes that prepare at once and measure one after the other, each alone on the GPU.

A process makes ready (it imports and compiles) and calls `hold`, which waits for a line. What it prints is its answer.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import PIPE

READY = "ready"
ROOT = Path(__file__).resolve().parents[1]
# One core compiles for each process, since there is one for each; and JAX would take three quarters of the memory.
SETTINGS = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def hold() -> str:
    """Say that this process is ready, and return the line that lets it measure."""
    print(READY, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("nobody waits for this measurement any more")
    return line


class Job:
    """A process `python -m MODULE ARGUMENTS...` that was started, and calls `hold`. `why` is how it failed, if it did."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name, self.why, self._late = name, "", False
        self._lines: list[str] = []
        self._ready, self._errors = threading.Event(), tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=PIPE, stdout=PIPE, stderr=self._errors, text=True, cwd=ROOT,
            env=os.environ | SETTINGS,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                self._ready.set()
            else:
                self._lines.append(line.rstrip("\n"))
        self._ready.set()

    def prepare(self, deadline: float) -> None:
        """Wait until the process is ready or has ended; at the deadline, in monotonic seconds, it is ended."""
        if not self._ready.wait(max(0.0, deadline - time.monotonic())):
            self._kill()

    def measure(self, go: str, seconds: float) -> list[str]:
        """Let it measure, and return the lines that it printed; it is stopped after so many seconds. `why` is then known."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(go + "\n")
            self._process.stdin.flush()
        except OSError:  # it has ended
            pass
        self._listener.join(seconds)
        if self._listener.is_alive():
            self._kill()
        code = self._process.wait()
        self._errors.seek(0)
        said = [line.strip() for line in self._errors if line.strip()]
        self.why = "took too long" if self._late else "" if code == 0 else said[-1] if said else f"ended with {code}"
        self.close()
        return self._lines

    def _kill(self) -> None:
        self._late = True
        self._process.kill()

    def close(self) -> None:
        """End the process if it still runs."""
        self._process.kill()
        self._process.wait()
        self._listener.join(5)
        for file in (self._process.stdin, self._process.stdout, self._errors):
            try:
                file.close()  # type: ignore[union-attr]
            except OSError:  # what was written to a process that has ended
                pass


def prepared(jobs: Iterable[Job], seconds: float) -> None:
    """Wait until all are ready, but no longer than this: those that are not are stopped."""
    deadline = time.monotonic() + seconds
    for job in jobs:
        job.prepare(deadline)
