"""A convolutional network of CIFAR's size on one GPU: a training step, and its parts, with PyTorch's beside them in the same run.

    python -m benchmarks.gpu_conv                  the step, the parts, and chunks of several sizes
    python -m benchmarks.gpu_conv step parts       some of them: step, parts, chunks

Batches of 256 images 3 x 32 x 32; Conv 64, Conv 128 and pooling, Conv 256 and pooling, all 3 x 3 with BatchNorm and relu, then
a linear layer; cross-entropy, SGD with momentum; float32, with TF32 and without. Steps are medians of wall time, many steps at
a time; parts are medians in us in a captured graph, ours and PyTorch's. The first gradients are compared with PyTorch's.
"""
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import BatchNormConfig, Conv2dConfig, LinearConfig, Module
from ruda_optim import GradientsParams, SgdConfig
from ruda_tensor import backend
from ruda_tensor.dtypes import FLOAT32
from ruda_tensor.kernels import batch_norm, conv, pool

from .gpu_gemm import ours, theirs, to_torch
from .gpu_timing import copy_bandwidth

BATCH = 256
LAYERS = [(3, 64, 32), (64, 128, 32), (128, 256, 16)]  # channels in, channels out, size
_RATE = {False: 51e12, True: 356e12}  # what products of 8192 reach on an H200, operations a second


class Network(Module):
    """Three convolutions, each with BatchNorm and relu, of which the last two are pooled, and a linear layer."""

    convolutions: list[Module]
    norms: list[Module]
    last: Module

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        for i, (convolution, norm) in enumerate(zip(self.convolutions, self.norms)):
            x = rt.relu(norm(convolution(x)))
            x = rt.max_pool2d(x, 2) if i else x
        return self.last(rt.reshape(x, (x.shape[0], -1)))


class Training:
    """The network, its optimizer, and a step."""

    def __init__(self, device: Any = None) -> None:
        rt.random.seed(0)
        place = Autodiff(rt.Cuda(0) if device is None else device)
        convolutions: list[Module] = [Conv2dConfig(c, o, kernel_size=3, padding=1).init(place) for c, o, _ in LAYERS]
        norms: list[Module] = [BatchNormConfig(o).init(place) for _, o, _ in LAYERS]
        self.model: Any = Network(convolutions, norms, LinearConfig(256 * 64, 10).init(place))
        self.optimizer = SgdConfig(momentum=0.9).init()

    def step(self, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
        loss = rt.cross_entropy(self.model(x), y)
        self.model = self.optimizer.step(0.1, self.model, GradientsParams.from_grads(loss.backward(), self.model))
        return loss


def peer() -> Any:
    import torch.nn as nn

    layers: list[Any] = []
    for i, (c, o, _) in enumerate(LAYERS):
        layers += [nn.Conv2d(c, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()] + [nn.MaxPool2d(2)] * (i > 0)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 64, 10)).cuda()


