"""What the tests of operations share."""
from __future__ import annotations

import numpy as np

import ruda_tensor as rt

CPU = rt.Cpu()


def gradient(f, values, device=CPU, dtype=rt.float32):
    """The gradient of the sum of f at `values`, as a NumPy array."""
    x = rt.tensor(np.asarray(values, np.float64), dtype=dtype, device=device).require_grad()
    return rt.astype(x.grad(rt.sum(f(x)).backward()), rt.float64).numpy()


def close(found, expected, rtol=1e-5, atol=1e-7):
    np.testing.assert_allclose(found.numpy() if isinstance(found, rt.Tensor) else found, expected, rtol=rtol, atol=atol)
