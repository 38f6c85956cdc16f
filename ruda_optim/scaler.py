"""Dynamic loss scaling: small gradients are kept out of float16's zeros, and a step that overflowed is left out."""
from __future__ import annotations

from typing import Any

import numpy as np

from ruda_nn import Module
from ruda_nn.config import is_number, is_whole, require
from ruda_nn.records import broken, compare
from ruda_tensor.dtypes import FLOAT32
from ruda_tensor.recording import refuse_while_capturing
from ruda_tensor.tensor import Tensor

from .gradient_stats import measure, scaled_gradients
from .gradients import GradientsParams
from .lbfgs import LBFGS
from .master import check_scale
from .schedules import LrScheduler

VERSION = 1
READY, SCALED, STEPPED, FAILED = "ready", "scaled", "stepped", "failed"


class GradScaler:
    """Multiplies the loss by a scale that follows the gradients: halved after an overflow, doubled after a quiet while.

    One cycle is `scale(loss)` for each micro-batch, `step(...)`, `update()`. A step whose gradients hold an inf or a
    NaN is skipped as a whole, and `update()` multiplies the scale by `backoff_factor` (0.5), down to `min_scale`
    (2^-24); after `growth_interval` (2000) good steps in a row it multiplies by `growth_factor` (2), up to `max_scale`
    (2^24). So the scale and its reciprocal stay finite whatever happens. `init_scale` is 65536.

    The optimizer may be any with `step(lr, model, gradients)`, which is all but L-BFGS. One that takes `loss_scale` and says
    `last_step_skipped`, such as AdamW with `fused_step=True`, unscales by itself; for the others the scaler gives
    unscaled gradients in float32 (beside a model in half precision: `Fp32MasterOptimizer`).

    Errors: ValueError for settings outside their range, by name.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> from ruda_optim import AdamWConfig
    >>> model = LinearConfig(2, 1).init(Autodiff(rt.Cpu())).to_dtype(rt.float16)
    >>> optimizer, scaler = AdamWConfig(fused_step=True, max_grad_norm=1.0).init(), GradScaler(1024.0)
    >>> x = rt.ones((4, 2), dtype=rt.float16, device=rt.Cpu())
    >>> loss = scaler.scale(model(x).astype(rt.float32).square().mean())
    >>> gradients = GradientsParams.from_grads(loss.backward(), model)
    >>> model = scaler.step(optimizer, 1e-3, model, gradients)
    >>> scaler.update()
    >>> scaler.get_scale(), scaler.last_step_skipped
    (1024.0, False)
    """

    def __init__(
        self, init_scale: float = 65536.0, *, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, min_scale: float = 2.0**-24, max_scale: float = 2.0**24,
    ) -> None:
        for ok, name, value, allowed in (
            (_divides(min_scale), "min_scale", min_scale, "a number > 0 that is finite in float32, as 1 / it"),
            (_divides(max_scale), "max_scale", max_scale, "a number > 0 that is finite in float32, as 1 / it"),
            (is_number(growth_factor) and growth_factor > 1.0, "growth_factor", growth_factor, "a number > 1"),
            (is_number(backoff_factor) and 0.0 < backoff_factor < 1.0, "backoff_factor", backoff_factor, "a number in (0, 1)"),
            (is_whole(growth_interval) and growth_interval >= 1, "growth_interval", growth_interval, "an integer >= 1"),
        ):
            require(ok, "GradScaler", name, value, allowed)
        within = is_number(init_scale) and min_scale <= init_scale <= max_scale
        require(within, "GradScaler", "init_scale", init_scale, f"a number in [{min_scale:g}, {max_scale:g}], min to max_scale")
        self.growth_factor, self.backoff_factor = float(growth_factor), float(backoff_factor)
        self.growth_interval = int(growth_interval)
        self.min_scale, self.max_scale = float(min_scale), float(max_scale)
        self.last_step_skipped = False
        self._scale, self._good, self._state = float(init_scale), 0, READY

    def get_scale(self) -> float:
        """Return the scale that losses are multiplied by."""
        return self._scale

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale; several times in one cycle, once for each micro-batch.

        Errors: RuntimeError between `step` and `update`; TypeError and ValueError unless the loss is one float32 number.
        """
        refuse_while_capturing("GradScaler, whose scale is a number of the host", "train in bfloat16, which needs none")
        self._expect("scale", (READY, SCALED), "call scaler.update() after scaler.step(...), then scale the next loss")
        if not isinstance(loss, Tensor) or loss.dtype != FLOAT32:
            kind = str(loss.dtype) if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"scale: a loss is a float32 tensor, got {kind}; scaler.scale(loss.astype(rt.float32))")
        if loss.size != 1:
            raise ValueError(f"scale: a loss is one number, got shape {loss.shape}; scaler.scale(losses.mean())")
        with np.errstate(over="ignore"):  # the step will see the inf and be skipped
            out = loss * self._scale
        self._state = SCALED
        return out

    def step(self, optimizer: Any, lr: float | LrScheduler, model: Module, gradients: GradientsParams) -> Any:
        """Return the updated model, or `model` itself where the gradients are not finite and the step is skipped.

        `lr` is a number, or a schedule: it is read, and moves on only if the update was made. A schedule's `step()`
        given as the number counts skipped steps too.
        Errors: RuntimeError unless a loss was scaled since the last step; TypeError for what is no optimizer;
        ValueError without any gradient of the model. Where the optimizer raises, the scaler is of no use until a
        record is loaded.
        """
        self._expect("step", (SCALED,), "scale a loss first: scaler.scale(loss).backward()")
        _check_step(optimizer, model, gradients)
        rate = lr.peek() if isinstance(lr, LrScheduler) else lr
        try:
            if hasattr(optimizer, "last_step_skipped"):
                model = optimizer.step(rate, model, gradients, loss_scale=self._scale)
                skipped = bool(optimizer.last_step_skipped)
            else:
                inverse = float(np.float32(1.0) / np.float32(self._scale))
                used = [gradients[p] for p in model.params() if p.trainable and p in gradients]
                skipped = not measure(used, inverse, norm=False).all_finite
                if not skipped:
                    model = optimizer.step(rate, model, scaled_gradients(gradients, model, inverse))
        except BaseException:
            self._state = FAILED
            raise
        self.last_step_skipped, self._state = skipped, STEPPED
        if isinstance(lr, LrScheduler) and not skipped:
            lr.step()
        return model

    def update(self) -> None:
        """Choose the next scale by what the step met. Errors: RuntimeError unless a step was taken."""
        self._expect("update", (STEPPED,), "call it once after each step: scaler.step(...)")
        if self.last_step_skipped:
            self._scale, self._good = max(self.min_scale, self._scale * self.backoff_factor), 0
        else:
            self._good += 1
            if self._good == self.growth_interval:
                self._scale, self._good = min(self.max_scale, self._scale * self.growth_factor), 0
        self._state = READY

    def describe(self) -> dict[str, Any]:
        """Return the settings as plain data, which a restore compares."""
        names = ("growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale")
        return {name: getattr(self, name) for name in names}

    def to_record(self) -> dict[str, Any]:
        """Return settings, scale and count of good steps as plain data. Errors: RuntimeError in the middle of a cycle."""
        self._expect("to_record", (READY,), "take records between scaler.update() and the next scaler.scale(loss)")
        return {"version": VERSION, "config": self.describe(), "scale": self._scale, "good_steps": self._good}

    def load_record(self, record: dict[str, Any]) -> None:
        """Take the scale and count of a record; also after a failed step. A rejected record changes nothing.

        Errors: RuntimeError in the middle of a cycle; RecordMismatch where the settings differ; RecorderError for what
        is no record of a scaler.
        """
        self._expect("load_record", (READY, FAILED), "load records between scaler.update() and the next scaler.scale(loss)")
        if not isinstance(record, dict) or set(record) != {"version", "config", "scale", "good_steps"}:
            broken("its scaler should hold version, config, scale and good_steps")
        if type(record["version"]) is not int or record["version"] != VERSION:
            broken(f"its scaler has version {record['version']!r}; this ruda reads {VERSION}")
        compare(record["config"], self.describe(), "scaler")
        scale, good = record["scale"], record["good_steps"]
        if not is_number(scale) or not self.min_scale <= scale <= self.max_scale:
            broken(f"its scale is {scale!r}, not a number in [{self.min_scale:g}, {self.max_scale:g}]")
        if not is_whole(good) or not 0 <= good < self.growth_interval:
            broken(f"its scaler counts {good!r} good steps, not an integer in [0, {self.growth_interval})")
        self._scale, self._good, self._state, self.last_step_skipped = float(scale), int(good), READY, False

    state_dict, load_state_dict = to_record, load_record  # PyTorch's names

    def _expect(self, call: str, states: tuple[str, ...], advice: str) -> None:
        if self._state in states:
            return
        if self._state == FAILED:
            raise RuntimeError(f"{call}: an earlier scaler.step failed; go on from a record: scaler.load_record(...)")
        raise RuntimeError(f"{call}: not in its turn, the scaler is {self._state}; {advice}")

    def __repr__(self) -> str:
        return f"GradScaler(scale={self._scale:g}, {self._good} of {self.growth_interval} good steps, {self._state})"


def _divides(scale: float) -> bool:
    try:
        check_scale(scale)
    except ValueError:
        return False
    return True


def _check_step(optimizer: Any, model: Any, gradients: Any) -> None:
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "step: LBFGS takes a closure, which it calls several times, and not the gradients of one scaled loss; "
            "keep its model in float32, without a scaler: model, loss = optimizer.step(lr, model, closure)"
        )
    if not hasattr(optimizer, "step") or not hasattr(optimizer, "rule") and not hasattr(optimizer, "last_step_skipped"):
        raise TypeError(
            f"step: expected an optimizer, got {type(optimizer).__name__}; scaler.step(optimizer, lr, model, gradients)"
        )
    if getattr(getattr(optimizer, "rule", None), "gradient_scale", 1.0) != 1.0:
        raise ValueError("step: the optimizer divides by a gradient scale of its own as well; leave with_gradient_scale out")
    if not isinstance(model, Module) or not isinstance(gradients, GradientsParams):
        raise TypeError(
            f"step: expected a Module and GradientsParams, got {type(model).__name__} and {type(gradients).__name__}; "
            "scaler.step(optimizer, lr, model, GradientsParams.from_grads(loss.backward(), model))"
        )
    if not any(p.trainable and p in gradients for p in model.params()):
        raise ValueError("step: there is no gradient of this model; scaler.scale(loss).backward() gives them")
