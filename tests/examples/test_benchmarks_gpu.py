"""The benchmarks of a GPU: that they can be read in without one, and that figures become the right table."""
from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ruda_tensor as rt
from benchmarks import gpu, gpu_jobs, gpu_steps, gpu_table
from benchmarks.gpu_table import COMPILED, EAGER, OURS, TARGETS, Figure, Target, figure, table
from benchmarks.gpu_timing import checked_ms

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("gp[tu]*.py"))
CEILINGS = gpu_steps.Ceilings(4e6, 8e8, 4e8, 5e7)


def test_the_modules_need_neither_a_gpu_nor_a_peer_to_be_imported():
    blocked = "import sys; sys.modules.update(dict.fromkeys(('cupy', 'torch', 'jax')))"  # importing these raises
    code = "\n".join([blocked, *(f"import benchmarks.{name}" for name in MODULES)])
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert len(MODULES) >= 14 and done.returncode == 0, done.stderr


def test_the_options_choose_parts_and_refuse_others_by_name(capsys):
    assert gpu.parse([]).only == list(TARGETS) == ["gpt2", "mlp", "rows", "adamw", "attention", "conv"]
    found = gpu.parse(["--only", "mlp", "conv", "--quick", "--json", "x.json"])
    assert (found.only, found.quick, found.json) == (["mlp", "conv"], True, Path("x.json"))
    with pytest.raises(SystemExit):
        gpu.parse(["--only", "speed"])
    assert "speed" in (said := capsys.readouterr().err) and "attention" in said


def test_every_group_has_parts_that_measure_it():
    assert {part.group for part in gpu.parts().values()} == set(TARGETS)
    kernels = importlib.import_module("benchmarks.gpu_parts")
    families = {name.rpartition(" ")[0] for name, part in gpu.parts().items() if part.group == "rows"}
    assert families == set(kernels.ROWS) and set(kernels.ROWS.values()) <= set(kernels.FAMILIES)
    names = [target.what for targets in TARGETS.values() for target in targets]
    assert len(names) == len(set(names)) == 3 + 2 + 24 + 2 + 3 + 4


ROW = Target("row", "us", (EAGER, COMPILED), share=0.85, ratio=1.3)


@pytest.mark.parametrize(
    ("target", "figures", "verdict"),
    [
        (ROW, {OURS: (100.0, 85.0), EAGER: (200.0,), COMPILED: (130.0,)}, "met"),
        (ROW, {OURS: (100.0, 84.0), EAGER: (200.0,), COMPILED: (130.0,)}, "not met"),
        (ROW, {OURS: (100.0, 90.0), EAGER: (200.0,), COMPILED: (129.0,)}, "not met"),
        (ROW, {OURS: (100.0, 90.0), EAGER: (200.0,), COMPILED: (None,)}, "open"),
        (ROW, {OURS: (100.0, 90.0), EAGER: (120.0,)}, "not met"),
        (ROW, {OURS: (None,), EAGER: (200.0,), COMPILED: (130.0,)}, "not met"),
        (Target("a", "ms", ("torch",), most=28), {OURS: (28.0,)}, "met"),
        (Target("a", "ms", ("torch",), most=28), {OURS: (28.1,), "torch": (99.0,)}, "not met"),
        (Target("a", "us", ("flash", "cudnn"), reach="flash"), {OURS: (3.0,), "flash": (3.0,), "cudnn": (1.0,)}, "met"),
        (Target("a", "us", ("flash", "cudnn"), reach="flash"), {OURS: (3.0,), "flash": (2.9,)}, "not met"),
        (Target("a", "us", ("flash", "cudnn"), reach="flash"), {OURS: (3.0,), "cudnn": (9.0,)}, "open"),
        (Target("a", "us", ("torch",)), {OURS: (3.0,)}, ""),
        (Target("a", "us", ("torch",), most=5), {}, "not met"),
    ],
)
def test_whether_a_goal_is_met(target, figures, verdict):
    assert target.verdict({who: Figure("row", who, *values) for who, values in figures.items()}) == verdict


