"""What the tests of kernels share."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ruda_tensor import backend

from ._shim import COMPILER, on_shim


@pytest.fixture(params=["shim", pytest.param("cuda", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> Iterator[Any]:
    """NumPy with the kernels run on the CPU, and CuPy."""
    if request.param == "cuda":
        yield backend.cupy()
    elif COMPILER is None:
        pytest.skip("no g++ to run the CUDA sources with")
    else:
        with on_shim():
            yield np
