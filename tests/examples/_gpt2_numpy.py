"""GPT-2 in NumPy and float64, written from its definition over the names of the published checkpoints."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def random_checkpoint(layers: int, width: int, length: int, vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights, large enough that attention is not uniform and no bias or scale goes unnoticed."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, std: float = 0.2, mean: float = 0.0) -> np.ndarray:
        return (mean + std * rng.standard_normal(shape)).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": normal(width, mean=1.0), f"{name}.bias": normal(width)}

    w = {"wte.weight": normal(vocabulary, width), "wpe.weight": normal(length, width), **norm("ln_f")}
    for n in range(layers):
        w |= norm(f"h.{n}.ln_1") | norm(f"h.{n}.ln_2")
        for name, rows, columns in (
            ("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width), ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ):  # fmt: skip
            w[f"h.{n}.{name}.weight"], w[f"h.{n}.{name}.bias"] = normal(rows, columns), normal(columns)
    return w


def forward(w: dict[str, np.ndarray], ids: np.ndarray, heads: int, product: Product = np.matmul) -> np.ndarray:
    """Scores [T, vocabulary] of one row of ids [T]; every matrix product goes through `product`."""
    w = {name: array.astype(np.float64) for name, array in w.items()}
    places, width = len(ids), w["wte.weight"].shape[1]

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def affine(x: np.ndarray, name: str) -> np.ndarray:
        return product(x, w[f"{name}.weight"]) + w[f"{name}.bias"]

    x = w["wte.weight"][ids] + w["wpe.weight"][:places]
    hidden = np.triu(np.ones((places, places), bool), 1)
    for n in range(sum(name.endswith("ln_1.weight") for name in w)):
        q, k, v = np.split(affine(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn"), 3, axis=-1)
        parts = []
        for head in range(heads):
            at = slice(head * width // heads, (head + 1) * width // heads)
            s = product(q[:, at], k[:, at].T) / math.sqrt(width // heads)
            s[hidden] = -np.inf
            p = np.exp(s - s.max(-1, keepdims=True))
            parts.append(product(p / p.sum(-1, keepdims=True), v[:, at]))
        x = x + affine(np.concatenate(parts, axis=-1), f"h.{n}.attn.c_proj")
        y = affine(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        y = 0.5 * y * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * y**3)))
        x = x + affine(y, f"h.{n}.mlp.c_proj")
    return product(norm(x, "ln_f"), w["wte.weight"].T)


def mean_loss(scores: np.ndarray, targets: np.ndarray) -> float:
    """The mean of -log softmax(scores)[target]."""
    top = scores.max(-1, keepdims=True)
    logs = scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True))
    return float(-logs[np.arange(len(targets)), targets].mean())
