"""What the tests of the loader share."""
from __future__ import annotations

import threading
import time

import numpy as np

import ruda_tensor as rt
from ruda_nn import ArrayDataset, DataLoader

CPU = rt.Cpu()


def data(n=10):
    return ArrayDataset(np.arange(2.0 * n).reshape(n, 2), np.arange(n))


def loader_of(n=10, size=3, **how):
    return DataLoader(data(n), size, **{"device": CPU, "seed": 5, **how})


def ids(batches):
    return [batch[-1].tolist() for batch in batches]


def threads():
    """The loader's threads, after those that were told to end had the time to."""
    until = time.monotonic() + 5
    while True:
        alive = [t for t in threading.enumerate() if t.name == "ruda-prefetch"]
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.005)