def test_the_table_of_figures():
    def failing() -> float:
        raise ValueError("out of memory\nand more")

    figures = [
        Figure(gpu_table.ADAMW, OURS, 800.0, 720.0),
        Figure(gpu_table.ADAMW, "torch fused", 1080.04),
        Figure(gpu_table.CLIPPED, OURS, 1234.5, 864.15),
        figure(gpu_table.CLIPPED, "torch fused", failing),
    ]
    *lines, empty, note, _, count = table(["adamw"], figures, {}).split("\n")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({len(line) for line in lines}) == 1 and cells[0] == list(gpu_table.HEADER)
    assert cells[2] == [gpu_table.ADAMW, "800.0 us", "<= 1000 us", "torch fused", "1,080.0 us", "1.35", "90%", "met"]
    assert cells[3] == [gpu_table.CLIPPED, "1,234.5 us", "<= 1200 us", "torch fused", "failed", "-", "70%", "not met"]
    assert (empty, note) == ("", f"failed: torch fused, {gpu_table.CLIPPED}: ValueError: out of memory")
    assert count == "goals: 1 met, 1 not met, 0 open"


def test_a_peer_has_a_line_of_its_own_and_a_lost_process_is_named():
    figures = [Figure(gpu_table.MLP, OURS, 50.0), Figure(gpu_table.MLP, "torch CUDA graph", 100.0)]
    lines = table(["mlp"], figures, {"mlp: mlp jax": "No module named 'jax'"}).split("\n")
    assert "JAX jit" in lines[3] and "failed" in lines[3] and gpu_table.MLP not in lines[3]
    assert "failed: mlp: mlp jax: No module named 'jax'" in lines
    assert "50.0 us" in lines[2] and "2.00" in lines[2] and lines[2].endswith("| met     |")
    assert lines[4].count("failed") == 2  # the eager step has no figure of ours, nor of this peer
    rows = table(["rows"], [], {"rows: norms float32": "gone"}, skipped=(COMPILED,)).split("\n")
    assert all(("failed" in line) != (COMPILED in line) for line in rows[2 : 2 + 2 * len(TARGETS["rows"])])
    assert "failed" not in table(["adamw"], [], {"rows: norms float32": "gone"}).split("failed: rows")[0]


def test_a_step_whose_loss_does_not_fall_is_not_timed():
    losses = iter(np.linspace(3.0, 1.0, 100))
    assert checked_ms(lambda: next(losses), lambda: None, 2, 3) >= 0.0
    for later in (3.0, float("nan")):
        bad = iter([3.0, *[later] * 9])
        with pytest.raises(RuntimeError, match=f"the loss went from 3.0 to {later}"):
            checked_ms(lambda bad=bad: np.float64(next(bad)), lambda: None, 1, 1)


def test_our_small_step_trains_and_is_measured_on_any_device():
    found = list(gpu_steps.mlp_ours(True, rt.Cpu())(CEILINGS))
    assert [f.what for f in found] == [gpu_table.MLP, gpu_table.MLP_EAGER] and all(f.value for f in found), found


@pytest.fixture
def small_rows(monkeypatch):
    """The part of row kernels at a small size, with NumPy in the place of CuPy, and counts in the place of times."""
    torch = pytest.importorskip("torch")
    shim = importlib.import_module("tests.kernels._shim")
    if not shim.COMPILER:
        pytest.skip("no C++ compiler")
    kernels, cases, rows = (importlib.import_module(f"benchmarks.{name}") for name in ("gpu_parts", "gpu_cases", "gpu_rows"))
    rng = np.random.default_rng(0)
    monkeypatch.setattr(cases, "random", lambda cp, shape, dtype: rng.standard_normal(shape).astype(dtype))
    monkeypatch.setattr(cases, "ROWS", 8)
    monkeypatch.setattr(cases, "WIDTH", 64)
    for module in (cases, rows):
        monkeypatch.setattr(module, "to_torch", torch.from_numpy)
    monkeypatch.setattr(kernels.backend, "cupy", lambda: np)
    monkeypatch.setattr(kernels, "warm", lambda *given, **named: None)
    monkeypatch.setattr(kernels, "graph_us", lambda cp, run, count: float(len([run(i) for i in range(count)])))
    monkeypatch.setattr(kernels, "peer_us", lambda case, compiled: 50.0 + compiled)
    with shim.on_shim():
        yield lambda quick: list(kernels.rows(quick, "silu_mul", "float32")(CEILINGS))


def test_a_row_kernel_is_measured_beside_its_peers(small_rows):
    names, moved = [f"silu_mul {way}, float32" for way in ("forward", "forward + backward")], 8 * 64 * 4
    expected = []
    for name, arrays in zip(names, (3, 8)):
        expected += [Figure(name, OURS, 20.0, arrays * moved / CEILINGS.copy)]
        expected += [Figure(name, EAGER, 50.0), Figure(name, COMPILED, 51.0)]
    assert small_rows(False) == expected
    assert small_rows(True) == [f for f in expected if f.who != COMPILED]
    assert set(names) <= {target.what for target in TARGETS["rows"]}


