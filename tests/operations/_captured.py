"""What the tests of captured rows share: which rows cannot be captured, and a row as a step."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ruda_tensor as rt
from tests.specs._spec import Spec

from ._rows import results

# Rows that a step cannot hold, with a word of what the refusal says: their results have sizes that only values know.
READS = {
    "nonzero": "nonzero",
    "unique_all": "unique_all",
    "unique_counts": "unique_counts",
    "unique_inverse": "unique_inverse",
    "unique_values": "unique_values",
    "repeat-counts": "repeat",
    "getitem-mask": "mask",
    "getitem-mask-of-rows": "mask",
    "getitem-mask-and-array": "mask",
    "slice_assign-mask": "mask",
}


def made(row: Spec, inputs: list[rt.Tensor]) -> Callable[..., Any]:
    """A step that returns the row's results and the gradients of a fixed combination of them."""
    rng = np.random.default_rng(1000)
    floating = [x.dtype in (rt.float16, rt.bfloat16, rt.float32, rt.float64) for x in inputs]
    tracked = [x.require_grad() if f and row.order else x for x, f in zip(inputs, floating)]
    weights = [
        rt.tensor(rng.standard_normal(y.shape), dtype=y.dtype, device=y.device) if y.is_require_grad() else None
        for y in results(row.call(*tracked))
    ]

    def step(*xs: rt.Tensor) -> Any:
        leaves = [x.require_grad() if f and row.order else x for x, f in zip(xs, floating)]
        out = results(row.call(*leaves))
        terms = [rt.sum(y * w) for y, w in zip(out, weights, strict=True) if w is not None]
        if not terms:
            return out, []
        total = terms[0]
        for term in terms[1:]:
            total = total + rt.astype(term, total.dtype)
        found = total.backward()
        return out, [found.get(x) for x in leaves if x.is_require_grad()]

    return step
