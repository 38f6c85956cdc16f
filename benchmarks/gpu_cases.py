"""The workloads of benchmarks/gpu_rows.py: our kernels, the bytes they must move, and the same in PyTorch."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ruda_tensor.dtypes import FLOAT32
from ruda_tensor.kernels import columns, copies, cross_entropy, norms, optimizer, pointwise, reductions, softmax

from .gpu_timing import sets_for

ROWS, WIDTH, TOKENS, VOCABULARY = 16384, 4096, 8192, 50304


class Case(NamedTuple):
    """A workload: `ours(i)` works on set i of `count` sets of arrays and must move `moved` bytes.

    `peer`: a function to compile, and for each set its inputs and, for the backward, the incoming gradient (else None).
    """

    name: str
    ours: Callable[[int], Any]
    moved: int
    count: int
    peer: tuple[Callable[..., Any], list[tuple]] | None = None


def random(cp: Any, shape: Any, dtype: Any) -> Any:
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    return (cp.random.standard_normal(size, dtype=np.float32) if size else cp.empty(0, np.float32)).astype(dtype).reshape(shape)


def to_torch(a: Any) -> Any:
    import torch

    return torch.from_dlpack(a)


def leaf(a: Any) -> Any:
    return to_torch(a).detach().requires_grad_()


def sets(cp: Any, count: int, shape: tuple[int, ...], dtype: Any, arrays: int) -> list[list[Any]]:
    """So many lists of `count` random arrays."""
    return [[random(cp, shape, dtype) for _ in range(count)] for _ in range(arrays)]


def inputs(count: int, *columns: Any, g: list[Any] | None = None) -> list[tuple]:
    """PyTorch's inputs for each set: lists are one array per set, others are shared; and the incoming gradient."""
    shared = [c if isinstance(c, list) else leaf(c) for c in columns]
    each = [[leaf(c[i]) if isinstance(c, list) else c for c in shared] for i in range(count)]
    return [(*row, None if g is None else to_torch(g[i])) for i, row in enumerate(each)]


def norm_cases(cp: Any, dtype: Any, n: int = WIDTH) -> list[Case]:
    import torch.nn.functional as F

    nbytes = ROWS * n * dtype.itemsize
    count = sets_for(nbytes)
    x, g, r = sets(cp, count, (ROWS, n), dtype, 3)
    w, b, at = random(cp, n, dtype), random(cp, n, dtype), {"axes": 1, "eps": 1e-5}
    kept, small = norms.layer_forward(cp, x[0], w, b, **at)[1:], norms.rms_forward(cp, x[0], w, **at)[1]

    def layer(i: int) -> Any:
        kept = norms.layer_forward(cp, x[i], w, b, **at)
        return kept[0], norms.layer_backward(cp, g[i], x[i], w, *kept[1:], needs=(True, True, True), **at)

    def rms(i: int) -> Any:
        kept = norms.rms_forward(cp, x[i], w, **at)
        return kept[0], norms.rms_backward(cp, g[i], x[i], w, kept[1], needs=(True, True), **at)

    layer_peer, rms_peer = (lambda x, w, b: F.layer_norm(x, (n,), w, b)), (lambda x, w: F.rms_norm(x, (n,), w, 1e-5))
    added = lambda x, r, w, b: F.layer_norm(x + r, (n,), w, b)
    forward, both = (layer_peer, inputs(count, x, w, b)), (layer_peer, inputs(count, x, w, b, g=g))
    where = "" if n == WIDTH else f" {ROWS}x{n}"
    found = [
        Case(f"layer_norm{where} forward", lambda i: norms.layer_forward(cp, x[i], w, b, **at)[0], 2 * nbytes, count, forward),
        Case(f"layer_norm{where} forward + backward", layer, 5 * nbytes, count, both),
        Case(f"layer_norm{where} backward",
             lambda i: norms.layer_backward(cp, g[i], x[i], w, *kept, needs=(True, True, True), **at), 3 * nbytes, count),
        Case(f"add + layer_norm{where} forward", lambda i: norms.layer_forward_add(cp, x[i], r[i], w, b, **at)[1], 4 * nbytes,
             count, (added, inputs(count, x, r, w, b))),
        Case(f"layer_norm{where} backward + add",
             lambda i: norms.layer_backward(cp, g[i], x[i], w, *kept, needs=(True, True, True), add=r[i], **at), 4 * nbytes,
             count),
    ]  # fmt: skip
    if n == WIDTH:
        found += [
            Case("rms_norm forward", lambda i: norms.rms_forward(cp, x[i], w, **at)[0], 2 * nbytes, count,
                 (rms_peer, inputs(count, x, w))),
            Case("rms_norm forward + backward", rms, 5 * nbytes, count, (rms_peer, inputs(count, x, w, g=g))),
            Case("rms_norm backward", lambda i: norms.rms_backward(cp, g[i], x[i], w, small, needs=(True, True), **at),
                 3 * nbytes, count),
        ]  # fmt: skip
    return found


