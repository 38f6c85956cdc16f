"""Random numbers: counter-based (Philox4x32-10), the same for the same seed on every device.

Three ways to say which numbers:

- **The process's generator** (nothing given): `seed(n)` starts it, every draw moves it on, `get_state` and `set_state`
  save and restore it. Unseeded, it starts from the system's entropy. A forked child goes on with a stream of its own,
  decided by the parent's seed and the number of forks since, so forked workers differ and are reproducible.
- **An explicit seed**, `normal(shape, seed=7)`: what a new `Generator(7)` would draw first. The process's generator is
  neither read nor moved. Two draws with one seed use the same bits: for independent ones, use keys.
- **A key**, `normal(shape, key=k)`: keys come from `key(seed)`, `split(k, n)` and `fold_in(k, number)`, so each
  parameter, rank, worker or step can have a stream of its own that no other draw shifts.

Equal on every device, bit for bit: bits, bernoulli, integers, permutations, and uniforms that are not subnormal.
Normals agree to a few units in the last place. In row-major order a shorter draw is a prefix of a longer one of the
same kind and dtype (permutations excepted), and nothing depends on how the work is cut up. `ruda_tensor.philox` fixes
which bits make which element.
"""
from __future__ import annotations

from typing import Any

from .. import philox
from ..devices import resolve_device
from ..tensor import Tensor
from . import draws, state
from .state import Generator, Key, check_float, check_key, check_probability, check_seed, check_shape, is_replaying, whole

__all__ = [
    "Generator",
    "Key",
    "bernoulli",
    "bernoulli_at",
    "bits_at",
    "fold_in",
    "get_state",
    "integers",
    "key",
    "normal",
    "permutation",
    "reserve",
    "seed",
    "set_state",
    "split",
    "uniform",
    "uniform_at",
]

_process = state.process


def _generator(name: str, seed: Any, key: Any) -> Generator:
    """The generator that the arguments mean."""
    if seed is None and key is None:
        return _process
    if seed is not None and key is not None:
        raise ValueError(f"{name}: give seed= or key=, not both; write {name}(..., key=rt.random.key({seed!r}))")
    return Generator(check_seed(seed) if key is None else check_key(name, key))


def seed(seed: int) -> None:
    """Start the process's generator at the beginning of the stream of `seed`, any integer in [0, 2**64).

    Errors: TypeError for anything but an integer, ValueError outside the range.

    >>> import ruda_tensor as rt
    >>> rt.random.seed(7)
    >>> rt.random.integers((3,), low=0, high=10, device=rt.Cpu()).tolist()
    [7, 0, 7]
    """
    number = check_seed(seed)
    if not is_replaying():  # what checkpoint runs again has its numbers, and must not move the stream
        _process.seed(number)


def get_state() -> dict[str, int | str]:
    """Return the state of the process's generator as plain integers and strings, fit for a checkpoint.

    >>> import ruda_tensor as rt
    >>> rt.random.seed(7)
    >>> rt.random.get_state()
    {'algorithm': 'philox4x32-10', 'seed': 7, 'offset': 0, 'forks': 0}
    """
    return _process.get_state()


def set_state(state: dict[str, int | str]) -> None:
    """Continue the process's generator from a state that `get_state` returned, in this process or another.

    Errors: ValueError or TypeError for anything that `get_state` does not return.

    >>> import ruda_tensor as rt
    >>> state = rt.random.get_state()
    >>> a = rt.random.normal((3,), device=rt.Cpu()).tolist()
    >>> rt.random.set_state(state)
    >>> a == rt.random.normal((3,), device=rt.Cpu()).tolist()
    True
    """
    if not is_replaying():
        _process.set_state(state)


def reserve(count: int) -> tuple[int, int]:
    """Move the process's generator past `count` 32-bit words and return the (seed, offset) that names them.

    `bits_at`, `uniform_at` and `bernoulli_at` give the numbers there, as often as needed: keep the two integers, not
    the mask.

    >>> import ruda_tensor as rt
    >>> rt.random.seed(7)
    >>> rt.random.reserve(10), rt.random.reserve(1)
    ((7, 0), (7, 3))
    """
    return _process.reserve(count)


