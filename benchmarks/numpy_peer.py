"""What no implementation on NumPy (or CuPy) can go below, and autograd, which is built on NumPy as well."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .inputs import CHAIN, LAYERS, batch, normal, rows
from .measure import Run


def chain_forward(xp: Any) -> Run:
    """The arithmetic of the chain alone, nothing recorded."""
    x = xp.asarray(normal(8, 8))
    scale, shift = xp.asarray(1.001, x.dtype), xp.asarray(0.001, x.dtype)

    def run() -> None:
        y = x
        for _ in range(CHAIN // 2):
            y = y * scale + shift

    return run


def mlp_products(xp: Any) -> Run:
    """The eight matrix products of a step: three forward, three for the weights, two for the hidden layers."""
    x, weights = xp.asarray(batch()[0]), [xp.asarray(normal(*shape)) for shape in LAYERS]

    def run() -> None:
        hidden = [x]
        for w in weights:
            hidden.append(hidden[-1] @ w)
        g = hidden[-1]
        for i in (2, 1, 0):
            _ = hidden[i].T @ g
            if i:
                g = g @ weights[i].T

    return run


def copies(xp: Any, passes: int) -> Run:
    """Moving as many arrays of the row kernels' size as they must: each copy reads one and writes one."""
    x = xp.asarray(normal(*rows(xp.__name__ == "cupy")))
    y = xp.empty_like(x)
    half = x.shape[0] // 2

    def run() -> None:
        for _ in range(passes // 2):
            y[...] = x
        if passes % 2:
            y[:half] = x[:half]

    return run


def big_copy(xp: Any) -> tuple[Run, int]:
    """A copy of 256 MiB, and the bytes it reads and writes."""
    x = xp.ones(1 << 26, dtype=xp.float32)
    y = xp.empty_like(x)

    def run() -> None:
        y[...] = x

    return run, 2 * x.nbytes


def floors(xp: Any) -> dict[str, dict[str, Callable[[], Run]]]:
    """Case -> candidate -> what makes it. Row kernels: x in, y out; then y or x, and g in, dx out."""
    name = "CuPy" if xp.__name__ == "cupy" else "NumPy"
    found: dict[str, dict[str, Callable[[], Run]]] = {
        "chain": {f"{name}, forward only": lambda: chain_forward(xp)},
        "mlp": {f"{name}, its matrix products only": lambda: mlp_products(xp)},
    }
    for case in ("softmax", "layer_norm", "gelu"):
        found[case] = {f"{name}, copying as many bytes": lambda: copies(xp, 5)}
    return found


def autograd_workloads() -> dict[str, dict[str, Callable[[], Run]]]:
    """The same in autograd."""
    return {"chain": {"autograd": autograd_chain}}


def autograd_chain() -> Run:
    import autograd
    import autograd.numpy

    x = normal(8, 8)
    anp: Any = autograd.numpy

    def f(y: Any) -> Any:
        for _ in range(CHAIN // 2):
            y = y * 1.001 + 0.001
        return anp.sum(y)

    grad: Any = autograd.grad
    gradient = grad(f)
    return lambda: gradient(x)
