"""Functions of tensors whose elementwise operations run as one kernel."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..devices import Device
from ..dtypes import FLOAT32, FLOATING, HALF
from ..kernels.gate import fused, use_fused
from ..kernels.generated import run
from ..operation import Composite, Fused, Primitive, apply, call, install_generator
from ..tensor import Tensor, common_device
from .codegen import program
from .evaluate import evaluate
from .symbols import FusionError
from .trace import Trace

MOST_KINDS = 256  # of arguments that a function remembers


class Kind:
    """A function on one kind of arguments: what it computes, whatever the numbers.

    `examples`: for each input a tensor or a NumPy scalar that has its dtype and shape, or None. `free`: whether the shapes
    are those of a call, broadcast in the same way, and not always those of the examples.
    """

    def __init__(self, f: Callable, examples: Sequence[Any], device: Device, free: bool = False) -> None:
        self.f, self.device, self.free = f, device, free
        self.examples = [_without_numbers(x) if isinstance(x, Tensor) else x for x in examples]
        (out,) = Trace(f, self.examples, device).outs
        assert out is not None
        self.shape, self.dtype = out.shape, out.dtype
        self.program, self.reads, self.given = program("fused_forward", [out], out.dtype in HALF)
        self.operations: dict[tuple[bool, ...], Generated] = {}

    def operation(self, needs: tuple[bool, ...]) -> Generated:
        """The operation whose backward gives the gradients of the inputs marked in `needs`."""
        found = self.operations.get(needs)
        if found is None:
            found = self.operations[needs] = Generated(self, needs)
        return found

    def __call__(self, inputs: tuple) -> Tensor:
        device, tracked = self.device, False
        for x in inputs:
            if isinstance(x, Tensor):
                tracked = tracked or x._node is not None
                if x.device is not device:
                    common_device(getattr(self.f, "__name__", "fuse"), device, x.device)
        if tracked and self.dtype in FLOATING:
            return call(self.operation(tuple([isinstance(x, Tensor) and x._node is not None for x in inputs])), inputs)
        arrays = [x._data if isinstance(x, Tensor) else x for x in inputs]
        if not device.guarded:
            return Tensor._wrap(self.ahead(device.xp, *arrays), device)
        with device.guard():
            return Tensor._wrap(self.ahead(device.xp, *arrays), device)

    def ahead(self, xp: Any, *arrays: Any) -> Any:
        """The raw result, by the kernel or by the function itself."""
        shape = layout(tuple([a.shape for a in arrays if hasattr(a, "shape")]))[1] if self.free else self.shape
        found = run(xp, self.program, shape, [arrays[i] for i in self.reads], [arrays[i] for i in self.given])
        return self.plain(xp, *arrays) if found is None else found[0]

    def plain(self, xp: Any, *arrays: Any) -> Any:
        """The raw result of the function itself."""
        device = self.device
        with use_fused(False):  # an elementwise primitive of half types would come back here
            return self.f(*[Tensor._wrap(a, device) if isinstance(a, device.array_type) else a for a in arrays])._data


def _without_numbers(x: Tensor) -> Tensor:
    """A tensor of the same dtype and shape that holds no memory."""
    xp = x.device.xp
    with x.device.guard():
        return Tensor._wrap(xp.broadcast_to(xp.zeros((), x.dtype), x.shape), x.device)


class Generated(Composite):
    """A function as an operation: `expression` is the function, and both directions are one generated kernel each.

    It keeps the inputs that its derivative reads, and computes from them whatever else the derivative needs.
    """

    __slots__ = ("kind", "needs", "derivative")

    def __init__(self, kind: Kind, needs: tuple[bool, ...]) -> None:
        self.kind, self.needs = kind, needs
        self.name = getattr(kind.f, "__name__", "fused")
        self.expression = kind.f
        self.fused = Fused("fused.cuh", kind.ahead, self.back)
        self.forward, self.backward = kind.plain, self.back
        self.inputs = tuple([f"x{i}" for i in range(len(needs))])
        self.memory_bound = True
        self.derivative: Derivative | None = None

    @property
    def keeps(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inputs that the derivative reads, found when an operation is recorded for the first time."""
        if self.derivative is None:
            self.derivative = Derivative(self.kind, self.needs)
        return self.derivative.keeps

    def back(self, xp: Any, g: Any, *kept: Any, needs: tuple[bool, ...]) -> list[Any]:
        assert self.derivative is not None
        return self.derivative(xp, g, kept)