@contextmanager
def tf32(on: bool):
    """TF32 for both."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on
    with rt.use_tf32(on):
        yield


def wall_ms(run: Callable[[], Any], wait: Callable[[], Any], calls: int = 10, rounds: int = 5) -> float:
    for _ in range(3):
        run()
    wait()
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            run()
        wait()
        found.append((time.perf_counter() - start) / calls * 1e3)
    return statistics.median(found)


def floor_ms(copy: float, on: bool) -> str:
    """The least time of a step: arithmetic, and arrays that must move even if all that is elementwise were free.

    Forward, a convolution's output is written, read for its moments, and read to make the next input, which is written and
    read; backward, its gradient and the output are each read twice, and the input's gradient is written.
    """
    work = moved = 0.0
    for i, (c, o, size) in enumerate(LAYERS):
        area = BATCH * size * size
        work += (3 if i else 2) * 2 * area * c * o * 9
        moved += 4 * area * (o * 3 + c * 2 + o * 4 + (c if i else 0))
    return f"{work / 1e9:.0f} GFLOP are {work / _RATE[on] * 1e3:.2f} ms, {moved / 1e6:.0f} MB are {moved / copy / 1e3:.2f} ms"


def steps(cp: Any, copy: float) -> None:
    import torch

    rng = np.random.default_rng(0)
    host = rng.standard_normal((BATCH, 3, 32, 32), dtype=np.float32), rng.integers(0, 10, BATCH)
    x, y = rt.tensor(host[0], device=rt.Cuda(0)), rt.tensor(host[1], dtype=rt.int64, device=rt.Cuda(0))
    a, t = torch.from_numpy(host[0]).cuda(), torch.from_numpy(host[1]).cuda()
    wait = cp.cuda.Device().synchronize
    for on in (True, False):
        with tf32(on):
            agreement(x, y, a, t)
            print(f"\na step of {BATCH} images, {'TF32' if on else 'float32'}, ms; at least: {floor_ms(copy, on)}")
            training = Training()
            print(f"  ruda, eager     {wall_ms(lambda training=training: training.step(x, y), wait):7.2f}", flush=True)
            with rt.StaticGraph(Training().step, x, y) as graph:
                print(f"  ruda, captured  {wall_ms(lambda graph=graph: graph.replay(x, y), wait):7.2f}  {graph.info}", flush=True)
            model = peer()
            rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

            def step(model: Any = model, rule: Any = rule) -> None:
                rule.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(model(a), t).backward()
                rule.step()

            print(f"  PyTorch, eager  {wall_ms(step, torch.cuda.synchronize):7.2f}", flush=True)


def agreement(x: rt.Tensor, y: rt.Tensor, a: Any, t: Any) -> None:
    """Print how far the loss and the gradients are from PyTorch's in float32, with the same weights."""
    import torch

    training, model = Training(), peer()
    layers = [layer for pair in zip(training.model.convolutions, training.model.norms) for layer in pair]
    named = [p for layer in (*layers, training.model.last) for p in (layer.weight, layer.bias)]
    with torch.no_grad():
        for p, q in zip(named, model.parameters(), strict=True):
            value = to_torch(p._data)
            q.copy_(value if value.shape == q.shape else value.T)
    loss = rt.cross_entropy(training.model(x), y)
    gradients = loss.backward()
    expected = torch.nn.functional.cross_entropy(model(a), t)
    expected.backward()
    errors = []
    for p, q in zip(named, model.parameters(), strict=True):
        g = to_torch(gradients[p]._data)
        g = g if g.shape == q.grad.shape else g.T
        errors.append(float((g - q.grad).norm() / (q.grad.norm() + 1e-6)))
    print(f"\nloss {loss.item():.6f} and {expected.item():.6f}; gradients apart by", " ".join(f"{e:.0e}" for e in errors))


def parts(cp: Any, copy: float) -> None:
    import torch
    import torch.nn.functional as F

    rng = cp.random
    print("\nparts, us with TF32: ours, PyTorch")

    def line(name: str, mine: Callable[[], Any], other: Callable[[], Any], moved: float) -> None:
        print(f"  {name:34} {ours(cp, mine):8.1f} {theirs(cp, other):8.1f}   bytes {moved / copy:7.1f}", flush=True)

    settings = {"stride": (1, 1), "low": (1, 1), "dilation": (1, 1), "groups": 1}
    with tf32(True):
        for c, o, size in LAYERS:
            shapes, at = ((BATCH, c, size, size), (o, c, 3, 3), (BATCH, o, size, size), (o,)), (size, size)
            x, w, g, b = (rng.standard_normal(s, dtype=np.float32) for s in shapes)
            X, W, G, B = (to_torch(v) for v in (x, w, g, b))
            name, moved = f"conv {c} to {o} of {size}", x.nbytes + g.nbytes
            line(name, lambda x=x, w=w, b=b, at=at: conv.convolve(cp, x, w, b, count=at, **settings),
                 lambda X=X, W=W, B=B: F.conv2d(X, W, B, padding=1), moved)  # fmt: skip
            line(f"{name}, dx", lambda g=g, w=w, at=at: conv.transpose(cp, g, w, None, size=at, **settings),
                 lambda X=X, W=W, G=G: torch.ops.aten.convolution_backward(
                     G, X, W, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]), moved)  # fmt: skip
            line(f"{name}, dw", lambda x=x, g=g: conv.weigh(cp, x, g, kernel=(3, 3), **settings),
                 lambda X=X, W=W, G=G: torch.ops.aten.convolution_backward(
                     G, X, W, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]), moved)  # fmt: skip
            normalized(cp, line, g.reshape(BATCH, o, -1), f"of {o} x {size} x {size}")
            if c > 3:
                pooled(line, cp, g, f"of {o} x {size} x {size}")


