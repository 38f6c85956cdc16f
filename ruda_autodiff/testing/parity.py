"""The same function elsewhere: on another device, in another dtype, one row at a time."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.creation import tensor
from ruda_tensor.devices import Device, resolve_device
from ruda_tensor.dtypes import FLOAT64, HALF, as_dtype, is_floating
from ruda_tensor.tensor import Tensor

from ..functional import Recording
from ..trees import map_tensors, tensors_of
from .gradients import host, named_results
from .structure import argument_names, element, named_tensors

PERTURBATIONS = 3


class ParityMismatch(AssertionError):
    """Values or gradients differ between devices, dtypes or batch sizes by more than rounding explains."""


@dataclass
class ParityReport:
    """What agreed: `max_error` is the largest error in units of its tolerance; `compared` names each comparison.

    >>> import ruda_tensor as rt
    >>> report = check_parity(rt.exp, rt.tensor([0.0, 1.0], device=rt.Cpu()), dtypes=["float32"], devices=["cpu"])
    >>> report.compared, report.max_error < 1.0
    (['float32 on Cpu()'], True)
    """

    max_error: float
    compared: list[str]


@dataclass
class Run:
    """Values and gradients of one run as float64, by name, with the dtypes they came in."""

    values: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    dtypes: dict[str, np.dtype]


def signs(name: str, y: Tensor) -> np.ndarray:
    """An incoming gradient that every dtype holds exactly."""
    return np.random.default_rng(len(name)).choice([-1.0, 1.0, 0.5], y.shape)


def run(f: Callable, inputs: tuple, names: list[str], incoming: Callable[[str, Tensor], np.ndarray] = signs) -> Run:
    """Evaluate f, and the gradient by every floating input for the incoming gradients `incoming(name, result)`."""
    if not any(is_floating(x.dtype) for x in tensors_of(inputs)):
        results = named_tensors(f(*inputs), "output")
        return Run({k: host(y) for k, y in results}, {}, {k: y.dtype for k, y in results})
    chosen = tuple(i for i, a in enumerate(inputs) if any(is_floating(x.dtype) for x in tensors_of(a)))
    recording = Recording("check_parity", f, inputs, {}, chosen, 1)
    everything, roots = named_tensors(recording.value, "output"), named_results(recording.value)
    seeds = [tensor(incoming(name, y), dtype=y.dtype, device=y.device) for name, y in roots]
    grads = recording.pull([y for _, y in roots], seeds, retain=False)
    paths = [name for i in chosen for name, x in named_tensors(inputs[i], names[i]) if is_floating(x.dtype)]
    gradients, dtypes = {}, {name: y.dtype for name, y in everything}
    for path, x in zip(paths, recording.inputs, strict=True):
        g = None if x._node is None else grads.get(x._node)
        gradients[path] = np.zeros(x.shape) if g is None else host(g)
        if g is not None:
            dtypes[f"gradient of {path}"] = g.dtype
    return Run({name: host(y) for name, y in everything}, gradients, dtypes)


def moved(inputs: tuple, device: Device, dtype: np.dtype) -> tuple:
    """The inputs on a device, floating tensors in `dtype`."""

    def move(x: Tensor) -> Tensor:
        y = x.detach().to_device(device)
        return rt.astype(y, dtype) if is_floating(y.dtype) else y

    return tuple(map_tensors(move, a) for a in inputs)


def nudged(inputs: tuple, eps: float, rng: np.random.Generator) -> tuple:
    """The float64 inputs with each element changed by at most `eps`, relatively."""

    def nudge(x: Tensor) -> Tensor:
        if not is_floating(x.dtype):
            return x
        return tensor(host(x) * (1.0 + eps * rng.uniform(-1.0, 1.0, x.shape)), dtype=FLOAT64, device=x.device)

    return tuple(map_tensors(nudge, a) for a in inputs)


def tolerances(f: Callable, inputs: tuple, names: list[str], exact: Run, dtype: np.dtype) -> Run:
    """How far rounding in `dtype` may take each value and gradient: measured on the CPU, by nudging what goes in.

    What a rounding of the inputs does to the exact result is the sensitivity of the function. How much its error in
    `dtype` varies between neighbouring points is the scatter of its own arithmetic. A constant error is neither, so it
    is not excused. The largest element of each result sets a floor.
    """
    eps, smallest = float(rt.finfo(dtype).eps), float(rt.finfo(dtype).smallest_normal)
    rng = np.random.default_rng(1)
    narrow = run(f, moved(inputs, rt.Cpu(), dtype), names)
    floor = lambda part: {k: 4.0 * eps * (np.abs(v) + _top(v)) + smallest for k, v in part.items()}
    out = Run(floor(exact.values), floor(exact.gradients), {})
    for _ in range(PERTURBATIONS):
        incoming = np.random.default_rng(rng.integers(2**32))
        rounded = lambda name, y, r=incoming: signs(name, y) * (1.0 + eps * r.uniform(-1.0, 1.0, y.shape))
        sensitive = run(f, nudged(inputs, eps, rng), names, rounded)
        beside = moved(moved(nudged(inputs, max(16.0 * eps, 1e-3), rng), rt.Cpu(), dtype), rt.Cpu(), FLOAT64)
        own, right = run(f, moved(beside, rt.Cpu(), dtype), names), run(f, beside, names)
        for mine, *found in zip(*map(_parts, (out, sensitive, exact, own, narrow, right)), strict=True):
            for name in mine:
                s, e, w, n, r = (part[name] for part in found)
                if s.shape == e.shape == w.shape == n.shape == r.shape:
                    with np.errstate(invalid="ignore"):
                        apart = np.nan_to_num(np.abs(s - e) + np.abs((w - r) - (n - e)), nan=0.0, posinf=0.0)
                    mine[name] = mine[name] + 4.0 * apart + 2.0 * _top(apart)
    return out


def _parts(run: Run) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    return run.values, run.gradients


def _top(a: np.ndarray) -> float:
    """The largest finite magnitude."""
    return float(np.abs(a).max(where=np.isfinite(a), initial=0.0))


def compare(
    found: dict[str, np.ndarray], right: dict[str, np.ndarray], allowed: dict[str, np.ndarray], kind: str, where: str,
    top: float = np.inf,
) -> float:  # fmt: skip
    """Raise where `found` is off by more than `allowed`; return the largest error in units of it.

    `top` is the largest number of the dtype: beyond it, an infinity of the right sign is right.
    """
    if found.keys() != right.keys():
        raise ParityMismatch(f"{where}: the results are {list(found)}, and the reference has {list(right)}")
    worst = 0.0
    for name, want in right.items():
        got = found[name]
        if got.shape != want.shape:
            raise ParityMismatch(f"{where}: {kind}{name} has shape {got.shape}, and the reference has {want.shape}")
        overflow = np.isinf(got) & (np.abs(want) > 0.99 * top) & (np.sign(got) == np.sign(want))
        same = (got == want) | (np.isnan(got) & np.isnan(want)) | overflow
        with np.errstate(invalid="ignore", divide="ignore"):
            excess = np.where(same, 0.0, np.abs(got - want) / allowed[name])
        excess = np.where(np.isnan(excess), np.inf, excess)
        if excess.size and excess.max() > 1.0:
            k = np.unravel_index(int(np.argmax(excess)), got.shape)
            at = element(name, tuple(int(i) for i in k))
            raise ParityMismatch(
                f"{where}: {kind}{at} is {got[k]!r}, and the reference has {want[k]!r}; off by {abs(got[k] - want[k]):.3g}, "
                f"rounding explains {allowed[name][k]:.3g} ({int((excess > 1).sum())} of {got.size} elements are off)"
            )
        worst = max(worst, float(excess.max(initial=0.0)))
    return worst


def _usable_devices() -> list[Device]:
    return [rt.Cpu()] if rt.backend.gpu_problem() is not None else [rt.Cpu(), rt.Cuda(0)]


def check_parity(
    f: Callable, *inputs: Any, devices: Sequence[Any] | None = None, dtypes: Sequence[Any] = ("float64", "float32")
) -> ParityReport:
    """Check that f and its gradient are the same on every device and, up to rounding, in every float dtype.

    The reference is float64 on the CPU, at inputs rounded to the dtype in question. The tolerance is measured: the
    sensitivity of the function to rounding, and the scatter of its error between neighbouring points. `devices` are the
    CPU, and the first GPU where there is one; `dtypes` may name half types. Results must have the dtype that the CPU gives.

    Errors: ParityMismatch with the device, dtype, element and both values.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[0.5, -1.0], [2.0, 0.1]], device=rt.Cpu())
    >>> check_parity(lambda x: rt.softmax(x @ x), x, dtypes=["float32", "bfloat16"]).max_error < 1.0
    True
    """
    names = argument_names(f, len(inputs))
    places = _usable_devices() if devices is None else [resolve_device(d) for d in devices]
    kinds = [as_dtype(d) for d in dtypes]
    wrong = [str(d) for d in kinds if not is_floating(d)]
    if wrong or not places:
        raise ValueError(f"check_parity: needs devices and floating dtypes, got devices={devices!r}, dtypes={wrong or dtypes!r}")
    report = ParityReport(0.0, [])
    with np.errstate(all="ignore"):
        for dtype in kinds:
            top = float(rt.finfo(dtype).max)
            rounded = moved(inputs, rt.Cpu(), dtype)
            wide = moved(rounded, rt.Cpu(), FLOAT64)
            exact = run(f, wide, names)
            allowed = tolerances(f, wide, names, exact, dtype)
            expected: dict[str, np.dtype] | None = None
            for place in places:
                where = f"{dtype} on {place}"
                found = run(f, moved(rounded, place, dtype), names)
                expected = found.dtypes if expected is None else expected
                _same_dtypes(found.dtypes, expected, dtype, where)
                report.max_error = max(
                    report.max_error,
                    compare(found.values, exact.values, allowed.values, "", where, top),
                    compare(found.gradients, exact.gradients, allowed.gradients, "the gradient of ", where, top),
                )
                report.compared.append(where)
    return report


def _same_dtypes(found: dict[str, np.dtype], expected: dict[str, np.dtype], dtype: np.dtype, where: str) -> None:
    for name, kind in found.items():
        if kind != expected.get(name):
            raise ParityMismatch(f"{where}: {name} has dtype {kind}, and {expected.get(name)} elsewhere")
        if name.startswith("gradient of ") and kind != dtype:
            raise ParityMismatch(f"{where}: {name} has dtype {kind}, and its input {dtype}")
        if is_floating(kind) and kind != dtype and not (dtype in HALF and kind == rt.float32):
            raise ParityMismatch(f"{where}: {name} has dtype {kind} though every floating input is {dtype}")


def check_batch_consistency(f: Callable, *inputs: Any, axis: int = 0, out_axis: int | None = None) -> ParityReport:
    """Check that f of a batch is f of each row, put together again: values, and gradients.

    Every tensor among the inputs has its rows along `axis` (what all rows share goes into a closure). f is given batches
    of one, and their results are joined along `out_axis` (`axis` by default). It fails where rows see each other: a
    statistic over the batch, a wrong axis.

    Errors: ParityMismatch with the element; ValueError where the inputs have no common batch size.

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[0.5, -1.0], [2.0, 0.1], [0.3, 0.2]], dtype=rt.float64, device=rt.Cpu())
    >>> check_batch_consistency(lambda x: rt.softmax(x, axis=1), x).max_error < 1.0
    True
    """
    names = argument_names(f, len(inputs))
    tensors = [pair for name, a in zip(names, inputs, strict=True) for pair in named_tensors(a, name)]
    sizes = {name: x.shape[axis] if -x.ndim <= axis < x.ndim else None for name, x in tensors}
    count = next(iter(sizes.values()), None)
    if count is None or any(size != count for size in sizes.values()):
        raise ValueError(f"check_batch_consistency: every tensor needs the same number of rows along axis {axis}, got {sizes}")
    back = axis if out_axis is None else out_axis
    wide = moved(inputs, tensors[0][1].device, FLOAT64)
    with np.errstate(all="ignore"):
        whole = run(f, wide, names)
        for name, y in whole.values.items():
            if not -y.ndim <= back < y.ndim or y.shape[back] != count:
                raise ValueError(
                    f"check_batch_consistency: {name} has shape {y.shape}, without {count} rows along axis {back}; "
                    "say where its rows are: out_axis=1"
                )
        if not count:
            return ParityReport(0.0, [])
        parts = [_one_row(f, wide, names, i, axis, back, count) for i in range(count)]
        allowed = tolerances(f, wide, names, whole, FLOAT64)
    where = f"rows along axis {axis}, one at a time"
    worst = 0.0
    for kind, mine, joint, wanted, slack in (
        ("", [p.values for p in parts], back, whole.values, allowed.values),
        ("the gradient of ", [p.gradients for p in parts], axis, whole.gradients, allowed.gradients),
    ):
        joined = {name: np.concatenate([part[name] for part in mine], axis=joint) for name in wanted}
        worst = max(worst, compare(joined, wanted, {name: 16.0 * a for name, a in slack.items()}, kind, where))
    return ParityReport(worst, [where])


def _one_row(f: Callable, inputs: tuple, names: list[str], i: int, axis: int, back: int, count: int) -> Run:
    """Run f on row i as a batch of one, with the incoming gradient that the row has in the whole batch."""
    inside = tuple(map_tensors(lambda x: rt.take(x, tensor([i], device=x.device), axis=axis), a) for a in inputs)

    def incoming(name: str, y: Tensor) -> np.ndarray:
        shape = list(y.shape)
        shape[back] = count
        full = np.random.default_rng(len(name)).choice([-1.0, 1.0, 0.5], shape)
        return np.take(full, [i], axis=back)

    return run(f, inside, names, incoming)
