"""Train a classifier of the UCI handwritten digits; stop it with Ctrl-C, resume it, get the same bits.

    python examples/train_digits.py --device cuda --epochs 60
    python examples/train_digits.py --resume --epochs 90

Two hidden layers, gradients summed over micro-batches, Adam under a step schedule. Writes `checkpoint.bin`,
`curves.png` and `misclassified.png`; the exit code is 1 where the test accuracy is below the goal.
"""
from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Config, Linear, LinearConfig, Module
from ruda_optim import AdamConfig, GradientsAccumulator, GradientsParams, StepLrSchedulerConfig, TrainingRecord
from ruda_record import BinFileRecorder, FullPrecisionSettings, RecorderError

try:
    from _digits_data import CLASSES, PIXELS, Digits, centred, load_digits, moved
    from _digits_plots import draw_curves, draw_misclassified
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"this example needs scikit-learn, tqdm and matplotlib ({error}): pip install 'ruda[examples]'")

GOAL, EPOCHS = 0.97, 60  # the test accuracy to reach, and epochs that reach it
RECORDER = BinFileRecorder(FullPrecisionSettings)


class Classifier(Module):
    """Logits [n, 10] of flat images [n, 64]."""

    layers: list[Linear]

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        for layer in self.layers[:-1]:
            x = rt.relu(layer(x))
        return self.layers[-1](x)


class ClassifierConfig(Config):
    """Settings of `Classifier`: the widths of its hidden layers."""

    hidden: tuple[int, ...] = (256, 128)

    def init(self, device: Any) -> Classifier:
        widths = [PIXELS, *self.hidden, CLASSES]
        return Classifier(layers=[LinearConfig(a, b).init(device) for a, b in zip(widths, widths[1:])])


class TrainingConfig(Config):
    """Settings of a run: an update sums the gradients of `window` micro-batches, and the schedule counts updates."""

    model: ClassifierConfig = ClassifierConfig()
    optimizer: AdamConfig = AdamConfig()
    schedule: StepLrSchedulerConfig = StepLrSchedulerConfig(3e-3, 900).with_gamma(0.5)
    micro_batch: int = 16
    window: int = 2
    seed: int = 0


@dataclass
class Progress:
    """How far a run is: what its checkpoint holds besides model, optimizer, schedule, gradients and random state."""

    epoch: int = 0
    batch: int = 0  # micro-batches of this epoch that are done
    pending: int = 0  # micro-batches in the accumulator
    loss: float = 0.0  # sums over this epoch's micro-batches
    accuracy: float = 0.0
    history: dict[str, list[float]] = field(
        default_factory=lambda: {"loss": [], "accuracy": [], "test_loss": [], "test_accuracy": []}
    )


class Training:
    """A run, fresh: everything random in it follows from the seed."""

    def __init__(self, config: TrainingConfig, device: rt.Device) -> None:
        rt.random.seed(config.seed)
        self.config, self.device = config, device
        self.model: Classifier = config.model.init(Autodiff(device))
        self.optimizer, self.scheduler = config.optimizer.init(), config.schedule.init()
        self.accumulator, self.progress = GradientsAccumulator(), Progress()

    def save(self, path: Path) -> None:
        """Write all of it to one file; nothing is stepped or emptied."""
        state = {**self.settings(), "random": rt.random.get_state(), "progress": dataclasses.asdict(self.progress)}
        record = TrainingRecord.capture(self.model, self.optimizer, self.scheduler, self.accumulator, state)
        record.save(RECORDER, path)

    def restore(self, path: Path) -> None:
        """Go on where `save` was called, in the middle of a window too; ValueError where the settings differ."""
        record = TrainingRecord.load(RECORDER, path, self.device)
        restored = record.restore(self.model, self.optimizer, self.scheduler, self.device)
        state = restored.state
        theirs = {name: state[name] for name in self.settings()}
        if theirs != self.settings():
            raise ValueError(f"the run in {path} has {theirs}; give the same as here: {self.settings()}")
        self.model, self.accumulator = restored.model, restored.accumulator
        self.progress = Progress(**state["progress"])
        rt.random.set_state(state["random"])

    def settings(self) -> dict[str, int]:
        """What a resumed run must share and no other part of the record compares."""
        return {name: getattr(self.config, name) for name in ("seed", "micro_batch", "window")}


def train_step(run: Training, images: rt.Tensor, classes: rt.Tensor) -> None:
    """One micro-batch: add its gradients to the window, and update the model once the window is full."""
    progress, window = run.progress, run.config.window
    logits = run.model(moved(images))
    loss = rt.cross_entropy(logits, classes)
    gradients = GradientsParams.from_grads((loss / window).backward(), run.model)
    run.accumulator.accumulate(run.model, gradients)
    progress.pending += 1
    if progress.pending == window:
        run.model = run.optimizer.step(run.scheduler.step(), run.model, run.accumulator.grads())
        progress.pending = 0
    progress.loss += loss.item()
    progress.accuracy += (logits.detach().argmax(axis=-1) == classes).mean().item()
    progress.batch += 1


