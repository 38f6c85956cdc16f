"""Everything public says what it is and shows itself at work."""
from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import pytest

from ._source import PACKAGES


def public_modules(package: str) -> list[ModuleType]:
    """A package, and each of its modules that declares `__all__` and has no private part in its name."""
    top = importlib.import_module(package)
    names = [info.name for info in pkgutil.walk_packages(top.__path__, f"{package}.")]
    public = [importlib.import_module(name) for name in names if not any(p.startswith("_") for p in name.split("."))]
    return [top, *(module for module in public if hasattr(module, "__all__"))]


def public_objects(package: str) -> dict[str, Any]:
    """The functions and classes behind each public name, each object once, under the first name that has it."""
    found: dict[int, tuple[str, Any]] = {}
    for module in public_modules(package):
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isroutine(item) or inspect.isclass(item):
                found.setdefault(id(item), (f"{module.__name__}.{name}", item))
    return dict(found.values())


def docstring(item: Any) -> str:
    """The item's own docstring: not one inherited, nor the signature that a dataclass makes up for itself."""
    if inspect.isclass(item):
        own = vars(item).get("__doc__") or ""
        return "" if own.startswith(f"{item.__name__}(") else own
    return item.__doc__ or ""


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_is_public(package):
    module = importlib.import_module(package)
    assert (module.__doc__ or "").strip(), f"{package} has no docstring"
    assert module.__all__, f"{package}.__all__ is empty"
    assert len(module.__all__) == len(set(module.__all__)), f"{package}.__all__ names something twice"
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert not missing, f"{package}.__all__ names what is not there: {missing}"


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_have_a_docstring_with_an_example(package):
    objects = public_objects(package)
    assert objects, f"{package} has no public function or class"
    bare = [name for name, item in objects.items() if not docstring(item).strip()]
    assert not bare, f"no docstring: {', '.join(bare)}"
    silent = [
        name
        for name, item in objects.items()
        if ">>> " not in docstring(item) and not (inspect.isclass(item) and issubclass(item, Exception))
    ]
    assert not silent, f"no runnable example (>>>): {', '.join(silent)}"


def test_a_missing_or_borrowed_docstring_is_seen():
    from dataclasses import dataclass

    class Told:
        """Told.

        >>> 1
        1
        """

    class Borrowed(Told):
        pass

    @dataclass
    class Config:
        rate: float

    assert ">>> " in docstring(Told)
    assert docstring(Borrowed) == "" and docstring(Config) == "" and docstring(lambda: None) == ""
