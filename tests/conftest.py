"""Fixtures shared by all tests, and how far hypothesis searches."""
from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import ruda_autodiff  # noqa: F401  (the tape: a test file that is run alone needs it too)
import ruda_tensor as rt
from ruda_tensor.devices import Device

# "steady" tries the same examples on every run, so that a red run is red again; "deep" looks for new ones.
_quiet = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("steady", derandomize=True, deadline=None, max_examples=50, suppress_health_check=_quiet)
settings.register_profile("deep", deadline=None, max_examples=1000, print_blob=True, suppress_health_check=_quiet)
settings.load_profile(os.environ.get("RUDA_HYPOTHESIS", "steady"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    """Each device in turn: the CPU always, the first GPU where there is one (`-m gpu` runs only that)."""
    return rt.Cpu() if request.param == "cpu" else rt.Cuda(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """NumPy's generator with a fixed seed, new in each test."""
    return np.random.default_rng(0)