def key(seed: int) -> Key:
    """Return the key of `seed`, an integer in [0, 2**64); a draw with it equals a draw with `seed=`.

    >>> import ruda_tensor as rt
    >>> rt.random.key(7)
    Key(seed=7)
    """
    return Key(seed)


def split(key: Key, n: int = 2) -> tuple[Key, ...]:
    """Return n new keys; each depends on `key` and its place alone, so a larger n leaves the first ones as they are.

    Key i has as its seed the first pair of words of the counter whose low half is i and whose c3 is 2, under `key`.

    Errors: TypeError for anything but a Key and an integer; ValueError for a negative n.

    >>> import ruda_tensor as rt
    >>> weight, bias = rt.random.split(rt.random.key(7))
    >>> weight == bias
    False
    """
    parent, count = check_key("split", key), whole("split: n", n, 0, 2**32, "rt.random.split(key, 2)")
    return tuple(Key(philox.derive(parent.seed, i, philox.SPLIT)) for i in range(count))


def fold_in(key: Key, data: int) -> Key:
    """Return the key that `data`, an integer in [0, 2**64) such as a rank, worker or step, names under `key`.

    Its seed is the first pair of words of the counter whose low half is `data` and whose c3 is 1, under `key`.

    Errors: TypeError for anything but a Key and an integer; ValueError for an integer outside the range.

    >>> import ruda_tensor as rt
    >>> epoch = rt.random.fold_in(rt.random.key(7), 3)
    >>> [rt.random.integers((), low=0, high=100, key=rt.random.fold_in(epoch, worker)).item() for worker in range(4)]
    [73, 27, 56, 95]
    """
    parent, number = check_key("fold_in", key), whole("fold_in: data", data, 0, 2**64, "rt.random.fold_in(key, rank)")
    return Key(philox.derive(parent.seed, number, philox.FOLD))


def normal(
    shape: Any,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: Any = None,
    device: Any = None,
    seed: int | None = None,
    key: Key | None = None,
) -> Tensor:
    """Return independent normal numbers, mean + std z with z ~ N(0, 1), in `dtype` (the device's float dtype if None).

    Box and Muller's transform in float64, rounded once to float32 and from there to a half type. |z| is below 6.77
    (float64: 8.66), the price of 32 (53) random bits. Bit-equal from run to run; between devices, to a few units in the
    last place.

    Errors: ValueError for std < 0, a number that is not finite or overflows the dtype, or a negative size; TypeError.
    Source: Box and Muller, "A note on the generation of random normal deviates", 1958.

    >>> import ruda_tensor as rt
    >>> rt.random.normal((2, 2), std=0.02, seed=7, device=rt.Cpu()).shape
    (2, 2)
    """
    return _generator("normal", seed, key).normal(shape, mean=mean, std=std, dtype=dtype, device=device)


def uniform(
    shape: Any,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: Any = None,
    device: Any = None,
    seed: int | None = None,
    key: Key | None = None,
) -> Tensor:
    """Return independent uniform numbers in [low, high), never `high`, in `dtype` (the device's float dtype if None).

    low + (high - low) u with u a multiple of 2**-24 (float64: 2**-53) in [0, 1). `low` and `high` are first rounded to
    the dtype. Half types are drawn in float32 and rounded once; what would round up to `high` becomes the number
    below it.

    Errors: ValueError unless low < high with a finite difference, or for a negative size; TypeError.

    >>> import ruda_tensor as rt
    >>> rt.random.uniform((3,), low=-1, high=1, seed=7, device=rt.Cpu()).numpy().round(4)
    array([ 0.9092,  0.5003, -0.7716], dtype=float32)
    """
    return _generator("uniform", seed, key).uniform(shape, low=low, high=high, dtype=dtype, device=device)


def bernoulli(
    shape: Any, *, p: float = 0.5, device: Any = None, seed: int | None = None, key: Key | None = None
) -> Tensor:
    """Return independent bools that are True with probability p, to the nearest multiple of 2**-32.

    An element is True where its 32-bit word is below round(p 2**32), so p = 0 and p = 1 are certain.

    Errors: ValueError unless 0 <= p <= 1, or for a negative size; TypeError.

    >>> import ruda_tensor as rt
    >>> rt.random.bernoulli((4,), p=0.5, seed=7, device=rt.Cpu()).tolist()
    [False, False, True, True]
    """
    return _generator("bernoulli", seed, key).bernoulli(shape, p=p, device=device)


