"""The text example, as a user runs it, and the bits of an interrupted run."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_record import BinFileRecorder

ROOT = Path(__file__).parents[2]
pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")


@pytest.fixture
def example(monkeypatch):
    """The script and its model as modules."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import _text_model
    import train_text

    return train_text, _text_model


@pytest.fixture
def main(example, monkeypatch):
    """The script's `main` in this process, given its command line."""

    def run(*arguments: object, device: str = "cpu") -> None:
        monkeypatch.setattr(sys, "argv", ["train_text.py", "--device", device, *map(str, arguments)])
        example[0].main()

    return run


def contents(out: Path) -> tuple[list[bytes], list[float]]:
    """The bits of the parameters, and the losses, of a checkpoint."""
    data: Any = BinFileRecorder().load(out / "checkpoint")
    return [p["value"].tobytes() for p in data["model"]["params"]], data["state"]["history"]["loss"]


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(main, tmp_path, capsys, device):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main("--steps", 5, "--sample", 4, "--out", whole, device=device)
    main("--steps", 5, "--stop-after", 2, "--sample", 4, "--out", parts, device=device)
    assert "stopped early; go on with --resume --steps 5" in capsys.readouterr().out
    assert len(contents(parts)[1]) == 2
    main("--steps", 5, "--resume", "--sample", 4, "--out", parts, device=device)
    assert contents(parts) == contents(whole)
    assert (parts / "sample.txt").read_text() == (whole / "sample.txt").read_text()
    assert {p.name for p in parts.iterdir()} == {"checkpoint.bin", "curve.png", "sample.txt"}


def test_it_learns(example):
    train_text, model = example
    run = train_text.Training(train_text.TrainingConfig(warmup=5, batch=4), model.Text(), rt.Cpu())
    for _ in train_text.train(run, 40):
        pass
    loss = run.history["loss"]
    assert loss[0] == pytest.approx(np.log(len(run.text.characters)), rel=0.05)
    assert np.mean(loss[-5:]) < loss[0] - 0.9  # how fast it falls depends on the text, which differs from Python to Python


def test_the_model_has_the_layers_and_widths_that_its_settings_say(example):
    settings = example[1].CharGptConfig(90)
    model, d = settings.init(rt.Cpu()), settings.d_model
    assert len(model.body.layers) == settings.n_layers == 4
    assert {layer.feed_forward.linear1.weight.shape for layer in model.body.layers} == {(d, 4 * d)}
    layer = 4 * d + (d + 1) * 3 * d + (d + 1) * d + (d + 1) * 4 * d + (4 * d + 1) * d
    assert model.num_params() == 4 * layer + (90 + settings.length) * d + 2 * d + (d + 1) * 90


def test_what_it_writes_does_not_depend_on_the_cache(example):
    train_text, module = example
    text = module.Text()
    rt.random.seed(1)
    model = module.CharGptConfig(len(text.characters), length=16, d_model=16, n_heads=2, n_layers=1).init(rt.Cpu())
    ids = rt.tensor(text.train[None, :16], device=rt.Cpu())
    whole, cache = model(ids), model.body.empty_cache()
    for i in range(16):
        scores, cache = model(ids[:, i : i + 1], cache)
        np.testing.assert_allclose(scores.numpy()[:, 0], whole.numpy()[:, i], rtol=2e-5, atol=2e-6)
    written = module.sample(model, text, 40, seed=3)  # the cache of 16 places is filled several times
    assert len(written) == 40 and written == module.sample(model, text, 40, seed=3) != module.sample(model, text, 40, seed=4)


def test_the_text_is_kept_whole(example):
    text = example[1].Text()
    assert len(text.train) > 400_000 and len(text.validation) > 40_000
    assert text.decode(text.encode("def f(x): return x")) == "def f(x): return x"
