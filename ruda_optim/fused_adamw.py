"""AdamW that looks at all gradients before it changes anything: unscaling, global-norm clipping, skipping of bad steps.

`AdamWConfig(fused_step=True, max_grad_norm=1.0).init()` makes one. A step reads the gradients once for their
statistics (`gradient_stats`), brings 12 bytes to the host, decides for the whole model, and then updates each
parameter in one pass that unscales and clips on the way. The gradients themselves stay as they are.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ruda_nn import Module, Param, RecordMismatch
from ruda_nn.config import is_number
from ruda_nn.records import broken
from ruda_tensor.dtypes import BY_NAME, FLOAT32, FLOAT64, HALF
from ruda_tensor.recording import refuse_while_capturing
from ruda_tensor.tensor import Tensor

from .gradient_stats import measure
from .gradients import GradientsParams
from .groups import ParamGroup, changed
from .master import check_scale
from .optimizer import Optimizer, check_config
from .rates import check_lr
from .rules import AdamW
from .together import Parts, unscaled

OPTIONS = ("fused_step", "max_grad_norm", "hierarchical_stats")


def check_options(config: Any) -> None:
    """Refuse wrong values of an AdamW configuration's step options, and options that need or exclude each other."""
    for field in ("fused_step", "hierarchical_stats"):
        if not isinstance(getattr(config, field), bool):
            raise TypeError(f"{type(config).__name__}: {field}={getattr(config, field)!r} is not allowed; give True or False")
    norm, fused = config.max_grad_norm, config.fused_step
    config.require(fused or not config.hierarchical_stats, "hierarchical_stats", "False, or fused_step=True as well")
    config.require(fused or norm is None, "max_grad_norm", "None, or fused_step=True as well")
    if not fused:
        return
    config.require(norm is None or is_norm(norm), "max_grad_norm", "None or a number >= 0 that is finite in float32")
    config.require(not config.amsgrad, "amsgrad", "False with fused_step")
    config.require(config.grad_clipping is None, "grad_clipping", "None with fused_step, which clips by max_grad_norm")
    below = all(np.float32(b) < 1.0 for b in config.betas)
    config.require(below, "betas", "numbers that are below 1 as float32 too")


def is_norm(x: Any) -> bool:
    """Return whether a setting is a number >= 0 that is finite in float32."""
    with np.errstate(all="ignore"):
        return is_number(x) and x >= 0.0 and math.isfinite(np.float32(x))


def describe_options(settings: dict[str, Any]) -> dict[str, Any]:
    """Return an AdamW configuration's settings with its step options apart; none of them where fused_step is off.

    So the record of a plain AdamW is the same as before there were step options, and reads as "off".
    """
    options = {name: settings[name] for name in OPTIONS if name in settings}
    rest = {name: value for name, value in settings.items() if name not in OPTIONS}
    if not options.get("fused_step"):
        return rest
    hierarchical = options.pop("hierarchical_stats")
    version = {"version": 2, "hierarchical_stats": True} if hierarchical else {"version": 1}
    return {**rest, "step_options": {**version, **options}}


class _Scaled(AdamW):
    """The rule of AdamW, for gradients that are still to be multiplied by `factors`, which the optimizer sets."""

    def __init__(self, config: Any, factors: list[float]) -> None:
        super().__init__(config)
        self.factors, self.scratch = factors, 2

    def compiled(self, lr: float, time: int, arrays: list[Any]) -> bool:
        p, g, *states = arrays
        for factor in self.factors:
            g = g if factor == 1.0 else np.multiply(g, factor)
        return self.at_once(lr, time, [p, g, *states])

    def kernel(self, lr: float, time: int) -> Callable[..., None]:
        plain, factors = super().kernel(lr, time), [f for f in self.factors if f != 1.0]

        def body(xp: Any, p: Any, g: Any, m: Any, v: Any, product: Any, t: Any) -> None:
            for factor in factors:
                g = xp.multiply(g, factor, out=product)
            plain(xp, p, g, m, v, t)

        return body


