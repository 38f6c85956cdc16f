"""`python -m ruda_record`: what it prints, and how it ends."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ruda_record import BinFileRecorder, HalfPrecisionSettings, write_safetensors
from ruda_record.__main__ import main

from .test_recorders import DATA, KINDS, kinds

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


@kinds
def test_every_kind_is_inspected_verified_and_compared(kind, tmp_path, capsys):
    path = kind().save(DATA, tmp_path / "a")
    reference = BinFileRecorder().save(DATA, tmp_path / "reference")
    tables = []
    for file in (reference, path):
        assert main(["inspect", str(file)]) == 0
        tables.append(capsys.readouterr().out.splitlines())
    assert tables[0][:-1] == tables[1][:-1] and "full precision, 15 arrays of 144 bytes" in tables[1][-1]
    assert main(["verify", str(path)]) == 0 and "every byte verified" in capsys.readouterr().out
    assert main(["diff", str(reference), str(path)]) == 0
    assert capsys.readouterr().out == f"'{reference}' and '{path}' hold the same\n"
    blob = bytearray(path.read_bytes())
    blob[len(blob) // 2] ^= 1
    path.write_bytes(blob)
    if kind is not KINDS[0]:  # of a .bin, diff maps the arrays, and half of this one is arrays
        assert main(["diff", str(path), str(reference)]) == 2
    assert main(["verify", str(path)]) == 1 and str(path) in capsys.readouterr().err


def test_diff_says_what_differs_where_and_by_how_much(tmp_path, capsys):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    nan = np.array([np.nan, 1.0, np.inf])
    a = {"same": x, "nan": nan, "shape": x, "dtype": x, "values": x, "zero": np.array(0.0), "n": 1, "t": (1, 2), "only": x,
         "huge": np.array([2**63 - 1]), "s": np.float32(1), "f": float("nan"), "k" * 200 + "1": 1, "k" * 200 + "2": 2,
         "wild": nan, "\x1b": 1}  # fmt: skip
    b = {**a, "shape": x.T, "dtype": x.astype(np.float16), "values": x + np.float32(0.5) * (x > 3), "zero": np.array(-0.0),
         "n": True, "t": [1, 3], "extra": {"y": [b"z"]}, "huge": np.array([2**63 - 2]), "s": np.float32(2),
         "k" * 200 + "2": 3, "wild": nan[::-1], "\x1b": 10**100}  # fmt: skip
    del b["only"]
    paths = [str(BinFileRecorder().save(data, tmp_path / name)) for name, data in (("a", a), ("b", b))]
    assert main(["diff", *paths]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == [
        "! /shape  shape (2, 3) | (3, 2)",
        "! /dtype  dtype float32 | float16",
        "! /values  2 of 6 elements differ, max abs difference 0.5",
        "! /zero  1 of 1 elements differ, max abs difference 0",
        "! /n  1 | True",
        "! /t/1  2 | 3",
        "- /only  float32 (2, 3)",
        "! /huge  1 of 1 elements differ, max abs difference 1",
        "! /s  float32 1.0 | float32 2.0",
        f"! /{'k' * 60}...{'k' * 58}2  2 | 3".replace("k" * 60 + "..." + "k" * 58, "k" * 59 + "..." + "k" * 59),
        "! /wild  2 of 3 elements differ, 2 of them not finite, max abs difference 0",
        f"! /\\x1b  1 | int of {(10**100).bit_length()} bits",
        "+ /extra/y/0  b'z'",
        "! /t  tuple | list",
    ]
    assert lines[-1] == f"'{paths[0]}' and '{paths[1]}' differ in 14 places"


def test_diff_exits_with_two_where_a_file_cannot_be_read(tmp_path, capsys):
    good = str(BinFileRecorder().save(1, tmp_path / "a"))
    assert main(["diff", good, f"{tmp_path}/missing.mpk"]) == 2
    assert capsys.readouterr().err == f"{tmp_path}/missing.mpk: not found\n"
    with pytest.raises(SystemExit) as ended:
        main(["diff", good])
    assert ended.value.code == 2 and "the following arguments are required: B" in capsys.readouterr().err


def test_safetensors_are_looked_into_as_well(tmp_path, capsys):
    pytest.importorskip("safetensors")
    x = np.ones((2, 3), np.float32)
    one, other = (str(write_safetensors(tmp_path / name, {"w": x * k})) for k, name in ((1, "a"), (2, "b")))
    assert main(["inspect", one]) == 0
    out = capsys.readouterr().out
    assert "/w    float32  (2, 3)     24  crc32" in out and "safetensors, 1 arrays of 24 bytes" in out
    assert main(["verify", one]) == 0 and main(["diff", one, other]) == 1
    assert "! /w  6 of 6 elements differ, max abs difference 1" in capsys.readouterr().out
    assert main(["diff", one, str(BinFileRecorder().save({"w": x}, tmp_path / "c"))]) == 0


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
