"""Numbers of a captured step that are new at every replay: a learning rate, a count of updates, a random stream's place."""
from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

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

    def _with(self, other: Any, f: Callable[[Any, Any], Any], swapped: bool = False) -> Any:
        if not isinstance(other, (int, float, Live)):
            return NotImplemented
        mine = self.read
        if isinstance(other, Live):
            theirs = other.read
            return Live(lambda: f(mine(), theirs()))
        return Live((lambda: f(other, mine())) if swapped else (lambda: f(mine(), other)))

    def __add__(self, other: Any) -> Any:
        return self._with(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, operator.add, True)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, operator.sub, True)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, operator.mul, True)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, operator.truediv, True)

    def __neg__(self) -> Live:
        mine = self.read
        return Live(lambda: -mine())

    def _frozen(self, *_: Any) -> NoReturn:
        raise CaptureError(
            "a number that changes from replay to replay was used as a Python number, which would freeze it at its present "
            "value: give it to optimizer.step as it is, or run this part outside the captured step"
        )

    __float__ = __int__ = __bool__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _frozen  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Live({self.read()!r})"


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
