"""The model of the text example and its text: a GPT over characters, and the documentation that every Python carries."""
from __future__ import annotations

from dataclasses import KW_ONLY
from pydoc_data.topics import topics
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_nn import (
    Config,
    Embedding,
    EmbeddingConfig,
    Linear,
    LinearConfig,
    Module,
    Normal,
    TransformerEncoder,
    TransformerEncoderConfig,
)


class Text:
    """English about Python: its characters as numbers, the last tenth kept apart for validation."""

    def __init__(self) -> None:
        text = "\n".join(topics[name] for name in sorted(topics))
        self.characters = sorted(set(text))
        tokens = self.encode(text)
        cut = len(tokens) * 9 // 10
        self.train, self.validation = tokens[:cut], tokens[cut:]

    def encode(self, text: str) -> np.ndarray:
        places = {character: i for i, character in enumerate(self.characters)}
        return np.array([places[character] for character in text], np.int32)

    def decode(self, tokens: Any) -> str:
        return "".join(self.characters[i] for i in tokens)


class CharGpt(Module):
    """Scores [batch, T, characters] of the next character at every place of ids [batch, T]; T is at most `length`."""

    tokens: Embedding
    positions: Embedding
    body: TransformerEncoder
    head: Linear

    def forward(self, ids: rt.Tensor, cache: Any = None) -> Any:
        start = 0 if cache is None else cache[0].length
        x = self.tokens(ids) + self.positions.weight[start : start + ids.shape[1]]
        if cache is None:
            return self.head(self.body(x))
        y, cache = self.body(x, cache=cache)
        return self.head(y), cache


class CharGptConfig(Config):
    """Settings of `CharGpt`: how many characters there are, how far back it looks, and its size."""

    characters: int
    _: KW_ONLY
    length: int = 128
    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 4
    dropout: float = 0.0

    def init(self, device: Any) -> CharGpt:
        """Return a fresh model: small random weights as in GPT-2 (Radford et al. 2019)."""
        small = Normal(0.0, 0.02)
        body = TransformerEncoderConfig(
            self.d_model, self.n_heads, n_layers=self.n_layers, dropout=self.dropout, activation="gelu_tanh", norm_first=True,
            causal=True, initializer=small,
        )  # fmt: skip
        return CharGpt(
            EmbeddingConfig(self.characters, self.d_model, initializer=small).init(device),
            EmbeddingConfig(self.length, self.d_model, initializer=small).init(device),
            body.init(device),
            LinearConfig(self.d_model, self.characters, initializer=small).init(device),
        )


def sample(model: CharGpt, text: Text, count: int, seed: int, temperature: float = 0.7) -> str:
    """Return `count` characters, one after another: each is drawn from what the model says of those before it.

    The cache holds the keys and values of all places so far; where it is full, the model starts again on the last half.
    """
    model, key = model.valid(), rt.random.key(seed)
    device, length = model.tokens.weight.device, model.positions.weight.shape[0]
    found = text.encode("\n").tolist()
    fresh, cache = found, model.body.empty_cache()
    for i in range(count):
        if cache[0].length + len(fresh) > length:
            fresh, cache = found[-(length // 2) :], model.body.empty_cache()
        scores, cache = model(rt.tensor([fresh], device=device), cache)
        # The largest of scores plus Gumbel noise falls on each character with its probability.
        u = rt.random.uniform((len(text.characters),), low=1e-7, high=1.0, key=rt.random.fold_in(key, i), device=device)
        fresh = [int((scores[0, -1] / temperature - rt.log(-rt.log(u))).argmax())]
        found += fresh
    return text.decode(found[1:])
