"""The two pictures of a run: its curves, and the test digits that the model gets wrong."""
from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, ScalarFormatter

TRAIN, TEST, WRONG, INK = "#8a8f98", "#1f5fbf", "#c0392b", "#30343b"


def _axes(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("epoch", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(axis="y", color="#e4e6ea", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)


def draw_curves(history: dict[str, list[float]], goal: float, path: Path) -> None:
    """Loss (on a logarithmic scale) and error by epoch; drawn anew from the whole history, also after a resume."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = np.arange(1, len(history["loss"]) + 1)
    marker = "o" if len(epochs) < 3 else None
    for axes, name in ((left, "loss"), (right, "accuracy")):
        axes.plot(epochs, history[name], color=TRAIN, marker=marker, label="training, images moved by up to a pixel")
        axes.plot(epochs, history[f"test_{name}"], color=TEST, marker=marker, label="test")
    _axes(left, "Cross-entropy (nats)")
    left.set_yscale("log")
    left.yaxis.set_major_formatter(ScalarFormatter())
    left.legend(frameon=False, labelcolor=INK)
    _axes(right, f"Accuracy: {history['test_accuracy'][-1]:.2%} on the test digits")
    right.axhline(goal, color=INK, linewidth=0.8, linestyle=":")
    right.annotate(f"goal {goal:.0%}", (epochs[-1], goal), (0, -4), textcoords="offset points", ha="right", va="top",
                   color=INK, fontsize=9)
    lowest = min(history["test_accuracy"] + history["accuracy"])
    right.set_ylim(max(0.0, min(lowest, goal) - 0.02) if lowest > 0.8 else 0.8, 1.002)
    right.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    right.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    figure.savefig(path, dpi=130)


def draw_misclassified(images: np.ndarray, truth: np.ndarray, probabilities: np.ndarray, path: Path) -> None:
    """The test digits that the model gets wrong, up to 40, the surest mistakes first: [n, 64], [n], [n, 10]."""
    predicted = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(predicted != truth)
    title = f"{len(wrong)} of {len(truth)} test digits are misclassified{'; the surest 40' if len(wrong) > 40 else ''}"
    wrong = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")][:40]
    columns = min(max(len(wrong), 3), 8)
    rows = max(1, math.ceil(len(wrong) / columns))
    figure = Figure(figsize=(1.45 * columns + 0.2, 1.85 * rows + 0.5), layout="constrained")
    figure.suptitle(title, fontsize=12, color=INK)
    for k, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        if k >= len(wrong):
            axes.axis("off")
            continue
        i = wrong[k]
        axes.imshow(images[i].reshape(8, 8), cmap="gray_r", vmin=0.0, vmax=1.0)
        axes.set_title(f"predicted {predicted[i]} ({probabilities[i, predicted[i]]:.0%})", fontsize=9, color=WRONG)
        axes.set_xlabel(f"true {truth[i]} ({probabilities[i, truth[i]]:.0%})", fontsize=9, color=INK)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#d4d7dc")
    figure.savefig(path, dpi=130)
