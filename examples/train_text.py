"""Train a GPT of characters on English text, the documentation that comes with Python, and let it write.

    python examples/train_text.py
    python examples/train_text.py --resume --steps 3000

Four layers, 128 wide, over windows of 128 characters: about 836,000 parameters, which come to 1.28 nats (1.85 bits) per
character of text that they have not seen, with the documentation of Python 3.11. AdamW without decay on biases and norms,
gradients clipped by their norm together, a cosine schedule with warm-up. Ctrl-C saves, and a resumed run gives the bits of
an uninterrupted one.
Writes `checkpoint.bin`, `curve.png` and `sample.txt`.
"""
from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Config, DataLoader, WindowDataset
from ruda_optim import (
    AdamWConfig,
    CosineAnnealingLrSchedulerConfig,
    GradientClippingConfig,
    GradientsParams,
    ParamGroup,
    TrainingRecord,
)
from ruda_record import BinFileRecorder, FullPrecisionSettings, RecorderError

try:
    from _text_model import CharGpt, CharGptConfig, Text, sample
    from _text_plot import draw_curve
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"this example needs tqdm and matplotlib ({error}): pip install 'ruda[examples]'")

RECORDER = BinFileRecorder(FullPrecisionSettings)
STEPS, EVERY = 1500, 100  # updates of a run, and how many lie between two looks at the validation text


class TrainingConfig(Config):
    """Settings of a run; `horizon` is the length of the schedule, which a resumed run may not change."""

    lr: float = 3e-3
    warmup: int = 100
    horizon: int = STEPS
    batch: int = 16
    weight_decay: float = 0.1
    max_norm: float = 1.0
    seed: int = 0


