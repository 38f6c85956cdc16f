"""Programs that need a process of their own: `python -m tests.cases._cuda_scripts NAME`; test_cuda.py reads what they print."""
from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np

import ruda_autodiff
import ruda_tensor as rt
from ruda_nn import ArrayDataset, DataLoader, LayerNormConfig, LinearConfig, RotaryConfig, Sequential
from ruda_optim import AdamConfig, GradientsParams

GPU, CPU = rt.Cuda(0), rt.Cpu()


def streams() -> None:
    """Stream A makes, B works slowly on it, A makes the next in the same memory: ordered by events, each is right."""
    cp, n, right = GPU.xp, 1 << 20, 0
    a, b = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    loader = DataLoader(ArrayDataset(np.arange(100.0, dtype=np.float32)), 1, shuffle=False, device=GPU)
    batches = iter(loader)
    for i in range(100):
        with a:
            x = rt.full((64, n // 64), float(i), device=GPU)
            (batch,) = next(batches)
            made = a.record()
        b.wait_event(made)
        with b:
            leaf = x.require_grad()
            y = leaf
            for _ in range(6):
                y = rt.silu_mul(rt.rms_norm(y, eps=1e-5), y * 0.0 + 2.0)
            g = leaf.grad(rt.sum(y * 0.0 + leaf * batch).backward())
            seen = [rt.mean(leaf.detach()), rt.mean(g), rt.max(rt.abs(y.detach()))]
            done = b.record()
        a.wait_event(done)
        del x, leaf, y, batch
        with a:
            other = rt.full((64, n // 64), -1.0, device=GPU)
        b.synchronize()
        mean, slope, largest = (float(v.numpy()) for v in seen)
        right += abs(mean - i) < 1e-3 and abs(slope - i) < 1e-3 and np.isfinite(largest)
        del other, g
    print(right, "right")


def _losses(number: int, weights: list[np.ndarray]) -> list[float]:
    rng = np.random.default_rng(number)
    recording = ruda_autodiff.Autodiff(GPU)
    layers = LinearConfig(32, 64), LayerNormConfig(64), LinearConfig(64, 64)
    values = iter(weights)
    model = Sequential(*[layer.init(recording) for layer in layers])
    model = model.map(lambda p: p.like(GPU.put(next(values) if p.ndim == 2 else np.full(p.shape, 0.5, np.float32))))
    optimizer, rotary, losses = AdamConfig().init(), RotaryConfig(32).init(), []
    for _ in range(30):
        x = rt.tensor(rng.standard_normal((16, 32)), dtype=rt.float32, device=GPU)
        ids = rt.tensor(rng.integers(0, 64, 16), device=GPU)
        loss = rt.cross_entropy(rt.gelu(model(rotary(x))), ids)
        model = optimizer.step(1e-2, model, GradientsParams.from_grads(loss.backward(), model))
        losses.append(float(loss.numpy()))
    return losses


def threads() -> None:
    """8 threads train small models, while a ninth gives the pool's memory back: each as if it were alone."""
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal(s) / 8).astype(np.float32) for s in ((32, 64), (64, 64))]
    found: dict[int, list[float]] = {}
    over = threading.Event()

    def free() -> None:
        while not over.wait(0.001):
            GPU.xp.get_default_memory_pool().free_all_blocks()

    workers = [threading.Thread(target=lambda i=i: found.update({i: _losses(i, weights)})) for i in range(8)]
    freeing = threading.Thread(target=free)
    freeing.start()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(100)
    over.set()
    freeing.join(10)
    assert sorted(found) == list(range(8)), f"threads that ended: {sorted(found)}"
    alone = {i: _losses(i, weights) for i in range(8)}
    unlike = [i for i in range(8) if found[i] != alone[i]]
    print(len(found), "threads alike" if not unlike else f"threads, unlike alone: {unlike}")


def fork() -> None:
    """After the parent has used the GPU, all that a child tries there is refused."""
    x = rt.ones(2, device=GPU).require_grad()
    loss = rt.sum(rt.softmax(x))
    if os.fork():
        os.wait()
        return
    print("cpu", (rt.ones(2, device=CPU) + 1.0).tolist())
    tries: list[Callable] = [
        lambda: rt.ones(1, device=GPU), lambda: x + 1.0, lambda: rt.softmax(x), lambda: x.numpy(), lambda: loss.backward(),
        lambda: rt.ones(1, device=CPU).to_device(GPU),
    ]  # fmt: skip
    for attempt in tries:
        try:
            attempt()
            print("no error")
        except RuntimeError as error:
            print(error)
    sys.stdout.flush()
    os._exit(0)


def imported() -> None:
    """Importing every package opens no driver."""
    import ruda_nn  # noqa: F401
    import ruda_record  # noqa: F401

    with open("/proc/self/maps") as maps:
        opened = "libcuda.so" in maps.read()
    print("CuPy" if "cupy" in sys.modules else "no CuPy", "a driver" if opened else "no driver", sep=", ")


def fork_first() -> None:
    if os.fork():
        os.wait()
        return
    print((rt.ones(2, device=GPU) + 1.0).tolist(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
