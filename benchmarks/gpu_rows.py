"""The hand-written kernels on one GPU: time, share of the copy bandwidth, and PyTorch beside them in the same run.

    python -m benchmarks.gpu_rows                        everything
    python -m benchmarks.gpu_rows layer_norm adamw       what has these words in its name
    python -m benchmarks.gpu_rows --no-peers             ours alone

`share` is the bytes that must move (each input read once, each output written once) over the time and over what a copy
of 4 GiB reaches here. A peer's ratio is its time over ours, so above 1 is faster than the peer. Times are medians, in us;
every timed result is first compared with PyTorch's. Times of kernels under 10 us hold the host's time too.
"""
from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import ruda_tensor as rt
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT32
from ruda_tensor.kernels import columns, cross_entropy, launch, norms, optimizer, pointwise, softmax

ROWS, WIDTH, TOKENS, VOCABULARY = 16384, 4096, 8192, 50304
_MANY, _ROUNDS = 10, 15


class Case(NamedTuple):
    """A workload: what to run, the bytes it must move, and the same in PyTorch (a function to compile, its inputs)."""

    name: str
    ours: Callable[[], Any]
    moved: int
    peer: tuple[Callable[..., Any], tuple, bool] | None = None  # function, inputs, with backward


def median_us(cp: Any, run: Callable[[], Any]) -> float:
    """The median over rounds of many calls in a row, by events, after warming up."""
    for _ in range(3):
        run()
    times, a, b = [], cp.cuda.Event(), cp.cuda.Event()
    for _ in range(_ROUNDS):
        a.record()
        for _ in range(_MANY):
            run()
        b.record()
        b.synchronize()
        times.append(cp.cuda.get_elapsed_time(a, b) * 1e3 / _MANY)
    return statistics.median(times)


def copy_bandwidth(cp: Any) -> float:
    """Bytes read and written per microsecond by a copy of 4 GiB."""
    x = cp.zeros(1 << 30, np.float32)
    y = cp.empty_like(x)
    x += 1
    return 2 * x.nbytes / median_us(cp, lambda: cp.cuda.runtime.memcpyAsync(y.data.ptr, x.data.ptr, x.nbytes, 3, 0))


def random(cp: Any, shape: Any, dtype: Any) -> Any:
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    return (cp.random.standard_normal(size, dtype=np.float32) if size else cp.empty(0, np.float32)).astype(dtype).reshape(shape)


def to_torch(a: Any) -> Any:
    import torch

    return torch.from_dlpack(a)


def leaf(a: Any) -> Any:
    return to_torch(a).detach().clone().requires_grad_()


def peer_times(cp: Any, case: Case) -> tuple[float | None, float | None]:
    """Microseconds of PyTorch eager and compiled."""
    import torch

    if case.peer is None:
        return None, None
    function, inputs, backward = case.peer
    found: list[float | None] = []
    for f in (function, torch.compile(function)):
        def run(f: Any = f) -> Any:
            if not backward:
                with torch.no_grad():
                    return f(*inputs[:-1])
            out = f(*inputs[:-1])
            return torch.autograd.grad(out, [i for i in inputs[:-1] if i.requires_grad], inputs[-1])

        try:
            found.append(median_us(cp, run))
        except Exception as error:
            print(f"  {case.name}: a peer failed: {error!r:.150}")
            found.append(None)
    return found[0], found[1]


def norm_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    x, g = random(cp, (ROWS, WIDTH), dtype), random(cp, (ROWS, WIDTH), dtype)
    w, b = random(cp, WIDTH, dtype), random(cp, WIDTH, dtype)
    static, moved = {"axes": 1, "eps": 1e-5}, x.nbytes
    tx, tw, tb, tg = leaf(x), leaf(w), leaf(b), to_torch(g)

    def layer() -> Any:
        kept = norms.layer_forward(cp, x, w, b, **static)
        return kept[0], norms.layer_backward(cp, g, x, w, *kept[1:], needs=(True, True, True), **static)

    def rms() -> Any:
        kept = norms.rms_forward(cp, x, w, **static)
        return kept[0], norms.rms_backward(cp, g, x, w, kept[1], needs=(True, True), **static)

    layer_peer, rms_peer = (lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b)), (lambda x, w: F.rms_norm(x, (WIDTH,), w, 1e-5))
    return [
        Case("layer_norm forward", lambda: norms.layer_forward(cp, x, w, b, **static)[0], 2 * moved,
             (layer_peer, (tx, tw, tb, tg), False)),
        Case("layer_norm forward + backward", layer, 5 * moved, (layer_peer, (tx, tw, tb, tg), True)),
        Case("rms_norm forward", lambda: norms.rms_forward(cp, x, w, **static)[0], 2 * moved, (rms_peer, (tx, tw, tg), False)),
        Case("rms_norm forward + backward", rms, 5 * moved, (rms_peer, (tx, tw, tg), True)),
    ]  # fmt: skip


