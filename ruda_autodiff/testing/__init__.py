"""Gradient checking: numerical derivatives with error estimates, property-based tests, parity, mutation of rules.

Start with `check_gradients` (functions of tensors), `check_vjp` (functions of other frameworks) and
`@check_operation` (a property-based test). The strategies and `check_operation` need hypothesis.
"""
from __future__ import annotations

from .decorator import check_operation
from .domains import (
    Domain,
    any_floats,
    away_from_integers,
    away_from_ties,
    between,
    large,
    negative,
    nonzero,
    positive,
    reals,
    tiny,
    unit_interval,
)
from .foreign import check_vjp
from .gradients import check_gradients
from .linear import NotLinear, check_adjoint
from .mutation import Mutant, mutants_of, mutated
from .mutation_run import MutationReport, run_mutants
from .parity import ParityMismatch, ParityReport, check_batch_consistency, check_parity
from .report import (
    GradientDtypeMismatch,
    GradientMismatch,
    GradientReport,
    GradientShapeMismatch,
    Inconclusive,
    KinkNearby,
    LowPrecision,
    MissingGradient,
    NonFinite,
    NotDeterministic,
)
from .strategies import (
    Layout,
    arrays,
    axes,
    broadcastable_shapes,
    broadcastable_to,
    dtypes,
    indices,
    layouts,
    shapes,
    special_values,
    tensors,
)

__all__ = [
    "Domain", "GradientDtypeMismatch", "GradientMismatch", "GradientReport", "GradientShapeMismatch", "Inconclusive",
    "KinkNearby", "Layout", "LowPrecision", "MissingGradient", "Mutant", "MutationReport", "NonFinite", "NotDeterministic",
    "NotLinear", "ParityMismatch", "ParityReport", "any_floats", "arrays", "away_from_integers", "away_from_ties", "axes",
    "between", "broadcastable_shapes", "broadcastable_to", "check_adjoint", "check_batch_consistency", "check_gradients",
    "check_operation", "check_parity", "check_vjp", "dtypes", "indices", "large", "layouts", "mutants_of", "mutated", "negative",
    "nonzero", "positive", "reals", "run_mutants", "shapes", "special_values", "tensors", "tiny", "unit_interval",
]  # fmt: skip
