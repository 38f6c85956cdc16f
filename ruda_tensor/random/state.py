"""Where random numbers come from: keys, generators, and the one generator of the process."""
from __future__ import annotations

import math
import numbers
import operator
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ml_dtypes

from .. import philox
from ..devices import Device, resolve_device
from ..dtypes import INTEGER, as_dtype, is_floating
from ..live import LivePlace
from ..recording import recording
from ..tensor import Tensor
from . import draws

ALGORITHM = "philox4x32-10"


def whole(name: str, value: Any, low: int, high: int, fix: str) -> int:
    """Return `value` as a Python integer in [low, high), or raise naming it and the fix."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise TypeError(f"{name} must be an integer, got {value!r}; write {fix}")
    if not low <= number < high:
        top = f"2**{high.bit_length() - 1}" if high >= 2**32 else high
        raise ValueError(f"{name} must be in [{low}, {top}), got {number}; write {fix}")
    return number


def check_seed(value: Any) -> int:
    return whole("seed", value, 0, 2**64, "seed=7")


def check_shape(name: str, shape: Any) -> tuple[int, ...]:
    """Return a shape given as an integer or a sequence of integers as a tuple."""
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)) else (shape,)
    return tuple(whole(f"{name}: a size in shape {shape!r}", n, 0, 2**63, f"rt.random.{name}((2, 3))") for n in sizes)


def check_real(name: str, argument: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: {argument} must be a real number, got {value!r}; for a tensor use its .item()")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{name}: {argument} must be finite, got {number}")
    return number


def check_float(name: str, dtype: Any, device: Device) -> Any:
    found = device.float_dtype if dtype is None else as_dtype(dtype)
    if not is_floating(found):
        raise TypeError(f"{name}: dtype must be a float, got {found}; write dtype=rt.float32, or rt.random.integers")
    return found


def check_probability(name: str, p: Any) -> float:
    chance = check_real(name, "p", p)
    if not 0.0 <= chance <= 1.0:
        raise ValueError(f"{name}: p must be in [0, 1], got {chance}; write p=0.5")
    return chance


@dataclass(frozen=True, slots=True)
class Key:
    """A name for one stream of random numbers: a 64-bit seed that only `key`, `split` and `fold_in` hand out.

    >>> import ruda_tensor as rt
    >>> rt.random.key(7) == rt.random.key(7), rt.random.key(7) == rt.random.key(8)
    (True, False)
    """

    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))


def check_key(name: str, value: Any) -> Key:
    if not isinstance(value, Key):
        raise TypeError(f"{name}: key must come from rt.random.key, got {value!r}; write key=rt.random.key(7)")
    return value


class _Here(threading.local):
    """What this thread does with the places of its draws, whichever generator they come from.

    Each is noted in every log of `logs`. With a `source`, places are taken from it and no generator moves.
    """

    logs: tuple[list, ...] = ()
    source: Iterator[tuple[int, int, int]] | None = None


_here = _Here()


@contextmanager
def noting() -> Iterator[list[tuple[int, int, int]]]:
    """Inside, note the draws of this thread in the list that is given; `replaying` repeats them."""
    log: list[tuple[int, int, int]] = []
    before, _here.logs = _here.logs, (*_here.logs, log)
    try:
        yield log
    finally:
        _here.logs = before


@contextmanager
def replaying(log: list[tuple[int, int, int]]) -> Iterator[None]:
    """Inside, the draws of this thread are those of `log`, and no generator moves: other threads notice nothing."""
    before = _here.source, _here.logs
    _here.source, _here.logs = iter(log), ()
    try:
        yield
    finally:
        _here.source, _here.logs = before


def is_replaying() -> bool:
    return _here.source is not None


def _noted(words: int) -> tuple[int, int]:
    """The next place of the log that is replayed."""
    assert _here.source is not None
    found = next(_here.source, None)
    if found is None or found[0] != words:
        raise RuntimeError(
            "checkpoint: run again in backward, the function draws other random numbers than in the forward; it must "
            "depend on its arguments alone"
        )
    return found[1:]


class Generator:
    """A stream of random numbers with a position: what is drawn depends on (seed, offset) and nothing else.

    Each draw of n words moves `offset` on by ceil(n / 4) counters (layout: `ruda_tensor.philox`). Drawing from several
    threads is safe, but which thread gets which numbers is then a race: give each thread a generator or key.

    Methods take the arguments of the functions of the same name in `ruda_tensor.random`, without `seed` and `key`.

    Errors: TypeError or ValueError unless `seed` is a Key or an integer in [0, 2**64).

    >>> import ruda_tensor as rt
    >>> generator = rt.random.Generator(7)
    >>> generator.integers((3,), low=0, high=10, device=rt.Cpu()).tolist()
    [7, 0, 7]
    >>> generator
    Generator(seed=7, offset=2)
    """

    __slots__ = ("_seed", "_offset", "_forks", "_lock")

    def __init__(self, seed: int | Key) -> None:
        self._lock = threading.Lock()
        self.seed(seed)

    def __repr__(self) -> str:
        return f"Generator(seed={self._seed}, offset={self._offset})"

    def __reduce__(self) -> tuple:
        return _rebuild, (self.get_state(),)

    def seed(self, seed: int | Key) -> None:
        """Start again at the beginning of the stream of `seed`."""
        number = seed.seed if isinstance(seed, Key) else check_seed(seed)
        with self._lock:
            self._seed, self._offset, self._forks = number, 0, 0

    def reserve(self, count: int) -> tuple[int, int]:
        """Return the (seed, offset) of a draw of `count` 32-bit words and move on past it."""
        return self.place(whole("reserve: count", count, 0, 2**64, "reserve(x.size)"))

    def place(self, words: int, *, lasting: bool = True) -> tuple[Any, int]:
        """As `reserve`, of a generator that is `lasting` or made for one draw: a captured step makes the latter once only."""
        current = recording()
        if _here.source is not None:
            seed, offset = _noted(words)
        elif current is not None and lasting:
            seed, offset = self._live(words, current), 0
        else:
            seed, offset = self._take(words)
        for log in _here.logs:
            log.append((words, seed, offset))
        return seed, offset

    def _take(self, words: int) -> tuple[int, int]:
        with self._lock:
            seed, offset = self._seed, self._offset
            self._offset = (offset + draws.counters(words, 1)) % 2**64
        return seed, offset

    def _live(self, words: int, current: Any) -> LivePlace:
        """The place of this draw at every replay, as (seed, offset) in device memory."""
        cell = [(0, 0)]

        def take() -> None:
            cell[0] = self._take(words)

        def back() -> None:
            with self._lock:
                self._seed, self._offset = cell[0]

        current.tick(take, back)
        return LivePlace(current.slot("QQ", lambda: cell[0]))

    def get_state(self) -> dict[str, int | str]:
        """Return the state as plain integers and strings; `set_state` takes it, in this process or another."""
        with self._lock:
            return {"algorithm": ALGORITHM, "seed": self._seed, "offset": self._offset, "forks": self._forks}

    def set_state(self, state: dict[str, int | str]) -> None:
        """Continue where `get_state` was called."""
        names = {"algorithm", "seed", "offset", "forks"}
        if not isinstance(state, dict) or set(state) != names or state["algorithm"] != ALGORITHM:
            raise ValueError(
                f"set_state: expected {sorted(names)} with algorithm {ALGORITHM!r}, got {state!r}; "
                "give what get_state() returned"
            )
        seed, offset, forks = (
            whole(f"set_state: {n}", state[n], 0, 2**64, "set_state(get_state())") for n in ("seed", "offset", "forks")
        )
        with self._lock:
            self._seed, self._offset, self._forks = seed, offset, forks

    def normal(
        self, shape: Any, *, mean: float = 0.0, std: float = 1.0, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Normal numbers; see `ruda_tensor.random.normal`."""
        sizes, place = check_shape("normal", shape), resolve_device(device)
        kind = check_float("normal", dtype, place)
        centre, width = check_real("normal", "mean", mean), check_real("normal", "std", std)
        if width < 0:
            raise ValueError(f"normal: std must be >= 0, got {width}; write std=1.0")
        if abs(centre) + 9 * width > _largest(kind):
            raise ValueError(f"normal: mean={centre} with std={width} overflows {kind}; write dtype=rt.float64")
        return self._draw(place, draws.normal, sizes, draws.words_of(kind), centre, width, kind)

    def uniform(
        self, shape: Any, *, low: float = 0.0, high: float = 1.0, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Uniform numbers in [low, high); see `ruda_tensor.random.uniform`."""
        sizes, place = check_shape("uniform", shape), resolve_device(device)
        kind = check_float("uniform", dtype, place)
        start, stop = check_real("uniform", "low", low), check_real("uniform", "high", high)
        if max(abs(start), abs(stop), abs(stop - start)) > _largest(kind):
            raise ValueError(f"uniform: the range from {start} to {stop} overflows {kind}; write dtype=rt.float64")
        start, stop = float(kind.type(start)), float(kind.type(stop))
        if start >= stop:
            raise ValueError(
                f"uniform: low must be less than high in {kind}, got low={start}, high={stop}; write low=0, high=1"
            )
        return self._draw(place, draws.uniform, sizes, draws.words_of(kind), start, stop, kind)

    def bernoulli(self, shape: Any, *, p: float = 0.5, device: Any = None) -> Tensor:
        """True with probability p; see `ruda_tensor.random.bernoulli`."""
        sizes, chance = check_shape("bernoulli", shape), check_probability("bernoulli", p)
        return self._draw(resolve_device(device), draws.bernoulli, sizes, 1, chance)

    def integers(self, shape: Any, *, low: int = 0, high: int, dtype: Any = None, device: Any = None) -> Tensor:
        """Integers in [low, high); see `ruda_tensor.random.integers`."""
        sizes, place = check_shape("integers", shape), resolve_device(device)
        kind = place.int_dtype if dtype is None else as_dtype(dtype)
        if kind not in INTEGER:
            raise TypeError(f"integers: dtype must be an integer, got {kind}; write dtype=rt.int32")
        bits = 8 * kind.itemsize
        least, most = (0, 2**bits) if kind.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        fix = "low=0, high=10, or a wider dtype=rt.int64"
        start, stop = (whole(f"integers: {n}", v, -(2**64), 2**65, fix) for n, v in (("low", low), ("high", high)))
        if start < least or stop > most:
            raise ValueError(f"integers: low={start}, high={stop} do not fit {kind}, [{least}, {most}); write {fix}")
        if start >= stop:
            raise ValueError(f"integers: low must be less than high, got {start} and {stop}; write low=0, high=10")
        return self._draw(place, draws.integers, sizes, draws.span_words(stop - start), start, stop, kind)

    def permutation(self, x: Any, *, device: Any = None) -> Tensor:
        """A random order of 0 to n - 1, or of a tensor's rows; see `ruda_tensor.random.permutation`."""
        if not isinstance(x, Tensor):
            n = whole("permutation: n", x, 0, 2**63, "rt.random.permutation(10)")
            place = resolve_device(device)
        elif x.ndim == 0:
            raise ValueError("permutation: a 0-d tensor has no rows; for a number write rt.random.permutation(int(n))")
        elif device is not None and resolve_device(device) != x.device:
            raise ValueError(f"permutation: the tensor is on {x.device}, not on {device!r}; leave out device=")
        else:
            n, place = x.shape[0], x.device
        seed, offset = self.reserve(2 * n)
        with place.guard():
            order = Tensor._wrap(draws.permutation(place.xp, n, seed, offset), place)
        return x[order] if isinstance(x, Tensor) else order

    def _draw(self, device: Device, body: Any, shape: tuple[int, ...], words: int, *arguments: Any) -> Tensor:
        seed, offset = self.reserve(math.prod(shape) * words)
        return at(device, body, shape, *arguments, seed, offset)


def _rebuild(state: dict[str, int | str]) -> Generator:
    generator = Generator(0)
    generator.set_state(state)
    return generator


def at(device: Device, body: Any, shape: tuple[int, ...], *arguments: Any) -> Tensor:
    """Run a function of `draws` on a device."""
    with device.guard():
        return Tensor._wrap(body(device.xp, shape, *arguments), device)


def _largest(dtype: Any) -> float:
    return float(ml_dtypes.finfo(dtype).max)


process = Generator(int.from_bytes(os.urandom(8), "little"))


def _before_fork() -> None:
    process._lock.acquire()  # no other thread is inside when memory is copied


def _after_in_parent() -> None:
    process._forks += 1
    process._lock.release()


def _after_in_child() -> None:
    """A forked child goes on with a stream of its own, which the parent's state and the count of its forks decide."""
    seed = philox.derive(process._seed, process._forks, philox.FORK)
    process._seed, process._offset, process._forks = seed, 0, 0
    process._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