def gpt2_norm_cases(cp: Any, dtype: Any) -> list[Case]:
    """layer_norm at the width of GPT-2, 16 x 1024 tokens."""
    import torch.nn.functional as F

    n = 768
    x, g, w, b = (random(cp, s, dtype) for s in ((ROWS, n), (ROWS, n), n, n))
    static, inputs = {"axes": 1, "eps": 1e-5}, (leaf(x), leaf(w), leaf(b), to_torch(g))

    def layer() -> Any:
        kept = norms.layer_forward(cp, x, w, b, **static)
        return kept[0], norms.layer_backward(cp, g, x, w, *kept[1:], needs=(True, True, True), **static)

    return [
        Case("layer_norm 16384x768 forward + backward", layer, 5 * x.nbytes,
             (lambda x, w, b: F.layer_norm(x, (n,), w, b), inputs, True)),
    ]  # fmt: skip


def softmax_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    x, g = random(cp, (ROWS, WIDTH), dtype), random(cp, (ROWS, WIDTH), dtype)
    tx, tg, out = leaf(x), to_torch(g), []
    for log, peer in ((False, F.softmax), (True, F.log_softmax)):
        def both(log: bool = log) -> Any:
            y = softmax.forward(cp, x, axis=1, log=log)
            return y, (softmax.backward(cp, g, y, axis=1, log=log),)

        name, function = ("log_softmax" if log else "softmax"), lambda x, peer=peer: peer(x, -1)
        forward = lambda log=log: softmax.forward(cp, x, axis=1, log=log)
        out += [
            Case(f"{name} forward", forward, 2 * x.nbytes, (function, (tx, tg), False)),
            Case(f"{name} forward + backward", both, 5 * x.nbytes, (function, (tx, tg), True)),
        ]
    return out


def elementwise_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch.nn.functional as F

    x, y, g = (random(cp, (ROWS, WIDTH), dtype) for _ in range(3))
    b, moved = random(cp, WIDTH, dtype), x.nbytes
    tx, ty, tb, tg = leaf(x), leaf(y), leaf(b), to_torch(g)

    def gated() -> Any:
        return pointwise.silu_mul_forward(cp, x, y), pointwise.silu_mul_backward(cp, g, x, y, (True, True))

    def biased() -> Any:
        out = columns.bias_activation_forward(cp, "gelu_tanh", x, b)
        return out, columns.bias_activation_backward(cp, "gelu_tanh", g, x, b, (True, True))

    def plain() -> Any:
        return pointwise.activation_forward(cp, "gelu", x), (pointwise.activation_backward(cp, "gelu", g, x),)

    gelu, silu = (lambda x, b: F.gelu(x + b, approximate="tanh")), (lambda x, y: F.silu(x) * y)
    return [
        Case("silu_mul forward", lambda: pointwise.silu_mul_forward(cp, x, y), 3 * moved, (silu, (tx, ty, tg), False)),
        Case("silu_mul forward + backward", gated, 8 * moved, (silu, (tx, ty, tg), True)),
        Case("bias + gelu_tanh forward", lambda: columns.bias_activation_forward(cp, "gelu_tanh", x, b), 2 * moved,
             (gelu, (tx, tb, tg), False)),
        Case("bias + gelu_tanh forward + backward", biased, 5 * moved, (gelu, (tx, tb, tg), True)),
        Case("gelu forward + backward", plain, 5 * moved, (lambda x: F.gelu(x), (tx, tg), True)),
        Case("dropout forward", lambda: pointwise.dropout(cp, x, p=0.1, seed=1, offset=0), 2 * moved),
        Case("bias gradient (column sums)", lambda: columns.sum_columns(cp, g, WIDTH, dtype), moved),
    ]  # fmt: skip


