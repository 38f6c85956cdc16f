"""What every test and doctest shares: where tensors go when no device is named, and the header of a test run."""
from __future__ import annotations

import importlib.metadata
import os

import pytest


def pytest_configure() -> None:
    # Examples and tests name a GPU where they mean one, so their results are the same on every machine.
    os.environ.setdefault("RUDA_DEVICE", "cpu")


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{distributions[0]} none"


def pytest_report_header() -> list[str]:
    from ruda_tensor.backend import gpu_problem

    problem = gpu_problem()
    versions = [_version("numpy"), _version("ml_dtypes"), _version("cupy", "cupy-cuda13x", "cupy-cuda12x")]
    gpu = "GPU tests run" if problem is None else f"GPU tests are skipped: {problem}"
    return [f"ruda: {', '.join(versions)}; default device {os.environ['RUDA_DEVICE']}; {gpu}"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu` where no GPU is usable; from one line, so that the summary has one count and reason."""
    if item.get_closest_marker("gpu"):
        from ruda_tensor.backend import gpu_problem

        problem = gpu_problem()
        if problem is not None:
            pytest.skip(f"no usable GPU: {problem}")
