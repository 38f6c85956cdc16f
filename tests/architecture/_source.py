"""The repository's files and their syntax trees, as the architecture tests read them."""
from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("ruda_tensor", "ruda_autodiff", "ruda_nn", "ruda_optim", "ruda_record")
FOLDERS = (*PACKAGES, "cuda_src", "tests", "docs", "examples", "benchmarks", "tools", ".ci")
TEXT = {".py", ".cu", ".cuh", ".c", ".h", ".hpp", ".md", ".toml", ".yml", ""}


def python_files(*folders: str) -> list[Path]:
    """The Python files of top-level folders, in a fixed order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    """Every text file of the product: the known folders, and the files beside them."""
    nested = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files = [path for path in (*nested, *ROOT.iterdir()) if path.is_file() and path.suffix in TEXT]
    return sorted(path for path in files if "__pycache__" not in path.parts and path.name not in {".git", ".coverage"})


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(source: str, module: str) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) of each import of a module's source, wherever in it the import stands.

    `module` is the dotted name of the package that relative imports start from. For `from a import b` both `a` and
    `a.b` are given, since `b` may be a module. `import_module("a")` and `__import__("a")` count too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def package_of(path: Path) -> str:
    """The dotted name of the package that a file's relative imports start from."""
    return ".".join(path.relative_to(ROOT).parent.parts)


def long_functions(source: str, limit: int) -> list[tuple[int, str, int]]:
    """The (line, name, length) of each function whose body, without its docstring, reaches `limit` lines."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if length >= limit:
                found.append((node.lineno, node.name, length))
    return found
