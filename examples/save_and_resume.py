"""Save in the middle of an accumulation window, resume, and get the bits of the run that was never interrupted.

    python examples/save_and_resume.py --out checkpoints
"""
from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Linear, LinearConfig
from ruda_optim import (
    AdamConfig,
    GradientsAccumulator,
    GradientsParams,
    Optimizer,
    StepLrScheduler,
    StepLrSchedulerConfig,
    TrainingRecord,
)
from ruda_record import BinFileRecorder, FullPrecisionSettings

WINDOW = 3
RECORDER = BinFileRecorder(FullPrecisionSettings)


@dataclass
class Run:
    """All that a run consists of."""

    model: Linear
    optimizer: Optimizer
    scheduler: StepLrScheduler
    accumulator: GradientsAccumulator
    updates: int = 0
    pending: int = 0


def fresh(device: rt.Device) -> Run:
    model = LinearConfig(2, 1).init(Autodiff(device))
    return Run(model, AdamConfig().init(), StepLrSchedulerConfig(1e-2, 2).with_gamma(0.5).init(), GradientsAccumulator())


def save_training(path: Path, run: Run) -> None:
    """Write all of a run; nothing is stepped, emptied or reset."""
    state = {"updates": run.updates, "pending": run.pending, "random": rt.random.get_state()}
    TrainingRecord.capture(run.model, run.optimizer, run.scheduler, run.accumulator, state).save(RECORDER, path)


def restore_training(path: Path, device: rt.Device) -> Run:
    """Read a run into freshly made parts of the same structure and configuration."""
    new = fresh(device)
    restored = TrainingRecord.load(RECORDER, path, device).restore(new.model, new.optimizer, new.scheduler, device)
    state = restored.state
    rt.random.set_state(state["random"])  # before the next batch is drawn
    parts = restored.model, restored.optimizer, restored.scheduler, restored.accumulator
    return Run(*parts, state["updates"], state["pending"])


def micro_batch(run: Run, device: rt.Device) -> None:
    """Add one micro-batch to the window, and update once it is full."""
    x = rt.random.normal((16, 2), device=device)
    y = x @ rt.tensor([[1.5], [-2.0]], device=device) + 0.5
    loss = (run.model(x) - y).square().mean() / WINDOW
    run.accumulator.accumulate(run.model, GradientsParams.from_grads(loss.backward(), run.model))
    run.pending += 1
    if run.pending == WINDOW:
        run.model = run.optimizer.step(run.scheduler.step(), run.model, run.accumulator.grads())
        run.updates, run.pending = run.updates + 1, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="folder of the record")
    out, device = parser.parse_args().out, rt.default_device()
    rt.random.seed(11)
    run = fresh(device)
    for i in range(10 * WINDOW):
        if i == 13:
            save_training(out / "step-4", run)
        micro_batch(run, device)
    resumed = restore_training(out / "step-4", device)
    print(f"saved {out / 'step-4.bin'} after {resumed.updates} updates and {resumed.pending} more micro-batch")
    for _ in range(13, 10 * WINDOW):
        micro_batch(resumed, device)
    same = run.model.weight.numpy().tobytes() == resumed.model.weight.numpy().tobytes()
    print(f"uninterrupted {run.model.weight.numpy().ravel()}, resumed {resumed.model.weight.numpy().ravel()}")
    print(f"the same bits: {same}")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