def normalized(cp: Any, line: Callable, x: Any, name: str) -> None:
    import torch

    weight = cp.ones(x.shape[1], FLOAT32)
    X, W = to_torch(x), to_torch(weight)
    m, shift, variance = batch_norm.moments(cp, x)
    _, r = batch_norm.forward(cp, x, weight, weight, m, shift, variance, eps=1e-5)
    needs = (True, True, True, False, False, False)

    def forward() -> Any:
        return batch_norm.forward(cp, x, weight, weight, *batch_norm.moments(cp, x), eps=1e-5)[0]

    _, mean, inverse = torch.native_batch_norm(X, W, W, None, None, True, 0.1, 1e-5)
    line(f"batch_norm {name}", forward, lambda: torch.native_batch_norm(X, W, W, None, None, True, 0.1, 1e-5), 3 * x.nbytes)
    g = cp.roll(x, 1)
    G = to_torch(g)
    line(f"batch_norm {name}, backward", lambda: batch_norm.backward(cp, g, x, weight, m, shift, r, needs=needs, eps=1e-5),
         lambda: torch.ops.aten.native_batch_norm_backward(G, X, W, None, None, mean, inverse, True, 1e-5, [True] * 3),
         5 * x.nbytes)  # fmt: skip
    line(f"sums {name}", lambda: batch_norm.channel_sums(cp, x), lambda: X.sum((0, 2)), x.nbytes)


def pooled(line: Callable, cp: Any, x: Any, name: str) -> None:
    import torch
    import torch.nn.functional as F

    half = x.shape[-1] // 2
    static = {"windows": ((2, 2, 1, 0), (2, 2, 1, 0)), "counts": (half, half), "size": x.shape[-2:]}
    X, (out, taps) = to_torch(x), pool.max_forward(cp, x, **static)
    places = F.max_pool2d(X, 2, return_indices=True)[1]
    G, back = to_torch(out), torch.ops.aten.max_pool2d_with_indices_backward
    line(f"max_pool2d {name}", lambda: pool.max_forward(cp, x, **static)[0], lambda: F.max_pool2d(X, 2), 1.25 * x.nbytes)
    line(f"max_pool2d {name}, backward", lambda: pool.max_backward(cp, out, taps, needs=(True,), **static),
         lambda: back(G, X, [2, 2], [2, 2], [0, 0], [1, 1], False, places), 1.25 * x.nbytes)  # fmt: skip


def chunks(cp: Any, copy: float) -> None:
    print("\nconvolutions with TF32 in us by the bytes of their columns: forward, dx, dw of each layer")
    settings = {"stride": (1, 1), "low": (1, 1), "dilation": (1, 1), "groups": 1}
    before = conv.CHUNK
    arrays = []
    for c, o, size in LAYERS:
        shapes = (BATCH, c, size, size), (o, c, 3, 3), (BATCH, o, size, size)
        arrays.append((*(cp.random.standard_normal(s, dtype=np.float32) for s in shapes), (size, size)))
    for mib in (16, 32, 64, 128, 256, 1024):
        conv.CHUNK = mib << 20
        found = []
        with rt.use_tf32(True):
            for x, w, g, at in arrays:
                found.append(ours(cp, lambda x=x, w=w, at=at: conv.convolve(cp, x, w, None, count=at, **settings)))
                found.append(ours(cp, lambda g=g, w=w, at=at: conv.transpose(cp, g, w, None, size=at, **settings)))
                found.append(ours(cp, lambda x=x, g=g: conv.weigh(cp, x, g, kernel=(3, 3), **settings)))
        print(f"  {mib:5} MiB  " + " ".join(f"{t:7.1f}" for t in found), flush=True)
    conv.CHUNK = before


PARTS = {"step": steps, "parts": parts, "chunks": chunks}


def main() -> None:
    """Print what is asked for."""
    cp = backend.cupy()
    rt.Cuda(0)
    copy = copy_bandwidth(cp)
    print(f"copy {copy / 1e3:.0f} GB/s")
    for name in sys.argv[1:] or PARTS:
        PARTS[name](cp, copy)


if __name__ == "__main__":
    main()