def entropy_cases(cp: Any, dtype: Any) -> list[Case]:
    import torch
    import torch.nn.functional as F

    x, ids = random(cp, (TOKENS, VOCABULARY), dtype), cp.random.randint(0, VOCABULARY, TOKENS).astype(np.int64)
    g, static = cp.ones((), dtype), {"axis": 1, "ignore": None, "smoothing": 0.0, "reduction": "mean"}
    tx, tids, tg = leaf(x), to_torch(ids), torch.ones((), device=to_torch(x).device)

    def both() -> Any:
        out, top, whole = cross_entropy.forward(cp, x, ids, None, **static)
        return out, (cross_entropy.backward(cp, g, x, ids, None, top, whole, **static),)

    peer = lambda x: F.cross_entropy(x.float(), tids)
    return [
        Case("cross_entropy forward", lambda: cross_entropy.forward(cp, x, ids, None, **static)[0], x.nbytes,
             (peer, (tx, tg), False)),
        Case("cross_entropy forward + backward", both, 3 * x.nbytes, (peer, (tx, tg), True)),
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
    import torch

    halves, numbers = dtype != FLOAT32, optimizer.adam_numbers(1e-4, 5, (0.9, 0.999), 1e-8, 0.01, True)
    entries = optimizer_entries(cp, dtype)
    size = sum(e.p.size for e in entries)
    shape, each = optimizer.Shape("adamw"), 28  # p (or its master), g, m, v in; p, m, v (and the master) out
    gradients = [e.g for e in entries]

    def step() -> None:
        optimizer.update(cp, shape, numbers, entries)

    def clipped() -> None:
        report = optimizer.gradient_report(cp, gradients)
        optimizer.update(cp, shape, numbers, entries, report=report, max_norm=1.0)

    params = [torch.nn.Parameter(to_torch(e.p.astype(np.float32)).clone()) for e in entries]
    for p in params:
        p.grad = torch.randn_like(p)
    peer = torch.optim.AdamW(params, lr=1e-4, fused=True)

    def peer_clipped() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        peer.step()

    title = f"AdamW {size / 1e6:.0f} M" + (", masters" if halves else "")
    width = 4 if not halves else 2
    cases = [Case(title, step, each * size), Case(f"{title}, clipped", clipped, (each + width) * size),
             Case("gradient statistics", lambda: optimizer.gradient_report(cp, gradients), width * size)]  # fmt: skip
    if not halves:
        print(f"  torch fused AdamW {median_us(cp, peer.step):.0f} us, clipped {median_us(cp, peer_clipped):.0f} us (float32)")
    return cases


FAMILIES = {
    "layer_norm rms_norm": norm_cases,
    "layer_norm gpt2": gpt2_norm_cases,
    "softmax log_softmax": softmax_cases,
    "silu_mul bias gelu dropout columns": elementwise_cases,
    "cross_entropy": entropy_cases,
    "adamw clipped statistics": optimizer_cases,
}


def compare(case: Case) -> str:
    """The largest distance of our results, gradients too, from PyTorch's in float32, relative to their norms."""
    import torch

    if case.peer is None:
        return "-"
    function, inputs, backward = case.peer
    wide = [i.detach().float().requires_grad_(i.requires_grad) for i in inputs]
    out = function(*wide[:-1])
    expected = [out.detach()]
    if backward:
        expected += torch.autograd.grad(out, [i for i in wide[:-1] if i.requires_grad], wide[-1])
    mine = case.ours()
    found = [mine[0], *mine[1]] if backward else [mine]
    assert len(found) == len(expected)
    errors = [float((to_torch(a).float() - e).norm() / e.norm()) for a, e in zip(found, expected)]
    return f"{max(errors):.1e}"


def report(cp: Any, case: Case, dtype: Any, copy: float, peers: bool) -> None:
    """Print one line of the table."""
    us = median_us(cp, case.ours)
    eager, compiled = peer_times(cp, case) if peers else (None, None)
    error = compare(case) if peers else "-"
    ratios = [f"{p / us:6.2f}" if p else "     -" for p in (eager, compiled)]
    share = case.moved / us / copy
    floor = case.moved / copy
    print(f"{case.name:42s} {dtype!s:9s} {us:9.1f} {floor:9.1f} {share:6.1%} {ratios[0]} {ratios[1]} {error:>9s}", flush=True)


def overhead(cp: Any) -> None:
    """Host time of one launch, in a loop that never fills the queue."""
    x, out = cp.ones(4, np.float32), cp.empty(4, np.float32)
    kernel = pointwise._kernel("activation.cu", "activation_forward", FLOAT32, 4, 4, 0)
    runs = {
        "a launch alone": lambda: kernel((1, 1), (256, 1), x, out, 4),
        "a binding (gate, allocation, launch)": lambda: pointwise.activation_forward(cp, "relu", x),
        "layer_norm forward (4 allocations)": lambda: norms.layer_forward(cp, x.reshape(1, 4), None, None, axes=1, eps=1e-5),
        "cp.add(x, x, out)": lambda: cp.add(x, x, out),
    }
    for name, run in runs.items():
        run()
        best = []
        for _ in range(20):
            cp.cuda.Device().synchronize()
            start = time.perf_counter()
            for _ in range(100):
                run()
            best.append((time.perf_counter() - start) * 1e4)
        print(f"host time: {name:40s} {statistics.median(best):6.2f} us")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    rt.Cuda(0)
    cp = backend.cupy()
    copy = copy_bandwidth(cp)
    cp.get_default_memory_pool().free_all_blocks()
    print(f"{cp.cuda.runtime.getDeviceProperties(0)['name'].decode()}; a copy moves {copy / 1e3:.0f} GB/s")
    overhead(cp)
    print(f"{'kernel':42s} {'dtype':9s} {'us':>9s} {'floor':>9s} {'share':>6s} {'eager':>6s} {'compil':>6s} {'error':>9s}")
    for words, family in FAMILIES.items():
        if options.words and not any(word in words for word in options.words):
            continue
        for dtype in (FLOAT32, BFLOAT16):
            for case in family(cp, dtype):
                report(cp, case, dtype, copy, not options.no_peers)
            cp.get_default_memory_pool().free_all_blocks()
    print("launches:", dict(sorted(launch.HITS.items())))


if __name__ == "__main__":
    main()