def train(run: Training, digits: Digits, epochs: int) -> Iterator[Progress]:
    """Train until `epochs` are complete; yields after every micro-batch, where the run may be saved or left."""
    size, count, progress = run.config.micro_batch, digits.train_images.shape[0], run.progress
    while progress.epoch < epochs:
        # The order follows from the seed and the epoch alone, so that a position is enough to find it again.
        key = rt.random.fold_in(rt.random.key(run.config.seed), progress.epoch)
        order = rt.random.permutation(count, key=key, device=run.device)
        for first in range(progress.batch * size, count - size + 1, size):
            chosen = order[first : first + size]
            train_step(run, digits.train_images[chosen], digits.train_classes[chosen])
            if first + 2 * size > count:
                end_epoch(run, digits)
            yield progress


def end_epoch(run: Training, digits: Digits) -> None:
    """Add the epoch to the history and turn to the next; what is pending in the accumulator goes along."""
    progress = run.progress
    loss, accuracy, _ = evaluate(run.model, digits)
    row = (progress.loss / progress.batch, progress.accuracy / progress.batch, loss, accuracy)
    for values, value in zip(progress.history.values(), row):
        values.append(value)
    progress.epoch, progress.batch, progress.loss, progress.accuracy = progress.epoch + 1, 0, 0.0, 0.0


def evaluate(model: Classifier, digits: Digits) -> tuple[float, float, rt.Tensor]:
    """Return loss, accuracy and probabilities [n, 10] on the test digits."""
    logits = model.valid()(centred(digits.test_images))
    loss = rt.cross_entropy(logits, digits.test_classes)
    accuracy = (logits.argmax(axis=-1) == digits.test_classes).mean()
    return loss.item(), accuracy.item(), rt.softmax(logits, axis=-1)


def run_with_bar(run: Training, digits: Digits, epochs: int, path: Path, stop_after: int | None) -> None:
    """Train under a progress bar; save after each epoch, and where Ctrl-C or `stop_after` ends the run early."""
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    per_epoch = digits.train_images.shape[0] // run.config.micro_batch
    first = run.progress.epoch * per_epoch + run.progress.batch
    with tqdm(total=epochs * per_epoch, initial=first, unit="batch", mininterval=0.2) as bar:
        for done, progress in enumerate(train(run, digits, epochs), start=1):
            bar.update()
            stop = bool(interrupts) or done == stop_after
            if progress.batch == 0:
                last = {name: f"{values[-1]:.4f}" for name, values in progress.history.items()}
                bar.set_postfix(last, refresh=False)
            if progress.batch == 0 or stop:
                run.save(path)
            if stop:
                break
    signal.signal(signal.SIGINT, before)


def report(run: Training, digits: Digits, epochs: int, out: Path, seconds: float) -> int:
    """Draw both pictures, print the summary and return the exit code."""
    loss, accuracy, probabilities = evaluate(run.model, digits)
    progress, truth = run.progress, digits.test_classes.numpy()
    if progress.epoch:
        draw_curves(progress.history, GOAL, out / "curves.png")
    draw_misclassified(centred(digits.test_images).numpy(), truth, probabilities.numpy(), out / "misclassified.png")
    right = round(accuracy * len(truth))
    print(f"test accuracy  {accuracy:.4f} ({right} of {len(truth)}; goal {GOAL}), cross-entropy {loss:.4f}")
    print(f"training       {seconds:.1f} s on {run.device}; epoch {progress.epoch}, update {run.scheduler.calls}")
    print(f"parameters     {run.model.num_params():,}")
    print(f"files          {out}{os.sep}: {', '.join(sorted(file.name for file in out.iterdir()))}")
    if progress.epoch < epochs:
        print(f"stopped early  go on with --resume --epochs {epochs} --out {out}")
    if accuracy < GOAL:
        print(f"below the goal exit code 1; more epochs get there (default: {EPOCHS})")
    return int(accuracy < GOAL)


def main() -> int:
    """Read the command line, train, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the first usable GPU, else the CPU")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="epochs at the end, those before a resume included")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and shifts")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder of the files")
    parser.add_argument("--resume", action="store_true", help="go on from checkpoint.bin in --out")
    parser.add_argument("--stop-after", type=int, metavar="N", help="save and stop after N micro-batches, like Ctrl-C")
    options = parser.parse_args()
    try:
        device = {"cpu": rt.Cpu, "cuda": rt.Cuda, None: rt.default_device}[options.device]()
        digits = load_digits(device)
        run = Training(TrainingConfig(seed=options.seed), device)
        if options.resume:
            run.restore(options.out / "checkpoint")
    except (rt.NoUsableGpu, RecorderError, ValueError) as error:
        sys.exit(f"train_digits: {error}")
    start = time.perf_counter()
    run_with_bar(run, digits, options.epochs, options.out / "checkpoint", options.stop_after)
    return report(run, digits, options.epochs, options.out, time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
