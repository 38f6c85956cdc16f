"""What the tests of layers share: comparison with torch, and what must hold of every layer."""
from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff


def drawn(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def draw(rng, *shape, dtype: Any = np.float32, device=None):
    return rt.tensor(rng.standard_normal(shape), dtype=dtype, device=device or rt.Cpu())


def host(x):
    return None if x is None else x.detach().astype(rt.float64).numpy()


def run(layer, x, weight=None):
    """The result, the gradient by x and those of the parameters (path -> array) of the weighted sum of the result."""
    x = x.require_grad()
    y = layer(x)
    weight = drawn(y.shape, 1) if weight is None else weight
    gradients = (y.astype(rt.float32) * rt.tensor(weight, device=y.device)).sum().backward()
    return host(y), host(x.grad(gradients)), {path: host(p.grad(gradients)) for path, p in layer.named_params()}


def agrees_with_torch(layer, name, x, *args, rtol=1e-5, atol=2e-6, **kwargs):
    """Give `torch.nn.<name>(*args, **kwargs)` our parameters and compare values and all gradients on the CPU."""
    torch = pytest.importorskip("torch")
    theirs = getattr(torch.nn, name)(*args, **kwargs)
    with torch.no_grad():
        for path, p in theirs.named_parameters():
            p.copy_(torch.tensor(layer.state_dict()[path].numpy()))
    found, dx, gradients = run(layer, rt.tensor(x, device=rt.Cpu()))
    leaf = torch.tensor(x, requires_grad=True)
    y = theirs(leaf)
    (y * torch.tensor(drawn(tuple(y.shape), 1))).sum().backward()
    np.testing.assert_allclose(found, y.detach().numpy(), rtol=rtol, atol=atol)
    np.testing.assert_allclose(dx, leaf.grad.numpy(), rtol=rtol, atol=atol)
    named = dict(theirs.named_parameters())
    assert set(named) == set(gradients)
    for path, g in gradients.items():
        scale = np.abs(named[path].grad.numpy()).max(initial=0.0)
        np.testing.assert_allclose(g, named[path].grad.numpy(), rtol=rtol, atol=atol * max(1.0, scale), err_msg=path)
    return theirs


def behaves_like_a_layer(config, x, device, training=False):
    """What holds of every layer: copies, records, dtypes, modes, half inputs."""
    layer = config.init(Autodiff(device))
    x = rt.tensor(x, device=device)
    expected = host(layer.valid()(x))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.clone(), layer.map(lambda p: p)):
        assert repr(other) == repr(layer) and type(other) is type(layer) and other.paths() == layer.paths()
        assert np.array_equal(host(other.valid()(x)), expected)
    fresh = config.init(device)
    assert not any(p.is_require_grad() for p in fresh.params())
    restored = fresh.load_record(layer.to_record())
    assert np.array_equal(host(restored.valid()(x)), expected) and list(restored.state_dict()) == list(layer.state_dict())
    if not training:
        assert np.array_equal(host(layer(x)), expected)
    wide = layer.valid().to_dtype(rt.float64)(x.astype(rt.float64))
    assert wide.dtype == rt.float64
    np.testing.assert_allclose(expected, host(wide), rtol=1e-4, atol=1e-5)
    rounds_halves_once(layer.valid(), x)
    assert layer.summary().splitlines()[-1].split()[0] == "total"


def rounds_halves_once(layer, x):
    """Half inputs and half weights: the float32 result on the same numbers, rounded to the half type."""
    for dtype, digits in ((rt.bfloat16, 2.0**-8), (rt.float16, 2.0**-11)):
        half = x.astype(dtype)
        y = layer.to_dtype(dtype)(half)
        assert y.dtype == dtype
        exact = host(layer.to_dtype(dtype).to_dtype(rt.float32)(half.astype(rt.float32)))
        np.testing.assert_allclose(host(y), exact, rtol=1.01 * digits, atol=2.0**-24)
