"""The update rules: each is a function of (learning rate, parameter, gradient, state), over arrays.

`update(xp, lr, p, g, state)` changes `p` and the arrays of `state` in place; the optimizer has made sure that nobody
else can see them. What it gets may be several parameters laid end to end (see `buckets`). Everything is computed in float32
(float64 for float64 parameters). NumPy runs a rule in cache-sized blocks, so that a dozen passes over memory become
one, and large parameters on all cores; the bits do not depend on either.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda_nn import Config
from ruda_tensor.dtypes import FLOAT32, HALF
from ruda_tensor.kernels.host.update import update
from ruda_tensor.ops._parallel import each_block

from .clipping import scaled
from .groups import changed, settled


class Rule:
    """Base of elementwise rules. `config` is what it was built from, and `arrays` names its state arrays.

    A rule of one's own says in `kernel` how to change a flat piece of a parameter in place:

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Module, Param
    >>> from ruda_optim import GradientsParams, Optimizer, OptimizerConfig
    >>> class SignSgd(Rule):
    ...     def kernel(self, lr, time):
    ...         def body(xp, p, g, t):
    ...             xp.multiply(xp.sign(g, out=t), lr, out=t)
    ...             xp.subtract(p, t, out=p)
    ...         return body
    >>> class Point(Module):
    ...     at: Param
    >>> point = Point(Param(rt.tensor([1.0, 2.0], device=rt.Cpu())))
    >>> gradients = GradientsParams({point.at: rt.tensor([0.1, -7.0], device=rt.Cpu())})
    >>> Optimizer(SignSgd(OptimizerConfig())).step(0.5, point, gradients).at.numpy()
    array([0.5, 2.5], dtype=float32)
    """

    arrays: tuple[str, ...] = ()
    scratch = 1

    def __init__(self, config: Config) -> None:
        self.config = settled(config)
        self.clipping = getattr(self.config, "grad_clipping", None)

    @property
    def elementwise(self) -> bool:
        """Whether each number is updated by itself, so that several parameters can be updated as one."""
        kind = type(self)
        plain = kind.start is Rule.start and kind.step is Rule.step and kind.update is Rule.update
        return plain and (self.clipping is None or self.clipping.kind != "norm")

    def global_limit(self) -> float | None:
        """The limit on the norm of all gradients together; the optimizer sees to it."""
        return self.clipping.limit if self.clipping is not None and self.clipping.kind == "global_norm" else None

    def with_settings(self, settings: dict[str, Any]) -> Any:
        """Return the rule of a configuration with other settings, as a parameter group asks for."""
        return changed(self.config, settings).build()

    def describe(self) -> dict[str, Any]:
        """The configuration as plain data, which a restore compares."""
        return {"rule": type(self).__name__, **self.config.describe()}

    def check(self, lr: float, shape: tuple[int, ...], dtype: np.dtype, grad_dtype: np.dtype) -> None:
        """Raise where this rule cannot take such a parameter and gradient; asked for all before any is changed."""

    def start(self, xp: Any, p: Any) -> dict[str, Any]:
        """The state of a parameter before its first update, for `p` as it is stored or in the dtype of computation."""
        dtype = FLOAT32 if p.dtype in HALF else p.dtype
        return {"time": 0, **{name: xp.zeros(p.shape, dtype) for name in self.arrays}}

    def counter(self, state: dict[str, Any]) -> dict[str, Any]:
        """The part of a state whose `time` says how often its parameter was updated."""
        return state

    def step(
        self, xp: Any, lr: float, p: Any, g: Any, state: dict[str, Any] | None, factor: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """Return the updated parameter in its dtype, and the state; `p` and the state's arrays are reused.

        `factor` is what the clipping of the global norm multiplies the gradient by.
        """
        wide = p.astype(FLOAT32) if p.dtype in HALF else p
        if state is None:
            state = self.start(xp, wide)
        g = g.astype(wide.dtype, copy=False)
        if factor is not None:
            g = scaled(xp, g, factor)
        if self.clipping is not None:
            g = self.clipping.clip(xp, g)
        self.update(xp, lr, wide, g, state)
        return (wide if wide is p else wide.astype(p.dtype)), state

    def update(self, xp: Any, lr: float, p: Any, g: Any, state: dict[str, Any]) -> None:
        """Advance the state and change `p` in place."""
        state["time"] += 1
        flat = [p.reshape(-1), xp.ascontiguousarray(g).reshape(-1), *[state[name].reshape(-1) for name in self.arrays]]
        if xp is np and self.compiled(lr, state["time"], flat):
            return
        kernel = self.kernel(lr, state["time"])

        def body(block: slice) -> None:
            scratch = [xp.empty(block.stop - block.start, p.dtype) for _ in range(self.scratch)]
            kernel(xp, *[a[block] for a in flat], *scratch)

        each_block(xp, p.size, 4 * p.itemsize, body)  # smaller blocks than usual: several arrays are in use at once

    def __repr__(self) -> str:
        return type(self).__name__

    def compiled(self, lr: float, time: int, arrays: list[Any]) -> bool:
        """Change p and the state arrays of [p, g, *states] on all cores, if there is a compiled body; else return False."""
        return False

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        """Return the body for update number `time`: `body(xp, p, g, *state arrays, *scratch)`, all flat, in place.

        The body may write to anything but `g`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how to update; define kernel(self, lr, time)")


