"""A stand-in for CuPy: arrays that meet no array of the host, and that nobody looks at while a step is recorded.

It refuses what CuPy refuses inside a capture: bringing a list or a NumPy array, taking a number off, and every result whose
size only the values know. It has no kernels, so the plain bodies run, and what is "recorded" runs at once.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.kernels import gemm, pointwise, segments
from ruda_tensor.live import LivePlace
from ruda_tensor.random import draws
from ruda_tensor.recording import here

_SIZED_BY_VALUES = {"nonzero", "flatnonzero", "argwhere", "unique", "compress", "extract"}


class Looked(Exception):
    """What a capture on a GPU would have died of; no CaptureError, which says what to write instead."""


def _refuse(what: str) -> None:
    if here.recording is not None:
        raise Looked(f"{what} inside a capture")


def _host(x: Any) -> bool:
    return isinstance(x, (list, tuple)) or (type(x) is np.ndarray and x.ndim > 0)


def _plain(x: Any) -> Any:
    if isinstance(x, Array):
        return x.view(np.ndarray)
    if isinstance(x, (list, tuple)):
        return type(x)(_plain(v) for v in x)
    if _host(x):
        raise TypeError(f"an array of the host meets the device: {x!r}")
    return x


def _ours(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x).view(Array)
    return type(x)(map(_ours, x)) if type(x) in (list, tuple) else x


def _index(key: Any) -> Any:
    for k in key if isinstance(key, tuple) else (key,):
        if _host(k):
            _refuse("an index from the host")
        if getattr(k, "dtype", None) == np.bool_:
            _refuse("counting what a mask picks")
    return _plain(key)


def _call(f: Callable, args: tuple, options: dict) -> Any:
    if getattr(f, "__name__", "") in _SIZED_BY_VALUES:
        _refuse(f.__name__)
    out = options.get("out")
    result = f(*_plain(args), **{k: _plain(v) for k, v in options.items()})
    return _ours(result) if out is None else out[0] if isinstance(out, tuple) else out


def _looking(name: str) -> Callable:
    def method(self: Any, *args: Any) -> Any:
        _refuse(f"{name} of an array")
        return getattr(self.view(np.ndarray), name)(*args)

    return method


class Array(np.ndarray):
    """An array of the device."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _call(getattr(ufunc, method), inputs, options)

    def __array_function__(self, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        return _call(func, args, kwargs)

    def __getitem__(self, key: Any) -> Any:
        return _ours(self.view(np.ndarray)[_index(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if _host(value):
            _refuse("writing an array of the host")
        self.view(np.ndarray)[_index(key)] = _plain(value)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def take(self, indices: Any, axis: int | None = None) -> Any:  # type: ignore[override]
        if _host(indices):
            _refuse("an index from the host")
        return _ours(self.view(np.ndarray).take(_plain(indices), axis, mode="wrap"))  # CuPy's out of range wraps around

    def nonzero(self) -> Any:
        return _call(np.nonzero, (self,), {})

    __bool__, __int__, __float__, __index__ = map(_looking, ("__bool__", "__int__", "__float__", "__index__"))
    item, tolist = _looking("item"), _looking("tolist")  # type: ignore[assignment]


def _as_strided(x: Any, *args: Any, **options: Any) -> Any:
    return _ours(np.lib.stride_tricks.as_strided(_plain(x), *args, **options))


class Namespace:
    """The functions of NumPy, over such arrays."""

    __name__ = "strict"
    ndarray = Array

    def __getattr__(self, name: str) -> Any:
        if name == "lib":
            return SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_as_strided))
        found = getattr(np, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **options: _call(found, args, options)

    def array(self, x: Any, dtype: Any = None, **options: Any) -> Any:
        if _host(x):
            _refuse("an array from the host")
            return np.array(x, dtype, **options).view(Array)
        return _ours(np.array(_plain(x), dtype, **options))

    def asarray(self, x: Any, dtype: Any = None) -> Any:
        return x if isinstance(x, Array) and dtype is None else self.array(x, dtype)


class Strict(rt.Cuda):
    """A GPU whose arrays are those above."""

    xp = Namespace()  # type: ignore[assignment]
    array_type = Array  # type: ignore[assignment]

    def guard(self) -> Any:
        return contextlib.nullcontext()

def _add_rows(rows: Any, index: Any, out: Any) -> Any:
    np.add.at(out.view(np.ndarray), index.view(np.ndarray), rows.view(np.ndarray))
    return out


def _multiply(xp: Any, problem: Any, x: Any, y: Any, out: Any) -> None:
    out[...] = xp.matmul(x.astype(out.dtype), y.astype(out.dtype))


def _dropout(xp: Any, x: Any, *, p: float, seed: Any, offset: int) -> Any:
    """What the kernel does; it knows the places that change from replay to replay."""
    if isinstance(seed, LivePlace):
        seed, start = seed.memory()
        offset += start
    before, here.recording = here.recording, None
    mask = draws.bernoulli(np, x.shape, 1 - p, seed, offset)
    here.recording = before
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    return (wide * wide.dtype.type(1 / (1 - p)) * mask.view(Array)).astype(x.dtype)


@contextlib.contextmanager
def strict_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Such a GPU, with the few kernels that a plain body cannot do without."""
    monkeypatch.setattr(segments, "add_rows", _add_rows)
    monkeypatch.setattr(gemm.cublas, "multiply", _multiply)
    monkeypatch.setattr(pointwise, "dropout", _dropout)
    yield Strict()


@contextlib.contextmanager
def recorded() -> Iterator[None]:
    """Inside, this thread records, and everything runs at once all the same."""
    here.recording = SimpleNamespace(
        constant=lambda array: np.array(array).view(Array), tick=lambda f, undo=None: f(), slot=lambda layout, values: values
    )  # type: ignore[assignment]
    try:
        yield
    finally:
        here.recording = None
