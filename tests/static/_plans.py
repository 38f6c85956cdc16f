"""What the tests of plans share: each kind as the user's own operations, and as a float64 formula."""
from __future__ import annotations

import numpy as np
import scipy.special as sp

import ruda_tensor as rt

DTYPES = [rt.float32, rt.float16, rt.bfloat16]


def wide(x):
    return rt.astype(x, rt.float32)


def once(f):
    """f in float32, rounded once to the dtype of the first tensor."""
    return lambda x, y, s: rt.astype(f(wide(x), None if y is None else wide(y), s), x.dtype)


def axes(s):
    return tuple(i for i in range(8) if int(s) >> i & 1)


def tape(f):
    """The derivative rule that the tape runs for f, as a function of the gradient and f's argument."""

    def run(g, x, s):
        leaf = x.require_grad()
        y = f(leaf, int(s)) if s is not None else f(leaf)
        return leaf.grad(rt.sum(wide(y) * wide(g)).backward())

    return run


UNARY = {
    **{n: getattr(rt, n) for n in "relu exp log sqrt rsqrt sigmoid silu tanh sin cos abs sign floor ceil trunc".split()},
    **{n: getattr(rt, n) for n in "reciprocal log1p sinh cosh asinh acosh atanh".split()},
    "copy": lambda x: x,
    "neg": rt.negative,
}
BINARY = {"mul": rt.multiply, "div": rt.divide, "silu_mul": rt.silu_mul}
SCALAR = {"add_scalar": rt.add, "mul_scalar": rt.multiply, "div_scalar": rt.divide}
EAGER = {
    **{n: lambda x, y, s, f=f: f(x) for n, f in UNARY.items()},
    **{n: lambda x, y, s, f=f: f(x, y) for n, f in BINARY.items()},
    **{n: lambda x, y, s, f=f: f(x, float(np.float32(s))) for n, f in SCALAR.items()},
    "add": once(lambda x, y, s: x + y * float(np.float32(s))),
    "hardsigmoid": once(lambda x, y, s: rt.clip(x * (1 / 6) + 0.5, 0.0, 1.0)),
    "hardswish": once(lambda x, y, s: x * (rt.clip(x + 3.0, 0.0, 6.0) / 6.0)),
    "sigmoid_backward": once(lambda g, y, s: g * (y * (1.0 - y))),
    "tanh_backward": once(lambda g, y, s: g * (1.0 - y * y)),
    "silu_backward": lambda g, x, s: tape(rt.silu)(g, x, None),
    "softmax": lambda x, y, s: rt.softmax(x, axis=int(s)),
    "log_softmax": lambda x, y, s: rt.log_softmax(x, axis=int(s)),
    "sum_keepdim": lambda x, y, s: rt.sum(x, axis=axes(s), keepdims=True),
    "mean_keepdim": lambda x, y, s: rt.mean(x, axis=axes(s), keepdims=True),
    "rms_norm": lambda x, y, s: rt.rms_norm(x, y, eps=float(np.float32(s))),
    "mm": lambda x, y, s: rt.matmul(x, y),
    "bmm": lambda x, y, s: rt.matmul(x, y),
}


def sigmoid(x):
    return sp.expit(x)


def _softmax_backward(g, p, s):
    return p * (g - (g * p).sum(int(s), keepdims=True))


def _silu_backward(g, x, s):
    return g * (sigmoid(x) * (1 + x * (1 - sigmoid(x))))


def _rms_norm(x, w, s):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + s) * (1 if w is None else w)