class Sgd(Rule):
    """p <- p - lr v with v = g, or the momentum buffer (Sutskever et al. 2013, in PyTorch's form).

    v <- momentum v + (1 - dampening) g (v = g at the first step); Nesterov uses g + momentum v.

    >>> from ruda_optim import SgdConfig
    >>> SgdConfig(momentum=0.9).build().arrays
    ('velocity',)
    """

    scratch = 1

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.arrays = ("velocity",) if config.momentum else ()
        self.scratch = 2 if config.momentum and config.weight_decay else 1

    def compiled(self, lr: float, time: int, arrays: list[Any]) -> bool:
        """Update by update.c, unless a subclass has a kernel of its own."""
        return type(self).kernel is Sgd.kernel and update("sgd", np, self.places(arrays), *self.constants(lr, time))

    def places(self, arrays: list[Any]) -> list[Any]:
        """The arrays that update.c takes: None for one that there is not."""
        return arrays if self.config.momentum else [*arrays, None]

    def constants(self, lr: float, time: int) -> tuple[np.ndarray, int]:
        """The numbers and flags of update `time` as update.c takes them."""
        c = self.config
        return np.array([lr, c.weight_decay, c.momentum, 1.0 if time == 1 else 1.0 - c.dampening]), int(c.nesterov)

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        c = self.config
        decay, momentum = c.weight_decay, c.momentum
        keep = 1.0 if time == 1 else 1.0 - c.dampening

        def body(xp: Any, p: Any, g: Any, *rest: Any) -> None:
            t = rest[-1]
            if decay:
                g = add_decay(xp, decay, p, g, rest[-2] if momentum else t)
            if momentum:
                v = rest[0]
                xp.multiply(v, momentum, out=v)
                xp.add(v, g if keep == 1.0 else xp.multiply(g, keep, out=t), out=v)
                g = xp.add(g, xp.multiply(v, momentum, out=t), out=t) if c.nesterov else v
            xp.multiply(g, lr, out=t)
            xp.subtract(p, t, out=p)

        return body


def add_decay(xp: Any, decay: float, p: Any, g: Any, out: Any) -> Any:
    """Return g + decay p in `out`: coupled weight decay, the gradient of decay/2 |p|^2."""
    return xp.add(xp.multiply(p, decay, out=out), g, out=out)


