"""`python -m ruda_record`: what it prints, and how it ends."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ruda_record import BinFileRecorder, HalfPrecisionSettings
from ruda_record.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path):
    data = {
        "model": {"weight": np.ones((2, 3)), "layers": [{"bias": np.zeros(0, np.int8)}]},
        "state": {"counts": (3, 0), "order": list(range(1000)), "name": "run", "loss": np.float32(0.5), "none": None},
        "\x1b[31m\u202e": 10**5000,
        "nested": [[1, 10**5000]],
    }
    return BinFileRecorder(HalfPrecisionSettings).save(data, tmp_path / "a")


def test_inspect_prints_a_table(path, capsys):
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[:-1]}
    assert rows["name"] == ["type", "shape", "bytes", "value"]
    assert rows["/model/weight"][:5] == ["float16", "(2,", "3)", "12", "crc32"]
    assert rows["/model/layers/0/bias"] == ["int8", "(0,)", "0", "crc32", "00000000"]
    assert rows["/state/counts"] == ["tuple", "(2,)", "(3,", "0)"]
    assert rows["/state/order"] == ["list", "(1000,)", "[0,", "1,", "2,", "3,", "4,", "5,", "...]"]
    assert rows["/state/name"] == ["str", "'run'"] and rows["/state/loss"] == ["float32", "0.5"]
    assert rows["/state/none"] == ["NoneType", "None"]
    assert rows["/\\x1b[31m\\u202e"] == ["int", "int", "of", "16610", "bits"]
    assert rows["/nested/0"] == ["list", "(2,)", "[1,", "int", "of", "16610", "bits]"]
    assert lines[-1].startswith(f"'{path}': version 1, half precision, 2 arrays of 12 bytes, file of")
    assert all(line.isprintable() for line in lines)


def test_verify_says_so_or_fails(path, capsys):
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out.endswith("bytes, every byte verified\n")
    blob = bytearray(path.read_bytes())
    blob[-300] ^= 1
    path.write_bytes(blob)
    assert main(["verify", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(f"{path}: ") and "damaged" in captured.err
    assert main(["inspect", f"{path}x"]) == 1
    assert capsys.readouterr().err == f"{path}x: not found\n"


def test_it_runs_as_a_module_and_loads_nothing_but_what_it_needs(path):
    code = "import sys, ruda_record; print(*{name.partition('.')[0] for name in sys.modules})"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert not {"cupy", "ruda_tensor", "ruda_nn", "ruda_optim", "ruda_autodiff"} & set(done.stdout.split())
    command = [sys.executable, "-m", "ruda_record", "verify", path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "every byte verified" in done.stdout, done.stderr
    done = subprocess.run([*command[:3], "repair", path], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "invalid choice: 'repair'" in done.stderr
