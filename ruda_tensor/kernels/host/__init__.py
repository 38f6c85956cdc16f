"""Optional compiled bodies of the CPU's hot paths, one pass over memory where NumPy needs many.

The C sources beside this file are compiled by the system's compiler when an operation first asks, once per machine.
Without a compiler, or with RUDA_HOST_KERNELS=0, the NumPy bodies run; both keep the same residuals.
"""
from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["status", "use_host_kernels"]

SMALL = 1 << 14  # elements; fewer are no reason to wait for a compiler
FLOAT32 = np.dtype(np.float32)
# Sums and exponentials may contract a * b + c; updates give the bits of the NumPy rules, so they may not.
FLAGS = {"rows": ("-ffp-contract=fast",), "gate": ("-ffp-contract=fast",), "convolve": ("-ffp-contract=fast",),
         "attention": ("-ffp-contract=fast",), "product": ("-ffp-contract=fast",), "cross_entropy": ("-ffp-contract=fast",),
         "update": ("-ffp-contract=off",), "pool": ("-pthread",)}  # fmt: skip
_enabled = os.environ.get("RUDA_HOST_KERNELS", "1") != "0"
_libraries: dict[str, Any] = {}
_reasons: dict[str, str] = {}
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


def library(name: str) -> Any:
    """The compiled library, or None."""
    if not _enabled:
        return None
    try:
        return _libraries[name]
    except KeyError:
        return _load(name)


def loaded(name: str) -> bool:
    """Whether a library is there without a wait for the compiler."""
    return _libraries.get(name) is not None


def _load(name: str) -> Any:
    from .build import Unavailable, load

    with _lock:
        if name not in _libraries:
            try:
                _libraries[name] = load(name, FLAGS[name])
            except (Unavailable, OSError) as error:
                _libraries[name], _reasons[name] = None, str(error)
        return _libraries[name]


def function(name: str, symbol: str, arguments: str) -> Any:
    """A function of a library, or None. `arguments` has a letter for each: p pointer, n int64, f float32; >n returns one."""
    found = library(name)
    if found is None:
        return None
    call = getattr(found, symbol)
    if call.argtypes is None:
        kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float}
        given, _, result = arguments.partition(">")
        call.restype = kinds[result] if result else None
        call.argtypes = [kinds[letter] for letter in given]
        call.place = ctypes.cast(call, ctypes.c_void_p)  # for pool.c, which calls it
    return call


def address(a: Any) -> int:
    """Where the elements of an array begin; 0 for None."""
    return 0 if a is None else a.__array_interface__["data"][0]


_word_at = ctypes.c_size_t.from_address
_HEAD = object.__basicsize__


def _address(a: Any) -> int:
    """Where the elements of an array begin; 0 for None. The first word of an array object is this pointer."""
    return 0 if a is None else _word_at(id(a) + _HEAD).value


if sys.implementation.name == "cpython" and all(_address(a) == address(a) for a in (np.zeros(3), np.zeros((2, 2))[1:, 1:])):
    address = _address  # public in NumPy's C interface, and ten times as fast as asking for a dictionary


def status() -> str:
    """Say whether compiled bodies are in use: "on", "off", or why not.

    >>> with use_host_kernels(False):
    ...     print(status())
    off
    """
    if not _enabled:
        return "off"
    for name in FLAGS:
        library(name)
    return "; ".join(f"{name}: {why}" for name, why in _reasons.items()) or "on"


@contextmanager
def use_host_kernels(enabled: bool) -> Iterator[None]:
    """Turn the compiled bodies on or off inside a `with` block, for all threads of the process.

    `RUDA_HOST_KERNELS=0` in the environment turns them off from the start.

    >>> import ruda_tensor as rt
    >>> x = rt.ones((256, 256), device=rt.Cpu())
    >>> with use_host_kernels(False):
    ...     plain = rt.softmax(x)
    >>> bool((plain == rt.softmax(x)).all())
    True
    """
    global _enabled
    before, _enabled = _enabled, bool(enabled)
    try:
        yield
    finally:
        _enabled = before
