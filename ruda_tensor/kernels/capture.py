"""Whether this thread is recording what it launches for a captured step, when no value can be read on the host."""
from __future__ import annotations


def capturing() -> bool:
    """True while launches are recorded and not run, so that nothing may wait for a device's numbers."""
    return False