def gpt2_norm_cases(cp: Any, dtype: Any) -> list[Case]:
    """layer_norm at the width of GPT-2, 16 x 1024 tokens."""
    return norm_cases(cp, dtype, 768)


def softmax_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    nbytes = ROWS * WIDTH * dtype.itemsize
    count, out = sets_for(nbytes), []
    x, g = sets(cp, count, (ROWS, WIDTH), dtype, 2)
    for log, peer in ((False, F.softmax), (True, F.log_softmax)):
        def both(i: int, log: bool = log) -> Any:
            y = softmax.forward(cp, x[i], axis=1, log=log)
            return y, (softmax.backward(cp, g[i], y, axis=1, log=log),)

        name, function = ("log_softmax" if log else "softmax"), lambda x, peer=peer: peer(x, -1)
        forward = lambda i, log=log: softmax.forward(cp, x[i], axis=1, log=log)
        out += [
            Case(f"{name} forward", forward, 2 * nbytes, count, (function, inputs(count, x))),
            Case(f"{name} forward + backward", both, 5 * nbytes, count, (function, inputs(count, x, g=g))),
        ]
    return out


def elementwise_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    nbytes = ROWS * WIDTH * dtype.itemsize
    count = sets_for(nbytes)
    x, y, g = sets(cp, count, (ROWS, WIDTH), dtype, 3)

    def gated(i: int) -> Any:
        return pointwise.silu_mul_forward(cp, x[i], y[i]), pointwise.silu_mul_backward(cp, g[i], x[i], y[i], (True, True))

    def plain(i: int) -> Any:
        return pointwise.activation_forward(cp, "gelu", x[i]), (pointwise.activation_backward(cp, "gelu", g[i], x[i]),)

    silu = lambda x, y: F.silu(x) * y
    return [
        Case("silu_mul forward", lambda i: pointwise.silu_mul_forward(cp, x[i], y[i]), 3 * nbytes, count,
             (silu, inputs(count, x, y))),
        Case("silu_mul forward + backward", gated, 8 * nbytes, count, (silu, inputs(count, x, y, g=g))),
        Case("gelu forward", lambda i: pointwise.activation_forward(cp, "gelu", x[i]), 2 * nbytes, count,
             (lambda x: F.gelu(x), inputs(count, x))),
        Case("gelu forward + backward", plain, 5 * nbytes, count, (lambda x: F.gelu(x), inputs(count, x, g=g))),
        Case("dropout forward", lambda i: pointwise.dropout(cp, x[i], p=0.1, seed=1, offset=0), 2 * nbytes, count),
    ]  # fmt: skip


def column_cases(cp: Any, dtype: Any, n: int = WIDTH) -> list[Case]:
    import torch.nn.functional as F

    nbytes = ROWS * n * dtype.itemsize
    count = sets_for(nbytes)
    x, g = sets(cp, count, (ROWS, n), dtype, 2)
    b = random(cp, n, dtype)

    def biased(i: int) -> Any:
        out = columns.bias_activation_forward(cp, "gelu_tanh", x[i], b)
        return out, columns.bias_activation_backward(cp, "gelu_tanh", g[i], x[i], b, (True, True))

    gelu, where = (lambda x, b: F.gelu(x + b, approximate="tanh")), "" if n == WIDTH else f" {ROWS}x{n}"
    return [
        Case(f"bias + gelu_tanh{where} forward", lambda i: columns.bias_activation_forward(cp, "gelu_tanh", x[i], b), 2 * nbytes,
             count, (gelu, inputs(count, x, b))),
        Case(f"bias + gelu_tanh{where} forward + backward", biased, 5 * nbytes, count, (gelu, inputs(count, x, b, g=g))),
        Case(f"bias gradient (column sums){where}", lambda i: columns.sum_columns(cp, g[i], n, dtype), nbytes, count,
             (lambda g: g.sum(0), inputs(count, g))),
    ]  # fmt: skip


def gpt2_column_cases(cp: Any, dtype: Any) -> list[Case]:
    """bias + gelu at the inner width of GPT-2."""
    return column_cases(cp, dtype, 3072)


