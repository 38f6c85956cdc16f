"""A training run of GPT-2: model, optimizer, schedule and place in the data, its step, and its checkpoint."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from _gpt2_data import Corpus
from _gpt2_model import SIZES, Gpt2, Gpt2Config, loss_sum
from _gpt2_weights import load_weights

import ruda_tensor as rt
from ruda_nn import Config
from ruda_optim import (
    AdamWConfig,
    CosineAnnealingLrSchedulerConfig,
    Fp32MasterOptimizer,
    GradientClippingConfig,
    GradientsAccumulator,
    GradientsParams,
    ParamGroup,
    TrainingRecord,
)
from ruda_record import BinFileRecorder, FullPrecisionSettings
from ruda_tensor import FloatDType

RECORDER = BinFileRecorder(FullPrecisionSettings)
VALIDATION_TOKENS = 1 << 16  # at most so many are predicted to say how good a model is


class TrainingConfig(Config):
    """Settings of a run; a resumed one may change none of them. The rate falls until update `horizon`, then stays.

    An update takes `accumulate` micro-batches of `batch` windows of `length` tokens.
    """

    size: str
    length: int
    dtype: str
    batch: int
    accumulate: int
    horizon: int
    warmup: int
    lr: float
    weight_decay: float = 0.1
    max_norm: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require(self.size in SIZES, "size", f"one of {', '.join(SIZES)}")
        self.require(self.dtype in ("float32", "bfloat16"), "dtype", "float32 or bfloat16")
        self.require_count("length", "batch", "accumulate", "horizon", "warmup")
        self.require(self.warmup < self.horizon, "warmup", f"an integer below the horizon, {self.horizon}")
        longest = SIZES[self.size].length
        self.require(self.length <= longest, "length", f"an integer from 1 to {longest}, the context of {self.size}")

    @property
    def tokens(self) -> int:
        """How many tokens an update predicts."""
        return self.accumulate * self.batch * self.length


class Training:
    """A run, fresh: everything random in it follows from the seed. `weights` is a file that the model starts from."""

    def __init__(self, config: TrainingConfig, corpus: Corpus, device: rt.Device, weights: Path | None = None) -> None:
        config.check()
        rt.random.seed(config.seed)
        self.config, self.corpus, self.device = config, corpus, device
        corpus.require_windows(config.length)
        self.model_config = Gpt2Config(config.size, corpus.vocabulary, config.length, config.dtype)
        self.model: Gpt2 = self.model_config.init(device)
        if weights:
            self.model = load_weights(self.model, weights, corpus.vocabulary)
        rule = AdamWConfig(betas=(0.9, 0.95), weight_decay=config.weight_decay).build()
        clipping = GradientClippingConfig.global_norm(config.max_norm)
        # The losses of an update are summed; dividing by their number in float32 makes gradients those of the mean.
        masters = Fp32MasterOptimizer(rule, gradient_scale=float(config.tokens), grad_clipping=clipping)
        self.optimizer = masters.init(groups=[ParamGroup.vectors(weight_decay=0.0)])
        falling = config.horizon - config.warmup
        cosine = CosineAnnealingLrSchedulerConfig(config.lr, falling, min_lr=config.lr / 10, past_end="hold")
        self.schedule = cosine.with_warmup(config.warmup).init()
        self.history: dict[str, list[float]] = {"loss": [], "step": [], "validation": []}
        self.unread: list[rt.Tensor] = []  # losses of the newest updates, still on the device

    @property
    def steps(self) -> int:
        """How many updates are done: also the number of the next update's windows."""
        return len(self.history["loss"]) + len(self.unread)

    def batch(self) -> tuple[rt.Tensor, rt.Tensor]:
        """The next update's windows x [accumulate, batch, length] and the token after each place, y, on the device."""
        c = self.config
        windows = self.corpus.windows((c.accumulate, c.batch), c.length, c.seed, self.steps)
        return rt.tensor(windows[..., :-1], device=self.device), rt.tensor(windows[..., 1:], device=self.device)

    def step(self, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
        """Update the model by windows x [accumulate, batch, length]; return the mean loss. Nothing here waits for a GPU.

        The gradients of micro-batches are added in float32, so that an update is that of the mean over all its tokens.
        """
        loss, gradients = self.pull(x[0], y[0])
        if x.shape[0] > 1:
            window = GradientsAccumulator()
            window.accumulate_with_dtype(self.model, gradients, FloatDType.F32)
            for i in range(1, x.shape[0]):
                more, gradients = self.pull(x[i], y[i])
                window.accumulate_with_dtype(self.model, gradients, FloatDType.F32)
                loss = loss + more
            gradients = window.grads()
        self.model = self.optimizer.step(self.schedule.step(), self.model, gradients)
        return loss / y.size

    def pull(self, x: rt.Tensor, y: rt.Tensor) -> tuple[rt.Tensor, GradientsParams]:
        """The loss of a micro-batch and its gradients, both sums over its tokens."""
        loss = loss_sum(self.model, x, y)
        return loss.detach(), GradientsParams.from_grads(loss.backward(), self.model)

    def read(self) -> None:
        """Bring the losses of the newest updates to the host, which waits for them."""
        self.history["loss"] += [loss.item() for loss in self.unread]
        self.unread = []

    def validate(self) -> float:
        """The mean loss on windows that lie evenly over the validation tokens, in inference mode; kept in the history."""
        model, total, count = self.model.valid(), 0.0, 0
        windows = self.corpus.validation_windows(-(-VALIDATION_TOKENS // self.config.length), self.config.length)
        for start in range(0, len(windows), self.config.batch):
            part = rt.tensor(windows[start : start + self.config.batch], device=self.device)
            total += loss_sum(model, part[:, :-1], part[:, 1:]).item()
            count += part[:, 1:].size
        self.history["step"].append(self.steps)
        self.history["validation"].append(total / count)
        return total / count

    def describe(self) -> dict[str, Any]:
        """What must be the same where a run goes on."""
        return {**self.config.describe(), "corpus": self.corpus.describe()}

    def save(self, path: Path) -> None:
        """Write all of the run to one file."""
        self.read()
        state = {"run": self.describe(), "history": self.history, "random": rt.random.get_state()}
        TrainingRecord.capture(self.model, self.optimizer, self.schedule, state=state).save(RECORDER, path)

    def restore(self, path: Path) -> None:
        """Go on where `save` was called; ValueError where the settings differ."""
        record = TrainingRecord.load(RECORDER, path, self.device)
        state, here = record.data["state"], self.describe()
        if not isinstance(state, dict) or set(state) != {"run", "history", "random"}:
            raise ValueError(f"the run in {path} is not one of this program")
        before = state["run"]
        differing = [name for name in here if before.get(name) != here[name]]
        if differing:
            said = "\n".join(f"  {name}: {before.get(name)} | {here[name]}" for name in differing)
            raise ValueError(f"the run in {path} was started with other settings (there | here):\n{said}")
        restored = record.restore(self.model, self.optimizer, self.schedule, self.device)
        self.model, self.history = restored.model, restored.state["history"]
        rt.random.set_state(restored.state["random"])

