"""Clipping of gradients: by value, by the norm of each parameter's gradient, or by the norm of all together."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_nn import Config
from ruda_tensor.backend import to_host
from ruda_tensor.devices import Device
from ruda_tensor.dtypes import FLOAT32, FLOAT64, HALF
from ruda_tensor.ops._parallel import each_block

from .gradients import GradientsParams

PIECE = {"cpu": 64 * 1024, "cuda": 16 * 1024 * 1024}  # numbers that are squared at a time


class GradientClippingConfig(Config):
    """Clips gradients; give it to an optimizer's `grad_clipping`. Gradients are clipped before decay and momentum.

    - `kind="value"`: every number into [-limit, limit]; NaN stays NaN.
    - `kind="norm"`: each parameter's gradient by itself, g <- g min(1, limit / |g|) with its Euclidean norm; one with an
      inf or a NaN is left as it is.
    - `kind="global_norm"`: the same with one norm, of all the gradients that a step uses: of every group, each tied
      parameter once, frozen ones not at all, after a loss scale was divided out. Where any number is not finite, all
      gradients are left as they are: an inf does not turn healthy parameters into zeros.

    Norms neither overflow nor underflow, gradients under the limit are bit-unchanged, and nothing is brought to the host.

    >>> from ruda_optim import SgdConfig
    >>> SgdConfig(grad_clipping=GradientClippingConfig.norm(1.0)).build().clipping
    GradientClippingConfig(kind='norm', limit=1.0)
    """

    kind: str
    limit: float

    @classmethod
    def value(cls, limit: float) -> GradientClippingConfig:
        """Return the clipping of every number into [-limit, limit]."""
        return cls("value", limit)

    @classmethod
    def norm(cls, limit: float) -> GradientClippingConfig:
        """Return the clipping of each parameter's gradient to a Euclidean norm of at most `limit`."""
        return cls("norm", limit)

    @classmethod
    def global_norm(cls, limit: float) -> GradientClippingConfig:
        """Return the clipping of all gradients together to a Euclidean norm of at most `limit`."""
        return cls("global_norm", limit)

    def check(self) -> None:
        """Refuse settings outside their range."""
        self.require(self.kind in ("value", "norm", "global_norm"), "kind", "'value', 'norm' or 'global_norm'")
        self.require_number("limit", open=True)

    def clip(self, xp: Any, g: Any) -> Any:
        """Return one clipped gradient (float32 or float64) in a new array, or `g` itself where nothing is to be done."""
        limit = float(self.limit)  # NumPy's float64 would make float32 gradients float64
        if self.kind == "value":
            return xp.clip(g, -limit, limit)
        if g.size == 0 or self.kind == "global_norm":  # the optimizer has seen to the global norm, which needs all gradients
            return g
        # Dividing by the largest first keeps the squares in range; nothing is brought to the host.
        top = xp.max(xp.abs(g))
        scale = xp.where(top > 0, top, xp.ones_like(top))
        part = g / scale
        root = xp.sqrt(xp.sum(xp.square(part)))
        # The factor by itself could be below what float32 holds, or a GPU keeps: limit / (scale root) for huge gradients.
        over = xp.isfinite(top) & (limit / scale < root)
        return xp.where(over, part * (limit / root), g)


def array_norm(xp: Any, g: Any) -> Any:
    """Return the Euclidean norm of an array in float64, 0-d; inf or NaN where a number is.

    Squares of float32 are far inside the range of float64; float64 is divided by its largest number first.
    """
    flat, parts = xp.ascontiguousarray(g).reshape(-1), {}
    scale = _in_range(xp, xp.max(xp.abs(flat))) if flat.dtype == FLOAT64 and flat.size else None

    def body(block: slice) -> None:
        wide = flat[block].astype(FLOAT64)
        if scale is not None:
            xp.divide(wide, scale, out=wide)
        xp.multiply(wide, wide, out=wide)
        parts[block.start] = wide.sum()

    if xp is np:
        each_block(xp, flat.size, 32, body)
    else:
        for start in range(0, flat.size, PIECE["cuda"]):  # float64 of a whole embedding would take gigabytes
            body(slice(start, min(flat.size, start + PIECE["cuda"])))
    sums = [parts[start] for start in sorted(parts)] or [xp.zeros((), FLOAT64)]  # in order, whichever thread was first
    root = xp.sqrt(sum(sums[1:], sums[0]))
    return xp.asarray(root if scale is None else root * scale)


def _in_range(xp: Any, top: Any) -> Any:
    """Return the largest number as something to divide by: 1 where it is 0, inf or NaN."""
    return xp.where((top > 0) & xp.isfinite(top), top, xp.ones_like(top))


def total_norm(gradients: Sequence[rt.Tensor]) -> Any:
    """Return the norm of all gradients together, 0-d in float64, on the device of the first (the host for none)."""
    with np.errstate(all="ignore"):
        norms = [array_norm(device.xp, array) for device, array in _joined(gradients)]
        device = gradients[0].device if gradients else rt.Cpu()
        if device.kind == "cpu" or any(g.device != device for g in gradients):
            return device.put(np.asarray(math.hypot(*[float(to_host(norm)) for norm in norms])))
        with device.guard():
            xp = device.xp
            stacked = xp.stack(norms)
            scale = _in_range(xp, xp.max(stacked))
            return xp.sqrt(xp.sum(xp.square(stacked / scale))) * scale