def integers(
    shape: Any,
    *,
    low: int = 0,
    high: int,
    dtype: Any = None,
    device: Any = None,
    seed: int | None = None,
    key: Key | None = None,
) -> Tensor:
    """Return independent integers in [low, high), in `dtype` (the device's int dtype if None), for any range it holds.

    floor(x (high - low) / 2**64) + low with x of 64 bits; more than 2**32 values use 128 bits. Every value's
    probability is right to a relative 2**-32 (2**-64): far below what any sample that fits a memory could show.

    Errors: ValueError unless low < high and both fit the dtype, or for a negative size; TypeError.
    Source: Lemire, "Fast random integer generation in an interval", 2019.

    >>> import ruda_tensor as rt
    >>> rt.random.integers((5,), low=-3, high=4, seed=7, device=rt.Cpu()).tolist()
    [2, -3, 2, 3, -3]
    """
    return _generator("integers", seed, key).integers(shape, low=low, high=high, dtype=dtype, device=device)


def permutation(x: Any, *, device: Any = None, seed: int | None = None, key: Key | None = None) -> Tensor:
    """Return 0, 1, ..., n - 1 in random order (int64) for an integer n, or a tensor's rows (axis 0) in random order.

    The order sorts n 64-bit random numbers, and of two equal ones the earlier comes first: a pair is equal in one of
    37 million orders of 1e6 elements. Shuffling a tensor is differentiable.

    Errors: ValueError for a negative n, a 0-d tensor, or a device other than the tensor's; TypeError.

    >>> import ruda_tensor as rt
    >>> rt.random.permutation(5, seed=7, device=rt.Cpu()).tolist()
    [4, 1, 0, 2, 3]
    """
    return _generator("permutation", seed, key).permutation(x, device=device)


def _position(seed: Any, offset: Any) -> tuple[int, int]:
    return check_seed(seed), whole("offset", offset, 0, 2**64, "seed, offset = rt.random.reserve(count)")


def bits_at(shape: Any, seed: int, offset: int, device: Any = None) -> Tensor:
    """Return the uint32 words of the draw at (seed, offset), one per element; the same every time.

    >>> import ruda_tensor as rt
    >>> rt.random.bits_at((2,), 0, 0, rt.Cpu()).tolist() == [0x6627e8d5, 0xe169c58d]
    True
    """
    sizes, place = check_shape("bits_at", shape), resolve_device(device)
    return state.at(place, draws.bits, sizes, *_position(seed, offset))


def uniform_at(shape: Any, seed: int, offset: int, device: Any = None, dtype: Any = None) -> Tensor:
    """Return the uniform numbers in [0, 1) of the draw at (seed, offset); float64 takes two words per element.

    >>> import ruda_tensor as rt
    >>> rt.random.seed(7)
    >>> at = rt.random.get_state()["offset"]
    >>> x = rt.random.uniform((4,), device=rt.Cpu())
    >>> x.tolist() == rt.random.uniform_at((4,), 7, at, rt.Cpu()).tolist()
    True
    """
    sizes, place = check_shape("uniform_at", shape), resolve_device(device)
    kind = check_float("uniform_at", dtype, place)
    return state.at(place, draws.uniform, sizes, 0.0, 1.0, kind, *_position(seed, offset))


def bernoulli_at(shape: Any, p: float, seed: int, offset: int, device: Any = None) -> Tensor:
    """Return the bools of the draw at (seed, offset), True with probability p: a mask that need not be stored.

    >>> import ruda_tensor as rt
    >>> seed, offset = rt.random.reserve(6)
    >>> keep = rt.random.bernoulli_at((2, 3), 0.9, seed, offset, rt.Cpu())
    >>> keep.tolist() == rt.random.bernoulli_at((2, 3), 0.9, seed, offset, rt.Cpu()).tolist()
    True
    """
    sizes, chance = check_shape("bernoulli_at", shape), check_probability("bernoulli_at", p)
    return state.at(resolve_device(device), draws.bernoulli, sizes, chance, *_position(seed, offset))
