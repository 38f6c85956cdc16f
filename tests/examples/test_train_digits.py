"""The command `make train` runs, as a user runs it: in a process of its own."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_record import BinFileRecorder

ROOT = Path(__file__).parents[2]
PNG = b"\x89PNG\r\n"
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")


def train(*arguments: object, path: Path | None = None) -> subprocess.CompletedProcess:
    """Run the example; modules in `path` come first."""
    found = os.pathsep.join(str(p) for p in (path, ROOT) if p is not None)
    command = [sys.executable, str(ROOT / "examples/train_digits.py"), *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": found}, capture_output=True, text=True, timeout=250)


def contents(out: Path) -> Any:
    """All of a checkpoint, to compare: parameter ids, which differ from run to run, become their places in the model."""
    data = BinFileRecorder().load(out / "checkpoint")
    names = {entry["id"]: f"parameter {i}" for i, entry in enumerate(data["model"]["params"])}
    assert len(names) == 6

    def comparable(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return str(value.dtype), value.shape, value.tobytes()
        if isinstance(value, dict):
            return {names.get(name, name): comparable(inner) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            inner = [comparable(v) for v in value]
            named = all(isinstance(v, dict) and "id" in v for v in inner)
            return sorted(inner, key=lambda v: v["id"]) if named else inner
        return names.get(value, value) if isinstance(value, str) else value

    return comparable(data)


@pytest.mark.slow
def test_it_reaches_the_goal_and_leaves_its_files(tmp_path):
    done = train("--device", "cpu", "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"test accuracy\s+([0-9.]+)", done.stdout)
    assert accuracy and float(accuracy[1]) >= 0.97
    for told in ("parameters     50,826", "checkpoint.bin, curves.png, misclassified.png", "cross-entropy"):
        assert told in done.stdout
    assert "100%" in done.stderr and "test_accuracy=" in done.stderr and "loss=" in done.stderr
    for name in ("curves.png", "misclassified.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


@pytest.mark.parametrize("stop_after", [20, 90, 111], ids=["window full", "end of an epoch", "mid window, epoch 1"])
def test_stopping_and_resuming_in_a_new_process_gives_the_same_bits(tmp_path, stop_after):
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    common = ("--device", "cpu", "--epochs", 2)
    assert "epoch 2" in train(*common, "--out", straight).stdout
    stopped = train(*common, "--out", parts, "--stop-after", stop_after)
    assert "stopped early" in stopped.stdout
    assert len(contents(parts)["gradients"]) == (6 if stop_after % 2 else 0)
    assert contents(parts)["model"] != contents(straight)["model"]
    assert "epoch 2" in train(*common, "--out", parts, "--resume").stdout
    assert contents(parts) == contents(straight)


def test_the_seed_decides_the_run(tmp_path):
    models = []
    for seed in (1, 1, 2):
        train("--device", "cpu", "--epochs", 1, "--stop-after", 6, "--seed", seed, "--out", tmp_path)
        models.append(contents(tmp_path)["model"])
    assert models[0] == models[1] != models[2]


def test_exit_code_1_below_the_goal(tmp_path):
    done = train("--device", "cpu", "--epochs", 1, "--stop-after", 2, "--out", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "curves.png" not in done.stdout and "misclassified.png" in done.stdout


def test_what_cannot_be_resumed_is_said_without_a_traceback(tmp_path):
    missing = train("--device", "cpu", "--resume", "--out", tmp_path)
    assert missing.returncode == 1 and "checkpoint.bin" in missing.stderr and "Traceback" not in missing.stderr
    train("--device", "cpu", "--stop-after", 2, "--out", tmp_path)
    other = train("--device", "cpu", "--resume", "--seed", 5, "--out", tmp_path)
    assert other.returncode == 1 and "'seed': 5" in other.stderr and "Traceback" not in other.stderr


@pytest.mark.parametrize("name", ["sklearn", "tqdm", "matplotlib"])
def test_a_missing_package_is_named_with_what_to_install(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\")\n")
    done = train("--device", "cpu", "--out", tmp_path / "out", path=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert name in done.stderr and "pip install 'ruda[examples]'" in done.stderr


def test_cuda_without_a_gpu_says_why(tmp_path):
    from ruda_tensor.backend import gpu_problem

    if gpu_problem() is None:
        pytest.skip("there is a usable GPU")
    done = train("--device", "cuda", "--out", tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "train_digits:" in done.stderr


@pytest.mark.gpu
def test_a_run_on_the_gpu_reaches_the_goal_and_resumes_bit_exactly(tmp_path):
    done = train("--device", "cuda", "--epochs", 2, "--out", tmp_path / "a")
    assert "Cuda" in done.stdout, done.stderr
    train("--device", "cuda", "--epochs", 2, "--out", tmp_path / "b", "--stop-after", 111)
    train("--device", "cuda", "--epochs", 2, "--out", tmp_path / "b", "--resume")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.fixture
def parts(monkeypatch):
    """The modules that the example imports from its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import _digits_data
    import _digits_plots

    return _digits_data, _digits_plots


def test_the_split_is_fixed_and_covers_every_digit_once(parts):
    data, _ = parts
    from sklearn.datasets import load_digits

    rt.random.seed(3)
    digits = data.load_digits(rt.Cpu())
    again = data.load_digits(rt.Cpu())
    assert digits.train_images.shape == (1440, 10, 10) and digits.test_images.shape == (357, 10, 10)
    assert digits.test_images.numpy().tobytes() == again.test_images.numpy().tobytes()
    both = np.concatenate([data.centred(x).numpy() for x in (digits.train_images, digits.test_images)])
    want = load_digits().data.astype(np.float32) / 16
    assert sorted(map(bytes, both)) == sorted(map(bytes, want))


def test_a_crop_moves_an_image_by_its_own_corner(parts):
    data, _ = parts
    image = np.zeros((8, 8), np.float32)
    image[3, 4] = 1.0
    images = rt.tensor(np.stack([np.pad(image, 1)] * 3), device=rt.Cpu())
    corners = rt.tensor([[1, 1], [0, 2], [2, 1]], device=rt.Cpu())
    got = data.crop(images, corners).numpy().reshape(3, 8, 8)
    assert [tuple(np.argwhere(g)[0]) for g in got] == [(3, 4), (4, 3), (2, 4)]
    np.testing.assert_array_equal(data.centred(images).numpy()[0], got[0].ravel())


@pytest.mark.parametrize("wrong", [0, 1, 11, 60])
def test_the_pictures_can_be_drawn_whatever_the_number_of_mistakes(parts, tmp_path, wrong):
    _, plots = parts
    truth = np.arange(80) % 10
    probabilities = np.full((80, 10), 0.01)
    probabilities[np.arange(80), np.where(np.arange(80) < wrong, (truth + 1) % 10, truth)] = 0.91
    plots.draw_misclassified(np.zeros((80, 64)), truth, probabilities, tmp_path / "a.png")
    history = {name: [0.5] * (1 + wrong) for name in ("loss", "accuracy", "test_loss", "test_accuracy")}
    plots.draw_curves(history, 0.97, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG) and (tmp_path / "b.png").read_bytes().startswith(PNG)
