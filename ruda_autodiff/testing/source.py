"""Derivative rules as syntax trees: finding a rule in its file, and writing it again with one term less."""
from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

MODULES = {"rt", "xp", "np", "cp", "reduce", "arithmetic"}


@functools.cache
def _tree(file: str) -> ast.Module:
    with open(file, encoding="utf-8") as source:
        return ast.parse(source.read())


def definition(function: Callable) -> ast.Lambda | ast.FunctionDef | None:
    """Return the syntax tree of a lambda or function from its file, or None where it cannot be told for sure."""
    code = getattr(function, "__code__", None)
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        file = None
    if code is None or file is None:
        return None
    try:
        tree = _tree(file)
    except (OSError, SyntaxError):
        return None
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    kind = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
    found = [n for n in ast.walk(tree) if isinstance(n, kind) and n.lineno == code.co_firstlineno and _parameters(n) == names]
    if len(found) > 1:  # several lambdas on one line: the first position in the compiled body tells them apart
        spots = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
        found = [n for n in found if (n.body.lineno, n.body.col_offset) == min(spots)] if spots else []  # type: ignore[union-attr]
    return found[0] if len(found) == 1 else None


def _parameters(node: Any) -> list[str]:
    a = node.args
    return [p.arg for p in [*a.posonlyargs, *a.args, *a.kwonlyargs]]


def variants(function: Callable) -> Iterator[tuple[str, Callable]]:
    """Yield (what was changed, the function without it) for each operand of + - * /, each minus sign and each sum.

    Private helpers of the same module that the function calls by name are varied as well, one level deep. A function
    with a `while` loop is left alone, since its end may hang on any term.
    """
    node = definition(function)
    if node is None or any(isinstance(n, ast.While) for n in ast.walk(node)):
        return
    scope = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    for what, changed in _changes(node):
        yield what, _compiled(changed, scope)
    called = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    for name in sorted(called):
        helper = scope.get(name)
        if name.startswith("_") and inspect.isfunction(helper) and helper.__module__ == function.__module__:
            inner = definition(helper)
            if inner is None or any(isinstance(n, ast.While) for n in ast.walk(inner)):
                continue
            inner_scope = {**helper.__globals__, **inspect.getclosurevars(helper).nonlocals}
            for what, changed in _changes(inner):
                yield f"{what} in {name}", _compiled(node, {**scope, name: _compiled(changed, inner_scope)})


def _compiled(node: ast.Lambda | ast.FunctionDef, scope: dict[str, Any]) -> Callable:
    node = ast.fix_missing_locations(copy.deepcopy(node))
    if isinstance(node, ast.Lambda):
        return eval(compile(ast.Expression(node), "<mutant>", "eval"), dict(scope))
    node.decorator_list = []
    space = dict(scope)
    exec(compile(ast.Module([node], []), "<mutant>", "exec"), space)
    return space[node.name]


def _changes(root: ast.Lambda | ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    body = [root.body] if isinstance(root, ast.Lambda) else root.body
    count = sum(1 for part in body for _ in ast.walk(part))
    for position in range(count):
        for choice in range(2):
            changed = copy.deepcopy(root)
            swap = _Swap(position, choice)
            if isinstance(changed, ast.Lambda):
                changed.body = swap.visit(changed.body)
            else:
                changed.body = [swap.visit(part) for part in changed.body]
            if swap.what:
                yield swap.what, changed


class _Swap(ast.NodeTransformer):
    """Replace the node at one position of the walk by one of its operands."""

    def __init__(self, position: int, choice: int) -> None:
        self.left, self.choice, self.what = position, choice, ""

    def visit(self, node: ast.AST) -> Any:
        self.left -= 1
        if self.left == -1:
            new = self.simpler(node)
            if new is not None:
                self.what = f"`{ast.unparse(node)}` became `{ast.unparse(new)}`"
                return new
        return self.generic_visit(node)

    def simpler(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            if self.choice == 0:
                return node.left
            if isinstance(node.op, ast.Sub):
                return ast.UnaryOp(ast.USub(), node.right)
            return None if isinstance(node.op, ast.Div) else node.right
        if self.choice:
            return None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            return node.operand
        if isinstance(node, ast.Call):
            return self.unsummed(node)
        return None

    @staticmethod
    def unsummed(node: ast.Call) -> ast.AST | None:
        f = node.func
        if isinstance(f, ast.Attribute) and f.attr in ("sum", "mean"):
            if isinstance(f.value, ast.Name) and f.value.id in MODULES:
                return node.args[0] if node.args else None
            return f.value
        if isinstance(f, ast.Name) and f.id in ("sum", "mean") and node.args:
            return node.args[0]
        return None
