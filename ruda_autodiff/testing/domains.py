"""Domains: which numbers a tensor of a property test may hold.

Values are multiples of 1/64 where they can be, so that what hypothesis shrinks to prints short and means the same in
every float type.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def hypothesis_strategies() -> Any:
    """The module hypothesis.strategies, or an error that says how to get it."""
    try:
        import hypothesis.strategies as st
    except ImportError:
        raise ImportError(
            "property-based tests need hypothesis, which ruda does not install by itself: pip install hypothesis "
            "(or pip install 'ruda[test]')"
        ) from None
    return st


@dataclass(frozen=True)
class Domain:
    """The numbers that a tensor may hold: `draw(n)` is a strategy for a list of n of them.

    Make one with `between`, or use those below: reals, positive, negative, nonzero, unit_interval, away_from_ties,
    away_from_integers, large, tiny, any_floats.

    >>> between(0.0, 1.0)
    <domain between(0.0, 1.0)>
    """

    name: str
    draw: Callable[[int], Any]

    def __repr__(self) -> str:
        return f"<domain {self.name}>"


def _each(name: str, one: Callable[[Any], Any]) -> Domain:
    """A domain whose elements are drawn one by one."""

    def draw(n: int) -> Any:
        st = hypothesis_strategies()
        return st.lists(one(st), min_size=n, max_size=n)

    return Domain(name, draw)


def _grid(low: float, high: float) -> Callable[[Any], Any]:
    return lambda st: st.integers(round(low * 64), round(high * 64)).map(lambda k: k / 64)


def between(low: float, high: float) -> Domain:
    """Return the domain of numbers in [low, high].

    Errors: ValueError where low is not below high.

    >>> between(-1.0, 1.0)
    <domain between(-1.0, 1.0)>
    """
    if not low < high:
        raise ValueError(f"between: low must be below high, got {low!r} and {high!r}")

    def one(st: Any) -> Any:
        if (high - low) * 64 >= 8 and float(low * 64).is_integer() and float(high * 64).is_integer():
            return _grid(low, high)(st)
        return st.integers(0, 1024).map(lambda k: low + (high - low) * k / 1024)

    return _each(f"between({low!r}, {high!r})", one)


reals = _each("reals", _grid(-8.0, 8.0))
positive = _each("positive", lambda st: st.integers(8, 512).map(lambda k: k / 64))
negative = _each("negative", lambda st: st.integers(8, 512).map(lambda k: -k / 64))
unit_interval = _each("unit_interval", lambda st: st.integers(1, 63).map(lambda k: k / 64))
nonzero = _each("nonzero", lambda st: st.integers(8, 512).flatmap(lambda k: st.sampled_from([k / 64, -k / 64])))
away_from_integers = _each(
    "away_from_integers", lambda st: st.tuples(st.integers(-8, 8), st.integers(8, 56)).map(lambda p: p[0] + p[1] / 64)
)
large = _each("large", lambda st: st.integers(-(10**6), 10**6).map(float))
tiny = _each("tiny", lambda st: st.integers(-512, 512).map(lambda k: k * 2.0**-30))
any_floats = _each("any_floats", lambda st: st.floats(-1e6, 1e6, allow_subnormal=False, width=32))


def _distinct(n: int) -> Any:
    """n numbers no two of which are nearer than 1/8, in any order, and none within 1/16 of zero."""
    st = hypothesis_strategies()
    spread = lambda order: [(2 * k - n + 1) / 8 + 1 / 16 * (n % 2) for k in order]
    return st.permutations(range(n)).map(spread)


away_from_ties = Domain("away_from_ties", _distinct)
