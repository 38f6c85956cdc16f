"""One model with everything that has state, trained with everything that has state: interrupted or not, the same bits."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import (
    ArrayDataset,
    BatchNorm,
    BatchNormConfig,
    Conv1d,
    Conv1dConfig,
    DataLoader,
    Dropout,
    DropoutConfig,
    Embedding,
    EmbeddingConfig,
    Linear,
    LinearConfig,
    LstmConfig,
    Module,
    MultiHeadAttention,
    MultiHeadAttentionConfig,
)
from ruda_nn.rnn import Lstm
from ruda_optim import AdamWConfig, GradientsAccumulator, GradientsParams, StepLrSchedulerConfig, TrainingRecord
from ruda_record import BinFileRecorder, FullPrecisionSettings

WINDOW, STEPS, WORDS = 3, 14, 11
RECORDER = BinFileRecorder(FullPrecisionSettings)


class Net(Module):
    """ids [batch, T] -> scores [batch, 2]."""

    words: Embedding
    attention: MultiHeadAttention
    conv: Conv1d
    norm: BatchNorm
    drop: Dropout
    memory: Lstm
    head: Linear

    def forward(self, ids):
        x = self.words(ids)
        x = x + self.attention(x)
        x = self.drop(rt.relu(self.norm(self.conv(rt.permute_dims(x, (0, 2, 1))))))
        _, (h, _) = self.memory(rt.permute_dims(x, (0, 2, 1)))
        return self.head(h[-1]) + rt.mean(rt.matmul(x, rt.ones((x.shape[2], 2), device=x.device)), axis=1)


def net(device):
    return Net(
        words=EmbeddingConfig(WORDS, 4, padding_idx=0).init(device),
        attention=MultiHeadAttentionConfig(4, 2, dropout=0.2, causal=True).init(device),
        conv=Conv1dConfig(4, 6, 3, padding=1).init(device),
        norm=BatchNormConfig(6).init(device),
        drop=DropoutConfig(0.3).init(device),
        memory=LstmConfig(6, 3, num_layers=2, dropout=0.2).init(device),
        head=LinearConfig(3, 2).init(device),
    )


class Run:
    """Training that can be saved at any micro-batch: windows of three, and epochs of five batches, so both are cut."""

    def __init__(self, device, strategy, seed=5):
        rt.random.seed(seed)
        rng = np.random.default_rng(0)
        self.device = device
        self.model = net(Autodiff(device, checkpointing=strategy))
        self.optimizer, self.scheduler = AdamWConfig(weight_decay=0.1).init(), StepLrSchedulerConfig(0.05, 2, 0.5).init()
        self.accumulator, self.done, self.losses = GradientsAccumulator(), 0, []
        data = ArrayDataset(rng.integers(0, WORDS, (13, 5)), rng.integers(0, 2, 13))
        self.loader = DataLoader(data, 3, seed=2, device=device, prefetch=1)

    def until(self, count):
        for ids, y in itertools.islice(self.loader.forever(), count - self.done):
            loss = rt.cross_entropy(self.model(ids), y)
            self.losses.append(loss.item())
            self.accumulator.accumulate(self.model, GradientsParams.from_grads(loss.backward(), self.model))
            self.done += 1
            if self.done % WINDOW == 0:
                self.model = self.optimizer.step(self.scheduler.step(), self.model, self.accumulator.grads())
        return self

    def save(self, path):
        state = {"done": self.done, "data": self.loader.to_record(), "random": rt.random.get_state()}
        TrainingRecord.capture(self.model, self.optimizer, self.scheduler, self.accumulator, state).save(RECORDER, path)
        return self

    def load(self, path, forget=()):
        record = TrainingRecord.load(RECORDER, path, self.device)
        restored = record.restore(self.model, self.optimizer, self.scheduler, self.device)
        self.model, self.accumulator, self.done = restored.model, restored.accumulator, restored.state["done"]
        if "data" not in forget:
            self.loader.load_record(restored.state["data"])
        if "random" not in forget:
            rt.random.set_state(restored.state["random"])
        if "statistics" in forget:
            self.model.norm.running_mean.set(rt.zeros(6, device=self.device))
        return self

    def bits(self):
        return {path: value.numpy().tobytes() for path, value in self.model.state_dict().items()}


@pytest.mark.parametrize("strategy", ["none", "balanced"])
@pytest.mark.parametrize("at", [1, 5, 7, 9])
def test_resumed_in_mid_window_and_mid_epoch_every_bit_is_the_same(at, strategy, device, tmp_path):
    straight = Run(device, strategy).until(STEPS)
    Run(device, strategy).until(at).save(tmp_path / "a")
    resumed = Run(device, strategy, seed=77).load(tmp_path / "a").until(STEPS)
    assert resumed.losses == straight.losses[at:]
    assert resumed.bits() == straight.bits() and len(straight.bits()) > 15


@pytest.mark.parametrize("forgotten", ["data", "random", "statistics"])
def test_whatever_is_not_restored_would_be_seen(forgotten, tmp_path):
    straight = Run(rt.Cpu(), "none").until(STEPS).bits()
    Run(rt.Cpu(), "none").until(7).save(tmp_path / "a")
    assert Run(rt.Cpu(), "none", seed=77).load(tmp_path / "a", {forgotten}).until(STEPS).bits() != straight


def test_strategies_agree_bit_for_bit(device):
    assert Run(device, "balanced").until(STEPS).bits() == Run(device, "none").until(STEPS).bits()