def test_a_kernel_that_computes_something_else_is_not_timed(small_rows, monkeypatch):
    kernels = importlib.import_module("benchmarks.gpu_cases").pointwise
    right = kernels.silu_mul_forward
    monkeypatch.setattr(kernels, "silu_mul_forward", lambda cp, x, y: right(cp, x, y) * np.float32(1.001))
    first = small_rows(True)[0]
    assert first.value is None and "ours is 0.001 of the norm away" in first.failed


def _answers(script: Path, monkeypatch, code: str, seconds: float = 30.0) -> tuple[gpu_jobs.Job, list[str]]:
    script.joinpath("helper_of_jobs.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(script))
    job = gpu_jobs.Job("helper", "helper_of_jobs")
    gpu_jobs.prepared([job], seconds)
    return job, job.measure("go", seconds)


def test_a_process_waits_for_its_turn(tmp_path, monkeypatch):
    code = "from benchmarks.gpu_jobs import hold\nprint('before')\nline = hold()\nprint('figure', line.strip())\n"
    job, lines = _answers(tmp_path, monkeypatch, code)
    assert lines == ["before", "figure go"] and job.why == ""


def test_a_process_that_ends_or_hangs_says_why(tmp_path, monkeypatch):
    job, lines = _answers(tmp_path, monkeypatch, "raise RuntimeError('no such GPU')\n")
    assert lines == [] and job.why == "RuntimeError: no such GPU"
    start = time.monotonic()
    job, lines = _answers(tmp_path, monkeypatch, "import time\ntime.sleep(60)\n", seconds=0.5)
    assert lines == [] and job.why == "took too long" and time.monotonic() - start < 20


def test_without_a_gpu_the_run_says_so(monkeypatch):
    monkeypatch.setenv("RUDA_DEVICE", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit, match="ceilings of this GPU cannot be measured: .*GPU"):
        gpu.main(["--only", "adamw", "--quick"])


def test_the_table_is_printed_and_the_figures_are_written(tmp_path, monkeypatch, capsys):
    figures = [Figure(gpu_table.ADAMW, OURS, 800.0, 720.0), Figure(gpu_table.ADAMW, "torch fused", None, failed="too old")]

    class Process:
        why = ""

        def __init__(self, name: str, *arguments: str) -> None:
            self.name = name

        def measure(self, go: str, seconds: float) -> list[str]:
            assert (self.name == "ceilings") == (go == "")
            return [gpu.MARK + json.dumps(x) for x in ([CEILINGS] if self.name == "ceilings" else figures)]

        def close(self) -> None:
            pass

    monkeypatch.setattr(gpu, "Job", Process)
    monkeypatch.setattr(gpu, "prepared", lambda jobs, seconds: None)
    gpu.main(["--only", "adamw", "--json", str(tmp_path / "x.json")])
    printed = capsys.readouterr().out
    assert "a copy moves 4000 GB/s; products reach, in TFLOP/s: bfloat16 800, tf32 400, float32 50" in printed
    assert table(["adamw"], figures, {}) in printed
    found = json.loads((tmp_path / "x.json").read_text())
    assert found["ceilings"] == CEILINGS._asdict() and [Figure(**f) for f in found["figures"]] == figures


def test_a_part_prints_its_figures_when_it_may(monkeypatch, capsys):
    prepared = []

    def prepare(quick: bool) -> gpu_steps.Measure:
        prepared.append(quick)
        return lambda ceilings: iter([Figure("row", OURS, 1.0, ceilings.copy)])

    monkeypatch.setattr(gpu, "parts", lambda: {"one": gpu.Part("rows", prepare)})
    monkeypatch.setattr(gpu, "hold", lambda: json.dumps(CEILINGS))
    gpu.main(["--part", "one", "--quick"])
    assert prepared == [True]
    assert gpu.answers(["noise", *capsys.readouterr().out.split("\n")]) == [["row", OURS, 1.0, CEILINGS.copy, ""]]


@pytest.mark.gpu
def test_the_table_of_a_gpu(tmp_path):
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "benchmarks.gpu", "--only", "mlp", "--quick", "--json", str(tmp_path / "x.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "x.json").read_text())["figures"]
    assert {f["what"] for f in figures if f["who"] == OURS and f["value"]} == {t.what for t in TARGETS["mlp"]}