class Adam(Rule):
    """p <- p - lr m' / (sqrt(v') + eps) with bias-corrected moments m', v' (Kingma and Ba 2015, algorithm 1).

    `weight_decay` is coupled (L2: g <- g + weight_decay p); `amsgrad` keeps the maximum of the uncorrected v
    (Reddi et al. 2018, in PyTorch's form).

    >>> from ruda_optim import AdamConfig
    >>> AdamConfig(amsgrad=True).build().arrays
    ('exp_avg', 'exp_avg_sq', 'max_exp_avg_sq')
    """

    decoupled = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.arrays = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if config.amsgrad else ()))
        self.scratch = 2 if config.weight_decay and not self.decoupled else 1

    def _numbers(self, lr: float, time: int) -> tuple[float, float, float, float, bool]:
        """What the bias corrections, the decays and their kind come to: rate, floor, shrink, coupled, cautious."""
        c = self.config
        root = math.sqrt(1.0 - c.betas[1] ** time)
        shrink = 1.0 - lr * c.weight_decay if self.decoupled and c.weight_decay else 1.0
        cautious = self.decoupled and c.cautious_weight_decay and shrink != 1.0
        coupled = 0.0 if self.decoupled else c.weight_decay
        return lr * root / (1.0 - c.betas[0] ** time), c.eps * root, shrink, coupled, cautious

    def compiled(self, lr: float, time: int, arrays: list[Any]) -> bool:
        """Update by update.c, unless a subclass has a kernel of its own."""
        return type(self).kernel is Adam.kernel and self.at_once(lr, time, arrays)

    def at_once(self, lr: float, time: int, arrays: list[Any]) -> bool:
        """Update by update.c, if it is there."""
        return update("adam", np, self.places(arrays), *self.constants(lr, time))

    def places(self, arrays: list[Any]) -> list[Any]:
        """The arrays that update.c takes: None for one that there is not."""
        return arrays if self.config.amsgrad else [*arrays, None]

    def constants(self, lr: float, time: int) -> tuple[np.ndarray, int]:
        """The numbers and flags of update `time` as update.c takes them."""
        c, (rate, floor, shrink, coupled, cautious) = self.config, self._numbers(lr, time)
        b1, b2 = c.betas
        return np.array([b1, 1.0 - b1, b2, 1.0 - b2, floor, rate, shrink, coupled]), int(c.amsgrad) + 2 * int(cautious)

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        c, (rate, floor, shrink, coupled, cautious) = self.config, self._numbers(lr, time)
        b1, b2 = c.betas

        def body(xp: Any, p: Any, g: Any, m: Any, v: Any, *rest: Any) -> None:
            t = rest[-1]
            if coupled:
                g = add_decay(xp, coupled, p, g, rest[-2])
            xp.multiply(m, b1, out=m)  # passes that write where they read are the cheap ones
            xp.add(m, xp.multiply(g, 1.0 - b1, out=t), out=m)
            xp.multiply(v, b2, out=v)
            xp.multiply(g, g, out=t)
            xp.add(v, xp.multiply(t, 1.0 - b2, out=t), out=v)
            if c.amsgrad:
                v = xp.maximum(rest[0], v, out=rest[0])
            xp.sqrt(v, out=t)
            xp.add(t, floor, out=t)
            xp.divide(m, t, out=t)
            xp.multiply(t, rate, out=t)
            if cautious:
                xp.multiply(p, xp.where((p >= 0) == (m >= 0), p.dtype.type(shrink), p.dtype.type(1.0)), out=p)
            elif shrink != 1.0:
                xp.multiply(p, shrink, out=p)
            xp.subtract(p, t, out=p)

        return body


class AdamW(Adam):
    """Adam with decoupled decay: p <- p (1 - lr weight_decay) - lr m' / (sqrt(v') + eps) (Loshchilov and Hutter 2019).

    `cautious_weight_decay` decays only where p and the new m have the same sign, zero counting as positive.

    >>> from ruda_optim import AdamWConfig
    >>> AdamWConfig().build().describe()["weight_decay"]
    0.01
    """

    decoupled = True
