"""Einstein summation, carried out as matrix products.

A pair of operands is brought into the form [batch, left, contracted] @ [batch, contracted, right] by views, so BLAS
does the work; NumPy's einsum would walk a batch element by element. The plan depends on the subscripts and the shapes
alone, and is remembered. Gradients are those of the parts.
"""
from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..dtypes import BOOL, FLOAT32, HALF, promote_types
from ..tensor import Tensor
from ._common import as_tensor, cast
from .arithmetic import multiply
from .index import getitem
from .matmul import matmul
from .reduce import sum as sum_
from .shape import permute_dims, reshape

__all__ = ["einsum"]

Label = str | int  # a letter, or an integer counting the axes of an ellipsis from the right
Program = tuple[tuple[Callable, Any], ...]  # views and sums to apply one after the other


def einsum(subscripts: str, /, *operands: Tensor) -> Tensor:
    """Return the sum of products that `subscripts` describes: "ij,jk->ik" is a matrix product.

    Each operand's axes are named by letters; out[output] = sum over all other letters of the product. A letter twice
    in one operand means its diagonal. `...` stands for any further axes, which broadcast (and are summed where the
    output leaves them out). Without `->` the output has the letters that occur once, in alphabetical order, after the
    ellipsis. Half types are rounded once, at the end.

    Errors: ValueError for malformed subscripts, and where one letter names axes of different size (size 1 is no
    exception: only the axes of an ellipsis broadcast).

    >>> import ruda_tensor as rt
    >>> x = rt.tensor([[1.0, 2.0], [3.0, 4.0]], device=rt.Cpu())
    >>> rt.einsum("ij,kj->ik", x, x).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    >>> rt.einsum("ii->", x).item()
    5.0
    """
    if not isinstance(subscripts, str):
        raise TypeError(f"einsum: subscripts are a string, got {subscripts!r}; rt.einsum('ij,jk->ik', x, y)")
    like = next((x for x in operands if isinstance(x, Tensor)), None)
    tensors = [as_tensor(x, like, "einsum") for x in operands]
    plan = _plan(subscripts, tuple([x._data.shape for x in tensors]))
    dtype = functools.reduce(promote_types, [x.dtype for x in tensors])
    if dtype == BOOL:
        raise TypeError("einsum: bools are not multiplied; convert them first: x.astype(rt.float32)")
    inner = FLOAT32 if dtype in HALF and plan.roundings > 1 else dtype
    waiting = [_run(program, cast(x, inner)) for program, x in zip(plan.operands, tensors)]
    for pair in plan.pairs:
        y, x = waiting.pop(pair.second), waiting.pop(pair.first)
        product = pair.combine(_run(pair.left, x), _run(pair.right, y))
        waiting.append(_run(pair.after, product))
    return cast(_run(plan.last, waiting[0]), dtype)


def _run(program: Program, x: Tensor) -> Tensor:
    for step, argument in program:
        x = step(x, argument)
    return x