FLOAT64 = {
    **{n: lambda x, y, s, n=n: getattr(np, n)(x) for n in "exp log sqrt tanh sin cos abs sign floor ceil trunc".split()},
    **{n: lambda x, y, s, n=n: getattr(np, n)(x) for n in "reciprocal log1p sinh cosh".split()},
    "copy": lambda x, y, s: x,
    "neg": lambda x, y, s: -x,
    "relu": lambda x, y, s: np.maximum(x, 0),
    "rsqrt": lambda x, y, s: 1 / np.sqrt(x),
    "sigmoid": lambda x, y, s: sigmoid(x),
    "silu": lambda x, y, s: x * sigmoid(x),
    "asinh": lambda x, y, s: np.arcsinh(x),
    "acosh": lambda x, y, s: np.arccosh(x),
    "atanh": lambda x, y, s: np.arctanh(x),
    "hardsigmoid": lambda x, y, s: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x, y, s: x * np.clip(x + 3, 0, 6) / 6,
    "add": lambda x, y, s: x + s * y,
    "mul": lambda x, y, s: x * y,
    "div": lambda x, y, s: x / y,
    "silu_mul": lambda x, y, s: x * sigmoid(x) * y,
    "silu_backward": _silu_backward,
    "sigmoid_backward": lambda g, y, s: g * y * (1 - y),
    "tanh_backward": lambda g, y, s: g * (1 - y * y),
    "add_scalar": lambda x, y, s: x + s,
    "mul_scalar": lambda x, y, s: x * s,
    "div_scalar": lambda x, y, s: x / s,
    "mm": lambda x, y, s: x @ y,
    "bmm": lambda x, y, s: x @ y,
    "rms_norm": _rms_norm,
    "softmax": lambda x, y, s: sp.softmax(x, int(s)),
    "log_softmax": lambda x, y, s: sp.log_softmax(x, int(s)),
    "softmax_backward": _softmax_backward,
    "log_softmax_backward": lambda g, y, s: g - np.exp(y) * g.sum(int(s), keepdims=True),
    "sum_keepdim": lambda x, y, s: x.sum(axes(s), keepdims=True),
    "mean_keepdim": lambda x, y, s: x.mean(axes(s), keepdims=True),
}
POSITIVE = {"log", "sqrt", "rsqrt", "reciprocal", "log1p"}


def inputs_for(kind, rng, shape=(3, 5)):
    """(left, right or None, scalar) for a kind, as float64 arrays whose values lie where it is defined."""
    x, y, s = rng.standard_normal(shape) * 2, None, 0.0
    if kind in POSITIVE:
        x = rng.uniform(0.1, 3, shape)
    elif kind in ("acosh", "atanh"):
        x = rng.uniform(1.1, 3, shape) if kind == "acosh" else rng.uniform(-0.9, 0.9, shape)
    if kind in SCALAR or kind == "add":
        s = 0.75
    if kind == "mm":
        y = rng.standard_normal((shape[-1], 4))
    elif kind == "bmm":
        x, y = rng.standard_normal((2, *shape[-2:])), rng.standard_normal((2, shape[-1], 4))
    elif kind == "rms_norm":
        y, s = rng.standard_normal(shape[-1:]), 1e-3
    elif kind in BINARY or kind == "add" or kind.endswith("_backward"):
        y = rng.standard_normal(shape)
    if kind.startswith(("softmax", "log_softmax")):
        s = float(len(shape) - 1)
        if y is not None:
            y = sp.softmax(y, -1) if kind == "softmax_backward" else sp.log_softmax(y, -1)
    elif kind.endswith("keepdim"):
        s = 2.0
    elif kind in ("sigmoid_backward", "tanh_backward"):
        y = sigmoid(y) if kind == "sigmoid_backward" else np.tanh(y)
    elif kind == "div":
        y = np.where(np.abs(y) < 0.2, 0.5, y)
    return x, y, s


def tensors(device, dtype, x, y=None):
    found = {"x": rt.tensor(x, dtype=dtype, device=device)}
    return found if y is None else {**found, "y": rt.tensor(y, dtype=dtype, device=device)}



def same_bits(found, expected):
    assert found.shape == expected.shape and found.dtype == expected.dtype
    integers = f"u{found.dtype.itemsize}"
    np.testing.assert_array_equal(found.numpy().view(integers), expected.numpy().view(integers))


def eager(inputs, nodes):
    """All values of a plan, computed by the user's own operations in the order of the nodes."""
    values = dict(inputs)
    for node in nodes:
        right = None if node.right is None else values[node.right]
        values[node.output] = EAGER[node.kind](values[node.left], right, node.scalar)
    return values
