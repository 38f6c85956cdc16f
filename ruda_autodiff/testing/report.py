"""What a check returns and raises, and how it says what is wrong."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .structure import element


class GradientMismatch(AssertionError):
    """The analytic derivative and the numerical one differ by more than the numerical one can be wrong.

    `input`, `index`, `output` and `output_index` name the entry; `analytic`, `numerical`, `estimate` (how wrong the
    numerical value may be), `relative_error`, `hint` and `order` say the rest.
    """

    input: str | None = None
    index: tuple[int, ...] | None = None
    output: str | None = None
    output_index: tuple[int, ...] | None = None
    analytic: float | None = None
    numerical: float | None = None
    estimate: float | None = None
    relative_error: float | None = None
    hint: str = ""
    order: int = 1

    @classmethod
    def of(cls, entry: Entry, *, order: int, wrong: str = "", hint: str = "", how: str = "") -> GradientMismatch:
        """The error for one entry of a Jacobian; `wrong` says how many are, `how` how it was found."""
        name = element(entry.input, entry.index)
        of = element(entry.output, entry.output_index)
        lines = [
            f"the {'first' if order == 1 else 'second'} derivative is wrong: d {of} / d {name}{wrong}",
            f"  analytic       {entry.analytic!r}",
            f"  numerical      {entry.numerical!r} +- {entry.estimate:.1e}",
            f"  relative error {entry.relative_error:.3g}",
            f"  input          {name} = {entry.at!r}",
        ]
        lines += [f"  hint           {hint}"] if hint else []
        lines += [f"  found by       {how}"] if how else []
        error = cls("\n".join(lines))
        for field in ("input", "index", "output", "output_index", "analytic", "numerical", "estimate", "relative_error"):
            setattr(error, field, getattr(entry, field))
        error.hint, error.order = hint, order
        return error


class MissingGradient(GradientMismatch):
    """No gradient arrived at an input that the result depends on."""


class GradientShapeMismatch(GradientMismatch):
    """A gradient has not the shape of its input."""


class GradientDtypeMismatch(GradientMismatch):
    """A gradient has not the dtype of its input."""


class Inconclusive(RuntimeError):
    """The check cannot tell whether the derivative is right at this point; the subclasses say why."""


class KinkNearby(Inconclusive):
    """The slopes to the left and to the right differ, so the function has no one derivative here."""


class NonFinite(Inconclusive):
    """The function is NaN or infinite at the point, or on one side of it."""


class NotDeterministic(Inconclusive):
    """Two evaluations at the same point gave different results."""


class LowPrecision(Inconclusive):
    """The function is computed to far fewer digits than float64 has."""


@dataclass(frozen=True)
class Entry:
    """One entry of the Jacobian by both routes, at the input value `at`; `scale` and `result` are the sizes of input and f."""

    input: str
    index: tuple[int, ...]
    output: str
    output_index: tuple[int, ...]
    analytic: float
    numerical: float
    estimate: float
    at: float
    scale: float = 1.0
    result: float = 0.0

    @property
    def relative_error(self) -> float:
        size = max(abs(self.analytic), abs(self.numerical))
        return abs(self.analytic - self.numerical) / size if size else 0.0


@dataclass
class GradientReport:
    """What a passed check saw: `max_error` is the largest relative error, `resolution` what could have been missed.

    Both are relative to the largest entry of the same kind. `directions` counts random directions, `entries` the
    entries of the Jacobian that were compared one by one (0 for a large function), `kinks` those that were left out.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff.testing import check_gradients
    >>> report = check_gradients(rt.exp, rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu()))
    >>> report.directions, report.entries, report.max_error < 1e-9
    (2, 4, True)
    """

    order: int
    max_error: float = 0.0
    resolution: float = 0.0
    directions: int = 0
    entries: int = 0
    evaluations: int = 0
    kinks: int = 0

    def saw(self, error: float, resolution: float) -> None:
        self.max_error = max(self.max_error, error)
        self.resolution = max(self.resolution, resolution)

    def __str__(self) -> str:
        left_out = f", {self.kinks} entries at kinks left out" if self.kinks else ""
        return (
            f"derivative of order {self.order} agrees: largest relative error {self.max_error:.1e}, errors above "
            f"{self.resolution:.1e} would have been seen ({self.directions} directions, {self.entries} entries, "
            f"{self.evaluations} evaluations{left_out})"
        )


def shape_error(name: str, given: Any, needed: Any, hint: str = "") -> GradientShapeMismatch:
    error = GradientShapeMismatch(
        f"the gradient of '{name}' has shape {tuple(given)}, and '{name}' has shape {tuple(needed)}"
        + (f"\n  hint           {hint}" if hint else "")
    )
    error.input, error.hint = name, hint
    return error


def dtype_error(name: str, given: Any, needed: Any) -> GradientDtypeMismatch:
    error = GradientDtypeMismatch(
        f"the gradient of '{name}' has dtype {given}, and '{name}' has dtype {needed}; "
        "the rule computes in another type, or makes constants of a default one: use the dtype of its input"
    )
    error.input = name
    return error


def missing_error(name: str, numerical: float, order: int) -> MissingGradient:
    error = MissingGradient(
        f"no {'second-order ' if order == 2 else ''}gradient arrived at '{name}' (it is None), but the result changes with it: "
        f"the numerical derivative is {numerical!r}\n"
        "  hint           a detach(), a numpy(), a conversion to integers or no_grad() cuts the path, or an operation "
        "on it has no rule for this input"
    )
    error.input, error.numerical, error.order = name, numerical, order
    return error
