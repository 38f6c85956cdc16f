"""Generated kernels compile for every architecture, keep few registers, spill none, and move 16 bytes at a time."""
from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_tensor.fusion.results import Results, kind_of
from ruda_tensor.kernels import generated
from ruda_tensor.kernels.launch import Kernel, program

from ._shim import ALL
from ._variants import ARCHITECTURES
from .test_compile import NVCC, USED

pytestmark = [pytest.mark.slow, pytest.mark.skipif(NVCC is None, reason="no nvcc to compile the CUDA sources with")]


def everything(x, y, mask):
    """Most of what the lines of a kernel may be."""
    z = rt.where(mask, rt.exp(-rt.abs(x)), rt.log1p(rt.square(y))) + rt.tanh(x) * rt.erf(y) + rt.erfc(x)
    z = z + rt.sigmoid(x) / (rt.softplus(y) + 1.0) + rt.clip(x, -1.0, 2.0) + rt.atan2(x, y) + rt.pow(rt.abs(x), y)
    return z * rt.sign(y) + rt.floor(x) + rt.maximum(x, y) + rt.isfinite(x).astype(x.dtype)


def kernels(dtype) -> dict[str, Kernel]:
    """Forward and backward of three functions, one of them with several results, and the ways in which arrays may lie."""
    device = rt.Cpu()
    x, y = rt.ones((8, 16), dtype=dtype, device=device), rt.ones((16,), dtype=dtype, device=device)
    found = {}
    for name, f, inputs in (
        ("everything", everything, (x, y, rt.ones((8, 1), dtype=rt.bool, device=device))),
        ("gated", lambda x, y: x * rt.sigmoid(x * 1.702) + y, (x, x)),
        ("three", lambda x, y: (x * y, (rt.tanh(x) + y).astype(rt.float32), x > y), (x, x)),
    ):
        kind = kind_of(f, inputs, device)
        if isinstance(kind, Results):
            ((kind, _),) = kind.kinds
        operation = kind.operation(tuple(t.dtype != rt.bool for t in inputs))
        assert operation.keeps and operation.derivative is not None
        ways = {"forward": kind.program, "backward": operation.derivative.program}
        if kind.several:
            ways["backward of one"] = operation.partly((False, True, False)).program
        for way, made in ways.items():
            count = len(made.inputs)
            straight = generated.reading(made, [4096], [[1]] * count, [0] * count)
            found[f"{name} {way}"] = generated.kernel(made, straight)
            if name == "everything":
                strange = straight._replace(modes=("gather", "one", "vector", "vector")[:count], axes=2, wide=True)
                found[f"{name} {way} of strided arrays"] = generated.kernel(made, strange)
    return found


def compiled(kernel: Kernel, architecture: int, folder, number: int) -> tuple[int, int]:
    """Registers, and bytes of spills."""
    source = folder / f"{number}.cu"
    source.write_text(program(kernel.source, kernel.defines, kernel.text))
    command = [str(NVCC), f"-arch=sm_{architecture}", "-cubin", "-Xptxas", "-v", "-ftz=true", "-std=c++17", *kernel.options]
    command += ["-o", str(folder / f"{number}.cubin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{kernel} for sm_{architecture}:\n{done.stderr}"
    ((_, stores, loads, registers),) = USED.findall(done.stderr)
    return int(registers), int(stores) + int(loads)


@pytest.mark.parametrize("architecture", ARCHITECTURES if ALL else ARCHITECTURES[::3])
def test_generated_kernels_compile_without_spills(architecture, tmp_path):
    dtypes = (rt.float32, rt.float16, rt.bfloat16, rt.float64) if ALL else (rt.float32, rt.bfloat16)
    wanted = {f"{name}, {dtype}": k for dtype in dtypes for name, k in kernels(dtype).items()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        work = [pool.submit(compiled, k, architecture, tmp_path, i) for i, k in enumerate(wanted.values())]
        found = {name: job.result() for name, job in zip(wanted, work)}
    spilled = {name: used for name, used in found.items() if used[1]}
    assert not spilled, f"[registers, bytes of spills]: {spilled}"
    crowded = {name: used for name, used in found.items() if used[0] > (128 if "float64" in name else 72)}
    assert not crowded, f"[registers, bytes of spills]: {crowded}"


def test_halves_move_16_bytes_at_a_time(tmp_path):
    kernel = kernels(rt.bfloat16)["gated backward"]
    source, text = tmp_path / "k.cu", tmp_path / "k.ptx"
    source.write_text(program(kernel.source, kernel.defines, kernel.text))
    subprocess.run([str(NVCC), "-arch=sm_90", "-ptx", "-std=c++17", "-o", str(text), str(source)], check=True, timeout=300)
    entry = text.read_text().partition(f".entry {kernel.name}(")[2].partition("\n}\n")[0]
    assert "st.global.v4" in entry and len(re.findall(r"ld\.global\.nc\.v4", entry)) >= 2


def test_a_source_that_does_not_compile_is_named(monkeypatch):
    from ruda_tensor.kernels.launch import KernelError

    from ._hooks import launching

    with launching("shim", monkeypatch) as device:
        monkeypatch.setitem(__import__("ruda_tensor.fusion.codegen", fromlist=["_INFIX"])._INFIX, "add", "+ nonsense +")
        with pytest.raises(KernelError, match=r"fused_forward does not compile: .*error.*nonsense"):
            rt.fuse(lambda x: x + x * 0.37)(rt.tensor(np.ones(3), dtype=rt.float32, device=device))
