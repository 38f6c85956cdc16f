"""Arrays without numbers: what a primitive's forward makes of them is an expression.

A `Symbol` has a dtype and a shape as an array has, and each operation on it makes another one. Equal expressions are one
object, so what occurs twice is computed once. Whatever is not elementwise raises `FusionError`.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import BOOL, FLOAT32, FLOAT64, FLOATING, HALF, as_dtype, promote_types

COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
ARITHMETIC = {"add", "subtract", "multiply", "maximum", "minimum", "floor_divide", "remainder"}
LOGICAL = {"logical_and", "logical_or", "logical_xor", "logical_not"}
BITWISE = {"bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"}
QUESTIONS = {"isnan", "isinf", "isfinite", "signbit"}
SAME = {"negative", "abs", "sign"}
WHOLE = {"floor", "ceil", "trunc", "rint"}
MATHEMATICS = {
    "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh",
    "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "erf", "erfc", "power", "fmod", "hypot", "arctan2", "copysign",
}  # fmt: skip


class FusionError(TypeError):
    """A function that was to become one kernel does something that is not elementwise; the message names it."""


class Graph:
    """The expressions of one function, each once, in the order in which they were made."""

    def __init__(self) -> None:
        self.known: dict[tuple, Symbol] = {}

    def make(self, op: str, args: tuple[Symbol, ...], dtype: Any, shape: tuple[int, ...], value: Any = None) -> Symbol:
        key = (op, tuple(a.number for a in args), dtype, shape, _exact(value))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Symbol(self, len(self.known), op, args, dtype, shape, value)
        return found

    def number(self, value: Any, dtype: Any, shape: tuple[int, ...] = ()) -> Symbol:
        """A constant, with the value that the dtype holds."""
        with np.errstate(over="ignore"):
            exact = np.asarray(value).astype(dtype).item()
        return self.make("number", (), dtype, shape, float(exact) if dtype in FLOATING else exact)

    def call(self, op: str, *args: Any) -> Symbol:
        """An elementwise operation of NumPy's on symbols, numbers and NumPy scalars."""
        if op in COMPARISONS:
            return self.elementwise(op, self.alike(args), BOOL)
        if op in LOGICAL:
            return self.elementwise(op, tuple([self.symbol(a, BOOL).astype(BOOL) for a in args]), BOOL)
        x = self.alike(args)
        dtype = x[0].dtype
        if op in QUESTIONS and dtype in FLOATING:
            return self.elementwise(op, x, BOOL)
        if op in ARITHMETIC or op in SAME or (op in BITWISE and dtype not in FLOATING):
            return self.elementwise(op, x, dtype)
        if op == "true_divide":
            x = x if dtype in FLOATING else tuple([a.astype(FLOAT64) for a in x])
            return self.elementwise(op, x, x[0].dtype)
        if (op in WHOLE or op in MATHEMATICS) and dtype in FLOATING:
            return self.elementwise(op, x, dtype)
        raise FusionError(f"'{op}' of {dtype}")

    def where(self, condition: Any, x: Any, y: Any) -> Symbol:
        x, y = self.alike((x, y))
        return self.elementwise("where", (self.symbol(condition, BOOL).astype(BOOL), x, y), x.dtype)

    def elementwise(self, op: str, args: tuple[Symbol, ...], dtype: Any) -> Symbol:
        shape = args[0].shape
        for a in args:
            if a.shape != shape:
                shape = np.broadcast_shapes(shape, a.shape)
        return self.make(op, args, dtype, shape)

    def symbol(self, x: Any, dtype: Any) -> Symbol:
        """`x` as a symbol; Python numbers take `dtype`."""
        if isinstance(x, Symbol):
            return x
        if isinstance(x, (np.generic, np.ndarray)):
            if x.ndim:
                raise FusionError("an array of numbers")
            return self.number(x, as_dtype(x.dtype))
        return self.number(x, dtype)

    def alike(self, args: tuple) -> tuple[Symbol, ...]:
        """The arguments as symbols of one dtype: numbers are weak, as they are for NumPy."""
        strong = [a for a in args if isinstance(a, (Symbol, np.generic, np.ndarray))]
        dtype = as_dtype(strong[0].dtype) if strong else FLOAT32 if any(isinstance(a, float) for a in args) else BOOL
        for a in strong[1:]:
            dtype = promote_types(dtype, as_dtype(a.dtype))
        if dtype not in FLOATING and any(isinstance(a, float) for a in args):
            dtype = FLOAT64
        return tuple([self.symbol(a, dtype).astype(dtype) for a in args])


def _exact(value: Any) -> Any:
    """A key that tells 0.0 from -0.0 and True from 1."""
    return (type(value), value.hex() if isinstance(value, float) else value)


