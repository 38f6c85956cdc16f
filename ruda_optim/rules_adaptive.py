"""More elementwise rules with a learning rate per number: AdaGrad, RMSprop, Adan."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .rules import Rule, add_decay


class AdaGrad(Rule):
    """p <- p - lr / (1 + (t - 1) lr_decay) g / (sqrt(sum of g^2) + eps) (Duchi et al. 2011, in PyTorch's form).

    >>> from ruda_optim import AdaGradConfig
    >>> AdaGradConfig().build().arrays
    ('sum',)
    """

    arrays = ("sum",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.scratch = 2 if config.weight_decay else 1

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        c = self.config
        rate = lr / (1.0 + (time - 1) * c.lr_decay)

        def body(xp: Any, p: Any, g: Any, total: Any, *rest: Any) -> None:
            t = rest[-1]
            if c.weight_decay:
                g = add_decay(xp, c.weight_decay, p, g, rest[-2])
            xp.multiply(g, g, out=t)
            xp.add(total, t, out=total)
            xp.sqrt(total, out=t)
            xp.add(t, c.eps, out=t)
            xp.divide(g, t, out=t)
            xp.multiply(t, rate, out=t)
            xp.subtract(p, t, out=p)

        return body


class RmsProp(Rule):
    """p <- p - lr u with u = g / (sqrt(v) + eps) and v the moving average of g^2 (Tieleman and Hinton 2012).

    `centered` takes the square of the average gradient off v, which then estimates the variance (Graves 2013); what
    rounding leaves below zero counts as zero. `momentum` moves by b <- momentum b + u instead of u.

    >>> from ruda_optim import RmsPropConfig
    >>> RmsPropConfig(centered=True, momentum=0.9).build().arrays
    ('square_avg', 'grad_avg', 'buffer')
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.arrays = ("square_avg", *(("grad_avg",) if config.centered else ()), *(("buffer",) if config.momentum else ()))
        self.scratch = 2 if config.weight_decay else 1

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        c = self.config

        def body(xp: Any, p: Any, g: Any, v: Any, *rest: Any) -> None:
            t = rest[-1]
            if c.weight_decay:
                g = add_decay(xp, c.weight_decay, p, g, rest[-2])
            xp.multiply(g, g, out=t)
            average(xp, v, t, c.alpha, t)
            if c.centered:
                mean = rest[0]
                average(xp, mean, g, c.alpha, t)
                xp.multiply(mean, mean, out=t)
                xp.subtract(v, t, out=t)
                xp.maximum(t, 0.0, out=t)
                xp.sqrt(t, out=t)
            else:
                xp.sqrt(v, out=t)
            xp.add(t, c.eps, out=t)
            xp.divide(g, t, out=t)
            if c.momentum:
                buffer = rest[1 if c.centered else 0]
                xp.multiply(buffer, c.momentum, out=buffer)
                xp.add(buffer, t, out=buffer)
                xp.multiply(buffer, lr, out=t)
            else:
                xp.multiply(t, lr, out=t)
            xp.subtract(p, t, out=p)

        return body


def average(xp: Any, mean: Any, x: Any, beta: float, t: Any) -> None:
    """mean <- beta mean + (1 - beta) x in place, with `t` as scratch; `x` may be `t`."""
    xp.multiply(x, 1.0 - beta, out=t)
    xp.multiply(mean, beta, out=mean)
    xp.add(mean, t, out=mean)


class Adan(Rule):
    """Adaptive Nesterov momentum (Xie et al. 2022, algorithm 1), with d = g - (the gradient before), 0 at first.

    m, e, n are moving averages of g, d and (g + beta2 d)^2, corrected for their start at zero;
    u = (m' + beta2 e') / (sqrt(n') + eps). Decay is proximal, p <- (p - lr u) / (1 + lr weight_decay), or with
    `no_prox` decoupled, p <- p (1 - lr weight_decay) - lr u.

    >>> from ruda_optim import AdanConfig
    >>> AdanConfig().build().arrays
    ('exp_avg', 'exp_avg_sq', 'exp_avg_diff', 'previous_grad')
    """

    arrays = ("exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad")
    scratch = 2

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        c = self.config
        b1, b2, b3 = c.betas
        c1, c2, root = 1.0 - b1**time, 1.0 - b2**time, math.sqrt(1.0 - b3**time)
        shrink = 1.0 - lr * c.weight_decay if c.no_prox else 1.0 / (1.0 + lr * c.weight_decay)

        def body(xp: Any, p: Any, g: Any, m: Any, n: Any, e: Any, before: Any, d: Any, t: Any) -> None:
            if time == 1:
                d[...] = 0.0
            else:
                xp.subtract(g, before, out=d)
            before[...] = g
            average(xp, m, g, b1, t)
            average(xp, e, d, b2, t)
            xp.multiply(d, b2, out=d)
            xp.add(d, g, out=d)
            xp.multiply(d, d, out=d)
            average(xp, n, d, b3, t)
            xp.sqrt(n, out=t)
            xp.divide(t, root, out=t)
            xp.add(t, c.eps, out=t)
            xp.multiply(e, b2 / c2, out=d)
            xp.divide(d, t, out=d)  # u in two parts, with one array of scratch less
            xp.divide(m, t, out=t)
            xp.multiply(t, 1.0 / c1, out=t)
            xp.add(t, d, out=t)
            xp.multiply(t, lr, out=t)
            if c.no_prox and shrink != 1.0:
                xp.multiply(p, shrink, out=p)
            xp.subtract(p, t, out=p)
            if not c.no_prox and shrink != 1.0:
                xp.multiply(p, shrink, out=p)

        return body
