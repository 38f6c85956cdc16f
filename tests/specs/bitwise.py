"""Rows for ruda_tensor/ops/bitwise.py."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

from ._domains import draws, flags, integers, levels
from ._spec import Spec


def row(name, *parts, tag="", reference=None):
    return Spec(
        name, lambda *xs: getattr(rt, name)(*xs), draws(*parts), getattr(np, name) if reference is None else reference,
        order=0, tag=tag,
    )


numbers, others = integers(-99, 100, 3, 4), integers(-99, 100, 4)

ROWS = [
    *(row(f"bitwise_{name}", numbers, others) for name in ("and", "or", "xor")),
    *(row(f"bitwise_{name}", flags(3, 4), flags(3, 1), tag="bools") for name in ("and", "or", "xor")),
    row("bitwise_invert", numbers, reference=np.invert),
    row("bitwise_invert", flags(7), reference=np.invert, tag="bools"),
    row("bitwise_left_shift", numbers, integers(0, 9, 4), reference=np.left_shift),
    row("bitwise_right_shift", numbers, integers(0, 9, 4), reference=np.right_shift),
    *(row(f"logical_{name}", flags(3, 4), flags(4)) for name in ("and", "or", "xor")),
    *(row(f"logical_{name}", levels(3, 4), levels(4), tag="numbers") for name in ("and", "or", "xor")),
    row("logical_not", flags(7)),
    row("logical_not", levels(7), tag="numbers"),
]
