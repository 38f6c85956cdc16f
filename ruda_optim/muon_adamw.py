"""Muon for the matrices inside a model and AdamW for the rest of it, as one optimizer."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ruda_nn import Config, Embedding, Module, Param, RecordMismatch
from ruda_nn.records import broken
from ruda_tensor.dtypes import HALF

from .configs import AdamWConfig, MuonConfig
from .fused_adamw import is_norm
from .gradient_stats import measure, scaled_gradients
from .gradients import GradientsParams
from .master import Fp32MasterOptimizer, check_scale
from .optimizer import Optimizer, check_config
from .rates import check_lr

VERSION = 1


class MuonAdamWConfig(Config):
    """Muon for named matrices, AdamW for all other parameters: `muon`, `adamw`, `adamw_lr_ratio` (0.015).

    `step(lr, ...)` updates the matrices at lr and the others at lr times `adamw_lr_ratio`. `max_grad_norm` (None) clips
    the norm of all gradients of the model together, by min(1, max_grad_norm / norm); a global norm in `muon` or `adamw`,
    which each see a part of them, is refused. `init(model, muon_ids)` takes the matrices by id or by parameter,
    `from_model(model)` finds them. Where they are weights of our `Linear`, stored as [d_in, d_out],
    `muon=MuonConfig(matrix_layout="input_output")` gives each its rate by outputs over inputs.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> model = LinearConfig(2, 3).init(Autodiff(rt.Cpu()))
    >>> MuonAdamWConfig().from_model(model)
    MuonAdamW(Muon: weight; AdamW: bias)
    """

    muon: MuonConfig = MuonConfig()
    adamw: AdamWConfig = AdamWConfig()
    _: KW_ONLY
    adamw_lr_ratio: float = 0.015
    max_grad_norm: float | None = None

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require(isinstance(self.muon, MuonConfig), "muon", "a MuonConfig(...)")
        self.require(isinstance(self.adamw, AdamWConfig), "adamw", "an AdamWConfig(...)")
        for name, rule in (("muon", self.muon.build()), ("adamw", self.adamw.build())):
            self.require(
                rule.global_limit() is None, name,
                f"it without a global norm, which would be that of its own half of the gradients alone; "
                f"for that of all of them: MuonAdamWConfig(max_grad_norm={rule.global_limit()})",
            )  # fmt: skip
        self.require_number("adamw_lr_ratio", open=True)
        norm = self.max_grad_norm
        self.require(norm is None or is_norm(norm), "max_grad_norm", "None or a number >= 0 that is finite in float32")

    def init(self, model: Module, muon_ids: Iterable[str | Param]) -> MuonAdamW:
        """Return an optimizer of this model: Muon for the named matrices, AdamW for its other trained parameters.

        Errors: ValueError where an id occurs twice, is not in the model, or is of a frozen parameter or of one that is no
        matrix, and where nothing is left for one of the two.
        """
        self.check()
        if not isinstance(model, Module):
            raise TypeError(f"init: expected a Module, got {type(model).__name__}; MuonAdamWConfig().init(model, muon_ids)")
        ids = [p.id if isinstance(p, Param) else p for p in ([muon_ids] if isinstance(muon_ids, (str, Param)) else muon_ids)]
        _check_ids(model, ids)
        return MuonAdamW(self, model, set(ids))

    def from_model(self, model: Module, exclude: Iterable[str] = ("*emb*", "*head*")) -> MuonAdamW:
        """Return an optimizer of this model: Muon for its hidden matrices, AdamW for everything else.

        A trained parameter with two axes is a hidden matrix, unless it belongs to an `Embedding` or one of its paths
        matches a pattern of `exclude`; the default leaves out what is called an embedding or a head. A tied
        parameter is left out where any of its places is.
        Errors: ValueError where there is no such matrix, or nothing else.
        """
        if not isinstance(model, Module):
            raise TypeError(f"from_model: expected a Module, got {type(model).__name__}; MuonAdamWConfig().from_model(model)")
        patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        out = {p.id for path, p in model.named_params() if any(fnmatchcase(path, pattern) for pattern in patterns)}
        out |= {p.id for embedding in _embeddings(model) for p in embedding.params()}
        return self.init(model, [p for p in model.params() if p.trainable and _is_matrix(p) and p.id not in out])


def _is_matrix(p: Param) -> bool:
    return p.ndim == 2 and p.size > 0


def _embeddings(value: Any) -> Iterator[Module]:
    if isinstance(value, Embedding):
        yield value
    elif isinstance(value, Module):
        for inner in vars(value).values():
            yield from _embeddings(inner)
    elif isinstance(value, (list, tuple, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _embeddings(inner)


def _check_ids(model: Module, ids: list[str]) -> None:
    """Refuse a choice of parameters that Muon cannot take, or that leaves one of the two without any."""
    params, trained = {p.id: p for p in model.params()}, {p.id for p in model.params() if p.trainable}
    paths = {p.id: path for path, p in reversed(model.named_params())}
    for key in ids:
        where = f"MuonAdamW: {paths.get(key, repr(key))}"
        if ids.count(key) > 1:
            raise ValueError(f"{where} is named twice for Muon; name each parameter once")
        if key not in params:
            raise ValueError(f"{where} is no id of a parameter of this model; give p.id, or the parameter itself")
        if key not in trained:
            raise ValueError(f"{where} is frozen, so Muon cannot train it; leave it out, or p.require_grad()")
        if not _is_matrix(params[key]):
            raise ValueError(f"{where} has shape {params[key].shape}, and Muon updates matrices; leave it to AdamW")
    if not ids:
        raise ValueError("MuonAdamW: there is no matrix for Muon; name at least one, or use AdamWConfig().init()")
    if not trained - set(ids):
        raise ValueError("MuonAdamW: nothing is left for AdamW; use MuonConfig().init(), which takes matrices alone")


class MuonAdamW:
    """The optimizer that `MuonAdamWConfig` makes; it belongs to one model, whose parameters it has sorted.

    Half parameters get float32 masters. Where a gradient is inf or NaN the whole step is skipped, as `FusedAdamW` does:
    `last_step_skipped` says so, and `step` returns the very model it was given. `last_grad_norm` and `last_clip_coef`
    are the norm and the factor of the last step where `max_grad_norm` is set. One report comes to the host in each step.

    >>> import ruda_tensor as rt
    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> model = LinearConfig(2, 3).init(Autodiff(rt.Cpu()))
    >>> optimizer = MuonAdamWConfig().init(model, [model.weight])
    >>> loss = model(rt.ones((4, 2), device=rt.Cpu())).square().mean()
    >>> model = optimizer.step(0.02, model, GradientsParams.from_grads(loss.backward(), model))
    """

    last_step_skipped = False
    last_grad_norm: float | None = None
    last_clip_coef: float | None = None

    def __init__(self, config: MuonAdamWConfig, model: Module, muon_ids: set[str]) -> None:
        self.config, self._failed = config, False
        self.manifest = _manifest(model, muon_ids)
        self.muon, self.adamw = self._fresh(self.manifest)

    def _fresh(self, manifest: dict[str, dict[str, Any]]) -> tuple[Optimizer, Optimizer]:
        """Return the two optimizers for such parameters, without any state."""

        def one(rule: Any, muon: bool) -> Optimizer:
            half = any(entry["dtype"] in {str(d) for d in HALF} for entry in manifest.values() if entry["muon"] is muon)
            return Optimizer(Fp32MasterOptimizer(rule) if half else rule)

        return one(self.config.muon.build(), True), one(self.config.adamw.build(), False)

    def step(self, lr: float, model: Module, gradients: GradientsParams, *, loss_scale: float = 1.0) -> Any:
        """Return the model with matrices updated at `lr` and the rest at lr times `adamw_lr_ratio`; see `step_with_lrs`."""
        lr = check_lr(lr)
        return self.step_with_lrs(lr, lr * self.config.adamw_lr_ratio, model, gradients, loss_scale=loss_scale)

    def step_with_lrs(
        self, muon_lr: float, adamw_lr: float, model: Module, gradients: GradientsParams, *,
        loss_scale: float = 1.0, skip: bool = False,
    ) -> Any:
        """Return the updated model, or `model` itself where the step is skipped.

        `loss_scale` is what the loss was multiplied by; see `GradScaler`. With `skip` nothing changes and nothing is
        checked.
        Errors: ValueError for a rate that is negative or not finite, a model with other parameters than at `init`,
        gradients that belong to none of its trained parameters, and what Muon or AdamW refuse. Both are asked before
        either begins, so that nothing is changed then.
        """
        if skip:
            self.last_step_skipped, self.last_grad_norm, self.last_clip_coef = True, None, None
            return model
        muon_lr, adamw_lr, scale = check_lr(muon_lr), check_lr(adamw_lr), check_scale(loss_scale)
        params = self._check(model, gradients)
        clipping, inverse = self.config.max_grad_norm, float(np.float32(1.0) / np.float32(scale))
        stats = measure([gradients[p] for p in params if p in gradients], inverse, norm=clipping is not None)
        clip = stats.clip(clipping, 0.0)
        gradients = scaled_gradients(gradients, model, inverse, clip)
        parts = self._split(muon_lr, adamw_lr, params, gradients)
        if stats.all_finite:
            try:
                for optimizer, lr, part in parts:
                    model = optimizer.step(lr, model, part)
            except BaseException:
                self._failed = True
                raise
        self.last_step_skipped, known = not stats.all_finite, clipping is not None and stats.all_finite
        self.last_grad_norm, self.last_clip_coef = (stats.norm, clip) if known else (None, None)
        return model

    def _check(self, model: Any, gradients: Any) -> list[Param]:
        """Return the trained parameters, each once, of a model and gradients that are as they should be."""
        if self._failed:
            raise RuntimeError("step: an earlier step failed half-way; go on from a record: optimizer.load_record(...)")
        if not isinstance(model, Module) or not isinstance(gradients, GradientsParams):
            raise TypeError(
                f"step: expected a Module and GradientsParams, got {type(model).__name__} and {type(gradients).__name__}; "
                "step(lr, model, GradientsParams.from_grads(loss.backward(), model))"
            )
        muon_ids = {entry["id"] for entry in self.manifest.values() if entry["muon"]}
        differences = _differences(_manifest(model, muon_ids), self.manifest)
        if differences:
            raise ValueError(
                "step: the model is not the one that this optimizer was made for (now | then):\n  "
                + "\n  ".join(differences) + "\nmake another: MuonAdamWConfig().from_model(model)"
            )  # fmt: skip
        params = [p for p in model.params() if p.trainable]
        unused = [key for key in gradients if key not in {p.id for p in params}]
        if unused:
            raise ValueError(
                f"step: these gradients belong to no trained parameter of the model: {unused}; "
                "GradientsParams.from_grads(loss.backward(), model) with the model that made the loss"
            )
        return params

    def _split(
        self, muon_lr: float, adamw_lr: float, params: list[Param], gradients: GradientsParams
    ) -> list[tuple[Optimizer, float, GradientsParams]]:
        """Return what each optimizer is to do, once its rule has been asked about all of it."""
        muon_ids = {entry["id"] for entry in self.manifest.values() if entry["muon"]}
        parts = []
        for optimizer, lr, muon in ((self.muon, muon_lr, True), (self.adamw, adamw_lr, False)):
            chosen = {p: gradients[p] for p in params if p in gradients and (p.id in muon_ids) is muon}
            for p, g in chosen.items():
                optimizer.rule.check(lr, p.shape, p.dtype, g.dtype)
            parts.append((optimizer, lr, GradientsParams(chosen)))
        return parts

    def describe(self) -> dict[str, Any]:
        """The configuration as plain data, which a restore compares."""
        return {"rule": "MuonAdamW", **self.config.describe()}

    def to_record(self, model: Module | None = None) -> dict[str, Any]:
        """Return configuration, manifest (path, id, shape, dtype and group of each parameter) and both states."""
        if self._failed:
            raise RuntimeError("to_record: a step failed half-way, so the states do not belong together; load a record")
        both = {"muon": self.muon.to_record(model), "adamw": self.adamw.to_record(model)}
        return {"version": VERSION, "config": self.describe(), "manifest": _copy(self.manifest), **both}

    def load_record(self, record: dict[str, Any], model: Module) -> None:
        """Take the states of a record for `model`, which has the recorded ids; a rejected record changes nothing.

        Errors: RecordMismatch where the configuration, a parameter, its group or a state differs; RecorderError for
        another version, and for a state in the wrong group.
        """
        version = record.get("version", VERSION) if isinstance(record, dict) else VERSION
        if type(version) is not int or version != VERSION:
            broken(f"its optimizer has version {version!r}; this ruda reads {VERSION}")
        check_config(record, self.describe())
        if set(record) != {"version", "config", "manifest", "muon", "adamw"} or not isinstance(record["manifest"], dict):
            broken("its optimizer should hold version, config, manifest, muon and adamw")
        ids = {p.id for path, p in model.named_params() if self.manifest.get(path, {}).get("muon")}
        manifest = _manifest(model, ids)
        differences = _differences(record["manifest"], manifest)
        if differences:
            raise RecordMismatch("the record's optimizer is of other parameters (record | here):\n  " + "\n  ".join(differences))
        muon, adamw = self._fresh(manifest)
        for name, optimizer, group in (("muon", muon, ids), ("adamw", adamw, {e["id"] for e in manifest.values()} - ids)):
            states = record[name].get("states") if isinstance(record[name], dict) else None
            strangers = sorted(set(states) - group) if isinstance(states, dict) else []
            if strangers:
                broken(f"its states of {name} hold parameters that are not in that group: {strangers}")
            optimizer.load_record(record[name], model)
        self.muon, self.adamw, self.manifest, self._failed = muon, adamw, manifest, False

    def __repr__(self) -> str:
        sides = [[path for path, e in self.manifest.items() if e["muon"] is muon] for muon in (True, False)]
        return f"MuonAdamW(Muon: {', '.join(sides[0])}; AdamW: {', '.join(sides[1])})"


def _manifest(model: Module, muon_ids: set[str]) -> dict[str, dict[str, Any]]:
    """Return first path -> id, shape, dtype and group of every trained parameter."""
    out, seen = {}, set()
    for path, p in model.named_params():
        if p.trainable and p.id not in seen:
            seen.add(p.id)
            out[path] = {"id": p.id, "shape": list(p.shape), "dtype": str(p.dtype), "muon": p.id in muon_ids}
    return out


def _copy(manifest: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {path: {**entry, "shape": list(entry["shape"])} for path, entry in manifest.items()}


def _differences(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    paths = [path for path in {**mine, **theirs} if theirs.get(path) != mine.get(path)]
    return [f"{path}: {theirs.get(path, 'missing')} | {mine.get(path, 'missing')}" for path in paths]
