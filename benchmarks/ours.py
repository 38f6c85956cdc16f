"""The workloads in ruda: each function returns what one call of is timed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ruda_tensor as rt
from ruda_autodiff import Autodiff, vjp
from ruda_nn import Linear, LinearConfig, Module, Param
from ruda_optim import AdamConfig, AdamWConfig, GradientsParams

from .char_gpt import made, window
from .inputs import ADAMW, CHAIN, CONV, LAYERS, batch, normal, rows
from .measure import Run, Trained


class Mlp(Module):
    layers: list[Linear]

    def forward(self, x: rt.Tensor) -> rt.Tensor:
        for layer in self.layers[:-1]:
            x = rt.relu(layer(x))
        return self.layers[-1](x)


class One(Module):
    weight: Param


def make_mlp(device: rt.Device) -> Mlp:
    return Mlp(layers=[LinearConfig(a, b).init(Autodiff(device)) for a, b in LAYERS])


def chain(device: rt.Device) -> Run:
    leaf = rt.tensor(normal(8, 8), device=device).require_grad()

    def run() -> Any:
        y = leaf
        for _ in range(CHAIN // 2):
            y = y * 1.001 + 0.001
        return leaf.grad(y.sum().backward())

    return run


def _trained(model: Any, loss_of: Callable[[Any], rt.Tensor], config: Any = None) -> Run:
    optimizer, parameters = (config or AdamConfig()).init(), model.num_params()

    def run() -> None:
        nonlocal model
        gradients = GradientsParams.from_grads(loss_of(model).backward(), model)
        model = optimizer.step(1e-3, model, gradients)

    return Trained(run, parameters)


def mlp(device: rt.Device) -> Run:
    x, classes = [rt.tensor(a, device=device) for a in batch()]
    return _trained(make_mlp(device), lambda model: rt.cross_entropy(model(x), classes))


def linear(device: rt.Device) -> Run:
    x, y = rt.tensor(normal(32, 2), device=device), rt.tensor(normal(32, 1), device=device)
    return _trained(LinearConfig(2, 1).init(Autodiff(device)), lambda model: (model(x) - y).square().mean())


def char_gpt(device: rt.Device) -> Run:
    ids, following = [rt.tensor(a, device=device) for a in window()]
    following = rt.reshape(following, (-1,))

    def loss_of(model: Any) -> rt.Tensor:
        scores = model(ids)
        return rt.cross_entropy(rt.reshape(scores, (-1, scores.shape[-1])), following)

    return _trained(made(device), loss_of, AdamWConfig())


def adamw(device: rt.Device) -> Run:
    model = One(weight=Param(rt.tensor(normal(ADAMW), device=device)))
    gradient, optimizer = rt.tensor(normal(ADAMW, seed=1), device=device), AdamWConfig().init()

    def run() -> None:
        nonlocal model
        model = optimizer.step(1e-3, model, GradientsParams({model.weight: gradient}))

    return run


def _pulled(function: Callable, cotangent: rt.Tensor, *inputs: rt.Tensor) -> Run:
    def run() -> Any:
        _, pull = vjp(function, *inputs)
        return pull(cotangent)

    return run


def _row_inputs(device: rt.Device) -> list[rt.Tensor]:
    """x, cotangent, and weight and bias of one row."""
    n, d = rows(device.kind == "cuda")
    return [rt.tensor(a, device=device) for a in (normal(n, d), normal(n, d, seed=1), normal(d), normal(d, seed=1))]


def softmax(device: rt.Device) -> Run:
    x, g, _, _ = _row_inputs(device)
    return _pulled(lambda x: rt.softmax(x, axis=-1), g, x)


def layer_norm(device: rt.Device) -> Run:
    x, g, weight, bias = _row_inputs(device)
    return _pulled(lambda x, w, b: rt.layer_norm(x, w, b), g, x, weight, bias)


def gelu(device: rt.Device) -> Run:
    x, g, _, _ = _row_inputs(device)
    return _pulled(lambda x: rt.gelu(x, approximate="tanh"), g, x)


def conv2d(device: rt.Device) -> Run:
    x, weight, g = [rt.tensor(normal(*shape, seed=i), device=device) for i, shape in enumerate(CONV)]
    return _pulled(lambda x, w: rt.conv2d(x, w, padding=1), g, x, weight)


WORKLOADS = {f.__name__: f for f in (chain, mlp, linear, char_gpt, adamw, softmax, layer_norm, gelu, conv2d)}


def agreeing(result: Any) -> list:
    """A result as NumPy arrays, to compare with a peer's: gradients, or nothing where weights differ by chance."""
    parts = result if isinstance(result, tuple) else (result,)
    return [p.numpy() for p in parts if isinstance(p, rt.Tensor)]
