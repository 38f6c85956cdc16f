"""The operations that have kernels, as the public functions call them: what to call, on what, and which kernels run."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.dtypes import HALF
from ruda_tensor.static import slopes

from ._shim import COMPILER, on_shim


class Case(NamedTuple):
    """`call(device, *inputs)` of inputs of these shapes, and the kernels of its forward and of its backward."""

    call: Callable[..., rt.Tensor]
    shapes: tuple
    forward: tuple[str, ...]
    backward: tuple[str, ...] | None  # None: whichever the rules call
    wide: tuple[int, ...] = ()  # inputs that are float32 beside half ones


def _ids(device: Any, rows: int, classes: int) -> rt.Tensor:
    return rt.tensor(np.arange(rows, dtype=np.int64) * 7 % classes, device=device)


def _entropy(device: Any, x: rt.Tensor, **options: Any) -> rt.Tensor:
    return rt.cross_entropy(x, _ids(device, *x.shape), **options)


def _weighted(device: Any, x: rt.Tensor) -> rt.Tensor:
    weight = rt.tensor(np.linspace(0.5, 2.0, x.shape[1]), dtype=rt.float32 if x.dtype in HALF else x.dtype, device=device)
    return _entropy(device, x, weight=weight, label_smoothing=0.1, ignore_index=7, reduction="sum")


def _rotary(device: Any, x: rt.Tensor) -> rt.Tensor:
    """Heads as an attention has them: a view of (batch, positions, heads, width)."""
    angles = np.arange(x.shape[1] * 12).reshape(-1, 12) / 7.0
    dtype = rt.float32 if x.dtype in HALF else x.dtype
    tables = [rt.tensor(f(angles), dtype=dtype, device=device) for f in (np.cos, np.sin)]
    return rt.rotary(rt.permute_dims(x, (0, 2, 1, 3)), *tables)


_NORM = ("norm_forward",), ("norm_backward", "columns_finish")
_ENTROPY = ("check_ids", "cross_entropy_forward", "cross_entropy_total"), ("cross_entropy_backward",)
_ACTIVATION = ("activation_forward",), ("activation_backward",)
N = 40
CASES = {
    "layer_norm": Case(lambda d, x, w, b: rt.layer_norm(x, w, b), ((9, N), (N,), (N,)), *_NORM),
    "layer_norm of float32 weights": Case(lambda d, x, w, b: rt.layer_norm(x, w, b), ((3, 3, N), (N,), (N,)), *_NORM, (1, 2)),
    "layer_norm over two axes": Case(lambda d, x, w: rt.layer_norm(x, w), ((5, 2, 20), (2, 20)), *_NORM),
    "rms_norm": Case(lambda d, x, w: rt.rms_norm(x, w), ((9, N), (N,)), *_NORM),
    "softmax": Case(lambda d, x: rt.softmax(x), ((3, 4, N),), ("softmax_forward",), ("softmax_backward",)),
    "log_softmax": Case(lambda d, x: rt.log_softmax(x), ((7, 33),), ("softmax_forward",), ("softmax_backward",)),
    "cross_entropy": Case(_entropy, ((9, N),), *_ENTROPY),
    "cross_entropy with all": Case(_weighted, ((9, N),), _ENTROPY[0], ("cross_entropy_factor", *_ENTROPY[1])),
    "gelu": Case(lambda d, x: rt.gelu(x), ((5, 33),), *_ACTIVATION),
    "gelu_tanh": Case(lambda d, x: rt.gelu(x, approximate="tanh"), ((5, 33),), *_ACTIVATION),
    "silu": Case(lambda d, x: rt.silu(x), ((5, 33),), *_ACTIVATION),
    "relu": Case(lambda d, x: rt.relu(x), ((5, 33),), *_ACTIVATION),
    "silu_mul": Case(lambda d, x, y: rt.silu_mul(x, y), ((5, 33), (5, 33)), ("silu_mul_forward",), ("silu_mul_backward",)),
    "dropout": Case(lambda d, x: rt.dropout(x, 0.4, training=True, seed=3), ((5, 33),), ("dropout",), ("dropout",)),
    "rotary": Case(_rotary, ((2, 5, 3, N),), ("rotary",), ("rotary",)),
    "rotary of a sequence": Case(lambda d, x: rt.reshape(_rotary(d, x), (6, 5, 24)), ((1, 5, 6, 24),), ("rotary",), ("rotary",)),
    "silu_backward": Case(lambda d, g, x: slopes.silu_backward(g, x), ((5, 33), (5, 33)), ("activation_backward",), ()),
    "softmax_backward": Case(lambda d, g, y: slopes.softmax_backward(g, y, 1), ((7, 33), (7, 33)), ("softmax_backward",), ()),
    "log_softmax_backward": Case(lambda d, g, y: slopes.log_softmax_backward(g, y, 1), ((7, 33),) * 2, ("softmax_backward",), ()),
    "sum": Case(lambda d, x: rt.sum(x, axis=(0, 1)), ((40, 7, N),), ("columns_reduce", "columns_finish"), ()),
    "mean": Case(lambda d, x: rt.mean(x, axis=0), ((300, N),), ("columns_reduce", "columns_finish"), None),
    "max": Case(lambda d, x: rt.max(x, axis=0), ((300, N),), ("columns_reduce", "columns_finish"), None),
}  # fmt: skip


@contextmanager
def launching(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A device whose operations try their kernels: the first GPU, or the CPU as the shim's device."""
    if kind == "cuda":
        yield rt.Cuda(0)
    elif COMPILER is None:
        pytest.skip("no g++ to run the CUDA sources with")
    else:
        monkeypatch.setattr(rt.Cpu, "launches", True)
        with on_shim():
            yield rt.Cpu()


def inputs(case: Case, dtype: Any, device: Any, layout: Callable = lambda a: a, seed: int = 0) -> list[rt.Tensor]:
    rng = np.random.default_rng(seed)
    out = []
    for i, shape in enumerate(case.shapes):
        theirs = rt.float32 if i in case.wide and dtype in HALF else dtype
        out.append(layout(rt.tensor(rng.standard_normal(shape), dtype=theirs, device=device)))
    return out


def widened(tensors: list[rt.Tensor]) -> list[rt.Tensor]:
    return [x.astype(rt.float64) for x in tensors]


def seed_of(y: rt.Tensor) -> rt.Tensor:
    """The incoming gradient: numbers that every dtype holds."""
    return rt.tensor(np.random.default_rng(9).integers(-8, 9, y.shape) / 4.0, dtype=y.dtype, device=y.device)
