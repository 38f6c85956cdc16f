"""Rows for ruda_tensor/ops/transcendental.py."""
from __future__ import annotations

import numpy as np
import scipy.special as sp

import ruda_tensor as rt

from ._domains import draws, signed, uniform
from ._spec import Spec

near = draws(uniform(-2.0, 2.0, 3, 4))
positive = draws(uniform(0.3, 4.0, 3, 4))
inside = draws(uniform(-0.8, 0.8, 3, 4))
pair = draws(uniform(-2.0, 2.0, 3, 4), uniform(-2.0, 2.0, 3, 4))
cross = draws(uniform(-2.0, 2.0, 4), uniform(-2.0, 2.0, 3, 1))
around = draws(signed(0.5, 2.0, 3, 4), signed(0.5, 2.0, 4))


def unary(name, reference, make, **more):
    return Spec(name, lambda x: getattr(rt, name)(x), make, reference, **more)


ROOTS_AND_LOGARITHMS = [
    unary("sqrt", np.sqrt, positive),
    unary("sqrt", np.sqrt, draws(uniform(0.3, 4.0)), tag="0-d"),
    unary("rsqrt", lambda x: 1.0 / np.sqrt(x), positive),
    unary("exp", np.exp, near),
    unary("expm1", np.expm1, near),
    unary("expm1", np.expm1, draws(uniform(-1e-4, 1e-4, 5)), half=False, tag="tiny"),
    unary("log", np.log, positive),
    unary("log1p", np.log1p, draws(uniform(-0.7, 3.0, 3, 4))),
    unary("log1p", np.log1p, draws(uniform(-1e-4, 1e-4, 5)), half=False, tag="tiny"),
    unary("log2", np.log2, positive),
    unary("log10", np.log10, positive),
    Spec("logaddexp", lambda x, y: rt.logaddexp(x, y), pair, np.logaddexp),
    Spec("logaddexp", lambda x, y: rt.logaddexp(x, y), cross, np.logaddexp, tag="broadcast"),
    Spec("logaddexp", lambda x: rt.logaddexp(x, x), near, lambda x: np.logaddexp(x, x), tag="equal"),
    Spec("hypot", lambda x, y: rt.hypot(x, y), around, np.hypot),
]

ANGLES = [
    unary("sin", np.sin, near),
    unary("cos", np.cos, near),
    unary("tan", np.tan, draws(uniform(-1.2, 1.2, 3, 4))),
    unary("asin", np.arcsin, inside),
    unary("acos", np.arccos, inside),
    unary("atan", np.arctan, near),
    Spec("atan2", lambda x, y: rt.atan2(x, y), around, np.arctan2),
    unary("sinh", np.sinh, near),
    unary("cosh", np.cosh, near),
    unary("tanh", np.tanh, near),
    unary("asinh", np.arcsinh, near),
    unary("acosh", np.arccosh, draws(uniform(1.3, 4.0, 3, 4))),
    unary("atanh", np.arctanh, inside),
]

ERRORS = [
    unary("erf", sp.erf, near),
    unary("erf", sp.erf, draws(uniform(-0.6, 0.6, 9)), tag="small"),
    unary("erf", sp.erf, draws(uniform(0.5, 2.0)), tag="0-d"),
    unary("erfc", sp.erfc, near),
    unary("erfc", lambda x: sp.erfc(x), draws(uniform(2.0, 4.0, 9)), tag="tail"),
]

ROWS = ROOTS_AND_LOGARITHMS + ANGLES + ERRORS
