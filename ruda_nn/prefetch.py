"""One thread that makes the next items while the last ones are used."""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any


class Prefetch:
    """Calls `make(step)` for each step in a thread, at most `ahead` results before they are asked for.

    The thread refers to this object and not to its owner, so that the owner can be garbage-collected in the middle; the
    owner's finalizer then calls `stop`. The thread is a daemon: a program that ends does not wait for it.

    >>> squares = Prefetch(lambda step: step * step, range(3), ahead=2)
    >>> [squares.next() for _ in range(3)]
    [0, 1, 4]
    >>> squares.stop(wait=True)
    """

    def __init__(self, make: Callable[[int], Any], steps: range, ahead: int) -> None:
        self._make, self._steps, self._stopped = make, steps, False
        self._slots, self._ready = threading.Semaphore(ahead), queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ruda-prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for step in self._steps:
                self._slots.acquire()
                if self._stopped:
                    return
                self._ready.put((self._make(step), None))
        except BaseException as error:  # also SystemExit: all of it belongs to whoever asks for the item
            self._ready.put((None, error))

    def next(self) -> Any:
        """Return the next item, or raise what making it raised, with the traceback from the thread."""
        item, error = self._ready.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        self._slots.release()
        return item

    def stop(self, wait: bool = False) -> None:
        """End the thread after the item that it is making, and wait for that if asked to."""
        self._stopped = True
        self._slots.release()
        if wait:
            self._thread.join()