def copy_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch

    nbytes = ROWS * WIDTH * dtype.itemsize
    count = sets_for(nbytes)
    (x,) = sets(cp, count, (ROWS, WIDTH), dtype, 1)
    other = np.dtype(FLOAT32) if dtype != FLOAT32 else np.dtype("bfloat16")
    to = torch.float32 if dtype != FLOAT32 else torch.bfloat16
    heads = lambda a: a.reshape(16, 1024, 64, 64).swapaxes(1, 2)
    forward = inputs(count, x)
    return [
        Case(f"cast to {other}", lambda i: copies.cast(cp, x[i], other), nbytes + ROWS * WIDTH * other.itemsize, count,
             (lambda x: x.to(to), forward)),
        Case("transpose", lambda i: copies.straight(cp, x[i].T), 2 * nbytes, count, (lambda x: x.T.contiguous(), forward)),
        Case("heads apart", lambda i: copies.straight(cp, heads(x[i])), 2 * nbytes, count,
             (lambda x: heads(x).contiguous(), forward)),
        Case("max of columns", lambda i: reductions.reduce(cp, x[i], (0,), "max"), nbytes, count, (lambda x: x.amax(0), forward)),
        *(
            Case(f"{kind} of rows", lambda i, kind=kind: reductions.reduce(cp, x[i], (1,), kind), nbytes, count, (peer, forward))
            for kind, peer in (("sum", lambda x: x.sum(1)), ("max", lambda x: x.amax(1)))
            if dtype != FLOAT32
        ),
    ]  # fmt: skip


def entropy_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch
    import torch.nn.functional as F

    x, ids = random(cp, (TOKENS, VOCABULARY), dtype), cp.random.randint(0, VOCABULARY, TOKENS).astype(np.int64)
    g, static = cp.ones((), dtype), {"axis": 1, "ignore": None, "smoothing": 0.0, "reduction": "mean"}
    tids, tg = to_torch(ids), torch.ones((), device="cuda")

    def both(i: int) -> Any:
        out, top, whole = cross_entropy.forward(cp, x, ids, None, **static)
        return out, (cross_entropy.backward(cp, g, x, ids, None, top, whole, **static),)

    peer = lambda x: F.cross_entropy(x.float(), tids)
    return [
        Case("cross_entropy forward", lambda i: cross_entropy.forward(cp, x, ids, None, **static)[0], x.nbytes, 2,
             (peer, [(leaf(x), None)] * 2)),
        Case("cross_entropy forward + backward", both, 3 * x.nbytes, 2, (peer, [(leaf(x), tg)] * 2)),
    ]  # fmt: skip


def gpt2_shapes() -> list[tuple[int, ...]]:
    block = [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), *[(768,)] * 5]
    return [(50304, 768), (1024, 768), *block * 12, (768,), (768,)]


def optimizer_entries(cp: Any, dtype: Any) -> list[Any]:
    """GPT-2's parameters, with masters for halves."""
    entries = []
    for shape in gpt2_shapes():
        p, n = random(cp, shape, np.float32), math.prod(shape)
        states = [random(cp, n, np.float32) * 0.1, cp.abs(random(cp, n, np.float32)) * 0.1]
        master = p.reshape(-1) if dtype != FLOAT32 else None
        entries.append(optimizer.Entry(p.astype(dtype), random(cp, shape, dtype), master, states))
    return entries


def optimizer_cases(cp: Any, dtype: Any) -> list[Case]:
    halves, numbers = dtype != FLOAT32, optimizer.adam_numbers(1e-4, 5, (0.9, 0.999), 1e-8, 0.01, True)
    entries = optimizer_entries(cp, dtype)
    size = sum(e.p.size for e in entries)
    shape, each = optimizer.Shape("adamw"), 28  # p (or its master), g, m, v in; p, m, v (and the master) out
    gradients = [e.g for e in entries]

    def step(i: int) -> None:
        optimizer.update(cp, shape, numbers, entries)

    def clipped(i: int) -> None:
        report = optimizer.gradient_report(cp, gradients)
        optimizer.update(cp, shape, numbers, entries, report=report, max_norm=1.0)

    title = f"AdamW {size / 1e6:.0f} M" + (", masters" if halves else "")
    return [
        Case(title, step, each * size, 2),
        Case(f"{title}, clipped", clipped, (each + dtype.itemsize) * size, 2),
        Case("gradient statistics", lambda i: optimizer.gradient_report(cp, gradients), dtype.itemsize * size, 2),
    ]


FAMILIES = {
    "layer_norm rms_norm": norm_cases,
    "layer_norm gpt2": gpt2_norm_cases,
    "softmax log_softmax": softmax_cases,
    "silu_mul gelu dropout elementwise": elementwise_cases,
    "bias columns": column_cases,
    "bias columns gpt2": gpt2_column_cases,
    "copies reductions": copy_cases,
    "cross_entropy": entropy_cases,
    "adamw clipped statistics": optimizer_cases,
}