class Training:
    """A run, fresh: everything random in it follows from the seed."""

    def __init__(self, config: TrainingConfig, text: Text, device: rt.Device) -> None:
        rt.random.seed(config.seed)
        self.config, self.text, self.device = config, text, device
        model = CharGptConfig(len(text.characters))
        self.model: CharGpt = model.init(Autodiff(device))
        clipping = GradientClippingConfig.global_norm(config.max_norm)
        optimizer = AdamWConfig(betas=(0.9, 0.99), weight_decay=config.weight_decay, grad_clipping=clipping)
        self.optimizer = optimizer.init(groups=[ParamGroup.vectors(weight_decay=0.0)])
        schedule = CosineAnnealingLrSchedulerConfig(config.lr, config.horizon, min_lr=config.lr / 10, past_end="hold")
        self.scheduler = schedule.with_warmup(config.warmup).init()
        self.windows = WindowDataset(text.train, model.length, stride=model.length // 2)
        self.data = DataLoader(self.windows, config.batch, seed=config.seed, drop_last=True, device=device)
        self.history: dict[str, list[float]] = {"loss": [], "step": [], "validation": []}

    @property
    def steps(self) -> int:
        """How many updates are done."""
        return len(self.history["loss"])

    def save(self, path: Path) -> None:
        """Write all of the run to one file."""
        state = {
            "config": self.config.describe(), "data": self.data.to_record(), "random": rt.random.get_state(),
            "history": self.history,
        }  # fmt: skip
        TrainingRecord.capture(self.model, self.optimizer, self.scheduler, state=state).save(RECORDER, path)

    def restore(self, path: Path) -> None:
        """Go on where `save` was called; ValueError where the settings differ."""
        record = TrainingRecord.load(RECORDER, path, self.device)
        restored = record.restore(self.model, self.optimizer, self.scheduler, self.device)
        state = restored.state
        if state["config"] != self.config.describe():
            raise ValueError(f"the run in {path} has {state['config']}; give the same as here: {self.config.describe()}")
        self.model, self.history = restored.model, state["history"]
        self.data.load_record(state["data"])
        rt.random.set_state(state["random"])


def loss_of(model: CharGpt, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
    """The mean cross-entropy in nats per character of windows x [batch, T] and what follows each place, y."""
    scores = model(x)
    return rt.cross_entropy(rt.reshape(scores, (-1, scores.shape[-1])), rt.reshape(y, (-1,)))


def train(run: Training, steps: int) -> Iterator[None]:
    """Train until `steps` updates are done; yields after each, where the run may be saved or left."""
    for x, y in run.data.forever():
        if run.steps >= steps:
            return
        loss = loss_of(run.model, x, y)
        gradients = GradientsParams.from_grads(loss.backward(), run.model)
        run.model = run.optimizer.step(run.scheduler.step(), run.model, gradients)
        run.history["loss"].append(loss.item())
        if run.steps % EVERY == 0:
            run.history["step"].append(run.steps)
            run.history["validation"].append(validate(run))
        yield


def validate(run: Training) -> float:
    """The loss on windows of the validation text, in inference mode."""
    data = WindowDataset(run.text.validation, run.windows.length)
    loader = DataLoader(data, 64, shuffle=False, drop_last=True, device=run.device, prefetch=0)
    model = run.model.valid()
    losses = [loss_of(model, x, y).item() for x, y in loader]
    return sum(losses) / len(losses)


def run_with_bar(run: Training, steps: int, path: Path, stop_after: int | None) -> None:
    """Train under a progress bar; save at every look at the validation text, and where Ctrl-C ends the run early."""
    interrupts: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    characters = run.config.batch * run.windows.length
    with tqdm(total=steps, initial=run.steps, unit="step", mininterval=0.5) as bar:
        for done, _ in enumerate(train(run, steps), start=1):
            recent = run.history["loss"][-20:]
            rate = bar.format_dict["rate"] or 0.0
            shown: dict[str, Any] = {"loss": f"{sum(recent) / len(recent):.3f}", "char/s": f"{rate * characters:,.0f}"}
            if run.history["validation"]:
                shown["validation"] = f"{run.history['validation'][-1]:.3f}"
            bar.set_postfix(shown, refresh=False)
            bar.update()
            stop = bool(interrupts) or done == stop_after
            if stop or run.steps % EVERY == 0 or run.steps == steps:
                run.save(path)
            if stop:
                break
    signal.signal(signal.SIGINT, before)


def report(run: Training, steps: int, out: Path, seconds: float, count: int) -> None:
    """Draw the curve, let the model write, and print the summary."""
    draw_curve(run.history, out / "curve.png")
    written = sample(run.model, run.text, count, run.config.seed)
    (out / "sample.txt").write_text(written, encoding="utf-8")
    print(written)
    print(f"{'-' * 80}\ntraining    {seconds:.1f} s on {run.device}; {run.steps} updates, {run.model.num_params():,} parameters")
    if run.history["validation"]:
        last = run.history["validation"][-1]
        print(f"validation  {last:.3f} nats per character, {last / 0.6931471805599453:.3f} bits")
    print(f"files       {out}{os.sep}: {', '.join(sorted(file.name for file in out.iterdir()))}")
    if run.steps < steps:
        print(f"stopped early; go on with --resume --steps {steps} --out {out}")


def main() -> None:
    """Read the command line, train, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the first usable GPU, else the CPU")
    parser.add_argument("--steps", type=int, default=STEPS, help="updates at the end, those before a resume included")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, order and sample")
    parser.add_argument("--out", type=Path, default=Path("runs/text"), help="folder of the files")
    parser.add_argument("--resume", action="store_true", help="go on from checkpoint.bin in --out")
    parser.add_argument("--stop-after", type=int, metavar="N", help="save and stop after N updates, like Ctrl-C")
    parser.add_argument("--sample", type=int, default=600, metavar="N", help="characters to write at the end")
    options = parser.parse_args()
    try:
        device = {"cpu": rt.Cpu, "cuda": rt.Cuda, None: rt.default_device}[options.device]()
        run = Training(TrainingConfig(seed=options.seed), Text(), device)
        if options.resume:
            run.restore(options.out / "checkpoint")
    except (rt.NoUsableGpu, RecorderError, ValueError) as error:
        sys.exit(f"train_text: {error}")
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    run_with_bar(run, options.steps, options.out / "checkpoint", options.stop_after)
    report(run, options.steps, options.out, time.perf_counter() - start, options.sample)


if __name__ == "__main__":
    main()
