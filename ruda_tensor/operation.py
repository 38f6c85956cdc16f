"""Operations and the one hot path that runs them.

A `Primitive` is a forward over `xp` (NumPy or CuPy) and one derivative rule per input, written in operations so that
it can be differentiated again. A `Composite` is an expression over other operations with a hand-derived pair of
bodies that is faster. What a rule names is what the tape keeps for it:

    Primitive("multiply", lambda xp, x, y: xp.multiply(x, y), dx=lambda g, y: g * y, dy=lambda g, x: g * x)

keeps `y` only if the gradient of `x` is wanted, and `x` only if that of `y` is.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .dtypes import FLOAT32, HALF
from .kernels.copies import converted
from .tensor import Tensor, common_device

_new = Tensor.__new__


def _names(function: Callable) -> tuple[str, ...]:
    code = function.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


class Plan:
    """What to keep and which rules to run when one set of inputs is tracked.

    `inputs`: indices of kept inputs; `keeps_out`: whether the result is kept; `meta`: kept shapes and dtypes as
    (input index or -1 for the result, attribute); `static`: names of kept static arguments.
    `pulls`: (input index, rule, indices of its arguments among the kept, or None for all in order).
    `only`: the index of the one kept input where nothing else is kept, else None: the most common case.
    """

    __slots__ = ("op", "inputs", "keeps_out", "meta", "static", "pulls", "only", "bare")

    def __init__(self, op: Primitive, tracked: tuple[int, ...]) -> None:
        wanted = [(i, op.rules[op.inputs[i]]) for i in tracked if op.inputs[i] in op.rules]
        named = list(dict.fromkeys(name for _, rule in wanted for name in _names(rule)[1:]))
        inputs = [n for n in named if n in op.inputs]
        meta = [n for n in named if n not in op.inputs and n.endswith(("_shape", "_dtype")) and n not in op.static]
        self.inputs = tuple(op.inputs.index(n) for n in inputs)
        self.keeps_out = "out" in named
        self.meta = tuple(self._meta(op, n) for n in meta)
        self.static = tuple(n for n in named if n in op.static)
        order = inputs + ["out"] * self.keeps_out + meta + list(self.static)
        if set(order) != set(named):
            raise TypeError(f"{op.name}: a rule names {sorted(set(named) - set(order))}; known: {op.inputs + op.static}, out")
        pulls = []
        for i, rule in wanted:
            arguments = tuple(order.index(n) for n in _names(rule)[1:])
            pulls.append((i, rule, None if arguments == tuple(range(len(order))) else arguments))
        self.op = op
        self.pulls = tuple(pulls)
        self.bare = not order
        self.only = self.inputs[0] if len(order) == 1 and inputs else None

    @staticmethod
    def _meta(op: Primitive, name: str) -> tuple[int, str]:
        owner, _, attribute = name.rpartition("_")
        return (-1 if owner == "out" else op.inputs.index(owner)), attribute


class Primitive:
    """A forward over `xp` and, for each differentiable input `x`, a rule `dx(g, names...)` written in operations.

    `half="compute"`: half inputs arrive in `forward` and in the rules as float32, and the result is rounded once.
    `half="storage"`: data is only moved, or the body deals with half types itself.
    `memory_bound`: cheap to compute again, so balanced checkpointing recomputes its result.
    `poles`: inf or NaN are proper results (log, division), so NumPy is kept from warning; it costs half a microsecond.
    `bare` is the forward without that, for CuPy, which never warns.
    """

    __slots__ = ("name", "forward", "bare", "inputs", "static", "rules", "computes", "memory_bound", "plans")
    joint = False

    def __init__(
        self, name: str, forward: Callable, *, half: str = "compute", memory_bound: bool = True, poles: bool = False,
        **rules: Callable,
    ) -> None:
        code = forward.__code__
        self.name = name
        self.bare = forward
        self.forward = np.errstate(all="ignore")(forward) if poles else forward
        self.inputs = code.co_varnames[1 : code.co_argcount]
        self.static = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        unknown = [r for r in rules if not (r.startswith("d") and r[1:] in self.inputs)]
        if unknown or half not in ("compute", "storage"):
            raise TypeError(f"{name}: rules {unknown} or half={half!r}; inputs are {self.inputs}, a rule for x is dx=")
        self.rules = {r[1:]: rule for r, rule in rules.items()}
        self.computes = half == "compute"
        self.memory_bound = memory_bound
        self.plans: dict[int, Plan | None] = {}

    def plan(self, tracked: int) -> Plan | None:
        """The plan for the tracked inputs (bit i for input i), or None when no rule applies to any of them."""
        try:
            return self.plans[tracked]
        except KeyError:
            plan = Plan(self, tuple(i for i in range(len(self.inputs)) if tracked >> i & 1))
            found = self.plans[tracked] = plan if plan.pulls else None
            return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Variadic(Primitive):
    """A primitive over any number of like inputs (`forward(xp, *arrays, **static)`): concat, stack, einsum.

    `rule(i, g, shapes, static, inputs)` gives the gradient of input i; `inputs` is kept only if `keeps_inputs`.
    """

    __slots__ = ("rule", "keeps_inputs")
    joint = True
    pulls = None

    @property
    def op(self) -> Variadic:
        return self

    def __init__(self, name: str, forward: Callable, *, rule: Callable, keeps_inputs: bool = False, half: str = "storage",
                 memory_bound: bool = True) -> None:
        self.name, self.forward, self.bare, self.rule = name, forward, forward, rule
        self.inputs, self.static, self.rules, self.plans = (), (), {}, {}
        self.computes = half == "compute"
        self.memory_bound, self.keeps_inputs = memory_bound, keeps_inputs


_generator: list[Callable] = []


def install_generator(generated: Callable) -> None:
    """Called once by `ruda_tensor.fusion`: what makes one kernel of an elementwise primitive, or returns None."""
    _generator.append(generated)


def apply(op: Primitive, inputs: tuple, static: dict[str, Any] | None = None) -> Tensor:
    """Run a primitive: unwrap, compute, repair 0-d results, and record where some input is tracked."""
    node = device = None
    halves = False
    tracked, bit = 0, 1
    arrays = []
    for x in inputs:
        if isinstance(x, Tensor):
            array = x._data
            arrays.append(array)
            if array.itemsize == 2:
                halves = True
            if x._node is not None:
                node = x._node
                tracked |= bit
            if x.device is not device:
                device = x.device if device is None else common_device(op.name, device, x.device)
        else:
            arrays.append(x)
        bit += bit
    dtype = None
    assert device is not None, f"{op.name}: no tensor among the inputs"
    if halves and op.computes:
        if device.launches and _generator and (node is None or not node.expands()):
            found = _generator[0](op, inputs, static, device)
            if found is not None:
                return found
        arrays, dtype = widen(arrays)
    forward = op.bare if device.launches else op.forward
    if device.guarded:
        with device.guard():
            data = forward(device.xp, *arrays, **(static or {}))
    elif static is None:
        data = forward(device.xp, *arrays)
    else:
        data = forward(device.xp, *arrays, **static)
    if type(data) is not device.array_type:
        data = device.xp.asarray(data)
    if dtype is not None and data.dtype is FLOAT32:
        data = round_to(data, dtype)
    out = _new(Tensor)
    out._data = data
    out.device = device
    out._node = None
    if node is not None:
        node.record(op, tracked, inputs, static, out)
    return out


def _number(dtype: Any, value: Any, device: Any) -> Any:
    """Remember a number as a 0-d array: NumPy takes one twice as fast. Zero is left out, for -0.0 equals 0.0."""
    if device.kind != "cpu" or dtype in HALF:
        return value
    if len(device.numbers) >= 1024:
        device.numbers.clear()
    return device.numbers.setdefault((dtype, value), np.asarray(value, dtype))


def binary(op: Primitive, x: Any, y: Any) -> Tensor:
    """`apply` for two operands of one dtype, unrolled: arithmetic is most of what small programs do.

    One of them may be a Python number next to a float tensor.
    """
    if isinstance(x, Tensor):
        a, device, node = x._data, x.device, x._node
        tracked = 0 if node is None else 1
        if isinstance(y, Tensor):
            b = y._data
            if y._node is not None:
                node = y._node
                tracked += 2
            if y.device is not device:
                device = common_device(op.name, device, y.device)
        else:
            b = device.numbers.get((a.dtype, y), y)
            if b is y and y:
                b = _number(a.dtype, y, device)
        dtype = a.dtype
    else:
        a, b, device, node = x, y._data, y.device, y._node
        tracked = 0 if node is None else 2
        dtype = b.dtype
    if dtype in HALF or device.guarded:
        return apply(op, (x, y))
    data = (op.bare if device.launches else op.forward)(device.xp, a, b)
    if type(data) is not device.array_type:
        data = device.xp.asarray(data)
    out = _new(Tensor)
    out._data = data
    out.device = device
    out._node = None
    if node is not None:
        node.record(op, tracked, (x, y), None, out)
    return out


def widen(arrays: list) -> tuple[list, Any]:
    """Return the arrays with half types as float32, and the half type the result is rounded to (None without any)."""
    for a in arrays:
        dtype = getattr(a, "dtype", None)
        if dtype in HALF:
            break
    else:
        return arrays, None
    return [converted(a, FLOAT32) if getattr(a, "dtype", None) in HALF else a for a in arrays], dtype


def round_to(array: Any, dtype: Any) -> Any:
    """Return a float32 array in a half type; what is too large becomes inf without a warning, as on a GPU."""
    with np.errstate(over="ignore"):
        return converted(array, dtype)


class Fused(NamedTuple):
    """The kernels of a composite: their sources in `cuda_src/`, and bodies with the arguments and results of the plain ones.

    A body returns None where its kernel does not take these arrays, or where kernels are off: then the plain body runs.
    It gets half arrays as they are. Both forwards keep the same residuals, so any forward goes with any backward.
    `spends`: the kept input over which the backward may write its gradient where it is called with `spend=True`,
    because nobody else will read it.
    `adds`: the backward, and the plain one too, takes `add=`, the gradient that the first input has got so far, and answers
    with their sum.
    """

    sources: str
    forward: Callable
    backward: Callable
    spends: str = ""
    adds: bool = False


class Composite:
    """An operation that is an expression over others, with a hand-derived pair of bodies that runs faster.

    `expression(*tensors, **static)` defines it and is what higher derivatives record. `forward(xp, *arrays, **static)`
    returns `out` or `(out, *extras)`; `backward(xp, g, *kept, needs, **static)` returns a raw gradient per input,
    with `kept` the arrays named in `keeps` (inputs by name, or `out`) followed by the extras. `fused`: see there.
    One with `several` results is run by `call_several`.
    """

    __slots__ = ("name", "expression", "forward", "backward", "inputs", "keeps", "memory_bound", "fused")
    joint = True
    several = False
    computes = True
    pulls = None

    @property
    def op(self) -> Composite:
        return self

    def __init__(self, name: str, expression: Callable, forward: Callable, backward: Callable, keeps: str = "x out",
                 memory_bound: bool = True, fused: Fused | None = None) -> None:
        code = forward.__code__
        self.name, self.expression, self.forward, self.backward = name, expression, forward, backward
        self.fused = fused
        self.inputs = code.co_varnames[1 : code.co_argcount]
        self.keeps = tuple(keeps.split())
        self.memory_bound = memory_bound
        unknown = [k for k in self.keeps if k != "out" and k not in self.inputs]
        if unknown:
            raise TypeError(f"{name}: keeps {unknown}; inputs are {self.inputs}, and 'out'")

    def __repr__(self) -> str:
        return f"<Composite {self.name}>"


def call(op: Composite, inputs: tuple, static: dict[str, Any] | None = None) -> Tensor:
    """Run a composite by its fast body, or by its expression where a higher derivative will be asked for."""
    static = static or {}
    node = device = None
    arrays = []
    for x in inputs:
        if isinstance(x, Tensor):
            arrays.append(x._data)
            if node is None:
                node = x._node
            if x.device is not device:
                device = x.device if device is None else common_device(op.name, device, x.device)
        else:
            arrays.append(x)
    assert device is not None, f"{op.name}: no tensor among the inputs"
    if node is not None and node.expands():
        return op.expression(*inputs, **static)
    out, extras = run_composite(op, device, arrays, static)
    out = Tensor._wrap(out, device)
    if node is not None:
        node.record_composite(op, inputs, static, out, extras)
    return out


def call_several(op: Any, inputs: tuple) -> list[Tensor]:
    """`call` for a composite with several results: `expression` and `forward` return lists, and there are no extras.

    Its backward bodies get a list of gradients, with None for a result that was not used; `op.live` says which results
    depend on the tracked inputs. It keeps inputs only, and `forward` asks its kernel itself.
    """
    node = device = None
    arrays = []
    for x in inputs:
        if isinstance(x, Tensor):
            arrays.append(x._data)
            node = x._node if node is None else node
            device = x.device
        else:
            arrays.append(x)
    assert device is not None, f"{op.name}: no tensor among the inputs"
    if node is not None and node.expands():
        return op.expression(*inputs)
    with device.entered():
        results = [Tensor._wrap(array, device) for array in op.forward(device.xp, *arrays)]
    return results if node is None else node.record_several(op, inputs, results)


def run_composite(op: Composite, device: Any, arrays: list, static: dict[str, Any]) -> tuple[Any, tuple]:
    """Run the forward body on raw arrays: half inputs arrive as float32, and the result is rounded once.

    On a GPU the kernel is asked first.
    """
    if device.symbolic:
        tensors = [Tensor._wrap(a, device) if isinstance(a, device.array_type) else a for a in arrays]
        return op.expression(*tensors, **static)._data, ()
    if device.launches and op.fused is not None:
        if device.guarded:
            with device.guard():
                found = op.fused.forward(device.xp, *arrays, **static)
        else:
            found = op.fused.forward(device.xp, *arrays, **static)
        if found is not None:
            return (found[0], found[1:]) if isinstance(found, tuple) else (found, ())
    arrays, dtype = widen(arrays)
    with device.entered(), np.errstate(all="ignore"):
        result = op.forward(device.xp, *arrays, **static)
        out, extras = (result[0], tuple(result[1:])) if isinstance(result, tuple) else (result, ())
        out = device.xp.asarray(out)
        if dtype is not None and out.dtype is FLOAT32:
            out = round_to(out, dtype)
    return out, extras