class Symbol:
    """An expression in place of an array."""

    __slots__ = ("graph", "number", "op", "args", "dtype", "shape", "value")
    __array_ufunc__ = None  # NumPy's scalars leave operators to this class

    def __init__(self, graph: Graph, number: int, op: str, args: tuple, dtype: Any, shape: tuple, value: Any) -> None:
        self.graph, self.number, self.op, self.args = graph, number, op, args
        self.dtype, self.shape, self.value = dtype, shape, value

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        """A cast. One to a half type and back changes nothing: half types are storage, and nothing is stored here."""
        dtype = as_dtype(dtype)
        if dtype == self.dtype:
            return self
        if self.op == "number":
            return self.graph.number(self.value, dtype, self.shape)
        if self.op == "cast" and self.dtype in HALF and self.args[0].dtype == FLOAT32:
            return self.args[0].astype(dtype)
        if self.op == "cast" and self.dtype == FLOAT32 and dtype in HALF and self.args[0].dtype == dtype:
            return self.args[0]
        return self.graph.make("cast", (self,), dtype, self.shape)

    def view(self, dtype: Any) -> Symbol:
        """The bits as another dtype; bodies that choose among bits come out as a choice among numbers."""
        dtype = as_dtype(dtype)
        if dtype == self.dtype:
            return self
        if self.dtype == BOOL:
            return self.astype(dtype)
        if self.op == "bits" and self.args[0].dtype == dtype:
            return self.args[0]
        if self.op == "where" and all(a.op == "bits" and a.args[0].dtype == dtype for a in self.args[1:]):
            return self.graph.where(self.args[0], self.args[1].args[0], self.args[2].args[0])
        if self.op == "multiply":  # of bits by 0 or 1
            bits, chosen = self.args
            while chosen.op == "cast" and chosen.args[0].dtype != BOOL:
                chosen = chosen.args[0]
            if bits.op == "bits" and bits.args[0].dtype == dtype and chosen.op == "cast":
                return self.graph.where(chosen.args[0], bits.args[0], dtype.type(0))
        return self.graph.make("bits", (self,), dtype, self.shape)

    def copy(self) -> Symbol:
        return self

    def reshape(self, *shape: Any) -> Symbol:
        shape = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if shape != self.shape:
            raise FusionError("a change of shape")
        return self

    def __pow__(self, n: Any) -> Symbol:
        if isinstance(n, (int, float)) and n == 2:
            return self.graph.call("multiply", self, self)
        return self.graph.call("power", self, n)

    def host(self) -> Any:
        raise FusionError("the value of a tensor")

    def __bool__(self) -> bool:
        return self.host()

    def __getitem__(self, key: Any) -> Any:
        raise FusionError("indexing")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise FusionError(f"'{name}'")  # any, sum, transpose ...

    __hash__ = object.__hash__


def _operator(op: str, swapped: bool = False) -> Any:
    if swapped:
        return lambda self, other: self.graph.call(op, other, self)
    return lambda self, *other: self.graph.call(op, self, *other)


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift", "mod": "remainder", "floordiv": "floor_divide",
}  # fmt: skip
_ONE_SIDED = {
    "neg": "negative", "invert": "invert", "abs": "abs", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal",
    "gt": "greater", "ge": "greater_equal",
}  # fmt: skip
for _name, _op in _OPERATORS.items():
    setattr(Symbol, f"__{_name}__", _operator(_op))
    setattr(Symbol, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _op in _ONE_SIDED.items():
    setattr(Symbol, f"__{_name}__", _operator(_op))


class Namespace:
    """The array module of symbols: NumPy's elementwise functions, and no others."""

    __name__ = "symbols"
    ndarray = Symbol

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.where = graph.where

    def square(self, x: Symbol) -> Symbol:
        return self.graph.call("multiply", x, x)

    def reciprocal(self, x: Symbol) -> Symbol:
        return self.graph.call("true_divide", 1.0, x)

    def clip(self, x: Symbol, low: Any, high: Any) -> Symbol:
        return self.minimum(self.maximum(x, low), high)

    def asarray(self, x: Any) -> Symbol:
        kind = BOOL if isinstance(x, bool) else FLOAT64 if isinstance(x, float) else np.dtype("int64")
        return self.graph.symbol(x, kind)

    def broadcast_to(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        return x if x.shape == shape else self.graph.make("spread", (x,), x.dtype, shape)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Symbol:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        return self.graph.number(value, as_dtype(np.asarray(value).dtype if dtype is None else dtype), shape)

    def zeros(self, shape: Any, dtype: Any = FLOAT64) -> Symbol:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: Any = FLOAT64) -> Symbol:
        return self.full(shape, 1, dtype)

    def full_like(self, x: Symbol, value: Any, dtype: Any = None) -> Symbol:
        return self.full(x.shape, value, x.dtype if dtype is None else dtype)

    def zeros_like(self, x: Symbol, dtype: Any = None) -> Symbol:
        return self.full_like(x, 0, dtype)

    def ones_like(self, x: Symbol, dtype: Any = None) -> Symbol:
        return self.full_like(x, 1, dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        op = _ALSO.get(name, name)
        if op in _FUNCTIONS:
            return lambda *args: self.graph.call(op, *args)
        raise FusionError(f"'{name}'")


_FUNCTIONS = COMPARISONS | ARITHMETIC | LOGICAL | BITWISE | QUESTIONS | SAME | WHOLE | MATHEMATICS | {"true_divide"}
_ALSO = {"absolute": "abs", "fabs": "abs", "divide": "true_divide", "round": "rint"}
