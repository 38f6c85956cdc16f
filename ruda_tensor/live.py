"""Numbers of a captured step that are new at every replay: a learning rate, a count of updates, a random stream's place."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from .recording import CaptureError, recording


class Live:
    """A number that a captured step reads anew at every replay; `read()` says what it is now.

    Arithmetic gives another such number. Turning it into a Python number would freeze it, so that raises; where one is
    needed for a check, `read()` gives it.

    >>> rate = Live(lambda: 0.5)
    >>> (rate * 0.1 + 1).read()
    1.05
    """

    __slots__ = ("read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read

    # Told to leave these numbers alone, NumPy's scalars let them say what a product is.
    __array_ufunc__ = None

    def __add__(self, other: Any) -> Any:
        return _together(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _together(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _together(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _together(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _together(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _together(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _together(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _together(operator.truediv, other, self)

    def __pow__(self, other: Any) -> Any:
        return _together(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _together(operator.pow, other, self)

    def __pos__(self) -> Live:
        return self

    def __abs__(self) -> Live:
        mine = self.read
        return Live(lambda: abs(mine()))

    def __neg__(self) -> Live:
        mine = self.read
        return Live(lambda: -mine())

    def _frozen(self, *_: Any) -> NoReturn:
        raise CaptureError(
            "a number that changes from replay to replay was used as a Python number, which would freeze it at its present "
            "value: give it to optimizer.step as it is, or run this part outside the captured step"
        )

    __float__ = __int__ = __bool__ = __index__ = _frozen  # type: ignore[assignment]
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _frozen  # type: ignore[assignment]
    __round__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _frozen
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Live({self.read()!r})"


def _together(f: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """f of two numbers, of which one changes or both do."""
    for number in (x, y):
        if not isinstance(number, (int, float, Live, np.integer, np.floating)):
            return NotImplemented
    return Live(lambda: f(now(x), now(y)))


def every_replay(f: Callable[[], float], undo: Callable[[], None] | None = None) -> Any:
    """Return f(): a number, or inside a captured step a `Live` one, for which f is called at every replay.

    `undo` takes one call of f back, for a capture that fails.

    >>> every_replay(lambda: 0.5)
    0.5
    """
    current = recording()
    if current is None:
        return f()
    cell: list[float] = [0.0]

    def again() -> None:
        cell[0] = f()

    current.tick(again, undo)
    return Live(lambda: cell[0])


class LivePlace:
    """The place of a draw in a captured step: a seed and an offset in device memory, new at every replay.

    It stands where a seed does. Kernels that know it read `memory`; everything else is refused.
    """

    __slots__ = ("memory",)

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def _frozen(self, *_: Any) -> NoReturn:
        raise CaptureError(
            "this random draw cannot be part of a captured step, which would repeat its numbers: dropout can be; draw other "
            "numbers before, and give them to the step as an input"
        )

    __int__ = __index__ = __mod__ = __add__ = __rshift__ = __and__ = _frozen


def now(x: Any) -> Any:
    """The present value of a number, which may be a `Live` one.

    >>> now(Live(lambda: 2.0)), now(3.0)
    (2.0, 3.0)
    """
    return x.read() if isinstance(x, Live) else x
