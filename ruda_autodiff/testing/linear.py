"""The dot-product test: a linear function's pull-back must be its adjoint."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .differences import EPS
from .gradients import OnTape
from .report import GradientMismatch, GradientReport, missing_error
from .structure import element


class NotLinear(AssertionError):
    """The function is not linear in the inputs that the adjoint test moves."""


def check_adjoint(f: Callable, *inputs: Any, wrt: Any = None, directions: int = 3, seed: Any = 0) -> GradientReport:
    """Check that a linear f and its derivative rule f^T are adjoint: <f(x), y> = <x, f^T y> for random x and y.

    It needs no small steps, so it sees errors of 1e-13 at any size. First f(a x + b z) = a f(x) + b f(z) is verified
    for random x and z, and f(0) = 0; then the identity, at two points: the adjoint of a linear f does not depend on
    where it was recorded. f is linear in all its floating tensors together; where it is so only in some of them (a
    product), name these by `wrt`. The inputs give the shapes, and the values of what is not moved.

    Errors: NotLinear; GradientMismatch where the identity fails, MissingGradient where no gradient arrives.

    >>> import ruda_tensor as rt
    >>> a, x = rt.ones((3, 2), dtype=rt.float64, device=rt.Cpu()), rt.zeros((2,), dtype=rt.float64, device=rt.Cpu())
    >>> check_adjoint(lambda a, x: a @ x, a, x, wrt="x").max_error < 1e-12
    True
    """
    if directions < 1:
        raise ValueError(f"check_adjoint: directions must be at least 1, got {directions!r}")
    function = OnTape(f, inputs, wrt)
    rng = np.random.default_rng(seed)
    n = function.inputs.size
    offset = function.evaluate(np.zeros(n))
    report = GradientReport(order=1, evaluations=1)
    for _ in range(directions):
        x, z, (a, b) = rng.standard_normal(n), rng.standard_normal(n), rng.standard_normal(2)
        fx, fz = function.evaluate(x), function.evaluate(z)
        report.evaluations += 3
        _verify_linear(function, offset, function.evaluate(a * x + b * z), a * fx + b * fz, fx, fz)
        y = rng.standard_normal(function.outputs.size)
        g, missing = function.linearize(x)(y)
        elsewhere, _ = function.linearize(z)(y)
        _verify_adjoint(function, x, y, fx, g, missing, report)
        size = float(np.abs(g).max(initial=0.0))
        moved = np.flatnonzero(~(np.abs(g - elsewhere) <= 64 * EPS * size))
        if moved.size:
            where = element(*function.inputs.locate(int(moved[0])))
            raise GradientMismatch(
                f"the derivative of a linear function must not depend on its point, but the gradient of {where} does: "
                f"{g[moved[0]]!r} at one point and {elsewhere[moved[0]]!r} at another"
            )
    return report


def _verify_linear(
    function: OnTape, offset: np.ndarray, mixed: np.ndarray, wanted: np.ndarray, fx: np.ndarray, fz: np.ndarray
) -> None:
    if offset.any():
        k = int(np.flatnonzero(offset)[0])
        raise NotLinear(
            f"f(0) is not 0: {element(*function.outputs.locate(k))} = {offset[k]!r}. An affine function becomes linear as "
            "lambda x: f(x) - f(rt.zeros_like(x)); or use check_gradients"
        )
    size = float(np.abs(np.concatenate([fx, fz, mixed])).max(initial=0.0))
    bad = np.flatnonzero(~(np.abs(mixed - wanted) <= 256 * EPS * np.sqrt(function.inputs.size) * size))
    if bad.size:
        k = int(bad[0])
        raise NotLinear(
            f"f(a x + b z) is not a f(x) + b f(z): {element(*function.outputs.locate(k))} is {mixed[k]!r}, not {wanted[k]!r}. "
            "Where f is linear in some of its inputs only, name them: check_adjoint(f, a, x, wrt='x'); else use check_gradients"
        )


def _verify_adjoint(
    function: OnTape, x: np.ndarray, y: np.ndarray, fx: np.ndarray, g: np.ndarray, missing: list[int], report: GradientReport
) -> None:
    left, right = float(fx @ y), float(x @ g)
    # Rounding of the two products, and of the sums inside f and f^T.
    size = float(np.linalg.norm(fx * y) + np.linalg.norm(x * g))
    allowed = 64.0 * EPS * np.sqrt(function.inputs.size + function.outputs.size) * size
    if not abs(left - right) <= allowed:
        for k in missing:
            raise missing_error(function.inputs.names[k], left - right, 1)
        error = GradientMismatch(
            f"<f(x), y> = {left!r} but <x, f^T y> = {right!r}: the derivative rule is not the adjoint of f (rounding explains "
            f"{allowed:.1e}); check_gradients(f, ...) finds the entry"
        )
        error.analytic, error.numerical, error.estimate = right, left, allowed
        raise error
    report.directions += 1
    if size:
        report.saw(abs(left - right) / size, allowed / size)
