"""GPT-2 (Radford et al. 2019): its sizes, the model, how it starts, what a step of it costs, and how it writes."""
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import (
    Config,
    Embedding,
    EmbeddingConfig,
    Module,
    Normal,
    Param,
    TransformerEncoder,
    TransformerEncoderConfig,
)


class Size(NamedTuple):
    """One of the model's sizes, and the highest learning rate that training it starts from."""

    layers: int
    heads: int
    width: int
    length: int
    lr: float


SIZES = {
    "tiny": Size(2, 4, 64, 64, 3e-3),
    "124M": Size(12, 12, 768, 1024, 6e-4),
    "350M": Size(24, 16, 1024, 1024, 3e-4),
    "774M": Size(36, 20, 1280, 1024, 2.5e-4),
    "1558M": Size(48, 25, 1600, 1024, 2e-4),
}
ROWS = 128  # the table of tokens has a multiple of so many rows: products with it are then made of whole tiles


class Gpt2(Module):
    """Scores [batch, T, rows] of the next token at every place of ids [batch, T]; T is at most the number of positions.

    `padding` is 0 for tokens and -inf for the rows that only fill up the table, which therefore have probability 0: the
    function is that of the model without them. It is None where there are no such rows.
    """

    tokens: Embedding
    positions: Embedding
    body: TransformerEncoder
    padding: rt.Tensor | None

    def forward(self, ids: rt.Tensor, cache: Any = None) -> Any:
        start = 0 if cache is None else cache[0].length
        x = self.tokens(ids) + self.positions.weight[start : start + ids.shape[1]]
        if cache is None:
            return self.scores(self.body(x))
        y, cache = self.body(x, cache=cache)
        return self.scores(y), cache

    def scores(self, y: rt.Tensor) -> rt.Tensor:
        """The output head, which is the table of tokens again."""
        if self.padding is None:
            return self.tokens.attend(y)
        return rt.linear(y, rt.matrix_transpose(self.tokens.weight), self.padding)


class Gpt2Config(Config):
    """Settings of `Gpt2`: one of SIZES, how many tokens there are, the context's length, and the stored dtype."""

    size: str
    vocabulary: int
    length: int
    dtype: str = "float32"

    @property
    def rows(self) -> int:
        """The rows of the table of tokens."""
        return -(-self.vocabulary // ROWS) * ROWS

    def init(self, device: Any) -> Gpt2:
        """Return a fresh, recording model: N(0, 0.02), matrices that lead back to the residual stream by 1/sqrt(2 layers)."""
        size, recording, dtype = SIZES[self.size], Autodiff(device), getattr(rt, self.dtype)
        small = Normal(0.0, 0.02)
        body = TransformerEncoderConfig(
            size.width, size.heads, n_layers=size.layers, dropout=0.0, activation="gelu_tanh", norm_first=True,
            causal=True, initializer=small,
        )  # fmt: skip
        padding = None
        if self.rows > self.vocabulary:
            padding = rt.where(rt.arange(self.rows, device=device) < self.vocabulary, 0.0, -math.inf).astype(dtype)
        model = Gpt2(
            EmbeddingConfig(self.rows, size.width, initializer=small).init(recording),
            EmbeddingConfig(self.length, size.width, initializer=small).init(recording),
            body.init(recording),
            padding,
        )
        first = {p.id: _first(path, p.detach(), size.layers) for path, p in model.named_params()}
        return model.map(lambda p: Param(first[p.id], device=recording, id=p.id)).to_dtype(dtype)

    def flops_per_token(self, length: int) -> int:
        """Return the floating-point operations of one training step per token, for windows of `length` tokens.

        6 N + 12 layers width length (Chowdhery et al., "PaLM", 2022, appendix B). N counts the elements of all matrices
        that tokens are multiplied by: the table of tokens once, as the head; looking up tokens and positions costs
        nothing. Each element takes a multiplication and an addition forward, and twice that backward. The other term is
        the scores and the weighted sums of attention over all places, also those that a causal kernel leaves out.
        """
        size = SIZES[self.size]
        matrices = 12 * size.layers * size.width**2 + self.rows * size.width
        return 6 * matrices + 12 * size.layers * size.width * length


def _first(path: str, p: rt.Tensor, layers: int) -> rt.Tensor:
    """What a fresh parameter of the stack becomes."""
    if path.endswith("bias"):
        return rt.zeros_like(p)
    leads_back = path.endswith(("self_attn.out.weight", "feed_forward.linear2.weight"))
    return p / math.sqrt(2.0 * layers) if leads_back else p


def loss_sum(model: Gpt2, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
    """The cross-entropy in nats of windows x [batch, T] and what follows each place, y; summed, in float32.

    Each token's loss is in the dtype of the scores, the sum is not: half types would show steps in a curve.
    """
    return rt.sum(rt.astype(rt.cross_entropy(model(x), y, reduction="none"), rt.float32))


def write(
    model: Gpt2, prompt: np.ndarray, count: int, *, vocabulary: int, seed: int, temperature: float = 0.8,
    top_k: int | None = None,
) -> np.ndarray:  # fmt: skip
    """Return `count` ids after those of `prompt`, each drawn from what the model says of those before it.

    Only the `top_k` likeliest are drawn from; a temperature of 0 takes the likeliest. The cache holds the keys and values
    of all places so far; where it is full, the model starts again on the last half. The draws are the host's: a seed
    gives the same text on every device whose scores are the same.
    """
    model, key = model.valid(), rt.random.key(seed)
    device, length = model.tokens.weight.device, model.positions.weight.shape[0]
    found = [int(i) for i in prompt]
    fresh, cache = found[-(length - 1) :], model.body.empty_cache()
    for i in range(count):
        if cache[0].length + len(fresh) > length:
            fresh, cache = found[-(length // 2) :], model.body.empty_cache()
        scores, cache = model(rt.tensor([fresh], device=device), cache)
        last = scores[0, -1, :vocabulary].astype(rt.float64).numpy()
        fresh = [pick(last, rt.random.fold_in(key, i), temperature, top_k)]
        found += fresh
    return np.array(found[len(prompt) :], np.int64)


def pick(scores: np.ndarray, key: Any, temperature: float, top_k: int | None) -> int:
    """Return one id: the largest of scores plus Gumbel noise falls on each with its probability."""
    if temperature == 0.0:
        return int(scores.argmax())
    if top_k is not None and top_k < len(scores):
        scores = np.where(scores >= np.partition(scores, -top_k)[-top_k], scores, -np.inf)
    u = rt.random.uniform(scores.shape, low=1e-300, high=1.0, dtype=rt.float64, key=key, device=rt.Cpu()).numpy()
    return int((scores / temperature - np.log(-np.log(u))).argmax())
