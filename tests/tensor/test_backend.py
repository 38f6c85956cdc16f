"""What can be wrong with a GPU, each told apart: nothing is installed here, a module stands in for CuPy."""
from __future__ import annotations

import ctypes
import importlib.util
import sys
from types import SimpleNamespace

import pytest

import ruda_tensor as rt
from ruda_tensor import backend


class FakeCupy(SimpleNamespace):
    """As much of CuPy as is asked before a GPU is used."""

    def __init__(self, count=1, capability=("90",), nvrtc=13):
        def devices():
            if isinstance(count, Exception):
                raise count
            return count

        def version():
            if isinstance(nvrtc, Exception):
                raise nvrtc
            return nvrtc, 0

        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(getDeviceCount=devices),
            nvrtc=SimpleNamespace(getVersion=version),
            Device=lambda index: SimpleNamespace(compute_capability=capability[index]),
        )
        self.ndarray = type("ndarray", (), {})


@pytest.fixture
def machine(monkeypatch):
    """Puts a stand-in for CuPy into this process."""

    def with_cupy(fake, driver=True, installed=True):
        def find(name, *args):
            return object() if name == "cupy" and installed else None

        def load(name, *args):
            if not driver:
                raise OSError("libcuda.so.1: cannot open shared object file")
            return SimpleNamespace()

        monkeypatch.setattr(importlib.util, "find_spec", find)
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setitem(sys.modules, "cupy", fake)
        monkeypatch.setitem(backend._FORK, "pid", None)
        backend.gpu_problem.cache_clear()
        backend.cupy.cache_clear()

    yield with_cupy
    monkeypatch.undo()
    backend.gpu_problem.cache_clear()
    backend.cupy.cache_clear()


PROBLEMS = {
    "no CuPy": (FakeCupy(), {"installed": False}, r"CuPy is not installed \(pip install 'ruda\[cuda13\]'\)"),
    "no driver": (FakeCupy(), {"driver": False}, r"no NVIDIA driver was found \(libcuda"),
    "a broken driver": (FakeCupy(count=RuntimeError("InsufficientDriver")), {}, "reports no device .*InsufficientDriver"),
    "no GPU": (FakeCupy(count=0), {}, "the CUDA driver reports no device"),
    "no NVRTC": (FakeCupy(nvrtc=RuntimeError("libnvrtc.so.13: cannot open")), {}, r"compiler \(NVRTC\) cannot be loaded"),
    "too old for CUDA 13": (FakeCupy(capability=["70"]), {}, r"capability 7\.0, and 7\.5 is the least .*ruda\[cuda12\]"),
    "too old": (FakeCupy(capability=["61"], nvrtc=12), {}, r"compute capability 6\.1, and 7\.0 is the least .*newer GPU"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_wrong_is_said_and_the_cpu_goes_on(name, machine, monkeypatch):
    fake, options, words = PROBLEMS[name]
    machine(fake, **options)
    with pytest.raises(rt.NoUsableGpu, match=f"no usable GPU: .*{words}.*use device=Cpu"):
        backend.cuda_array_module(0)
    monkeypatch.delenv("RUDA_DEVICE", raising=False)
    rt.set_default_device(None)
    try:
        assert rt.default_device() == rt.Cpu() and rt.ones(2).tolist() == [1.0, 1.0]
    finally:
        rt.set_default_device(None)


def test_the_least_gpu_is_taken(machine):
    machine(FakeCupy(capability=["75"]))
    assert backend.gpu_problem() is None
    machine(FakeCupy(capability=["70"], nvrtc=12))
    assert backend.gpu_problem() is None


def test_a_second_gpu_that_is_too_old_or_not_there(machine):
    machine(FakeCupy(count=2, capability=["90", "61"]))
    assert backend.cuda_array_module(0) is sys.modules["cupy"]
    with pytest.raises(rt.NoUsableGpu, match=r"Cuda\(1\): the GPU has compute capability 6\.1"):
        backend.cuda_array_module(1)
    with pytest.raises(rt.NoUsableGpu, match=r"Cuda\(2\) was asked for, and this process sees 2 GPU"):
        backend.cuda_array_module(2)


def test_CUDA_12_every_way_in_asks_for_spawn_after_a_fork(machine, monkeypatch):
    machine(FakeCupy())
    assert backend.gpu_problem() is None
    monkeypatch.setitem(backend._FORK, "pid", backend._FORK["pid"] + 1)  # as in a child
    for way in (backend.check_fork, backend.cupy, lambda: backend.cuda_array_module(0), lambda: backend.use_device(0)):
        with pytest.raises(RuntimeError, match="spawn"):
            way()
