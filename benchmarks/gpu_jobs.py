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
    """A process `python -m MODULE ARGUMENTS...` that was started, and calls `hold`."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name, self.late = name, False
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
        """Wait until the process is ready or has ended; at the deadline, in monotonic seconds, it is stopped."""
        if not self._ready.wait(max(0.0, deadline - time.monotonic())):
            self.stop(late=True)

    def measure(self, go: str, seconds: float) -> list[str]:
        """Let it measure, and return the lines that it printed; it is stopped after so many seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(go + "\n")
            self._process.stdin.close()
        except OSError:  # it has ended, and `why` says so
            pass
        self._listener.join(seconds)
        if self._listener.is_alive():
            self.stop(late=True)
        self._process.wait()
        return self._lines

    def why(self) -> str:
        """Why the process did not end well, in a line, or nothing."""
        code = self._process.poll()
        if self.late:
            return "took too long"
        if code in (0, None):
            return ""
        self._errors.seek(0)
        return next((line.strip() for line in reversed(self._errors.readlines()) if line.strip()), f"ended with {code}")

    def stop(self, late: bool = False) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self.late = late
            self._process.kill()
            self._process.wait()


def prepared(jobs: Iterable[Job], seconds: float) -> None:
    """Wait until all are ready, but no longer than this: those that are not are stopped."""
    deadline = time.monotonic() + seconds
    for job in jobs:
        job.prepare(deadline)
