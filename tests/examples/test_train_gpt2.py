"""The GPT-2 example, as a user runs it: it learns, resumes bit for bit, accumulates exactly, and refuses what is wrong."""
from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_optim import AdamWConfig, GradientClippingConfig, GradientsParams, ParamGroup
from ruda_record import BinFileRecorder, write_safetensors

from ._gpt2_numpy import random_checkpoint

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
NAMES = ("exp_avg", "exp_avg_sq")
SHORT = ("--length", 16, "--batch", 2, "--sample", 4)


@pytest.fixture
def gpt2(monkeypatch):
    """The script and its helpers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import _gpt2_data
    import _gpt2_model
    import _gpt2_report
    import _gpt2_training
    import train_gpt2

    return types.SimpleNamespace(
        data=_gpt2_data, model=_gpt2_model, report=_gpt2_report, training=_gpt2_training, script=train_gpt2
    )


@pytest.fixture
def main(gpt2, monkeypatch):
    """The script's `main` in this process, given its command line."""

    def run(*arguments: object, device: str = "cpu") -> None:
        monkeypatch.setattr(sys, "argv", ["train_gpt2.py", "--device", device, *map(str, arguments)])
        gpt2.script.main()

    return run


@pytest.fixture(autouse=True)
def short_validation(gpt2, monkeypatch):
    monkeypatch.setattr(gpt2.training, "VALIDATION_TOKENS", 1 << 10)


@pytest.fixture
def config(gpt2):
    """Settings of a tiny run."""
    return gpt2.training.TrainingConfig("tiny", 16, "float32", 4, 1, horizon=100, warmup=5, lr=3e-3)


def contents(out: Path) -> Any:
    """The bits of everything in a checkpoint, but for the random ids of the parameters."""
    data: Any = BinFileRecorder().load(out / "checkpoint")
    order = {p["id"]: str(i) for i, p in enumerate(data["model"]["params"])}

    def bits(x: Any) -> Any:
        if isinstance(x, dict):
            return {order.get(key, key): bits(value) for key, value in x.items()}
        if isinstance(x, list | tuple):
            return [bits(value) for value in x]
        return x.tobytes() if isinstance(x, np.ndarray) else order.get(x, x) if isinstance(x, str) else x

    return bits(data)


@pytest.mark.gpu
def test_a_recorded_step_gives_the_bits_of_the_eager_one(main, tmp_path):
    for graph in ("--graph", "--no-graph"):
        main("--steps", 12, "--accumulate", 2, graph, *SHORT, "--out", tmp_path / graph, device="cuda")
    assert contents(tmp_path / "--graph") == contents(tmp_path / "--no-graph")


def test_a_restore_brings_back_the_random_state(gpt2, config, tmp_path):
    run = gpt2.training.Training(config, gpt2.data.open_corpus(None, None, None), rt.Cpu())
    run.save(tmp_path / "checkpoint")
    before = rt.random.get_state()
    rt.random.uniform((3,), device=rt.Cpu())
    run.restore(tmp_path / "checkpoint")
    assert rt.random.get_state() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(main, tmp_path, capsys, device, dtype):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = ("--steps", 6, "--accumulate", 2, "--dtype", dtype, *SHORT)
    main(*settings, "--out", whole, device=device)
    main(*settings, "--stop-after", 3, "--out", parts, device=device)
    assert "stopped early; go on with --resume --steps 6" in capsys.readouterr().out
    assert len(contents(parts)["state"]["history"]["loss"]) == 3
    main(*settings, "--resume", "--out", parts, device=device)
    assert contents(parts) == contents(whole)
    assert (parts / "sample.txt").read_bytes() == (whole / "sample.txt").read_bytes()
    assert {p.name for p in parts.iterdir()} == {"checkpoint.bin", "curve.png", "sample.txt"}
    assert "MFU" in capsys.readouterr().out


@pytest.mark.parametrize("device", [("cpu", "float32"), pytest.param(("cuda", "bfloat16"), marks=pytest.mark.gpu)], ids=str)
def test_it_learns(gpt2, config, device):
    place = {"cpu": rt.Cpu, "cuda": rt.Cuda}[device[0]]()
    config = dataclasses.replace(config, length=32, batch=8, dtype=device[1])
    run = gpt2.training.Training(config, gpt2.data.open_corpus(None, None, None), place)
    assert run.model.tokens.weight.dtype == getattr(rt, device[1])
    for _ in range(60):
        run.unread.append(run.step(*run.batch()))
    assert run.steps == 60 and not run.history["loss"]
    run.read()
    loss = run.history["loss"]
    assert run.steps == len(loss) == 60 and loss[0] == pytest.approx(np.log(256), rel=0.02)
    assert np.mean(loss[-5:]) < loss[0] - 1.5
    assert abs(run.validate() - np.mean(loss[-5:])) < 0.5


