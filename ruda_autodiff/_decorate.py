"""Turn a context manager into a decorator of functions and of generators."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def wrap(function: Callable, context: Callable[[], Any]) -> Callable:
    """Return `function` running inside `context()`; a generator is inside only while its own code runs."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def stepping(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            send, value = generator.send, None
            while True:
                try:
                    with context():
                        item = send(value)
                except StopIteration as stop:
                    return stop.value
                try:
                    value, send = (yield item), generator.send
                except GeneratorExit:
                    with context():
                        generator.close()
                    raise
                except BaseException as error:
                    value, send = error, generator.throw

        return stepping

    @functools.wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return inside
