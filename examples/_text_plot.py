"""The curve of a language model's run."""
from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

TRAIN, VALIDATION, INK = "#8a8f98", "#1f5fbf", "#30343b"


def draw_curve(history: dict[str, list[float]], path: Path, unit: str = "character") -> None:
    """Loss by update, smoothed, and on the validation text; drawn anew from the whole history, also after a resume."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    loss = np.array(history["loss"])
    width = min(20, len(loss))
    smooth = np.convolve(loss, np.ones(width) / width, "valid")
    axes.plot(np.arange(1, len(loss) + 1), loss, color=TRAIN, linewidth=0.5, alpha=0.5)
    axes.plot(np.arange(width, len(loss) + 1), smooth, color=TRAIN, label=f"training, mean of {width}")
    if history["step"]:
        axes.plot(history["step"], history["validation"], color=VALIDATION, marker="o", markersize=3, label="validation")
        title = f"Nats per {unit}: {history['validation'][-1]:.3f} on the validation text"
        axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("update", color=INK)
    axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.legend(frameon=False, labelcolor=INK)
    figure.savefig(path, dpi=150)
