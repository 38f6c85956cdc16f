"""The benchmarks run, and their arithmetic is right; how fast things are is not a test."""
from __future__ import annotations

import gc
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ruda_tensor as rt
from benchmarks import ours
from benchmarks.__main__ import agree, alike
from benchmarks.measure import Times, Trained, Turns, interleave

ROOT = Path(__file__).parents[2]
# 4 layers (two norms; projections of 128 to 384 and to 128; 128 to 512 and back), tables of 96 and 128 places, a norm, the head
CHAR_GPT = 4 * (4 * 128 + 129 * 384 + 129 * 128 + 129 * 512 + 513 * 128) + (96 + 128) * 128 + 2 * 128 + 129 * 96


def bench(*arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)


def test_a_ratio_is_taken_within_rounds_where_drift_cancels():
    times = Times({"a": [1.0, 10.0, 100.0], "b": [2.0, 20.0, 200.0]})
    assert times.ratio("a", "b") == (0.5, 0.5, 0.5) and times.median("b") == 20.0


def test_candidates_take_turns_in_alternating_order():
    order: list[str] = []
    times = interleave({name: lambda name=name: order.append(name) or float(len(order)) for name in "abc"}, 3)
    assert "".join(order) == "abc" + "cba" + "abc"
    assert times.seconds == {"a": [1.0, 6.0, 7.0], "b": [2.0, 5.0, 8.0], "c": [3.0, 4.0, 9.0]}


def test_a_turn_lasts_about_its_slot_and_leaves_collection_on():
    turns = Turns(lambda: time.sleep(0.01), lambda: None, slot=0.1, clock="wall")
    assert 2 <= turns.calls <= 10
    assert 0.01 <= turns.take() < 0.1 and gc.isenabled()
    assert Turns(lambda: time.sleep(0.002), lambda: None, slot=0.0, clock="cpu").take() < 0.002


def test_a_peer_that_computes_something_else_is_refused():
    a = np.ones((2, 3))
    agree({"ruda": [a], "torch": [a * 1.0005], "floor": []})
    with pytest.raises(RuntimeError, match="torch disagree by 0.002"):
        agree({"ruda": [a], "torch": [a / 1.002]})


def test_a_peer_of_another_size_is_refused():
    alike({})
    alike({"ruda": 834_400, "torch": 834_400})
    with pytest.raises(RuntimeError, match="ruda trains 447,608 parameters and torch 834,400, which is no comparison"):
        alike({"ruda": 447_608, "torch": 834_400})


@pytest.mark.parametrize(("case", "size"), [("linear", 3), ("mlp", 269_322), ("char_gpt", CHAR_GPT)])
def test_what_is_trained_has_the_size_that_its_name_says(case, size):
    runs = [ours.WORKLOADS[case](rt.Cpu())]
    if importlib.util.find_spec("torch") is not None:
        from benchmarks import torch_peer

        runs += [make() for make in torch_peer.workloads("cpu")[case].values()]
    assert all(isinstance(run, Trained) and run.parameters == size for run in runs)


def test_sections_can_be_chosen_and_figures_written(tmp_path):
    done = bench("step", "memory", "--rounds", 2, "--slot", 0.001, "--json", tmp_path / "x.json")
    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "x.json").read_text())["cases"]
    assert set(cases) == {"linear", "memory"}
    assert cases["linear"]["lines"][0]["candidate"] == "ruda" and cases["linear"]["lines"][0]["seconds"] > 0
    assert cases["memory"]["left"] < 0.01 * cases["memory"]["kept"]


def test_an_unknown_section_is_refused_by_name():
    done = bench("speed")
    assert done.returncode == 2 and "speed" in done.stderr and "overhead" in done.stderr


@pytest.mark.gpu
def test_the_same_script_runs_on_a_gpu():
    done = bench("overhead", "--device", "cuda", "--rounds", 2, "--slot", 0.001)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_step_of_gpt2_is_measured_eager_and_recorded():
    sizes = ("--size", "tiny", "--batch", "2", "--length", "64", "--rounds", "1", "--calls", "2", "--no-peers")
    command = [sys.executable, "-m", "benchmarks.gpt2", *sizes]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "| ruda, eager |" in done.stdout and "| ruda |" in done.stdout