class Derivative:
    """The gradients of the inputs in `needs` as expressions of the inputs and of the gradient of the result.

    They have the shape of the result: whoever adds them up adds what broadcasting joined. A half gradient that is to be
    added up is written in float32.
    """

    def __init__(self, kind: Kind, needs: tuple[bool, ...]) -> None:
        outs = iter(Trace(kind.f, kind.examples, kind.device, needs).outs)
        self.seed = len(needs)
        self.found = [next(outs) if need else None for need in needs]
        for i, (out, x) in enumerate(zip(self.found, kind.examples, strict=True)):
            if out is not None and not self.is_seed(out.astype(x.dtype)):
                self.found[i] = out.astype(FLOAT32 if x.dtype in HALF and x.shape != kind.shape else x.dtype)
            elif out is not None:
                self.found[i] = out.astype(x.dtype)
        self.outs = [out for out in self.found if out is not None and not self.is_seed(out)]
        self.program, self.reads, self.given = program("fused_backward", self.outs, kind.dtype in HALF)
        self.kept = tuple([i for i in (*self.reads, *self.given) if i != self.seed])
        self.keeps = tuple([f"x{i}" for i in self.kept])

    def is_seed(self, out: Any) -> bool:
        """Whether a gradient is that of the result itself, which is handed on as it is."""
        return out.op == "input" and out.value == self.seed

    def __call__(self, xp: Any, g: Any, kept: Sequence[Any]) -> list[Any]:
        if not self.outs:
            return [None if out is None else g for out in self.found]
        values = {**dict(zip(self.kept, kept, strict=True)), self.seed: g}
        made = run(xp, self.program, g.shape, [values[i] for i in self.reads], [values[i] for i in self.given])
        results = iter(evaluate(xp, self.outs, values, g.shape) if made is None else made)
        return [None if out is None else g if self.is_seed(out) else next(results) for out in self.found]


def fuse(f: Callable[..., Tensor], /) -> Callable[..., Tensor]:
    """Return `f`, an elementwise function of tensors, as one kernel forward and one backward on a GPU.

    Elsewhere, and under `use_fused(False)`, `f` itself runs. f may use every elementwise operation, composites among them,
    and tensors that broadcast. What is reduced, multiplied as matrices, drawn at random, reshaped, indexed or read on the
    host stays outside.

    - The kernel computes half types in float32 from the first operation to the last and rounds once; f itself rounds
      after every operation, and a cast to a half type inside f rounds nothing. float32 and float64 are rounded as by f,
      up to a last digit where a mathematical function is another's.
    - f is run once without numbers for each new combination of dtypes, shapes and other arguments. Numbers that it is
      given or captures are part of the kernel from then on: give one that changes, a learning rate, as a 0-d tensor.
    - Only those inputs are kept for backward that the derivative reads. It is derived by the operations' own rules, and
      higher derivatives go by f itself.

    Errors: FusionError, naming the operation, where f is not elementwise or uses a tensor that is not among its
    arguments; TypeError for an argument that is neither a tensor nor hashable. Both on a GPU only.

    >>> import ruda_tensor as rt
    >>> @rt.fuse
    ... def quick_gelu(x, y):
    ...     return x * rt.sigmoid(1.702 * x) + y
    >>> quick_gelu(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu()), 1.0).numpy()
    array([1.        , 1.84579577])
    """
    kinds: dict[tuple, Kind] = {}

    @functools.wraps(f)
    def function(*args: Any, **kwargs: Any) -> Tensor:
        given = (*args, *kwargs.values()) if kwargs else args
        tensors = [x for x in given if isinstance(x, Tensor)]
        if not tensors or not tensors[0].device.launches or not fused():
            return f(*args, **kwargs)
        try:
            key = (id(tensors[0].device), tuple(kwargs), *[_key(x) for x in given])
            kind = kinds.get(key)
        except TypeError:
            raise TypeError(
                f"fuse: {getattr(f, '__name__', 'the function')} takes tensors and hashable values, got "
                f"{', '.join(type(x).__name__ for x in given)}; a tuple is hashable, and rt.tensor(values) makes a tensor"
            ) from None
        if kind is None:
            if len(kinds) >= MOST_KINDS:
                kinds.clear()
            kind = kinds[key] = Kind(_of_tensors(f, args, kwargs), tensors, tensors[0].device)
        return kind(tuple(tensors))

    return function


