"""Every operation that has kernels, over rows of any width, and what is right: float64 by the expressions, on the CPU."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ruda_tensor as rt
from ruda_autodiff import record
from ruda_autodiff.backward import backward
from ruda_tensor.dtypes import HALF
from ruda_tensor.kernels.gate import use_fused
from ruda_tensor.kernels.launch import HITS

UNIT = {rt.float64: 1e-13, rt.float32: 4e-6, rt.float16: 2e-3, rt.bfloat16: 1.6e-2}


class Fused(NamedTuple):
    """`call(*inputs)` of x and of as many more inputs as `more` makes from its shape; `hit`: a kernel that shall run."""

    call: Callable[..., rt.Tensor]
    hit: str
    more: Callable[[tuple], list[tuple]] = lambda shape: []


def _ids(x: rt.Tensor) -> rt.Tensor:
    return rt.tensor(np.arange(x.shape[0], dtype=np.int64) * 7 % x.shape[1], device=x.device)


def _rows(x: rt.Tensor) -> rt.Tensor:
    return rt.take(x, rt.tensor(np.arange(2 * x.shape[0]) * 5 % x.shape[0], device=x.device), axis=0)


def _rotary(x: rt.Tensor) -> rt.Tensor:
    shape = x.shape[0], x.shape[1] // 2
    angles = np.arange(np.prod(shape), dtype=float).reshape(shape) % 6.0
    dtype = rt.float32 if x.dtype in HALF else x.dtype
    return rt.rotary(x, *[rt.tensor(f(angles), dtype=dtype, device=x.device) for f in (np.cos, np.sin)])


def _row(shape: tuple) -> tuple:
    return shape[-1:]


FUSED = {
    "softmax": Fused(lambda x: rt.softmax(x), "softmax_forward"),
    "log_softmax": Fused(lambda x: rt.log_softmax(x), "softmax_forward"),
    "cross_entropy": Fused(lambda x: rt.cross_entropy(x, _ids(x)), "cross_entropy_forward"),
    "layer_norm": Fused(lambda x, w, b: rt.layer_norm(x, w, b), "norm_forward", lambda s: [_row(s), _row(s)]),
    "rms_norm": Fused(lambda x, w: rt.rms_norm(x, w, eps=1e-5), "norm_forward", lambda s: [_row(s)]),
    "gelu": Fused(lambda x: rt.gelu(x), "activation_forward"),
    "gelu_tanh": Fused(lambda x: rt.gelu(x, approximate="tanh"), "activation_forward"),
    "silu": Fused(lambda x: rt.silu(x), "activation_forward"),
    "relu": Fused(lambda x: rt.relu(x), "activation_forward"),
    "silu_mul": Fused(lambda x, y: rt.silu_mul(x, y), "silu_mul_forward", lambda s: [s]),
    "dropout": Fused(lambda x: rt.dropout(x, 0.3, training=True, seed=5), "dropout"),
    "embedding": Fused(_rows, "take_rows"),
    "column sums": Fused(lambda x: rt.sum(x, axis=0), "columns_finish"),
    "rotary": Fused(_rotary, "rotary"),
}
# Rows of one number have no angle to turn, and sums over few columns are not worth a kernel.
NARROWEST = {"rotary": 2, "column sums": 32}


def draw(rng: Any, fused: Fused, shape: tuple) -> list[np.ndarray]:
    """Numbers that float16 and bfloat16 hold both, so that every dtype is given the same."""
    return [rng.integers(-96, 97, s) / 32.0 for s in (shape, *fused.more(shape))]


def run(fused: Fused, tensors: list[rt.Tensor], order: int = 1) -> list[rt.Tensor]:
    """The result, and the gradients of all inputs for one incoming gradient of quarters."""
    leaves = [x.require_grad() for x in tensors]
    with record(order=order):
        y = fused.call(*leaves)
    seed = rt.tensor(np.random.default_rng(9).integers(-8, 9, y.shape) / 4.0, dtype=y.dtype, device=y.device)
    found = backward(y, seed=seed)
    return [y.detach(), *[found[x] for x in leaves]]


def exact(fused: Fused, arrays: list[np.ndarray]) -> list[np.ndarray]:
    with use_fused(False):
        return [y.numpy() for y in run(fused, [rt.tensor(a, dtype=rt.float64, device=rt.Cpu()) for a in arrays], order=2)]


def check(name: str, tensors: list[rt.Tensor], expected: list[np.ndarray], *, slack: float = 1.0, kernel: bool = True) -> None:
    """What the tensors give is right, and a kernel gave it."""
    fused, before = FUSED[name], Counter(HITS)
    found = run(fused, tensors)
    assert not kernel or (Counter(HITS) - before)[fused.hit], f"{name}: no kernel ran"
    for i, (a, e) in enumerate(zip(found, expected, strict=True)):
        a = a.astype(rt.float64).numpy()
        # What cancels (a norm of one number has the gradient 0) leaves the rounding of its terms, which are about 1.
        allowed = slack * UNIT[tensors[0].dtype] * (np.abs(e) + np.abs(e).max(initial=1.0))
        assert a.shape == e.shape and np.all(np.abs(a - e) <= allowed), (name, i, np.abs(a - e).max(), np.abs(e).max())