def moments(model: Any, optimizer: Any) -> dict[str, np.ndarray]:
    """Both moments by path: after one update they show the size of the gradient, as the update itself does not."""
    states = {path: optimizer.states[p.id] for path, p in model.named_params()}
    return {f"{path} {name}": state.get("inner", state)[name] for path, state in states.items() for name in NAMES}


def test_micro_batches_are_one_batch(gpt2, config):
    corpus = gpt2.data.open_corpus(None, None, None)
    whole = gpt2.training.Training(config, corpus, rt.Cpu())
    parts = gpt2.training.Training(dataclasses.replace(config, batch=1, accumulate=4), corpus, rt.Cpu())
    losses = [run.step(*run.batch()).item() for run in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    found = moments(parts.model, parts.optimizer)
    for name, expected in moments(whole.model, whole.optimizer).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("limit", [0.01, 1e6], ids=["clipped", "free"])
def test_an_update_is_adamw_of_the_mean_loss(gpt2, config, limit):
    """The sums of the run, divided where masters are kept, against the mean as one writes it."""
    corpus = gpt2.data.open_corpus(None, None, None)
    run = gpt2.training.Training(dataclasses.replace(config, max_norm=limit), corpus, rt.Cpu())
    x, y = run.batch()
    model, before = run.model.clone(), {path: p.numpy() for path, p in run.model.named_params()}
    loss = rt.cross_entropy(model(x[0]), y[0])
    gradients = GradientsParams.from_grads(loss.backward(), model)
    rule = AdamWConfig(betas=(0.9, 0.95), weight_decay=0.1, grad_clipping=GradientClippingConfig.global_norm(limit))
    plain = rule.init(groups=[ParamGroup("*bias", weight_decay=0.0), ParamGroup("*norm*", weight_decay=0.0)])
    model = plain.step(run.schedule.value(0), model, gradients)
    assert run.step(x, y).item() == pytest.approx(loss.item(), rel=1e-6)
    found = moments(run.model, run.optimizer)
    for name, expected in moments(model, plain).items():
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=1e-5 * np.abs(expected).max(), err_msg=name)
    for (path, p), (_, q) in zip(run.model.named_params(), model.named_params()):
        np.testing.assert_allclose(p.numpy(), q.numpy(), rtol=1e-5, atol=1e-6, err_msg=path)
        assert (p.numpy() != before[path]).any(), path


def test_the_schedule_rises_and_falls_to_a_tenth(gpt2, config):
    schedule = gpt2.training.Training(config, gpt2.data.open_corpus(None, None, None), rt.Cpu()).schedule
    rates = [schedule.value(k) for k in range(200)]
    assert max(rates) == rates[5] == pytest.approx(3e-3) and rates[0] < rates[1] < rates[4]
    assert rates[100] == rates[-1] == pytest.approx(3e-4) and rates[100] < rates[99] < 1.01 * rates[100]
    assert all(a >= b for a, b in zip(rates[5:], rates[6:]))


def test_tokens_and_weights_from_files(main, tmp_path, capsys):
    weights = random_checkpoint(2, 64, 64, 50257)
    write_safetensors(tmp_path / "weights", weights)
    tokens = np.random.default_rng(0).integers(0, 50257, 2000).astype("<u2")
    (tmp_path / "tokens.bin").write_bytes(tokens.tobytes())
    files = ("--tokens", tmp_path / "tokens.bin", "--weights", tmp_path / "weights.safetensors")
    main(*files, "--steps", 0, *SHORT, "--prompt", "464 3290", "--temperature", 0, "--out", tmp_path / "out")
    said = capsys.readouterr().out
    assert "0 updates" in said and "speed" not in said and len(said.splitlines()[0].split()) == 4
    main(*files, "--steps", 1, *SHORT, "--top-k", 5, "--out", tmp_path / "out")
    assert "nats per token" in capsys.readouterr().out


def refused(main: Any, capsys: Any, *arguments: object) -> str:
    """What the script says when it ends without doing anything."""
    with pytest.raises(SystemExit) as error:
        main(*arguments)
    assert error.value.code != 0
    return f"{error.value.code} {capsys.readouterr().err}"