def _key(x: Any) -> tuple:
    """What a kernel depends on: -0.0 is not 0.0, and 1 is not True."""
    if isinstance(x, Tensor):
        return x._data.dtype, x._data.shape
    if isinstance(x, tuple):
        return type(x), *map(_key, x)
    if isinstance(x, np.generic):
        return type(x), x.tobytes()
    key = (type(x), x.hex() if isinstance(x, float) else x)
    hash(key)
    return key


def _of_tensors(f: Callable, args: tuple, kwargs: dict[str, Any]) -> Callable:
    """`f` with all arguments in place that are no tensors."""
    fixed = [None if isinstance(x, Tensor) else x for x in args]
    names = [name for name, x in kwargs.items() if isinstance(x, Tensor)]
    places = [i for i, x in enumerate(args) if isinstance(x, Tensor)]
    settings = {name: x for name, x in kwargs.items() if not isinstance(x, Tensor)}

    @functools.wraps(f)
    def bound(*tensors: Tensor) -> Tensor:
        given = list(fixed)
        for i, x in zip(places, tensors, strict=False):
            given[i] = x
        return f(*given, **dict(zip(names, tensors[len(places) :], strict=True)), **settings)

    return bound


_kinds: dict[tuple, Kind] = {}  # of primitives
_refused: set[Primitive] = set()  # those that are not elementwise
MOST_OPERATIONS = 1024


def generated(op: Primitive, inputs: tuple, static: dict[str, Any] | None, device: Device) -> Tensor | None:
    """An elementwise primitive as one kernel forward and one backward; None where it is not elementwise, or kernels are off.

    A kernel is for all shapes that broadcast alike, and for all values of the numbers among the inputs.
    """
    if op in _refused or not fused():
        return None
    marks: list[Any] = []
    shapes = []
    for x in inputs:
        if isinstance(x, Tensor):
            data = x._data
            shapes.append(data.shape)
            marks.append(data.dtype)
        else:
            marks.append(None if x is None else int)
    try:
        pattern = layout(tuple(shapes))[0]
        key = (op, id(device), pattern, *marks, *(() if static is None else map(_key, static.values())))
        kind = _kinds.get(key)
    except (TypeError, ValueError):  # a static argument that is no key, or shapes that do not broadcast
        return None
    if kind is None:
        kind = _kind_of(op, inputs, static, device)
        if kind is None:
            return None
        if len(_kinds) >= MOST_OPERATIONS:
            _kinds.clear()
        _kinds[key] = kind
    return kind(inputs)


@functools.lru_cache(4096)
def layout(shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple, tuple[int, ...]]:
    """How shapes broadcast, whatever their sizes, and the shape they broadcast to."""
    if shapes.count(shapes[0]) == len(shapes):
        return (), shapes[0]
    whole = np.broadcast_shapes(*shapes)
    return tuple([tuple([n == m for n, m in zip(s[::-1], whole[::-1], strict=False)]) for s in shapes]), whole


def _kind_of(op: Primitive, inputs: tuple, static: dict[str, Any] | None, device: Device) -> Kind | None:
    real = next(x.dtype for x in inputs if isinstance(x, Tensor))
    if real not in FLOATING and not all(isinstance(x, Tensor) for x in inputs):
        return None  # a number beside integers
    number = (FLOAT32 if real in HALF else real).type
    examples = [x if x is None or isinstance(x, Tensor) else number(0) for x in inputs]

    def function(*xs: Any) -> Tensor:
        return apply(op, xs, static)

    function.__name__ = op.name
    try:
        kind = Kind(function, examples, device, free=True)
        return kind if kind.reads else None
    except FusionError:
        _refused.add(op)
        return None
    except (TypeError, ValueError):  # the plain body says what is wrong with the arguments
        return None


def generate(op: Primitive, inputs: tuple, static: dict[str, Any] | None = None) -> Tensor:
    """`apply` for an elementwise primitive whose forward or rule is several calls: one generated kernel on a GPU."""
    for x in inputs:
        if isinstance(x, Tensor):
            if x.device.launches:
                found = generated(op, inputs, static, x.device)
                if found is not None:
                    return found
            break
    return apply(op, inputs, static)


install_generator(generated)
