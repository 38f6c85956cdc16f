"""Every operation has a row in `tests/specs`: no row, no proof of its derivative."""
from __future__ import annotations

import importlib
import inspect
import pkgutil

import ruda_tensor as rt
from tests import specs

# Public functions of ruda_tensor that compute no tensor from tensors: there is nothing to compare or to derive.
# `random` has its own tests, since its results have no closed reference.
NOT_OPERATIONS = {
    # making tensors from other things
    "tensor", "asarray", "from_dlpack", "empty", "empty_like",
    # devices, dtypes and settings
    "default_device", "set_default_device", "use_fused", "use_tf32",
    # functions of functions
    "fuse",
    "can_cast", "finfo", "iinfo", "isdtype", "result_type", "__array_namespace_info__",
}


def public_functions() -> set[str]:
    return {name for name in rt.__all__ if inspect.isfunction(getattr(rt, name))}


def rows() -> list:
    modules = [importlib.import_module(f"tests.specs.{info.name}") for info in pkgutil.iter_modules(specs.__path__)]
    return [row for module in modules for row in getattr(module, "ROWS", [])]


def test_every_operation_has_a_spec_row():
    missing = sorted(public_functions() - NOT_OPERATIONS - {row.name for row in rows()})
    assert not missing, f"{len(missing)} operations without a row in tests/specs: {', '.join(missing)}"


def test_every_spec_row_names_an_operation():
    unknown = sorted({row.name for row in rows()} - public_functions())
    assert not unknown, f"rows for what ruda_tensor does not have: {', '.join(unknown)}"


def test_the_list_of_what_is_no_operation_is_true():
    stale = sorted(NOT_OPERATIONS - public_functions())
    assert not stale, f"not public functions of ruda_tensor: {', '.join(stale)}"
    both = sorted(NOT_OPERATIONS & {row.name for row in rows()})
    assert not both, f"these have rows, so they are operations: {', '.join(both)}"


def test_rows_of_one_name_are_told_apart():
    names = [(row.name, row.tag) for row in rows()]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"give these rows different tags: {twice}"
