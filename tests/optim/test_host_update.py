"""The compiled updates of optimizers give the bits of the NumPy rules."""
from __future__ import annotations

import itertools

import numpy as np
import pytest

from ruda_optim import AdamConfig, AdamWConfig, SgdConfig
from ruda_tensor.kernels import host
from ruda_tensor.kernels.host import update

WHY = f"no compiled bodies: {host._reasons.get('update', 'off')}" if host.library("update") is None else ""
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)


def _sgd():
    for momentum, decay, nesterov in itertools.product((0.0, 0.9), (0.0, 0.03), (False, True)):
        if momentum or not nesterov:
            yield SgdConfig(momentum=momentum, weight_decay=decay, nesterov=nesterov)
    yield SgdConfig(momentum=0.8, dampening=0.3, weight_decay=0.01)


CONFIGS = [
    *(AdamConfig(weight_decay=decay, amsgrad=amsgrad) for decay in (0.0, 0.02) for amsgrad in (False, True)),
    *(
        AdamWConfig(weight_decay=decay, amsgrad=amsgrad, cautious_weight_decay=cautious)
        for decay in (0.0, 0.1)
        for amsgrad in (False, True)
        for cautious in (False, True)
    ),
    AdamConfig(betas=(0.0, 0.5), eps=1e-3),
    *_sgd(),
]


def trained(config, dtype, size, steps=4, poison=False):
    """The parameter and the states after some steps with odd gradients."""
    rule, random = config.build(), np.random.default_rng(0)
    p = random.standard_normal(size).astype(dtype)
    p[: size // 3] = 0.0
    state = rule.start(np, p)
    for _ in range(steps):
        g = random.standard_normal(size).astype(dtype)
        g[: size // 7] = 0.0
        if poison:
            g[-5:] = np.inf, -np.inf, np.nan, 1e-30, 3e38
        with np.errstate(all="ignore"):
            rule.update(np, 0.01, p, g, state)
    return [p, *(state[name] for name in rule.arrays)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_updates_give_the_bits_of_the_numpy_rules(config, dtype, monkeypatch):
    used = []
    monkeypatch.setattr(update, "function", lambda *names: used.append(names) or host.function(*names))
    for size, poison in itertools.product((7, 1001, 70_000), (False, True)):
        found = trained(config, dtype, size, poison=poison)
        with host.use_host_kernels(False):
            right = trained(config, dtype, size, poison=poison)
        for a, b in zip(found, right, strict=True):
            assert np.array_equal(a, b, equal_nan=True)
            assert np.array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))
    assert used


def test_a_small_update_waits_for_no_compiler(monkeypatch):
    monkeypatch.setattr(host, "_libraries", {})
    monkeypatch.setattr(host, "_load", lambda name: pytest.fail(f"{name} was loaded"))
    trained(AdamWConfig(), np.float32, 1001)


def test_arrays_that_do_not_fit_are_declined():
    p, constants = np.zeros(1 << 15, np.float32), np.zeros(8)
    for other in (p.astype(np.float64), np.zeros(1 << 16, np.float32)[::2]):
        assert not update.update("adam", np, (p, other, p, p, None), constants)
    half = p.astype(np.float16)
    assert not update.update("adam", np, (half, half, half, half, None), constants)
