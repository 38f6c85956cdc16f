"""Training steps of `benchmarks.gpu`: GPT-2, a small MLP, a convolutional network; ours, and the peers'.

Every function here prepares (it imports, builds, compiles) and returns what measures, which gets the ceilings and yields
figures. Steps are timed by the host's clock, many at a time; the loss must have fallen.
"""
from __future__ import annotations

import argparse
import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import ruda_tensor as rt
from ruda_optim import AdamConfig, GradientsParams
from ruda_tensor import backend

from . import gpu_conv
from .gpu_table import COMPILED, EAGER, MEMORY, MLP, MLP_EAGER, OURS, STEP, STEP_EAGER, Figure, conv_name, figure
from .gpu_timing import checked_ms
from .inputs import LAYERS, batch

IMAGES = (256, 3, 32, 32)
CONVOLUTIONS = ((3, 64, 32), (64, 128, 32), (128, 256, 16))  # channels in, channels out, size
CONV_LR = 0.001  # with 0.01 the loss is fifty times the first one after a few steps
GIB = 1 << 30


class Ceilings(NamedTuple):
    """What this GPU reaches: bytes per us in a copy, operations per us in large products."""

    copy: float
    bfloat16: float
    tf32: float
    float32: float


Measure = Callable[[Ceilings], Iterator[Figure]]
Step = Callable[[], Any]  # returns the loss


class Trained:
    """A model, its optimizer, and a step that returns the loss."""

    def __init__(self, model: Any, optimizer: Any, lr: float) -> None:
        self.model, self.optimizer, self.lr = model, optimizer, lr

    def step(self, x: rt.Tensor, y: rt.Tensor) -> rt.Tensor:
        loss = rt.cross_entropy(self.model(x), y)
        self.model = self.optimizer.step(self.lr, self.model, GradientsParams.from_grads(loss.backward(), self.model))
        return loss


def _gpt2_options(quick: bool) -> argparse.Namespace:
    return argparse.Namespace(size="124M", batch=16, length=1024, rounds=2 if quick else 5, calls=5, profile=0)


def gpt2_ours(quick: bool) -> Measure:
    from . import gpt2

    cp, options = backend.cupy(), _gpt2_options(quick)

    def let_go() -> None:
        gc.collect()
        cp.get_default_memory_pool().free_all_blocks()

    run, x, y = gpt2.fresh(options)
    flops = run.model_config.flops_per_token(options.length) * options.batch * options.length
    rt.StaticGraph(run.step, x, y).run_eager(x, y)  # compiles
    del run, x, y
    let_go()

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        for what, name in ((STEP, "ruda"), (STEP_EAGER, "ruda, eager")):
            try:
                line = gpt2.measure_ours(cp, name, options)
            except Exception as error:
                yield Figure(what, OURS, None, failed=f"{type(error).__name__}: {error}")
                continue
            yield Figure(what, OURS, line.ms, flops / ceilings.bfloat16 / 1e3)
            if what == STEP:
                yield Figure(MEMORY, OURS, line.allocated / GIB)
            let_go()

    return measure


def gpt2_torch(quick: bool, compiled: bool) -> Measure:
    from . import gpt2

    who, name = (COMPILED, gpt2.PEERS[1]) if compiled else (EAGER, gpt2.PEERS[0])
    options = _gpt2_options(quick)
    step, parameters = gpt2.peer_step(name, options)
    for _ in range(2 * compiled):  # what need not be compiled leaves the memory to others meanwhile
        step()

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        line = gpt2.measure_peer(name, step, parameters, options)
        yield Figure(STEP, who, line.ms)
        if not compiled:
            yield Figure(STEP_EAGER, who, line.ms)
        yield Figure(MEMORY, who, line.allocated / GIB)

    return measure


def _ours(make: Callable[[], Trained], x: rt.Tensor, y: rt.Tensor, captured: bool) -> tuple[Callable[[], None], Step]:
    """What is called in the end, and a step, which has run twice: all is compiled, and recorded."""
    trained = make()
    graph = rt.StaticGraph(trained.step, x, y)
    run = graph.replay if captured else trained.step
    for _ in range(2):
        run(x, y)
    return graph.close, lambda: run(x, y)


def mlp_ours(quick: bool, device: rt.Device | None = None) -> Measure:
    from .ours import make_mlp

    place = device or rt.Cuda(0)
    x, y = [rt.tensor(a, device=place) for a in batch()]
    make = lambda: Trained(make_mlp(place), AdamConfig().init(), 1e-3)
    runs = [(what, *_ours(make, x, y, captured)) for what, captured in ((MLP, True), (MLP_EAGER, False))]

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        for what, close, step in runs:
            yield figure(what, OURS, _us, step, place.synchronize, quick)
            close()

    return measure


def _us(step: Step, wait: Callable[[], Any], quick: bool) -> float:
    """Microseconds of a short step."""
    return 1e3 * checked_ms(step, wait, *((3, 50) if quick else (7, 200)))


