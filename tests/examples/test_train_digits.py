"""The command `make train` runs, as a user runs it: in a process of its own."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_record import BinFileRecorder
from ruda_tensor.backend import gpu_problem

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
    """A checkpoint, to compare: parameter ids, which differ from run to run, become their places in the model."""
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


@pytest.fixture
def example(monkeypatch):
    """The modules of the example: the script, its data, its plots."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import _digits_data
    import _digits_plots
    import train_digits

    return train_digits, _digits_data, _digits_plots


@pytest.fixture
def main(example, monkeypatch):
    """The script's `main` in this process, given its command line."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["train_digits.py", "--device", "cpu", *map(str, arguments)])
        return example[0].main()

    return run


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


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The checkpoint of two epochs in one go, in a process of its own."""
    out = tmp_path_factory.mktemp("straight")
    assert "epoch 2" in train("--device", "cpu", "--epochs", 2, "--out", out).stdout
    return contents(out)


@pytest.mark.parametrize("stop_after", [20, 90, 111], ids=["window full", "end of an epoch", "mid window, epoch 1"])
def test_stopping_and_resuming_in_a_new_process_gives_the_same_bits(tmp_path, main, straight, stop_after, capsys):
    main("--epochs", 2, "--out", tmp_path, "--stop-after", stop_after)
    assert "stopped early" in capsys.readouterr().out
    assert len(contents(tmp_path)["gradients"]) == (6 if stop_after % 2 else 0)
    assert contents(tmp_path)["model"] != straight["model"]
    assert "epoch 2" in train("--device", "cpu", "--epochs", 2, "--out", tmp_path, "--resume").stdout
    assert contents(tmp_path) == straight


def test_the_seed_decides_the_run(tmp_path, main):
    models = []
    for seed in (1, 1, 2):
        main("--epochs", 1, "--stop-after", 6, "--seed", seed, "--out", tmp_path)
        models.append(contents(tmp_path)["model"])
    assert models[0] == models[1] != models[2]


def test_ctrl_c_finishes_the_micro_batch_and_saves(tmp_path, main, example, monkeypatch, capsys):
    step, steps = example[0].train_step, []

    def interrupted(*arguments: Any) -> None:
        steps.append(1)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)  # between two bytecodes of the step
        step(*arguments)

    monkeypatch.setattr(example[0], "train_step", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main("--epochs", 1, "--out", tmp_path) == 1
    assert len(steps) == 3 and "stopped early" in capsys.readouterr().out
    assert contents(tmp_path)["state"]["progress"]["batch"] == 3 and signal.getsignal(signal.SIGINT) is before


def test_exit_code_1_below_the_goal(tmp_path, main, capsys):
    assert main("--epochs", 1, "--stop-after", 2, "--out", tmp_path) == 1
    told = capsys.readouterr().out
    assert "misclassified.png" in told and "curves.png" not in told


def test_what_cannot_be_resumed_is_said_without_a_traceback(tmp_path, main):
    with pytest.raises(SystemExit, match="train_digits: .*checkpoint.bin"):
        main("--resume", "--out", tmp_path)
    main("--stop-after", 2, "--out", tmp_path)
    with pytest.raises(SystemExit, match="'seed': 0.*'seed': 5"):
        main("--resume", "--seed", 5, "--out", tmp_path)


@pytest.mark.parametrize("name", ["sklearn", "tqdm", "matplotlib"])
def test_a_missing_package_is_named_with_what_to_install(tmp_path, name):
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\")\n")
    done = train("--device", "cpu", "--out", tmp_path / "out", path=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert name in done.stderr and "pip install 'ruda[examples]'" in done.stderr


def test_cuda_without_a_gpu_says_why(main, tmp_path):
    if gpu_problem() is None:
        pytest.skip("there is a usable GPU")
    with pytest.raises(SystemExit, match="train_digits: "):
        main("--device", "cuda", "--out", tmp_path)


@pytest.mark.gpu
def test_a_run_on_the_gpu_reaches_the_goal_and_resumes_bit_exactly(tmp_path):
    done = train("--device", "cuda", "--epochs", 2, "--out", tmp_path / "a")
    assert "Cuda" in done.stdout, done.stderr
    train("--device", "cuda", "--epochs", 2, "--out", tmp_path / "b", "--stop-after", 111)
    train("--device", "cuda", "--epochs", 2, "--out", tmp_path / "b", "--resume")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_split_is_fixed_and_covers_every_digit_once(example):
    _, data, _ = example
    from sklearn.datasets import load_digits

    rt.random.seed(3)
    digits = data.load_digits(rt.Cpu())
    again = data.load_digits(rt.Cpu())
    assert digits.train_images.shape == (1440, 10, 10) and digits.test_images.shape == (357, 10, 10)
    assert digits.test_images.numpy().tobytes() == again.test_images.numpy().tobytes()
    both = np.concatenate([data.centred(x).numpy() for x in (digits.train_images, digits.test_images)])
    want = load_digits().data.astype(np.float32) / 16
    assert sorted(map(bytes, both)) == sorted(map(bytes, want))


def test_a_crop_moves_an_image_by_its_own_corner(example):
    _, data, _ = example
    image = np.zeros((8, 8), np.float32)
    image[3, 4] = 1.0
    images = rt.tensor(np.stack([np.pad(image, 1)] * 3), device=rt.Cpu())
    corners = rt.tensor([[1, 1], [0, 2], [2, 1]], device=rt.Cpu())
    got = data.crop(images, corners).numpy().reshape(3, 8, 8)
    assert [tuple(np.argwhere(g)[0]) for g in got] == [(3, 4), (4, 3), (2, 4)]
    np.testing.assert_array_equal(data.centred(images).numpy()[0], got[0].ravel())


@pytest.mark.parametrize("wrong", [0, 1, 11, 60])
def test_the_pictures_can_be_drawn_whatever_the_number_of_mistakes(example, tmp_path, wrong):
    _, _, plots = example
    truth = np.arange(80) % 10
    probabilities = np.full((80, 10), 0.01)
    probabilities[np.arange(80), np.where(np.arange(80) < wrong, (truth + 1) % 10, truth)] = 0.91
    plots.draw_misclassified(np.zeros((80, 64)), truth, probabilities, tmp_path / "a.png")
    history = {name: [0.5] * (1 + wrong) for name in ("loss", "accuracy", "test_loss", "test_accuracy")}
    plots.draw_curves(history, 0.97, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG) and (tmp_path / "b.png").read_bytes().startswith(PNG)
