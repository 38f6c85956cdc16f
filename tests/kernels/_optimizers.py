"""The optimizer kernels against the rules of ruda_optim, to the bit, and the gradients' statistics against float64."""
from __future__ import annotations

from typing import Any

import numpy as np

from ruda_optim import AdamConfig, AdamWConfig, SgdConfig
from ruda_tensor import backend
from ruda_tensor.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ruda_tensor.kernels import optimizer
from ruda_tensor.kernels.gate import real_of

from ._cases import draw, put

RULES = {
    "sgd": SgdConfig(),
    "sgd with momentum": SgdConfig(momentum=0.9, dampening=0.1, weight_decay=0.01),
    "sgd with Nesterov's momentum": SgdConfig(momentum=0.9, nesterov=True),
    "adam": AdamConfig(weight_decay=0.02),
    "adam with amsgrad": AdamConfig(amsgrad=True),
    "adamw": AdamWConfig(weight_decay=0.1),
    "adamw, cautious": AdamWConfig(weight_decay=0.1, amsgrad=True, cautious_weight_decay=True),
}
# Stored parameter, gradient, whether there is a float32 master.
LAYOUTS = [
    (FLOAT32, FLOAT32, False),
    (FLOAT64, FLOAT64, False),
    (BFLOAT16, BFLOAT16, True),
    (FLOAT32, FLOAT32, True),
    (FLOAT16, FLOAT32, True),
    (FLOAT16, FLOAT16, False),
]


def accepts(xp: Any, entry: optimizer.Entry) -> bool:
    """Whether the kernel can update this parameter: what `ruda_optim.together` asks."""
    return optimizer.takes(xp, entry.p.dtype, entry.g.dtype) and optimizer.fits(entry, real_of(entry.p.dtype))


def shape_of(config: Any) -> optimizer.Shape:
    if isinstance(config, SgdConfig):
        return optimizer.Shape("sgd", bool(config.weight_decay), bool(config.momentum), config.nesterov)
    if isinstance(config, AdamWConfig):
        return optimizer.Shape("adamw", amsgrad=config.amsgrad, cautious=config.cautious_weight_decay)
    return optimizer.Shape("adam", bool(config.weight_decay), amsgrad=config.amsgrad)


def numbers_of(config: Any, lr: float, time: int) -> optimizer.Numbers:
    if isinstance(config, SgdConfig):
        return optimizer.sgd_numbers(lr, time, config.momentum, config.dampening, config.weight_decay)
    decoupled = isinstance(config, AdamWConfig)
    return optimizer.adam_numbers(lr, time, config.betas, config.eps, config.weight_decay, decoupled)


def steps(xp: Any, rng: Any, name: str, layout: tuple, sizes: list[int], *, shift: int = 0, lr: float = 0.01) -> list:
    """Three updates of several parameters by the kernel, each the bits of the plain rule on the host."""
    config, (storage, gradient, master) = RULES[name], layout
    rule, shape, real = config.build(), shape_of(config), real_of(storage)
    plain = [draw(rng, n, real if master else storage) for n in sizes]
    states: list[Any] = [None] * len(sizes)
    mine = [put(xp, p.astype(storage), shift) for p in plain]
    masters = [put(xp, p, shift) if master else None for p in plain]
    kept = [[put(xp, np.zeros(n, real), shift) for _ in rule.arrays] for n in sizes]
    for time in (1, 2, 3):
        gradients = [draw(rng, n, gradient) for n in sizes]
        entries = [
            optimizer.Entry(p, put(xp, g, shift), m, s) for p, g, m, s in zip(mine, gradients, masters, kept)
        ]
        assert all(accepts(xp, entry) for entry in entries)
        optimizer.update(xp, shape, numbers_of(config, lr, time), entries)
        for i, g in enumerate(gradients):
            plain[i], states[i] = rule.step(np, lr, plain[i], g, states[i])
            same(mine[i], plain[i].astype(storage), f"parameter {i} at step {time}")
            for array, key in zip(kept[i], rule.arrays):
                same(array, states[i][key], f"{key} {i} at step {time}")
            if master:
                same(masters[i], plain[i], f"master {i} at step {time}")
    return mine


def same(found: Any, expected: np.ndarray, what: str) -> None:
    assert backend.to_host(found).tobytes() == expected.tobytes(), f"{what}: other bits"


def report(xp: Any, gradients: list[np.ndarray], unscale: float = 1.0, *, shift: int = 0) -> np.ndarray:
    """The report on the host, checked against float64."""
    device = optimizer.gradient_report(xp, [put(xp, g, shift) for g in gradients], unscale)
    found = backend.to_host(device).copy()
    exact = np.concatenate([g.astype(np.float64).ravel() for g in gradients]) / unscale
    bad = not np.isfinite(exact).all() or np.abs(exact).max(initial=0) > np.finfo(np.float32).max
    assert found.dtype == np.float32 and found.nbytes == 12 and found[0] == bad
    if not bad:
        largest = np.abs(exact).max(initial=0)
        np.testing.assert_allclose(found[1], largest, rtol=1e-6)
        # A GPU takes what is below 2^-126 for 0, and the shim takes it for what it is beside larger numbers.
        least = np.linalg.norm(np.where(np.abs(exact) < 2.0**-126, 0, exact))
        assert (1 - 1e-5) * least <= float(found[1]) * np.sqrt(float(found[2])) <= (1 + 1e-5) * np.linalg.norm(exact)
    return found