def torch_step(model: Any, optimizer: Any, x: Any, y: Any) -> Step:
    """A step of PyTorch's."""
    import torch

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def torch_captured(step: Step) -> Step:
    """The whole step in a CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay(held: Any = step) -> Any:  # the graph does not keep its inputs alive
        graph.replay()
        return loss

    return replay


def mlp_torch(quick: bool, device: str = "cuda") -> Measure:
    import torch

    from .torch_peer import make_mlp

    x, y = [torch.tensor(a, device=device) for a in batch()]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def timed(captured: bool = False, **settings: Any) -> float:
        model = make_mlp(device)
        step = torch_step(model, torch.optim.Adam(model.parameters(), lr=1e-3, **settings), x, y)
        return _us(torch_captured(step) if captured else step, wait, quick)

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        yield figure(MLP, "torch CUDA graph", lambda: timed(True, capturable=True, fused=True))
        yield figure(MLP_EAGER, "torch", timed)
        yield figure(MLP_EAGER, "torch fused Adam", lambda: timed(fused=True))

    return measure


def mlp_jax(quick: bool) -> Measure:
    """Adam by hand, so that JAX alone is needed."""
    import jax
    import jax.numpy as jnp

    x, y = [jnp.asarray(a) for a in batch()]
    rng = np.random.default_rng(0)
    ps = [(jnp.asarray(rng.uniform(-1, 1, (a, b)) * a**-0.5, jnp.float32), jnp.zeros(b)) for a, b in LAYERS]

    def loss_of(ps: Any) -> Any:
        h = x
        for i, (w, b) in enumerate(ps):
            h = h @ w + b
            h = jax.nn.relu(h) if i + 1 < len(LAYERS) else h
        return -jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1).mean()

    def update(state: Any) -> Any:
        ps, ms, vs, t = state
        loss, gs = jax.value_and_grad(loss_of)(ps)
        each, t = jax.tree_util.tree_map, t + 1
        ms = each(lambda m, g: 0.9 * m + 0.1 * g, ms, gs)
        vs = each(lambda v, g: 0.999 * v + 0.001 * g * g, vs, gs)
        rule = lambda p, m, v: p - 1e-3 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return (each(rule, ps, ms, vs), ms, vs, t), loss

    compiled, zeros = jax.jit(update), jax.tree_util.tree_map(jnp.zeros_like, ps)
    state: Any = (ps, zeros, zeros, jnp.zeros((), jnp.float32))

    def step() -> Any:
        nonlocal state
        state, loss = compiled(state)
        return loss

    step()

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        yield figure(MLP, "JAX jit", _us, step, lambda: jax.block_until_ready(state), quick)

    return measure


def conv_ours(quick: bool, place: rt.Device | None = None, size: int = IMAGES[0], calls: int = 10) -> Measure:
    place = place or rt.Cuda(0)
    host = images(size)
    x, y = rt.tensor(host[0], device=place), rt.tensor(host[1], device=place)
    runs, rounds = [], (3 if quick else 5, calls)
    for tf32 in (True, False):
        with rt.use_tf32(tf32):
            for captured in (True, False):
                close, step = _ours(lambda: conv_trained(place), x, y, captured)
                runs.append((tf32, captured, close, step))

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        for tf32, captured, close, step in runs:
            floor = conv_flops() / (ceilings.tf32 if tf32 else ceilings.float32) / 1e3
            with rt.use_tf32(tf32):
                found = figure(conv_name(captured, tf32), OURS, checked_ms, step, place.synchronize, *rounds, floor=floor)
            yield found
            close()

    return measure


def conv_trained(place: rt.Device) -> Trained:
    """The network of `benchmarks.gpu_conv`, with its optimizer."""
    made = gpu_conv.Training(place)
    return Trained(made.model, made.optimizer, CONV_LR)


def conv_torch(quick: bool, device: str = "cuda", size: int = IMAGES[0], calls: int = 10) -> Measure:
    import torch
    from torch import nn

    x, y = [torch.tensor(a, device=device) for a in images(size)]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    layers: list[Any] = []
    for a, b, _ in CONVOLUTIONS:
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), *([nn.MaxPool2d(2)] if a > 3 else [])]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 64, 10)).to(device)

    def timed(tf32: bool) -> float:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        mine = copy.deepcopy(model)
        step = torch_step(mine, torch.optim.SGD(mine.parameters(), lr=CONV_LR, momentum=0.9), x, y)
        return checked_ms(step, wait, 3 if quick else 5, calls)

    def measure(ceilings: Ceilings) -> Iterator[Figure]:
        for tf32 in (True, False):
            found = figure(conv_name(True, tf32), "torch", timed, tf32)
            yield found
            yield found._replace(what=conv_name(False, tf32))

    return measure


def images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """A batch and its classes."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((size, *IMAGES[1:]), dtype=np.float32), rng.integers(0, 10, size)


def conv_flops() -> float:
    """The operations of the convolutions of a step; the images need no gradient."""
    each = [2.0 * IMAGES[0] * size**2 * a * b * 9 for a, b, size in CONVOLUTIONS]
    return 2 * each[0] + 3 * sum(each[1:])