def _joined(gradients: Sequence[rt.Tensor]) -> Iterator[tuple[Device, Any]]:
    """Yield (device, array), small gradients of one dtype laid end to end, inside the device's guard.

    Half a dozen calls for each bias would cost more than all the numbers in it.
    """
    waiting: dict[tuple[Device, Any], list[Any]] = {}
    sizes: dict[tuple[Device, Any], int] = {}
    for g in gradients:
        limit, array = PIECE[g.device.kind], g._data.reshape(-1)
        if array.size > limit // 4:
            with g.device.guard():
                yield g.device, array
            continue
        key = g.device, g.dtype
        waiting.setdefault(key, []).append(array)
        sizes[key] = sizes.get(key, 0) + array.size
        if sizes[key] > limit:
            del sizes[key]
            with g.device.guard():
                yield g.device, g.device.xp.concatenate(waiting.pop(key))
    for (device, _), pieces in waiting.items():
        with device.guard():
            yield device, device.xp.concatenate(pieces)


def factors(norm: Any, limit: float, home: Device, devices: Iterable[Device]) -> dict[Device, Any]:
    """Return min(1, limit / norm), or 1 for a norm that is not finite, as a 0-d array on each device."""
    with np.errstate(all="ignore"), home.guard():
        xp = home.xp
        one = xp.ones_like(norm)
        factor = xp.asarray(xp.where(xp.isfinite(norm), xp.minimum(limit / norm, one), one))
    return {device: factor if device == home else device.put(to_host(factor)) for device in devices}


def scaled(xp: Any, g: Any, factor: Any) -> Any:
    """Return g times a 0-d factor in the dtype of `g`; `g` itself where the factor is known to be 1."""
    if xp is np and factor == 1.0:
        return g
    if xp is np and factor < 2.0**-100:  # float32 would lose digits of so small a factor, and all of it below 2^-149
        return g * np.asarray(factor * 2.0**100, g.dtype) * np.asarray(2.0**-100, g.dtype)
    return g * xp.asarray(factor, g.dtype)


def clip_by_value(gradients: GradientsParams, limit: float) -> GradientsParams:
    """Return the gradients with every number in [-limit, limit], in new memory; NaN stays NaN.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Param
    >>> p = Param(rt.tensor([1.0, 2.0], device=rt.Cpu()))
    >>> gradients = GradientsParams({p: rt.tensor([3.0, -4.0], device=rt.Cpu())})
    >>> clip_by_value(gradients, 1.0)[p].tolist()
    [1.0, -1.0]
    """
    return _each("clip_by_value", gradients, GradientClippingConfig.value(limit))


def clip_by_norm(gradients: GradientsParams, limit: float) -> GradientsParams:
    """Return the gradients, each by itself scaled to a Euclidean norm of at most `limit`; see `GradientClippingConfig`.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Param
    >>> p = Param(rt.tensor([1.0, 2.0], device=rt.Cpu()))
    >>> gradients = GradientsParams({p: rt.tensor([3.0, -4.0], device=rt.Cpu())})
    >>> clip_by_norm(gradients, 10.0)[p].tolist()
    [3.0, -4.0]
    """
    return _each("clip_by_norm", gradients, GradientClippingConfig.norm(limit))


def clip_by_global_norm(gradients: GradientsParams, limit: float) -> tuple[GradientsParams, rt.Tensor]:
    """Return the gradients scaled together to a Euclidean norm of at most `limit`, and the norm that they had.

    The norm is a 0-d tensor beside the gradients, in float32 (float64 where a gradient is); 0 without gradients. Where
    it is inf or NaN the gradients are as they were: look at it to skip the update. Half types are scaled in float32 and
    rounded once.
    Errors: ValueError unless limit is a number > 0.

    >>> import ruda_tensor as rt
    >>> from ruda_nn import Param
    >>> p, q = Param(rt.tensor(1.0, device=rt.Cpu())), Param(rt.tensor(1.0, device=rt.Cpu()))
    >>> gradients = GradientsParams({p: rt.tensor(3.0, device=rt.Cpu()), q: rt.tensor(4.0, device=rt.Cpu())})
    >>> clipped, norm = clip_by_global_norm(gradients, 2.5)
    >>> clipped[p].item(), clipped[q].item(), norm.item()
    (1.5, 2.0, 5.0)
    """
    _check_gradients("clip_by_global_norm", gradients)
    GradientClippingConfig.global_norm(limit).check()
    tensors = [gradients[key] for key in gradients]
    home = tensors[0].device if tensors else rt.Cpu()
    norm = total_norm(tensors)
    by_device = factors(norm, limit, home, {g.device for g in tensors})
    clipped = _mapped(gradients, lambda device, g: scaled(device.xp, g, by_device[device]))
    dtype = FLOAT64 if any(g.dtype == FLOAT64 for g in tensors) else FLOAT32
    with home.guard(), np.errstate(over="ignore"):
        return clipped, rt.Tensor._wrap(norm.astype(dtype), home)


def _check_gradients(name: str, gradients: Any) -> None:
    if not isinstance(gradients, GradientsParams):
        raise TypeError(
            f"{name}: expected GradientsParams, got {type(gradients).__name__}; "
            f"{name}(GradientsParams.from_grads(loss.backward(), model), limit)"
        )


def _each(name: str, gradients: GradientsParams, config: GradientClippingConfig) -> GradientsParams:
    _check_gradients(name, gradients)
    config.check()
    return _mapped(gradients, lambda device, g: config.clip(device.xp, g))


def _mapped(gradients: GradientsParams, clip: Callable[[Device, Any], Any]) -> GradientsParams:
    """Apply `clip(device, array)` to every gradient, half types in float32 and rounded once."""
    out = GradientsParams()
    for key in gradients:
        g = gradients[key]
        with g.device.guard(), np.errstate(all="ignore"):
            wide = g._data.astype(FLOAT32) if g.dtype in HALF else g._data
            clipped = clip(g.device, wide)
            array = g._data if clipped is wide else g.device.xp.asarray(clipped).astype(g.dtype, copy=False)
        out._by_id[key] = rt.Tensor._wrap(array, g.device)
    return out
