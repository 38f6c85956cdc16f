"""A GPT over characters, 4 layers of 128, windows of 128, batch 16: the size that one trains on a laptop."""
from __future__ import annotations

from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import (
    Embedding,
    EmbeddingConfig,
    Linear,
    LinearConfig,
    Module,
    TransformerEncoder,
    TransformerEncoderConfig,
)

WIDTH, HEADS, LAYERS, WINDOW, BATCH, CHARACTERS = 128, 4, 4, 128, 16, 96


class CharGpt(Module):
    tokens: Embedding
    positions: Embedding
    body: TransformerEncoder
    head: Linear

    def forward(self, ids: rt.Tensor) -> rt.Tensor:
        return self.head(self.body(self.tokens(ids) + self.positions.weight))


def made(device: rt.Device) -> CharGpt:
    recording = Autodiff(device)
    body = TransformerEncoderConfig(
        WIDTH, HEADS, n_layers=LAYERS, dropout=0.0, activation="gelu_tanh", norm_first=True, causal=True
    )
    return CharGpt(
        EmbeddingConfig(CHARACTERS, WIDTH).init(recording),
        EmbeddingConfig(WINDOW, WIDTH).init(recording),
        body.init(recording),
        LinearConfig(WIDTH, CHARACTERS).init(recording),
    )


def window() -> list[np.ndarray]:
    """Characters [batch, window], and those that follow."""
    generator = np.random.default_rng(0)
    return [generator.integers(0, CHARACTERS, (BATCH, WINDOW)) for _ in range(2)]


def torch_model(device: str) -> Any:
    """The same model in PyTorch, written by hand around its fused attention, as nanoGPT is."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(WINDOW, WIDTH)
            self.body = nn.Sequential(*[Block() for _ in range(LAYERS)], nn.LayerNorm(WIDTH))
            self.head = nn.Linear(WIDTH, CHARACTERS)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.tokens(ids) + self.positions.weight))

    return Gpt().to(device)
