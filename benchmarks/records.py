"""Records beside the plainest way to get the same bytes to the same disk and back."""
from __future__ import annotations

import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ruda_record import BinFileRecorder

from .measure import Times, interleave

ARRAYS, NUMBERS = 16, 1 << 22  # 16 arrays of 16 MiB


def _model() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {f"layer {i}": generator.standard_normal(NUMBERS, dtype=np.float32) for i in range(ARRAYS)}


def _plain_save(data: dict[str, np.ndarray], path: Path) -> None:
    """Write to a file beside it, make sure that it is on the disk, and move it into place."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb", buffering=0) as file:
        for array in data.values():
            file.write(array.data)
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _plain_load(path: Path) -> list[np.ndarray]:
    arrays = []
    with path.open("rb", buffering=0) as file:
        for _ in range(ARRAYS):
            array = np.empty(NUMBERS, np.float32)
            file.readinto(array.data)  # type: ignore[arg-type]
            arrays.append(array)
    return arrays


def _cold(path: Path) -> None:
    """Have the system forget what it keeps of a file in memory, where it can be asked to."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _seconds(run: Callable[[], Any], cold: Path | None = None) -> Callable[[], float]:
    def turn() -> float:
        if cold:
            _cold(cold)
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return turn


def measured(rounds: int) -> tuple[Times, Times, Times, float, float, int]:
    """Times of saving, of loading from the disk and from the system's memory; seconds for one array; the peak of a save; bytes.

    The one array is one of 16, and the peak of memory a share of the bytes.
    """
    data, recorder = _model(), BinFileRecorder()
    size = sum(array.nbytes for array in data.values())
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder, "ours"), Path(folder, "plain")
        turns: dict[str, Callable[[], float]] = {
            "ruda": _seconds(lambda: recorder.save(data, ours)),
            "written plainly": _seconds(lambda: _plain_save(data, plain)),
        }
        interleave(turns, 1)
        saves = interleave(turns, rounds)
        file = recorder.path(ours)
        cold = interleave(
            {
                "ruda": _seconds(lambda: recorder.load(ours), file),
                "read plainly": _seconds(lambda: _plain_load(plain), plain),
            },
            rounds,
        )
        loads = interleave(
            {
                "ruda": _seconds(lambda: recorder.load(ours)),
                "ruda, memory-mapped": _seconds(lambda: recorder.load(ours, lazy=True)),
                "read plainly": _seconds(lambda: _plain_load(plain)),
                "copied in memory": _seconds(lambda: [array.copy() for array in data.values()]),
            },
            rounds,
        )
        one = min(_seconds(lambda: recorder.load_one(ours, "/layer 7"))() for _ in range(rounds))
        tracemalloc.start()
        try:
            recorder.save(data, ours)
            peak = tracemalloc.get_traced_memory()[1] / size
        finally:
            tracemalloc.stop()
    return saves, cold, loads, one, peak, size