class FusedAdamWRule:
    """What `FusedAdamW` does to one parameter: AdamW in float32, on a master copy where the parameter is stored in half.

    >>> from ruda_optim import AdamWConfig
    >>> AdamWConfig(fused_step=True, max_grad_norm=1.0).init().rule.describe()["step_options"]
    {'version': 1, 'fused_step': True, 'max_grad_norm': 1.0}
    """

    elementwise = True

    def __init__(self, config: Any, factors: list[float]) -> None:
        self.config, self.inner = config, _Scaled(config, factors)

    def global_limit(self) -> None:
        """None: the optimizer clips the global norm by `max_grad_norm`."""
        return None

    def with_settings(self, settings: dict[str, Any]) -> FusedAdamWRule:
        """Return the rule with other settings, as a parameter group asks for; step options hold for the whole model."""
        fixed = [name for name in OPTIONS if name in settings]
        if fixed:
            raise ValueError(f"a group cannot change {fixed[0]}, which is one for the whole step; set it in AdamWConfig(...)")
        config = changed(self.config, settings)
        config.check()
        return FusedAdamWRule(config, self.inner.factors)

    def describe(self) -> dict[str, Any]:
        """The configuration as plain data, which a restore compares."""
        return {"rule": "AdamW", **self.config.describe()}

    def check(self, lr: float, shape: tuple[int, ...], dtype: np.dtype, grad_dtype: np.dtype) -> None:
        """Refuse float64, and a decay that is not finite in float32."""
        if FLOAT64 in (dtype, grad_dtype):
            raise TypeError(
                f"AdamW(fused_step=True) computes in float32, and a parameter is {dtype} with a gradient of {grad_dtype}; "
                "leave fused_step out for float64"
            )
        if not lr * self.config.weight_decay <= float(np.finfo(np.float32).max):
            raise ValueError(f"step: lr * weight_decay = {lr} * {self.config.weight_decay} is not finite in float32")

    def start(self, xp: Any, p: Any) -> dict[str, Any]:
        """The state of a parameter before its first update, for `p` as it is stored."""
        master = {"master_copy": p.astype(FLOAT32)} if p.dtype in HALF else {}
        return {"param_dtype": str(p.dtype), **master, "inner": self.inner.start(xp, p)}

    def counter(self, state: dict[str, Any]) -> dict[str, Any]:
        """The part of a state whose `time` says how often its parameter was updated."""
        return self.inner.counter(state["inner"])

    def parts(self) -> Parts | None:
        """How the rule comes apart for the kernel that updates many parameters in one launch; None where it does not."""
        factors = unscaled(*self.inner.factors)
        return None if factors is None else Parts(self.inner, "inner", "master_copy", *factors)

    def step(self, xp: Any, lr: float, p: Any, g: Any, state: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Update a parameter, or its master, in float32 and return it in the dtype of `p`."""
        if state is None:
            state = self.start(xp, p)
        wide, state["inner"] = self.inner.step(xp, lr, state.get("master_copy", p), g, state["inner"])
        if "master_copy" in state:
            state["master_copy"] = wide
        return wide.astype(p.dtype, copy=False), state

    def __repr__(self) -> str:
        return "AdamW"


class FusedAdamW(Optimizer):
    """AdamW with a look at all gradients first: unscales them, clips their global norm, skips a step that is not finite.

    Made by `AdamWConfig(fused_step=True, max_grad_norm=None, hierarchical_stats=False).init()`; parameters are float32,
    or float16 and bfloat16 with float32 masters; moments are float32. With s the loss scale, u = g / s in float32 and
    N the Euclidean norm of all u of the model, AdamW takes c u with c = min(1, max_grad_norm / (N + 1e-6)), c = 1
    where `max_grad_norm` is None. `max_grad_norm=0` makes every gradient zero and still decays and counts.

    Where any g or u is inf or NaN, the *whole* step is skipped: `step` returns the very model it was given, not consumed,
    and no weight, moment, count or decay has changed; a first step that is skipped makes no state. Gradients are only
    read. One report of 12 bytes comes to the host in each step (one from each device). `hierarchical_stats` adds the
    squares in another order (`statistics_plan`) and changes nothing else.

    After a step, `last_step_had_grad` and `last_step_skipped` say what happened, and where it clips `last_grad_norm`
    and `last_clip_coef` are N and c (None where the step was skipped). When a step fails half-way, later steps and
    records raise until a record is loaded.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> from ruda_optim import AdamWConfig, GradientsParams
    >>> model = LinearConfig(2, 1).init(Autodiff(rt.Cpu()))
    >>> optimizer = AdamWConfig(fused_step=True, max_grad_norm=1.0).init()
    >>> loss = (model(rt.ones((4, 2), device=rt.Cpu())) - 9.0).square().mean() * 1024.0
    >>> gradients = GradientsParams.from_grads(loss.backward(), model)
    >>> model = optimizer.step(1e-3, model, gradients, loss_scale=1024.0)
    >>> optimizer.last_step_skipped, optimizer.last_grad_norm > 1.0
    (False, True)
    """

    last_step_skipped = last_step_had_grad = False
    last_grad_norm: float | None = None
    last_clip_coef: float | None = None

    def __init__(self, config: Any, groups: Iterable[ParamGroup] = ()) -> None:
        self._factors_of_step = [1.0, 1.0]  # of unscaling and clipping, apart: their product could underflow
        super().__init__(FusedAdamWRule(config, self._factors_of_step), groups)
        self.config = config

    def step(self, lr: float, model: Module, gradients: GradientsParams, *, loss_scale: float = 1.0) -> Any:
        """Return the updated model, or `model` itself where the step is skipped.

        `loss_scale` is what the loss was multiplied by; see `GradScaler`.
        Errors: as `Optimizer.step`; ValueError for a scale that is not > 0 and finite in float32, and its reciprocal;
        TypeError for float64, and for a parameter whose dtype has changed. Nothing is changed then.
        """
        return self._step(lr, model, gradients, None, loss_scale)[0]

    def _step(
        self, lr: float, model: Any, gradients: Any, wanted: set[str] | None, loss_scale: float = 1.0
    ) -> tuple[Any, dict[str, Tensor]]:
        lr, scale, limit = check_lr(lr), check_scale(loss_scale), self.config.max_grad_norm
        self._check_kinds(model, gradients)
        refuse_while_capturing(
            "AdamW(fused_step=True), which decides on the host whether to update,", "leave fused_step out, or step after replay"
        )
        named = model.named_params()
        places, chosen = self._assigned(lr, named, gradients, wanted)
        self._check_dtypes(named, chosen)
        inverse = float(np.float32(1.0) / np.float32(scale))
        try:
            hierarchical = self.config.hierarchical_stats
            stats = measure(chosen.values(), inverse, norm=limit is not None, hierarchical=hierarchical)
            clip = stats.clip(limit)
            if stats.all_finite:
                self._factors_of_step[:] = inverse, clip
                model = self._moved(lr, model, places, chosen)
        except BaseException:
            self._failed = True
            raise
        self.last_step_skipped, self.last_step_had_grad = not stats.all_finite, bool(chosen)
        known = bool(chosen) and limit is not None and stats.all_finite
        self.last_grad_norm, self.last_clip_coef = (stats.norm, clip) if known else (None, None)
        return model, chosen if stats.all_finite else {}

    def _check_dtypes(self, named: list[tuple[str, Param]], chosen: dict[str, Tensor]) -> None:
        for path, p in named:
            state = self.states.get(p.id) if p.id in chosen else None
            if state is not None and BY_NAME[state["param_dtype"]] != p.dtype:
                raise TypeError(
                    f"step: {path} is stored as {p.dtype} now and was as {state['param_dtype']}, with or without a master copy; "
                    "convert the model before the first step, or begin with a new optimizer"
                )

    def load_record(self, record: dict[str, Any], model: Module) -> None:
        """Take the states of a record, in float32 as they were recorded; a rejected record changes nothing.

        The step options are part of the configuration that is compared: a record without them is one of a plain AdamW
        (fused_step off, no clipping), and goes into `AdamWConfig().init()`.
        Errors: RecordMismatch where the configuration or a state differs; RecorderError for options of an unknown
        version or name.
        """
        if isinstance(record, dict):
            _check_recorded_options(record.get("config"))
            check_config(record, self._grouping.describe())
            _check_recorded_dtypes(record.get("states"), model)
        super().load_record(record, model)


def _check_recorded_options(config: Any) -> None:
    """Refuse step options that this version does not know, before they are compared."""
    options = config.get("step_options") if isinstance(config, dict) else None
    if options is None:
        return
    known = {1: {"version", "fused_step", "max_grad_norm"}}
    known[2] = known[1] | {"hierarchical_stats"}
    version = options.get("version") if isinstance(options, dict) else None
    if type(version) is not int or version not in known:
        broken(f"its step options have version {version!r}; this ruda reads 1 and 2")
    if set(options) != known[version]:
        broken(f"its step options of version {version} hold {sorted(options)}, and should hold {sorted(known[version])}")


def _check_recorded_dtypes(states: Any, model: Module) -> None:
    """Refuse the state of a parameter that was stored in another dtype: it has a master copy, or has none."""
    dtypes = {p.id: str(p.dtype) for p in model.params()}
    for key, state in states.items() if isinstance(states, dict) else ():
        theirs = state.get("param_dtype") if isinstance(state, dict) else None
        if key in dtypes and theirs != dtypes[key]:
            raise RecordMismatch(f"the parameter {key} is stored as (record | here): {theirs} | {dtypes[key]}")
