"""L-BFGS: a quasi-Newton method over all parameters at once, for problems without noise."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np

from ruda_nn import Config, Module, RecordMismatch
from ruda_nn.config import is_number, is_whole
from ruda_nn.records import broken, pack, unpack
from ruda_tensor import Cpu
from ruda_tensor.dtypes import FLOAT32, FLOAT64, FLOATING

from .gradients import GradientsParams
from .line_search import Trial, strong_wolfe
from .optimizer import check_config
from .rates import check_lr


class LBFGSConfig(Config):
    """L-BFGS: `max_iter` (20) iterations a step, `history_size` (100) pairs, `line_search` None or "strong_wolfe".

    A step also ends where the largest gradient is at most `tolerance_grad` (1e-7), where parameters or loss change by
    less than `tolerance_change` (1e-9), or after `max_eval` (max_iter * 5 // 4) calls of the closure. Without a line
    search every step has length lr, which may overshoot.

    >>> LBFGSConfig(max_iter=50, line_search="strong_wolfe").init()
    LBFGS(0 iterations)
    """

    _: KW_ONLY
    max_iter: int = 20
    history_size: int = 100
    tolerance_grad: float = 1e-7
    tolerance_change: float = 1e-9
    max_eval: int | None = None
    line_search: str | None = None

    def init(self) -> LBFGS:
        """Return the optimizer, with no history yet."""
        self.require_count("max_iter", low=0)
        self.require_count("history_size")
        self.require_number("tolerance_grad")
        self.require_number("tolerance_change")
        limit = self.max_eval
        self.require(limit is None or (is_whole(limit) and limit >= 1), "max_eval", "an integer >= 1, or None")
        self.require(self.line_search in (None, "strong_wolfe"), "line_search", "None or 'strong_wolfe'")
        return LBFGS(self)


@dataclass(frozen=True)
class History:
    """What L-BFGS knows from earlier iterations; arrays are flat, over the parameters `ids` in order.

    `pairs` holds (s, y): how the parameters moved, and how the gradient changed. `scale` is y.s / y.y of the newest.
    """

    ids: tuple[str, ...]
    iterations: int = 0
    direction: Any = None
    t: float = 0.0
    gradient: Any = None
    scale: float = 1.0
    pairs: tuple[tuple[Any, Any], ...] = field(default=())


class LBFGS:
    """Limited-memory BFGS (Liu and Nocedal 1989) over all trained parameters; half precision is computed in float32.

    `step` takes a closure that computes loss and gradients of the model that it is given, and calls it several times.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Module, Param
    >>> class Point(Module):
    ...     x: Param
    >>> def closure(point):
    ...     loss = (point.x - 3.0).square().sum()
    ...     return loss.item(), GradientsParams.from_grads(loss.backward(), point)
    >>> point, loss = LBFGSConfig().init().step(1.0, Point(Param(rt.tensor([0.0], device=rt.Cpu()))), closure)
    >>> round(point.x.item(), 4)
    3.0
    """

    def __init__(self, config: LBFGSConfig) -> None:
        self.config = config
        self.history: History | None = None

    def step(self, lr: float, model: Module, closure: Callable[[Any], tuple[Any, GradientsParams]]) -> tuple[Any, float]:
        """Return the new model and the loss there; consumes the old one.

        `closure(model)` returns (loss, GradientsParams) of its argument; the old model is not to be used in it. The
        returned point is never worse than the best one seen where there is a line search. Parameters without a
        gradient count as zero gradients. Where no parameter is trained, the very model comes back, with the loss of one call.
        Errors: ValueError where the loss at the given model is not finite, or the parameters are not those of earlier
        steps. Whatever is raised, model and history are as before.
        """
        lr = check_lr(lr)
        if not isinstance(model, Module) or not callable(closure):
            raise TypeError(
                f"step: expected a Module and a closure, got {type(model).__name__} and {type(closure).__name__}; "
                "optimizer.step(lr, model, closure) with closure(model) -> (loss, gradients)"
            )
        objective = Objective(model, closure)
        if not objective.ids:
            # The closure takes a backward, so what it gets is a thawed twin: frozen, its loss would depend on no leaf.
            objective.template = model.map(lambda p: p.require_grad() if p.dtype in FLOATING else p)
            return model, objective.start()[1]
        history = History(objective.ids) if self.history is None else self.history
        if history.ids != objective.ids:
            raise ValueError("step: the trained parameters are not those of earlier steps; make a new optimizer: config.init()")
        old = {id(p): (p, p._data) for _, p in model.named_params() if p.trainable}
        for p, _ in old.values():
            p.consume()  # so that a closure over the old model is noticed
        try:
            with np.errstate(all="ignore"), objective.device.guard():
                self.history, new, loss = self._iterate(lr, history, objective)
        except BaseException:
            for p, data in old.values():
                p._data = data
            raise
        return new, loss

    def _iterate(self, lr: float, h: History, objective: Objective) -> tuple[History, Any, float]:
        c = self.config
        limit = c.max_iter * 5 // 4 if c.max_eval is None else c.max_eval
        x, loss, g = objective.start()
        if not math.isfinite(loss) or not math.isfinite(objective.largest(g)):
            raise ValueError(f"step: the loss at the given model is {loss}, or its gradient is not finite")
        for _ in range(c.max_iter if limit > 1 else 0):
            if objective.largest(g) <= c.tolerance_grad or objective.calls >= limit:
                break
            h = self._turn(h, g, objective)
            first = h.iterations == 1
            t = lr * min(1.0, 1.0 / objective.length(g)) if first else lr
            h = replace(h, t=t)
            slope = objective.dot(g, h.direction)
            if slope > -c.tolerance_change:
                break
            found = self._search(objective, x, Trial(0.0, loss, slope, g), h.direction, t, limit - objective.calls)
            moved, before = found.t * objective.largest(h.direction), loss
            if found.t == 0.0:
                return History(objective.ids), objective.model_at(x), loss  # this history leads nowhere: forget it
            x, loss, g, h = x + found.t * h.direction, found.value, found.gradient, replace(h, t=found.t)
            if moved <= c.tolerance_change or abs(loss - before) < c.tolerance_change:
                break
        return h, objective.model_at(x), loss

    def _search(self, objective: Objective, x: Any, here: Trial, direction: Any, t: float, budget: int) -> Trial:
        """Return where to go along `direction` from `x`; `here` where no finite, lower point was found."""
        if self.config.line_search is None:
            found = objective.along(x, direction, t)
            return found if found.finite() else here
        reach = objective.largest(direction)
        smallest = self.config.tolerance_change / reach if reach else 0.0
        return strong_wolfe(lambda t: objective.along(x, direction, t), here, t, budget, smallest)

    def _turn(self, h: History, g: Any, objective: Objective) -> History:
        """Take the last move into the history, and return it with the direction for the gradient `g`."""
        dot = objective.dot
        if h.iterations == 0:
            return replace(h, iterations=1, direction=-g, gradient=g)
        s, y = h.t * h.direction, g - h.gradient
        curvature, pairs, scale = dot(y, s), h.pairs, h.scale
        if curvature > 1e-10:
            pairs = (*pairs, (s, y))[-self.config.history_size :]
            scale = curvature / dot(y, y)
        q, weights = -g, []
        for s, y in reversed(pairs):
            weights.append(dot(s, q) / dot(y, s))
            q = q - weights[-1] * y
        q = q * scale
        for (s, y), weight in zip(pairs, reversed(weights)):
            q = q + (weight - dot(y, q) / dot(y, s)) * s
        return replace(h, iterations=h.iterations + 1, direction=q, gradient=g, pairs=pairs, scale=scale)

    def to_record(self, model: Module | None = None) -> dict[str, Any]:
        """Return the configuration and the history as plain data; the model is for optimizers of other kinds."""
        h = self.history
        if h is None:
            return {"config": {"rule": "LBFGS", **self.config.describe()}, "history": None}
        recorded: dict[str, Any] = {"ids": h.ids, "iterations": h.iterations, "t": h.t, "scale": h.scale}
        for name in ("direction", "gradient"):
            recorded[name] = None if getattr(h, name) is None else pack(getattr(h, name))
        recorded["pairs"] = [(pack(s), pack(y)) for s, y in h.pairs]
        return {"config": {"rule": "LBFGS", **self.config.describe()}, "history": recorded}

    def load_record(self, record: dict[str, Any], model: Module) -> None:
        """Take the history of a record, placed beside the parameters of `model`; a rejected record changes nothing.

        Errors: RecordMismatch where the configuration or the parameters differ.
        """
        check_config(record, {"rule": "LBFGS", **self.config.describe()})
        if set(record) != {"config", "history"}:
            broken("its optimizer should hold config and history")
        self.history = None if record["history"] is None else _unpack_history(record["history"], Objective(model))

    def __repr__(self) -> str:
        return f"LBFGS({0 if self.history is None else self.history.iterations} iterations)"


def _unpack_history(recorded: Any, objective: Objective) -> History:
    names = {"ids", "iterations", "t", "scale", "direction", "gradient", "pairs"}
    if not isinstance(recorded, dict) or set(recorded) != names or not isinstance(recorded["pairs"], list):
        broken(f"its history should hold {', '.join(sorted(names))}")
    if recorded["ids"] != objective.ids:
        raise RecordMismatch(
            "the record's history is over other parameters (record | here): "
            f"{recorded['ids']!r} | {objective.ids}; their order counts too"
        )
    if not is_whole(recorded["iterations"]) or not all(is_number(recorded[name]) for name in ("t", "scale")):
        broken("iterations, t or scale of its history is not a number")

    def flat(entry: Any) -> Any:
        array = unpack(entry, "the history")
        if array.shape != (objective.size,):
            raise RecordMismatch(f"the history has shape (record | here): {array.shape} | {(objective.size,)}")
        with objective.device.guard():
            return objective.xp.array(array.astype(objective.dtype, copy=False))

    ends = [None if recorded[name] is None else flat(recorded[name]) for name in ("direction", "gradient")]
    pairs = recorded["pairs"]
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        broken("its history should be pairs")
    if (recorded["iterations"] == 0) != (ends[0] is None or ends[1] is None):
        broken("its history has iterations and no direction, or the other way round")
    return History(
        objective.ids, int(recorded["iterations"]), ends[0], float(recorded["t"]), ends[1], float(recorded["scale"]),
        tuple((flat(s), flat(y)) for s, y in pairs),
    )


class Objective:
    """A model's trained parameters as one flat vector, in declaration order, and the closure as a function of it."""

    def __init__(self, model: Module, closure: Callable | None = None) -> None:
        self.params = [p for p in model.params() if p.trainable]
        devices = {p.device for p in self.params}
        if len(devices) > 1:
            raise ValueError(f"L-BFGS: the parameters are on {', '.join(map(repr, devices))}; move the model to one device")
        self.device: Any = self.params[0].device if self.params else Cpu()
        self.xp = self.device.xp
        self.ids = tuple(p.id for p in self.params)
        self.dtype = FLOAT64 if any(p.dtype == FLOAT64 for p in self.params) else FLOAT32
        self.shapes, self.dtypes = [p.shape for p in self.params], [p.dtype for p in self.params]
        ends = np.cumsum([p.size for p in self.params]).tolist()
        self.slices = [slice(a, b) for a, b in zip([0, *ends], ends)]
        self.size: int = sum(p.size for p in self.params)
        self.closure, self.calls = closure, 0
        with self.device.guard():
            parts = [p._data.astype(self.dtype).reshape(-1) for p in self.params]
            self.x = self.xp.concatenate(parts) if parts else self.xp.zeros(0, self.dtype)
        self.template = model.map(lambda p: p.like(p._data) if p.trainable else p)

    def model_at(self, x: Any) -> Any:
        """Return the model with the parameters of the flat vector `x`, each in its own dtype."""
        arrays = {
            key: x[part].reshape(shape).astype(dtype, copy=False)
            for key, part, shape, dtype in zip(self.ids, self.slices, self.shapes, self.dtypes)
        }
        return self.template.map(lambda p: p.like(arrays[p.id]) if p.id in arrays and p.trainable else p)

    def start(self) -> tuple[Any, float, Any]:
        """Return the vector, loss and gradient where the model stands."""
        loss, g = self.at(self.x)
        return self.x, loss, g

    def at(self, x: Any) -> tuple[float, Any]:
        """Return loss and flat gradient at `x`."""
        self.calls += 1
        result = self.closure(self.model_at(x))  # type: ignore[misc]
        if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], GradientsParams):
            raise TypeError(
                "step: the closure should return (loss, gradients); "
                "return loss.item(), GradientsParams.from_grads(loss.backward(), model)"
            )
        loss, gradients = result
        g = self.xp.zeros(self.size, self.dtype)
        for key, part, shape in zip(self.ids, self.slices, self.shapes):
            found = gradients.get(key)
            if found is not None:
                if found.shape != shape or found.device != self.device:
                    raise ValueError(f"step: a gradient is {found.shape} on {found.device}, its parameter {shape}")
                g[part] = found._data.reshape(-1).astype(self.dtype, copy=False)
        return float(loss), g

    def along(self, x: Any, direction: Any, t: float) -> Trial:
        """Return the trial at x + t direction."""
        value, g = self.at(x + t * direction)
        return Trial(t, value, self.dot(g, direction), g)

    def dot(self, a: Any, b: Any) -> float:
        """Return a . b, summed in float64: squares of float32 numbers stay in range."""
        return float(self.xp.sum(self.xp.multiply(a, b, dtype=FLOAT64)))

    def length(self, a: Any) -> float:
        """Return the sum of absolute values."""
        return float(self.xp.sum(self.xp.abs(a), dtype=FLOAT64))

    def largest(self, a: Any) -> float:
        """Return the largest absolute value (0 for no numbers at all)."""
        return float(self.xp.max(self.xp.abs(a))) if self.size else 0.0