def test_what_is_refused(main, tmp_path, capsys):
    out = ("--out", tmp_path / "out")
    (tmp_path / "x.bin").write_bytes(b"abc")
    (tmp_path / "x.safetensors").write_bytes(b"abc")
    for arguments, said in (
        (("--tokens", tmp_path / "x.bin"), "has 3 bytes"),
        (("--data", tmp_path / "gone"), "gone"),
        (("--data", tmp_path / "x.bin"), "hold no window of 64 + 1"),
        (("--weights", tmp_path / "x.safetensors"), "not a valid safetensors file"),
        (("--length", 65), "length=65 is not allowed; give an integer from 1 to 64"),
        (("--batch", 0), "batch=0 is not allowed"),
        (("--warmup", 1000), "warmup=1000 is not allowed; give an integer below the horizon, 1000"),
        (("--lr", 2.0), "2.0"),
        (("--steps", -1), "--steps -1 is not allowed; give at least 0"),
        (("--temperature", "nan"), "--temperature nan"),
        (("--resume",), "checkpoint"),
        (("--resume", "--weights", "x"), "leave --weights out"),
        (("--model", "125M"), "124M"),
    ):
        assert said in refused(main, capsys, *arguments, *out)
    assert not (tmp_path / "out").exists()


def test_a_run_with_other_settings_is_not_resumed(main, tmp_path, capsys):
    out = ("--out", tmp_path / "out")
    main("--steps", 1, *SHORT, *out)
    said = refused(main, capsys, "--resume", "--steps", 1, *SHORT, "--accumulate", 2, "--lr", 1e-4, *out)
    assert "accumulate: 1 | 2" in said and "lr: 0.003 | 0.0001" in said and "batch" not in said
    text = tmp_path / "text"
    text.write_bytes(bytes(500))
    said = refused(main, capsys, "--resume", "--steps", 1, *SHORT, "--data", text, *out)
    assert "corpus" in said


def test_a_loss_that_is_no_number_ends_the_run_and_spares_the_checkpoint(gpt2, main, tmp_path, capsys, monkeypatch):
    main("--steps", 1, "--horizon", 5, *SHORT, "--out", tmp_path)
    before = (tmp_path / "checkpoint.bin").read_bytes()
    monkeypatch.setattr(gpt2.training.Training, "step", lambda self, x, y: rt.tensor(float("nan"), device=x.device))
    said = refused(main, capsys, "--resume", "--steps", 5, "--horizon", 5, *SHORT, "--out", tmp_path)
    assert "no longer a number" in said and (tmp_path / "checkpoint.bin").read_bytes() == before


def test_rates_are_of_the_stretches_between_marks(gpt2, monkeypatch):
    now = 100.0
    monkeypatch.setattr(gpt2.report.time, "perf_counter", lambda: now)
    meter = gpt2.report.Meter(tokens=1000, flops_per_token=7_000_000, peak=7e10)
    now = 102.0
    meter.mark(4)
    assert meter.rate == meter.mean_rate() == 2000.0 and meter.utilization(2000.0) == pytest.approx(0.2)
    now = 110.0
    meter.start()  # a validation lies between
    now = 111.0
    assert meter.memory is None
    meter.mark(5, memory=7)
    assert meter.memory == 7
    assert meter.rate == 5000.0 and meter.mean_rate() == 3000.0
    assert gpt2.report.Meter(1, 1, None).utilization(5.0) is None and gpt2.report.share(None) == "n/a"
    assert gpt2.report.share(0.4567) == "45.7%" and gpt2.report.gibibytes(3 << 29) == "1.50 GiB"


def test_peaks_and_memory(gpt2):
    def named(name: str, dtype: str = "bfloat16") -> float | None:
        runtime = types.SimpleNamespace(getDeviceProperties=lambda index: {"name": name.encode()})
        xp = types.SimpleNamespace(cuda=types.SimpleNamespace(runtime=runtime))
        return gpt2.report.peak_rate(types.SimpleNamespace(launches=True, index=0, xp=xp), dtype)

    assert named("NVIDIA H200") == named("NVIDIA H100 80GB HBM3") == 989e12
    assert named("NVIDIA H100 PCIe") == 756e12 and named("NVIDIA A100-SXM4-80GB") == 312e12
    assert named("Tesla T4") is None and named("NVIDIA H200", "float32") is None
    assert gpt2.report.peak_rate(rt.Cpu(), "float32") is None
    assert (gpt2.report.memory_held(rt.Cpu(), None) or 1 << 27) > 1 << 26
