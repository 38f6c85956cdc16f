"""Turn a context manager into a decorator of functions, of generators and of coroutines."""
from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Generator
from typing import Any


def wrap(function: Callable, context: Callable[[], Any]) -> Callable:
    """Return `function` running inside `context()`; a generator or a coroutine is inside only while its own code runs."""
    if isinstance(function, type) or inspect.isasyncgenfunction(function):
        what = "a class" if isinstance(function, type) else "an asynchronous generator"
        raise TypeError(f"a setting decorates functions, not {what}; enter it where it is needed: with no_grad(): ...")
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            return (yield from _steps(function(*args, **kwargs), context))

        return stepping
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await types.coroutine(_steps)(function(*args, **kwargs), context)

        return awaited

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return inside


def _steps(steps: Any, context: Callable[[], Any]) -> Generator[Any, Any, Any]:
    """Run a generator or a coroutine, which have the same methods, with each of its steps inside `context()`."""
    send, value = steps.send, None
    while True:
        try:
            with context():
                item = send(value)
        except StopIteration as stop:
            return stop.value
        try:
            value, send = (yield item), steps.send
        except GeneratorExit:
            with context():
                steps.close()
            raise
        except BaseException as error:
            value, send = error, steps.throw