def _sum(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return sum_(x, axis=axes, dtype=x.dtype)


def _diagonal(x: Tensor, axes: tuple[int, int]) -> Tensor:
    """The elements with equal indices on two axes of one size; the axis that remains comes last."""
    n = x.shape[axes[0]]
    rest = [a for a in range(x.ndim) if a not in axes]
    square = permute_dims(x, (*rest, *axes))
    return getitem(reshape(square, (*square.shape[:-2], n * n)), (Ellipsis, slice(None, None, n + 1)))


class Pair(NamedTuple):
    """How two waiting operands become one: views of each, a product, a view of the result."""

    first: int
    second: int
    left: Program
    right: Program
    combine: Callable
    after: Program


class Plan(NamedTuple):
    operands: tuple[Program, ...]
    pairs: tuple[Pair, ...]
    last: Program
    roundings: int  # operations that would round half types


@functools.lru_cache(maxsize=512)
def _plan(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> Plan:
    inputs, output = _parse(subscripts, shapes)
    sizes = _sizes(subscripts, inputs, shapes)
    programs, labels = [], []
    for names, shape in zip(inputs, shapes):
        program, names = _distinct(names, shape, sizes)
        programs.append(program)
        labels.append(names)
    pairs: list[Pair] = []
    while len(labels) > 1:
        i, j = _cheapest(labels, output, sizes)
        second, first = labels.pop(j), labels.pop(i)
        needed = set(output).union(*labels)
        pair, result = _pair(i, j, first, second, needed, sizes)
        pairs.append(pair)
        labels.append(result)
    last, left = _summed(labels[0], set(output))
    last = _arranged(last, left, [output], sizes, tuple([sizes[label] for label in output]))
    steps = [step for p in (last, *[q for pair in pairs for q in (pair.left, pair.right)]) for step, _ in p]
    return Plan(tuple(programs), tuple(pairs), last, len(pairs) + steps.count(_sum))


def _parse(subscripts: str, shapes: tuple) -> tuple[list[list[Label]], list[Label]]:
    """The labels of each operand's axes and of the output's."""
    text = subscripts.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValueError(f"einsum: {subscripts!r} names {len(terms)} operands, and {len(shapes)} were given")
    for term in (*terms, right):
        letters = term.replace("...", "", 1)
        if letters and not (letters.isascii() and letters.isalpha()):
            raise ValueError(f"einsum: {term!r} in {subscripts!r}: use letters and one '...', as in 'b...i,ij->b...j'")
    inputs, widest = [], 0
    for term, shape in zip(terms, shapes):
        extra = len(shape) - len(term.replace("...", ""))
        if extra < 0 or (extra and "..." not in term):
            raise ValueError(f"einsum: {term!r} of {subscripts!r} does not fit shape {shape}: one letter per axis")
        inputs.append(_labels(term, extra))
        widest = max(widest, extra if "..." in term else 0)
    if arrow:
        output = _labels(right, widest)
    else:
        every = [label for labels in inputs for label in labels if isinstance(label, str)]
        output = [*range(widest, 0, -1), *sorted([label for label in set(every) if every.count(label) == 1])]
    known = {label for labels in inputs for label in labels}
    if len(set(output)) != len(output) or not set(output) <= known:
        raise ValueError(f"einsum: the output of {subscripts!r} must name letters of the operands, each once")
    return inputs, output


def _labels(term: str, extra: int) -> list[Label]:
    before, dots, after = term.partition("...")
    return [*before, *(range(extra, 0, -1) if dots else ()), *after]


def _sizes(subscripts: str, inputs: list[list[Label]], shapes: tuple) -> dict[Label, int]:
    sizes: dict[Label, int] = {}
    for labels, shape in zip(inputs, shapes):
        for label, n in zip(labels, shape):
            old = sizes.setdefault(label, n)
            if old == n:
                continue
            if isinstance(label, str) or 1 not in (old, n):
                what = f"{label!r}" if isinstance(label, str) else "an axis of the ellipsis"
                raise ValueError(f"einsum: {what} in {subscripts!r} has sizes {old} and {n}; shapes {shapes}")
            sizes[label] = max(old, n) if min(old, n) else 0
    return sizes


def _distinct(labels: list[Label], shape: tuple[int, ...], sizes: dict) -> tuple[Program, list[Label]]:
    """Take diagonals until each label occurs once, and drop the axes of size 1 that an ellipsis would stretch."""
    program: list[tuple[Callable, Any]] = []
    labels, kept = list(labels), list(shape)
    while twice := [label for label in labels if labels.count(label) > 1]:
        i = labels.index(twice[0])
        j = labels.index(twice[0], i + 1)
        program.append((_diagonal, (i, j)))
        n = kept[i]
        for at in (j, i):
            del labels[at], kept[at]
        labels.append(twice[0])
        kept.append(n)
    stretched = [label for label, n in zip(labels, kept) if n != sizes[label]]
    if stretched:
        rest = [(label, n) for label, n in zip(labels, kept) if label not in stretched]
        labels = [label for label, _ in rest]
        program.append((reshape, tuple([n for _, n in rest])))
    return tuple(program), labels


def _summed(labels: list[Label], needed: set[Label]) -> tuple[Program, list[Label]]:
    """Sum over the labels that nothing else needs."""
    axes = tuple([i for i, label in enumerate(labels) if label not in needed])
    return ((_sum, axes),) if axes else (), [label for label in labels if label in needed]


def _arranged(program: Program, labels: list[Label], groups: list[list[Label]], sizes: dict, shape: tuple) -> Program:
    """Add the permutation that brings the groups of labels one after the other, and the reshape to `shape`."""
    wanted = [label for group in groups for label in group]
    if labels != wanted:
        program = (*program, (permute_dims, tuple([labels.index(label) for label in wanted])))
    return _reshaped(program, [sizes[label] for label in wanted], shape)


def _reshaped(program: Program, old: Iterable[int], shape: tuple[int, ...]) -> Program:
    return program if tuple(old) == shape else (*program, (reshape, shape))


def _pair(i: int, j: int, x: list[Label], y: list[Label], needed: set[Label], sizes: dict) -> tuple[Pair, list[Label]]:
    """Plan the product of two operands: shared labels are batch where they are needed later, else contracted."""
    left, x = _summed(x, needed.union(y))
    right, y = _summed(y, needed.union(x))
    batch = [label for label in x if label in y and label in needed]
    inner = [label for label in x if label in y and label not in needed]
    rows = [label for label in x if label not in y]
    columns = [label for label in y if label not in x]
    b, k, m, n = (tuple([sizes[label] for label in group]) for group in (batch, inner, rows, columns))
    if inner:
        first, second = (*b, math.prod(m), math.prod(k)), (*b, math.prod(k), math.prod(n))
        after = _reshaped((), (*first[:-1], second[-1]), (*b, *m, *n))
    else:  # nothing to sum over: a product that broadcasts
        first, second, after = (*b, *m, *[1 for _ in n]), (*b, *[1 for _ in m], *n), ()
    left = _arranged(left, x, [batch, rows, inner], sizes, first)
    right = _arranged(right, y, [batch, inner, columns], sizes, second)
    return Pair(i, j, left, right, matmul if inner else multiply, after), [*batch, *rows, *columns]


def _cheapest(labels: list[list[Label]], output: list[Label], sizes: dict) -> tuple[int, int]:
    """The pair to multiply next: that whose result is smallest beside its two factors."""

    def size(names: Iterable[Label]) -> int:
        return math.prod([sizes[label] for label in names])

    def growth(pair: tuple[int, int]) -> int:
        x, y = (labels[i] for i in pair)
        needed = set(output).union(*[names for k, names in enumerate(labels) if k not in pair])
        return size((set(x) | set(y)) & needed) - size(x) - size(y)

    return min(itertools.combinations(range(len(labels)), 2), key=growth)
