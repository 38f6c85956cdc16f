"""Functions of tensors whose elementwise operations run as one kernel."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..devices import Device
from ..dtypes import FLOAT32, FLOATING, HALF
from ..kernels.gate import fused
from ..operation import Primitive, apply, install_generator
from ..tensor import Tensor
from .kind import Kind, layout
from .results import Results, kind_of
from .symbols import FusionError

MOST_KINDS = 256  # of arguments that a function remembers


def fuse(f: Callable, /) -> Callable:
    """Return `f`, an elementwise function of tensors, as one kernel forward and one backward on a GPU.

    Elsewhere, and under `use_fused(False)`, `f` itself runs. f may use every elementwise operation, composites among them,
    and tensors that broadcast. What is reduced, multiplied as matrices, drawn at random, reshaped, indexed or read on the
    host stays outside. It returns a tensor, or several in tuples, namedtuples, lists and dicts, with None, numbers and text
    beside them.

    - Results of one shape are written by one kernel, each in its own dtype, and one kernel makes the gradients of the inputs
      of those that were used. Those of another shape are another pair of kernels. An input that is returned among several
      results comes back itself.
    - The kernel computes half types in float32 from the first operation to the last and rounds once; f itself rounds
      after every operation, and a cast to a half type inside f rounds nothing. float32 and float64 are rounded as by f,
      up to a last digit where a mathematical function is another's.
    - f is run once without numbers for each new combination of dtypes, shapes and other arguments. Numbers that it is
      given or captures are part of the kernel from then on: give one that changes, a learning rate, as a 0-d tensor.
    - Only those inputs are kept for backward that the derivative reads. It is derived by the operations' own rules, and
      higher derivatives go by f itself.

    Errors: FusionError, naming the operation, where f is not elementwise, uses a tensor that is not among its arguments, or
    returns anything else; TypeError for an argument that is neither a tensor nor hashable. Both on a GPU only.

    >>> import ruda_tensor as rt
    >>> @rt.fuse
    ... def quick_gelu(x, y):
    ...     return x * rt.sigmoid(1.702 * x) + y
    >>> quick_gelu(rt.tensor([0.0, 1.0], dtype=rt.float64, device=rt.Cpu()), 1.0).numpy()
    array([1.        , 1.84579577])
    >>> product, gate = rt.fuse(lambda x, y: (x * y, rt.sigmoid(x)))(rt.zeros(2, device=rt.Cpu()), 3.0)
    >>> product.tolist(), gate.tolist()
    ([0.0, 0.0], [0.5, 0.5])
    """
    kinds: dict[tuple, Kind | Results] = {}

    @functools.wraps(f)
    def function(*args: Any, **kwargs: Any) -> Any:
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
            kind = kinds[key] = kind_of(_of_tensors(f, args, kwargs), tensors, tensors[0].device)
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
    def bound(*tensors: Tensor) -> Any:
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
