"""What kind of mistake a wrong gradient looks like."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .differences import derivatives

if TYPE_CHECKING:
    from .engine import Checker

WHOLE, SAMPLE = 256, 48  # elements
MANY_OUTPUTS = 1000
CLOSE = 1e-5


def hint_for(checker: Checker, j: int) -> str:
    """Compare the gradients of <w, f> for one random w, over the elements of the input that j is in, or a sample of them."""
    c, k = checker, checker.inputs.owner(j)
    rng = np.random.default_rng(1)
    w = rng.choice([-1.0, 1.0], c.outputs.size) * rng.uniform(0.5, 1.5, c.outputs.size)
    analytic = c.pull(w)[0]
    numerical: dict[int, np.ndarray] = {}

    def gradient(block: int) -> np.ndarray | None:
        if c.inputs.block(block).stop - c.inputs.block(block).start > WHOLE:
            return None
        if block not in numerical:
            numerical[block] = _numerical(c, np.arange(c.inputs.size)[c.inputs.block(block)], w)
        return numerical[block].reshape(c.inputs.shapes[block])

    whole = gradient(k)
    if whole is None:
        block = c.inputs.block(k)
        picked = np.unique([j, *(block.start + rng.choice(block.stop - block.start, SAMPLE, replace=False))])
        return describe(analytic[picked], _numerical(c, picked, w), sample=True)
    hint = describe(analytic[c.inputs.block(k)].reshape(c.inputs.shapes[k]), whole, c.outputs.shapes)
    if hint:
        return hint
    mine = analytic[c.inputs.block(k)]
    for other, name in enumerate(c.inputs.names):
        theirs = gradient(other) if other != k else None
        if theirs is not None and theirs.size == mine.size and _same(mine, theirs.ravel()):
            return f"it is the gradient of '{name}': the rules of two inputs are swapped"
    return ""


def _numerical(c: Checker, positions: np.ndarray, w: np.ndarray) -> np.ndarray:
    directions = np.zeros((len(positions), c.inputs.size))
    directions[np.arange(len(positions)), positions] = c.scale[positions]
    few = c.outputs.size <= MANY_OUTPUTS
    found = derivatives(c.curve if few else c.curve.projected(w), directions, start=c.start)
    return np.nan_to_num(found.value) @ (w if few else np.ones(1)) / c.scale[positions]


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    size = float(np.abs(b).max(initial=0.0))
    return a.shape == b.shape and size > 0.0 and bool((np.abs(a - b) <= CLOSE * size).all())


def describe(
    a: np.ndarray, n: np.ndarray, output_shapes: list[tuple[int, ...]] | None = None, *, sample: bool = False
) -> str:
    """The mistake that makes the analytic gradient `a` of the numerical one `n`; "" where none is known."""
    size = float(np.abs(n).max(initial=0.0))
    if not np.isfinite(a).all():
        return f"{np.count_nonzero(~np.isfinite(a))} of {a.size} elements are NaN or inf, where f is smooth"
    if not size:
        return "the result does not depend on this input, but a gradient arrives" if np.abs(a).max(initial=0.0) else ""
    if not np.abs(a).max(initial=0.0):
        return "it is zero everywhere: the path is cut (detach, numpy, an integer conversion), or a rule returns zeros"
    weighty = np.abs(n) > 1e-3 * size
    wrong = np.abs(a - n) > CLOSE * np.maximum(np.abs(n), 1e-3 * size)
    if not wrong.any():
        rounded = np.median(np.abs(a[weighty] / n[weighty] - 1.0)) > 1e-9
        return "it is right to about 7 digits: the rule rounds to float32 somewhere" if rounded else ""
    ratio = a[weighty] / n[weighty]
    middle = float(np.median(ratio))
    scaled = middle != 0.0 and abs(middle - 1.0) > CLOSE and bool((np.abs(a - middle * n) <= CLOSE * np.abs(middle) * size).all())
    if scaled and (n.size > 1 or _telling(middle)):
        return _factor(middle, a.shape, output_shapes or [])
    if sample:
        return f"{np.count_nonzero(wrong)} of a sample of {wrong.size} elements are wrong"
    return _moved(a, n) or _partly(wrong, a, n)


def _telling(factor: float) -> bool:
    return abs(factor - round(factor)) < CLOSE or abs(1 / factor - round(1 / factor)) < CLOSE or abs(factor - 1) < 0.1


def _factor(factor: float, shape: tuple[int, ...], output_shapes: list[tuple[int, ...]]) -> str:
    if abs(factor + 1.0) < CLOSE:
        return "the sign is wrong"
    text = f"off by a factor of {factor:.6g} at every element"
    sizes = {f"axis {k} has": n for k, n in enumerate(shape) if n > 1}
    sizes |= {"the input has": int(np.prod(shape))} if len(shape) > 1 else {}
    for s in output_shapes:
        sizes["the result has"] = int(np.prod(s))
    for what, n in sizes.items():
        if n > 2 and min(abs(factor - n), abs(factor - 1.0 / n) * n) < CLOSE * n:
            return f"{text}; {what} {n} elements: a sum where a mean belongs, or the other way round"
    return text


def _moved(a: np.ndarray, n: np.ndarray) -> str:
    if a.ndim >= 2 and a.shape[-1] == a.shape[-2] and _same(a, np.swapaxes(n, -1, -2)):
        return "it is the transpose of the right gradient"
    if a.ndim >= 2 and a.shape[-1] != a.shape[-2] and _same(a.ravel(), np.swapaxes(n, -1, -2).ravel()):
        return "it is the transpose of the right gradient, reshaped"
    for axis in range(a.ndim):
        if a.shape[axis] > 1:
            if _same(a, np.flip(n, axis)):
                return f"it is the right gradient flipped along axis {axis}"
            for shift in (1, -1):
                if a.shape[axis] > 2 and _same(a, np.roll(n, shift, axis)):
                    return f"it is the right gradient shifted by {shift} along axis {axis}"
    if a.size > 2 and _same(np.sort(a, axis=None), np.sort(n, axis=None)):
        return "it holds the right numbers in the wrong order: an axis or a permutation is mixed up"
    return ""


def _partly(wrong: np.ndarray, a: np.ndarray, n: np.ndarray) -> str:
    count = int(np.count_nonzero(wrong))
    if count < wrong.size:
        zero = bool((a[wrong] == 0.0).all())
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        where = f", the first at {first}" if wrong.ndim else ""
        return f"{count} of {wrong.size} elements are wrong{where}{', and they are all zero' if zero else ''}"
    off = (a - n).ravel()
    if n.size > 2 and np.ptp(off) <= CLOSE * np.abs(off).max():
        return f"off by the same amount {off[0]:.6g} at every element: a constant term is missing or too many"
    return ""
