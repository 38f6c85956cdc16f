"""Gradient checking: numerical derivatives with error estimates, property-based tests, parity, mutation of rules."""
from __future__ import annotations

from .foreign import check_vjp
from .gradients import check_gradients
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
