"""From expressions to the lines of a kernel: one `const` per expression, in the order in which they were made."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, FLOATING, HALF, INT64, UINT64
from ..kernels.generated import Program
from .symbols import COMPARISONS, LOGICAL, FusionError, Symbol

LOCAL = {
    BOOL: "bool", FLOAT16: "float", BFLOAT16: "float", FLOAT32: "float", FLOAT64: "double",
    **{np.dtype(f"{s}int{n}"): c for s, signed in (("", "signed"), ("u", "unsigned"))
       for n, c in ((8, f"{signed} char"), (16, f"{signed} short"), (32, f"{signed} int"), (64, f"{signed} long long"))},
}  # fmt: skip
_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "true_divide": "/", "equal": "==", "not_equal": "!=", "less": "<",
    "less_equal": "<=", "greater": ">", "greater_equal": ">=", "logical_and": "&&", "logical_or": "||", "logical_xor": "!=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "left_shift": "<<", "right_shift": ">>",
}  # fmt: skip
_RENAMED = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "arctan2": "atan2", "power": "pow", "abs": "fabs",
}  # fmt: skip
_HELPERS = {"maximum": "highest", "minimum": "lowest", "sign": "sign_of", "signbit": "negative"}
_QUICK = {"exp": "__expf", "log1p": "quick_log1p", "tanh": "quick_tanh"}


def program(name: str, outs: Sequence[Symbol], quick: bool) -> tuple[Program, tuple[int, ...], tuple[int, ...]]:
    """The program that computes `outs`, and the positions of the arrays and of the numbers that it reads.

    `quick`, for results of half types: products and sums may be contracted, and some functions are the quick ones; else
    every operation is rounded as the plain one is.
    """
    ordered = needed(outs)
    inputs, numbers = ([s for s in ordered if s.op == op] for op in ("input", "given"))
    places = {s.number: f"LOADED_{place}(k)" for place, s in enumerate(inputs)}
    places |= {s.number: f"p{place}" for place, s in enumerate(numbers)}
    lines = [f"const {LOCAL[s.dtype]} v{s.number} = {_expression(s, quick, places)};" for s in ordered]
    lines += [_result(k, out) for k, out in enumerate(outs)]
    read, given, made = (tuple([s.dtype for s in symbols]) for symbols in (inputs, numbers, outs))
    found = Program(name, read, given, made, tuple(lines), quick)
    return found, tuple([s.value for s in inputs]), tuple([s.value for s in numbers])


def needed(outs: Sequence[Symbol]) -> list[Symbol]:
    """What `outs` are made of, themselves included, in the order in which it was made."""
    found: dict[int, Symbol] = {}
    stack = list(outs)
    while stack:
        symbol = stack.pop()
        if symbol.number not in found:
            found[symbol.number] = symbol
            stack += symbol.args
    return [found[number] for number in sorted(found)]


def _result(k: int, out: Symbol) -> str:
    return f"narrow(v{out.number}, b{k}.at[k]);" if out.dtype in FLOATING else f"b{k}.at[k] = v{out.number};"


def _expression(s: Symbol, quick: bool, places: dict[int, str]) -> str:
    if s.op == "number":
        return literal(s.value, s.dtype)
    if s.op in ("input", "given"):
        loaded = places[s.number]
        return f"widen({loaded})" if s.dtype in FLOATING else f"{loaded} != 0" if s.dtype == BOOL else loaded
    names = [f"v{a.number}" for a in s.args]
    kind = LOCAL[s.dtype]
    if s.op == "cast":
        return f"{names[0]} != 0" if s.dtype == BOOL else f"({kind}){names[0]}"
    if s.op == "spread":
        return names[0]
    if s.op == "where":
        return f"{names[0]} ? {names[1]} : {names[2]}"
    if s.op == "bits":
        return _bits(s, names[0])
    if s.op in _INFIX:
        return _infix(s, names, quick)
    if s.op in ("isnan", "isinf", "isfinite"):
        x = names[0]
        return {"isnan": f"{x} != {x}", "isinf": f"fabs({x}) == INFINITE", "isfinite": f"fabs({x}) < INFINITE"}[s.op]
    if s.op == "logical_not":
        return f"!{names[0]}"
    if s.op == "invert":
        return f"!{names[0]}" if s.dtype == BOOL else f"~{names[0]}"
    return _function(s, names, quick)


def _bits(s: Symbol, x: str) -> str:
    source = s.args[0].dtype
    if source in HALF or s.dtype in HALF:
        raise FusionError("the bits of a half type")
    if source in FLOATING:
        return f"({LOCAL[s.dtype]})bits_of({x})"
    return f"number_of(({'u64' if s.dtype == FLOAT64 else 'u32'}){x})" if s.dtype in FLOATING else f"({LOCAL[s.dtype]}){x}"


def _infix(s: Symbol, names: list[str], quick: bool) -> str:
    x, y = names
    kind, floating = LOCAL[s.dtype], s.dtype in FLOATING
    if s.op == "true_divide" and quick and s.dtype != FLOAT64:
        top, bottom = s.args
        if top.op == "number" and abs(top.value) <= 2.0**20:  # what the quick quotient flushes to 0 is below 2^-106
            return f"__fdividef({x}, {y})"
        if bottom.op == "number" and 2.0**-100 < abs(bottom.value) < 2.0**100:
            return f"{x} * {literal(1.0 / bottom.value, FLOAT32)}"
        return f"quick_quotient({x}, {y})"
    if floating or s.op in COMPARISONS or s.op in LOGICAL:
        return f"{x} {_INFIX[s.op]} {y}"
    if s.dtype == BOOL:
        if s.op in ("add", "multiply"):
            return f"{x} {'||' if s.op == 'add' else '&&'} {y}"
        return f"({x} {_INFIX[s.op]} {y}) != 0"
    if s.op in ("add", "subtract", "multiply"):  # without the sign: what does not fit wraps
        return f"({kind})((u64){x} {_INFIX[s.op]} (u64){y})"
    return f"({kind})({x} {_INFIX[s.op]} {y})"


def _function(s: Symbol, names: list[str], quick: bool) -> str:
    kind, together = LOCAL[s.dtype], ", ".join(names)
    if s.op == "negative":
        return f"-{names[0]}" if s.dtype in FLOATING else f"({kind})((u64)0 - (u64){names[0]})"
    if s.op in _HELPERS:
        return f"{_HELPERS[s.op]}({together})"
    if s.dtype not in FLOATING:
        if s.op == "abs":
            return f"{names[0]} < 0 ? ({kind})((u64)0 - (u64){names[0]}) : {names[0]}"
        if s.op in ("floor_divide", "remainder"):
            return f"{'floor_quotient' if s.op == 'floor_divide' else 'floor_rest'}<{kind}>({together})"
    elif s.op not in ("floor_divide", "remainder"):
        if quick and s.op in _QUICK and s.dtype != FLOAT64:
            return f"{_QUICK[s.op]}({together})"
        return f"{_RENAMED.get(s.op, s.op)}{'' if s.dtype == FLOAT64 else 'f'}({together})"
    raise FusionError(f"'{s.op}' of {s.dtype}")


def literal(value: Any, dtype: np.dtype) -> str:
    """A number as C writes it, exactly."""
    if dtype == BOOL:
        return "true" if value else "false"
    if dtype not in FLOATING:
        if dtype in (INT64, UINT64):
            return f"({LOCAL[dtype]}){value % 2**64}ull"
        return f"({LOCAL[dtype]}){value % 2**32}u"
    kind = LOCAL[dtype]
    if math.isnan(value):
        return f"({kind})__uint_as_float(0x7fc00000u)"
    if math.isinf(value):
        return f"({kind}){'-' if value < 0 else ''}INFINITE"
    return f"({kind}){value.hex()}"
