"""The short examples of the training page, as a user runs them: in processes of their own."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str, *arguments: object, device: str = "cpu") -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RUDA_DEVICE": device, "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_the_training_step_learns(device):
    said = run("training_step.py", device=device)
    assert "weight [ 1.5 -2. ]," in said and "bias   [0.5]," in said


@pytest.mark.parametrize("device", DEVICES)
def test_a_window_of_micro_batches_is_the_whole_batch(device):
    said = run("accumulation_window.py", device=device)
    assert said.count("weight [ 1.5 -2. ]") == 2
    assert float(said.partition("apart by")[2].split()[0]) < 1e-5
    assert said.rstrip().endswith("after 300 updates: 0.00625")


@pytest.mark.parametrize("device", DEVICES)
def test_masters_come_nearer_than_what_is_stored(device):
    said = run("mixed_storage.py", device=device)
    stored, master = said.splitlines()
    assert "bfloat16" in stored and "float32" in master
    found = [float(x) for x in master.partition("[")[2].rstrip("]").split(",")]
    assert abs(found[0] - 1.5) < 0.02 and abs(found[1] + 2) < 0.03


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(device, tmp_path):
    said = run("save_and_resume.py", "--out", tmp_path / "new", device=device)
    assert "the same bits: True" in said and "4 updates and 1 more" in said
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["step-4.bin"]
