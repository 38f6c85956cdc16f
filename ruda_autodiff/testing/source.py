"""Derivative rules as syntax trees: finding a rule in its file, and writing it again with one term less."""
from __future__ import annotations

import ast
import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

BOOKKEEPING = {"shape", "ndim", "size", "itemsize", "nbytes", "start", "stop"}
MODULES = {"rt", "xp", "np", "cp", "reduce", "arithmetic"}


@functools.cache
def _definitions(file: str) -> dict[int, list[ast.Lambda | ast.FunctionDef]]:
    """The lambdas and functions of a file by the line on which they start."""
    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    found: dict[int, list[ast.Lambda | ast.FunctionDef]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Lambda, ast.FunctionDef)):
            found.setdefault(node.lineno, []).append(node)
    return found


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
        here = _definitions(file).get(code.co_firstlineno, [])
    except (OSError, SyntaxError):
        return None
    names = list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    kind = ast.Lambda if function.__name__ == "<lambda>" else ast.FunctionDef
    found = [n for n in here if isinstance(n, kind) and _parameters(n) == names]
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
    node = ast.fix_missing_locations(copy.copy(node))
    if isinstance(node, ast.Lambda):
        return eval(compile(ast.Expression(node), "<mutant>", "eval"), dict(scope))
    node.decorator_list = []
    space = dict(scope)
    exec(compile(ast.Module([node], []), "<mutant>", "exec"), space)
    return space[node.name]


def _changes(root: ast.Lambda | ast.FunctionDef) -> Iterator[tuple[str, Any]]:
    """Yield each change of one node, in a copy of the whole."""
    for position, node in enumerate(_body_nodes(root)):
        for new in _simpler(node):
            changed = copy.deepcopy(root)
            target = _body_nodes(changed)[position]
            _Replace(target, new).visit(changed)
            yield f"`{ast.unparse(node)}` became `{ast.unparse(new)}`", changed


def _body_nodes(root: ast.Lambda | ast.FunctionDef) -> list[ast.AST]:
    body = [root.body] if isinstance(root, ast.Lambda) else root.body
    return [node for part in body for node in ast.walk(part)]


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, new: ast.AST) -> None:
        self.target, self.new = target, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.target else self.generic_visit(node)


def _simpler(node: ast.AST) -> Sequence[ast.AST]:
    """What may stand in the place of a node: its operands, or what it sums. Arithmetic on shapes is no derivative."""
    if isinstance(node, ast.BinOp):
        if any(isinstance(n, ast.Attribute) and n.attr in BOOKKEEPING for n in ast.walk(node)):
            return []
        if isinstance(node.op, (ast.Add, ast.Mult)):
            return [node.left, node.right]
        if isinstance(node.op, ast.Sub):
            return [node.left, ast.UnaryOp(ast.USub(), node.right)]
        return [node.left] if isinstance(node.op, ast.Div) else []
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [] if isinstance(node.operand, ast.Constant) else [node.operand]
    return _summed(node) if isinstance(node, ast.Call) else []


def _summed(node: ast.Call) -> Sequence[ast.AST]:
    """The argument of a sum or mean, called as a function of a module or as a method."""
    f = node.func
    name = f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")
    if name not in ("sum", "mean"):
        return []
    method = isinstance(f, ast.Attribute) and not (isinstance(f.value, ast.Name) and f.value.id in MODULES)
    return [f.value] if method else list(node.args[:1])  # type: ignore[union-attr]
